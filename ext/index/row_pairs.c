/*
 * Waiting index entries of a COPY whose keys are numbers of 32 bits, and the
 * TIDs of their rows (gin_merge.c, gin_keys.c, hash_merge.c).
 *
 * A pair is the key (upper 32 bits) and the number of its row (lower 32 bits).
 * These eight bytes are a third of what an entry with its TID would take after
 * alignment. The TID, which all entries of a row share, is stored once. 32
 * bits are enough for the number of a row: the TIDs of 2^32 rows would take 24
 * GB, and waiting entries are inserted before that (MOST_MEMORY of gin_merge.c
 * and hash_merge.c).
 *
 * THE INVARIANT.  Pairs are added in ascending order of row numbers. The sort
 * is stable and looks at the key alone, so the rows of equal keys stay in the
 * order of their numbers. If `ascending` is set, that is the order of the
 * table, as posting lists need it.
 *
 * MEMORY.  The sort needs as much memory again as the pairs, which
 * sluice_row_pairs_bytes() counts from the beginning. It cannot be cancelled,
 * but makes four passes at most.
 */
#include "index/build.h"

#include "utils/memutils.h"

/* Returns the new size of a list that is full. */
static Size
more(Size allocated)
{
	return allocated == 0 ? 512 : allocated * 2;
}

/*
 * Notes the TID of a row; returns the row's number. TIDs ascend unless rows
 * went into free space within the table. A caller that needs them in order
 * must sort them then.
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
 * that is the same in all keys costs no pass: trigrams and small integers
 * differ in two or three bytes.
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
	/*
	 * After an odd number of passes this array is the list; it has no free
	 * room.
	 */
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
