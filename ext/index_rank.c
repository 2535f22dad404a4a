/*
 * Values that only the server can compare, or form: other collations than those
 * of byte order, other types than those that the core knows.
 *
 * The core keeps each different value once. Here they are sorted as PostgreSQL's
 * own build sorts rows: by the operator class's sort support, abbreviated keys
 * first. Rows are then sorted by their values' ranks, which the core does.
 */
#include "index.h"

#include "access/detoast.h"
#include "access/heaptoast.h"
#include "access/toast_internals.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* After so many comparisons their memory is freed. */
#define COMPARISONS 1024

typedef struct RankedValue
{
	Datum		key;			/* abbreviated, if the order has such keys */
	uint32		id;				/* the core's number for the value */
} RankedValue;

struct SluiceIndexRanks
{
	MemoryContext context;		/* of all of it */
	SortSupportData sort;
	bool		abbreviated;
	bool		by_value;
	SluiceIndexValues values;
	RankedValue *sorted;
	size_t		count;
	MemoryContext scratch;		/* of comparisons */
	int			comparisons;
};

static Datum
value_of(const SluiceIndexRanks *ranks, uint32 id)
{
	const uint8 *image = ranks->values.images + (Size) ranks->values.starts[id] * 8;

	return ranks->by_value ? *(const Datum *) image : PointerGetDatum(image);
}

static int
compare(const void *a, const void *b, void *arg)
{
	SluiceIndexRanks *ranks = arg;
	const RankedValue *left = a;
	const RankedValue *right = b;
	int			order;

	if (ranks->abbreviated)
	{
		order = ApplySortComparator(left->key, false, right->key, false, &ranks->sort);
		if (order != 0)
			return order;
	}
	if (++ranks->comparisons == COMPARISONS)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(ranks->scratch);
		ranks->comparisons = 0;
	}
	if (ranks->abbreviated)
		return ApplySortAbbrevFullComparator(value_of(ranks, left->id), false,
											 value_of(ranks, right->id), false, &ranks->sort);
	return ApplySortComparator(value_of(ranks, left->id), false,
							   value_of(ranks, right->id), false, &ranks->sort);
}

/* Opens what sorting the values of a column needs. */
static SluiceIndexRanks *
open_ranks(SluiceIndexBuild *build, int column)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice ranks",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	SluiceIndexRanks *ranks = palloc0(sizeof(SluiceIndexRanks));

	ranks->context = context;
	ranks->scratch = AllocSetContextCreate(context, "pgsluice comparisons",
										   ALLOCSET_DEFAULT_SIZES);
	ranks->by_value = TupleDescAttr(RelationGetDescr(build->index), column)->attbyval;
	ranks->sort.ssup_cxt = context;
	ranks->sort.ssup_collation = build->index->rd_indcollation[column];
	ranks->sort.ssup_attno = column + 1;
	ranks->sort.abbreviate = true;
	compat_prepare_sort(build->index, &ranks->sort);
	ranks->abbreviated = ranks->sort.abbrev_converter != NULL;
	MemoryContextSwitchTo(caller);
	return ranks;
}

/* The values that were ranked are of no more use: others are going to come. */
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
 * Adds the values that have come since the last time. A converter keeps what it
 * allocates for the next value (varstr_abbrev_convert() its buffers): not in memory
 * that comparisons free.
 */
static void
convert_values(SluiceIndexRanks *ranks, RankedValue *all)
{
	MemoryContext caller = MemoryContextSwitchTo(ranks->context);

	for (size_t i = ranks->count; i < ranks->values.count; i++)
	{
		all[i].id = (uint32) i;
		all[i].key = ranks->abbreviated ?
			ranks->sort.abbrev_converter(value_of(ranks, (uint32) i), &ranks->sort) : (Datum) 0;
	}
	MemoryContextSwitchTo(caller);
}

/* Sorts the values that have come since the last time, and merges them with the others. */
static void
sort_values(SluiceIndexRanks *ranks)
{
	size_t		old = ranks->count;
	size_t		count = ranks->values.count;
	RankedValue *all = MemoryContextAllocHuge(ranks->context,
											  Max(count, 1) * sizeof(RankedValue));
	RankedValue *fresh = all + old;
	size_t		left = 0,
				right = old,
				to = 0;

	convert_values(ranks, all);
	qsort_arg(fresh, count - old, sizeof(RankedValue), compare, ranks);

	/* What is free in front of the fresh ones is just as much as the old ones take. */
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

/* Ranks all values of a column and tells the core. */
static void
rank_column(SluiceIndexBuild *build, int column)
{
	SluiceIndexRanks *ranks = build->ranks[column];
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
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(ranks->scratch);
	sluice_index_checked(build, pgsluice_index_rank(build->core, column, order, equal,
													ranks->count));
	pfree(order);
	pfree(equal);
}

/* Before rows are sorted, and after the last one: ranks what has come, or finds the build unfit. */
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
			build->ranks[i] = open_ranks(build, i);
		rank_column(build, i);
	}
	return build->unfit == NULL;
}

/*
 * The value as index_form_tuple() stores it: fetched if it is out of line, then
 * compressed if it is long and that makes it shorter.
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

/* The row's values as they are stored in the index, into stored. */
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
