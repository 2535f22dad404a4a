/*
 * Indexes of a table that only this transaction can reach: once a COPY into it
 * has grown beyond a few pages, B-trees that the core can sort get no more
 * entries, and are built anew from all rows when the last one is in.
 *
 * Private is a table that was created or truncated in this transaction, or that
 * it has locked against everybody, and that was empty when the COPY began; for one
 * that had rows see index_merge.c. Nothing can miss the entries meanwhile: the rows
 * are invisible to the command that inserts them, AFTER triggers wait until the indexes
 * are there, and nothing waits where a volatile CHECK constraint may look at the table.
 * An index that is built anew is a new file, so that a rollback to a savepoint brings
 * back the old one.
 *
 * A key that is there twice is refused with stock COPY's error, which names the
 * line of the first row in the input that has a key again, and with a hint that
 * names the line where it was before.
 */
#include "index.h"

#include "access/genam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/memutils.h"

/* Blocks of the table below which single entries are cheaper than a new file. */
#define SMALL_TABLE 256

/* A row that is not longer has no value that only the stock build takes. */
#define LONG_ROW 500

/*
 * Whether indexes of the table may get new files: it is this transaction's own, or
 * locked. An unlogged one must have new files already. If a server that is killed
 * had flushed the making of a file's init fork and not the abort that removed it, it
 * makes the fork again, finds the main fork there, and does not start. TRUNCATE
 * risks that; a COPY must not.
 */
static bool
may_have_new_files(Relation rel)
{
	if (rel->rd_createSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
		return true;
	return rel->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED &&
		CheckRelationLockedByMe(rel, AccessExclusiveLock, true);
}

SluiceIndexLoad *
sluice_index_load_open(ResultRelInfo *rri, EState *estate, CopyFromState cstate,
					   CommandId cid)
{
	SluiceIndexLoad *load = palloc0(sizeof(SluiceIndexLoad));
	Relation	rel = rri->ri_RelationDesc;
	BlockNumber blocks;

	load->rri = rri;
	load->estate = estate;
	load->cstate = cstate;
	load->cid = cid;
	load->context = CurrentMemoryContext;
	/* The batch of a partition may be closed and opened again: not these. */
	if (rri->ri_NumIndices == 0 || rri->ri_RootResultRelInfo != NULL || !may_have_new_files(rel))
		return load;
	blocks = RelationGetNumberOfBlocks(rel);
	load->is_private = blocks == 0;
	/* Of a temporary table no worker could read the index. */
	if (!RelationUsesLocalBuffers(rel))
		load->had_blocks = blocks;
	return load;
}

/* Each row is to get its entries when it is inserted, for this reason. */
void
sluice_index_load_never(SluiceIndexLoad *load, const char *because)
{
	load->is_private = false;
	load->had_blocks = 0;
	load->never = because;
}

/* Whether the index can be built at the end; *because says why not, or is NULL. */
bool
sluice_index_can_wait(Relation heap, Relation index, IndexInfo *info, const char **because)
{
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];

	return sluice_index_way(heap, index, info, true, attributes, because) == SLUICE_INDEX_BUILD;
}

static bool
waits(const SluiceIndexLoad *load, int i, const char **because)
{
	Relation	index = load->rri->ri_IndexRelationDescs[i];

	return sluice_index_can_wait(load->rri->ri_RelationDesc, index,
								 load->rri->ri_IndexRelationInfo[i], because) &&
		(load->is_private || sluice_index_can_merge(load, index));
}

/*
 * Takes the indexes that can wait out of those that get an entry for each row.
 * If one of them is unique, the others that check at once wait as well: of two
 * refusals stock COPY's is the one of the row that comes first.
 */
static void
defer(SluiceIndexLoad *load)
{
	ResultRelInfo *rri = load->rri;
	MemoryContext old = MemoryContextSwitchTo(load->context);
	bool		unique = false;
	bool	   *can = palloc(sizeof(bool) * rri->ri_NumIndices);
	const char *because;
	int			kept = 0;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];

		can[i] = waits(load, i, &because);
		if (can[i] || load->is_private)
			sluice_index_take(index, !can[i] ? SLUICE_INDEX_ROWS : load->is_private ?
							  SLUICE_INDEX_BUILD : SLUICE_INDEX_MERGE, because);
		unique |= can[i] && index->rd_index->indisunique;
	}
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];

		if (can[i] || (unique && index->rd_index->indimmediate))
		{
			if (can[i])
				load->deferred = lappend_oid(load->deferred, RelationGetRelid(index));
			else
			{
				load->late = lappend_oid(load->late, RelationGetRelid(index));
				if (load->merges)
					sluice_index_take(index, SLUICE_INDEX_ROWS, "another index that checks waits");
			}
			/* The lock was ExecOpenIndices'. */
			compat_index_cleanup(index, rri->ri_IndexRelationInfo[i]);
			index_close(index, RowExclusiveLock);
			continue;
		}
		rri->ri_IndexRelationDescs[kept] = index;
		rri->ri_IndexRelationInfo[kept] = rri->ri_IndexRelationInfo[i];
		kept++;
	}
	rri->ri_NumIndices = kept;
	MemoryContextSwitchTo(old);
}

/* Whether some values of the key are of variable length. */
static bool
has_long_keys(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfAttributes(index); i++)
	{
		if (TupleDescAttr(RelationGetDescr(index), i)->attlen == -1)
			return true;
	}
	return false;
}

/*
 * Before the first row: of the indexes that may be built at the end, the keys of
 * one are kept, short ones for choice, since they take the leader little time.
 */
static void
keep(SluiceIndexLoad *load)
{
	ResultRelInfo *rri = load->rri;
	MemoryContext old = MemoryContextSwitchTo(load->context);
	const char *because;
	int			chosen = -1;

	load->begun = true;
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];

		/* Where duplicates are told apart, that index comes first in the end. */
		if (load->duplicates && sluice_index_arbiter(load) != RelationGetRelid(index))
			continue;
		if (waits(load, i, &because) &&
			(chosen < 0 || (has_long_keys(rri->ri_IndexRelationDescs[chosen]) &&
							!has_long_keys(index))))
			chosen = i;
	}
	if (chosen >= 0)
		load->kept = sluice_index_keep(rri->ri_RelationDesc, rri->ri_IndexRelationDescs[chosen],
									   rri->ri_IndexRelationInfo[chosen],
									   maintenance_work_mem / (rri->ri_NumIndices > 1 ? 2 : 1),
									   load->duplicates != NULL);
	MemoryContextSwitchTo(old);
}

static void
forget(SluiceIndexLoad *load)
{
	if (load->kept)
		sluice_index_forget(load->kept);
	load->kept = NULL;
}

/* Whether it wants to be told of the rows. */
bool
sluice_index_load_wants(const SluiceIndexLoad *load)
{
	return load->is_private || load->deferred != NIL;
}

/* Whether entries may wait to be sorted: others can reach the table, and no row is taken back. */
bool
sluice_index_load_is_live(const SluiceIndexLoad *load)
{
	return !load->is_private && !load->never;
}

/* Why indexes get an entry with each row, of which nothing else is known. */
const char *
sluice_index_load_why_rows(const SluiceIndexLoad *load)
{
	if (load->never)
		return load->never;
	return load->is_private ? "the table is small" : "the load is small";
}

/*
 * A table that had rows has grown so much that its indexes are better written
 * anew, but for those whose entries go in behind all others. False: none is.
 */
bool
sluice_index_load_merge(SluiceIndexLoad *load, List *ascending)
{
	const char *because;

	load->ascending = ascending;
	load->had_blocks = 0;
	load->decided = true;
	load->merges = true;
	for (int i = 0; i < load->rri->ri_NumIndices; i++)
	{
		/* If one that checks waits, all that check do. */
		if (load->rri->ri_IndexRelationDescs[i]->rd_index->indisunique &&
			waits(load, i, &because))
			load->ascending = NIL;
	}
	keep(load);
	defer(load);
	return load->deferred != NIL;
}

/* These rows have just been inserted into the table, and into no index yet. */
void
sluice_index_load_rows(SluiceIndexLoad *load, const SluicePlaced *rows, int count)
{
	for (int i = 0; i < count; i++)
		load->has_long_rows |= rows[i].len > LONG_ROW;
	if (!load->begun)
		keep(load);
	if (load->kept && !sluice_index_keep_rows(load->kept, rows, count))
		forget(load);
	if (!load->decided &&
		(load->duplicates ||
		 RelationGetNumberOfBlocks(load->rri->ri_RelationDesc) > SMALL_TABLE))
	{
		load->decided = true;
		load->first_waiting = load->used;
		defer(load);
	}
	if (!load->decided || load->deferred != NIL)
		sluice_index_note_rows(load, rows, count);
	load->waited += count;
}

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
	return result;
}

/*
 * Makes the index a new and empty file, which the end of the transaction leaves
 * or takes away; says where the old one is. Not if something that the COPY ran has the index open, or the
 * stock build, which has other words for a duplicate, might have to do it.
 */
static bool
empty_index(SluiceIndexLoad *load, Oid indexid, SluiceIndexOld *old)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(indexid, AccessExclusiveLock);
	bool		can = index->rd_refcnt == 1 &&
		!(index->rd_index->indisunique && load->has_long_rows && has_long_keys(index));

	if (can)
	{
		if (old)
			sluice_index_old_file(load, index, old);
		TransferPredicateLocksToHeapRelation(index);
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
	index_build(load->rri->ri_RelationDesc, index, BuildIndexInfo(index), true, false);
	sluice_index_built = NULL;
	if (built->fit && built->old.blocks > 0)
		sluice_index_take(index, SLUICE_INDEX_MERGE, NULL)->rows[SLUICE_INDEX_MERGE] = load->waited;
	else if (load->merges)
		sluice_index_take(index, SLUICE_INDEX_BUILD, NULL);
	index_close(index, NoLock);
}

/* Puts an index among those to be built: keys that take longer to sort come first. */
static void
list_built(SluiceIndexBuilt *built, int count, Oid indexid, const SluiceIndexOld *old)
{
	Relation	index = index_open(indexid, NoLock);
	bool		long_keys = has_long_keys(index);

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
		forget(load);
	if (load->duplicates && !put_first(built, count, sluice_index_arbiter(load)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the index that tells duplicates is being used by active queries in this session")));
}

/* Builds them all; answers how many workers helped. */
static int
build_all(SluiceIndexLoad *load, SluiceIndexBuilt *built, int count, int workers)
{
	Relation	rel = load->rri->ri_RelationDesc;

	if (load->duplicates)
	{
		sluice_index_settle(load, built, load->kept);
		load->kept = NULL;
		built++;
		count--;
	}
	if (count > 0)
		workers = sluice_index_build_all(rel, built, count, workers, load->kept);
	load->kept = NULL;
	return workers;
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

/* All rows are in the table: completes the indexes that have waited. */
void
sluice_index_load_close(SluiceIndexLoad *load, int workers)
{
	SluiceIndexBuilt *built;
	SluiceIndexBuilt *conflict;
	List	   *others = list_copy(load->late);
	int			count = 0;
	ListCell   *lc;

	/* Another command may have put rows into the table; it made our own one end. */
	load->disturbed = GetCurrentCommandId(false) != load->cid;
	if (load->deferred == NIL || load->used == 0 || load->disturbed)
		forget(load);
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
	PG_TRY();
	{
		workers = build_all(load, built, count, workers);
		for (int i = 0; i < count; i++)
		{
			if (built[i].conflict && built[i].old.blocks > 0)
				ask_table(load, &built[i]);
		}
		conflict = sluice_index_first_conflict(built, count);
		if (others)
			sluice_index_insert_entries(load, others,
										conflict ? &((IndexTuple) conflict->tuple)->t_tid : NULL);
		if (conflict)
			sluice_index_raise_conflict(load, conflict);
		for (int i = 0; i < count; i++)
		{
			complete_index(load, &built[i]);
			sluice_index_report.workers = workers;
		}
	}
	PG_FINALLY();
	{
		sluice_index_conflict = NULL;
		sluice_index_built = NULL;
		sluice_index_twins = NULL;
	}
	PG_END_TRY();
}
