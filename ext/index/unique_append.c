/*
 * Unique indexes whose keys ascend. If the keys of all rows that were inserted
 * together are above those in the index, their entries go to the right-hand
 * edge in key order. Serial keys and timestamps are the usual case. Other
 * sessions may reach the table; where none can, see also deferred.c.
 *
 * That is done for all rows of the batch or for none. It never rejects a row:
 * without an equal key among them or in the index no entry can be a duplicate.
 * If that cannot be determined, each row gets its entry in its turn, with
 * stock COPY's errors.
 *
 * WHY A DUPLICATE CANNOT GET IN.  The entries of the batch are sorted, and
 * adjacent ones are compared with the operator class's own function, so no two
 * of them are equal. There is one case in which they need no sorting: the key
 * is a single column of a type whose order is that of its integer, and each
 * row's integer is above the one before it. (The order of such types is
 * SLUICE_ORDER_SIGNED: sort_keys.c lists them with their operator families,
 * all of them the server's own.) btree_append.c compares with the index's last
 * key under the lock of the rightmost leaf, which it keeps until the entries
 * are in. If another session inserts keys above ours between two calls, the
 * rest of the batch goes through index_insert() with UNIQUE_CHECK_YES. Its
 * error names the line of the row. Stock COPY would have met the same conflict
 * on the same row or on one before it; which of two sessions comes first is
 * not defined.
 *
 * WHY "ALL OR NONE".  If some rows of a batch had their entries and the others
 * were left to the executor, an error of one of the others would come after
 * entries of rows that follow it in the input. After the rollback no one could
 * see the difference, but the line that the error names might be another one
 * than stock COPY's.
 *
 * A pause after a batch that could not be appended keeps unsorted data from
 * paying for the attempt each time: at first one batch is skipped, then three,
 * seven, up to LONGEST_PAUSE.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* The most batches that are skipped after one that could not be appended. */
#define LONGEST_PAUSE 63

struct UniqueAppend
{
	SluiceIndexBuild build;
	uint32		longest;		/* rows of up to this many bytes have no entry that is too large */
	Size		memory;			/* for the entries of a batch */
	bool		integer;		/* one key column, ordered as its integer is, ascending */
	bool		whole;			/* each batch must be appended, however small it is */
	IndexUse *taken;
	int			pause;			/* batches that are still to be skipped */
	int			next_pause;		/* the last pause, in batches; 0 if the last attempt succeeded */
	MemoryContext context;		/* for one batch */
	MemoryContextCallback callback;
};

/*
 * A batch: its rows, their entries in the index's order, and the row of each
 * entry.
 */
typedef struct EntryBatch
{
	const PlacedRow *rows;
	int			count;
	IndexTuple *tuples;
	uint32	   *row;
} EntryBatch;

/* Opens the core, which sorts one batch after the other. */
static void
open_core(UniqueAppend *append)
{
	sluice_index_open_sorter(&append->build, append->memory);
}

/*
 * Prepares an index whose way is SLUICE_INDEX_LEAVES. `whole`: the caller gives
 * up once a batch is not appended, so none is left out because it is small.
 */
UniqueAppend *
sluice_unique_append_open(Relation heap, Relation index, IndexInfo *info,
						 const SluiceIndexAttribute *attributes, Size memory, bool whole, IndexUse *taken)
{
	UniqueAppend *append = palloc0(sizeof(UniqueAppend));

	append->build.heap = heap;
	append->build.index = index;
	append->build.info = info;
	append->whole = whole;
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
 * Gives the entries to the core, with the rows' numbers in place of TIDs, and
 * sorts them. Returns false if one is not plain: its row is long, a key is
 * NULL, or the core does not take it.
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

/* Copies the sorted entries out of the core, which then forgets them. */
static void
take_sorted(SluiceIndexBuild *build, EntryBatch *batch)
{
	SluiceIndexStep step = {0};
	uint64		done = 0;

	batch->tuples = palloc(sizeof(IndexTuple) * batch->count);
	batch->row = palloc(sizeof(uint32) * batch->count);
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

			batch->tuples[i] = tuple;
			batch->row[i] = ItemPointerGetBlockNumber(&tuple->t_tid);
			tuple->t_tid = batch->rows[batch->row[i]].tid;
			at += IndexTupleSize(tuple);
		}
	}
	Assert(done == (uint64) batch->count);
}

/*
 * Forms the entries of a batch in which each key is an integer above the one
 * before it, like a serial key. They need no sorting and no comparison with
 * each other. Returns false if the rows are not like that.
 */
static bool
form_ascending(UniqueAppend *append, EntryBatch *batch)
{
	SluiceIndexBuild *build = &append->build;
	TupleDesc	desc = RelationGetDescr(build->heap);
	AttrNumber	column = build->info->ii_IndexAttrNumbers[0];
	int			len = build->attributes[0].len;
	Size		start = MAXALIGN(sizeof(IndexTupleData));
	Size		size = MAXALIGN(start + len);
	char	   *at = palloc0(size * batch->count);
	int64		last = 0;

	batch->tuples = palloc(sizeof(IndexTuple) * batch->count);
	batch->row = palloc(sizeof(uint32) * batch->count);
	for (int n = 0; n < batch->count; n++, at += size)
	{
		HeapTupleData row = {.t_len = batch->rows[n].len,.t_data = batch->rows[n].tuple};
		bool		isnull;
		Datum		value = heap_getattr(&row, column, desc, &isnull);
		int64		key = len == 2 ? DatumGetInt16(value) : len == 4 ? DatumGetInt32(value) : DatumGetInt64(value);

		if (isnull || row.t_len > append->longest || (n > 0 && key <= last))
			return false;
		last = key;
		batch->tuples[n] = (IndexTuple) at;
		batch->row[n] = n;
		batch->tuples[n]->t_tid = batch->rows[n].tid;
		batch->tuples[n]->t_info = size;
		store_att_byval(at + start, value, len);
	}
	return true;
}

/*
 * Puts the entries of the batch in order. Returns false if they are not all
 * plain and different.
 */
static bool
sort_batch(UniqueAppend *append, EntryBatch *batch)
{
	if (append->integer && form_ascending(append, batch))
		return true;
	if (!add_entries(append, batch->rows, batch->count))
	{
		append->taken->because = "some rows' keys are NULL or long";
		open_core(append);
		return false;
	}
	take_sorted(&append->build, batch);
	for (int i = 1; i < batch->count; i++)
	{
		if (sluice_index_equal_keys(append->build.index, false, batch->tuples[i - 1], batch->tuples[i]))
		{
			append->taken->because = "some rows' keys are equal";
			return false;
		}
	}
	return true;
}

/*
 * Inserts one entry by the access method, which may find that another session
 * has inserted an equal one.
 */
static void
insert_entry(SluiceIndexBuild *build, const EntryBatch *batch, int n, uint64 *line)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	*line = batch->rows[batch->row[n]].line;
	index_deform_tuple(batch->tuples[n], RelationGetDescr(build->index), values, isnull);
	index_insert(build->index, values, isnull, &batch->tuples[n]->t_tid, build->heap,
				 UNIQUE_CHECK_YES, false, build->info);
}

/*
 * Appends the entries of the batch. Returns false, with nothing done, unless
 * the first entry is above all that the index has.
 */
static bool
append_batch(UniqueAppend *append, const EntryBatch *batch, uint64 *line)
{
	SluiceIndexBuild *build = &append->build;
	int			taken = 0;
	int			n = 0;

	while (n < batch->count)
	{
		CHECK_FOR_INTERRUPTS();
		/* Another session that has inserted larger keys is likely to go on. */
		if (taken >= 0)
			taken = sluice_btree_append(build, batch->tuples + n, batch->count - n);
		if (taken < 0)
			append->taken->because = "some rows' keys are not above the index's";
		if (taken < 0 && n == 0)
			return false;
		if (taken <= 0)
			insert_entry(build, batch, n++, line);
		else
		{
			n += taken;
			append->taken->rows[SLUICE_INDEX_LEAVES] += taken;
		}
	}
	return true;
}

/*
 * These rows have just been inserted into the table. Returns true if all of
 * them have their entries now, and false if none has. An error names the line
 * of its row.
 */
bool
sluice_unique_append_rows(UniqueAppend *append, const PlacedRow *rows, int count,
						 uint64 *line)
{
	EntryBatch			batch = {.rows = rows,.count = count};
	MemoryContext caller;
	bool		done;

	if (!append->whole && count < (int) sluice_threshold(SLUICE_INDEX_FEWEST))
	{
		if (append->taken->because == NULL)
			append->taken->because = "some rows came in small batches";
		return false;
	}
	if (append->pause > 0)
	{
		append->pause--;
		return false;
	}
	caller = MemoryContextSwitchTo(append->context);
	done = sort_batch(append, &batch) && append_batch(append, &batch, line);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(append->context);
	append->next_pause = done ? 0 : Min(2 * append->next_pause + 1, LONGEST_PAUSE);
	append->pause = append->next_pause;
	return done;
}

/* Whether leaves have been appended, and the last attempt succeeded. */
bool
sluice_unique_append_goes_on(const UniqueAppend *append)
{
	return append->taken->rows[SLUICE_INDEX_LEAVES] > 0 && append->next_pause == 0;
}

/* Ends the appending: no more rows follow. */
void
sluice_unique_append_close(UniqueAppend *append)
{
	sluice_btree_give_back(&append->build);
}
