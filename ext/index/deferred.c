/*
 * Indexes of a table that only this transaction can reach: once a COPY into it
 * has grown beyond a few pages, B-trees that the core can sort get no more
 * entries, and are built anew from all rows when the last one is in.
 *
 * Private is a table that was created or truncated in this transaction, or that
 * it has locked against everybody, and that was empty when the COPY began; for one
 * that had rows see index/merge.c. Nothing can miss the entries meanwhile: the rows
 * are invisible to the command that inserts them, AFTER triggers wait until the indexes
 * are there, and nothing waits where a volatile CHECK constraint or condition may look at the table.
 * What is done then is in index/deferred_finish.c.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
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
bool
sluice_index_has_long_keys(Relation index)
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
			(chosen < 0 || (sluice_index_has_long_keys(rri->ri_IndexRelationDescs[chosen]) &&
							!sluice_index_has_long_keys(index))))
			chosen = i;
	}
	if (chosen >= 0)
		load->kept = sluice_index_keep(rri->ri_RelationDesc, rri->ri_IndexRelationDescs[chosen],
									   rri->ri_IndexRelationInfo[chosen],
									   maintenance_work_mem / (rri->ri_NumIndices > 1 ? 2 : 1),
									   load->duplicates != NULL);
	MemoryContextSwitchTo(old);
}

/* The keys that were kept are of no use. */
void
sluice_index_load_forget(SluiceIndexLoad *load)
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
		sluice_index_load_forget(load);
	if (!load->decided &&
		(load->duplicates ||
		 RelationGetNumberOfBlocks(load->rri->ri_RelationDesc) > sluice_threshold(SMALL_TABLE)))
	{
		load->decided = true;
		load->first_waiting = load->used;
		defer(load);
	}
	if (!load->decided || load->deferred != NIL)
		sluice_index_note_rows(load, rows, count);
	load->waited += count;
}
