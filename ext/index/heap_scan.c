/*
 * Reads the table for a new index.
 *
 * Anything out of the ordinary goes through table_index_build_scan() or its
 * range variant, so that PostgreSQL decides what is indexed. A page of a heap
 * is ordinary if every tuple on it is live, or was inserted by our own
 * transaction, and none is a member of a HOT chain below its root.
 * table_index_build_scan() would index exactly these tuples, each under its
 * own TID, and count them as alive. They are read a page at a time.
 *
 * A page is copied under a share lock and read from the copy. That is enough
 * because the build holds ShareLock or more on the table: no other session can
 * insert or update tuples. Two things may still change: hint bits, which do
 * not change what a tuple is, and dead tuples, which readers prune under a
 * cleanup lock. A page that is not ordinary is left to PostgreSQL. Consecutive
 * blocks of that kind are left to it together (`odd`), at their place in the
 * order of the blocks.
 *
 * Why HeapTupleSatisfiesVacuum and not a snapshot: an index must have entries
 * for all rows that any transaction can still see, including recently dead
 * ones. LIVE and our own INSERT_IN_PROGRESS are the two results that need no
 * further check. The infomask tests before it are shortcuts for the same two
 * results.
 *
 * With an old file (merge.c) a page that is not ordinary ends the build. This
 * COPY has inserted the rows of these pages and no other session can reach
 * them, so all of them should be ordinary.
 */
#include "index/build.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

/*
 * The live tuples of a page, copied so that the buffer need not stay locked.
 */
typedef struct PageRows
{
	PGAlignedBlock page;
	int			count;
	OffsetNumber offsets[MaxHeapTuplesPerPage];
} PageRows;

struct SluiceIndexScan
{
	SluiceIndexBuild *build;
	TransactionId oldest_xmin;
	TransactionId own_xmin;		/* an xmin of our transaction, once one was found */
	BufferAccessStrategy strategy;
	SluiceIndexSource *source;
	int			natts;			/* attributes to read of each row */
	BlockNumber odd;			/* first of the blocks left to PostgreSQL */
	BlockNumber odd_count;
	PageRows	rows;
};

/* The callback of table_index_build_scan(). */
static void
add_row(Relation index, ItemPointer tid, Datum *values, bool *isnull,
		bool alive, void *state)
{
	sluice_index_add(state, tid, alive, values, isnull);
}

/* Blocks that are read row by row before a build that is unfit can stop. */
#define BLOCKS_BY_ROW 1024

/*
 * Reads a heap row by row, in ranges. Once the build is unfit, the rest of the
 * table need not be read, and no expression be computed for it.
 */
static void
scan_rows_in_ranges(SluiceIndexBuild *build)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(build->heap);
	BlockNumber count;

	pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL, blocks);
	for (BlockNumber block = 0; block < blocks && !build->unfit; block += count)
	{
		/*
		 * Each range gets a new ring of buffers, and until the ring is full,
		 * reading evicts other pages. So there are few ranges: each is as long
		 * as all before it.
		 */
		count = Min(Max(Max(sluice_threshold(BLOCKS_BY_ROW), 1), block), blocks - block);
		build->reltuples +=
			table_index_build_range_scan(build->heap, build->index, build->info,
										 false, false, false, block, count,
										 add_row, build, NULL);
		/* PostgreSQL counts a scan for each range, but all are one scan. */
		if (block > 0)
			compat_uncount_scan(build->heap);
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, block + count);
	}
}

/*
 * Reads the table row by row, as any build does. A concurrent build has one
 * snapshot for all rows, so it reads the table in one scan.
 */
void
sluice_index_scan_rows(SluiceIndexBuild *build)
{
	if (build->heap->rd_rel->relam == HEAP_TABLE_AM_OID && !build->info->ii_Concurrent)
		scan_rows_in_ranges(build);
	else
		build->reltuples = table_index_build_scan(build->heap, build->index, build->info,
												  true, true, add_row, build, NULL);
}

/*
 * Whether the index can be built from copied pages: it has plain columns of a
 * heap, none of them twice, and no predicate, and it is not built
 * concurrently.
 */
bool
sluice_index_scans_pages(Relation heap, IndexInfo *info)
{
	for (int i = 0; i < info->ii_NumIndexAttrs; i++)
	{
		for (int j = 0; j < i; j++)
		{
			if (info->ii_IndexAttrNumbers[i] == info->ii_IndexAttrNumbers[j])
				return false;
		}
	}
	return heap->rd_rel->relam == HEAP_TABLE_AM_OID &&
		!info->ii_Concurrent &&
		info->ii_Predicate == NIL &&
		info->ii_Expressions == NIL;
}

/*
 * Whether table_index_build_scan() would take the tuple as it is: alive, and
 * indexed under its own TID. The tuple must also have all columns of the
 * index; one that was written before a column was added does not. The buffer
 * is pinned and locked.
 */
static bool
is_ordinary(HeapTuple tuple, SluiceIndexScan *scan, Buffer buffer)
{
	const uint16 settled = HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID;
	const uint16 ours = HEAP_XMIN_FROZEN | HEAP_XMAX_INVALID | HEAP_MOVED;
	uint16		infomask = tuple->t_data->t_infomask;
	TransactionId xmin;

	if (HeapTupleIsHeapOnly(tuple) || HeapTupleHeaderGetNatts(tuple->t_data) < scan->natts)
		return false;
	if ((infomask & settled) == settled && (infomask & HEAP_MOVED) == 0)
		return true;
	if ((infomask & ours) == HEAP_XMAX_INVALID &&
		HeapTupleHeaderGetRawXmin(tuple->t_data) == scan->own_xmin)
		return true;
	switch (HeapTupleSatisfiesVacuum(tuple, scan->oldest_xmin, buffer))
	{
		case HEAPTUPLE_LIVE:
			return true;
		case HEAPTUPLE_INSERT_IN_PROGRESS:
			xmin = HeapTupleHeaderGetXmin(tuple->t_data);
			if (!TransactionIdIsCurrentTransactionId(xmin))
				return false;
			scan->own_xmin = xmin;
			return true;
		default:
			return false;
	}
}

/* Copies the page if all tuples on it are ordinary. */
static bool
copy_page(SluiceIndexScan *scan, BlockNumber block, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	PageRows   *rows = &scan->rows;
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	OffsetNumber first = FirstOffsetNumber;
	HeapTupleData tuple;

	Assert(PageIsNew(page) || PageGetPageSize(page) == BLCKSZ);
	if (scan->build->old && block == ItemPointerGetBlockNumber(&scan->build->old->first))
		first = ItemPointerGetOffsetNumber(&scan->build->old->first);
	rows->count = 0;
	tuple.t_tableOid = RelationGetRelid(scan->build->heap);
	for (OffsetNumber offset = first; offset <= last; offset++)
	{
		ItemId		item = PageGetItemId(page, offset);

		if (!ItemIdIsUsed(item) || ItemIdIsDead(item))
			continue;
		if (!ItemIdIsNormal(item))
			return false;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, block, offset);
		if (!is_ordinary(&tuple, scan, buffer))
			return false;
		rows->offsets[rows->count++] = offset;
	}
	memcpy(rows->page.data, page, BLCKSZ);
	return true;
}

/* Adds one row of the copied page by its values. */
static void
add_values(SluiceIndexScan *scan, BlockNumber block, OffsetNumber offset)
{
	SluiceIndexBuild *build = scan->build;
	Page		page = (Page) scan->rows.page.data;
	ItemId		item = PageGetItemId(page, offset);
	HeapTupleData tuple;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	tuple.t_tableOid = RelationGetRelid(build->heap);
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple.t_len = ItemIdGetLength(item);
	ItemPointerSet(&tuple.t_self, block, offset);
	for (int i = 0; i < build->info->ii_NumIndexAttrs; i++)
		values[i] = heap_getattr(&tuple, build->info->ii_IndexAttrNumbers[i],
								 RelationGetDescr(build->heap), &isnull[i]);
	sluice_index_add(build, &tuple.t_self, true, values, isnull);
}

/* Adds the rows of the copied page. */
static void
add_page(SluiceIndexScan *scan, BlockNumber block)
{
	SluiceIndexBuild *build = scan->build;
	PageRows   *rows = &scan->rows;
	size_t		next = 0;

	/*
	 * Counts the tuples of the whole page as returned by a scan of the table;
	 * for an index the macro does the same.
	 */
	pgstat_count_index_tuples(build->heap, rows->count);
	while (!sluice_index_add_page(build, scan->source, rows->page.data, block,
								  rows->offsets, rows->count, &next))
		add_values(scan, block, rows->offsets[next++]);
	build->reltuples += rows->count;
}

/*
 * Lets PostgreSQL read the blocks that were left to it. Ordinary pages between
 * two such runs are not left to it to save a scan: reading such a page row by
 * row takes about 10 us longer, and a scan by itself 2 us, or 7 us if there
 * are 300 sessions.
 */
static void
scan_odd_blocks(SluiceIndexScan *scan)
{
	SluiceIndexBuild *build = scan->build;

	if (scan->odd_count == 0)
		return;
	build->reltuples +=
		table_index_build_range_scan(build->heap, build->index, build->info,
									 false, false, false, scan->odd, scan->odd_count,
									 add_row, build, NULL);
	/*
	 * PostgreSQL has counted a scan of its own, but all of this is one scan.
	 */
	compat_uncount_scan(build->heap);
	scan->odd_count = 0;
}

/*
 * Adds the rows of one block, or leaves the block to PostgreSQL. The lock is
 * released before the core is called, because the core may take long.
 */
static void
scan_block(SluiceIndexScan *scan, BlockNumber block)
{
	Buffer		buffer;
	bool		ordinary;

	buffer = ReadBufferExtended(scan->build->heap, MAIN_FORKNUM, block, RBM_NORMAL,
								scan->strategy);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	ordinary = copy_page(scan, block, buffer);
	UnlockReleaseBuffer(buffer);
	if (ordinary)
	{
		scan_odd_blocks(scan);
		add_page(scan, block);
	}
	else if (scan->build->old)
		scan->build->unfit = "the COPY's rows are not as it put them there";
	else if (scan->odd_count++ == 0)
		scan->odd = block;
}

/*
 * Frees the source. It is in the core's memory, and is freed with the memory
 * context in which it was made.
 */
static void
free_source(void *source)
{
	pgsluice_index_source_free(source);
}

/*
 * Describes to the core where the index's values are in the table's rows. Sets
 * *natts to the number of attributes that a row must have. The source is freed
 * with the current memory context.
 */
static SluiceIndexSource *
open_source(Relation heap, IndexInfo *info, int *natts)
{
	TupleDesc	desc = RelationGetDescr(heap);
	SluiceIndexColumn *columns;
	SluiceIndexSource *source;
	MemoryContextCallback *callback = palloc0(sizeof(MemoryContextCallback));

	*natts = 0;
	for (int i = 0; i < info->ii_NumIndexAttrs; i++)
		*natts = Max(*natts, info->ii_IndexAttrNumbers[i]);
	columns = palloc(sizeof(SluiceIndexColumn) * *natts);
	for (int i = 0; i < *natts; i++)
	{
		columns[i].len = TupleDescAttr(desc, i)->attlen;
		columns[i].align = sluice_align_bytes(TupleDescAttr(desc, i)->attalign);
		columns[i].attribute = -1;
	}
	for (int i = 0; i < info->ii_NumIndexAttrs; i++)
		columns[info->ii_IndexAttrNumbers[i] - 1].attribute = i;
	source = pgsluice_index_source_new(columns, *natts);
	if (source == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while preparing to read table \"%s\".",
						   RelationGetRelationName(heap))));
	callback->func = free_source;
	callback->arg = source;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
	return source;
}

/* Begins to read the table page by page. */
SluiceIndexScan *
sluice_index_scan_open(SluiceIndexBuild *build)
{
	SluiceIndexScan *scan = palloc0(sizeof(SluiceIndexScan));

	scan->build = build;
	scan->oldest_xmin = GetOldestNonRemovableTransactionId(build->heap);
	scan->source = open_source(build->heap, build->info, &scan->natts);

	/*
	 * Like a sequential scan, do not let a table that is large for the buffer
	 * cache replace its contents.
	 */
	if (!RelationUsesLocalBuffers(build->heap) &&
		RelationGetNumberOfBlocks(build->heap) > NBuffers / 4)
		scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	pgstat_count_heap_scan(build->heap);
	return scan;
}

/* Adds the rows of the blocks from `block` up to, but not including, `end`. */
void
sluice_index_scan_range(SluiceIndexScan *scan, BlockNumber block, BlockNumber end)
{
	pg_atomic_uint32 *all_done = scan->build->blocks_done;

	for (; block < end && !scan->build->unfit; block++)
	{
		CHECK_FOR_INTERRUPTS();
		scan_block(scan, block);
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, all_done ?
									 pg_atomic_add_fetch_u32(all_done, 1) : block + 1);
	}
	if (!scan->build->unfit)
		scan_odd_blocks(scan);
}

/* The source is freed with its memory context. */
void
sluice_index_scan_close(SluiceIndexScan *scan)
{
	if (scan->strategy)
		FreeAccessStrategy(scan->strategy);
	pfree(scan);
}

/*
 * Reads the table page by page, or the part of it that the old file does not
 * have. If the build may have workers, they help.
 */
void
sluice_index_scan_pages(SluiceIndexBuild *build)
{
	SluiceIndexScan *scan = sluice_index_scan_open(build);
	BlockNumber blocks = RelationGetNumberOfBlocks(build->heap);
	BlockNumber first = build->old ? ItemPointerGetBlockNumber(&build->old->first) : 0;

	pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_TOTAL, blocks);
	if (build->workers > 0)
		first = sluice_parallel_build_scan(build, scan, blocks);
	sluice_index_scan_range(scan, first, blocks);
	sluice_index_scan_close(scan);
}
