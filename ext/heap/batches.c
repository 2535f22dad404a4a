/*
 * Batches: one for a plain table, one for each leaf of a partitioned one.
 *
 * Rows of a partitioned table are routed by the executor's own code
 * (ExecFindPartition), which also opens and checks each leaf. Up to
 * MAX_BATCHES leaves keep their batch open. Each leaf gets its rows in their
 * order. In stock COPY, the rows of one flush are inserted partition by
 * partition, and no row of a later flush is inserted before them. That order
 * is kept where it can be observed (`by_partition` is false): AFTER ROW
 * triggers run in that order, and logical decoding shows it. Otherwise the
 * rows of a leaf wait until there are enough of them for a whole batch, so
 * that its pages and its indexes get many rows at a time.
 *
 * A leaf may turn out, when its first row arrives, to take its rows one by
 * one: it is foreign, or has a BEFORE ROW trigger or a volatile CHECK. Then
 * all waiting rows are inserted first, with their index entries, because
 * these may look at them. Workers that are in the session end before: such a
 * trigger may change catalogs that they read (workers/session.c).
 */
#include "heap/heap.h"

#include "access/tupconvert.h"
#include "access/xlog.h"
#include "catalog/pg_am.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "executor/execPartition.h"
#include "executor/nodeModifyTable.h"
#include "foreign/fdwapi.h"
#include "utils/hsearch.h"

/* This many batches stay open, as in CopyFrom. */
#define MAX_BATCHES 32

/*
 * From now on rows are inserted into the partitions in stock COPY's order.
 * More rows may be waiting than that order allows, so they are inserted first.
 */
static void
keep_order(SluiceLoad *load)
{
	const char *record = load->record;

	if (!load->by_partition)
		return;
	/*
	 * Values of the row being routed may be in memory that the flush resets.
	 */
	if (!TTS_EMPTY(load->root_slot))
		ExecMaterializeSlot(load->root_slot);
	/* An error of this insertion must not show the record. */
	load->record = NULL;
	sluice_flush(load, NULL);
	sluice_leaves_flush(load);
	load->record = record;
	load->by_partition = false;
}

/*
 * Opens the batch of a table or leaf, in memory that lives as long as the
 * executor's state.
 */
static SluiceBatch *
open_batch(SluiceLoad *load, ResultRelInfo *rri)
{
	MemoryContext old = MemoryContextSwitchTo(load->estate->es_query_cxt);
	SluiceBatch *batch = palloc(sizeof(SluiceBatch));
	const char *never = NULL;

	sluice_batch_open(batch, rri, load->estate, load->cstate, load->cid, load->options);
	/*
	 * Such functions read the rows that are in the table by then, maybe by an
	 * index.
	 */
	if (load->volatile_checks)
		never = "a volatile CHECK constraint or condition may look at the table";
	/* Rows that may be rolled back need their index entries at once. */
	else if (load->rejects)
		never = "rows may be rejected, or be duplicates";
	batch->indexes = sluice_index_open(rri, load->estate, load->cstate, load->cid,
									   load->duplicates.mode != SLUICE_DUPLICATE_ERROR ? &load->duplicates : NULL,
									   never);
	if (sluice_index_needs(batch->indexes) == SLUICE_INDEX_NEEDS_ORDER)
	{
		batch->options |= TABLE_INSERT_SKIP_FSM;
		batch->in_order = true;
	}
	if (rri->ri_TrigDesc && rri->ri_TrigDesc->trig_insert_after_row)
		keep_order(load);
	load->batches = lappend(load->batches, batch);
	MemoryContextSwitchTo(old);
	return batch;
}

/* Whether the order in which rows of two partitions go in is unobservable. */
static bool
order_is_free(const SluiceLoad *load)
{
	const TriggerDesc *triggers = load->rri->ri_TrigDesc;

	return load->rejects == NULL && load->duplicates.mode == SLUICE_DUPLICATE_ERROR &&
		!load->volatile_checks && !XLogLogicalInfoActive() &&
		(triggers == NULL || !triggers->trig_insert_after_row);
}

/* Opens the batches, before the first row. */
void
sluice_open_batches(SluiceLoad *load)
{
	if (load->rri->ri_RelationDesc->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
	{
		load->batch = open_batch(load, load->rri);
		return;
	}
	load->proute = ExecSetupPartitionTupleRouting(load->estate, load->rri->ri_RelationDesc);
	load->by_partition = order_is_free(load);
	if (load->by_partition)
		sluice_leaves_open(load);
	load->root_slot = sluice_make_slot(load->rri->ri_RelationDesc, load->estate);
}

/* A leaf whose own expressions were examined. It is locked, so the result cannot change. */
typedef struct JudgedLeaf
{
	Oid			relid;
	bool		volatile_checks;
} JudgedLeaf;

/* Finds or makes the entry of a leaf. */
static JudgedLeaf *
judged_leaf(SluiceLoad *load, Oid relid, bool *found)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(JudgedLeaf),.hcxt = load->estate->es_query_cxt};

	if (load->judged_leaves == NULL)
		load->judged_leaves = hash_create("pgsluice leaves", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return hash_search(load->judged_leaves, &relid, HASH_ENTER, found);
}

/*
 * Whether a CHECK constraint of the leaf, which its root does not have, or the
 * condition of a trigger is volatile. Asked each time the leaf needs a batch,
 * which may be for every row.
 */
static bool
has_own_volatile_checks(SluiceLoad *load, Relation leaf)
{
	const TriggerDesc *triggers = leaf->trigdesc;
	bool		may = leaf->rd_rel->relchecks > load->rri->ri_RelationDesc->rd_rel->relchecks;
	JudgedLeaf *judged;
	bool		found;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		may = may || triggers->triggers[i].tgqual != NULL;
	if (!may)
		return false;
	judged = judged_leaf(load, RelationGetRelid(leaf), &found);
	if (!found)
	{
		/* The expressions are parsed in memory that the next row frees. */
		MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));

		judged->volatile_checks = sluice_has_volatile_checks(leaf, NULL, PROVOLATILE_VOLATILE);
		MemoryContextSwitchTo(old);
	}
	return judged->volatile_checks;
}

/*
 * Whether the leaf takes its rows one by one. sluice_why_not() has found no
 * such leaf, but a leaf that no row has reached is not locked: another session
 * may have attached one, or created a trigger or a constraint.
 */
static bool
takes_single_rows(SluiceLoad *load, const ResultRelInfo *rri)
{
	return rri->ri_FdwRoutine != NULL ||
		rri->ri_RelationDesc->rd_rel->relam != HEAP_TABLE_AM_OID ||
		(rri->ri_TrigDesc && rri->ri_TrigDesc->trig_insert_before_row) ||
		(!load->volatile_checks && has_own_volatile_checks(load, rri->ri_RelationDesc));
}

/*
 * Whether the leaf has a trigger of a user that runs after each row. Another
 * session may have created it since workers have joined the session.
 */
static bool
has_after_trigger(const TriggerDesc *triggers)
{
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (sluice_is_after_trigger(triggers->triggers[i].tgtype, triggers->triggers[i].tgfoid))
			return true;
	}
	return false;
}

/* Copies the row, with all it points to, to a separate slot of the leaf. */
static TupleTableSlot *
copy_for_leaf(SluiceLoad *load, ResultRelInfo *rri, TupleTableSlot *slot)
{
	TupleConversionMap *map = compat_root_to_leaf_map(rri, load->estate);
	TupleTableSlot *leaf;

	/* The slot exists if there is a map. */
	if (rri->ri_PartitionTupleSlot == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(load->estate->es_query_cxt);

		rri->ri_PartitionTupleSlot = table_slot_create(rri->ri_RelationDesc,
													   &load->estate->es_tupleTable);
		MemoryContextSwitchTo(old);
	}
	leaf = ExecClearTuple(rri->ri_PartitionTupleSlot);
	if (map != NULL)
		leaf = execute_attr_map_slot(map->attrMap, slot, leaf);
	else
		ExecCopySlot(leaf, slot);
	ExecMaterializeSlot(leaf);
	leaf->tts_tableOid = RelationGetRelid(rri->ri_RelationDesc);
	return leaf;
}

/*
 * Inserts the row, in CopyFrom's order. False: a trigger or the foreign table
 * has skipped it.
 */
static bool
insert_single(SluiceLoad *load, ResultRelInfo *rri, TupleTableSlot *slot)
{
	EState	   *estate = load->estate;
	TupleConstr *constr = RelationGetDescr(rri->ri_RelationDesc)->constr;
	bool		before = rri->ri_TrigDesc && rri->ri_TrigDesc->trig_insert_before_row;
	List	   *recheck = NIL;

	if (before && !ExecBRInsertTriggers(estate, rri, slot))
		return false;
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(rri, estate, slot, CMD_INSERT);
	if (rri->ri_FdwRoutine == NULL && constr)
		ExecConstraints(rri, slot, estate);
	/* The trigger may have changed the row. */
	if (before)
		ExecPartitionCheck(rri, slot, estate, true);
	if (rri->ri_FdwRoutine != NULL)
	{
		slot = rri->ri_FdwRoutine->ExecForeignInsert(estate, rri, slot, NULL);
		if (slot == NULL)
			return false;
		slot->tts_tableOid = RelationGetRelid(rri->ri_RelationDesc);
	}
	else
	{
		table_tuple_insert(rri->ri_RelationDesc, slot, load->cid, load->options, NULL);
		if (rri->ri_NumIndices > 0)
			recheck = compat_insert_index_tuples(rri, slot, estate);
	}
	ExecARInsertTriggers(estate, rri, slot, recheck, load->cstate->transition_capture);
	list_free(recheck);
	return true;
}

/* Counts rows that were inserted. */
void
sluice_count_rows(SluiceLoad *load, uint64 count)
{
	load->processed += count;
	pgstat_progress_update_param(PROGRESS_COPY_TUPLES_PROCESSED, (int64) load->processed);
}

/* Sets the row's line and record, for the CONTEXT of an error. */
void
sluice_show_record(SluiceLoad *load, const SluiceSlice *slice, size_t n)
{
	size_t		next = n + 1 < slice->rows_used ? slice->rows[n + 1].record : slice->consumed;

	load->cstate->cur_lineno = load->lines + slice->rows[n].line;
	/* A binary record is not shown. */
	load->record = load->source.binary ? NULL :
		(const char *) slice->input + slice->rows[n].record;
	load->record_len = next - slice->rows[n].record;
}

/* Closes a batch, which is empty. Its leaf may get another one. */
static void
close_batch(SluiceBatch *batch)
{
	if (batch->rri->ri_RootResultRelInfo)
		sluice_index_finish(batch->indexes, 0, 0);
	batch->rri->ri_CopyMultiInsertBuffer = NULL;
	if (batch->leaf.slot)
		ExecDropSingleTupleTableSlot(batch->leaf.slot);
	sluice_batch_close(batch);
	pfree(batch);
}

/*
 * Inserts the rows of all batches, in the order of the list, and closes the
 * oldest ones beyond MAX_BATCHES. The leaf of the current row keeps its batch,
 * which becomes the last one of the list instead. So later rows go in in stock
 * COPY's order.
 */
static void
flush_batches(SluiceLoad *load)
{
	SluiceBatch *current = NULL;
	ListCell   *lc;
	int			open = 0;

	foreach(lc, load->batches)
	{
		SluiceBatch *batch = lfirst(lc);

		if (load->duplicates.mode == SLUICE_DUPLICATE_ERROR || load->duplicates.at_end)
			sluice_batch_flush(batch);
		else
			sluice_insert_or_settle(&load->duplicates, batch);
		open += batch->leaf.used == 0;
	}
	/* Batches whose rows wait in pages stay open in addition. */
	foreach(lc, load->batches)
	{
		SluiceBatch *batch = lfirst(lc);

		if (open <= MAX_BATCHES)
			break;
		if (batch->leaf.used > 0)
			continue;
		load->batches = foreach_delete_current(load->batches, lc);
		if (batch->rri == load->leaf)
		{
			current = batch;
			continue;
		}
		close_batch(batch);
		open--;
	}
	if (current)
		load->batches = lappend(load->batches, current);
}

/*
 * Inserts the waiting rows: those of one partition whose batch is full, or all
 * (NULL).
 */
void
sluice_flush(SluiceLoad *load, SluiceBatch *only)
{
	uint64		skipped = load->duplicates.skipped;
	uint64		count = only ? only->used : load->waiting;

	if (only)
		sluice_batch_flush(only);
	else
		flush_batches(load);
	load->waiting -= (int) count;
	if (only == NULL)
	{
		load->materialized = 0;
		load->line_bytes = 0;
	}
	sluice_count_rows(load, count - (load->duplicates.skipped - skipped));
}

/* All rows are in the table: inserts the index entries that wait. */
void
sluice_finish_indexes(SluiceLoad *load)
{
	ListCell   *lc;

	foreach(lc, load->batches)
	{
		SluiceBatch *batch = lfirst(lc);

		Assert(batch->used == 0);
		if (load->proute || load->workers == 0)
			sluice_index_finish(batch->indexes, 0, 0);
		else
			sluice_index_finish(batch->indexes, load->workers, load->index_workers);
	}
}

/*
 * Inserts a row of a leaf that takes them one by one. The rows before it are
 * inserted first, with their index entries: the leaf's triggers may read them,
 * and the check of a foreign key that a trigger causes finds rows by an index.
 */
static void
take_single_row(SluiceLoad *load, ResultRelInfo *rri, TupleTableSlot *slot)
{
	const char *record = load->record;

	/*
	 * Stock COPY does not have these options, so there is no stock path to
	 * follow.
	 */
	if (load->rejects || load->duplicates.mode != SLUICE_DUPLICATE_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("partition \"%s\" was attached or changed during the COPY",
						RelationGetRelationName(rri->ri_RelationDesc)),
				 errhint("Run the COPY again.")));
	if (load->pipeline)
		load->dismiss_readers(load);
	slot = copy_for_leaf(load, rri, slot);
	/* An error of this insertion must not show the record. */
	load->record = NULL;
	sluice_flush(load, NULL);
	sluice_leaves_flush(load);
	sluice_finish_indexes(load);
	load->record = record;
	if (insert_single(load, rri, slot))
		sluice_count_rows(load, 1);
	ExecClearTuple(slot);
}

/*
 * Returns the batch of the leaf to which the row belongs. *slot becomes the
 * leaf's next slot, with the row in the leaf's own form. NULL: the leaf takes
 * single rows, and this row is done.
 */
SluiceBatch *
sluice_route(SluiceLoad *load, TupleTableSlot **slot)
{
	ResultRelInfo *rri = ExecFindPartition(load->mtstate, load->rri, load->proute,
										   *slot, load->estate);
	SluiceBatch *batch = (SluiceBatch *) rri->ri_CopyMultiInsertBuffer;
	TupleConversionMap *map;
	TupleTableSlot *leaf;

	load->leaf = rri;
	if (batch == NULL)
	{
		if (takes_single_rows(load, rri))
		{
			take_single_row(load, rri, *slot);
			return NULL;
		}
		/* With rejects, the triggers run at the end of this attempt. */
		if (load->rejects && load->pipeline && has_after_trigger(rri->ri_TrigDesc))
			load->dismiss_readers(load);
		batch = open_batch(load, rri);
		rri->ri_CopyMultiInsertBuffer = (struct CopyMultiInsertBuffer *) batch;
	}
	leaf = sluice_leaf_slot(load, batch);
	map = compat_root_to_leaf_map(rri, load->estate);
	if (map != NULL)
		*slot = execute_attr_map_slot(map->attrMap, *slot, leaf);
	else if (((HeapTupleTableSlot *) *slot)->tuple != NULL &&
			 !TTS_SHOULDFREE(*slot))
	{
		/* The core's tuple stays where it is until the batches are flushed. */
		HeapTuple	tuple = ((HeapTupleTableSlot *) *slot)->tuple;

		sluice_slot_store(leaf, (char *) tuple->t_data, tuple->t_len);
		*slot = leaf;
	}
	else
	{
		/* What the values point to stays until the row is materialized. */
		slot_getallattrs(*slot);
		memcpy(leaf->tts_values, (*slot)->tts_values, sizeof(Datum) * (*slot)->tts_nvalid);
		memcpy(leaf->tts_isnull, (*slot)->tts_isnull, sizeof(bool) * (*slot)->tts_nvalid);
		*slot = ExecStoreVirtualTuple(leaf);
	}
	(*slot)->tts_tableOid = RelationGetRelid(rri->ri_RelationDesc);
	return batch;
}

/* Closes all batches and ends the routing, after the last row. */
void
sluice_close_batches(SluiceLoad *load)
{
	ListCell   *lc;

	foreach(lc, load->batches)
		close_batch(lfirst(lc));
	load->batches = NIL;
	sluice_leaves_close(load);
	if (load->page_slot)
		ExecDropSingleTupleTableSlot(load->page_slot);
	if (load->proute)
	{
		ExecDropSingleTupleTableSlot(load->root_slot);
		ExecCleanupTupleRouting(load->mtstate, load->proute);
	}
}
