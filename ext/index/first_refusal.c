/*
 * Finds the row of a COPY that is rejected when entries of unique indexes have
 * waited (sorted_insert.c). It is the first such row in the input, as in stock
 * COPY.
 *
 * Entries are sorted by their keys, so the conflict that is found first is
 * seldom that of the first row. From then on nothing more is inserted. All
 * entries that still wait, of all unique indexes of the load, are only
 * checked. Of all rows with a conflict, the one with the lowest line is
 * rejected. If several indexes reject it, the one with the lowest OID does,
 * because insertions process indexes in that order. The error ends the
 * transaction, so entries that are already in the indexes do no harm.
 *
 * WHICH ROW HAS THE CONFLICT.  Of several rows with the same key, the first
 * one in the input has no conflict, unless an older row has the key too. The
 * heap TID of an entry identifies its row. RowLines has the TIDs and lines of
 * the load's rows, from the time at which entries of unique indexes began to
 * wait. A row whose TID is not there was in the table earlier.
 *
 * ERRORS OF LATER ROWS.  When a value cannot be read, or a constraint or
 * another index rejects a row, entries of earlier rows may be waiting, and
 * such a row may have a conflict. sluice_index_refuse_earlier() looks for one
 * before that error ends the statement. This is work in a transaction that has
 * met an error. It changes no entry: it reads pages of B-trees and rows,
 * without functions or snapshots of users. A search may finish another
 * session's incomplete split. It waits for no other transaction: a row of one
 * that is in progress counts as no conflict.
 *
 * It is only for errors that are about the data and were raised with no page
 * locked. A page lock would be held until the abort, and we might wait for
 * ourselves. So if an access method rejects a value while it has a page locked
 * (an entry that is too large), that ends the statement at once, and so do a
 * cancel and a full disk. For this reason, waiting entries are inserted before
 * a row that is so long that its entries may be too large (sorted_insert.c).
 */
#include "index/build.h"

#include "access/genam.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* Rows that are consecutive in a block and in the input. */
typedef struct PlacedRange
{
	BlockNumber block;
	OffsetNumber first;
	uint16		count;
	uint64		line;			/* of the first one */
} PlacedRange;

/* Heap TIDs and lines of rows, in input order. */
struct RowLines
{
	MemoryContext context;
	PlacedRange *ranges;
	size_t		used;
	size_t		allocated;
	bool		sorted;			/* by TID; no row was added since */
};

RowLines *
sluice_row_lines_open(void)
{
	RowLines   *lines = palloc0(sizeof(RowLines));

	lines->context = CurrentMemoryContext;
	return lines;
}

/* Bytes that all ranges take. */
Size
sluice_row_lines_size(const RowLines *lines)
{
	return sizeof(PlacedRange) * lines->used;
}

/* Records these rows. */
void
sluice_row_lines_note(RowLines *lines, const PlacedRow *rows, int count)
{
	lines->sorted = false;
	for (int i = 0; i < count; i++)
	{
		BlockNumber block = ItemPointerGetBlockNumber(&rows[i].tid);
		OffsetNumber offset = ItemPointerGetOffsetNumber(&rows[i].tid);
		PlacedRange *range = lines->used > 0 ? &lines->ranges[lines->used - 1] : NULL;

		if (range && range->block == block && range->first + range->count == offset &&
			range->line + range->count == rows[i].line)
		{
			range->count++;
			continue;
		}
		if (lines->used == lines->allocated)
		{
			lines->allocated = Max(256, lines->allocated * 2);
			lines->ranges = lines->ranges == NULL ?
				MemoryContextAllocHuge(lines->context, sizeof(PlacedRange) * lines->allocated) :
				repalloc_huge(lines->ranges, sizeof(PlacedRange) * lines->allocated);
		}
		lines->ranges[lines->used++] = (PlacedRange) {
			.block = block,.first = offset,.count = 1,.line = rows[i].line
		};
	}
}

/* Called when no entry of a unique index waits. */
void
sluice_row_lines_forget(RowLines *lines)
{
	if (lines->ranges)
		pfree(lines->ranges);
	lines->ranges = NULL;
	lines->used = lines->allocated = 0;
}

static int
compare_ranges(const void *a, const void *b)
{
	const PlacedRange *one = a;
	const PlacedRange *other = b;

	if (one->block != other->block)
		return one->block < other->block ? -1 : 1;
	return (int) one->first - (int) other->first;
}

/*
 * The line of the row with this TID, or 0 if the row was not recorded. A TID is
 * recorded once: nobody frees the TID of a row while its transaction runs.
 */
uint64
sluice_row_lines_find(RowLines *lines, const ItemPointerData *tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(tid);
	OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
	size_t		low = 0;
	size_t		high = lines->used;

	if (!lines->sorted && lines->used > 1)
		qsort(lines->ranges, lines->used, sizeof(PlacedRange), compare_ranges);
	lines->sorted = true;
	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;
		const PlacedRange *range = &lines->ranges[middle];

		if (range->block < block || (range->block == block && range->first + range->count <= offset))
			low = middle + 1;
		else
			high = middle;
	}
	if (low == lines->used || lines->ranges[low].block != block || lines->ranges[low].first > offset)
		return 0;
	return lines->ranges[low].line + (offset - lines->ranges[low].first);
}

/* Whether a row with a conflict comes before the first one so far. */
static bool
is_earlier(const FirstRefusal *first, uint64 line, Oid index)
{
	return line < first->line || (line == first->line && index < first->oid);
}

/* Records a row that has a conflict. */
static void
add_conflict(FirstRefusal *first, Relation heap, Relation index, IndexTuple tuple, uint64 line)
{
	Assert(line > 0);
	if (!is_earlier(first, line, RelationGetRelid(index)))
		return;
	first->line = line;
	first->oid = RelationGetRelid(index);
	first->heap = heap;
	first->index = index;
	if (first->tuple)
		pfree(first->tuple);
	first->tuple = CopyIndexTuple(tuple);
}

/* An entry has a rival. If the rival is a later row of this load, the rival is the row to reject. */
void
sluice_first_refusal_add(FirstRefusal *first, RowLines *lines, Relation heap, Relation index,
						 IndexTuple tuple, const SluiceRival *rival)
{
	add_conflict(first, heap, index, tuple, Max(sluice_row_lines_find(lines, &tuple->t_tid),
												sluice_row_lines_find(lines, &rival->tid)));
}

/*
 * Looks for conflicts of entries that are in index order. `before` is NULL, or
 * an entry with the last key before them: the one that is first in the input.
 * On return it is the same for the last key of these entries.
 */
void
sluice_first_refusal_look(FirstRefusal *first, RowLines *lines, CopyFromState cstate,
						  Relation heap, Relation index, IndexTuple *before,
						  IndexTuple *tuples, int count)
{
	bool		nulls_not_distinct = index->rd_index->indnullsnotdistinct;
	IndexTuple	group = *before;	/* the first in the input of those with this key */
	IndexTuple	last;
	uint64		group_line = group ? sluice_row_lines_find(lines, &group->t_tid) : 0;
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "pgsluice index look",
												  ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < count; i++)
	{
		uint64		line = sluice_row_lines_find(lines, &tuples[i]->t_tid);
		SluiceRival rival;
		MemoryContext old;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		if (group && sluice_index_equal_keys(index, nulls_not_distinct, group, tuples[i]))
		{
			bool		is_first = line < group_line;

			add_conflict(first, heap, index, is_first ? group : tuples[i],
						 is_first ? group_line : line);
			if (!is_first)
				continue;
		}
		group = tuples[i];
		group_line = line;
		if (!is_earlier(first, line, RelationGetRelid(index)))
			continue;
		cstate->cur_lineno = line;
		old = MemoryContextSwitchTo(scratch);
		found = sluice_btree_look(heap, index, tuples[i], first->at_once, &rival);
		MemoryContextSwitchTo(old);
		MemoryContextReset(scratch);
		if (found)
			sluice_first_refusal_add(first, lines, heap, index, tuples[i], &rival);
	}
	MemoryContextDelete(scratch);
	/* All of them may have the key of `before`. */
	last = group ? CopyIndexTuple(group) : NULL;
	if (*before)
		pfree(*before);
	*before = last;
}

/* Raises stock COPY's error for the first row with a conflict. */
void
sluice_first_refusal_raise(const FirstRefusal *first, CopyFromState cstate)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	char	   *key;

	Assert(first->tuple != NULL);
	cstate->line_buf_valid = false;
	cstate->cur_lineno = first->line;
	cstate->cur_attname = cstate->cur_attval = NULL;
	index_deform_tuple(first->tuple, RelationGetDescr(first->index), values, isnull);
	key = BuildIndexValueDescription(first->index, values, isnull);
	/* The message is that of _bt_check_unique(). */
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					RelationGetRelationName(first->index)),
			 key ? errdetail("Key %s already exists.", key) : 0,
			 errtableconstraint(first->heap, RelationGetRelationName(first->index))));
}

/*
 * The index that a caught error is from: the one that the row was being
 * inserted into, or the one that the error names. Otherwise it is an OID above
 * all others, because AFTER triggers come after the indexes.
 */
static Oid
index_of_error(const ErrorData *error, const SortedInsert *inserts)
{
	Oid			current;
	const ResultRelInfo *all = sluice_sorted_insert_indexes(inserts, &current);

	if (OidIsValid(current))
		return current;
	for (int i = 0; i < all->ri_NumIndices && error->constraint_name; i++)
	{
		Relation	index = all->ri_IndexRelationDescs[i];

		if (strcmp(error->constraint_name, RelationGetRelationName(index)) == 0)
			return RelationGetRelid(index);
	}
	return PG_UINT32_MAX;
}

/*
 * An error of the load was just caught, and no page is locked. Returns, and
 * the caller raises the error again, if it is not about the data, if no
 * entries of unique indexes wait, or if a conflict is already being looked
 * for. Otherwise raises the conflict of an earlier row, or else the caught
 * error.
 */
void
sluice_index_refuse_earlier(CopyFromState cstate)
{
	MemoryContext old;
	ErrorData  *error;
	FirstRefusal first = {.line = cstate->cur_lineno,.at_once = true};

	if (!sluice_is_about_the_data(geterrcode(), true) || !sluice_sorted_insert_checks(cstate))
		return;
	old = MemoryContextSwitchTo(cstate->copycontext);
	error = CopyErrorData();
	FlushErrorState();
	for (SortedInsert *at = NULL; (at = sluice_sorted_insert_next(cstate, at)) != NULL;)
	{
		if (first.tuple == NULL)
			first.oid = index_of_error(error, at);
		sluice_sorted_insert_look(at, &first);
	}
	if (first.tuple)
		sluice_first_refusal_raise(&first, cstate);
	MemoryContextSwitchTo(old);
	ReThrowError(error);
}
