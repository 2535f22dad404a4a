/*
 * The executor's state for the rows of one COPY, as CopyFrom sets it up: the
 * table and its indexes, opened once, and a batch for the rows that wait.
 *
 * A record that may be rejected is tried within a subtransaction and with a
 * separate executor (rejects/). After an error, everything that this executor
 * had open is released with the subtransaction's resources. So nothing is used
 * again that an error has left in an unknown state.
 */
#include "heap/heap.h"

#include "executor/nodeModifyTable.h"
#include "utils/snapmgr.h"

/* Sets up what rows need to be inserted. */
void
sluice_open_executor(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	EState	   *estate = load->estate = CreateExecutorState();
	ResultRelInfo *rri = load->rri = makeNode(ResultRelInfo);
	bool		duplicates = load->duplicates.mode != SLUICE_DUPLICATE_ERROR;
	ModifyTableState *mtstate;

	load->cid = GetCurrentCommandId(true);
	compat_init_range_table(estate, cstate);
	ExecInitResultRelation(estate, rri, 1);
	compat_check_valid_target(rri);
	ExecOpenIndices(rri, duplicates);

	mtstate = load->mtstate = makeNode(ModifyTableState);
	mtstate->ps.plan = NULL;
	mtstate->ps.state = estate;
	mtstate->operation = CMD_INSERT;
	mtstate->mt_nrels = 1;
	mtstate->resultRelInfo = rri;
	mtstate->rootResultRelInfo = rri;
	mtstate->mt_transition_capture = cstate->transition_capture;
	if (cstate->whereClause)
		cstate->qualexpr = ExecInitQual(castNode(List, cstate->whereClause), &mtstate->ps);
	if (duplicates)
		estate->es_snapshot = GetActiveSnapshot();

	load->batches = NIL;
	sluice_open_batches(load);
	load->econtext = GetPerTupleExprContext(estate);
}

/* All rows are inserted, and AFTER triggers have been fired. */
void
sluice_close_executor(SluiceLoad *load)
{
	EState	   *estate = load->estate;

	ExecResetTupleTable(estate->es_tupleTable, false);
	sluice_close_batches(load);
	ExecCloseResultRelations(estate);
	ExecCloseRangeTableRelations(estate);
	FreeExecutorState(estate);
}
