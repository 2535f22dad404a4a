/*
 * Rows of one COPY FROM: those that the core has formed, what the server has
 * to read, and the checks that the table needs.
 *
 * A row arrives here in one of three forms:
 *
 *    complete      the core has formed the tuple; if the table needs no checks,
 *                  it is inserted as it is in the arena
 *    with asks     the core has formed it except for values that the server has
 *                  to read, or that differ for every row (complete_row)
 *    as a record   the core does not accept it; stock COPY's parser reads it
 *                  from the source (sluice_take_server_row)
 *
 * THE ORDER OF ERRORS is stock COPY's. A row's values are read in the order of
 * the statement's list of columns. Then follow WHERE, the partition, generated
 * columns and constraints, and, with the insertion of its batch, indexes and
 * triggers. Rows are processed strictly in the order of the input. So an error
 * of row n is raised before anything is done with row n + 1 that could fail.
 * What the core does ahead of that cannot fail: it leaves everything that it
 * does not accept to the server.
 *
 * BATCHES end where stock COPY's would (batch_ends), because logical decoding
 * can show where they end.
 *
 * CONTEXT.  An error names the line, and shows the record where stock COPY
 * would show it: `record` is set while the row is checked, and NULL while its
 * batch is inserted.
 *
 * MEMORY.  Tuples stay in the arena until their batch is flushed. Rows that
 * the server has completed are copied by their slots; MAX_MATERIALIZED limits
 * these.
 */
#include "rows/rows.h"

#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "pgstat.h"

/* MAX_BUFFERED_BYTES of copyfrom.c. */
#define STOCK_BATCH_BYTES 65535

/*
 * Values that the server has read wait in separate memory: at most this much.
 */
#define MAX_MATERIALIZED ((Size) 1 << 20)

/*
 * Rows of partitions wait until one has a whole batch: at most this many in
 * all.
 */
#define MAX_ROWS_OF_PARTITIONS (16 * SLUICE_BATCH_ROWS)
#define MAX_BYTES_OF_PARTITIONS ((Size) 4 << 20)

/*
 * Inserts the waiting rows, so that the memory of their tuples can be reused.
 */
void
sluice_free_tuples(SluiceLoad *load)
{
	sluice_flush(load, NULL);
}

/* Whether WHERE excludes the row; it is counted then. */
static bool
where_excludes(SluiceLoad *load, TupleTableSlot *slot)
{
	if (load->cstate->qualexpr == NULL)
		return false;
	load->econtext->ecxt_scantuple = slot;
	if (ExecQual(load->cstate->qualexpr, load->econtext))
		return false;
	load->excluded++;
	pgstat_progress_update_param(PROGRESS_COPY_TUPLES_EXCLUDED, (int64) load->excluded);
	return true;
}

/* The length of the record that is being checked, without its line end. */
size_t
sluice_record_length(const SluiceLoad *load)
{
	return sluice_line_length(&load->args.dialect, load->record, load->record_len,
							  (EolType) load->slice.eol);
}

/*
 * Called after a row was added to those that wait. Whether all of them are to
 * be inserted now, which is when stock COPY would insert them: logical
 * decoding shows where its batches end.
 */
static bool
batch_ends(SluiceLoad *load)
{
	if (load->by_partition)
		return load->waiting >= MAX_ROWS_OF_PARTITIONS || load->materialized > MAX_BYTES_OF_PARTITIONS;
	/* FORMAT binary has no lines: line_buf stays empty. */
	load->line_bytes += load->record ? sluice_record_length(load) : (Size) load->cstate->line_buf.len;
	return load->waiting >= SLUICE_BATCH_ROWS || load->line_bytes >= STOCK_BATCH_BYTES ||
		load->materialized > MAX_MATERIALIZED;
}

/* Lets the row in the batch's slot wait for its insertion. */
static void
let_wait(SluiceLoad *load, SluiceBatch *batch, uint64 line)
{
	bool		ends;

	sluice_batch_add(batch, line);
	load->waiting++;
	ends = batch_ends(load);
	if (!ends && !(load->by_partition && batch->used == SLUICE_BATCH_ROWS))
		return;
	/* An error of the insertion must not show the record. */
	load->record = NULL;
	sluice_flush(load, ends ? NULL : batch);
}

/*
 * Whether no check of the relation can reject the row: the relation has no
 * CHECK constraint, and the row has no NULL.
 */
static bool
is_never_refused(Relation rel, TupleTableSlot *slot)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple = ((HeapTupleTableSlot *) slot)->tuple;

	return desc->constr->num_check == 0 && !compat_has_virtual_columns(desc) &&
		tuple != NULL && !HeapTupleHasNulls(tuple);
}

/*
 * Takes the row in next_slot()'s slot through WHERE, the routing to its
 * partition, generated columns and constraints, in CopyFrom's order. After
 * that it waits for its insertion.
 */
static void
take_row(SluiceLoad *load, TupleTableSlot *slot, uint64 line)
{
	ResultRelInfo *rri = load->rri;
	SluiceBatch *batch = load->batch;
	TupleConstr *constr;

	if (where_excludes(load, slot))
	{
		ExecClearTuple(slot);
		return;
	}
	if (load->proute)
	{
		batch = sluice_route(load, &slot);
		if (batch == NULL)
			return;
		rri = batch->rri;
	}
	constr = RelationGetDescr(rri->ri_RelationDesc)->constr;
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(rri, load->estate, slot, CMD_INSERT);
	if (constr && !is_never_refused(rri->ri_RelationDesc, slot))
		ExecConstraints(rri, slot, load->estate);
	if (load->proute == NULL && rri->ri_RelationDesc->rd_rel->relispartition)
		ExecPartitionCheck(rri, slot, load->estate, true);
	if (load->leaf_pool && (slot = sluice_leaf_take(load, batch, slot, line)) == NULL)
		return;
	ExecMaterializeSlot(slot);
	load->materialized += ((HeapTupleTableSlot *) slot)->tuple->t_len;
	let_wait(load, batch, line);
}

/* The slot for the next row of the relation that the statement names. */
static TupleTableSlot *
next_slot(SluiceLoad *load)
{
	if (load->waiting == SLUICE_BATCH_ROWS && !load->by_partition)
		sluice_flush(load, NULL);
	if (load->proute)
		return ExecClearTuple(load->root_slot);
	return sluice_batch_slot(load->batch);
}

/* For qsort_arg(): the order of the statement's list. */
static int
by_field(const void *one, const void *other, void *columns)
{
	const SluiceColumn *of = columns;

	return of[((const SluiceAsk *) one)->column].source - of[((const SluiceAsk *) other)->column].source;
}

/*
 * The values of a row in the order of the statement's list, which may differ
 * from the table's. If several are bad, stock COPY reports the first one in
 * the list.
 */
static const SluiceAsk *
in_list_order(SluiceColumn *columns, const SluiceAsk *asks, uint32 count)
{
	SluiceAsk  *sorted;
	uint32		i = 1;

	while (i < count && columns[asks[i - 1].column].source < columns[asks[i].column].source)
		i++;
	if (i >= count)
		return asks;
	sorted = palloc(sizeof(SluiceAsk) * count);
	memcpy(sorted, asks, sizeof(SluiceAsk) * count);
	qsort_arg(sorted, count, sizeof(SluiceAsk), by_field, columns);
	return sorted;
}

/* Puts a value of the sequence into the tuple and into the slot. */
static void
draw_value(SluiceLoad *load, TupleTableSlot *slot, char *place)
{
	const SluiceSequence *serial = &load->args.serial;

	sluice_sequence_fill(&load->args.serial, place);
	slot->tts_values[serial->attnum - 1] = fetch_att(place, true, serial->len);
}

/*
 * Reads a value as COPY reads it: text, or bytes of FORMAT binary. A zero byte
 * follows the value.
 */
Datum
sluice_read_value(FmgrInfo *function, bool binary, const char *bytes, uint32 len,
				  Oid ioparam, int32 typmod)
{
	StringInfoData value;
	Datum		result;
	char	   *own = palloc((Size) len + 1);

	/*
	 * The function may write to its argument, as that of PostGIS does, and it
	 * may be called for these bytes again. The copy lives as long as the result.
	 */
	memcpy(own, bytes, (Size) len + 1);
	if (!binary)
		return InputFunctionCall(function, own, ioparam, typmod);
	/* As CopyReadBinaryAttribute of copyfromparse.c. */
	value.data = own;
	value.len = (int) len;
	value.maxlen = (int) len + 1;
	value.cursor = 0;
	result = ReceiveFunctionCall(function, &value, ioparam, typmod);
	if (value.cursor != value.len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("incorrect binary data format")));
	return result;
}

/*
 * Reads the values of a row that the core has left to the server's input
 * functions, or raises their errors. Each value is stored at its column's
 * place.
 */
void
sluice_read_asks(SluiceLoad *load, const SluiceSlice *slice, const SluiceRow *row,
				 const SluiceAsk *asks, Datum *values)
{
	CopyFromState cstate = load->cstate;
	TupleDesc	desc = RelationGetDescr(cstate->rel);
	const SluiceAsk *sorted = in_list_order(load->args.columns, asks, row->asks);

	for (uint32 i = 0; i < row->asks; i++)
	{
		const SluiceAsk *ask = &sorted[i];
		int			m = (int) ask->column;
		Form_pg_attribute att = TupleDescAttr(desc, m);
		char	   *text = (char *) slice->arena + ask->offset;

		cstate->cur_attname = NameStr(att->attname);
		cstate->cur_attval = compat_is_binary(cstate) ? NULL : text;
		values[m] = sluice_read_value(&cstate->in_functions[m], compat_is_binary(cstate),
									  text, ask->len, cstate->typioparams[m], att->atttypmod);
		cstate->cur_attname = NULL;
		cstate->cur_attval = NULL;
	}
}

/*
 * Completes a row that the core could not finish: with the values that the
 * server's input functions read, and with the defaults that differ for every
 * row.
 */
static void
complete_row(SluiceLoad *load, const SluiceSlice *slice, TupleTableSlot *slot,
		   const SluiceRow *row, const SluiceAsk *asks)
{
	HeapTupleData tuple = {0};
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));

	tuple.t_len = row->len;
	tuple.t_data = (HeapTupleHeader) (slice->arena + row->offset);
	heap_deform_tuple(&tuple, RelationGetDescr(load->cstate->rel), slot->tts_values, slot->tts_isnull);
	if (load->values == NULL)
		sluice_read_asks(load, slice, row, asks, slot->tts_values);
	for (uint32 i = 0; i < row->asks; i++)
	{
		if (load->values)
			slot->tts_values[asks[i].column] = load->values[asks - slice->asks + i];
		slot->tts_isnull[asks[i].column] = false;
	}
	if (row->blank)
		draw_value(load, slot, (char *) tuple.t_data + row->blank);
	for (int i = 0; i < load->nvolatile; i++)
	{
		int			m = load->volatiles[i].attnum - 1;

		slot->tts_values[m] = ExecEvalExpr(load->volatiles[i].state, load->econtext,
										   &slot->tts_isnull[m]);
	}
	MemoryContextSwitchTo(old);
	ExecStoreVirtualTuple(slot);
	sluice_report.values_by_server += row->asks;
}

/* How many of these rows get values: all but those that cannot be read. */
static int64
rows_with_values(const SluiceLoad *load, size_t from, size_t to)
{
	int64		count = to - from;

	for (size_t i = from; load->unreadable && i < to; i++)
		count -= load->unreadable[i] != NULL;
	return count;
}

/*
 * Accepts the rows `from` up to `to` of this slice, which the core has formed:
 * they go into pages or batches.
 */
void
sluice_accept_range(SluiceLoad *load, const SluiceSlice *slice, size_t from, size_t to)
{
	const SluiceAsk *asks = slice->asks;
	bool		checks = load->check_rows &&
		(!load->completed || load->rri->ri_RelationDesc->rd_rel->relispartition);
	size_t		installed;

	/*
	 * If ON_ERROR has skipped a record, its column stays named until the next
	 * record is read.
	 */
	if (from < to)
		load->cstate->cur_attname = load->cstate->cur_attval = NULL;
	sluice_sequence_expect(&load->args.serial, rows_with_values(load, from, to));
	installed = sluice_install_pages(load, slice);
	if (installed > 0 && installed == to - from)
		return;
	for (size_t i = 0; i < from; i++)
		asks += slice->rows[i].asks;
	for (size_t i = from; i < to; i++)
	{
		SluiceRow  *row = &slice->rows[i];
		char	   *tuple = (char *) slice->arena + row->offset;
		bool		incomplete = row->asks || load->nvolatile;
		TupleTableSlot *slot;

		if (i < installed)
			continue;
		if (load->unreadable && load->unreadable[i])
		{
			asks += row->asks;
			continue;
		}
		slot = next_slot(load);
		sluice_show_record(load, slice, i);
		if (incomplete)
			complete_row(load, slice, slot, row, asks);
		else
		{
			if (row->blank)
				sluice_sequence_fill(&load->args.serial, tuple + row->blank);
			sluice_slot_store(slot, tuple, row->len);
		}
		asks += row->asks;
		if (checks || incomplete)
		{
			take_row(load, slot, load->cstate->cur_lineno);
			ResetPerTupleExprContext(load->estate);
		}
		else
			let_wait(load, load->batch, load->cstate->cur_lineno);
		load->record = NULL;
	}
	load->cstate->line_buf_valid = false;
}

/*
 * Accepts all rows that the core has formed from this slice, if none may be
 * rejected.
 */
void
sluice_accept_slice(SluiceLoad *load, const SluiceSlice *slice)
{
	sluice_accept_range(load, slice, 0, slice->rows_used);
}

/* Reads one record with stock COPY's parser. False at the end of the data. */
bool
sluice_take_server_row(SluiceLoad *load, SluiceSource *src)
{
	CopyFromState cstate = load->cstate;
	TupleTableSlot *slot;
	MemoryContext old;
	bool		found;

	slot = next_slot(load);
	cstate->cur_lineno = load->lines;
	cstate->eol_type = (EolType) load->slice.eol;
	ResetPerTupleExprContext(load->estate);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));
	found = sluice_stock_row(src, load->econtext,
							 slot->tts_values, slot->tts_isnull);
	MemoryContextSwitchTo(old);
	if (!found)
	{
		/*
		 * Binary data ends by its trailer, or within it; other data by a line
		 * of \.
		 */
		src->ended = src->binary || !cstate->raw_reached_eof;
		return false;
	}
	load->lines = cstate->cur_lineno;
	load->slice.eol = (uint8_t) cstate->eol_type;
	if (compat_skipped(cstate))
		return true;
	ExecStoreVirtualTuple(slot);
	sluice_report.rows_by_server++;
	take_row(load, slot, cstate->cur_lineno);
	return true;
}

/*
 * Reads the record at the front of the source with stock COPY's parser, if
 * none may be rejected.
 */
bool
sluice_ask_server(SluiceLoad *load)
{
	return sluice_take_server_row(load, &load->source);
}

/* Raises an error: the core has no memory, or has panicked, which is a bug. */
void
sluice_core_failed(SluiceStatus status)
{
	if (status == SLUICE_MEMORY)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while forming the rows of a COPY.")));
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("pgsluice: internal error in the core"),
			 errhint("The server's log has the details; WITH (pgsluice 'off') lets stock COPY do it.")));
}

/* Makes the core form as many rows as it can from the bytes that were read. */
SluiceStatus
sluice_form(SluiceLoad *load)
{
	SluiceSource *src = &load->source;
	SluiceSlice *slice = &load->slice;
	SluiceStatus status;
	instr_time	before,
				after;

	/* No row waits, so earlier tuples may be overwritten. */
	if (load->waiting == 0)
		slice->arena_used = 0;
	sluice_source_validate(src);
	slice->input = (const uint8_t *) src->buf + src->start;
	slice->input_len = src->valid - src->start;
	slice->last = src->eof && !src->sealed && src->valid == src->end;
	/*
	 * In CSV, stock COPY looks at the byte after a CR, whether it is valid or
	 * not, before it takes the line.
	 */
	if (load->args.dialect.csv && !slice->last && slice->input_len > 0 &&
		slice->input[slice->input_len - 1] == '\r')
		slice->input_len--;
	slice->pack = load->waiting == 0 && sluice_pages_wanted(load);
	/*
	 * If rows are formed again, the last page is installed even if it is not full. So a slice has
	 * many rows then.
	 */
	slice->page_limit = load->pipeline == NULL && !sluice_forms_again(load->expressions) ? SLUICE_SLICE_PAGES : 0;
	slice->rows_len = slice->pack || load->rejects ? SLUICE_SLICE_ROWS :
		load->by_partition ? SLUICE_BATCH_ROWS : SLUICE_BATCH_ROWS - load->waiting;
	if (sluice_forces_workers(load) && !sluice_knows_lines(load))
		slice->rows_len = 1;
	Assert(slice->rows_len > 0 && slice->rows_len <= SLUICE_SLICE_ROWS);
	INSTR_TIME_SET_CURRENT(before);
	status = pgsluice_form(load->plan, slice);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.forming, after, before);
	if (status == SLUICE_PANIC || status == SLUICE_MEMORY)
		sluice_core_failed(status);
	load->accept_slice(load, slice);
	/*
	 * A slice may have more rows than the batches hold, so that only some of
	 * them are in the table: the rest is inserted. This also closes the
	 * batches of partitions whose rows are all inserted.
	 */
	if (slice->pack || (load->leaf_pool && load->waiting == 0))
		sluice_flush(load, NULL);
	src->start += slice->consumed;
	load->lines += slice->lines;
	/*
	 * As in stock COPY, an error while reading on names the line that is about
	 * to be read.
	 */
	load->cstate->cur_lineno = load->lines + 1;
	return status;
}

/* Reads more. False if nothing was added. */
bool
sluice_fill(SluiceLoad *load)
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

/*
 * Continues after sluice_form(): reads more bytes, or has the server read the
 * record that the core does not accept. False at the end of the data.
 */
bool
sluice_go_on(SluiceLoad *load, SluiceStatus status)
{
	SluiceSource *src = &load->source;
	bool		eof;

	switch (status)
	{
		case SLUICE_MORE:
			eof = src->eof;
			if (sluice_fill(load) || eof != src->eof)
				return true;
			if (src->start == src->end && (src->eof || src->sealed))
				return false;
			return load->ask_server(load);	/* the record is too long, or not valid */
		case SLUICE_FULL:
			/*
			 * If there is no row, waiting tuples fill the memory. Otherwise
			 * just continue.
			 */
			if (load->slice.rows_used == 0)
				sluice_free_tuples(load);
			return true;
		case SLUICE_ASK:
			return load->ask_server(load);
		default:
			src->ended = true;
			return false;
	}
}

/*
 * Processes everything in the source. False if a line of \. has ended the
 * data.
 */
bool
sluice_finish_source(SluiceLoad *load)
{
	SluiceSource *src = &load->source;

	Assert(src->sealed || src->eof);
	do
		CHECK_FOR_INTERRUPTS();
	while (!src->ended && sluice_go_on(load, sluice_form(load)));
	return !src->ended && src->start == src->end;
}

/*
 * Compiles the plan of a row, defaults included, and allocates the memory for
 * its results.
 */
void
sluice_make_row_plan(SluiceLoad *load)
{
	SluiceSlice *slice = &load->slice;
	ListCell   *lc;

	sluice_expressions_find(load);
	sluice_plan_args(load->cstate, &load->args, load->expressions != NULL);
	load->plan = sluice_make_plan(&load->args);
	load->volatiles = palloc(sizeof(SluiceVolatile) * Max(list_length(load->args.volatiles), 1));
	foreach(lc, load->args.volatiles)
	{
		SluiceVolatile *v = &load->volatiles[load->nvolatile++];

		v->attnum = lfirst_int(lc);
		v->state = compat_default_of(load->cstate, v->attnum);
	}
	sluice_sequence_open(&load->args.serial, load->args.volatiles == NIL && !load->volatile_checks);
	slice->rows = load->rows = palloc(sizeof(SluiceRow) * SLUICE_SLICE_ROWS);
	slice->asks = palloc(sizeof(SluiceAsk) * SLUICE_BATCH_ASKS);
	/* If errors skip a record (ON_ERROR), stock COPY has to read all of it. */
	slice->asks_len = compat_skips_errors(load->cstate) ? 0 : SLUICE_BATCH_ASKS;
	slice->arena = (uint8_t *) TYPEALIGN(COMPAT_IO_ALIGN, palloc(SLUICE_ARENA + COMPAT_IO_ALIGN));
	slice->arena_len = SLUICE_ARENA;
	sluice_choose_route(load);
}
