/*
 * The insert route: preformed tuples through heap_multi_insert. WAL, TOAST,
 * free space, serializable conflicts and logical decoding are PostgreSQL's own.
 */
#include "heap/heap.h"

#include "commands/trigger.h"
#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"

/*
 * Heap slots that do not copy a tuple that is there: ours live in the batch's
 * memory for as long as the slot holds them.
 */
static TupleTableSlotOps slot_ops;

static void
materialize(TupleTableSlot *slot)
{
	if (((HeapTupleTableSlot *) slot)->tuple == NULL)
		TTSOpsHeapTuple.materialize(slot);
}

void
sluice_install_init(void)
{
	memcpy(&slot_ops, &TTSOpsHeapTuple, sizeof(slot_ops));
	slot_ops.materialize = materialize;
}

void
sluice_batch_open(SluiceBatch *batch, ResultRelInfo *rri, EState *estate,
				  CopyFromState cstate, CommandId cid, int options)
{
	memset(batch, 0, offsetof(SluiceBatch, slots));
	batch->rri = rri;
	batch->estate = estate;
	batch->cstate = cstate;
	batch->bistate = GetBulkInsertState();
	batch->cid = cid;
	batch->options = options;
	batch->index_load = sluice_index_load_open(rri, estate, cstate, cid);
}

/* A slot for tuples of the relation that live in a batch's memory. */
TupleTableSlot *
sluice_make_slot(Relation rel, EState *estate)
{
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &slot_ops);

	MemoryContextSwitchTo(old);
	slot->tts_tableOid = RelationGetRelid(rel);
	return slot;
}

/* The slot for the next row; it is empty. The batch must not be full. */
TupleTableSlot *
sluice_batch_slot(SluiceBatch *batch)
{
	Assert(batch->used < SLUICE_BATCH_ROWS);
	if (batch->used == batch->made)
		batch->slots[batch->made++] = sluice_make_slot(batch->rri->ri_RelationDesc,
													   batch->estate);
	return batch->slots[batch->used];
}

/* Stores a tuple that stays where it is until the batch is flushed. */
void
sluice_slot_store(TupleTableSlot *slot, char *tuple, uint32 len)
{
	HeapTupleTableSlot *heap = (HeapTupleTableSlot *) slot;

	Assert(TTS_EMPTY(slot));
	heap->tupdata.t_len = len;
	heap->tupdata.t_data = (HeapTupleHeader) tuple;
	heap->tupdata.t_tableOid = slot->tts_tableOid;
	ItemPointerSetInvalid(&heap->tupdata.t_self);
	heap->tuple = &heap->tupdata;
	heap->off = 0;
	slot->tts_nvalid = 0;
	slot->tts_flags &= ~TTS_FLAG_EMPTY;
}

/* The row is in the table now. */
void
sluice_slot_place(TupleTableSlot *slot, const ItemPointerData *tid)
{
	slot->tts_tid = *tid;
	((HeapTupleTableSlot *) slot)->tuple->t_self = *tid;
}

/* The row in sluice_batch_slot's slot is to be inserted. */
void
sluice_batch_add(SluiceBatch *batch, uint64 line)
{
	batch->lines[batch->used] = line;
	batch->used++;
}

/* Whether inserted rows go through sluice_finish_row. */
bool
sluice_needs_row_work(const SluiceBatch *batch)
{
	const ResultRelInfo *rri = batch->rri;

	return rri->ri_NumIndices > 0 ||
		(batch->extend && sluice_index_extend_waits(batch->extend)) ||
		(rri->ri_TrigDesc != NULL &&
		 (rri->ri_TrigDesc->trig_insert_after_row ||
		  rri->ri_TrigDesc->trig_insert_new_table));
}

/* Index entries and AFTER ROW triggers of a row that was inserted. */
void
sluice_finish_row(SluiceBatch *batch, TupleTableSlot *slot)
{
	ResultRelInfo *rri = batch->rri;
	List	   *recheck = NIL;

	if (batch->extend)
		sluice_index_extend_row(batch->extend, slot);
	if (rri->ri_NumIndices > 0)
		recheck = compat_insert_index_tuples(rri, slot, batch->estate);
	ExecARInsertTriggers(batch->estate, rri, slot, recheck,
						 batch->cstate->transition_capture);
	list_free(recheck);
}

static void
finish_rows(SluiceBatch *batch)
{
	for (int i = 0; i < batch->used; i++)
	{
		batch->cstate->cur_lineno = batch->lines[i];
		sluice_finish_row(batch, batch->slots[i]);
	}
}

/* More rows will come than one batch: the entries of a live table's indexes may wait to be sorted. */
void
sluice_start_sorted_inserts(SluiceBatch *batch)
{
	MemoryContext old;

	if (batch->extend || !sluice_index_load_is_live(batch->index_load) ||
		batch->rri->ri_NumIndices == 0 ||
		batch->rri->ri_RootResultRelInfo != NULL)
		return;
	old = MemoryContextSwitchTo(batch->estate->es_query_cxt);
	batch->extend = sluice_index_extend_open(batch->rri);
	MemoryContextSwitchTo(old);
}

/* Blocks that stand for all of a table's, or all of a small one's. */
#define SAMPLED_BLOCKS 64

/* Whether an eighth of a table is free, beyond what its fillfactor leaves free. */
static bool
is_partly_free(Relation rel)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	uint32		n = Min(blocks, SAMPLED_BLOCKS);
	Size		reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	Size		found = 0;

	/* Nearly every table that is only loaded into has no such page. */
	if (n == 0 ||
		GetPageWithFreeSpace(rel, Min(reserve + BLCKSZ / 4, MaxHeapTupleSize)) == InvalidBlockNumber)
		return false;
	for (uint32 i = 0; i < n; i++)
	{
		Size		free = GetRecordedFreeSpace(rel, n == blocks ? i : murmurhash32(i) % blocks);

		found += free - Min(free, reserve);
	}
	return found / n >= BLCKSZ / 8;
}

/*
 * Whether rows go into room that the free space map knows of, as stock COPY's do. If not,
 * they go behind one another to the table's end, in the order of the data: with the map,
 * they would go back to the gaps that wider rows have left at the ends of pages.
 */
bool
sluice_batch_has_room(SluiceBatch *batch)
{
	Relation	rel = batch->rri->ri_RelationDesc;
	BlockNumber blocks;

	/* The map would show others the blocks that this load has added for itself. */
	compat_extend_by_need(batch->bistate);
	if (batch->options & TABLE_INSERT_SKIP_FSM)
		return false;
	if (is_partly_free(rel))
		return true;
	batch->options |= TABLE_INSERT_SKIP_FSM;
	blocks = RelationGetNumberOfBlocks(rel);
	if (blocks > 0 && RelationGetTargetBlock(rel) == InvalidBlockNumber)
		RelationSetTargetBlock(rel, blocks - 1);
	return false;
}

/* Rows that follow go into this block, or behind it. */
void
sluice_set_target_block(SluiceBatch *batch, BlockNumber block)
{
	BulkInsertState bistate = batch->bistate;

	if (BufferIsValid(bistate->current_buf))
		ReleaseBuffer(bistate->current_buf);
	bistate->current_buf = InvalidBuffer;
	RelationSetTargetBlock(batch->rri->ri_RelationDesc, block);
}

/*
 * The rows up to this one are in the table and its indexes. A table with rows that
 * is ours alone may have grown so much that some indexes are left for the end.
 */
void
sluice_consider_merge(SluiceBatch *batch, const ItemPointerData *last)
{
	List	   *ascending = NIL;

	if (!sluice_index_load_outgrows(batch->index_load, last))
		return;
	if (batch->extend)
	{
		ascending = sluice_index_extend_ascending(batch->extend);
		sluice_index_extend_close(batch->extend);
		batch->extend = NULL;
	}
	/* Rows lie behind all others from here on, this one among them: what is new is told by its place. */
	if (sluice_index_load_merge(batch->index_load, ascending))
	{
		BlockNumber block = compat_take_free_block(batch->bistate);

		if (block == InvalidBlockNumber)
			block = RelationGetNumberOfBlocks(batch->rri->ri_RelationDesc) - 1;
		batch->options |= TABLE_INSERT_SKIP_FSM;
		sluice_set_target_block(batch, block);
	}
	sluice_start_sorted_inserts(batch);
}

/* Tells those who build indexes later, or fill them by many rows, where the rows are. */
static void
tell_indexes(SluiceBatch *batch)
{
	if (!sluice_index_load_wants(batch->index_load) && batch->extend == NULL)
		return;
	if (batch->placed == NULL)
		batch->placed = MemoryContextAlloc(batch->estate->es_query_cxt,
										   sizeof(SluicePlaced) * SLUICE_BATCH_ROWS);
	for (int i = 0; i < batch->used; i++)
	{
		HeapTuple	tuple = ((HeapTupleTableSlot *) batch->slots[i])->tuple;

		batch->placed[i].tid = batch->slots[i]->tts_tid;
		batch->placed[i].tuple = tuple->t_data;
		batch->placed[i].len = tuple->t_len;
		batch->placed[i].line = batch->lines[i];
	}
	if (batch->extend)
		sluice_index_extend_rows(batch->extend, batch->placed, batch->used,
								 &batch->cstate->cur_lineno);
	if (sluice_index_load_wants(batch->index_load))
		sluice_index_load_rows(batch->index_load, batch->placed, batch->used);
}

/* Inserts what waits. */
void
sluice_batch_flush(SluiceBatch *batch)
{
	ResultRelInfo *rri = batch->rri;
	CopyFromState cstate = batch->cstate;
	bool		line_buf_valid = cstate->line_buf_valid;
	uint64		line = cstate->cur_lineno;
	instr_time	before,
				after;
	MemoryContext old;

	if (batch->used == 0)
		return;
	/* An error from here on names a line and does not show one. */
	cstate->line_buf_valid = false;
	(void) sluice_batch_has_room(batch);

	INSTR_TIME_SET_CURRENT(before);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(batch->estate));
	heap_multi_insert(rri->ri_RelationDesc, batch->slots, batch->used,
					  batch->cid, batch->options, batch->bistate);
	MemoryContextSwitchTo(old);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.heap, after, before);

	batch->inserted += batch->used;
	if (batch->inserted >= sluice_threshold(SLUICE_BATCH_ROWS))
		sluice_start_sorted_inserts(batch);
	before = after;
	tell_indexes(batch);
	if (sluice_needs_row_work(batch))
		finish_rows(batch);
	sluice_consider_merge(batch, &batch->slots[batch->used - 1]->tts_tid);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
	for (int i = 0; i < batch->used; i++)
		ExecClearTuple(batch->slots[i]);
	batch->used = 0;
	ResetPerTupleExprContext(batch->estate);
	cstate->line_buf_valid = line_buf_valid;
	cstate->cur_lineno = line;
}

/* All rows are in: builds the indexes that were left for the end, with so many workers. */
void
sluice_batch_indexes(SluiceBatch *batch, int workers)
{
	instr_time	before,
				after;

	Assert(batch->used == 0);
	INSTR_TIME_SET_CURRENT(before);
	if (batch->extend)
		sluice_index_extend_close(batch->extend);
	sluice_index_load_close(batch->index_load, workers);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
}

void
sluice_batch_close(SluiceBatch *batch)
{
	BlockNumber block;

	Assert(batch->used == 0);
	/* Blocks that were added while others waited to add some, and not used. */
	while (!RELATION_IS_LOCAL(batch->rri->ri_RelationDesc) &&
		   (block = compat_take_free_block(batch->bistate)) != InvalidBlockNumber)
		RecordPageWithFreeSpace(batch->rri->ri_RelationDesc, block, BLCKSZ - SizeOfPageHeaderData);
	FreeBulkInsertState(batch->bistate);
	for (int i = 0; i < batch->made; i++)
		ExecDropSingleTupleTableSlot(batch->slots[i]);
	table_finish_bulk_insert(batch->rri->ri_RelationDesc, batch->options);
	/* A partition may come again, and again have a batch. */
	pfree(batch->index_load);
}
