/*
 * The insert route: preformed tuples through heap_multi_insert. WAL, TOAST,
 * free space, serializable conflicts and logical decoding are PostgreSQL's
 * own.
 *
 * A batch holds up to SLUICE_BATCH_ROWS rows of one table or partition. The
 * core forms tuples in an arena. The slots point to the tuples there instead
 * of copying them: materialize() of our slots does nothing if there is a
 * tuple. So a tuple must stay where it is until the batch is flushed, and code
 * that is about to reuse the arena flushes first (sluice_free_tuples).
 *
 * PostgreSQL chooses the place of a row (RelationGetBufferForTuple), within
 * two limits. If the free space map shows room in much of the table, rows go
 * there, as stock COPY's do. If not, they are appended to the table one after
 * the other, so that they are in the order of the data. And if indexes are
 * left for the end, rows must be in that order (sluice_keep_order).
 *
 * Blocks that were added in bulk and not used are recorded in the free space
 * map when the batch is closed, unless nobody else can see the table.
 *
 * The server applies the options of a row to its TOAST table as well. That one
 * must use the room that VACUUM has found in it, or it would grow with each
 * load. So if it has room, rows that the toaster may change are inserted with
 * stock COPY's options, unless the rows must be in order.
 */
#include "heap/heap.h"

#include "access/heaptoast.h"
#include "access/table.h"
#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"

/*
 * Heap slots that do not copy their tuple: our tuples are in the batch's
 * memory for as long as the slot holds them.
 */
static TupleTableSlotOps slot_ops;

/*
 * A tuple of the core belongs to the batch and need not be copied. Values that
 * were computed must be copied, as in any slot.
 */
static void
materialize(TupleTableSlot *slot)
{
	if (((HeapTupleTableSlot *) slot)->tuple == NULL)
		TTSOpsHeapTuple.materialize(slot);
}

/* Our slots are heap slots except for materialize(). */
void
sluice_install_init(void)
{
	memcpy(&slot_ops, &TTSOpsHeapTuple, sizeof(slot_ops));
	slot_ops.materialize = materialize;
}

/*
 * Opens an empty batch. The slots are created when rows arrive; `lines` and
 * `slots` need no initial value.
 */
void
sluice_batch_open(SluiceBatch *batch, ResultRelInfo *rri, EState *estate,
				  CopyFromState cstate, CommandId cid, int options)
{
	memset(batch, 0, sizeof(SluiceBatch));
	batch->rri = rri;
	batch->estate = estate;
	batch->cstate = cstate;
	batch->bistate = GetBulkInsertState();
	batch->cid = cid;
	batch->options = batch->given_options = options;
}

/* Creates a slot for tuples in a batch's memory. */
static TupleTableSlot *
make_slot(Oid relid, TupleDesc desc, EState *estate)
{
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &slot_ops);

	MemoryContextSwitchTo(old);
	slot->tts_tableOid = relid;
	return slot;
}

/* The same for tuples of the relation. */
TupleTableSlot *
sluice_make_slot(Relation rel, EState *estate)
{
	return make_slot(RelationGetRelid(rel), RelationGetDescr(rel), estate);
}

/*
 * A copy of the relation's descriptor that is not reference-counted. With
 * thousands of slots for each partition, the resource owner would have to find
 * and forget as many references.
 */
static TupleDesc
copy_desc(Relation rel, EState *estate)
{
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	TupleDesc	desc = CreateTupleDescCopyConstr(RelationGetDescr(rel));

	MemoryContextSwitchTo(old);
	return desc;
}

/* The slot for the next row, empty. The batch must not be full. */
TupleTableSlot *
sluice_batch_slot(SluiceBatch *batch)
{
	Relation	rel = batch->rri->ri_RelationDesc;

	Assert(batch->used < SLUICE_BATCH_ROWS);
	if (batch->desc == NULL)
	{
		MemoryContext query = batch->estate->es_query_cxt;

		batch->slots = MemoryContextAlloc(query, sizeof(TupleTableSlot *) * SLUICE_BATCH_ROWS);
		batch->lines = MemoryContextAlloc(query, sizeof(uint64) * SLUICE_BATCH_ROWS);
		batch->desc = copy_desc(rel, batch->estate);
	}
	if (batch->used == batch->made)
		batch->slots[batch->made++] = make_slot(RelationGetRelid(rel), batch->desc, batch->estate);
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

/* Sets the address of a row that is in the table now. */
void
sluice_slot_place(TupleTableSlot *slot, const ItemPointerData *tid)
{
	slot->tts_tid = *tid;
	((HeapTupleTableSlot *) slot)->tuple->t_self = *tid;
}

/* Adds the row in sluice_batch_slot()'s slot to the batch. */
void
sluice_batch_add(SluiceBatch *batch, uint64 line)
{
	batch->lines[batch->used] = line;
	batch->used++;
}

/* Blocks that are sampled for all of a table's, or all of a small table's. */
#define SAMPLED_BLOCKS 64

/*
 * The room that a row of the table takes, by the statistics. If many rows were
 * deleted, that is more than they take, so it has a limit: no row is longer
 * than a quarter of a page without TOAST.
 */
static Size
room_for_row(Relation rel)
{
	Form_pg_class form = rel->rd_rel;

	if (form->relpages <= 0 || form->reltuples <= 0)
		return 0;
	return Min((double) BLCKSZ * form->relpages / form->reltuples, BLCKSZ / 4);
}

/*
 * Whether an eighth of a table is free, in addition to what its fillfactor
 * keeps free, in blocks that have room for a row. What rows leave free at the
 * ends of full pages is no room.
 */
static bool
is_partly_free(Relation rel)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	uint32		n = Min(blocks, SAMPLED_BLOCKS);
	Size		reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	Size		row = room_for_row(rel);
	Size		found = 0;

	/*
	 * Few tables that are only loaded into have a page with so much room.
	 */
	if (n == 0 ||
		GetPageWithFreeSpace(rel, Min(reserve + BLCKSZ / 8, MaxHeapTupleSize)) == InvalidBlockNumber)
		return false;
	for (uint32 i = 0; i < n; i++)
	{
		Size		free = GetRecordedFreeSpace(rel, n == blocks ? i : murmurhash32(i) % blocks);

		if (free >= reserve + row)
			found += free - reserve;
	}
	return found / n >= BLCKSZ / 8;
}

/*
 * Whether rows go into room that the free space map shows, as stock COPY's do.
 * If not, they are appended to the table one after the other, in the order of
 * the data. With the map, they would go back to the gaps that wider rows have
 * left at the ends of pages.
 */
bool
sluice_batch_has_room(SluiceBatch *batch)
{
	Relation	rel = batch->rri->ri_RelationDesc;
	BlockNumber blocks;

	/*
	 * In the map, others would find the blocks that this load has added for
	 * itself.
	 */
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

/* The rows that follow go into this block, or after it. */
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
 * From now on rows are appended to the table, one after the other and after
 * all existing ones, so that their places show which of them the indexes do
 * not have yet.
 */
void
sluice_keep_order(SluiceBatch *batch)
{
	BlockNumber block;

	if (batch->in_order || sluice_index_needs(batch->indexes) != SLUICE_INDEX_NEEDS_ORDER)
		return;
	batch->in_order = true;
	block = compat_take_free_block(batch->bistate);
	if (block == InvalidBlockNumber)
		block = RelationGetNumberOfBlocks(batch->rri->ri_RelationDesc) - 1;
	batch->options |= TABLE_INSERT_SKIP_FSM;
	sluice_set_target_block(batch, block);
}

/* Passes the batch's rows, which are in the table, to its indexes. */
static void
hand_to_indexes(SluiceBatch *batch)
{
	NewRows		rows = {.count = batch->used,.slots = batch->slots};

	rows.many = batch->inserted >= sluice_threshold(SLUICE_BATCH_ROWS);
	if (sluice_index_needs(batch->indexes) == SLUICE_INDEX_NEEDS_NOTHING)
		return;
	if (batch->placed == NULL)
		batch->placed = MemoryContextAlloc(batch->estate->es_query_cxt,
										   sizeof(PlacedRow) * SLUICE_BATCH_ROWS);
	rows.placed = batch->placed;
	for (int i = 0; i < batch->used; i++)
	{
		HeapTuple	tuple = ((HeapTupleTableSlot *) batch->slots[i])->tuple;

		batch->placed[i].tid = batch->slots[i]->tts_tid;
		batch->placed[i].tuple = tuple->t_data;
		batch->placed[i].len = tuple->t_len;
		batch->placed[i].line = batch->lines[i];
	}
	sluice_index_rows(batch->indexes, &rows);
	sluice_keep_order(batch);
}

/* Whether the TOAST table has room by the same rule. It stays locked, as by its insertions. */
static bool
toast_has_room(const SluiceBatch *batch)
{
	Relation	toast = table_open(batch->rri->ri_RelationDesc->rd_rel->reltoastrelid, RowExclusiveLock);
	bool		room = is_partly_free(toast);

	table_close(toast, NoLock);
	return room;
}

/* The options with which to insert the batch's rows: see the head of this file. */
int
sluice_insert_options(SluiceBatch *batch)
{
	if (batch->in_order || batch->toast_is_full || batch->options == batch->given_options ||
		!OidIsValid(batch->rri->ri_RelationDesc->rd_rel->reltoastrelid))
		return batch->options;
	for (int i = 0; i < batch->used; i++)
	{
		HeapTuple	tuple = ExecFetchSlotHeapTuple(batch->slots[i], true, NULL);

		if (tuple->t_len > TOAST_TUPLE_THRESHOLD || HeapTupleHasExternal(tuple))
		{
			batch->toast_is_full = !toast_has_room(batch);
			return batch->toast_is_full ? batch->options : batch->given_options;
		}
	}
	return batch->options;
}

/* Inserts the batch's rows. */
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
	/* An error from here on names a line but does not show it. */
	cstate->line_buf_valid = false;
	(void) sluice_batch_has_room(batch);

	INSTR_TIME_SET_CURRENT(before);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(batch->estate));
	heap_multi_insert(rri->ri_RelationDesc, batch->slots, batch->used, batch->cid,
					  sluice_insert_options(batch), batch->bistate);
	MemoryContextSwitchTo(old);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.heap, after, before);

	batch->inserted += batch->used;
	before = after;
	hand_to_indexes(batch);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
	for (int i = 0; i < batch->used; i++)
		ExecClearTuple(batch->slots[i]);
	batch->used = 0;
	batch->leaf.refused = false;
	ResetPerTupleExprContext(batch->estate);
	cstate->line_buf_valid = line_buf_valid;
	cstate->cur_lineno = line;
}

/*
 * Closes a batch: its rows are in the table, and the index writer has received
 * all of them.
 */
void
sluice_batch_close(SluiceBatch *batch)
{
	BlockNumber block;

	Assert(batch->used == 0);
	/*
	 * Blocks that were added because others waited to extend the table, and
	 * not used.
	 */
	while (!RELATION_IS_LOCAL(batch->rri->ri_RelationDesc) &&
		   (block = compat_take_free_block(batch->bistate)) != InvalidBlockNumber)
		RecordPageWithFreeSpace(batch->rri->ri_RelationDesc, block, BLCKSZ - SizeOfPageHeaderData);
	FreeBulkInsertState(batch->bistate);
	for (int i = 0; i < batch->made; i++)
		ExecDropSingleTupleTableSlot(batch->slots[i]);
	if (batch->desc)
	{
		FreeTupleDesc(batch->desc);
		pfree(batch->slots);
		pfree(batch->lines);
	}
	/* A COPY may open the batch of a partition any number of times. */
	if (batch->placed)
		pfree(batch->placed);
	table_finish_bulk_insert(batch->rri->ri_RelationDesc, batch->options);
	/* The partition may get rows again, and then another batch. */
	sluice_index_close(batch->indexes);
}
