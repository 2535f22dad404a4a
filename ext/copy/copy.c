/*
 * One COPY FROM from its statement to its count of rows.
 *
 * The order of the steps is CopyFrom's (src/backend/commands/copyfrom.c).
 */
#include "base/load.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

/* Less data than this costs less than to prepare for the core's rows. */
#define SMALL_BYTES 1024

/* MAX_BUFFERED_BYTES of copyfrom.c. */
#define STOCK_BATCH_BYTES 65535

/* So much is loaded alone before workers are worth their start. */
#define ALONE_BYTES ((uint64) 4 << 20)

/* Of the record that is being checked, without its end. */
static size_t
line_length(const SluiceLoad *load)
{
	return sluice_line_length(&load->args.dialect, load->record, load->record_len);
}

/*
 * CONTEXT of an error, by stock COPY's own callback. Its line_buf is filled
 * only here, for a row that the core has formed.
 */
static void
error_context(void *arg)
{
	SluiceLoad *load = arg;
	CopyFromState cstate = load->cstate;

	if (load->record != NULL)
	{
		resetStringInfo(&cstate->line_buf);
		appendBinaryStringInfo(&cstate->line_buf, load->record, (int) line_length(load));
		cstate->line_buf_valid = true;
		load->record = NULL;
	}
	CopyFromErrorCallback(cstate);
}

/*
 * A row was added to those that wait: whether stock COPY would put them into the table
 * now. Logical decoding shows where its batches end. Functions of volatile CHECK
 * constraints and triggers' conditions, which it calls row by row, find those that are in.
 */
bool
sluice_batch_ends(SluiceLoad *load)
{
	/* FORMAT binary has no lines: the buffer stays empty. */
	load->line_bytes += load->record ? line_length(load) : (Size) load->cstate->line_buf.len;
	return load->waiting == SLUICE_BATCH_ROWS || load->line_bytes >= STOCK_BATCH_BYTES ||
		(load->watched && load->cstate->volatile_defexprs);
}

/* TABLE_INSERT_… as CopyFrom chooses them, and FREEZE's conditions. */
static int
insert_options(CopyFromState cstate)
{
	Relation	rel = cstate->rel;
	int			options = 0;

	if (RELKIND_HAS_STORAGE(rel->rd_rel->relkind) &&
		(rel->rd_createSubid != InvalidSubTransactionId ||
		 rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId))
		options |= TABLE_INSERT_SKIP_FSM;
	if (!cstate->opts.freeze)
		return options;

	InvalidateCatalogSnapshot();
	if (!ThereAreNoPriorRegisteredSnapshots() || !ThereAreNoReadyPortals())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot perform COPY FREEZE because of prior transaction activity")));
	if (rel->rd_createSubid != GetCurrentSubTransactionId() &&
		rel->rd_newRelfilelocatorSubid != GetCurrentSubTransactionId())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot perform COPY FREEZE because the table was not created or truncated in the current subtransaction")));
	return options | TABLE_INSERT_FROZEN;
}

/*
 * What rows need on their way in. A record that may be rejected is tried with
 * an executor of its own, so that nothing is used on that an error has left.
 */
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

/* All rows are in, and AFTER triggers have been fired. */
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

/* NOT NULL alone needs no further check: the core leaves NULLs there to the server. */
static bool
has_to_check_rows(CopyFromState cstate)
{
	Relation	rel = cstate->rel;
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	return cstate->whereClause != NULL || rel->rd_rel->relispartition ||
		rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ||
		(constr && (constr->num_check > 0 || constr->has_generated_stored)) ||
		compat_has_virtual_columns(RelationGetDescr(rel));
}

/* Whether there may be a \. behind a row, where stock COPY's own loop would go on: see sluice_marker_ends(). */
static bool
may_end_early(const SluiceSource *src)
{
	return src->kind == COPY_FRONTEND && !src->binary && !compat_is_csv(src->cstate) &&
		memmem(src->buf + src->start, src->end - src->start, "\\.", 2) != NULL;
}

/*
 * Whether all of the data is at hand, and so little that nothing of ours makes it
 * quicker. Looked at only where stock COPY has nothing to do before it reads.
 */
static bool
is_small(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	SluiceSource *src = &load->source;
	TriggerDesc *triggers = cstate->rel->trigdesc;
	ErrorContextCallback callback;

	if (sluice_force || load->rejects || load->duplicates.mode != SLUICE_DUPLICATE_ERROR || cstate->opts.freeze ||
		(triggers && triggers->trig_insert_before_statement))
		return false;
	callback.callback = CopyFromErrorCallback;
	callback.arg = cstate;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	/* An error while reading names the line that is about to be read. */
	cstate->cur_lineno = 1;
	(void) sluice_fill(load);
	cstate->cur_lineno = 0;
	error_context_stack = callback.previous;
	return src->eof && src->end - src->start <= SMALL_BYTES && !may_end_early(src);
}

/* Stock COPY's loop instead of run(). */
static void
run_small(SluiceLoad *load)
{
	load->processed = sluice_report.rows_by_server = sluice_stock_copy(&load->source);
	load->source.ended = !load->cstate->raw_reached_eof;
	sluice_source_drain(&load->source);
	sluice_index_taken_rows(load->cstate->rel, load->processed);
}

/* Everything between BeginCopyFrom and EndCopyFrom. */
static void
run(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	bool		replaces = load->duplicates.mode == SLUICE_DUPLICATE_REPLACE;
	ErrorContextCallback callback;

	sluice_index_taken_reset();
	load->options = insert_options(cstate);
	load->check_rows = has_to_check_rows(cstate);
	load->watched |= sluice_is_watched(cstate->rel, cstate->whereClause);
	AfterTriggerBeginQuery();
	cstate->transition_capture =
		MakeTransitionCaptureState(cstate->rel->trigdesc,
								   RelationGetRelid(cstate->rel), CMD_INSERT);
	sluice_open_executor(load);
	ExecBSInsertTriggers(load->estate, load->rri);
	if (replaces)
		ExecBSUpdateTriggers(load->estate, load->rri);

	callback.callback = error_context;
	callback.arg = load;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	sluice_load_rows(load);
	if (load->batch)
		sluice_batch_indexes(load->batch, load->workers);
	if (load->duplicates.at_end)
		load->processed -= load->duplicates.skipped;
	sluice_index_taken_close(load->rri, load->processed, load->batch ?
							 sluice_index_load_why_rows(load->batch->index_load) :
							 SLUICE_INDEX_PARTITIONED);
	error_context_stack = callback.previous;
	compat_tell_skipped(cstate);

	if (replaces)
		ExecASUpdateTriggers(load->estate, load->rri, NULL);
	ExecASInsertTriggers(load->estate, load->rri, cstate->transition_capture);
	AfterTriggerEndQuery(load->estate);
	sluice_close_executor(load);
	if (load->rejects)
		sluice_rejects_close(load->rejects);
}

/* Does the statement; returns how many rows were inserted. */
uint64
sluice_copy(SluiceStatement *s)
{
	CopyFromState cstate;
	SluiceLoad *load;
	MemoryContext old = CurrentMemoryContext;
	instr_time	before,
				after;
	uint64		wal = pgWalUsage.wal_bytes;
	uint64		rows;

	memset(&sluice_report, 0, sizeof(sluice_report));
	sluice_report.user = GetUserId();
	sluice_report.switched_off = sluice_switched_off();
	sluice_report.route = "insert";
	INSTR_TIME_SET_CURRENT(before);

	if (ExecutorCheckPerms_hook)
		compat_call_permissions_hook(s->pstate);
	cstate = BeginCopyFrom(s->pstate, s->rel, s->where, s->stmt->filename,
						   s->stmt->is_program, NULL, s->stmt->attlist, s->stmt->options);
	MemoryContextSwitchTo(cstate->copycontext);
	load = palloc0(sizeof(SluiceLoad));
	load->cstate = cstate;
	sluice_source_open(&load->source, cstate);
	load->watched = s->partitions_watched;
	load->workers = s->options.workers;
	load->alone_limit = s->options.workers_asked || sluice_force == SLUICE_FORCE_WORKERS ? 0 : ALONE_BYTES;
	sluice_duplicates_open(&load->duplicates, s);
	if (s->options.rejects_to)
		load->rejects = sluice_rejects_open(s, load);
	/* Who asks for workers, or for none, wants the core. */
	if (!s->options.workers_asked && is_small(load))
		run_small(load);
	else
		run(load);
	rows = load->processed;
	sluice_report.relid = RelationGetRelid(s->rel);
	sluice_report.rows = rows;
	sluice_report.skipped = load->duplicates.skipped;
	sluice_report.replaced = load->duplicates.replaced;
	sluice_report.bytes = load->source.bytes;
	sluice_report.wal_bytes = pgWalUsage.wal_bytes - wal;
	MemoryContextSwitchTo(old);
	EndCopyFrom(cstate);		/* and all that is in its context */

	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.total, after, before);
	sluice_report.valid = true;
	ereport(DEBUG1,
			(errmsg_internal("pgsluice: route %s, " UINT64_FORMAT " rows, " UINT64_FORMAT " read by the server",
							 sluice_report.route, rows, sluice_report.rows_by_server)));
	return rows;
}
