/*
 * Index entries one by one for the rows of a COPY that are in the table already:
 * for indexes that were to be built when all were in and now cannot be.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

typedef struct EntryScan
{
	SluiceIndexLoad *load;
	ItemPointerData first;		/* row that gets some */
	ItemPointer end;			/* the last one, or NULL */
	int			of_end;			/* how many of the indexes have one of that */
	TupleTableSlot *slot;
	int			batch;			/* where the next row's line is */
	int			row;
} EntryScan;

/* Whether the COPY itself put the tuple there, since entries have waited. */
static bool
is_ours(EntryScan *scan, HeapTuple tuple)
{
	SluiceIndexLoad *load = scan->load;

	return ItemPointerCompare(&tuple->t_self, &scan->first) >= 0 &&
		(scan->end == NULL || ItemPointerCompare(&tuple->t_self, scan->end) <= 0) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tuple->t_data)) &&
		HeapTupleHeaderGetCmin(tuple->t_data) == load->cid;
}

/* The line of the next row: the table has them in the order of the input. */
static uint64
next_line(EntryScan *scan)
{
	const InsertedRows *rows = &scan->load->batches[scan->batch];
	uint64		line = rows->line + (rows->further ? rows->further[scan->row] : scan->row);

	if (++scan->row == rows->count)
	{
		scan->batch++;
		scan->row = 0;
	}
	return line;
}

static void
insert_entry(EntryScan *scan, HeapTuple tuple)
{
	SluiceIndexLoad *load = scan->load;

	if (scan->batch == load->used)
		elog(ERROR, "pgsluice: the table has more rows than were inserted");
	load->cstate->cur_lineno = next_line(scan);
	if (scan->end && ItemPointerEquals(&tuple->t_self, scan->end))
		load->rri->ri_NumIndices = scan->of_end;
	ExecStoreHeapTuple(tuple, scan->slot, false);
	list_free(compat_insert_index_tuples(load->rri, scan->slot, load->estate));
	ResetPerTupleExprContext(load->estate);
}

static void
insert_page(EntryScan *scan, BlockNumber block)
{
	Relation	rel = scan->load->rri->ri_RelationDesc;
	Buffer		buffer = ReadBuffer(rel, block);
	PGAlignedBlock copy;
	HeapTupleData tuple;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	tuple.t_tableOid = RelationGetRelid(rel);
	for (OffsetNumber offset = FirstOffsetNumber;
		 offset <= PageGetMaxOffsetNumber((Page) copy.data); offset++)
	{
		ItemId		item = PageGetItemId((Page) copy.data, offset);

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem((Page) copy.data, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, block, offset);
		if (is_ours(scan, &tuple))
			insert_entry(scan, &tuple);
	}
}

/* Opens the indexes for the table's insertions, in the order in which those come to them. */
static void
open_indexes(EntryScan *scan, List *indexes, Oid refuses)
{
	ResultRelInfo *rri = scan->load->rri;
	ListCell   *lc;

	list_sort(indexes, list_oid_cmp);
	rri->ri_NumIndices = 0;
	rri->ri_IndexRelationDescs = palloc(sizeof(Relation) * list_length(indexes));
	rri->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * list_length(indexes));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), RowExclusiveLock);

		if (lfirst_oid(lc) < refuses)
			scan->of_end++;
		rri->ri_IndexRelationDescs[rri->ri_NumIndices] = index;
		rri->ri_IndexRelationInfo[rri->ri_NumIndices++] = BuildIndexInfo(index);
	}
}

/*
 * Inserts entries, with stock COPY's errors, of the COPY's rows from the first of a batch on. If `end`
 * is not NULL, it is the last row, which another index refuses: indexes that come before that one get
 * its entries too.
 */
void
sluice_index_insert_entries(SluiceIndexLoad *load, List *indexes, int batch, ItemPointer end,
							Oid refuses)
{
	ResultRelInfo *rri = load->rri;
	ResultRelInfo saved = *rri;
	EntryScan	scan = {.load = load,.first = load->batches[batch].first,.end = end,.batch = batch};
	BlockNumber blocks = RelationGetNumberOfBlocks(rri->ri_RelationDesc);

	open_indexes(&scan, indexes, refuses);
	scan.slot = MakeSingleTupleTableSlot(RelationGetDescr(rri->ri_RelationDesc), &TTSOpsHeapTuple);
	load->cstate->line_buf_valid = false;
	for (BlockNumber block = ItemPointerGetBlockNumber(&scan.first);
		 block < blocks && (end == NULL || block <= ItemPointerGetBlockNumber(end)); block++)
	{
		CHECK_FOR_INTERRUPTS();
		insert_page(&scan, block);
	}
	ExecDropSingleTupleTableSlot(scan.slot);
	rri->ri_NumIndices = list_length(indexes);
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		compat_index_cleanup(rri->ri_IndexRelationDescs[i], rri->ri_IndexRelationInfo[i]);
		index_close(rri->ri_IndexRelationDescs[i], RowExclusiveLock);
	}
	rri->ri_NumIndices = saved.ri_NumIndices;
	rri->ri_IndexRelationDescs = saved.ri_IndexRelationDescs;
	rri->ri_IndexRelationInfo = saved.ri_IndexRelationInfo;
}
