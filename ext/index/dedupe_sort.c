/*
 * Rows with equal keys of an index that the core could not sort, for COPY's option
 * on_duplicate: the server sorts the entries of all rows, as its own build does, and
 * neighbours are compared.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/itup.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

typedef struct Sorter
{
	SluiceIndexBuild build;		/* the index, and memory for its values */
	Tuplesortstate *sort;
	ItemPointerData too_long;	/* the first row whose entry no index takes, if it is valid */
} Sorter;

/* Bytes of the entry that index_form_tuple() makes of these values. */
static Size
size_of_entry(Relation index, const Datum *stored, const bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(index);
	bool		has_null = false;

	for (int i = 0; i < desc->natts; i++)
		has_null |= isnull[i];
	return MAXALIGN(IndexInfoFindDataOffset(has_null ? INDEX_NULL_MASK : 0) +
					heap_compute_data_size(desc, (Datum *) stored, (bool *) isnull));
}

/* Gives the sort a row's entry. */
static void
add_row(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool alive, void *state)
{
	Sorter	   *sorter = state;
	Datum		stored[INDEX_MAX_KEYS];
	MemoryContext old;

	if (!alive)
		return;
	old = MemoryContextSwitchTo(sorter->build.scratch);
	sluice_index_store_values(&sorter->build, values, isnull, stored);
	if (size_of_entry(index, stored, isnull) <= COMPAT_BT_MAX_ITEM)
		tuplesort_putindextuplevalues(sorter->sort, index, tid, stored, isnull);
	else if (!ItemPointerIsValid(&sorter->too_long) ||
			 ItemPointerCompare(tid, &sorter->too_long) < 0)
		sorter->too_long = *tid;
	MemoryContextSwitchTo(old);
	MemoryContextReset(sorter->build.scratch);
}

/* Whether a unique index takes the keys for the same. */
bool
sluice_index_equal_keys(Relation index, bool nulls_not_distinct, IndexTuple a, IndexTuple b)
{
	TupleDesc	desc = RelationGetDescr(index);

	for (int i = 1; i <= IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		bool		left_null;
		bool		right_null;
		Datum		left = index_getattr(a, i, desc, &left_null);
		Datum		right = index_getattr(b, i, desc, &right_null);

		if (left_null && right_null && nulls_not_distinct)
			continue;
		if (left_null || right_null ||
			DatumGetInt32(FunctionCall2Coll(index_getprocinfo(index, i, BTORDER_PROC),
											index->rd_indcollation[i - 1], left, right)) != 0)
			return false;
	}
	return true;
}

/* The row with a key that is too long is refused as an insertion refuses it. */
static void
refuse(SluiceIndexLoad *load, Oid indexid, ItemPointer tid)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index;
	IndexInfo  *info;
	TupleTableSlot *row = table_slot_create(rel, NULL);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	sluice_index_empty_tree(load, indexid);
	load->cstate->line_buf_valid = false;
	load->cstate->cur_lineno = sluice_index_line_of(load, tid);
	index = index_open(indexid, NoLock);
	info = BuildIndexInfo(index);
	if (!table_tuple_fetch_row_version(rel, tid, SnapshotAny, row))
		elog(ERROR, "pgsluice: a row of this COPY is not there");
	FormIndexDatum(info, row, load->estate, values, isnull);
	index_insert(index, values, isnull, tid, rel, UNIQUE_CHECK_NO, false, info);
	elog(ERROR, "pgsluice: an entry of index \"%s\" is not too long", RelationGetRelationName(index));
}

static uint64
address_of(IndexTuple tuple)
{
	return ((uint64) ItemPointerGetBlockNumber(&tuple->t_tid) << 16) |
		ItemPointerGetOffsetNumber(&tuple->t_tid);
}

/* Tells of all neighbours with equal keys. */
static void
tell(Sorter *sorter, bool nulls_not_distinct, SluiceIndexTwins *twins)
{
	IndexTuple	last = NULL;
	IndexTuple	tuple;

	while ((tuple = tuplesort_getindextuple(sorter->sort, true)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (last && sluice_index_equal_keys(sorter->build.index, nulls_not_distinct, last, tuple))
			sluice_index_add_twins(twins, address_of(last), address_of(tuple));
		if (last)
			pfree(last);
		last = CopyIndexTuple(tuple);
	}
	if (last)
		pfree(last);
}

/* Tells which rows of the table have equal keys. */
void
sluice_index_sort_twins(SluiceIndexLoad *load, Oid indexid, SluiceIndexTwins *twins)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(indexid, NoLock);
	IndexInfo  *info = BuildIndexInfo(index);
	Sorter		sorter = {.build.index = index};

	ItemPointerSetInvalid(&sorter.too_long);
	sorter.build.scratch = AllocSetContextCreate(CurrentMemoryContext, "pgsluice values",
												 ALLOCSET_DEFAULT_SIZES);
	sorter.sort = tuplesort_begin_index_btree(rel, index, false, false, maintenance_work_mem / 2,
											  NULL, TUPLESORT_NONE);
	table_index_build_scan(rel, index, info, false, false, add_row, &sorter, NULL);
	if (!ItemPointerIsValid(&sorter.too_long))
	{
		tuplesort_performsort(sorter.sort);
		tell(&sorter, info->ii_NullsNotDistinct, twins);
	}
	tuplesort_end(sorter.sort);
	MemoryContextDelete(sorter.build.scratch);
	index_close(index, NoLock);
	if (ItemPointerIsValid(&sorter.too_long))
		refuse(load, indexid, &sorter.too_long);
}
