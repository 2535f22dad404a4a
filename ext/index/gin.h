/*
 * What gin_merge.c and gin_keys.c share. No other file includes it.
 */
#ifndef PGSLUICE_INDEX_GIN_H
#define PGSLUICE_INDEX_GIN_H

#include "index/build.h"

#include "compat/gin_hash.h"

/* A key, and the rows that have it in their order. */
typedef struct GinKey
{
	OffsetNumber attnum;
	GinNullCategory category;
	Datum		key;
	ItemPointerData *items;
	uint32		count;
} GinKey;

/* A key of the set. */
typedef struct GinSetKey
{
	Datum		key;
	uint64		prefix;			/* in the order of the keys; 0: nothing is said */
	Size		size;			/* of its bytes; 0: it is passed by value */
	uint32		hash;
	uint32		last_row;
	uint32		count;			/* of its rows */
	OffsetNumber attnum;
	GinNullCategory category;
} GinSetKey;

/* Where a key of the set is in the order of the index. */
typedef struct GinSetPlace
{
	uint64		prefix;
	uint32		number;			/* of the key */
	OffsetNumber attnum;
	GinNullCategory category;
} GinSetPlace;

/* Different keys, numbered as they come, and which rows have them. */
typedef struct GinKeySet
{
	GinState   *state;
	MemoryContext context;
	bool		bytewise[INDEX_MAX_KEYS];	/* the column's keys are ordered by their bytes */
	GinSetKey  *keys;
	uint32		count;
	uint32		allocated;
	uint32	   *slots;			/* numbers of keys and one, by their hash value */
	uint32		mask;
	char	   *room;			/* for the next keys */
	Size		left;
	Size		stored;			/* bytes that were got for keys */
	RowPairs	pairs;			/* of keys' numbers */
	GinSetPlace *order;			/* once sorted */
	uint32	   *rows;			/* of each key, in this order */
	uint32		next;			/* to be given */
	Size		next_row;
} GinKeySet;

/* The bytes that it has, and will have when it is sorted. */
static inline Size
sluice_gin_keys_bytes(const GinKeySet *set)
{
	return set->stored + sizeof(GinSetKey) * set->allocated + sizeof(uint32) * ((Size) set->mask + 1) +
		sizeof(GinSetPlace) * set->count + sluice_row_pairs_bytes(&set->pairs);
}

extern void sluice_gin_keys_begin(GinKeySet *set, GinState *state, MemoryContext context);
extern void sluice_gin_keys_add(GinKeySet *set, OffsetNumber attnum, GinNullCategory category, Datum key,
								Size size, uint32 row);
extern void sluice_gin_keys_sort(GinKeySet *set);
extern bool sluice_gin_keys_next(GinKeySet *set, const RowPlaces *places, MemoryContext context, GinKey *key);
extern void sluice_gin_items_sort(GinKey *key);

#endif							/* PGSLUICE_INDEX_GIN_H */
