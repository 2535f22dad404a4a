/*
 * One COPY FROM from its first byte to its last: slices through the core,
 * records that the core leaves to the server through stock COPY's parser, rows
 * through the table's constraints into batches.
 *
 * The order of the steps is CopyFrom's (src/backend/commands/copyfrom.c).
 */
#include "pgsluice.h"

#include "access/xact.h"
#include "catalog/storage.h"
#include "commands/progress.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/instrument.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

typedef struct SluiceLoad
{
	CopyFromState cstate;
	EState	   *estate;
	ModifyTableState *mtstate;
	ResultRelInfo *rri;
	ExprContext *econtext;
	SluiceSource source;
	SluicePlan *plan;
	SluiceSlice slice;
	SluiceSerial serial;
	SluiceBatch *batch;
	SluiceRow  *rows;
	uint64		lines;			/* lines before source.start */
	uint64		processed;
	uint64		excluded;
	bool		check_rows;		/* rows need more than to be inserted */
	bool		constraints;
	/* the record that is being checked, for an error's CONTEXT */
	const char *record;
	size_t		record_len;
} SluiceLoad;

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
		size_t		len = load->record_len;

		while (len > 0 && (load->record[len - 1] == '\n' || load->record[len - 1] == '\r'))
			len--;
		resetStringInfo(&cstate->line_buf);
		appendBinaryStringInfo(&cstate->line_buf, load->record, (int) len);
		cstate->line_buf_valid = true;
		load->record = NULL;
	}
	CopyFromErrorCallback(cstate);
}

/* TABLE_INSERT_… as CopyFrom chooses them, and FREEZE's conditions. */
static int
insert_options(CopyFromState cstate)
{
	Relation	rel = cstate->rel;
	int			options = 0;

	if (rel->rd_createSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
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
 * WHERE, generated columns and constraints of the row in the slot, as CopyFrom.
 * False where WHERE excludes it.
 */
static bool
row_passes(SluiceLoad *load, TupleTableSlot *slot)
{
	TupleConstr *constr = RelationGetDescr(load->cstate->rel)->constr;

	if (load->cstate->qualexpr)
	{
		load->econtext->ecxt_scantuple = slot;
		if (!ExecQual(load->cstate->qualexpr, load->econtext))
		{
			load->excluded++;
			pgstat_progress_update_param(PROGRESS_COPY_TUPLES_EXCLUDED,
										 (int64) load->excluded);
			return false;
		}
	}
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(load->rri, load->estate, slot, CMD_INSERT);
	if (load->constraints)
		ExecConstraints(load->rri, slot, load->estate);
	if (load->cstate->rel->rd_rel->relispartition)
		ExecPartitionCheck(load->rri, slot, load->estate, true);
	return true;
}

static void
flush(SluiceLoad *load)
{
	load->processed += load->batch->used;
	sluice_batch_flush(load->batch);
	load->slice.arena_used = 0;
	pgstat_progress_update_param(PROGRESS_COPY_TUPLES_PROCESSED, (int64) load->processed);
}

/* Draws the next value of the sequence into the place that the core left for it. */
static void
fill_blank(SluiceLoad *load, char *tuple, uint32 blank)
{
	int64		value = nextval_internal(load->serial.sequence, load->serial.check);

	if (load->serial.len == 8)
		memcpy(tuple + blank, &value, 8);
	else if (load->serial.len == 4)
	{
		int32		v = (int32) value;

		if ((int64) v != value)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("integer out of range")));
		memcpy(tuple + blank, &v, 4);
	}
	else
	{
		int16		v = (int16) value;

		if ((int64) v != value)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("smallint out of range")));
		memcpy(tuple + blank, &v, 2);
	}
}

/*
 * Completes a row of which the core could not read every value: the server's
 * input functions read those, or raise their errors.
 */
static void
ask_values(SluiceLoad *load, TupleTableSlot *slot, const SluiceRow *row,
		   const SluiceAsk *asks)
{
	CopyFromState cstate = load->cstate;
	TupleDesc	desc = RelationGetDescr(cstate->rel);
	HeapTupleData tuple = {0};
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));

	tuple.t_len = row->len;
	tuple.t_data = (HeapTupleHeader) (load->slice.arena + row->offset);
	heap_deform_tuple(&tuple, desc, slot->tts_values, slot->tts_isnull);
	for (uint32 i = 0; i < row->asks; i++)
	{
		int			m = (int) asks[i].column;
		Form_pg_attribute att = TupleDescAttr(desc, m);
		char	   *text = (char *) load->slice.arena + asks[i].offset;

		cstate->cur_attname = NameStr(att->attname);
		cstate->cur_attval = text;
		slot->tts_values[m] = InputFunctionCall(&cstate->in_functions[m], text,
												cstate->typioparams[m], att->atttypmod);
		slot->tts_isnull[m] = false;
		cstate->cur_attname = NULL;
		cstate->cur_attval = NULL;
	}
	MemoryContextSwitchTo(old);
	ExecStoreVirtualTuple(slot);
	sluice_report.values_by_server += row->asks;
}

/* The rows that the core has formed from this slice, into the batch. */
static void
accept_rows(SluiceLoad *load)
{
	SluiceSlice *slice = &load->slice;
	const SluiceAsk *asks = slice->asks;

	for (size_t i = 0; i < slice->rows_used; i++)
	{
		SluiceRow  *row = &load->rows[i];
		char	   *tuple = (char *) slice->arena + row->offset;
		TupleTableSlot *slot = sluice_batch_slot(load->batch);
		size_t		next = i + 1 < slice->rows_used ? row[1].record : slice->consumed;
		bool		pass = true;

		load->cstate->cur_lineno = load->lines + row->line;
		load->record = (const char *) slice->input + row->record;
		load->record_len = next - row->record;
		if (row->blank)
			fill_blank(load, tuple, row->blank);
		if (row->asks)
			ask_values(load, slot, row, asks);
		else
			sluice_slot_store(slot, tuple, row->len);
		asks += row->asks;
		if (load->check_rows || row->asks)
		{
			pass = row_passes(load, slot);
			if (pass)
				ExecMaterializeSlot(slot);
			else
				ExecClearTuple(slot);
			ResetPerTupleExprContext(load->estate);
		}
		load->record = NULL;
		if (pass)
			sluice_batch_add(load->batch, load->lines + row->line);
	}
	load->cstate->line_buf_valid = false;
}

/* One record through stock COPY's parser. False at the end of the data. */
static bool
ask_server(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	TupleTableSlot *slot;
	MemoryContext old;
	bool		found;

	if (load->batch->used == SLUICE_BATCH_ROWS)
		flush(load);
	slot = sluice_batch_slot(load->batch);
	cstate->cur_lineno = load->lines;
	cstate->eol_type = (EolType) load->slice.eol;
	ResetPerTupleExprContext(load->estate);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));
	found = sluice_stock_row(&load->source, load->econtext,
							 slot->tts_values, slot->tts_isnull);
	MemoryContextSwitchTo(old);
	if (!found)
		return false;
	load->lines = cstate->cur_lineno;
	load->slice.eol = (uint8_t) cstate->eol_type;
	ExecStoreVirtualTuple(slot);
	if (!row_passes(load, slot))
	{
		ExecClearTuple(slot);
		return true;
	}
	ExecMaterializeSlot(slot);
	sluice_batch_add(load->batch, cstate->cur_lineno);
	sluice_report.rows_by_server++;
	return true;
}

/* Lets the core form what it can of the bytes at hand. */
static SluiceStatus
form(SluiceLoad *load)
{
	SluiceSource *src = &load->source;
	SluiceSlice *slice = &load->slice;
	SluiceStatus status;
	instr_time	before,
				after;

	slice->input = (const uint8_t *) src->buf + src->start;
	slice->input_len = src->valid - src->start;
	slice->last = src->eof && src->valid == src->end;
	slice->rows_len = SLUICE_BATCH_ROWS - load->batch->used;
	INSTR_TIME_SET_CURRENT(before);
	status = pgsluice_form(load->plan, slice);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.forming, after, before);
	if (status == SLUICE_PANIC)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("pgsluice: internal error in the core"),
				 errhint("The server's log has the details; WITH (pgsluice 'off') lets stock COPY do it.")));
	accept_rows(load);
	src->start += slice->consumed;
	load->lines += slice->lines;
	/* As stock COPY: an error while reading on names the line it is about to read. */
	load->cstate->cur_lineno = load->lines + 1;
	return status;
}

static bool
fill(SluiceLoad *load)
{
	instr_time	before,
				after;
	bool		more;

	INSTR_TIME_SET_CURRENT(before);
	more = sluice_source_fill(&load->source);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.reading, after, before);
	return more;
}

/* The whole of the data. */
static void
load_rows(SluiceLoad *load)
{
	SluiceSource *src = &load->source;
	/* The header is stock COPY's to read, and with it the first row. */
	bool		more = load->cstate->opts.header_line == COPY_HEADER_FALSE || ask_server(load);

	while (more)
	{
		CHECK_FOR_INTERRUPTS();
		switch (form(load))
		{
			case SLUICE_MORE:
				if (fill(load))
					break;
				if (src->start == src->end && src->eof)
					more = false;
				else
					more = ask_server(load);	/* too long, or not UTF-8 */
				break;
			case SLUICE_FULL:
				flush(load);
				break;
			case SLUICE_ASK:
				more = ask_server(load);
				break;
			default:
				more = false;
				break;
		}
	}
	flush(load);
	sluice_source_drain(src);
}

/* Everything between BeginCopyFrom and EndCopyFrom. */
static void
run(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	EState	   *estate = load->estate = CreateExecutorState();
	ResultRelInfo *rri = load->rri = makeNode(ResultRelInfo);
	ModifyTableState *mtstate;
	TupleConstr *constr = RelationGetDescr(cstate->rel)->constr;
	ErrorContextCallback callback;
	CommandId	cid = GetCurrentCommandId(true);
	int			options = insert_options(cstate);

	compat_init_range_table(estate, cstate);
	ExecInitResultRelation(estate, rri, 1);
	compat_check_valid_target(rri);
	ExecOpenIndices(rri, false);

	mtstate = load->mtstate = makeNode(ModifyTableState);
	mtstate->ps.plan = NULL;
	mtstate->ps.state = estate;
	mtstate->operation = CMD_INSERT;
	mtstate->mt_nrels = 1;
	mtstate->resultRelInfo = rri;
	mtstate->rootResultRelInfo = rri;

	AfterTriggerBeginQuery();
	cstate->transition_capture = mtstate->mt_transition_capture =
		MakeTransitionCaptureState(cstate->rel->trigdesc,
								   RelationGetRelid(cstate->rel), CMD_INSERT);
	if (cstate->whereClause)
		cstate->qualexpr = ExecInitQual(castNode(List, cstate->whereClause), &mtstate->ps);
	/* NOT NULL alone needs no further check: the core leaves NULLs there to the server. */
	load->constraints = constr != NULL;
	load->check_rows = cstate->qualexpr != NULL || cstate->rel->rd_rel->relispartition ||
		(constr && (constr->num_check > 0 || constr->has_generated_stored)) ||
		compat_has_virtual_columns(RelationGetDescr(cstate->rel));

	load->batch = palloc(sizeof(SluiceBatch));
	sluice_batch_open(load->batch, rri, estate, cstate, cid, options);
	ExecBSInsertTriggers(estate, rri);
	load->econtext = GetPerTupleExprContext(estate);

	callback.callback = error_context;
	callback.arg = load;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	load_rows(load);
	error_context_stack = callback.previous;

	ExecASInsertTriggers(estate, rri, cstate->transition_capture);
	AfterTriggerEndQuery(estate);
	ExecResetTupleTable(estate->es_tupleTable, false);
	sluice_batch_close(load->batch);
	ExecCloseResultRelations(estate);
	ExecCloseRangeTableRelations(estate);
	FreeExecutorState(estate);
}

/* Does the statement; returns how many rows were inserted. */
uint64
sluice_copy(SluiceStatement *s)
{
	SluiceLoad *load;
	MemoryContext context,
				old;
	instr_time	before,
				after;
	uint64		wal = pgWalUsage.wal_bytes;
	uint64		rows;

	context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice COPY", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	memset(&sluice_report, 0, sizeof(sluice_report));
	INSTR_TIME_SET_CURRENT(before);

	load = palloc0(sizeof(SluiceLoad));
	load->cstate = BeginCopyFrom(s->pstate, s->rel, s->where, s->stmt->filename,
								 s->stmt->is_program, NULL, s->stmt->attlist,
								 s->stmt->options);
	sluice_source_open(&load->source, load->cstate);
	load->plan = sluice_make_plan(load->cstate, &load->serial);
	load->rows = palloc(sizeof(SluiceRow) * SLUICE_BATCH_ROWS);
	load->slice.rows = load->rows;
	load->slice.asks = palloc(sizeof(SluiceAsk) * SLUICE_BATCH_ASKS);
	load->slice.asks_len = SLUICE_BATCH_ASKS;
	load->slice.arena = palloc(SLUICE_ARENA);
	load->slice.arena_len = SLUICE_ARENA;
	run(load);
	EndCopyFrom(load->cstate);

	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.total, after, before);
	rows = load->processed;
	sluice_report.valid = true;
	sluice_report.route = "insert";
	sluice_report.relid = RelationGetRelid(s->rel);
	sluice_report.rows = rows;
	sluice_report.bytes = load->source.bytes;
	sluice_report.wal_bytes = pgWalUsage.wal_bytes - wal;
	ereport(DEBUG1,
			(errmsg_internal("pgsluice: route %s, " UINT64_FORMAT " rows, " UINT64_FORMAT " read by the server",
							 sluice_report.route, rows, sluice_report.rows_by_server)));
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return rows;
}
