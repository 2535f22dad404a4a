/*
 * Collects the GIN entries of many rows whose keys are not integers: texts, parts
 * of documents, lexemes. They wait here until gin_merge.c inserts them. Most rows
 * share most keys, so each key is kept once. An entry is a pair: the number of
 * its key and the number of its row.
 *
 * All of this is memory of one backend. No page is read or changed here, so no
 * lock is held, and a crash or an error loses nothing but work: the rows belong
 * to a transaction that does not commit.
 *
 * THREE STEPS, always in this order:
 *   1. sluice_gin_keys_add() collects the entries of the rows, in the order in
 *      which the rows were inserted;
 *   2. sluice_gin_keys_sort() sorts the keys, and groups the rows of each;
 *   3. sluice_gin_keys_next() returns one key after the other with its rows.
 * Nothing is added after step 2. After step 3, the caller discards the set by
 * resetting the memory context, and begins an empty one.
 *
 * WHEN TWO KEYS ARE ONE.  While keys are collected, they are the same if their
 * bytes are the same. That is stricter than the index: equal numerics may have
 * different bytes (1.0 and 1.00), and so may equal texts, in the length of their
 * headers. Such keys are adjacent after the sort, and step 3 combines them into
 * one key, with the rows of all. This is necessary: GIN expects that no two
 * tuples of its entry tree have equal keys. It does not matter which of the
 * different bytes become the key. In stock COPY, it depends on the order of the
 * rows.
 *
 * THE ORDER is that of GIN (ginCompareAttEntries): column, category, then the
 * operator class's comparison. Where that compares bytes, the first eight bytes
 * decide most comparisons without a call.
 *
 * WHAT CAN FAIL.  Memory allocation, and the comparison. strategy.c allows only
 * comparisons by the server's own functions (sluice_gin_compares). So a
 * comparison does not fail because of a key, and no user's code is called here.
 *
 * MEMORY.  The caller inserts everything when sluice_gin_keys_bytes() has reached
 * its limit. The sort cannot be cancelled; the limit bounds how long it takes.
 */
#include "index/gin.h"

#include "common/hashfn.h"
#include "port/pg_bswap.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

/*
 * Keys are stored one after the other in blocks of this size. Most have only a
 * few bytes, and palloc() would add a header to each.
 */
#define BLOCK ((Size) 32 * 1024)

/* Initializes an empty set in a memory context. */
void
sluice_gin_keys_begin(GinKeySet *set, GinState *state, MemoryContext context)
{
	memset(set, 0, sizeof(*set));
	set->state = state;
	set->context = context;
	set->pairs.context = context;
	set->mask = 1023;
	set->slots = MemoryContextAllocZero(context, sizeof(uint32) * (set->mask + 1));
	/*
	 * Both functions compare as memcmp() does, then by length. The first is that
	 * of jsonb_ops, which compares under collation C whatever the database's
	 * collation is. The second is that of tsvector_ops. Keys of other columns get
	 * no prefix, which costs time and nothing else.
	 */
	for (int i = 0; i < state->origTupdesc->natts; i++)
		set->bytewise[i] = state->compareFn[i].fn_oid == F_GIN_COMPARE_JSONB ||
			state->compareFn[i].fn_oid == F_GIN_CMP_TSLEXEME;
}

/*
 * Doubles the number of hash slots. A slot has the number of a key plus one, not
 * a pointer, because `keys` moves when it grows.
 */
static void
grow(GinKeySet *set)
{
	Size		slots = ((Size) set->mask + 1) * 2;

	pfree(set->slots);
	set->slots = MemoryContextAllocExtended(set->context, sizeof(uint32) * slots, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	set->mask = slots - 1;
	for (uint32 i = 0; i < set->count; i++)
	{
		uint32		slot = set->keys[i].hash & set->mask;

		while (set->slots[slot] != 0)
			slot = (slot + 1) & set->mask;
		set->slots[slot] = i + 1;
	}
}

/*
 * Copies a key's bytes, because the memory of the extraction is reset after each
 * row. The copy is aligned, because the operator class reads it in place. The
 * rest of the previous block is lost: less than this key needs, and at most BLOCK
 * bytes.
 */
static char *
store(GinKeySet *set, const void *bytes, Size size)
{
	Size		taken = MAXALIGN(size);
	char	   *copy;

	if (taken > set->left)
	{
		set->left = Max(taken, BLOCK);
		set->room = MemoryContextAllocHuge(set->context, set->left);
		set->stored += set->left;
	}
	copy = set->room;
	memcpy(copy, bytes, size);
	set->room += taken;
	set->left -= taken;
	return copy;
}

/*
 * The first eight bytes of a key, as a number with the same order. A shorter key
 * is padded with zeros. If two numbers differ, their keys have the same order. If
 * they are equal, the order of the keys is not known ("a" and "a\0"), and the
 * function decides.
 */
static uint64
prefix_of(Datum key)
{
	uint64		prefix = 0;

	memcpy(&prefix, VARDATA_ANY(DatumGetPointer(key)), Min(sizeof(prefix), VARSIZE_ANY_EXHDR(DatumGetPointer(key))));
	return pg_ntoh64(prefix);
}

/* Adds a key that is not in the set. Size 0 means that it is passed by value. */
static void
add_key(GinKeySet *set, uint32 slot, uint32 hash, OffsetNumber attnum, GinNullCategory category, Datum key, Size size)
{
	GinSetKey  *added;

	if (set->count == set->allocated)
	{
		set->allocated = set->allocated == 0 ? 256 : set->allocated * 2;
		set->keys = set->keys ? repalloc_huge(set->keys, sizeof(GinSetKey) * set->allocated) :
			MemoryContextAllocHuge(set->context, sizeof(GinSetKey) * set->allocated);
	}
	added = &set->keys[set->count++];
	memset(added, 0, sizeof(*added));
	added->key = size > 0 ? PointerGetDatum(store(set, DatumGetPointer(key), size)) : key;
	added->size = size;
	added->hash = hash;
	/*
	 * No row has this number: the TIDs of so many rows would not fit into the
	 * memory.
	 */
	added->last_row = PG_UINT32_MAX;
	added->attnum = attnum;
	added->category = category;
	if (size > 0 && set->bytewise[attnum - 1])
		added->prefix = prefix_of(added->key);
	set->slots[slot] = set->count;
	/* Half of the slots stay empty, so that each search ends. */
	if (set->count > set->mask / 2)
		grow(set);
}

/*
 * Whether a key of the set has these bytes. Keys of different columns or
 * categories differ even if their bytes are equal. A NULL, an empty value and a
 * NULL within a value have no key: only the category distinguishes them.
 */
static bool
has_bytes(const GinSetKey *have, OffsetNumber attnum, GinNullCategory category, Datum key, Size size)
{
	if (have->attnum != attnum || have->category != category)
		return false;
	if (size == 0)
		return have->key == key;
	return have->size == size && memcmp(DatumGetPointer(have->key), DatumGetPointer(key), size) == 0;
}

/*
 * Adds an entry of a row, unless the row has it already. The key has `size`
 * bytes, or 0 if it is passed by value.
 */
void
sluice_gin_keys_add(GinKeySet *set, OffsetNumber attnum, GinNullCategory category, Datum key, Size size, uint32 row)
{
	uint32		hash = size > 0 ? hash_bytes((unsigned char *) DatumGetPointer(key), (int) size) :
		murmurhash32((uint32) key ^ (uint32) ((uint64) key >> 32) ^ category);
	uint32		slot;
	GinSetKey  *have;

	Assert(set->order == NULL);
	Assert(attnum >= 1 && attnum <= set->state->origTupdesc->natts);
	Assert(size == 0 || category == GIN_CAT_NORM_KEY);
	Assert(row != PG_UINT32_MAX);
	hash += attnum;
	slot = hash & set->mask;
	for (;; slot = (slot + 1) & set->mask)
	{
		uint32		number = set->slots[slot];

		if (number == 0)
		{
			add_key(set, slot, hash, attnum, category, key, size);
			/* Not before this call: the keys may have moved. */
			have = &set->keys[set->count - 1];
			break;
		}
		have = &set->keys[number - 1];
		if (have->hash == hash && has_bytes(have, attnum, category, key, size))
			break;
	}
	/*
	 * Row numbers only increase, so it is enough to look at the last one. GIN
	 * also drops equal entries of a row (ginExtractEntries).
	 */
	Assert(have->last_row == PG_UINT32_MAX || have->last_row <= row);
	if (have->last_row == row)
		return;
	have->last_row = row;
	have->count++;
	sluice_row_pairs_add(&set->pairs, (uint32) (have - set->keys), row);
}

/*
 * Compares two keys as the index does. Prefixes are compared only within a column
 * and a category, where either all keys have one or none has (then all are 0).
 */
static int
compare_places(const void *a, const void *b, void *arg)
{
	const GinSetPlace *one = a;
	const GinSetPlace *other = b;
	const GinKeySet *set = arg;

	if (one->attnum != other->attnum)
		return one->attnum < other->attnum ? -1 : 1;
	if (one->category != other->category)
		return one->category < other->category ? -1 : 1;
	if (one->prefix != other->prefix)
		return one->prefix < other->prefix ? -1 : 1;
	return ginCompareEntries(set->state, one->attnum, set->keys[one->number].key, one->category,
							 set->keys[other->number].key, other->category);
}

/*
 * Sorts the keys, and groups the rows of each. The pairs are not sorted: the
 * number of rows of each key is known, so each pair goes straight to its place in
 * `rows`. Pairs are in the order of the rows, so the rows of a key are, too.
 */
void
sluice_gin_keys_sort(GinKeySet *set)
{
	Size	   *starts;
	Size		start = 0;

	if (set->count == 0)
		return;
	set->order = MemoryContextAllocHuge(set->context, sizeof(GinSetPlace) * set->count);
	for (uint32 i = 0; i < set->count; i++)
	{
		const GinSetKey *key = &set->keys[i];

		set->order[i] = (GinSetPlace) {key->prefix, i, key->attnum, key->category};
	}
	qsort_arg(set->order, set->count, sizeof(GinSetPlace), compare_places, set);
	set->rows = MemoryContextAllocHuge(set->context, sizeof(uint32) * set->pairs.count);
	starts = MemoryContextAllocHuge(set->context, sizeof(Size) * set->count);
	for (uint32 i = 0; i < set->count; i++)
	{
		uint32		number = set->order[i].number;

		starts[number] = start;
		start += set->keys[number].count;
	}
	Assert(start == set->pairs.count);
	for (Size i = 0; i < set->pairs.count; i++)
	{
		uint64		pair = set->pairs.pairs[i];

		set->rows[starts[pair >> 32]++] = (uint32) pair;
	}
	pfree(starts);
	/* Their number is kept: step 3 returns as many rows. */
	if (set->pairs.pairs)
		pfree(set->pairs.pairs);
	set->pairs.pairs = NULL;
}

/* For qsort(). */
static int
compare_items(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) unconstify(void *, a), (ItemPointer) unconstify(void *, b));
}

/*
 * Sorts a key's rows and drops repeated ones, as a posting list requires
 * (ginCompressPostingList relies on it). A row is there twice if it has two keys
 * that are equal but have different bytes.
 */
void
sluice_gin_items_sort(GinKey *key)
{
	uint32		count = 1;

	Assert(key->count > 0);
	qsort(key->items, key->count, sizeof(ItemPointerData), compare_items);
	for (uint32 i = 1; i < key->count; i++)
	{
		if (!ItemPointerEquals(&key->items[i], &key->items[count - 1]))
			key->items[count++] = key->items[i];
	}
	key->count = count;
}

/*
 * Gets the next key in index order, with its rows in a memory context. Returns
 * false if there is none.
 */
bool
sluice_gin_keys_next(GinKeySet *set, const RowPlaces *places, MemoryContext context, GinKey *key)
{
	uint32		first = set->next;
	const GinSetKey *have;

	if (first == set->count)
		return false;
	have = &set->keys[set->order[first].number];
	key->attnum = have->attnum;
	key->category = have->category;
	key->key = have->key;
	key->count = 0;
	do
		key->count += set->keys[set->order[set->next++].number].count;
	/*
	 * Keys that are equal to the index are combined: see WHEN TWO KEYS ARE ONE.
	 */
	while (set->next < set->count && compare_places(&set->order[first], &set->order[set->next], set) == 0);
	Assert(set->next == set->count || compare_places(&set->order[first], &set->order[set->next], set) < 0);
	Assert(set->next_row + key->count <= set->pairs.count);
	key->items = MemoryContextAllocHuge(context, sizeof(ItemPointerData) * key->count);
	for (uint32 i = 0; i < key->count; i++)
		key->items[i] = places->tids[set->rows[set->next_row++]];
	/*
	 * Increasing row numbers are increasing TIDs, unless rows have reused free
	 * space in the table.
	 */
	if (!places->ascending || set->next > first + 1)
		sluice_gin_items_sort(key);
	return true;
}
