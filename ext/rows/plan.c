/*
 * The table and the statement in the core's terms: which columns the core
 * reads, and what the others get.
 *
 * The core reads a type if it gives exactly the value that the server's input
 * function would give under the settings of this session, or leaves that one
 * value to the server. Values that depend on a setting which the core does not
 * support (timezone_abbreviations, IntervalStyle, lc_monetary, array_nulls)
 * are left to the server. The plan is made once, so settings must not change
 * while rows are read. If functions that are called meanwhile might change
 * them (volatile constraints), stock COPY does the work.
 *
 * Catalogs are read here and nowhere later: the plan is complete without them.
 * So it can be passed to workers that have no database connection, as one
 * piece of memory without pointers (below).
 */
#include "rows/rows.h"

#include "access/transam.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_locale.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/*
 * What the core assumes of every server (crates/core/src/page/tuple.rs,
 * types/text.rs).
 */
StaticAssertDecl(MAXIMUM_ALIGNOF == 8, "the core forms tuples as 64-bit machines have them");
StaticAssertDecl(NAMEDATALEN == 64, "the core forms names of 64 bytes");

/*
 * The labels of an enum. A label that was added by a transaction that is still
 * running is left out: the server decides whether it may be used.
 */
static void
plan_enum(Oid type, SluiceColumn *column)
{
	CatCList   *list = SearchSysCacheList1(ENUMTYPOIDNAME, ObjectIdGetDatum(type));
	SluiceLabel *labels = palloc(sizeof(SluiceLabel) * list->n_members);

	for (int i = 0; i < list->n_members; i++)
	{
		HeapTuple	tuple = &list->members[i]->tuple;
		Form_pg_enum label = (Form_pg_enum) GETSTRUCT(tuple);
		TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);
		char	   *text;

		if (TransactionIdIsNormal(xmin) && TransactionIdIsInProgress(xmin))
			continue;
		text = pstrdup(NameStr(label->enumlabel));
		labels[column->nlabels].label = (const uint8_t *) text;
		labels[column->nlabels].len = strlen(text);
		labels[column->nlabels].oid = label->oid;
		column->nlabels++;
	}
	ReleaseCatCacheList(list);
	column->labels = labels;
}

/*
 * The server reads every value of the column. A function that is not strict
 * must see NULLs too, except that of a domain whose constraints all accept a
 * NULL.
 */
static void
plan_asked(CopyFromState cstate, Form_pg_attribute att, SluiceColumn *column)
{
	if (!cstate->in_functions[att->attnum - 1].fn_strict &&
		!(get_typtype(att->atttypid) == TYPTYPE_DOMAIN && sluice_domain_takes_null(att->atttypid)))
		column->not_null = true;
}

/* Types whose input may depend on the time zone's abbreviations. */
static bool
is_date(Oid type)
{
	return type == DATEOID || type == TIMEOID || type == TIMETZOID ||
		type == TIMESTAMPOID || type == TIMESTAMPTZOID;
}

/*
 * Whether UTC, Z, T and BC have their usual meaning in dates. A zone that is a
 * rule ("UTC+5") defines abbreviations, and since 18 the server looks these up
 * first. A list of abbreviations other than the default may have any words.
 */
static bool
plain_dates(void)
{
	const char *zone = pg_get_timezone_name(session_timezone);

	return zone && strpbrk(zone, "0123456789<") == NULL &&
		strcmp(GetConfigOption("timezone_abbreviations", false, false), "Default") == 0;
}

/*
 * Whether the core reads a type, or an array of it, as the server does under
 * the current settings.
 */
static bool
settings_suit(Oid type, bool is_array, const SluicePlanArgs *args)
{
	return (!is_array || Array_nulls) &&
		(type != INTERVALOID || IntervalStyle != INTSTYLE_SQL_STANDARD) &&
		(type != MONEYOID || args->env.money_c) && (!is_date(type) || plain_dates());
}

/*
 * Plans how a column in the data is read. type_oid stays 0 if the server has
 * to read every value.
 */
static void
plan_type(CopyFromState cstate, Form_pg_attribute att, SluiceColumn *column,
		  const SluicePlanArgs *args)
{
	Oid			type = att->atttypid;
	int32		typmod = att->atttypmod;
	Oid			element;

	/*
	 * The catalogs are read only for types that the core does not read itself:
	 * these may be domains or enums.
	 */
	if (!pgsluice_reads(type) && get_typtype(type) == TYPTYPE_DOMAIN && !compat_domain_has_constraints(type))
		type = getBaseTypeAndTypmod(type, &typmod);
	column->typmod = typmod;
	element = att->attlen == -1 ? get_element_type(type) : InvalidOid;
	if (!pgsluice_reads(type))
	{
		if (get_typtype(type) == TYPTYPE_ENUM)
			plan_enum(type, column);
	}
	else if (settings_suit(OidIsValid(element) ? element : type, OidIsValid(element), args))
	{
		column->type_oid = type;
		if (OidIsValid(element))
		{
			int16		len;
			bool		byval;
			char		align;

			get_typlenbyvalalign(element, &len, &byval, &align);
			column->element_align = sluice_align_bytes(align);
		}
		return;
	}
	if (column->nlabels == 0)
		plan_asked(cstate, att, column);
}

/*
 * The settings that change how the core reads values. They are read once: see
 * the head of the file.
 */
static SluiceEnv
session_env(void)
{
	SluiceEnv	env;
	const char *zone = pg_get_timezone_name(session_timezone);
	/* not setlocale(): the server keeps the process's own LC_MONETARY at C */
	const char *monetary = locale_monetary;

	env.utc = zone && (strcmp(zone, "UTC") == 0 || strcmp(zone, "Etc/UTC") == 0 ||
					   strcmp(zone, "GMT") == 0 || strcmp(zone, "Etc/GMT") == 0);
	env.date_order = DateOrder == DATEORDER_YMD ? 0 : DateOrder == DATEORDER_DMY ? 1 : 2;
	env.money_c = monetary && (strcmp(monetary, "C") == 0 || strcmp(monetary, "POSIX") == 0);
	env.single_byte = pg_database_encoding_max_length() == 1;
	return env;
}

/*
 * A generated value of fixed length has its place, filled with zeros. Any other one is formed
 * later.
 */
static void
plan_generated(Form_pg_attribute att, SluiceColumn *column)
{
	if (att->attlen < 0)
		return;
	column->given = palloc0(att->attlen);
	column->given_len = att->attlen;
	column->source = SLUICE_FROM_GIVEN;
}

/*
 * Describes the table and the statement to the core. `computes`: generated columns are computed in
 * the core's rows.
 */
void
sluice_plan_args(CopyFromState cstate, SluicePlanArgs *args, bool computes)
{
	TupleDesc	desc = RelationGetDescr(cstate->rel);
	SluiceColumn *columns = palloc0(sizeof(SluiceColumn) * desc->natts);
	SluiceDialect *dialect = &args->dialect;
	int			default_len;
	bool		converts = compat_is_binary(cstate) &&
		pg_get_client_encoding() != GetDatabaseEncoding();

	memset(args, 0, sizeof(*args));
	args->columns = columns;
	args->ncolumns = desc->natts;
	args->fields = list_length(cstate->attnumlist);
	args->env = session_env();
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		SluiceColumn *column = &columns[i];
		int			field = 0;
		ListCell   *lc;

		column->len = att->attlen;
		column->align = sluice_align_bytes(att->attalign);
		column->packable = att->attstorage != TYPSTORAGE_PLAIN;
		column->source = SLUICE_FROM_NULL;
		if (att->attisdropped)
			continue;
		column->not_null = att->attnotnull && !att->attgenerated;
		column->force_null = cstate->opts.force_null_flags[i];
		column->force_not_null = cstate->opts.force_notnull_flags[i];
		if (!list_member_int(cstate->attnumlist, i + 1))
		{
			if (computes && att->attgenerated)
				plan_generated(att, column);
			else
				sluice_plan_default(cstate, att, column, args);
			continue;
		}
		foreach(lc, cstate->attnumlist)
		{
			if (lfirst_int(lc) == i + 1)
				column->source = field;
			field++;
		}
		/* Text in binary data is converted by the type's receive function. */
		if (converts)
			plan_asked(cstate, att, column);
		else
			plan_type(cstate, att, column, args);
	}

	dialect->binary = compat_is_binary(cstate);
	if (dialect->binary)
		return;
	dialect->null = (const uint8_t *) cstate->opts.null_print;
	dialect->null_len = cstate->opts.null_print_len;
	dialect->default_marker = (const uint8_t *) compat_default_marker(cstate, &default_len);
	dialect->default_len = default_len;
	dialect->dot_ends = compat_dot_line_ends();
	dialect->delimiter = cstate->opts.delim[0];
	sluice_plan_quoting(cstate, dialect);
}

/*
 * Compiles the plan. It lives until the current memory context is reset or
 * deleted.
 */
SluicePlan *
sluice_make_plan(const SluicePlanArgs *args)
{
	MemoryContextCallback *callback = palloc0(sizeof(MemoryContextCallback));
	SluicePlan *plan = pgsluice_plan(args->columns, args->ncolumns, args->fields,
									 &args->dialect, &args->env);

	if (plan == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed to make the plan of a COPY.")));
	callback->func = (MemoryContextCallbackFunction) pgsluice_plan_free;
	callback->arg = plan;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
	return plan;
}

/* ----------------------------------------------------------------
 * The arguments of a plan in one piece of memory without pointers, to hand them
 * to a worker.
 * ----------------------------------------------------------------
 */

typedef struct Flat
{
	char	   *memory;			/* NULL: only count */
	Size		used;
} Flat;

/* Copies a part and returns its offset. Without memory it only counts. */
static void *
append_bytes(Flat *flat, const void *data, Size len)
{
	Size		at = flat->used;

	flat->used = MAXALIGN(at + len);
	if (flat->memory && len > 0)
		memcpy(flat->memory + at, data, len);
	/* NULL stays NULL: offset 0 is that of the struct itself. */
	return data ? (void *) at : NULL;
}

/* Copies the struct, the columns, then what they point to. */
static Size
flatten(const SluicePlanArgs *args, char *memory)
{
	Flat		flat = {memory, 0};
	SluicePlanArgs copy = *args;
	SluiceColumn *columns = palloc(sizeof(SluiceColumn) * args->ncolumns);
	Size		columns_at;

	append_bytes(&flat, args, sizeof(*args));
	columns_at = flat.used;
	copy.columns = append_bytes(&flat, args->columns, sizeof(SluiceColumn) * args->ncolumns);
	copy.dialect.null = append_bytes(&flat, args->dialect.null, args->dialect.null_len);
	copy.dialect.default_marker = append_bytes(&flat, args->dialect.default_marker, args->dialect.default_len);
	memcpy(columns, args->columns, sizeof(SluiceColumn) * args->ncolumns);
	for (size_t i = 0; i < args->ncolumns; i++)
	{
		SluiceColumn *column = &columns[i];
		SluiceLabel *labels = palloc(sizeof(SluiceLabel) * column->nlabels);

		column->given = append_bytes(&flat, column->given, column->given_len);
		for (size_t l = 0; l < column->nlabels; l++)
		{
			labels[l] = column->labels[l];
			labels[l].label = append_bytes(&flat, labels[l].label, labels[l].len);
		}
		column->labels = append_bytes(&flat, column->nlabels ? labels : NULL,
							 sizeof(SluiceLabel) * column->nlabels);
		pfree(labels);
	}
	if (memory)
	{
		memcpy(memory, &copy, sizeof(copy));
		memcpy(memory + columns_at, columns, sizeof(SluiceColumn) * args->ncolumns);
	}
	pfree(columns);
	return flat.used;
}

/* By a dry run, so that size and contents cannot differ. */
Size
sluice_plan_serialized_size(const SluicePlanArgs *args)
{
	return flatten(args, NULL);
}

/* Writes to memory of that size. Pointers become offsets from its start. */
void
sluice_plan_serialize(const SluicePlanArgs *args, char *flat)
{
	(void) flatten(args, flat);
}

/* Turns offsets into pointers again, in a copy of the columns and labels. */
void
sluice_plan_deserialize(const char *flat, SluicePlanArgs *args)
{
#define AT(p) ((p) ? (void *) (flat + (uintptr_t) (p)) : NULL)
#define AT_ALWAYS(p) ((void *) (flat + (uintptr_t) (p)))
	memcpy(args, flat, sizeof(*args));
	args->dialect.null = AT(args->dialect.null);
	args->dialect.default_marker = AT(args->dialect.default_marker);
	{
		SluiceColumn *columns = palloc(sizeof(SluiceColumn) * Max(args->ncolumns, 1));

		memcpy(columns, AT_ALWAYS(args->columns), sizeof(SluiceColumn) * args->ncolumns);
		args->columns = columns;
	}
	for (size_t i = 0; i < args->ncolumns; i++)
	{
		SluiceColumn *column = &args->columns[i];
		SluiceLabel *labels = palloc(sizeof(SluiceLabel) * Max(column->nlabels, 1));

		column->given = AT(column->given);
		if (column->nlabels)
			memcpy(labels, AT_ALWAYS(column->labels), sizeof(SluiceLabel) * column->nlabels);
		for (size_t l = 0; l < column->nlabels; l++)
			labels[l].label = AT(labels[l].label);
		column->labels = labels;
	}
#undef AT
#undef AT_ALWAYS
}
