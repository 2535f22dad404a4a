/*
 * Unique indexes of a table that others can reach: entries of the rows that
 * were inserted together go to the right-hand edge in key order, where all
 * their keys are above what the index has. Serial keys and timestamps are the
 * usual case.
 *
 * That is for all rows of the batch or for none. Nothing is refused for it:
 * without an equal key among them or in the index no entry can be a duplicate.
 * Where that cannot be determined, each row gets its entry in its turn, with stock
 * COPY's errors.
 *
 * WHY A DUPLICATE CANNOT GET IN.  The batch's entries are sorted and
 * neighbours compared with the operator class's own function, so no two of
 * them are equal. A single key of a type whose order is that of its integer
 * (SLUICE_ORDER_SIGNED: sort_keys.c lists these types with their operator
 * families, all of them the server's own) needs no sorting if each row's
 * integer is above the one before it. btree_append.c looks at the index's last key under the lock
 * of the rightmost leaf, which it keeps until the entries are in. When another
 * session gets beyond our keys between two calls, the rest of the batch goes
 * through index_insert() with UNIQUE_CHECK_YES. Its error names the line of
 * the row, and stock COPY would have met the same conflict on the same row or
 * on one before it; which of two sessions comes first is not defined.
 *
 * WHY "ALL OR NONE".  If some rows of a batch had their entries and others
 * were left to the executor, an error of one of the latter would come after
 * entries of rows that follow it in the input. Nobody could see the difference
 * after the rollback, but the line that the error names might be another one
 * than stock COPY's.
 *
 * A pause after a batch that could not be appended keeps data that is not
 * sorted from paying for the attempt: at first one batch is passed over, then
 * three, seven, up to LONGEST_PAUSE.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* Lots that are passed over at most, once an index has not taken them. */
#define LONGEST_PAUSE 63

struct UniqueAppend
{
	SluiceIndexBuild build;
	uint32		longest;		/* bytes of a row whose entry is surely not too large */
	Size		memory;			/* for the entries of a lot */
	bool		integer;		/* one key, ordered as its integer is, ascending */
	IndexUse *taken;
	int			pause;			/* lots to pass over */
	int			next_pause;		/* and after the next one that is not taken */
	MemoryContext context;		/* of a lot */
	MemoryContextCallback callback;
};

/* The entries of a lot in the index's order, and the rows that they are of. */
typedef struct Lot
{
	const PlacedRow *rows;
	int			count;
	IndexTuple *tuples;
	uint32	   *row;
} Lot;

/* The core of one lot after the other. */
static void
open_core(UniqueAppend *append)
{
	sluice_index_open_sorter(&append->build, append->memory);
}

/* For an index whose way is SLUICE_INDEX_LEAVES. */
UniqueAppend *
sluice_unique_append_open(Relation heap, Relation index, IndexInfo *info,
						 const SluiceIndexAttribute *attributes, Size memory, IndexUse *taken)
{
	UniqueAppend *append = palloc0(sizeof(UniqueAppend));

	append->build.heap = heap;
	append->build.index = index;
	append->build.info = info;
	append->taken = taken;
	append->memory = memory;
	memcpy(append->build.attributes, attributes, sizeof(append->build.attributes));
	append->longest = COMPAT_BT_MAX_ITEM / info->ii_NumIndexAttrs;
	append->integer = info->ii_NumIndexAttrs == 1 && attributes[0].by_value &&
		attributes[0].order == SLUICE_ORDER_SIGNED && !attributes[0].descending;
	append->context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice index append",
											ALLOCSET_DEFAULT_SIZES);
	sluice_index_own_core(&append->build, &append->callback);
	open_core(append);
	return append;
}

/*
 * Gives the core the entries, by the rows' numbers; false if one is not of the
 * plain kind.
 */
static bool
add_entries(UniqueAppend *append, const PlacedRow *rows, int count)
{
	SluiceIndexBuild *build = &append->build;
	TupleDesc	desc = RelationGetDescr(build->heap);
	int			keys = IndexRelationGetNumberOfKeyAttributes(build->index);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	for (int n = 0; n < count; n++)
	{
		HeapTupleData tuple = {.t_len = rows[n].len,.t_data = rows[n].tuple};
		uint64		address = ((uint64) n << 16) | FirstOffsetNumber;
		SluiceIndexStatus status;

		if (rows[n].len > append->longest)
			return false;
		for (int i = 0; i < build->info->ii_NumIndexAttrs; i++)
		{
			values[i] = heap_getattr(&tuple, build->info->ii_IndexAttrNumbers[i], desc,
									 &isnull[i]);
			if (isnull[i] && i < keys)
				return false;
		}
		status = pgsluice_index_add(build->core, address, false, false, values, isnull);
		sluice_index_checked(build, status);
		if (status != SLUICE_INDEX_GO)
			return false;
	}
	sluice_index_checked(build, pgsluice_index_sort(build->core));
	return true;
}

/* Copies the sorted entries out of the core, which forgets them. */
static void
take_sorted(SluiceIndexBuild *build, Lot *lot)
{
	SluiceIndexStep step = {0};
	uint64		done = 0;

	lot->tuples = palloc(sizeof(IndexTuple) * lot->count);
	lot->row = palloc(sizeof(uint32) * lot->count);
	for (;; done += step.rows)
	{
		SluiceIndexStatus status = pgsluice_index_sorted(build->core, done, &step);
		char	   *at;

		sluice_index_checked(build, status);
		if (status == SLUICE_INDEX_DONE)
			break;
		at = memcpy(palloc(step.len), step.bytes, step.len);
		for (uint64 i = done; i < done + step.rows; i++)
		{
			IndexTuple	tuple = (IndexTuple) at;

			lot->tuples[i] = tuple;
			lot->row[i] = ItemPointerGetBlockNumber(&tuple->t_tid);
			tuple->t_tid = lot->rows[lot->row[i]].tid;
			at += IndexTupleSize(tuple);
		}
	}
	Assert(done == (uint64) lot->count);
}

/*
 * Forms the entries of a lot in which each key is an integer above the one
 * before it, as a serial key's: no sorting, no comparison of neighbours. False
 * if the rows are not so.
 */
static bool
form_ascending(UniqueAppend *append, Lot *lot)
{
	SluiceIndexBuild *build = &append->build;
	TupleDesc	desc = RelationGetDescr(build->heap);
	AttrNumber	column = build->info->ii_IndexAttrNumbers[0];
	int			len = build->attributes[0].len;
	Size		start = MAXALIGN(sizeof(IndexTupleData));
	Size		size = MAXALIGN(start + len);
	char	   *at = palloc0(size * lot->count);
	int64		last = 0;

	lot->tuples = palloc(sizeof(IndexTuple) * lot->count);
	lot->row = palloc(sizeof(uint32) * lot->count);
	for (int n = 0; n < lot->count; n++, at += size)
	{
		HeapTupleData row = {.t_len = lot->rows[n].len,.t_data = lot->rows[n].tuple};
		bool		isnull;
		Datum		value = heap_getattr(&row, column, desc, &isnull);
		int64		key = len == 2 ? DatumGetInt16(value) : len == 4 ? DatumGetInt32(value) : DatumGetInt64(value);

		if (isnull || row.t_len > append->longest || (n > 0 && key <= last))
			return false;
		last = key;
		lot->tuples[n] = (IndexTuple) at;
		lot->row[n] = n;
		lot->tuples[n]->t_tid = lot->rows[n].tid;
		lot->tuples[n]->t_info = size;
		store_att_byval(at + start, value, len);
	}
	return true;
}

/*
 * The lot's entries in their order; false if they are not all plain and
 * different.
 */
static bool
sort_lot(UniqueAppend *append, Lot *lot)
{
	if (append->integer && form_ascending(append, lot))
		return true;
	if (!add_entries(append, lot->rows, lot->count))
	{
		append->taken->because = "some rows' keys are NULL or long";
		open_core(append);
		return false;
	}
	take_sorted(&append->build, lot);
	for (int i = 1; i < lot->count; i++)
	{
		if (sluice_index_equal_keys(append->build.index, false, lot->tuples[i - 1], lot->tuples[i]))
		{
			append->taken->because = "some rows' keys are equal";
			return false;
		}
	}
	return true;
}

/*
 * One entry through the access method, which may find that another session has
 * put an equal one there.
 */
static void
insert_entry(SluiceIndexBuild *build, const Lot *lot, int n, uint64 *line)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	*line = lot->rows[lot->row[n]].line;
	index_deform_tuple(lot->tuples[n], RelationGetDescr(build->index), values, isnull);
	index_insert(build->index, values, isnull, &lot->tuples[n]->t_tid, build->heap,
				 UNIQUE_CHECK_YES, false, build->info);
}

/*
 * False, and nothing done, unless the first entry is above all that the index
 * has.
 */
static bool
append_lot(UniqueAppend *append, const Lot *lot, uint64 *line)
{
	SluiceIndexBuild *build = &append->build;
	int			taken = 0;
	int			n = 0;

	while (n < lot->count)
	{
		CHECK_FOR_INTERRUPTS();
		/* Once others have gone beyond us, they are likely to go on. */
		if (taken >= 0)
			taken = sluice_btree_append(build, lot->tuples + n, lot->count - n);
		if (taken < 0)
			append->taken->because = "some rows' keys are not above the index's";
		if (taken < 0 && n == 0)
			return false;
		if (taken <= 0)
			insert_entry(build, lot, n++, line);
		else
		{
			n += taken;
			append->taken->rows[SLUICE_INDEX_LEAVES] += taken;
		}
	}
	return true;
}

/*
 * These rows have just been inserted into the table. True: they have their
 * entries now. False: none has. An error names the line of its row.
 */
bool
sluice_unique_append_rows(UniqueAppend *append, const PlacedRow *rows, int count,
						 uint64 *line)
{
	Lot			lot = {.rows = rows,.count = count};
	MemoryContext caller;
	bool		done;

	if (count < (int) sluice_threshold(SLUICE_INDEX_FEWEST))
	{
		if (append->taken->because == NULL)
			append->taken->because = "some rows came in small lots";
		return false;
	}
	if (append->pause > 0)
	{
		append->pause--;
		return false;
	}
	caller = MemoryContextSwitchTo(append->context);
	done = sort_lot(append, &lot) && append_lot(append, &lot, line);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(append->context);
	append->next_pause = done ? 0 : Min(2 * append->next_pause + 1, LONGEST_PAUSE);
	append->pause = append->next_pause;
	return done;
}

/* Whether the last lot went in by the page. */
bool
sluice_unique_append_goes_on(const UniqueAppend *append)
{
	return append->taken->rows[SLUICE_INDEX_LEAVES] > 0 && append->next_pause == 0;
}

/* No more rows come. */
void
sluice_unique_append_close(UniqueAppend *append)
{
	sluice_btree_give_back(&append->build);
}
