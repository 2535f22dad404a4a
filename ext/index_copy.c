/*
 * Indexes of a table that only this transaction can reach: once a COPY into it
 * has grown beyond a few pages, B-trees that the core can sort get no more
 * entries, and are built anew from all rows when the last one is in.
 *
 * Private is a table that was created or truncated in this transaction and was
 * empty when the COPY began. Nothing can miss the entries meanwhile: the rows
 * are invisible to the command that inserts them, and AFTER triggers wait until
 * the indexes are there. An index that is built anew is a new file, so that a
 * rollback to a savepoint brings back the old one.
 *
 * A key that is there twice is refused with stock COPY's error, which names the
 * line of the first row in the input that has a key again.
 */
#include "index.h"

#include "access/genam.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

/* Blocks of the table below which single entries are cheaper than a new file. */
#define SMALL_TABLE 256

/* Rows that were inserted together, and the lines they came from. */
typedef struct InsertedRows
{
	ItemPointerData first;
	ItemPointerData last;
	int			count;
	uint64		line;			/* of the first one */
	uint32	   *further;		/* lines from there of the others, unless they follow */
} InsertedRows;

struct SluiceIndexLoad
{
	ResultRelInfo *rri;
	CopyFromState cstate;
	MemoryContext context;
	bool		is_private;
	bool		decided;
	List	   *deferred;		/* indexes to be built at the end */
	InsertedRows *batches;
	int			used;
	int			allocated;
};

SluiceIndexLoad *
sluice_index_load_open(ResultRelInfo *rri, CopyFromState cstate)
{
	SluiceIndexLoad *load = palloc0(sizeof(SluiceIndexLoad));
	Relation	rel = rri->ri_RelationDesc;

	load->rri = rri;
	load->cstate = cstate;
	load->context = CurrentMemoryContext;
	/* The batch of a partition may be closed and opened again: not these. */
	load->is_private = rri->ri_NumIndices > 0 && rri->ri_RootResultRelInfo == NULL &&
		(rel->rd_createSubid != InvalidSubTransactionId ||
		 rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId) &&
		RelationGetNumberOfBlocks(rel) == 0;
	return load;
}

/*
 * Whether the index can be built at the end: a B-tree of plain columns that the
 * core can sort and no open cursor reads; if it is unique, it checks at once and
 * cannot meet a value that only the stock build takes, whose refusal would have
 * other words.
 */
static bool
can_wait(Relation heap, Relation index, IndexInfo *info)
{
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];

	if (index->rd_rel->relam != BTREE_AM_OID ||
		!index->rd_index->indisvalid || !index->rd_index->indisready ||
		index->rd_refcnt != 1 || index->rd_index->indisexclusion || !index->rd_index->indimmediate ||
		!sluice_index_scans_pages(heap, info) ||
		sluice_index_shape(heap, index, info, attributes) != NULL)
		return false;
	for (int i = 0; info->ii_Unique && i < info->ii_NumIndexAttrs; i++)
	{
		if (attributes[i].len == -1)
			return false;
	}
	return true;
}

/* Takes the indexes that can wait out of those that get an entry for each row. */
static void
defer(SluiceIndexLoad *load)
{
	ResultRelInfo *rri = load->rri;
	MemoryContext old = MemoryContextSwitchTo(load->context);
	int			kept = 0;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];
		IndexInfo  *info = rri->ri_IndexRelationInfo[i];

		if (can_wait(rri->ri_RelationDesc, index, info))
		{
			load->deferred = lappend_oid(load->deferred, RelationGetRelid(index));
			/* The lock was ExecOpenIndices'. */
			index_close(index, RowExclusiveLock);
			continue;
		}
		rri->ri_IndexRelationDescs[kept] = index;
		rri->ri_IndexRelationInfo[kept] = info;
		kept++;
	}
	rri->ri_NumIndices = kept;
	ereport(DEBUG1,
			(errmsg_internal("pgsluice: %d indexes are built when all rows are in",
							 list_length(load->deferred))));
	MemoryContextSwitchTo(old);
}

/* Remembers which lines the rows came from. */
static void
note_rows(SluiceIndexLoad *load, TupleTableSlot **slots, const uint64 *lines, int count)
{
	InsertedRows *rows;
	bool		follow = true;

	if (load->used == load->allocated)
	{
		load->allocated = Max(1024, load->allocated * 2);
		load->batches = load->batches == NULL ?
			MemoryContextAllocHuge(load->context, load->allocated * sizeof(InsertedRows)) :
			repalloc_huge(load->batches, load->allocated * sizeof(InsertedRows));
	}
	rows = &load->batches[load->used++];
	rows->first = slots[0]->tts_tid;
	rows->last = slots[count - 1]->tts_tid;
	rows->count = count;
	rows->line = lines[0];
	rows->further = NULL;
	for (int i = 1; i < count && follow; i++)
		follow = lines[i] == lines[0] + i;
	if (follow)
		return;
	rows->further = MemoryContextAlloc(load->context, count * sizeof(uint32));
	for (int i = 0; i < count; i++)
		rows->further[i] = (uint32) (lines[i] - lines[0]);
}

/* These rows have just been inserted into the table, and into no index yet. */
void
sluice_index_load_rows(SluiceIndexLoad *load, TupleTableSlot **slots,
					   const uint64 *lines, int count)
{
	if (!load->is_private)
		return;
	if (!load->decided &&
		RelationGetNumberOfBlocks(load->rri->ri_RelationDesc) > SMALL_TABLE)
	{
		load->decided = true;
		defer(load);
	}
	if (load->deferred != NIL)
		note_rows(load, slots, lines, count);
}

/* How many rows the table has in the block before the offset, or in all of it. */
static int
rows_in_block(Relation rel, BlockNumber block, OffsetNumber before)
{
	Buffer		buffer = ReadBuffer(rel, block);
	OffsetNumber last;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	last = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return before == InvalidOffsetNumber ? last : before - FirstOffsetNumber;
}

/* Which row the tid is, counted from the first of the batch. */
static int
index_in_batch(Relation rel, const InsertedRows *rows, ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(&rows->first);
	int			index = FirstOffsetNumber - ItemPointerGetOffsetNumber(&rows->first);

	for (; block < ItemPointerGetBlockNumber(tid); block++)
		index += rows_in_block(rel, block, InvalidOffsetNumber);
	return index + rows_in_block(rel, block, ItemPointerGetOffsetNumber(tid));
}

/*
 * The line that the row came from; 0: not known, because something that the
 * COPY ran put rows of its own between the batch's.
 */
static uint64
line_of(SluiceIndexLoad *load, ItemPointer tid)
{
	Relation	rel = load->rri->ri_RelationDesc;

	for (int i = 0; i < load->used; i++)
	{
		InsertedRows *rows = &load->batches[i];
		int			index;

		if (ItemPointerCompare(tid, &rows->first) < 0 ||
			ItemPointerCompare(tid, &rows->last) > 0)
			continue;
		if (index_in_batch(rel, rows, &rows->last) != rows->count - 1)
			return 0;
		index = index_in_batch(rel, rows, tid);
		return rows->line + (rows->further ? rows->further[index] : index);
	}
	return 0;
}

static void
raise_conflict(SluiceIndexLoad *load, SluiceIndexConflict *conflict)
{
	Relation	index = index_open(conflict->index, AccessShareLock);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	char	   *key;

	load->cstate->line_buf_valid = false;
	load->cstate->cur_lineno = line_of(load, &conflict->tuple->t_tid);
	index_deform_tuple(conflict->tuple, RelationGetDescr(index), values, isnull);
	key = BuildIndexValueDescription(index, values, isnull);
	/* The words are those of _bt_check_unique(). */
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					RelationGetRelationName(index)),
			 key ? errdetail("Key %s already exists.", key) : 0,
			 errtableconstraint(load->rri->ri_RelationDesc,
								RelationGetRelationName(index))));
}

/* All rows are in the table: builds what has waited. */
void
sluice_index_load_close(SluiceIndexLoad *load)
{
	SluiceIndexConflict conflict = {.index = InvalidOid,.context = load->context};
	char		persistence = load->rri->ri_RelationDesc->rd_rel->relpersistence;
	ListCell   *lc;

	if (load->deferred == NIL)
		return;
	PG_TRY();
	{
		sluice_index_conflict = &conflict;
		foreach(lc, load->deferred)
		{
			sluice_index_arm(lfirst_oid(lc));
			compat_reindex_index(lfirst_oid(lc), persistence);
		}
	}
	PG_FINALLY();
	{
		sluice_index_conflict = NULL;
	}
	PG_END_TRY();
	if (OidIsValid(conflict.index))
		raise_conflict(load, &conflict);
}
