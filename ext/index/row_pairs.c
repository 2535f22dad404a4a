/*
 * Index entries of a COPY that wait, where a key is a number of 32 bits, and the
 * places of their rows (gin_merge.c, gin_keys.c, hash_merge.c).
 *
 * A pair is the key (upper 32 bits) and the number of its row (lower 32 bits).
 * Eight bytes for each entry are a third of what an entry with its place would
 * take after alignment, and the place, which all entries of a row share, is kept
 * once. 32 bits are enough for the number of a row: the places of so many rows
 * take 24 GB, and what waits is inserted before that (MOST_MEMORY of gin_merge.c
 * and hash_merge.c).
 *
 * THE INVARIANT.  Pairs are added in rising numbers of rows. The sort is stable
 * and looks at the key alone, so that equal keys have their rows in the order of
 * their numbers. If `ascending` is set, that is the order of the table, as posting
 * lists need it.
 *
 * MEMORY.  The sort needs the pairs' room again, which sluice_row_pairs_bytes()
 * counts from the beginning. It cannot be cancelled: four passes at most.
 */
#include "index/build.h"

#include "utils/memutils.h"

/* The room of a list that has as many as it has room for. */
static Size
more(Size allocated)
{
	return allocated == 0 ? 512 : allocated * 2;
}

/*
 * Notes where a row is; gives its number. Places ascend unless rows went into
 * room that was free in the table; a caller that needs them in order has to sort
 * them then.
 */
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
	Assert(places->count < PG_UINT32_MAX);
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

/*
 * Sorts by the key, from its lowest byte to its highest (a radix sort). A byte
 * that all keys share costs no pass: keys of one trigram or small integers differ
 * in two or three.
 */
void
sluice_row_pairs_sort(RowPairs *pairs)
{
	Size		starts[4][256] = {0};
	uint64	   *from = pairs->pairs;
	uint64	   *to;

	if (pairs->count < 2)
		return;
	to = MemoryContextAllocHuge(pairs->context, sizeof(uint64) * pairs->count);
	/* After an odd number of passes this is the list, and has room for no more. */
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
#ifdef USE_ASSERT_CHECKING
	for (Size i = 1; i < pairs->count; i++)
		Assert(from[i - 1] <= from[i]);
#endif
}
