/*
 * The tables that COPY's options rejects_to and duplicates_to name. Rows are
 * inserted by a plain INSERT of the user, with its privileges, rules and
 * triggers.
 *
 * When the COPY begins, EXPLAIN does with the INSERT all that precedes its
 * execution. So a wrong name, a missing column or a missing privilege is
 * reported before any data is read, and not when the first record is rejected
 * after an hour. The INSERT is not executed, because even with no rows it
 * would fire the table's statement triggers.
 */
#include "base/pgsluice.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "nodes/nodeFuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

struct SluiceSpiInsert
{
	char	   *name;
	SPIPlanPtr	plan;
	char	   *nulls;			/* in the form that SPI needs */
	int			ncolumns;
	bool		runs_code;		/* an INSERT may run code that reads other tables */
};

/*
 * A saved plan is in the plan cache's memory. Without this callback it would
 * outlive the statement.
 */
static void
free_plan(void *plan)
{
	SPI_freeplan(plan);
}

/* Begins an INSERT INTO these columns of the table. */
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

/* Whether a function of a default may read a table. */
static bool
may_read_tables(Oid function, void *context)
{
	return !sluice_reads_no_table(function) && sluice_function_is_unsafe(function, context);
}

/* Walks the whole expression of a default. */
static bool
reads_tables(Node *expr, void *context)
{
	if (expr == NULL)
		return false;
	return IsA(expr, CoerceToDomain) || check_functions_in_node(expr, may_read_tables, context) ||
		expression_tree_walker(expr, reads_tables, context);
}

/* Whether an index of the table has expressions or a predicate. */
static bool
index_runs_code(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;
	bool		runs = false;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		runs = runs || RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL;
		index_close(index, NoLock);
	}
	list_free(indexes);
	return runs;
}

/*
 * Whether an INSERT runs code that may read any table: triggers, foreign keys
 * included, rules, policies, constraints, or functions in defaults or indexes.
 */
static bool
runs_code(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	const TupleConstr *constr = RelationGetDescr(rel)->constr;
	bool		runs = rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relhastriggers ||
		rel->rd_rel->relhasrules || rel->rd_rel->relrowsecurity || rel->rd_rel->relchecks > 0 ||
		rel->rd_rel->relispartition;

	for (int i = 0; constr && i < constr->num_defval && !runs; i++)
		runs = reads_tables(stringToNode(constr->defval[i].adbin), NULL);
	for (int i = 0; i < RelationGetNumberOfAttributes(rel) && !runs; i++)
		runs = get_typtype(TupleDescAttr(RelationGetDescr(rel), i)->atttypid) == TYPTYPE_DOMAIN;
	runs = runs || index_runs_code(rel);
	table_close(rel, NoLock);
	return runs;
}

/*
 * Raises an error if rows could not be inserted, before there is a first one.
 */
static void
try_insert(const char *name, const char *const *columns, const Oid *types, int ncolumns)
{
	StringInfo	sql = makeStringInfo();

	appendStringInfo(sql, "EXPLAIN (COSTS OFF) %s", start_insert(name, columns, ncolumns)->data);
	for (int i = 0; i < ncolumns; i++)
		appendStringInfo(sql, "%s NULL::%s", i > 0 ? "," : "SELECT",
						 format_type_be_qualified(types[i]));
	appendStringInfoString(sql, " WHERE false");
	if (SPI_execute(sql->data, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "pgsluice: could not try \"%s\"", sql->data);
}

/*
 * Whether one of the statements that the table's rules have left of the INSERT
 * inserts the row. The server marks that one.
 */
static bool
inserts_the_row(SPIPlanPtr plan)
{
	CachedPlanSource *source = linitial(SPI_plan_get_plan_sources(plan));
	ListCell   *lc;

	foreach(lc, source->query_list)
	{
		if (lfirst_node(Query, lc)->canSetTag)
			return true;
	}
	return false;
}

/*
 * Opens the table that the option names. It must have these columns, and it
 * must not be the table that is being loaded. The result lives in the current
 * memory context.
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
	kept->nulls = palloc(ncolumns);
	sql = start_insert(kept->name, columns, ncolumns);
	for (int i = 0; i < ncolumns; i++)
		appendStringInfo(sql, "%s$%d", i > 0 ? ", " : "VALUES (", i + 1);
	appendStringInfoChar(sql, ')');

	SPI_connect();
	try_insert(kept->name, columns, types, ncolumns);
	kept->runs_code = runs_code(relid);
	kept->plan = SPI_prepare(sql->data, ncolumns, unconstify(Oid *, types));
	if (kept->plan == NULL)
		elog(ERROR, "pgsluice: could not prepare \"%s\"", sql->data);
	if (!inserts_the_row(kept->plan))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("a rule of table \"%s\" of COPY option \"%s\" does not insert the rows",
						range->relname, option),
				 errhint("Drop the rule, or name another table.")));
	if (SPI_keepplan(kept->plan) != 0)
		elog(ERROR, "pgsluice: could not keep \"%s\"", sql->data);
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
 * Whether inserting its rows may run code that reads the table being loaded.
 */
bool
sluice_spi_insert_runs_code(const SluiceSpiInsert *kept)
{
	return kept->runs_code;
}

/* The table's name, quoted where necessary. */
const char *
sluice_spi_insert_name(const SluiceSpiInsert *kept)
{
	return kept->name;
}
