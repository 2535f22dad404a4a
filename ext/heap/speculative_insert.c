/*
 * COPY's option on_duplicate, where index/dedupe.c does not find the
 * duplicates at the end. Rows are inserted one by one as INSERT … ON CONFLICT
 * inserts them, by speculative insertion, so that other sessions may write
 * meanwhile (src/backend/executor/nodeModifyTable.c).
 *
 * The steps for a row, and why two sessions cannot both insert a key:
 *
 *    check      whether the index has the key. If so, the row is settled: it is
 *               skipped, or it replaces the existing row once that is locked.
 *    token      a lock that marks this row as speculative is taken, and the row
 *               is inserted with the token in it.
 *    index      the entry is inserted with UNIQUE_CHECK_PARTIAL. If another
 *               session has inserted the key since the check, that is detected
 *               now.
 *    complete   without a conflict the row becomes an ordinary one. With a
 *               conflict it is killed ("super-deleted") and the search begins
 *               again.
 *
 * A session that finds a speculative row waits for its token, not for its
 * transaction. So two sessions that insert the same keys in different orders
 * do not wait for each other's commits while the rows are still speculative.
 *
 * With 'replace', a row of this same COPY may be found again.
 * table_tuple_lock() reports it as invisible, because it belongs to the same
 * command. Then the command counter is advanced, which makes it a row of an
 * earlier command, and the search begins again.
 *
 * In REPEATABLE READ and SERIALIZABLE, a row that the snapshot does not see
 * must not decide anything: check_visible() raises the serialization failure
 * that ON CONFLICT raises.
 */
#include "heap/heap.h"

#include "access/genam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/partition.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

/* Finds the arbiter, or its partition, among the indexes of this table. */
static int
find_arbiter(const SluiceDuplicates *duplicates, ResultRelInfo *rri)
{
	int			found = -1;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];
		IndexInfo  *info = rri->ri_IndexRelationInfo[i];
		List	   *ancestors = index->rd_rel->relispartition ?
			get_partition_ancestors(RelationGetRelid(index)) : NIL;

		/* Indexes of partitions were opened without this information. */
		if (info->ii_Unique && info->ii_UniqueProcs == NULL && !index->rd_index->indisexclusion)
			BuildSpeculativeIndexInfo(index, info);
		if (RelationGetRelid(index) == duplicates->arbiter ||
			list_member_oid(ancestors, duplicates->arbiter))
			found = i;
		list_free(ancestors);
	}
	if (found < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" has no index that finds duplicates",
						RelationGetRelationName(rri->ri_RelationDesc))));
	return found;
}

/*
 * In a transaction that keeps one snapshot, a row that it does not see must
 * not decide anything (ExecCheckTIDVisible).
 */
static void
check_visible(Relation rel, Snapshot snapshot, ItemPointer tid, TupleTableSlot *slot)
{
	bool		isnull;

	if (!IsolationUsesXactSnapshot())
		return;
	if (!table_tuple_fetch_row_version(rel, tid, SnapshotAny, slot))
		elog(ERROR, "failed to fetch conflicting tuple for COPY");
	if (!table_tuple_satisfies_snapshot(rel, slot, snapshot) &&
		!TransactionIdIsCurrentTransactionId(DatumGetTransactionId(
			slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull))))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update")));
	ExecClearTuple(slot);
}

/*
 * Locks the row that is to be replaced, and fetches it. False: another session
 * has changed it meanwhile, so its key has to be looked up again.
 */
static bool
lock_existing(SluiceBatch *batch, ItemPointer tid, TupleTableSlot *existing)
{
	TM_FailureData failure;
	TM_Result	result = table_tuple_lock(batch->rri->ri_RelationDesc, tid,
										  batch->estate->es_snapshot, existing,
										  batch->cid, LockTupleExclusive, LockWaitBlock,
										  0, &failure);

	switch (result)
	{
		case TM_Ok:
			return true;
		case TM_Invisible:
			/*
			 * A row of this same command: make it one of an earlier command.
			 */
			CommandCounterIncrement();
			batch->cid = GetCurrentCommandId(true);
			return false;
		case TM_Updated:
		case TM_Deleted:
			if (IsolationUsesXactSnapshot())
				ereport(ERROR,
						(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						 errmsg("could not serialize access due to concurrent update")));
			ExecClearTuple(existing);
			return false;
		default:
			elog(ERROR, "unexpected table_tuple_lock status: %u", result);
	}
}

/*
 * Replaces the existing row by this one. False: a BEFORE ROW trigger has
 * prevented it.
 */
static bool
replace(SluiceBatch *batch, TupleTableSlot *existing, TupleTableSlot *slot)
{
	EPQState	epq;

	ItemPointerSetInvalid(&slot->tts_tid);
	/* Triggers must see rows of this COPY too. */
	batch->estate->es_output_cid = GetCurrentCommandId(true);
	compat_init_epq(&epq, batch->estate);
	ExecSimpleRelationUpdate(batch->rri, batch->estate, &epq, existing, slot);
	EvalPlanQualEnd(&epq);
	return ItemPointerIsValid(&slot->tts_tid);
}

/*
 * Settles a row that is a duplicate of the one at `tid`. False: it has to be
 * tried again.
 */
static bool
settle(SluiceDuplicates *duplicates, SluiceBatch *batch, int arbiter,
	   TupleTableSlot *slot, uint64 line, ItemPointer tid, TupleTableSlot *existing)
{
	ResultRelInfo *rri = batch->rri;
	Relation	index = rri->ri_IndexRelationDescs[arbiter];
	IndexInfo  *info = rri->ri_IndexRelationInfo[arbiter];
	bool		replaced;

	if (duplicates->mode == SLUICE_DUPLICATE_SKIP)
	{
		check_visible(rri->ri_RelationDesc, batch->estate->es_snapshot, tid, existing);
		if (duplicates->lost_rows)
			sluice_keep_lost_row(duplicates, rri, batch->estate, index, info, slot, line);
		duplicates->skipped++;
		return true;
	}
	if (!lock_existing(batch, tid, existing))
		return false;
	check_visible(rri->ri_RelationDesc, batch->estate->es_snapshot, tid, existing);
	if (TTS_EMPTY(existing) &&
		!table_tuple_fetch_row_version(rri->ri_RelationDesc, tid, SnapshotAny, existing))
		elog(ERROR, "failed to fetch conflicting tuple for COPY");
	replaced = replace(batch, existing, slot);
	if (duplicates->lost_rows)
		sluice_keep_lost_row(duplicates, rri, batch->estate, index, info,
							   replaced ? existing : slot, line);
	if (replaced)
		duplicates->replaced++;
	else
		duplicates->skipped++;
	return true;
}

/* Inserts one row, or settles it if it is a duplicate. */
static void
insert_or_settle(SluiceDuplicates *duplicates, SluiceBatch *batch, int arbiter,
	int row, int options, TupleTableSlot *existing)
{
	TupleTableSlot *slot = batch->slots[row];
	uint64		line = batch->lines[row];
	ResultRelInfo *rri = batch->rri;
	Relation	rel = rri->ri_RelationDesc;
	List	   *arbiters = list_make1_oid(RelationGetRelid(rri->ri_IndexRelationDescs[arbiter]));

	for (;;)
	{
		ItemPointerData tid;
		bool		conflict = false;
		List	   *recheck;
		uint32		token;

		CHECK_FOR_INTERRUPTS();
		if (!compat_check_index_constraints(rri, slot, batch->estate, &tid, arbiters))
		{
			if (settle(duplicates, batch, arbiter, slot, line, &tid, existing))
				break;
			continue;
		}
		token = SpeculativeInsertionLockAcquire(GetCurrentTransactionId());
		table_tuple_insert_speculative(rel, slot, batch->cid, options, batch->bistate, token);
		recheck = compat_insert_index_tuples_unless(rri, slot, batch->estate, &conflict, arbiters);
		table_tuple_complete_speculative(rel, slot, token, !conflict);
		SpeculativeInsertionLockRelease(GetCurrentTransactionId());
		if (conflict)
			continue;			/* another session was faster: look for its row */
		ExecARInsertTriggers(batch->estate, rri, slot, recheck,
							 batch->cstate->transition_capture);
		break;
	}
}

/* Inserts the batch's rows. */
void
sluice_insert_or_settle(SluiceDuplicates *duplicates, SluiceBatch *batch)
{
	CopyFromState cstate = batch->cstate;
	bool		line_buf_valid = cstate->line_buf_valid;
	uint64		line = cstate->cur_lineno;
	TupleTableSlot *existing;
	int			arbiter,
				options;

	if (batch->used == 0)
		return;
	cstate->line_buf_valid = false;
	(void) sluice_batch_has_room(batch);
	options = sluice_insert_options(batch);
	arbiter = find_arbiter(duplicates, batch->rri);
	existing = table_slot_create(batch->rri->ri_RelationDesc, NULL);
	for (int i = 0; i < batch->used; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(batch->estate));

		cstate->cur_lineno = batch->lines[i];
		insert_or_settle(duplicates, batch, arbiter, i, options, existing);
		MemoryContextSwitchTo(old);
		ExecClearTuple(existing);
		ExecClearTuple(batch->slots[i]);
		ResetPerTupleExprContext(batch->estate);
	}
	ExecDropSingleTupleTableSlot(existing);
	batch->used = 0;
	cstate->line_buf_valid = line_buf_valid;
	cstate->cur_lineno = line;
}
