/*
 * The keys of many rows that are no numbers: texts, parts of documents,
 * lexemes. Most rows share most of them, so each is kept once, and a row's entry
 * is the key's number and the row's.
 *
 * Keys are the same here if their bytes are. Keys that are equal for the
 * index but have different bytes (1.0 and 1.00) meet when the keys are sorted, and
 * become one with the rows of both.
 *
 * The order is that of GIN (ginCompareAttEntries). Where the operator class
 * compares bytes, the first eight of them decide most comparisons without a
 * call.
 */
#include "index/gin.h"

#include "common/hashfn.h"
#include "port/pg_bswap.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

/* Bytes that are got for keys at once. */
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
	for (int i = 0; i < state->origTupdesc->natts; i++)
		set->bytewise[i] = state->compareFn[i].fn_oid == F_GIN_COMPARE_JSONB ||
			state->compareFn[i].fn_oid == F_GIN_CMP_TSLEXEME;
}

/* Twice as many slots. */
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

/* A copy of a key's bytes. */
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

/* The first bytes of a key as a number in the same order. */
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
	added->last_row = PG_UINT32_MAX;
	added->attnum = attnum;
	added->category = category;
	if (size > 0 && set->bytewise[attnum - 1])
		added->prefix = prefix_of(added->key);
	set->slots[slot] = set->count;
	if (set->count > set->mask / 2)
		grow(set);
}

/* Whether a key of the set has these bytes. */
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

	hash += attnum;
	slot = hash & set->mask;
	for (;; slot = (slot + 1) & set->mask)
	{
		uint32		number = set->slots[slot];

		if (number == 0)
		{
			add_key(set, slot, hash, attnum, category, key, size);
			have = &set->keys[set->count - 1];
			break;
		}
		have = &set->keys[number - 1];
		if (have->hash == hash && has_bytes(have, attnum, category, key, size))
			break;
	}
	if (have->last_row == row)
		return;
	have->last_row = row;
	have->count++;
	sluice_row_pairs_add(&set->pairs, (uint32) (have - set->keys), row);
}

/* The order of two keys in the index. */
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

/* Puts the keys in order, and each one's rows together. */
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
	for (Size i = 0; i < set->pairs.count; i++)
	{
		uint64		pair = set->pairs.pairs[i];

		set->rows[starts[pair >> 32]++] = (uint32) pair;
	}
	pfree(starts);
	if (set->pairs.pairs)
		pfree(set->pairs.pairs);
	set->pairs.pairs = NULL;
}

/* qsort() for rows that did not come in the order of the table. */
static int
compare_items(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) unconstify(void *, a), (ItemPointer) unconstify(void *, b));
}

/* Puts a key's rows in order, each of them once. */
void
sluice_gin_items_sort(GinKey *key)
{
	uint32		count = 1;

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
	while (set->next < set->count && compare_places(&set->order[first], &set->order[set->next], set) == 0);
	key->items = MemoryContextAllocHuge(context, sizeof(ItemPointerData) * key->count);
	for (uint32 i = 0; i < key->count; i++)
		key->items[i] = places->tids[set->rows[set->next_row++]];
	if (!places->ascending || set->next > first + 1)
		sluice_gin_items_sort(key);
	return true;
}
