/*
 * Ranks values that only the server can compare: those in collations other
 * than byte order, and those of types that the core cannot order. Also forms
 * values as an index stores them.
 *
 * The core keeps each different value once, and hands the values over here.
 * They are sorted as PostgreSQL's own build sorts rows: by the operator
 * class's sort support, abbreviated keys first. Each value gets a rank, its
 * position in that order, and equal values get equal ranks. The core then
 * sorts the rows by the ranks of their values. For text with few different
 * values this needs comparisons by the collation for each different value
 * instead of for each row.
 *
 * The operator class decides which values are equal. Two values may be equal
 * but not the same: 1.0 and 1.00 as numeric, or the same text compressed in
 * one row and not in another. Then each row keeps its own value in the index.
 *
 * New values may come between two sorts: a build that spills ranks what it has
 * each time. The order of two values does not change when others come between
 * them, so runs that were sorted by earlier ranks are still in order.
 *
 * Comparisons run the server's code for the type and the collation, which may
 * allocate memory; `scratch` is reset at intervals. The build can be cancelled
 * at the same points.
 */
#include "index/build.h"

#include "access/detoast.h"
#include "access/heaptoast.h"
#include "access/toast_internals.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* After this many comparisons their memory is freed. */
#define COMPARISONS 1024

/* A value that the server compares. */
typedef struct Ranked
{
	Datum		key;			/* abbreviated, if the order has such keys */
	uint32		id;				/* the core's number for the value */
} Ranked;

struct SluiceIndexRanks
{
	MemoryContext context;		/* of this struct and all that it points to */
	SortSupportData sort;
	bool		abbreviated;
	bool		by_value;
	bool		users;			/* the comparison function is not the server's own */
	SluiceIndexValues values;
	Ranked *sorted;
	size_t		count;
	MemoryContext scratch;		/* of comparisons */
	int			comparisons;
};

/*
 * Returns a value as the server's functions take it. The core aligns each
 * image to 8 bytes.
 */
static Datum
value_of(const SluiceIndexRanks *ranks, uint32 id)
{
	const uint8 *image = ranks->values.images + (Size) ranks->values.starts[id] * 8;

	return ranks->by_value ? *(const Datum *) image : PointerGetDatum(image);
}

/*
 * Compares two values, for qsort_arg() and for adjacent ones. It calls the
 * server's code and can be cancelled: no frame of the core is below it on the
 * stack.
 */
static int
compare(const void *a, const void *b, void *arg)
{
	SluiceIndexRanks *ranks = arg;
	const Ranked *left = a;
	const Ranked *right = b;
	int			order;

	if (++ranks->comparisons == COMPARISONS)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(ranks->scratch);
		ranks->comparisons = 0;
	}
	if (ranks->abbreviated)
	{
		order = ApplySortComparator(left->key, false, right->key, false, &ranks->sort);
		if (order != 0)
			return order;
	}
	if (ranks->abbreviated)
		return ApplySortAbbrevFullComparator(value_of(ranks, left->id), false,
											 value_of(ranks, right->id), false, &ranks->sort);
	return ApplySortComparator(value_of(ranks, left->id), false,
							   value_of(ranks, right->id), false, &ranks->sort);
}

/* Prepares the sorting of a column's values. */
static SluiceIndexRanks *
open_ranks(Relation index, int column)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice ranks",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	SluiceIndexRanks *ranks = palloc0(sizeof(SluiceIndexRanks));

	ranks->context = context;
	ranks->scratch = AllocSetContextCreate(context, "pgsluice comparisons",
										   ALLOCSET_DEFAULT_SIZES);
	ranks->by_value = TupleDescAttr(RelationGetDescr(index), column)->attbyval;
	ranks->users = index_getprocid(index, column + 1, BTORDER_PROC) >= FirstNormalObjectId;
	ranks->sort.ssup_cxt = context;
	ranks->sort.ssup_collation = index->rd_indcollation[column];
	ranks->sort.ssup_attno = column + 1;
	ranks->sort.abbreviate = true;
	compat_prepare_sort(index, &ranks->sort);
	ranks->abbreviated = ranks->sort.abbrev_converter != NULL;
	MemoryContextSwitchTo(caller);
	return ranks;
}

/* Frees the ranks: other values will follow. */
void
sluice_index_forget_ranks(SluiceIndexBuild *build)
{
	for (int i = 0; i < lengthof(build->ranks); i++)
	{
		if (build->ranks[i])
			MemoryContextDelete(build->ranks[i]->context);
		build->ranks[i] = NULL;
	}
}

/*
 * Sorts the values that have no rank yet, into the end of `all`. A converter
 * may keep memory for the next value (varstr_abbrev_convert() keeps its
 * buffers), so it must not use the context that comparisons reset.
 */
static void
sort_new(SluiceIndexRanks *ranks, Ranked *all)
{
	size_t		count = ranks->values.count;
	MemoryContext caller = MemoryContextSwitchTo(ranks->context);

	for (size_t i = ranks->count; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		all[i].id = (uint32) i;
		all[i].key = ranks->abbreviated ?
			ranks->sort.abbrev_converter(value_of(ranks, (uint32) i), &ranks->sort) : (Datum) 0;
	}
	MemoryContextSwitchTo(ranks->scratch);
	qsort_arg(all + ranks->count, count - ranks->count, sizeof(Ranked), compare, ranks);
	MemoryContextSwitchTo(caller);
}

/*
 * Sorts the values that have come since the last time, and merges them with
 * the earlier ones.
 */
static void
sort_values(SluiceIndexRanks *ranks)
{
	size_t		old = ranks->count;
	size_t		count = ranks->values.count;
	Ranked	   *all = MemoryContextAllocHuge(ranks->context, Max(count, 1) * sizeof(Ranked));
	size_t		left = 0,
				right = old,
				to = 0;

	sort_new(ranks, all);
	/*
	 * The free space in front of these is just as large as the old ones need.
	 */
	while (left < old)
	{
		if (right < count && compare(&all[right], &ranks->sorted[left], ranks) < 0)
			all[to++] = all[right++];
		else
			all[to++] = ranks->sorted[left++];
	}
	if (ranks->sorted)
		pfree(ranks->sorted);
	ranks->sorted = all;
	ranks->count = count;
}

/* Whether a value of a column of variable length is compressed. */
static bool
is_compressed(const SluiceIndexRanks *ranks, Form_pg_attribute att, uint32 id)
{
	return att->attlen == -1 && VARATT_IS_COMPRESSED(DatumGetPointer(value_of(ranks, id)));
}

/*
 * Equal values of a column are stored in different ways, some of them
 * compressed. If equal values should have the same bytes (`exact`), each row
 * must keep its own form from the beginning: the build starts again with all
 * columns ranked (rank_all). If the index deduplicates, and equal values of a
 * key column need not have the same bytes, only the values themselves show
 * which rows can share a posting list. That is left to the stock build.
 */
static void
note_forms(SluiceIndexBuild *build, bool exact)
{
	for (int i = 0; build->deduplicates && i < IndexRelationGetNumberOfKeyAttributes(build->index); i++)
	{
		if (!build->attributes[i].exact)
		{
			build->unfit = "values of type character are compressed in some rows only";
			return;
		}
	}
	if (exact && !build->mixed)
	{
		build->unfit = "values are compressed in some rows only";
		build->rank_all = true;
	}
}

/* Ranks all values of a column and gives the ranks to the core. */
static void
rank_column(SluiceIndexBuild *build, int column)
{
	SluiceIndexRanks *ranks = build->ranks[column];
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(build->index), column);
	bool		differ = false;
	MemoryContext old;
	uint32	   *order;
	bool	   *equal;

	sluice_index_checked(build, pgsluice_index_values(build->core, column, &ranks->values));
	order = MemoryContextAllocHuge(CurrentMemoryContext,
								   Max(ranks->values.count, 1) * sizeof(uint32));
	equal = MemoryContextAllocHuge(CurrentMemoryContext, Max(ranks->values.count, 1));

	old = MemoryContextSwitchTo(ranks->scratch);
	sort_values(ranks);
	for (size_t i = 0; i < ranks->count; i++)
	{
		order[i] = ranks->sorted[i].id;
		equal[i] = i > 0 && compare(&ranks->sorted[i - 1], &ranks->sorted[i], ranks) == 0;
		differ |= equal[i] && (is_compressed(ranks, att, order[i - 1]) ||
							   is_compressed(ranks, att, order[i]));
		/*
		 * Rows with the same value share a rank, so the core would treat them
		 * as equal.
		 */
		if (ranks->users && compare(&ranks->sorted[i], &ranks->sorted[i], ranks) != 0)
			build->unfit = "the operator class finds a value unequal to itself";
	}
	if (differ)
		note_forms(build, build->attributes[column].exact);
	MemoryContextSwitchTo(old);
	MemoryContextReset(ranks->scratch);
	sluice_index_checked(build, pgsluice_index_rank(build->core, column, order, equal,
													ranks->count));
	pfree(order);
	pfree(equal);
}

/*
 * Ranks the values that have come so far, or finds the build unfit; returns
 * false then. Called before rows are sorted, and after the last row.
 */
bool
sluice_index_rank(SluiceIndexBuild *build)
{
	int			keys = IndexRelationGetNumberOfKeyAttributes(build->index);
	SluiceIndexStatus status = pgsluice_index_settle(build->core);

	sluice_index_checked(build, status);
	if (status == SLUICE_INDEX_CROWDED)
		build->unfit = SLUICE_INDEX_TOO_MANY;
	for (int i = 0; i < keys && !build->unfit; i++)
	{
		if (build->attributes[i].order != SLUICE_ORDER_RANKED)
			continue;
		if (build->ranks[i] == NULL)
			build->ranks[i] = open_ranks(build->index, i);
		rank_column(build, i);
	}
	return build->unfit == NULL;
}

/*
 * Returns the value as index_form_tuple() stores it: fetched if it is out of
 * line, then compressed if it is long and compression makes it shorter.
 */
static Datum
stored_value(Form_pg_attribute att, Datum value)
{
	if (VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		value = PointerGetDatum(detoast_external_attr((struct varlena *) DatumGetPointer(value)));
	if (!VARATT_IS_EXTENDED(DatumGetPointer(value)) &&
		VARSIZE(DatumGetPointer(value)) > TOAST_INDEX_TARGET &&
		(att->attstorage == TYPSTORAGE_EXTENDED || att->attstorage == TYPSTORAGE_MAIN))
	{
		Datum		compressed = toast_compress_datum(value, att->attcompression);

		if (DatumGetPointer(compressed) != NULL)
			return compressed;
	}
	return value;
}

/* Sets `stored` to the row's values as they are stored in the index. */
void
sluice_index_store_values(SluiceIndexBuild *build, const Datum *values,
						  const bool *isnull, Datum *stored)
{
	TupleDesc	desc = RelationGetDescr(build->index);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		stored[i] = isnull[i] || att->attlen != -1 ? values[i] : stored_value(att, values[i]);
	}
}
