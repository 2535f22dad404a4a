/*
 * The table and the statement in the core's terms: which columns the core
 * reads, what the others get.
 */
#include "pgsluice.h"

#include "access/detoast.h"
#include "access/transam.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "pgtime.h"
#include "rewrite/rewriteHandler.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_locale.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

static uint8
align_bytes(char attalign)
{
	switch (attalign)
	{
		case TYPALIGN_CHAR:
			return 1;
		case TYPALIGN_SHORT:
			return ALIGNOF_SHORT;
		case TYPALIGN_INT:
			return ALIGNOF_INT;
		default:
			return ALIGNOF_DOUBLE;
	}
}

/*
 * The labels of an enum. One that was added by a transaction that is still
 * running is left out: whether it may be used is the server's to say.
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
 * What the core reads of a column that is in the data; type_oid stays 0 where
 * every value has to be asked of the server.
 */
static void
plan_type(CopyFromState cstate, Form_pg_attribute att, SluiceColumn *column,
		  const SluiceEnv *env)
{
	Oid			type = att->atttypid;
	int32		typmod = att->atttypmod;
	Oid			element;

	if (get_typtype(type) == TYPTYPE_DOMAIN && !DomainHasConstraints(type))
		type = getBaseTypeAndTypmod(type, &typmod);
	column->typmod = typmod;
	element = get_element_type(type);
	if (get_typtype(type) == TYPTYPE_ENUM)
		plan_enum(type, column);
	else if (pgsluice_reads(type) &&
			 (!OidIsValid(element) || Array_nulls) &&
			 ((type != INTERVALOID && element != INTERVALOID) ||
			  IntervalStyle != INTSTYLE_SQL_STANDARD) &&
			 ((type != MONEYOID && element != MONEYOID) || env->money_c))
	{
		column->type_oid = type;
		if (OidIsValid(element))
		{
			int16		len;
			bool		byval;
			char		align;

			get_typlenbyvalalign(element, &len, &byval, &align);
			column->element_align = align_bytes(align);
		}
		return;
	}
	/* Of an input function that wants to see NULLs too, they are asked. */
	if (column->nlabels == 0 && !cstate->in_functions[att->attnum - 1].fn_strict)
		column->not_null = true;
}

/* nextval('…'::regclass), as it is or cast to the column's type. */
static bool
is_nextval(Node *expr, SluiceSerial *serial)
{
	if (IsA(expr, FuncExpr) &&
		(((FuncExpr *) expr)->funcid == F_INT4_INT8 ||
		 ((FuncExpr *) expr)->funcid == F_INT2_INT8))
		expr = linitial(((FuncExpr *) expr)->args);
	if (IsA(expr, NextValueExpr))
	{
		serial->sequence = ((NextValueExpr *) expr)->seqid;
		serial->check = false;
		return true;
	}
	if (IsA(expr, FuncExpr) && ((FuncExpr *) expr)->funcid == F_NEXTVAL &&
		IsA(linitial(((FuncExpr *) expr)->args), Const))
	{
		Const	   *name = linitial(((FuncExpr *) expr)->args);

		serial->sequence = DatumGetObjectId(name->constvalue);
		serial->check = true;
		return !name->constisnull;
	}
	return false;
}

/* The planned default of a column that is not in the data, or NULL. */
static Node *
default_of(Relation rel, Form_pg_attribute att)
{
	Node	   *expr;

	if (att->attisdropped || att->attgenerated)
		return NULL;
	expr = build_column_default(rel, att->attnum);
	return expr ? (Node *) expression_planner((Expr *) expr) : NULL;
}

/* Volatile, and maybe looking at the table that is being loaded. */
static bool
may_look_at_tables(Oid function, void *context)
{
	return func_volatile(function) == PROVOLATILE_VOLATILE &&
		function != F_NEXTVAL && function != F_CLOCK_TIMESTAMP &&
		function != F_TIMEOFDAY && function != F_GEN_RANDOM_UUID &&
		!compat_is_random(function);
}

static bool
needs_rows_one_by_one(Node *expr, void *context)
{
	if (expr == NULL)
		return false;
	if (check_functions_in_node(expr, may_look_at_tables, context))
		return true;
	return expression_tree_walker(expr, needs_rows_one_by_one, context);
}

/* Why the defaults of the columns outside of the list cannot be given as stock COPY gives them. */
const char *
sluice_default_why_not(Relation rel, List *attnums)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Node	   *expr;

		if (list_member_int(attnums, i + 1) ||
			(expr = default_of(rel, TupleDescAttr(desc, i))) == NULL)
			continue;
		if (needs_rows_one_by_one(expr, NULL))
			return "a column has a volatile default";
	}
	return NULL;
}

/* The bytes of a value as they lie in a tuple, without a varlena's header. */
static void
give(SluiceColumn *column, Form_pg_attribute att, Datum value)
{
	if (att->attlen == -1)
	{
		struct varlena *whole = pg_detoast_datum_packed((struct varlena *) DatumGetPointer(value));

		column->given = (const uint8_t *) VARDATA_ANY(whole);
		column->given_len = VARSIZE_ANY_EXHDR(whole);
	}
	else if (att->attbyval)
	{
		char	   *bytes = palloc0(sizeof(Datum));

		store_att_byval(bytes, value, att->attlen);
		column->given = (const uint8_t *) bytes;
		column->given_len = att->attlen;
	}
	else
	{
		column->given = (const uint8_t *) DatumGetPointer(value);
		column->given_len = att->attlen;
	}
	column->source = SLUICE_FROM_GIVEN;
}

/* What a column outside of the list gets: constants and stable functions once. */
static void
plan_default(CopyFromState cstate, Form_pg_attribute att, SluiceColumn *column,
			 SluicePlanArgs *args)
{
	Node	   *expr = default_of(cstate->rel, att);
	SluiceSerial serial = {0};
	Datum		value;
	bool		isnull;

	column->source = SLUICE_FROM_NULL;
	if (expr == NULL)
		return;
	if (!OidIsValid(args->serial.sequence) && is_nextval(expr, &serial) &&
		(att->attlen == 2 || att->attlen == 4 || att->attlen == 8))
	{
		args->serial = serial;
		args->serial.len = att->attlen;
		column->source = SLUICE_FROM_BLANK;
		return;
	}
	if (contain_volatile_functions(expr))
	{
		/* Not NULL in the end: the constraint is checked once the default is there. */
		column->not_null = false;
		args->volatiles = lappend_int(args->volatiles, att->attnum);
		return;
	}
	{
		EState	   *estate = CreateExecutorState();
		ExprState  *state = ExecPrepareExpr((Expr *) expr, estate);

		value = ExecEvalExprSwitchContext(state, GetPerTupleExprContext(estate), &isnull);
		if (!isnull)
			give(column, att, datumCopy(value, att->attbyval, att->attlen));
		FreeExecutorState(estate);
	}
}

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
	return env;
}

/* Says to the core what the table and the statement are. */
void
sluice_plan_args(CopyFromState cstate, SluicePlanArgs *args)
{
	TupleDesc	desc = RelationGetDescr(cstate->rel);
	SluiceColumn *columns = palloc0(sizeof(SluiceColumn) * desc->natts);
	SluiceDialect *dialect = &args->dialect;
	int			default_len;

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
		column->align = align_bytes(att->attalign);
		column->packable = att->attstorage != TYPSTORAGE_PLAIN;
		column->source = SLUICE_FROM_NULL;
		if (att->attisdropped)
			continue;
		column->not_null = att->attnotnull && !att->attgenerated;
		column->force_null = cstate->opts.force_null_flags[i];
		column->force_not_null = cstate->opts.force_notnull_flags[i];
		if (!list_member_int(cstate->attnumlist, i + 1))
		{
			plan_default(cstate, att, column, args);
			continue;
		}
		foreach(lc, cstate->attnumlist)
		{
			if (lfirst_int(lc) == i + 1)
				column->source = field;
			field++;
		}
		plan_type(cstate, att, column, &args->env);
	}

	dialect->null = (const uint8_t *) cstate->opts.null_print;
	dialect->null_len = cstate->opts.null_print_len;
	dialect->default_marker = (const uint8_t *) compat_default_marker(cstate, &default_len);
	dialect->default_len = default_len;
	dialect->csv = cstate->opts.csv_mode;
	dialect->dot_ends = compat_dot_line_ends();
	dialect->delimiter = cstate->opts.delim[0];
	if (dialect->csv)
	{
		dialect->quote = cstate->opts.quote[0];
		dialect->escape = cstate->opts.escape[0];
	}
}

/* Compiles the plan. It lives until the current memory context is reset or deleted. */
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
