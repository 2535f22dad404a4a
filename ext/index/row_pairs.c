/*
 * Entries that have a key of 32 bits, and the places of their rows: what waits
 * of a COPY for the indexes whose entries are numbers (gin_merge.c,
 * hash_merge.c).
 *
 * A pair is the key and the number of its row in 64 bits. Rows come in rising
 * numbers, and the sort is stable, so equal keys have their rows in order.
 *
 * MEMORY.  The sort needs the pairs' room again, which sluice_row_pairs_bytes()
 * counts from the beginning.
 */
#include "index/build.h"

#include "utils/memutils.h"

/* The room of a list that has as many as it has room for. */
static Size
more(Size allocated)
{
	return allocated == 0 ? 512 : allocated * 2;
}

/* Notes where a row is; gives its number. */
uint32
sluice_row_places_add(RowPlaces *places, const ItemPointerData *tid)
{
	if (places->count == places->allocated)
	{
		Size		bytes;

		places->allocated = more(places->allocated);
		bytes = sizeof(ItemPointerData) * places->allocated;
		places->tids = places->tids ? repalloc_huge(places->tids, bytes) :
			MemoryContextAllocHuge(places->context, bytes);
	}
	if (places->count == 0)
		places->ascending = true;
	else if (places->ascending)
		places->ascending = ItemPointerCompare(&places->tids[places->count - 1], unconstify(ItemPointerData *, tid)) < 0;
	places->tids[places->count] = *tid;
	return (uint32) places->count++;
}

/* Adds an entry of a row. */
void
sluice_row_pairs_add(RowPairs *pairs, uint32 key, uint32 row)
{
	if (pairs->count == pairs->allocated)
	{
		Size		bytes;

		pairs->allocated = more(pairs->allocated);
		bytes = sizeof(uint64) * pairs->allocated;
		pairs->pairs = pairs->pairs ? repalloc_huge(pairs->pairs, bytes) :
			MemoryContextAllocHuge(pairs->context, bytes);
	}
	pairs->pairs[pairs->count++] = (uint64) key << 32 | row;
}

/* Sorts by the key, one byte after the other; bytes that all keys share cost nothing. */
void
sluice_row_pairs_sort(RowPairs *pairs)
{
	Size		starts[4][256] = {0};
	uint64	   *from = pairs->pairs;
	uint64	   *to;

	if (pairs->count < 2)
		return;
	to = MemoryContextAllocHuge(pairs->context, sizeof(uint64) * pairs->count);
	pairs->allocated = pairs->count;
	for (Size i = 0; i < pairs->count; i++)
	{
		for (int digit = 0; digit < 4; digit++)
			starts[digit][(from[i] >> (32 + 8 * digit)) & 0xff]++;
	}
	for (int digit = 0; digit < 4; digit++)
	{
		int			shift = 32 + 8 * digit;
		Size		start = 0;
		uint64	   *sorted = to;

		if (starts[digit][(from[0] >> shift) & 0xff] == pairs->count)
			continue;
		for (int value = 0; value < 256; value++)
		{
			Size		count = starts[digit][value];

			starts[digit][value] = start;
			start += count;
		}
		for (Size i = 0; i < pairs->count; i++)
			sorted[starts[digit][(from[i] >> shift) & 0xff]++] = from[i];
		to = from;
		from = sorted;
	}
	pairs->pairs = from;
	pfree(to);
}
