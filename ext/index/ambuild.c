/*
 * Takes over the builds of B-tree indexes: the seam, the setting, and the view
 * of the last build. docs/decisions/0003-index-build-seam.md gives the reasons
 * for this design.
 *
 * The seam is one pointer. Each index's entry in the relation cache has its
 * own copy of the access method's function table (rd_indam). There `ambuild`
 * is replaced with our function shortly before index_build() calls it, and
 * restored at the start of that call. The copy is freed with the cache entry:
 * an invalidation in between discards our pointer, and then btbuild() builds
 * the index. (19 has one table for all indexes. There the pointer to the table
 * is replaced.) Nothing depends on our function being called: a build that we
 * miss is a stock build.
 *
 * Everything around the build stays PostgreSQL's: locks, catalogs, validation,
 * progress reports, the second phase of CREATE INDEX CONCURRENTLY, and what
 * happens after an error.
 *
 * An index that a COPY has already built (deferred.c) also goes through here.
 * The server does the rest for it: statistics in pg_class, indcheckxmin, and
 * the cache invalidation. The build function gets no argument that describes a
 * finished index, so the variable `complete` does. It is set for that one call
 * only, even if the call fails.
 */
#include "index/build.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/relcache.h"

PG_FUNCTION_INFO_V1(pgsluice_last_index_build);

/*
 * The report of this session's last build. It outlives the statement, because
 * a view shows it. No decision depends on it.
 */
static SluiceIndexReport last_build;
static bool index_build_enabled = false;

/*
 * The finished build of the index that index_build() is called for, or NULL.
 * The build function has no argument for it.
 */
static const SluiceIndexBuilt *complete = NULL;

/*
 * The user who runs the statement, for the report. A build itself runs as the
 * owner of the table: index_build() and DefineIndex() switch to that user.
 */
static Oid	builder = InvalidOid;

static object_access_hook_type prev_object_access = NULL;

/*
 * Records the stock build of an index of a COPY that the core could not build.
 */
void
sluice_index_note_stock_build(const SluiceIndexReport *report)
{
	last_build = *report;
	last_build.method = "stock";
	last_build.valid = true;
	last_build.user = GetUserId();
}

/* Called for DISCARD. */
void
sluice_index_forget(void)
{
	memset(&last_build, 0, sizeof(last_build));
	sluice_index_uses_reset();
}

/* Returns to index_build() the result of an index that is already built. */
static IndexBuildResult *
take_complete(void)
{
	IndexBuildResult *result = palloc(sizeof(IndexBuildResult));

	*result = complete->result;
	last_build = complete->report;
	last_build.method = "sorted";
	last_build.scan = complete->old.blocks > 0 ? "merged" : "pages";
	last_build.valid = true;
	last_build.user = builder;
	return result;
}

/*
 * Replaces btbuild() in the private copy of the access method's functions that
 * the relation cache keeps for an index. Does exactly what btbuild() does, and
 * calls btbuild() where it cannot.
 */
static IndexBuildResult *
build_index(Relation heap, Relation index, IndexInfo *info)
{
	SluiceIndexReport *report = &last_build;
	const BuildRequest request = {.memory = maintenance_work_mem,.report = report};
	IndexBuildResult *result;
	instr_time	start;
	Oid			user = builder; /* functions of the index may run statements */

	compat_give_back_build(index);
	if (complete && complete->index == RelationGetRelid(index))
		return take_complete();

	/*
	 * Leave system catalogs to the stock build. For an index that already
	 * contains data, btbuild() raises the error.
	 */
	if (!index_build_enabled || sluice_admin_why_no_builds() != NULL || IsSystemRelation(heap) ||
		RelationGetNumberOfBlocks(index) != 0)
		return btbuild(heap, index, info);

	INSTR_TIME_SET_CURRENT(start);
	result = sluice_index_build(heap, index, info, &request);
	if (result == NULL)
	{
		report->method = "stock";
		ereport(DEBUG1,
				(errmsg_internal("pgsluice: stock build of index \"%s\": %s",
								 RelationGetRelationName(index), report->reason)));
		result = btbuild(heap, index, info);
		report->rows = (uint64) result->index_tuples;
		INSTR_TIME_SET_CURRENT(report->total);
		INSTR_TIME_SUBTRACT(report->total, start);
	}
	report->valid = true;
	report->user = user;
	return result;
}

/*
 * Whether all builds are left to the stock code, for a reason that does not
 * depend on the index. If so, records the reason in the report.
 */
static bool
leaves_builds(Oid index)
{
	const char *reason = sluice_admin_why_no_builds();
	SluiceIndexReport *report = &last_build;

	if (reason == NULL)
		return false;
	memset(report, 0, sizeof(*report));
	report->valid = report->unseen = true;
	report->relid = index;
	report->user = builder;
	report->method = "stock";
	strlcpy(report->reason, reason, sizeof(report->reason));
	return true;
}

/* Makes our function do the next build of the index, if it is a B-tree. */
static void
arm(Oid indexid)
{
	Relation	index = RelationIdGetRelation(indexid);

	if (!RelationIsValid(index))
		return;
	if (index->rd_rel->relkind == RELKIND_INDEX &&
		index->rd_rel->relam == BTREE_AM_OID &&
		index->rd_indam != NULL && index->rd_indam->ambuild == btbuild)
		compat_take_build(index, build_index);
	RelationClose(index);
}

/*
 * Lets the server complete an index whose file is already written: the
 * catalogs and everything else.
 */
void
sluice_index_complete(Relation heap, Relation index, const SluiceIndexBuilt *built)
{
	arm(RelationGetRelid(index));
	builder = GetUserId();
	PG_TRY();
	{
		complete = built;
		compat_index_build(heap, index);
	}
	PG_FINALLY();
	{
		complete = NULL;
	}
	PG_END_TRY();
}

/*
 * The hook is called for every kind of relation. The relation's cache entry
 * may not be complete yet, but it already has the relkind.
 */
static bool
is_index(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);
	bool		is;

	if (!RelationIsValid(rel))
		return false;
	is = rel->rd_rel->relkind == RELKIND_INDEX;
	RelationClose(rel);
	return is;
}

/*
 * A new index is in the catalogs and will be built next. index_create()
 * increments the command counter as soon as this hook returns, which completes
 * the cache entry. We need the complete entry here, so increment the counter
 * already.
 */
static void
sluice_object_access(ObjectAccessType access, Oid classId, Oid objectId,
					 int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_POST_CREATE && classId == RelationRelationId && subId == 0 &&
		index_build_enabled && IsNormalProcessingMode() && is_index(objectId) &&
		!leaves_builds(objectId))
	{
		CommandCounterIncrement();
		arm(objectId);
	}
}

/*
 * The relation whose existing indexes the statement may rebuild. NULL if the
 * core takes no part in such a statement.
 */
static const RangeVar *
rebuilt_relation(const Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_ReindexStmt:
			return ((const ReindexStmt *) stmt)->relation;
		case T_AlterTableStmt:
			return ((const AlterTableStmt *) stmt)->relation;
		default:
			return NULL;
	}
}

/*
 * Arms an index, or the existing indexes of a table. Nothing depends on it: a
 * relation that cannot be locked at once gets the stock build, and so does an
 * index whose cache entry is discarded before the build. The statement itself
 * checks names and privileges.
 */
static void
arm_relation(const RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	Relation	rel;

	if (!OidIsValid(relid) || !ConditionalLockRelationOid(relid, AccessShareLock))
		return;
	rel = RelationIdGetRelation(relid);
	if (RelationIsValid(rel))
	{
		if (rel->rd_rel->relkind == RELKIND_INDEX)
			arm(relid);
		else if (rel->rd_rel->relhasindex)
		{
			List	   *indexes = RelationGetIndexList(rel);
			ListCell   *lc;

			foreach(lc, indexes)
				arm(lfirst_oid(lc));
			list_free(indexes);
		}
		RelationClose(rel);
	}
	UnlockRelationOid(relid, AccessShareLock);
}

/*
 * Called before a utility statement is executed. What it returns is for
 * sluice_index_after_utility().
 */
Oid
sluice_index_before_utility(const Node *stmt)
{
	const RangeVar *name;
	Oid			previous = builder;

	builder = GetUserId();
	if (!index_build_enabled || IsAbortedTransactionBlockState())
		return previous;
	name = rebuilt_relation(stmt);
	/* ALTER TABLE may build no index at all, so it leaves no report here. */
	if (name && (IsA(stmt, ReindexStmt) ? !leaves_builds(InvalidOid) :
				 sluice_admin_why_no_builds() == NULL))
		arm_relation(name);
	return previous;
}

/*
 * Called after a utility statement, also after an error. A statement that ran
 * it, by a trigger or a function, may build more indexes.
 */
void
sluice_index_after_utility(Oid previous)
{
	builder = previous;
}

/* The row of the view pgsluice.last_index_build. */
Datum
pgsluice_last_index_build(PG_FUNCTION_ARGS)
{
	const SluiceIndexReport *r = &last_build;
	bool		sorted = r->valid && strcmp(r->method, "sorted") == 0;
	Datum		values[10];
	bool		nulls[10] = {0};
	ReturnSetInfo *rsinfo = sluice_begin_rows(fcinfo, lengthof(values));

	if (!r->valid || !sluice_may_see(r->user))
	{
		sluice_explain_nothing(r->valid, "build of an index", "pgsluice.index_build");
		return (Datum) 0;
	}
	values[0] = ObjectIdGetDatum(r->relid);
	nulls[0] = !OidIsValid(r->relid);
	values[1] = CStringGetTextDatum(r->method);
	values[2] = Int64GetDatum((int64) r->rows);
	values[3] = sorted ? CStringGetTextDatum(r->scan) : (Datum) 0;
	values[4] = Int32GetDatum(r->workers);
	values[5] = Int64GetDatum((int64) r->spilled);
	values[6] = Int64GetDatum((int64) r->pages);
	values[7] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->total));
	values[8] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->scanning));
	values[9] = sorted ? (Datum) 0 : CStringGetTextDatum(r->reason);
	nulls[3] = nulls[4] = nulls[5] = nulls[6] = nulls[8] = !sorted;
	nulls[2] = nulls[7] = r->unseen;
	nulls[9] = sorted;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * Called once, when the library is loaded. object_access_hook is the only
 * place where a new index is known before it is built.
 */
void
sluice_index_init(void)
{
	DefineCustomBoolVariable("pgsluice.index_build",
							 "Lets pgsluice build B-tree indexes where it can do so exactly as PostgreSQL would.",
							 NULL,
							 &index_build_enabled,
							 false,
							 PGC_USERSET,
							 0, NULL, NULL, NULL);
	prev_object_access = object_access_hook;
	object_access_hook = sluice_object_access;
}
