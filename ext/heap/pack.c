/*
 * Packs tuples that C has formed into pages: rows with values that the
 * server's functions have computed. Pages are filled as the core fills them
 * (crates/core/src/sink/heap/pages.rs), for the routes append and fresh.
 *
 * Rows are added in their order: all rows of a slice, or the first ones. The
 * slice is not changed until the pages are taken, so a packing that fails in
 * between changes nothing.
 */
#include "heap/heap.h"

#include "access/htup_details.h"
#include "storage/bufpage.h"

/*
 * Creates a packer of up to so many bytes of pages and so many rows, in the current
 * memory context.
 */
SluicePacker *
sluice_packer_make(Size bytes, size_t rows)
{
	SluicePacker *packer = palloc0(sizeof(SluicePacker));

	packer->pages = (char *) TYPEALIGN(COMPAT_IO_ALIGN, palloc(bytes + COMPAT_IO_ALIGN));
	packer->bytes = bytes;
	packer->rows = palloc(sizeof(SluiceRow) * rows);
	return packer;
}

/*
 * Adds the slice's next row, as the given tuple. False: the row cannot go into
 * a page, because the leader reads some of it, it is too long or it has a
 * value out of line; or there is no room.
 */
bool
sluice_packer_add(SluicePacker *packer, const SluiceSlice *slice, HeapTupleHeader tuple, uint32 len)
{
	SluiceRow  *row = &packer->rows[packer->used];
	Page		page = (Page) (packer->pages + (packer->npages - 1) * BLCKSZ);
	OffsetNumber place;

	*row = slice->rows[packer->used];
	if (row->asks > 0 || len > slice->page_longest || (tuple->t_infomask & HEAP_HASEXTERNAL))
		return false;
	/* The rule of heap_multi_insert(). */
	if (packer->npages == 0 ||
		PageGetHeapFreeSpace(page) < MAXALIGN(len) + slice->page_reserve)
	{
		if ((packer->npages + 1) * BLCKSZ > packer->bytes)
			return false;
		page = (Page) (packer->pages + packer->npages++ * BLCKSZ);
		PageInit(page, BLCKSZ, 0);
		packer->open_from = packer->used;
	}
	place = PageAddItem(page, (char *) tuple, len, InvalidOffsetNumber, false, true);
	if (place == InvalidOffsetNumber)
		return false;
	row->offset = (uint32) ((char *) page - packer->pages) + ItemIdGetOffset(PageGetItemId(page, place));
	row->len = len;
	packer->begun = true;
	packer->used++;
	return true;
}

/* Adds the slice's rows before `end`, as they are in its arena. */
bool
sluice_packer_add_until(SluicePacker *packer, const SluiceSlice *slice, size_t end)
{
	while (packer->used < end)
	{
		const SluiceRow *row = &slice->rows[packer->used];

		if (!sluice_packer_add(packer, slice, (HeapTupleHeader) (slice->arena + row->offset), row->len))
			return false;
	}
	return true;
}

/*
 * Moves all rows of the slice from the packer to the slice's arena. The last
 * page is not full. As in the core, it does not count as one of the slice's
 * pages, and its rows take the insert route.
 */
void
sluice_packer_take(const SluicePacker *packer, SluiceSlice *slice)
{
	Assert(packer->used == slice->rows_used && packer->npages > 0);
	memcpy(slice->arena, packer->pages, packer->npages * BLCKSZ);
	memcpy(slice->rows, packer->rows, packer->used * sizeof(SluiceRow));
	slice->arena_used = packer->npages * BLCKSZ;
	slice->pages = packer->npages - 1;
	slice->paged = packer->open_from;
}

/*
 * The first rows of a slice are in the packer. Reduces the slice to these
 * rows, in the packer's memory, with all of their pages.
 */
void
sluice_packer_become(SluicePacker *packer, SluiceSlice *slice)
{
	if (packer->used < slice->rows_used)
		slice->consumed = slice->rows[packer->used].record;
	slice->arena = (uint8_t *) packer->pages;
	slice->rows = packer->rows;
	slice->rows_used = slice->paged = packer->used;
	slice->pages = packer->npages;
}
