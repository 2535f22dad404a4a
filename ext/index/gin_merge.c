/*
 * Merges the entries of many rows into a GIN index that other sessions can use.
 *
 * Stock COPY puts the entries of each row into the index's pending list, logs
 * that, and moves them into the index in small parts. Here the entries of many
 * rows wait in memory, sorted by their keys. Then each key goes into the index
 * once, with all its rows, and the keys of a leaf go into it together.
 *
 * WHICH ENTRIES.  An entry is extracted when its row is inserted. So a function
 * that fails does so on its row's line, with stock COPY's error. A key that is
 * too large for the index also fails then. Keys that are an int4 and are compared
 * as such (jsonb_path_ops, pg_trgm, int4[]) wait as numbers: see row_pairs.c. All
 * others wait in gin_keys.c. strategy.c allows an index only if the server's own
 * functions compare its keys, because these do not fail later. sorted_insert.c
 * gives the reason why rows may be in the table without their entries for a
 * while.
 *
 * WHAT IS DONE WITH A LEAF of the entry tree, after GIN's own descent has found
 * and locked it:
 *   - a new key becomes a tuple with its posting list;
 *   - a key that exists with a posting list gets a tuple with both lists;
 *   - all these changes go into the page, as far as there is space, with one
 *     record of generic_xlog.c, or with GIN's own record for each, whichever is
 *     smaller.
 * GIN's own insertion (ginEntryInsert) does everything else, with all rows of the
 * key at once: a leaf without space, which it splits; a posting list that becomes
 * a posting tree; another session's incomplete split. If a key has a posting tree
 * already, its rows go into the tree by ginInsertItemPointers, as ginEntryInsert
 * does it.
 *
 * THE INVARIANT.  At any time, the index is one that GIN itself could have made
 * with these rows: a page changes only while it is locked, by a record that
 * changes this page alone. The keys of a leaf are sorted and different. A key
 * above the last one of a leaf belongs there only if the leaf is the rightmost
 * one. GIN never removes a key, and a leaf's last key is its bound in the parent.
 * So a new key never becomes the last one of a leaf that has a right sibling.
 *
 * LOCKS.  One leaf at a time, exclusively. Its ancestors are only pinned, as
 * after each descent for an insertion. The leaf is unlocked before a posting tree
 * is accessed: the root of such a tree never moves and is never removed.
 *
 * PENDING ENTRIES of other sessions are left where they are. A session that moves
 * them into the index does what is done here, one key after the other. So does an
 * insertion into an index without fastupdate. Several sessions may do it at the
 * same time. VACUUM moves the pending list first, because it may have entries of
 * dead rows. The entries that wait here are of a transaction in progress: no
 * VACUUM removes its rows.
 *
 * SERIALIZABLE.  Readers have predicate locks on the leaves and on the roots of
 * posting trees, whether or not the index uses the pending list. The conflict
 * check is where GIN has it: while the leaf is locked, before its change.
 *
 * AFTER A CRASH, a row of an unfinished COPY has some of its entries or none.
 * They point to a row that nobody sees, until VACUUM removes both. Each record
 * changes one page, so the order of the pages does not matter. GIN itself turns
 * posting lists into trees and splits pages, with both halves of each in GIN's
 * own records. No entry is on disk without its row: the row was logged before its
 * entries were extracted, and WAL is written in that order.
 *
 * WHAT AN ERROR LEAVES.  During a flush, a lack of memory, a full disk, a cancel
 * or a serialization failure can end the COPY between two leaves, or between a
 * leaf and the posting trees of its keys. All of these abort the transaction.
 * Nothing that may fail is done in a critical section: tuples are formed and
 * space is counted before.
 *
 * REPEATED VALUES (names, types, words) have the same keys each time, and
 * extracting these is most of what their rows cost. So the keys are kept and used
 * again. This is safe: if the same bytes could have other keys, no search would
 * find the row. It is done for short values of columns whose keys are numbers.
 * Each value has one slot, chosen by its hash, and the next value with the same
 * slot replaces it. If few values repeat, the slots are not used for a while.
 */
#include "index/gin.h"

#include "access/generic_xlog.h"
#include "access/ginxlog.h"
#include "access/xloginsert.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/* Keys that are processed together. */
#define WINDOW 512

/*
 * The most memory for entries that wait. Any list of their rows is then one that
 * palloc() can allocate.
 */
#define MOST_MEMORY ((Size) 1024 * 1024 * 1024)

/* No key of up to this many bytes is too large for an index. */
#define SMALL_KEY 1000

/* Bytes of GIN's record without the tuple, and of a generic record without its deltas. */
#define INSERT_RECORD 56
#define DELTA_RECORD 64

/* What is to be done with a key. */
typedef enum GinChangeKind
{
	GIN_CHANGE_ADD,				/* its tuple is added */
	GIN_CHANGE_REPLACE,			/* its tuple replaces one */
	GIN_CHANGE_TREE,			/* its rows go into its posting tree */
	GIN_CHANGE_WHOLE			/* GIN's own insertion does it */
} GinChangeKind;

typedef struct GinChange
{
	GinChangeKind kind;
	const GinKey *key;
	OffsetNumber at;			/* in the unchanged page */
	IndexTuple	tuple;
	BlockNumber root;			/* of the posting tree */
} GinChange;

/* Slots for values whose keys are kept. */
#define KNOWN_PLACES 1024

/* The longest such value, with its header, and the most keys of one. */
#define MOST_VALUE 64
#define MOST_KEYS 60

/*
 * After LOOKED_AT lookups, it is decided whether they pay. If not, LEFT_OUT
 * values are not looked up.
 */
#define LOOKED_AT 1024
#define LEFT_OUT (16 * LOOKED_AT)

typedef struct GinKnownValue
{
	uint32		hash;
	uint16		attnum;			/* 0: the slot is empty */
	uint8		size;
	uint8		count;
	char		bytes[MOST_VALUE];
	uint32		keys[MOST_KEYS];
} GinKnownValue;

typedef struct GinKnownValues
{
	uint32		looked;
	uint32		found;			/* how many of these were found */
	uint32		left_out;		/* values that are still to be skipped */
	GinKnownValue places[KNOWN_PLACES];
} GinKnownValues;

/* The slot where a value that is not known may be stored. */
typedef struct GinValuePlace
{
	GinKnownValue *at;			/* NULL: nowhere */
	uint32		hash;
} GinValuePlace;

struct GinMerge
{
	GinState	state;
	Relation	index;
	Size		memory;
	MemoryContext entries;		/* for everything that waits */
	MemoryContext row;			/* for the extraction of a row */
	MemoryContext window;		/* for the lists of rows of a window */
	MemoryContext leaf;			/* for the changes of a leaf */
	RowPlaces	places;
	bool		numbers[INDEX_MAX_KEYS];	/* the column's keys are an int4 each */
	bool		varlena[INDEX_MAX_KEYS];	/* and its values are of variable length */
	GinKnownValues *known;		/* values of such columns, or NULL */
	RowPairs	pairs[INDEX_MAX_KEYS];
	GinKeySet	others;			/* all other keys */
	bool		plain;			/* one column, with int4 keys: a tuple of the index has no column number */
	int			column;			/* the column that is read now */
	Size		at;				/* and its next pair */
	GinKey		keys[WINDOW];
	GinChange	changes[WINDOW];
};

/* Converts an int4 key to a number with the same order. */
static uint32
number_of(Datum key)
{
	return (uint32) DatumGetInt32(key) ^ 0x80000000;
}

/*
 * Allocates the slots. Returns NULL if this much memory is too little for them.
 */
static GinKnownValues *
open_known(Size memory)
{
	return memory / 8 < sizeof(GinKnownValues) ? NULL : palloc0(sizeof(GinKnownValues));
}

/* Bytes that the slots take. */
static Size
known_bytes(const GinKnownValues *known)
{
	return known ? sizeof(GinKnownValues) : 0;
}

/* Whether the value is to be looked up. */
static bool
looks(GinKnownValues *known, Datum value)
{
	if (known == NULL || VARATT_IS_EXTERNAL(DatumGetPointer(value)) ||
		VARSIZE_ANY(DatumGetPointer(value)) > MOST_VALUE)
		return false;
	if (known->left_out > 0)
	{
		known->left_out--;
		return false;
	}
	if (known->looked == LOOKED_AT)
	{
		known->left_out = known->found < LOOKED_AT / 4 ? LEFT_OUT : 0;
		known->looked = known->found = 0;
	}
	known->looked++;
	return true;
}

/*
 * Returns the keys of a varlena if it is known, else NULL. `place` is then the
 * slot where note_known() may store it.
 */
static const uint32 *
find_known(GinKnownValues *known, OffsetNumber attnum, Datum value, int *count, GinValuePlace *place)
{
	GinKnownValue *at;
	Size		size;

	place->at = NULL;
	if (!looks(known, value))
		return NULL;
	size = VARSIZE_ANY(DatumGetPointer(value));
	place->hash = hash_bytes((unsigned char *) DatumGetPointer(value), (int) size) + attnum;
	at = &known->places[place->hash % KNOWN_PLACES];
	if (at->hash != place->hash || at->attnum != attnum || at->size != size ||
		memcmp(at->bytes, DatumGetPointer(value), size) != 0)
	{
		place->at = at;
		return NULL;
	}
	known->found++;
	*count = at->count;
	return at->keys;
}

/* Stores the keys of a value in its slot. */
static void
note_known(const GinValuePlace *place, OffsetNumber attnum, Datum value, const Datum *keys, int count)
{
	GinKnownValue *at = place->at;

	if (at == NULL || count > MOST_KEYS)
		return;
	at->hash = place->hash;
	at->attnum = attnum;
	at->size = (uint8) VARSIZE_ANY(DatumGetPointer(value));
	at->count = (uint8) count;
	memcpy(at->bytes, DatumGetPointer(value), at->size);
	for (int i = 0; i < count; i++)
		at->keys[i] = number_of(keys[i]);
}

/* Starts with nothing waiting. Frees what waited; nothing points to it any more. */
static void
begin(GinMerge *merge)
{
	MemoryContextReset(merge->entries);
	memset(&merge->places, 0, sizeof(merge->places));
	memset(merge->pairs, 0, sizeof(merge->pairs));
	merge->places.context = merge->entries;
	for (int i = 0; i < INDEX_MAX_KEYS; i++)
		merge->pairs[i].context = merge->entries;
	sluice_gin_keys_begin(&merge->others, &merge->state, merge->entries);
}

/* Creates a memory context that keeps 64 kB when it is reset. */
static MemoryContext
scratch(const char *name)
{
	return AllocSetContextCreateInternal(CurrentMemoryContext, name, 0, 64 * 1024, ALLOCSET_DEFAULT_MAXSIZE);
}

/* Lets the entries of an index wait, in up to `memory` bytes. */
GinMerge *
sluice_gin_merge_open(Relation index, Size memory)
{
	GinMerge   *merge = palloc0(sizeof(GinMerge));

	merge->index = index;
	merge->memory = Min(memory, MOST_MEMORY);
	initGinState(&merge->state, index);
	merge->entries = AllocSetContextCreate(CurrentMemoryContext, "pgsluice GIN entries", ALLOCSET_DEFAULT_SIZES);
	merge->row = scratch("pgsluice GIN row");
	merge->window = scratch("pgsluice GIN rows of keys");
	merge->leaf = scratch("pgsluice GIN leaf");
	/*
	 * The comparison function decides, not the type: keys of pg_trgm and
	 * jsonb_path_ops are an int4, too. The descriptor is that of the keys, not of
	 * the values.
	 */
	for (int i = 0; i < merge->state.origTupdesc->natts; i++)
		merge->numbers[i] = merge->state.compareFn[i].fn_oid == F_BTINT4CMP &&
			TupleDescAttr(merge->state.origTupdesc, i)->attlen == sizeof(int32) &&
			TupleDescAttr(merge->state.origTupdesc, i)->attbyval;
	for (int i = 0; i < merge->state.origTupdesc->natts; i++)
	{
		merge->varlena[i] = merge->numbers[i] && get_typlen(index->rd_opcintype[i]) == -1;
		if (merge->varlena[i] && merge->known == NULL)
			merge->known = open_known(memory);
	}
	merge->plain = merge->state.oneCol && merge->numbers[0];
	begin(merge);
	return merge;
}

/*
 * Whether only the server's own functions compare the index's keys, so that these
 * can be compared later.
 */
bool
sluice_gin_compares(Relation index)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice GIN state",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	GinState   *state = palloc(sizeof(GinState));
	bool		servers = true;

	initGinState(state, index);
	for (int i = 0; i < state->origTupdesc->natts && servers; i++)
		servers = state->compareFn[i].fn_oid < FirstNormalObjectId &&
			TupleDescAttr(state->origTupdesc, i)->atttypid < FirstNormalObjectId;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return servers;
}

/*
 * Adds an entry that has no key: for a NULL instead of a value, a value without
 * keys, or a NULL among the keys. GIN stores these under a category, so that a
 * scan of the whole index finds each row.
 */
static void
add_without_key(GinMerge *merge, OffsetNumber attnum, GinNullCategory category, uint32 row)
{
	sluice_gin_keys_add(&merge->others, attnum, category, (Datum) 0, 0, row);
}

/*
 * Raises GIN's error if one of the keys is too large for the index, for the key
 * that GIN would reach first. GIN sorts a value's keys before it forms their
 * tuples, so its own function has to extract them again.
 */
static void
check_sizes(GinMerge *merge, OffsetNumber attnum, Datum value)
{
	int32		count;
	GinNullCategory *categories;
	Datum	   *keys = ginExtractEntries(&merge->state, attnum, value, false, &count, &categories);

	for (int32 i = 0; i < count; i++)
		(void) GinFormTuple(&merge->state, attnum, keys[i], categories[i], NULL, 0, 0, true);
}

/*
 * Adds an entry whose key is not a number. Returns the size in bytes of a key that
 * is passed by reference, otherwise 0.
 */
static Size
add_key(GinMerge *merge, OffsetNumber attnum, Datum key, uint32 row)
{
	Form_pg_attribute type = TupleDescAttr(merge->state.origTupdesc, attnum - 1);
	Size		size = 0;

	/*
	 * Equal keys should have equal bytes, as far as that is cheap. So none is
	 * compressed.
	 */
	if (type->attlen == -1)
		key = PointerGetDatum(PG_DETOAST_DATUM_PACKED(key));
	if (!type->attbyval)
		size = datumGetSize(key, false, type->attlen);
	sluice_gin_keys_add(&merge->others, attnum, GIN_CAT_NORM_KEY, key, size, row);
	return size;
}

/*
 * Adds the entries of a column's value. ginExtractEntries() would also sort them
 * and drop equal ones; here that is done later, for all rows.
 */
static void
add_value(GinMerge *merge, OffsetNumber attnum, Datum value, uint32 row, const GinValuePlace *place)
{
	int32		count = 0;
	bool	   *nulls = NULL;
	bool		too_large = false;
	bool		has_nulls = false;
	Datum	   *keys = (Datum *)
		DatumGetPointer(FunctionCall3Coll(&merge->state.extractValueFn[attnum - 1],
										  merge->state.supportCollation[attnum - 1], value,
										  PointerGetDatum(&count), PointerGetDatum(&nulls)));

	if (keys == NULL || count <= 0)
		add_without_key(merge, attnum, GIN_CAT_EMPTY_ITEM, row);
	for (int32 i = 0; keys != NULL && i < count; i++)
	{
		if (nulls && nulls[i])
		{
			add_without_key(merge, attnum, GIN_CAT_NULL_KEY, row);
			has_nulls = true;
		}
		else if (merge->numbers[attnum - 1])
			sluice_row_pairs_add(&merge->pairs[attnum - 1], number_of(keys[i]), row);
		else
			too_large |= add_key(merge, attnum, keys[i], row) > SMALL_KEY;
	}
	if (too_large)
		check_sizes(merge, attnum, value);
	if (place->at != NULL && keys != NULL && count > 0 && !has_nulls)
		note_known(place, attnum, value, keys, count);
}

/*
 * Adds the entries of a column's value if its keys are known. If not, `place` is
 * the slot to store them in.
 */
static bool
add_known(GinMerge *merge, OffsetNumber attnum, Datum value, uint32 row, GinValuePlace *place)
{
	const uint32 *keys;
	int			count;

	place->at = NULL;
	if (!merge->varlena[attnum - 1])
		return false;
	keys = find_known(merge->known, attnum, value, &count, place);
	for (int i = 0; keys != NULL && i < count; i++)
		sluice_row_pairs_add(&merge->pairs[attnum - 1], keys[i], row);
	return keys != NULL;
}

/* Bytes of everything that waits. */
static Size
bytes_waiting(const GinMerge *merge)
{
	Size		bytes = sluice_gin_keys_bytes(&merge->others) + known_bytes(merge->known) +
		merge->places.allocated * sizeof(ItemPointerData);

	for (int i = 0; i < merge->state.origTupdesc->natts; i++)
		bytes += sluice_row_pairs_bytes(&merge->pairs[i]);
	return bytes;
}

/*
 * Called when the row is in the table; its entries wait. All entries of a row are
 * added before any is inserted, so an error of the extraction leaves the index
 * without any of them.
 */
void
sluice_gin_merge_add(GinMerge *merge, const ItemPointerData *tid, const Datum *values, const bool *isnull)
{
	MemoryContext old = MemoryContextSwitchTo(merge->row);
	uint32		row = sluice_row_places_add(&merge->places, tid);

	for (int i = 0; i < merge->state.origTupdesc->natts; i++)
	{
		GinValuePlace place = {0};

		if (isnull[i])
			add_without_key(merge, i + 1, GIN_CAT_NULL_ITEM, row);
		else if (!add_known(merge, i + 1, values[i], row, &place))
			add_value(merge, i + 1, values[i], row, &place);
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(merge->row);
	if (bytes_waiting(merge) >= merge->memory)
		sluice_gin_merge_flush(merge);
}

/*
 * Gets the next key of a column with int4 keys, and its rows. Returns false if
 * there is none.
 */
static bool
next_number(GinMerge *merge, GinKey *key)
{
	const RowPairs *pairs = &merge->pairs[merge->column];
	const ItemPointerData *tids = merge->places.tids;
	uint64		first;
	uint32		row;
	Size		end = merge->at;

	Assert(merge->numbers[merge->column] || pairs->count == 0);
	if (merge->at == pairs->count)
		return false;
	first = pairs->pairs[merge->at];
	while (end < pairs->count && pairs->pairs[end] >> 32 == first >> 32)
		end++;
	key->attnum = merge->column + 1;
	key->category = GIN_CAT_NORM_KEY;
	key->key = Int32GetDatum((int32) ((uint32) (first >> 32) ^ 0x80000000));
	key->items = MemoryContextAlloc(merge->window, sizeof(ItemPointerData) * (end - merge->at));
	key->count = 0;
	row = (uint32) first;
	key->items[key->count++] = tids[row];
	for (Size i = merge->at + 1; i < end; i++)
	{
		/* A row may have had the key more than once. */
		if ((uint32) pairs->pairs[i] == row)
			continue;
		row = (uint32) pairs->pairs[i];
		key->items[key->count++] = tids[row];
	}
	/*
	 * A posting list is in TID order. Rows that have reused free space in the
	 * table are not.
	 */
	if (!merge->places.ascending)
		sluice_gin_items_sort(key);
	merge->at = end;
	return true;
}

/*
 * Gets the next keys, in index order within each column. Returns 0 if there are
 * none. A window bounds the lists of rows that are in memory beside the pairs. It
 * never has keys of both kinds: entries without a key come after the numbers of
 * their column in the index, but last of all here.
 */
static int
next_keys(GinMerge *merge)
{
	int			natts = merge->state.origTupdesc->natts;
	int			count = 0;

	MemoryContextReset(merge->window);
	while (count < WINDOW && merge->column < natts)
	{
		if (next_number(merge, &merge->keys[count]))
			count++;
		else
		{
			merge->column++;
			merge->at = 0;
			/*
			 * A window of numbers ends with its column: its keys are in index
			 * order.
			 */
			if (count > 0)
				return count;
		}
	}
	while (count < WINDOW && merge->column == natts)
	{
		if (sluice_gin_keys_next(&merge->others, &merge->places, merge->window, &merge->keys[count]))
			count++;
		else
			merge->column++;
	}
	return count;
}

/*
 * Compares a tuple of the index with a key: by GIN's own order. An int4 key of an
 * index with one column is read where the tuple's data begins.
 */
static int
compare(GinMerge *merge, IndexTuple item, const GinKey *key)
{
	GinNullCategory category;
	Datum		have;

	if (merge->plain && key->category == GIN_CAT_NORM_KEY && !IndexTupleHasNulls(item))
	{
		int32		is = *(int32 *) ((char *) item + IndexInfoFindDataOffset(item->t_info));
		int32		wanted = DatumGetInt32(key->key);

		return is < wanted ? -1 : is > wanted;
	}
	have = gintuple_get_key(&merge->state, item, &category);
	return ginCompareAttEntries(&merge->state, gintuple_get_attrnum(&merge->state, item), have, category,
								key->attnum, key->key, key->category);
}

/* The tuple at an offset of a page. */
static IndexTuple
item_at(Page page, OffsetNumber at)
{
	return (IndexTuple) PageGetItem(page, PageGetItemId(page, at));
}

/*
 * The first tuple, from `at` on, that is not before the key, or the offset after
 * the last tuple if there is none. *equal is set if the tuple has the key. The
 * keys of a leaf are often close to each other, so the steps begin with one and
 * double.
 */
static OffsetNumber
find_place(GinMerge *merge, Page page, OffsetNumber at, const GinKey *key, bool *equal)
{
	OffsetNumber end = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	OffsetNumber high = at;
	int			step = 1;

	*equal = false;
	while (high < end)
	{
		int			order = compare(merge, item_at(page, high), key);

		if (order >= 0)
		{
			*equal = order == 0;
			break;
		}
		at = high + 1;
		high = at + step;
		step *= 2;
	}
	high = Min(high, end);
	while (at < high)
	{
		OffsetNumber middle = at + (high - at) / 2;
		int			order = compare(merge, item_at(page, middle), key);

		if (order < 0)
			at = middle + 1;
		else
		{
			*equal = order == 0;
			high = middle;
		}
	}
	return at;
}

/*
 * Forms the tuple of a key, with the rows of `old` added, if that is not NULL.
 * Returns NULL if the rows need a posting tree.
 */
static IndexTuple
form_tuple(GinMerge *merge, const GinKey *key, IndexTuple old)
{
	ItemPointerData *items = key->items;
	int			count = key->count;
	int			written;
	GinPostingList *list;

	if (old)
	{
		int			had;
		ItemPointer rows = ginReadTuple(&merge->state, key->attnum, old, &had);

		/* VACUUM does not remove a key without rows: `had` is 0 then. */
		items = ginMergeItemPointers(items, key->count, rows, had, &count);
	}
	/*
	 * ginEntryInsert() uses the same test, and makes a posting tree if the list
	 * does not fit.
	 */
	list = ginCompressPostingList(items, count, GinMaxItemSize, &written);
	if (written != count)
		return NULL;
	return GinFormTuple(&merge->state, key->attnum, key->key, key->category, (char *) list,
						SizeOfGinPostingList(list), count, false);
}

/* Decides what to do with a key whose place in the leaf is known. */
static void
plan_change(GinMerge *merge, Page page, const GinKey *key, OffsetNumber at, bool equal, GinChange *change)
{
	IndexTuple	old = equal ? item_at(page, at) : NULL;

	Assert(GinPageRightMost(page) || at <= PageGetMaxOffsetNumber(page));
	change->key = key;
	change->at = at;
	change->tuple = NULL;
	if (old && GinIsPostingTree(old))
	{
		change->kind = GIN_CHANGE_TREE;
		change->root = GinGetPostingTree(old);
		return;
	}
	change->tuple = form_tuple(merge, key, old);
	change->kind = change->tuple == NULL ? GIN_CHANGE_WHOLE : old ? GIN_CHANGE_REPLACE : GIN_CHANGE_ADD;
}

/* Bytes of the page's free space that a change takes. */
static int
room_for(Page page, const GinChange *change)
{
	int			size;

	if (change->tuple == NULL)
		return 0;
	size = MAXALIGN(IndexTupleSize(change->tuple));
	if (change->kind == GIN_CHANGE_REPLACE)
		return size - (int) MAXALIGN(IndexTupleSize(item_at(page, change->at)));
	return size + sizeof(ItemIdData);
}

/*
 * Plans the changes for the keys that belong to the leaf and for which it has
 * space. Returns how many keys these are.
 */
static int
plan_leaf(GinMerge *merge, Page page, const GinKey *keys, int count)
{
	bool		bounded = !GinPageRightMost(page);
	int			room = (int) PageGetExactFreeSpace(page);
	OffsetNumber at = FirstOffsetNumber;
	int			n;

	for (n = 0; n < count; n++)
	{
		GinChange  *change = &merge->changes[n];
		bool		equal;

		at = find_place(merge, page, at, &keys[n], &equal);
		/*
		 * Above the bound of the leaf: this key and those after it belong to
		 * another leaf.
		 */
		if (bounded && at > PageGetMaxOffsetNumber(page))
			break;
		plan_change(merge, page, &keys[n], at, equal, change);
		/*
		 * A key for which there is no space ends the plan for the leaf, even if a
		 * later one would fit. GIN inserts this key first, and splits the leaf.
		 */
		if (room_for(page, change) > room)
			break;
		room -= room_for(page, change);
	}
	return n;
}

/*
 * Changes a page, or its image, at an offset that has moved by `added`. Returns
 * true if the page has one tuple more. This cannot fail, because plan_leaf() has
 * counted the space in the order of the changes. A failure in a critical section
 * would restart the server rather than keep the page.
 */
static bool
apply(Relation index, Page page, const GinChange *change, int added)
{
	OffsetNumber at = change->at + added;

	/* As GIN's insertion and its replay do it: the page must be the same after both. */
	if (change->kind == GIN_CHANGE_REPLACE)
		PageIndexTupleDelete(page, at);
	if (PageAddItem(page, (char *) change->tuple, IndexTupleSize(change->tuple), at, false, false) != at)
		elog(ERROR, "pgsluice: failed to add an entry to index \"%s\"", RelationGetRelationName(index));
	return change->kind == GIN_CHANGE_ADD;
}

/* Makes one change of a page, with GIN's own record. */
static bool
apply_singly(Relation index, Buffer leaf, const GinChange *change, int added)
{
	Page		page = BufferGetPage(leaf);
	bool		adds;

	START_CRIT_SECTION();
	adds = apply(index, page, change, added);
	MarkBufferDirty(leaf);
	if (RelationNeedsWAL(index))
	{
		ginxlogInsert record = {.flags = GIN_INSERT_ISLEAF};
		ginxlogInsertEntry entry;
		XLogRecPtr	end;

		entry.offset = change->at + added;
		entry.isDelete = change->kind == GIN_CHANGE_REPLACE;
		XLogBeginInsert();
		XLogRegisterData((char *) &record, sizeof(record));
		XLogRegisterBuffer(0, leaf, REGBUF_STANDARD);
		XLogRegisterBufData(0, (char *) &entry, offsetof(ginxlogInsertEntry, tuple));
		XLogRegisterBufData(0, (char *) change->tuple, IndexTupleSize(change->tuple));
		end = XLogInsert(RM_GIN_ID, XLOG_GIN_INSERT);
		PageSetLSN(page, end);
	}
	END_CRIT_SECTION();
	return adds;
}

#ifdef USE_ASSERT_CHECKING
/* Checks that the leaf's tuples are sorted, and that no two have the same key. */
static void
check_leaf(GinMerge *merge, Page page)
{
	for (OffsetNumber at = FirstOffsetNumber; at < PageGetMaxOffsetNumber(page); at++)
	{
		IndexTuple	one = item_at(page, at);
		IndexTuple	other = item_at(page, OffsetNumberNext(at));
		GinNullCategory category;
		GinNullCategory following;
		Datum		key = gintuple_get_key(&merge->state, one, &category);
		Datum		next = gintuple_get_key(&merge->state, other, &following);

		Assert(ginCompareAttEntries(&merge->state, gintuple_get_attrnum(&merge->state, one), key, category,
									gintuple_get_attrnum(&merge->state, other), next, following) < 0);
	}
}
#endif

/*
 * Makes the changes of a locked leaf that have a tuple. Either one record has all
 * of them, and the page changes when it is written. Or each is made with its own
 * record: an error can come between two of them, but the page is valid then, too.
 */
static void
change_leaf(GinMerge *merge, Buffer leaf, int count)
{
	Page		page = BufferGetPage(leaf);
	GenericXLogState *xlog = NULL;
	int			tuples = 0;
	OffsetNumber first = InvalidOffsetNumber;
	int			added = 0;

	for (int i = 0; i < count; i++)
	{
		if (merge->changes[i].tuple == NULL)
			continue;
		if (tuples++ == 0)
			first = merge->changes[i].at;
	}
	if (tuples == 0)
		return;
	/* This may raise an error, so it comes before the first change. */
	CheckForSerializableConflictIn(merge->index, NULL, BufferGetBlockNumber(leaf));
	/* Deltas have the tuples, too, and the line pointers from the first change on. */
	if (DELTA_RECORD + sizeof(ItemIdData) * (PageGetMaxOffsetNumber(page) - first + tuples) <
		(Size) INSERT_RECORD * tuples)
	{
		xlog = GenericXLogStart(merge->index);
		page = GenericXLogRegisterBuffer(xlog, leaf, 0);
	}
	for (int i = 0; i < count; i++)
	{
		const GinChange *change = &merge->changes[i];

		if (change->tuple == NULL)
			continue;
		if (xlog ? apply(merge->index, page, change, added) : apply_singly(merge->index, leaf, change, added))
			added++;
	}
	if (xlog)
		GenericXLogFinish(xlog);
#ifdef USE_ASSERT_CHECKING
	check_leaf(merge, BufferGetPage(leaf));
#endif
}

/* Inserts a key by GIN's own insertion. */
static void
add_whole(GinMerge *merge, const GinKey *key)
{
	ginEntryInsert(&merge->state, key->attnum, key->key, key->category, key->items, key->count, NULL);
}

/*
 * Merges keys into the leaf of the first one. Returns how many of them are done:
 * at least that one, so that a flush ends. The descent has moved right as far as
 * the first key's leaf. A leaf whose split is incomplete has no downlink for its
 * right half yet: GIN's insertion finishes the split, and then inserts.
 */
static int
merge_leaf(GinMerge *merge, const GinKey *keys, int count)
{
	GinBtreeData btree;
	GinBtreeStack *stack;
	Page		page;
	int			n = 0;

	ginPrepareEntryScan(&btree, keys->attnum, keys->key, keys->category, &merge->state);
	stack = compat_gin_find_leaf(&btree);
	page = BufferGetPage(stack->buffer);
	Assert(GinPageIsLeaf(page) && !GinPageIsData(page));
	if (!GinPageIsIncompleteSplit(page))
		n = plan_leaf(merge, page, keys, count);
	change_leaf(merge, stack->buffer, n);
	LockBuffer(stack->buffer, GIN_UNLOCK);
	freeGinBtreeStack(stack);
	/*
	 * After the leaf is unlocked, another session may turn a posting list into a
	 * tree, or add rows to it. ginEntryInsert() descends again and sees that. The
	 * root of a posting tree never moves.
	 */
	for (int i = 0; i < n; i++)
	{
		const GinChange *change = &merge->changes[i];

		if (change->kind == GIN_CHANGE_TREE)
			ginInsertItemPointers(merge->index, change->root, change->key->items, change->key->count, NULL);
		else if (change->kind == GIN_CHANGE_WHOLE)
			add_whole(merge, change->key);
	}
	if (n == 0)
		add_whole(merge, keys);
	return Max(n, 1);
}

/*
 * Inserts everything that waits: first the columns of integers, then all other
 * keys. An error in between ends the COPY, so nothing is inserted twice.
 */
void
sluice_gin_merge_flush(GinMerge *merge)
{
	MemoryContext old = MemoryContextSwitchTo(merge->leaf);
	int			count;

	for (int i = 0; i < merge->state.origTupdesc->natts; i++)
		sluice_row_pairs_sort(&merge->pairs[i]);
	sluice_gin_keys_sort(&merge->others);
	merge->column = 0;
	merge->at = 0;
	while ((count = next_keys(merge)) > 0)
	{
		for (int n = 0; n < count;)
		{
			CHECK_FOR_INTERRUPTS();
			n += merge_leaf(merge, merge->keys + n, count - n);
			MemoryContextReset(merge->leaf);
		}
	}
	MemoryContextSwitchTo(old);
	begin(merge);
}
