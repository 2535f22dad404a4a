/*
 * Rows whose values a worker has read go into whole pages, as those that the
 * core forms alone (crates/core/src/sink/heap/pages.rs).
 */
#include "workers/workers.h"

#include "access/htup_details.h"
#include "storage/bufpage.h"

/* Pages and places for any chunk's rows; they are the worker's own until all are known to fit. */
struct SluicePacker
{
	char	   *pages;
	uint32	   *places;
};

SluicePacker *
sluice_make_packer(void)
{
	SluicePacker *packer = palloc(sizeof(SluicePacker));

	packer->pages = (char *) TYPEALIGN(COMPAT_IO_ALIGN, palloc(CHUNK_ARENA + COMPAT_IO_ALIGN));
	packer->places = palloc(sizeof(uint32) * CHUNK_ROWS);
	return packer;
}

/* Whether a page may hold the row: the leader reads nothing of it, and no value goes out of line. */
static bool
goes_into_page(const SluiceSlice *slice, const SluiceRow *row)
{
	HeapTupleHeader tuple = (HeapTupleHeader) (slice->arena + row->offset);

	return row->asks == 0 && row->len <= slice->page_longest &&
		(tuple->t_infomask & HEAP_HASEXTERNAL) == 0;
}

/* Whether a further tuple goes onto the page, as heap_multi_insert() decides. */
static bool
page_has_room(Page page, const SluiceSlice *slice, const SluiceRow *row)
{
	return PageGetHeapFreeSpace(page) >= MAXALIGN(row->len) + slice->page_reserve;
}

/* The last row's page is not full: it counts as the core counts, and its rows go where few rows go. */
static void
take_pages(SluicePacker *packer, SluiceSlice *slice, size_t pages, size_t open_from)
{
	memcpy(slice->arena, packer->pages, pages * BLCKSZ);
	for (size_t i = 0; i < slice->rows_used; i++)
		slice->rows[i].offset = packer->places[i];
	slice->arena_used = pages * BLCKSZ;
	slice->pages = pages - 1;
	slice->paged = open_from;
}

/* Packs all rows of a slice, in their order, or leaves them as they are. */
void
sluice_pack_rows(SluicePacker *packer, SluiceSlice *slice)
{
	size_t		pages = 0,
				open_from = 0;
	Page		page = NULL;

	for (size_t i = 0; i < slice->rows_used; i++)
	{
		SluiceRow  *row = &slice->rows[i];
		OffsetNumber place;

		if (!goes_into_page(slice, row))
			return;
		if (page == NULL || !page_has_room(page, slice, row))
		{
			if ((pages + 1) * BLCKSZ > CHUNK_ARENA)
				return;
			page = (Page) (packer->pages + pages++ * BLCKSZ);
			PageInit(page, BLCKSZ, 0);
			open_from = i;
		}
		place = PageAddItem(page, (char *) slice->arena + row->offset, row->len,
							InvalidOffsetNumber, false, true);
		if (place == InvalidOffsetNumber)
			return;
		packer->places[i] = (uint32) ((char *) page - packer->pages) +
			ItemIdGetOffset(PageGetItemId(page, place));
	}
	if (pages > 0)
		take_pages(packer, slice, pages, open_from);
}
