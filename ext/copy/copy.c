/*
 * One COPY FROM, from the statement to its count of rows.
 *
 * The order of the steps is CopyFrom's (src/backend/commands/copyfrom.c). Each
 * step that can raise an error or run a user's code is at the place where
 * CopyFrom has it:
 *
 *    BeginCopyFrom          stock: options, permissions of files, the parser's
 *                           state
 *    insert options         FREEZE's conditions
 *    AFTER trigger level    and the transition tables
 *    executor               indexes are opened
 *    BEFORE STATEMENT       triggers
 *    rows                   load_rows(), with CopyFromErrorCallback's CONTEXT
 *    indexes                that were left for the end
 *    AFTER triggers         those of the statement are queued after those of
 *                           the rows, then all are fired
 *    close
 *
 * So users see the same errors in the same order as with stock COPY, and
 * triggers see the same rows.
 *
 * Only what lies within "rows" differs: which code parses the data, and by
 * which route rows get into the table.
 *
 * Small loads (is_small) go through stock COPY's own CopyFrom, which reads our
 * bytes: preparing the core would cost more there than it saves.
 */
#include "copy/copy.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

/* Less data than this does not pay for preparing the core. */
#define SMALL_BYTES 1024

/* The leader loads this much before it pays to start workers. */
#define ALONE_BYTES ((uint64) 4 << 20)

/*
 * The CONTEXT of an error, by stock COPY's own callback. Its line_buf is
 * filled only here, for a row that the core has formed. A page lock, like any
 * other lightweight lock, holds off interrupts. Catching the error resets
 * that, so it is recorded in `locked` here.
 */
static void
error_context(void *arg)
{
	SluiceLoad *load = arg;
	CopyFromState cstate = load->cstate;

	load->locked = InterruptHoldoffCount > 0;
	if (load->record != NULL)
	{
		resetStringInfo(&cstate->line_buf);
		appendBinaryStringInfo(&cstate->line_buf, load->record, (int) sluice_record_length(load));
		cstate->line_buf_valid = true;
		load->record = NULL;
	}
	CopyFromErrorCallback(cstate);
}

/* The TABLE_INSERT_… options that CopyFrom sets, and FREEZE's conditions. */
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
 * Whether rows have to be checked before they are inserted. NOT NULL alone
 * does not require it: the core leaves NULLs in such columns to the server.
 */
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

/*
 * Whether there may be a \. after a row. Stock COPY's own loop, which reads
 * from our callback, would not end there: see sluice_marker_ends().
 */
static bool
may_end_early(const SluiceSource *src)
{
	return src->kind == COPY_FRONTEND && !src->binary && !compat_is_csv(src->cstate) &&
		memmem(src->buf + src->start, src->end - src->start, "\\.", 2) != NULL;
}

/*
 * Whether all of the data has been read, and is so small that the core does not make it
 * faster. The data is read here only if stock COPY has nothing to do before it reads.
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

/* Runs stock COPY's loop instead of run(). */
static void
run_small(SluiceLoad *load)
{
	load->processed = sluice_report.rows_by_server = sluice_stock_copy(&load->source);
	load->source.ended = !load->cstate->raw_reached_eof;
	sluice_source_drain(&load->source);
	sluice_index_uses_small(load->cstate->rel, load->processed);
}

/*
 * Whether there is data after the header. If there is an error in its place,
 * raises that.
 */
static bool
has_data(SluiceLoad *load)
{
	SluiceSource *src = &load->source;

	/* An error while reading names the line that is about to be read. */
	load->cstate->cur_lineno = load->lines + 1;
	if (src->start == src->end && !src->ended && !sluice_fill(load) && !src->eof)
		sluice_source_refuse(src);
	return src->start < src->end;
}

/* What precedes the core's first row. False: there is no more data. */
static bool
begin(SluiceLoad *load)
{
	SluiceSource *src = &load->source;
	CopyFromState cstate = load->cstate;
	bool		header = cstate->opts.header_line != COPY_HEADER_FALSE;

	if (load->rejects)
	{
		if (header)
			sluice_rejects_read_header(load);
		/* The plan needs the values of defaults, which stock COPY evaluates only if there is a row. */
		if (!has_data(load))
			return false;
		sluice_make_row_plan(load);
		return true;
	}
	/* An error while reading names the line that is about to be read. */
	cstate->cur_lineno = 1;
	if (src->start == src->end && !src->eof)
		(void) sluice_fill(load);
	/* Stock COPY's parser reads the header, and the first row with it. */
	if ((header || sluice_defaults_may_fail(cstate)) && !load->ask_server(load))
		return false;
	sluice_make_row_plan(load);
	return true;
}

/*
 * One step through the data: forms rows from what was read, or reads more, or
 * has the server read values. False at the end of the data.
 */
static bool
step(SluiceLoad *load)
{
	SluiceSource *src = &load->source;
	SluiceStatus status;

	CHECK_FOR_INTERRUPTS();
	if (src->ended)
		return false;
	if (sluice_forces_workers(load) && sluice_knows_lines(load) && src->start < src->end)
	{
		load->alone = src->bytes;
		if (!sluice_pipeline(load))
			return false;
	}
	status = sluice_form(load);
	/*
	 * If the pipeline has reached the end of the data already, what it has
	 * left over is formed here.
	 */
	if (status == SLUICE_MORE && load->workers > 0 && !(src->eof && load->pipeline != NULL) &&
		src->bytes - load->alone > load->alone_limit)
	{
		load->alone = src->bytes;
		return sluice_pipeline(load);
	}
	return sluice_go_on(load, status);
}

/* Loads all of the data. */
static void
load_rows(SluiceLoad *load)
{
	bool		more = begin(load);

	while (more)
		more = step(load);
	if (load->rejects)
		sluice_rejects_flush(load);
	sluice_flush(load, NULL);
	sluice_leaves_flush(load);
	if (load->pipeline)
		sluice_pipeline_close(load);
	sluice_source_drain(&load->source);
}

/*
 * The same, with errors in the order of the input. When an error occurs, a row
 * that precedes it in the data may be waiting whose key already exists. Then
 * that row's error is raised instead. It is not searched for while a page may
 * be locked.
 */
static void
load_rows_in_order(SluiceLoad *load)
{
	load->locked = true;
	PG_TRY();
	{
		load_rows(load);
	}
	PG_CATCH();
	{
		/*
		 * The CONTEXT of this error is complete. Another error shows no
		 * record.
		 */
		load->record = NULL;
		if (!load->locked)
			sluice_index_refuse_earlier(load->cstate);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Finishes the indexes when all rows are in the table. */
static void
finish_indexes(SluiceLoad *load)
{
	instr_time	before,
				after;

	INSTR_TIME_SET_CURRENT(before);
	sluice_finish_indexes(load);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
}

/* Everything between BeginCopyFrom and EndCopyFrom. */
static void
run(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	bool		replaces = load->duplicates.mode == SLUICE_DUPLICATE_REPLACE;
	ErrorContextCallback callback;

	sluice_index_uses_reset();
	load->options = insert_options(cstate);
	load->check_rows = has_to_check_rows(cstate);
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
	load_rows_in_order(load);
	finish_indexes(load);
	if (load->duplicates.at_end)
		load->processed -= load->duplicates.skipped;
	sluice_index_explain(load->batch ? load->batch->indexes : NULL, load->rri, load->processed);
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

/* Executes the statement; returns how many rows were inserted. */
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
	load->volatile_checks = s->volatile_checks;
	load->workers = s->options.workers;
	load->index_workers = s->options.index_workers;
	load->alone_limit = s->options.workers_asked || sluice_force == SLUICE_FORCE_WORKERS ? 0 : ALONE_BYTES;
	load->accept_slice = sluice_accept_slice;
	load->ask_server = sluice_ask_server;
	sluice_duplicates_open(&load->duplicates, s);
	if (s->options.rejects_to)
		load->rejects = sluice_rejects_open(s, load);
	/* An explicit `workers` option always uses the core. */
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
	EndCopyFrom(cstate);		/* and frees everything in its context */

	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.total, after, before);
	sluice_report.valid = true;
	ereport(DEBUG1,
			(errmsg_internal("pgsluice: route %s, " UINT64_FORMAT " rows, " UINT64_FORMAT " read by the server",
							 sluice_report.route, rows, sluice_report.rows_by_server)));
	return rows;
}
