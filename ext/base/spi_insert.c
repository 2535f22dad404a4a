/*
 * The tables that COPY's options rejects_to and duplicates_to name: rows go in
 * by a plain INSERT of the user's own, with its rights, rules and triggers.
 *
 * The INSERT is tried once with no rows when the COPY begins, so that a wrong
 * name, a missing column or a missing right is reported before any data is
 * read, and not when the first record is rejected after an hour.
 */
#include "base/pgsluice.h"

#include "catalog/namespace.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

struct SluiceSpiInsert
{
	char	   *name;
	SPIPlanPtr	plan;
	char	   *nulls;			/* as SPI wants them */
	int			ncolumns;
	bool		runs_code;		/* an INSERT may run what looks at other tables */
};

/*
 * A saved plan lives in the cache's own memory: without this it would outlive
 * the statement.
 */
static void
free_plan(void *plan)
{
	SPI_freeplan(plan);
}

/* INSERT INTO the table's columns of these names. */
static StringInfo
start_insert(const char *name, const char *const *columns, int ncolumns)
{
	StringInfo	sql = makeStringInfo();

	appendStringInfo(sql, "INSERT INTO %s (", name);
	for (int i = 0; i < ncolumns; i++)
		appendStringInfo(sql, "%s%s", i > 0 ? ", " : "", columns[i]);
	appendStringInfoString(sql, ") ");
	return sql;
}

/*
 * Whether triggers, foreign keys among them, or rules see to an INSERT: then
 * they may look at any table.
 */
static bool
runs_code(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class class;
	bool		runs;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	class = (Form_pg_class) GETSTRUCT(tuple);
	runs = class->relkind != RELKIND_RELATION || class->relhastriggers || class->relhasrules;
	ReleaseSysCache(tuple);
	return runs;
}

/*
 * Refuses where the rows could not be inserted, before the first one is there.
 */
static void
try_insert(const char *name, const char *const *columns, const Oid *types, int ncolumns)
{
	StringInfo	sql = start_insert(name, columns, ncolumns);

	for (int i = 0; i < ncolumns; i++)
		appendStringInfo(sql, "%s NULL::%s", i > 0 ? "," : "SELECT",
						 format_type_be_qualified(types[i]));
	appendStringInfoString(sql, " WHERE false");
	if (SPI_execute(sql->data, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "pgsluice: could not try \"%s\"", sql->data);
}

/*
 * Opens the table that the option names, which must have these columns. It
 * must not be the one that is being loaded. Lives in the current memory
 * context.
 */
SluiceSpiInsert *
sluice_spi_insert_open(const char *name, const char *option, Relation target,
				 const char *const *columns, const Oid *types, int ncolumns)
{
	SluiceSpiInsert *kept = palloc0(sizeof(SluiceSpiInsert));
	MemoryContextCallback *callback = palloc0(sizeof(MemoryContextCallback));
	RangeVar   *range = makeRangeVarFromNameList(textToQualifiedNameList(cstring_to_text(name)));
	Oid			relid = RangeVarGetRelid(range, RowExclusiveLock, false);
	StringInfo	sql;

	if (relid == RelationGetRelid(target))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("COPY option \"%s\" names the table that is being loaded", option)));
	for (int i = 0; i < ncolumns; i++)
	{
		AttrNumber	attnum = get_attnum(relid, columns[i]);

		if (attnum == InvalidAttrNumber || get_atttype(relid, attnum) != types[i])
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("table \"%s\" of COPY option \"%s\" has no column \"%s\" of type %s",
							range->relname, option, columns[i], format_type_be(types[i])),
					 errhint("CREATE TABLE … (LIKE pgsluice.%s) makes one that fits.",
							 strcmp(option, "rejects_to") == 0 ? "reject" : "duplicate")));
	}
	kept->name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
											get_rel_name(relid));
	kept->ncolumns = ncolumns;
	kept->runs_code = runs_code(relid);
	kept->nulls = palloc(ncolumns);
	sql = start_insert(kept->name, columns, ncolumns);
	for (int i = 0; i < ncolumns; i++)
		appendStringInfo(sql, "%s$%d", i > 0 ? ", " : "VALUES (", i + 1);
	appendStringInfoChar(sql, ')');

	SPI_connect();
	try_insert(kept->name, columns, types, ncolumns);
	kept->plan = SPI_prepare(sql->data, ncolumns, unconstify(Oid *, types));
	if (kept->plan == NULL || SPI_keepplan(kept->plan) != 0)
		elog(ERROR, "pgsluice: could not prepare \"%s\"", sql->data);
	SPI_finish();
	callback->func = free_plan;
	callback->arg = kept->plan;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
	return kept;
}

/* Inserts a row. */
void
sluice_spi_insert_row(SluiceSpiInsert *kept, Datum *values, const bool *isnull)
{
	for (int i = 0; i < kept->ncolumns; i++)
		kept->nulls[i] = isnull[i] ? 'n' : ' ';
	SPI_connect();
	if (SPI_execute_plan(kept->plan, values, kept->nulls, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "pgsluice: could not insert into \"%s\"", kept->name);
	SPI_finish();
}

/*
 * Whether its rows may make something look at the table that is being loaded.
 */
bool
sluice_spi_insert_runs_code(const SluiceSpiInsert *kept)
{
	return kept->runs_code;
}

/* The table's name, quoted where that is needed. */
const char *
sluice_spi_insert_name(const SluiceSpiInsert *kept)
{
	return kept->name;
}
