/*
 * COPY's option on_duplicate for a table that only this transaction can reach.
 * All rows are inserted as those of any COPY. The merge that builds the index
 * finds the rows with equal keys; if the core cannot build it, a sort by the
 * server does. The rows that lose are deleted before the other indexes are
 * built, in table order. VACUUM removes them.
 *
 * WHICH ROW WINS.  With 'skip', the first one in the input; with 'replace',
 * the last one. Rows are in the table in input order, so a row's TID shows
 * which came first. The merge returns equal keys in the order of their TIDs.
 * Each pair of adjacent rows names one that loses, so that of several rows
 * with the same key exactly one stays.
 *
 * WHY THE RESULT IS THAT OF ROW-BY-ROW INSERTION.  It would not be if anything
 * could notice that a losing row was in the table: an AFTER ROW trigger, a
 * transition table, logical decoding, a volatile constraint, another unique
 * index that rejects a row which would have lost. In these cases, rows are
 * inserted one by one (needs_each_row(), sluice_index_can_dedupe(),
 * heap/speculative_insert.c).
 *
 * The index is built with the entries of the losing rows in it. They are then
 * deleted like any other rows. The command counter is advanced first, because
 * a command cannot delete its own rows.
 *
 * This file also stores the lost rows for duplicates_to
 * (sluice_keep_lost_row), for both methods.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/itup.h"
#include "access/tableam.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

static const char *const lost_columns[] = {"line", "key", "lost_row"};
static const Oid lost_types[] = {INT8OID, TEXTOID, TEXTOID};

/* Pairs of the losing row and the later row, by address. */
struct DuplicatePairs
{
	Tuplesortstate *sort;
	TupleTableSlot *slot;
	bool		replace;
};

/* The index that decides which rows are duplicates. */
Oid
sluice_index_arbiter(const IndexWriter *load)
{
	return load->duplicates->arbiter;
}

/*
 * Whether something would notice a row that loses or is replaced, or would read
 * the table while its other indexes are incomplete.
 */
static bool
needs_each_row(const ResultRelInfo *rri, const SluiceDuplicates *duplicates)
{
	const TriggerDesc *triggers = rri->ri_TrigDesc;
	bool		replace = duplicates->mode == SLUICE_DUPLICATE_REPLACE;

	/*
	 * A subscriber applies each logged row in turn, including those that lose.
	 */
	if (RelationIsLogicallyLogged(rri->ri_RelationDesc) ||
		sluice_has_volatile_checks(rri->ri_RelationDesc, NULL, PROVOLATILE_VOLATILE) ||
		(duplicates->lost_rows && sluice_spi_insert_runs_code(duplicates->lost_rows)))
		return true;
	return triggers != NULL &&
		(triggers->trig_insert_after_row || triggers->trig_insert_new_table ||
		 (replace && (triggers->trig_update_before_row || triggers->trig_update_after_row)));
}

/*
 * Decides whether duplicates of this load are resolved at its end. Called
 * before the first row.
 */
bool
sluice_index_can_dedupe(IndexWriter *load, SluiceDuplicates *duplicates)
{
	ResultRelInfo *rri = load->rri;

	if (!load->is_private || needs_each_row(rri, duplicates))
		return false;
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];
		IndexInfo  *info = rri->ri_IndexRelationInfo[i];
		const char *because;

		/*
		 * What another unique index rejects may depend on which rows are in
		 * the table at that moment.
		 */
		if (!sluice_index_can_wait(rri->ri_RelationDesc, index, info, &because) ||
			(info->ii_Unique && RelationGetRelid(index) != duplicates->arbiter))
			return false;
	}
	load->duplicates = duplicates;
	duplicates->at_end = true;
	return true;
}

/* Opens the table that duplicates_to names. */
SluiceSpiInsert *
sluice_lost_rows_open(const char *name, Relation target)
{
	return sluice_spi_insert_open(name, "duplicates_to", target, lost_columns, lost_types,
								  lengthof(lost_columns));
}

/*
 * Stores a lost row in the table of duplicates_to, in the form of the table
 * that the statement names.
 */
void
sluice_keep_lost_row(SluiceDuplicates *duplicates, ResultRelInfo *rri, EState *estate,
					   Relation arbiter, IndexInfo *info, TupleTableSlot *lost, uint64 line)
{
	/* The map is made for the first row and is used for those that follow. */
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	TupleConversionMap *map = ExecGetChildToRootMap(rri);
	Datum		key[INDEX_MAX_KEYS];
	bool		key_isnull[INDEX_MAX_KEYS];
	Datum		values[lengthof(lost_columns)];
	bool		isnull[lengthof(lost_columns)] = {0};
	char	   *described;
	ExprContext *econtext = GetPerTupleExprContext(estate);

	MemoryContextSwitchTo(old);
	econtext->ecxt_scantuple = lost;
	FormIndexDatum(info, lost, estate, key, key_isnull);
	described = BuildIndexValueDescription(arbiter, key, key_isnull);
	values[0] = Int64GetDatum((int64) line);
	isnull[0] = line == 0;
	isnull[1] = described == NULL;
	values[1] = described ? CStringGetTextDatum(described) : (Datum) 0;
	if (map)
	{
		HeapTuple	tuple = execute_attr_map_tuple(ExecFetchSlotHeapTuple(lost, true, NULL), map);

		values[2] = heap_copy_tuple_as_datum(tuple, map->outdesc);
	}
	else
		values[2] = ExecFetchSlotHeapTupleDatum(lost);
	values[2] = CStringGetTextDatum(OidOutputFunctionCall(F_RECORD_OUT, values[2]));
	/* An error of that table is not about the record's data. */
	duplicates->keeping = true;
	sluice_spi_insert_row(duplicates->lost_rows, values, isnull);
	duplicates->keeping = false;
}

/*
 * The pairs are sorted by the losing row. So rows are deleted in table order,
 * and each page is visited once, or twice if the rows are stored before.
 */
static void
open_pairs(DuplicatePairs *pairs, const SluiceDuplicates *duplicates)
{
	TupleDesc	desc = CreateTemplateTupleDesc(2);
	AttrNumber	column = 1;
	Oid			operator = Int8LessOperator;
	Oid			collation = InvalidOid;
	bool		nulls_first = false;

	TupleDescInitEntry(desc, 1, "loser", INT8OID, -1, 0);
	TupleDescInitEntry(desc, 2, "came", INT8OID, -1, 0);
	compat_finish_descriptor(desc);
	pairs->sort = tuplesort_begin_heap(desc, 1, &column, &operator, &collation, &nulls_first,
									   maintenance_work_mem / 2, NULL,
									   duplicates->lost_rows ? TUPLESORT_RANDOMACCESS : TUPLESORT_NONE);
	pairs->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	pairs->replace = duplicates->mode == SLUICE_DUPLICATE_REPLACE;
}

/*
 * Adds two rows with equal keys, between which there is no other row with that
 * key.
 */
static void
add_pair(DuplicatePairs *pairs, uint64 earlier, uint64 later)
{
	TupleTableSlot *slot = ExecClearTuple(pairs->slot);

	slot->tts_values[0] = Int64GetDatum((int64) (pairs->replace ? earlier : later));
	slot->tts_values[1] = Int64GetDatum((int64) later);
	slot->tts_isnull[0] = slot->tts_isnull[1] = false;
	tuplesort_puttupleslot(pairs->sort, ExecStoreVirtualTuple(slot));
}

/* Adds the rows with equal keys that the core has found in its last step. */
void
sluice_dedupe_take_pairs(SluiceIndexBuild *build)
{
	const		uint64_t (*pairs)[2];
	size_t		count = pgsluice_index_pairs(build->core, &pairs);

	for (size_t i = 0; i < count; i++)
		add_pair(build->request->pairs, pairs[i][0], pairs[i][1]);
}

/* The TID of a row, which the core has as one number. */
static ItemPointerData
tid_of(Datum address)
{
	ItemPointerData tid;

	ItemPointerSet(&tid, (BlockNumber) (DatumGetInt64(address) >> 16),
				   (OffsetNumber) DatumGetInt64(address));
	return tid;
}

/*
 * Fetches a row of this COPY. It belongs to the current command, so it may not
 * be visible.
 */
static void
fetch(Relation rel, ItemPointer tid, TupleTableSlot *row)
{
	if (!table_tuple_fetch_row_version(rel, tid, SnapshotAny, row))
		elog(ERROR, "pgsluice: a row of this COPY is not there");
}

/*
 * Raises an error if the later row is not of this COPY. A function that the
 * COPY called has then inserted it while the index had no entries of ours,
 * which would have rejected it.
 */
static void
check_ours(IndexWriter *load, Relation index, ItemPointer tid, TupleTableSlot *row)
{
	bool		isnull;

	fetch(load->rri->ri_RelationDesc, tid, row);
	if (DatumGetCommandId(slot_getsysattr(row, MinCommandIdAttributeNumber, &isnull)) != load->cid)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("duplicate key value violates unique constraint \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("A function that the COPY called inserted a row with the same key."),
				 errtableconstraint(load->rri->ri_RelationDesc, RelationGetRelationName(index))));
}

/* What is done for each pair. `row` is a slot for a row of the table. */
typedef void (*PairWork) (IndexWriter *load, Relation index, IndexInfo *info,
						  TupleTableSlot *pair, TupleTableSlot *row);

/* Stores the losing row of a pair in the table of duplicates_to. */
static void
keep_loser(IndexWriter *load, Relation index, IndexInfo *info, TupleTableSlot *pair,
		   TupleTableSlot *row)
{
	bool		isnull;
	ItemPointerData loser = tid_of(slot_getattr(pair, 1, &isnull));
	ItemPointerData came = tid_of(slot_getattr(pair, 2, &isnull));

	if (load->disturbed)
		check_ours(load, index, &came, row);
	fetch(load->rri->ri_RelationDesc, &loser, row);
	sluice_keep_lost_row(load->duplicates, load->rri, load->estate, index, info, row,
						 sluice_index_line_of(load, &came));
	ExecClearTuple(row);
}

/* Deletes the losing row of a pair. */
static void
lose(IndexWriter *load, Relation index, IndexInfo *info, TupleTableSlot *pair,
	 TupleTableSlot *row)
{
	SluiceDuplicates *duplicates = load->duplicates;
	bool		isnull;
	ItemPointerData loser = tid_of(slot_getattr(pair, 1, &isnull));
	ItemPointerData came = tid_of(slot_getattr(pair, 2, &isnull));

	if (load->disturbed)
		check_ours(load, index, &came, row);
	ExecClearTuple(row);
	simple_heap_delete(load->rri->ri_RelationDesc, &loser);
	if (duplicates->mode == SLUICE_DUPLICATE_SKIP)
		duplicates->skipped++;
	else
		duplicates->replaced++;
}

/* Does the work for each pair, in the order of the losing rows. */
static void
for_each_pair(IndexWriter *load, DuplicatePairs *pairs, PairWork work)
{
	Relation	index = index_open(load->duplicates->arbiter, NoLock);
	IndexInfo  *info = BuildIndexInfo(index);
	TupleTableSlot *row = table_slot_create(load->rri->ri_RelationDesc, NULL);

	while (tuplesort_gettupleslot(pairs->sort, true, false, pairs->slot, NULL))
	{
		MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));

		CHECK_FOR_INTERRUPTS();
		work(load, index, info, pairs->slot, row);
		MemoryContextSwitchTo(old);
		ResetPerTupleExprContext(load->estate);
	}
	ExecDropSingleTupleTableSlot(row);
	index_close(index, NoLock);
}

/*
 * Deletes all losing rows. A pair has two adjacent rows with equal keys: of
 * several rows with the same key all but one lose, each of them once.
 *
 * With duplicates_to, all of them are stored there before the first one is
 * deleted. Each row is stored by a separate command. If rows were deleted
 * between these, each deletion would have another command ID, and for each
 * pair of IDs (of the insertion and of the deletion) the server keeps an entry
 * until the transaction ends.
 */
static void
lose_all(IndexWriter *load, DuplicatePairs *pairs)
{
	tuplesort_performsort(pairs->sort);
	if (load->duplicates->lost_rows)
	{
		for_each_pair(load, pairs, keep_loser);
		tuplesort_rescan(pairs->sort);
	}
	for_each_pair(load, pairs, lose);
}

/* ----------------------------------------------------------------
 * Finds the rows with equal keys if the core could not sort the index, for
 * COPY's option on_duplicate. The server sorts the entries of all rows, as its
 * own build does, and adjacent ones are compared.
 * ----------------------------------------------------------------
 */

typedef struct Sorter
{
	SluiceIndexBuild build;		/* the index, and memory for its values */
	Tuplesortstate *sort;
	ItemPointerData too_long;	/* the first row whose entry is too long for an index, if valid */
} Sorter;

/* Bytes of the tuple that index_form_tuple() would form from these values. */
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

/* Adds a row's entry to the sort. */
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

/* Whether a unique index treats two keys as equal. */
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

/*
 * Rejects a row whose key is too long, with the error of an ordinary
 * insertion.
 */
static void
refuse(IndexWriter *load, Oid indexid, ItemPointer tid)
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

/* The number that the core uses for a TID, as in tid_of(). */
static uint64
address_of(IndexTuple tuple)
{
	return ((uint64) ItemPointerGetBlockNumber(&tuple->t_tid) << 16) |
		ItemPointerGetOffsetNumber(&tuple->t_tid);
}

/* Adds a pair for each two adjacent entries with equal keys. */
static void
add_equal_entries(Sorter *sorter, bool nulls_not_distinct, DuplicatePairs *pairs)
{
	IndexTuple	last = NULL;
	IndexTuple	tuple;

	while ((tuple = tuplesort_getindextuple(sorter->sort, true)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (last && sluice_index_equal_keys(sorter->build.index, nulls_not_distinct, last, tuple))
			add_pair(pairs, address_of(last), address_of(tuple));
		if (last)
			pfree(last);
		last = CopyIndexTuple(tuple);
	}
	if (last)
		pfree(last);
}

/* Adds the pairs of rows of the table with equal keys. */
static void
add_pairs_by_sort(IndexWriter *load, Oid indexid, DuplicatePairs *pairs)
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
		add_equal_entries(&sorter, info->ii_NullsNotDistinct, pairs);
	}
	tuplesort_end(sorter.sort);
	MemoryContextDelete(sorter.build.scratch);
	index_close(index, NoLock);
	if (ItemPointerIsValid(&sorter.too_long))
		refuse(load, indexid, &sorter.too_long);
}

/* ----------------------------------------------------------------
 * The end of the COPY.
 * ----------------------------------------------------------------
 */

/*
 * Builds the index that finds duplicates, and deletes the losing rows. If only
 * the stock build can build it, that comes later.
 */
void
sluice_dedupe(IndexWriter *load, SluiceIndexBuilt *arbiter)
{
	DuplicatePairs pairs;

	open_pairs(&pairs, load->duplicates);
	sluice_index_build_all(load->rri->ri_RelationDesc, arbiter, 1, 0, &pairs);
	if (!arbiter->fit)
		add_pairs_by_sort(load, arbiter->index, &pairs);
	/*
	 * This makes the rows those of an earlier command, which this one may
	 * delete.
	 */
	CommandCounterIncrement();
	lose_all(load, &pairs);
	tuplesort_end(pairs.sort);
	ExecDropSingleTupleTableSlot(pairs.slot);
}
