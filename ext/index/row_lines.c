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
 */
#include "index/build.h"

#include "storage/bufmgr.h"
#include "utils/memutils.h"

/* Remembers which lines the rows came from. */
void
sluice_index_note_rows(IndexWriter *load, const PlacedRow *placed, int count)
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
	/* sluice_index_line_of() searches the batches by bisection. */
	Assert(load->used == 0 ||
		   ItemPointerCompare(&load->batches[load->used - 1].last, (ItemPointer) &placed[0].tid) < 0);
	rows = &load->batches[load->used++];
	rows->first = placed[0].tid;
	rows->last = placed[count - 1].tid;
	rows->count = count;
	rows->line = placed[0].line;
	rows->further = NULL;
	for (int i = 1; i < count && follow; i++)
		follow = placed[i].line == placed[0].line + i;
	if (follow)
		return;
	rows->further = MemoryContextAlloc(load->context, count * sizeof(uint32));
	for (int i = 0; i < count; i++)
		rows->further[i] = (uint32) (placed[i].line - placed[0].line);
}

/*
 * Returns how many line pointers the block has before the offset, or in all if
 * there is no offset.
 */
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

/* Returns the position of a row within the batch, from 0. */
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
 * Returns the line that the row came from. 0: the line is unknown, because the
 * row is in no batch, or because something that the COPY ran has put other
 * rows between those of the batch.
 */
uint64
sluice_index_line_of(IndexWriter *load, ItemPointer tid)
{
	Relation	rel = load->rri->ri_RelationDesc;

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
	if (low == load->used || ItemPointerCompare(tid, &rows->first) < 0 ||
		index_in_batch(rel, rows, &rows->last) != rows->count - 1)
		return 0;
	low = index_in_batch(rel, rows, tid);
	return rows->line + (rows->further ? rows->further[low] : low);
}
