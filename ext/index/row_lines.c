/*
 * Finds the line from which a row of a COPY came, for problems that are
 * detected only after all rows are in the table: a duplicate key, or a row
 * that is left out as a duplicate. Rows that were inserted together follow one
 * another in the table, in the order of the input.
 *
 * Not the line of each row is stored, but ranges: the first and the last TID,
 * the number of rows, and the first line. The line of a row is found by
 * counting the rows between the range's first TID and the row. That works only
 * if no one else has put rows between them. A function that the COPY called
 * may have done so. Then the number of rows in the range does not match, and
 * the line is reported as unknown rather than wrong.
 *
 * If the lines of a batch are not consecutive (records of several lines, or
 * WHERE), it takes four bytes for each row. A COPY may have any number of
 * rows, so that memory has a limit: the lines of later batches of this kind
 * are unknown.
 */
#include "index/build.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

/* Stores the line of each row, or that the lines are unknown. */
static void
store_lines(IndexWriter *load, InsertedRows *rows, const PlacedRow *placed, int count)
{
	Size		bytes = count * sizeof(uint32);
	Size		limit = (Size) maintenance_work_mem * 1024 / 4;

	if (load->line_bytes + bytes > limit ||
		placed[count - 1].line - placed[0].line > PG_UINT32_MAX)
	{
		rows->line = 0;
		return;
	}
	load->line_bytes += bytes;
	rows->further = MemoryContextAlloc(load->context, bytes);
	for (int i = 0; i < count; i++)
		rows->further[i] = (uint32) (placed[i].line - placed[0].line);
}

/* Blocks of a range. All of them may be read to find the line of one row. */
#define RANGE_BLOCKS 64

/*
 * Whether the rows continue the last range: their lines follow, and no place
 * is left between the two. Rows that get other entries as soon as they are in
 * the table come one block at a time, and a range for each block would take as
 * much memory as the table has blocks. The first rows without an entry in some
 * index begin a new range.
 */
static bool
continue_range(const IndexWriter *load, const PlacedRow *placed)
{
	const InsertedRows *last = &load->batches[load->used - 1];
	BlockNumber block = ItemPointerGetBlockNumber(&placed[0].tid);
	BlockNumber end = ItemPointerGetBlockNumber(&last->last);
	OffsetNumber offset = ItemPointerGetOffsetNumber(&placed[0].tid);

	return load->used > load->apart &&
		last->line > 0 && last->further == NULL &&
		placed[0].line == last->line + last->count &&
		(block == end ? offset == ItemPointerGetOffsetNumber(&last->last) + 1 :
		 block == end + 1 && offset == FirstOffsetNumber) &&
		block - ItemPointerGetBlockNumber(&last->first) < RANGE_BLOCKS;
}

/* Adds a range. */
static InsertedRows *
add_range(IndexWriter *load)
{
	if (load->used == load->allocated)
	{
		load->allocated = Max(1024, load->allocated * 2);
		load->batches = load->batches == NULL ?
			MemoryContextAllocHuge(load->context, load->allocated * sizeof(InsertedRows)) :
			repalloc_huge(load->batches, load->allocated * sizeof(InsertedRows));
	}
	return &load->batches[load->used++];
}

/* Remembers which lines the rows came from. */
void
sluice_index_note_rows(IndexWriter *load, const PlacedRow *placed, int count)
{
	InsertedRows *rows;
	bool		follow = true;

	/* sluice_index_line_of() searches the ranges by bisection. */
	Assert(load->used == 0 ||
		   ItemPointerCompare(&load->batches[load->used - 1].last, (ItemPointer) &placed[0].tid) < 0);
	for (int i = 1; i < count && follow; i++)
		follow = placed[i].line == placed[0].line + i;
	load->counted.rows = NULL;
	if (follow && load->used > 0 && continue_range(load, placed))
	{
		rows = &load->batches[load->used - 1];
		rows->last = placed[count - 1].tid;
		rows->count += count;
		return;
	}
	rows = add_range(load);
	rows->first = placed[0].tid;
	rows->last = placed[count - 1].tid;
	rows->count = count;
	rows->line = placed[0].line;
	rows->further = NULL;
	if (!follow)
		store_lines(load, rows, placed, count);
}

/* Returns how many line pointers the block has. */
static int
rows_in_block(Relation rel, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(rel, block);
	OffsetNumber last;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	last = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return last;
}

/*
 * Returns the position of a row within the batch, from 0. Lost rows are
 * searched in table order, so the blocks before the last one that was searched
 * are not counted again.
 */
static int
index_in_batch(IndexWriter *load, const InsertedRows *rows, const ItemPointerData *tid)
{
	CountedRows *counted = &load->counted;

	if (counted->rows != rows || ItemPointerGetBlockNumber(tid) < counted->block)
	{
		counted->rows = rows;
		counted->block = ItemPointerGetBlockNumber(&rows->first);
		counted->before = FirstOffsetNumber - ItemPointerGetOffsetNumber(&rows->first);
	}
	for (; counted->block < ItemPointerGetBlockNumber(tid); counted->block++)
		counted->before += rows_in_block(load->rri->ri_RelationDesc, counted->block);
	return counted->before + ItemPointerGetOffsetNumber(tid) - FirstOffsetNumber;
}

/* Whether the table has the rows of the batch and no others between them. */
static bool
is_whole(IndexWriter *load, const InsertedRows *rows)
{
	if (load->counted.rows != rows)
		load->counted.whole = index_in_batch(load, rows, &rows->last) == rows->count - 1;
	return load->counted.whole;
}

/*
 * Returns the line that the row came from, when all rows are in. 0: the line
 * is unknown, because the row is in no batch, because something that the COPY
 * ran has put other rows between those of the batch, or because the memory for
 * lines was full.
 */
uint64
sluice_index_line_of(IndexWriter *load, ItemPointer tid)
{
	int			low = 0;
	int			high = load->used;
	InsertedRows *rows;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (ItemPointerCompare(tid, &load->batches[middle].last) > 0)
			low = middle + 1;
		else
			high = middle;
	}
	rows = &load->batches[low];
	if (low == load->used || ItemPointerCompare(tid, &rows->first) < 0 || !is_whole(load, rows))
		return 0;
	return sluice_index_line_in(rows, index_in_batch(load, rows, tid));
}
