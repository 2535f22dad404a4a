/*
 * The GIN entries of many rows whose keys are not integers: texts, parts of
 * documents, lexemes. They wait here until gin_merge.c inserts them. Most rows
 * share most keys, so each key is kept once. An entry is a pair: the number of
 * its key and the number of its row.
 *
 * All of this is memory of one backend. No page is read or changed here, so no
 * lock is held, and a crash or an error loses nothing but work: the rows are
 * those of a transaction that does not commit.
 *
 * THREE STEPS, always in this order:
 *   1. sluice_gin_keys_add() collects the entries of the rows, in the order in
 *      which the rows were inserted;
 *   2. sluice_gin_keys_sort() sorts the keys, and groups the rows of each;
 *   3. sluice_gin_keys_next() gives one key after the other with its rows.
 * Nothing is added after step 2. The caller throws the set away after step 3
 * and begins an empty one, by resetting the memory context.
 *
 * WHEN TWO KEYS ARE ONE.  While keys are collected, they are the same if their
 * bytes are the same. That is stricter than the index: numerics may be equal
 * and differ in their bytes (1.0 and 1.00), and so may texts, by the length of
 * their headers. Such keys are neighbours after the sort, and step 3 makes one
 * key of them, with the rows of all. It must: GIN expects that no two tuples of
 * its tree have equal keys. Which of the different bytes becomes the key does
 * not matter. In stock COPY it depends on the order of the rows.
 *
 * THE ORDER is that of GIN (ginCompareAttEntries): column, category, then the
 * operator class's comparison. Where that compares bytes, the first eight bytes
 * decide most comparisons without a call.
 *
 * WHAT CAN FAIL.  Memory, and the comparison. strategy.c allows only comparisons
 * by the server's own functions (sluice_gin_compares), so a comparison does not
 * fail because of a key, and no user's code is called here.
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
 * Keys are stored one after the other in blocks of this size, since most have a
 * few bytes, and palloc() would add a header to each.
 */
#define BLOCK ((Size) 32 * 1024)

/* An empty set in a context. */
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
	 * Both functions compare as memcmp() does, then by length: the former is
	 * jsonb_ops', which compares under collation C whatever the database has, the
	 * latter tsvector_ops'. Others get no prefix. That costs time and nothing
	 * else.
	 */
	for (int i = 0; i < state->origTupdesc->natts; i++)
		set->bytewise[i] = state->compareFn[i].fn_oid == F_GIN_COMPARE_JSONB ||
			state->compareFn[i].fn_oid == F_GIN_CMP_TSLEXEME;
}

/*
 * Doubles the number of slots. A slot has the number of a key plus one, not a
 * pointer: `keys` moves when it grows.
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
 * Copies a key's bytes; the extraction's memory is reset after each row. The
 * copy is aligned, because the operator class reads it in place. What is left of
 * the block before is lost: less than this key, or BLOCK bytes.
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
 * The first eight bytes of a key, as a number that is in the same order. A
 * shorter key is filled up with zeros. If two numbers differ, so does the order of
 * the keys; if they are equal, nothing is known ("a" and "a\0"), and the function
 * decides.
 */
static uint64
prefix_of(Datum key)
{
	uint64		prefix = 0;

	memcpy(&prefix, VARDATA_ANY(DatumGetPointer(key)), Min(sizeof(prefix), VARSIZE_ANY_EXHDR(DatumGetPointer(key))));
	return pg_ntoh64(prefix);
}

/* Adds a key that is not there; size 0: it is passed by value. */
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
	/* No row has this number: so many places would not fit into the memory. */
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
 * Whether a key of the set has these bytes. Keys of different columns and
 * categories differ whatever their bytes are. A NULL, an empty value and a NULL
 * within a value have no key: only the category distinguishes them.
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
 * Adds an entry of a row; one that the row has already is dropped. The key has
 * so many bytes, 0 if it is passed by value.
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
			/* Only now: the keys may have moved. */
			have = &set->keys[set->count - 1];
			break;
		}
		have = &set->keys[number - 1];
		if (have->hash == hash && has_bytes(have, attnum, category, key, size))
			break;
	}
	/*
	 * Rows come in rising numbers, so it is enough to look at the last one. GIN
	 * drops equal entries of a row, too (ginExtractEntries).
	 */
	Assert(have->last_row == PG_UINT32_MAX || have->last_row <= row);
	if (have->last_row == row)
		return;
	have->last_row = row;
	have->count++;
	sluice_row_pairs_add(&set->pairs, (uint32) (have - set->keys), row);
}

/*
 * The order of two keys in the index. Prefixes are compared only within a column
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
 * Puts the keys in order, and each one's rows together. The pairs are not sorted:
 * it is known how many rows each key has, so each pair goes straight to its place
 * in `rows`. Pairs are in the order of the rows, so the rows of a key stay in it.
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
	/* Their number stays: step 3 gives as many rows. */
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
 * Puts a key's rows in order, each of them once, as a posting list must have
 * them (ginCompressPostingList relies on it). A row is there twice if it has two
 * keys that are equal and differ in their bytes.
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

/* The next key in the index's order, with its rows in a context; false: there is none. */
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
	/* Keys that are equal for the index become one: see the head of the file. */
	while (set->next < set->count && compare_places(&set->order[first], &set->order[set->next], set) == 0);
	Assert(set->next == set->count || compare_places(&set->order[first], &set->order[set->next], set) < 0);
	Assert(set->next_row + key->count <= set->pairs.count);
	key->items = MemoryContextAllocHuge(context, sizeof(ItemPointerData) * key->count);
	for (uint32 i = 0; i < key->count; i++)
		key->items[i] = places->tids[set->rows[set->next_row++]];
	/* Rising numbers are rising places, unless rows went to room that was free in the table. */
	if (!places->ascending || set->next > first + 1)
		sluice_gin_items_sort(key);
	return true;
}
