/*
 * The end of a COPY that has left indexes for it (index/deferred.c): they are built of
 * all rows. An index that is built anew is a new file, so that a rollback to a savepoint
 * brings back the old one.
 *
 * A key that is there twice is refused with stock COPY's error, which names the
 * line of the first row in the input that has a key again, and with a hint that
 * names the line where it was before.
 *
 * What the core cannot build is the stock build's. That one has other words for what it
 * refuses, and comes to rows in the order of their keys: then the entries are inserted as stock
 * COPY inserts them, row after row, until it is refused so.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/backend_status.h"

/* What index_build() gets for an index that is built already. */
IndexBuildResult *
sluice_index_result(const SluiceIndexBuilt *built)
{
	IndexBuildResult *result = palloc(sizeof(IndexBuildResult));

	*result = built->result;
	sluice_index_report = built->report;
	sluice_index_report.method = "sorted";
	sluice_index_report.scan = built->old.blocks > 0 ? "merged" : built->kept ? "kept" : "pages";
	sluice_index_report.valid = true;
	sluice_index_report.user = GetUserId();
	return result;
}

/*
 * Makes the index a new and empty file, which the end of the transaction leaves
 * or takes away; says where the old one is. Not if something that the COPY ran has the index open,
 * nor if it is unique and its keys may be too long for the core to sort; that is no matter where
 * duplicates are not refused.
 */
static bool
empty_index(SluiceIndexLoad *load, Oid indexid, SluiceIndexOld *old)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(indexid, AccessExclusiveLock);
	bool		can = index->rd_refcnt == 1 &&
		!(index->rd_index->indisunique && load->has_long_rows && load->duplicates == NULL &&
		  sluice_index_has_long_keys(index));

	if (can)
	{
		if (old)
			sluice_index_old_file(load, index, old);
		/* Who has read a part of the index may have missed what came: no insertion has told. */
		TransferPredicateLocksToHeapRelation(index);
		CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
		compat_set_new_file(index, rel->rd_rel->relpersistence);
	}
	else
		sluice_index_take(index, SLUICE_INDEX_ROWS,
						  "another command has it open, or keys may be too long to sort");
	index_close(index, NoLock);
	return can;
}

/* The catalogs' part of an index that is built; or the stock build, if that must be. */
static void
complete_index(SluiceIndexLoad *load, SluiceIndexBuilt *built)
{
	Relation	index = index_open(built->index, NoLock);

	if (built->fit)
	{
		sluice_index_built = built;
		sluice_index_arm(built->index);
	}
	compat_index_build(load->rri->ri_RelationDesc, index);
	sluice_index_built = NULL;
	if (built->fit && built->old.blocks > 0)
		sluice_index_take(index, SLUICE_INDEX_MERGE, NULL)->rows[SLUICE_INDEX_MERGE] = load->waited;
	else if (load->merges || !built->fit)
		sluice_index_take(index, SLUICE_INDEX_BUILD, built->fit ? NULL : built->report.reason);
	index_close(index, NoLock);
}

typedef struct ServerBuild
{
	SluiceIndexLoad *load;
	SluiceIndexBuilt *built;
} ServerBuild;

static void
run_server_build(void *arg)
{
	ServerBuild *build = arg;

	complete_index(build->load, build->built);
}

/*
 * Lets the stock build have the index. If it refuses a row, for a reason that stock COPY
 * has too, all that it did is undone, and that is the answer; else it is NULL.
 */
static ErrorData *
build_by_server(SluiceIndexLoad *load, SluiceIndexBuilt *built)
{
	ServerBuild build = {.load = load, .built = built};
	ErrorData  *refusal = sluice_in_subtransaction(run_server_build, &build);

	if (refusal == NULL)
	{
		sluice_index_report = built->report;
		sluice_index_report.method = "stock";
		sluice_index_report.valid = true;
		sluice_index_report.user = GetUserId();
	}
	else if (refusal->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
			 refusal->sqlerrcode != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
		ReThrowError(refusal);
	return refusal;
}

/* Gives the index one more file, of a tree that has no entries. */
void
sluice_index_empty_tree(SluiceIndexLoad *load, Oid indexid)
{
	Relation	index = index_open(indexid, NoLock);

	compat_set_new_file(index, load->rri->ri_RelationDesc->rd_rel->relpersistence);
	sluice_index_writer_close(sluice_index_writer_open(index), P_NONE, 0,
							  _bt_allequalimage(index, true));
	index_close(index, NoLock);
}

/*
 * The indexes that were not built are to get entries one by one, as the others do; gives all of them.
 * What a merge would have taken over is not in them: they are of use only to find a row that is refused.
 */
static List *
begin_entries(SluiceIndexLoad *load, const SluiceIndexBuilt *built, int count, List *others)
{
	List	   *unfit = NIL;

	for (int i = 0; i < count; i++)
	{
		if (built[i].fit)
			continue;
		sluice_index_empty_tree(load, built[i].index);
		unfit = lappend_oid(unfit, built[i].index);
	}
	/* The first rows have entries in all others, and had them in the old files of these. */
	if (unfit != NIL && load->first_waiting > 0)
		sluice_index_insert_entries(load, unfit, 0, &load->batches[load->first_waiting].first,
									InvalidOid);
	return list_concat(others, unfit);
}

/* Puts an index among those to be built: keys that take longer to sort come first. */
static void
list_built(SluiceIndexBuilt *built, int count, Oid indexid, const SluiceIndexOld *old)
{
	Relation	index = index_open(indexid, NoLock);
	bool		long_keys = sluice_index_has_long_keys(index);

	index_close(index, NoLock);
	built[count].index = indexid;
	built[count].old = *old;
	built[count].long_keys = long_keys;
	for (int i = count; long_keys && i > 0 && !built[i - 1].long_keys; i--)
	{
		SluiceIndexBuilt shorter = built[i - 1];

		built[i - 1] = built[i];
		built[i] = shorter;
	}
}

/* Puts this one in front of the others; false if it is not to be built. */
static bool
put_first(SluiceIndexBuilt *built, int count, Oid index)
{
	int			at = 0;
	SluiceIndexBuilt first;

	while (at < count && built[at].index != index)
		at++;
	if (at == count)
		return false;
	first = built[at];
	memmove(&built[1], &built[0], sizeof(SluiceIndexBuilt) * at);
	built[0] = first;
	return true;
}

/* First comes the index that tells duplicates, then the one whose keys were kept; these may be of no use. */
static void
put_in_order(SluiceIndexLoad *load, SluiceIndexBuilt *built, int count)
{
	if (load->kept && (!put_first(built, count, sluice_index_kept_for(load->kept)) ||
					   !sluice_index_keep_end(load->kept)))
		sluice_index_load_forget(load);
	if (load->duplicates && !put_first(built, count, sluice_index_arbiter(load)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the index that tells duplicates is being used by active queries in this session")));
}

/*
 * Keys that are there twice in what was merged, if each entry's row is alive. The old file
 * does not know that: the index is built again, of what the table says.
 */
static void
ask_table(SluiceIndexLoad *load, SluiceIndexBuilt *built)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(built->index, NoLock);

	compat_set_new_file(index, rel->rd_rel->relpersistence);
	index_close(index, NoLock);
	built->old.blocks = 0;
	(void) sluice_index_build_all(rel, built, 1, 0, NULL);
}

/* Builds them all; answers how many workers helped. */
static int
build_all(SluiceIndexLoad *load, SluiceIndexBuilt *built, int count, int workers)
{
	Relation	rel = load->rri->ri_RelationDesc;
	int			settled = 0;

	if (load->duplicates)
	{
		sluice_index_settle(load, built, load->kept);
		load->kept = NULL;
		settled = 1;
	}
	if (count > settled)
		workers = sluice_index_build_all(rel, built + settled, count - settled, workers, load->kept);
	load->kept = NULL;
	for (int i = 0; i < count; i++)
	{
		if (built[i].conflict && built[i].old.blocks > 0)
			ask_table(load, &built[i]);
	}
	return workers;
}

/*
 * What was built is the server's to complete, what was not is its to build. The others get
 * their entries. Of all rows that are to be refused, it is for the first one.
 */
static void
complete(SluiceIndexLoad *load, SluiceIndexBuilt *built, int count, List *others, int workers)
{
	SluiceIndexBuilt *conflict = sluice_index_first_conflict(built, count);
	ErrorData  *refusal = NULL;

	for (int i = 0; i < count && conflict == NULL && refusal == NULL; i++)
	{
		if (!built[i].fit)
			refusal = build_by_server(load, &built[i]);
	}
	if (conflict || refusal)
		others = begin_entries(load, built, count, others);
	if (others)
		sluice_index_insert_entries(load, others, load->first_waiting,
									conflict ? &((IndexTuple) conflict->tuple)->t_tid : NULL,
									conflict ? conflict->index : InvalidOid);
	if (conflict)
		sluice_index_raise_conflict(load, conflict);
	if (refusal)
		ReThrowError(refusal);
	for (int i = 0; i < count; i++)
	{
		if (!built[i].fit)
			continue;
		complete_index(load, &built[i]);
		sluice_index_report.workers = workers;
	}
}

/* What pg_stat_progress_copy shows. */
typedef struct CopyProgress
{
	bool		shown;
	Oid			relid;
	int			params[PGSTAT_NUM_PROGRESS_PARAM];
	int64		values[PGSTAT_NUM_PROGRESS_PARAM];
} CopyProgress;

/* From now on the statement shows in pg_stat_progress_create_index. */
static void
begin_progress(SluiceIndexLoad *load, CopyProgress *copy)
{
	Relation	rel = load->rri->ri_RelationDesc;

	copy->shown = MyBEEntry && MyBEEntry->st_progress_command == PROGRESS_COMMAND_COPY;
	if (!copy->shown)
		return;
	copy->relid = MyBEEntry->st_progress_command_target;
	for (int i = 0; i < PGSTAT_NUM_PROGRESS_PARAM; i++)
	{
		copy->params[i] = i;
		copy->values[i] = MyBEEntry->st_progress_param[i];
	}
	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX, RelationGetRelid(rel));
	pgstat_progress_update_param(PROGRESS_CREATEIDX_COMMAND, PROGRESS_CREATEIDX_COMMAND_CREATE);
}

/* And again in pg_stat_progress_copy. */
static void
end_progress(const CopyProgress *copy)
{
	if (!copy->shown)
		return;
	pgstat_progress_start_command(PROGRESS_COMMAND_COPY, copy->relid);
	pgstat_progress_update_multi_param(PGSTAT_NUM_PROGRESS_PARAM, copy->params, copy->values);
}

/* All rows are in the table: completes the indexes that have waited. */
void
sluice_index_load_close(SluiceIndexLoad *load, int workers)
{
	SluiceIndexBuilt *built;
	List	   *others = list_copy(load->late);
	int			count = 0;
	ListCell   *lc;
	CopyProgress copy;

	/* Another command may have put rows into the table; it made our own one end. */
	load->disturbed = GetCurrentCommandId(false) != load->cid;
	if (load->deferred == NIL || load->used == 0 || load->disturbed)
		sluice_index_load_forget(load);
	if (load->deferred == NIL || load->used == 0)
		return;
	built = palloc0(sizeof(SluiceIndexBuilt) * list_length(load->deferred));
	foreach(lc, load->deferred)
	{
		SluiceIndexOld old = {.blocks = 0};

		if (empty_index(load, lfirst_oid(lc), load->merges && !load->disturbed ? &old : NULL))
			list_built(built, count++, lfirst_oid(lc), &old);
		else
			others = lappend_oid(others, lfirst_oid(lc));
	}
	put_in_order(load, built, count);
	begin_progress(load, &copy);
	PG_TRY();
	{
		workers = build_all(load, built, count, workers);
		complete(load, built, count, others, workers);
	}
	PG_FINALLY();
	{
		sluice_index_conflict = NULL;
		sluice_index_built = NULL;
		sluice_index_twins = NULL;
	}
	PG_END_TRY();
	end_progress(&copy);
}
