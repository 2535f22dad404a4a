/*
 * COPY's options rejects_to and max_rejects.
 *
 * THE PROMISE.  A record that cannot be loaded goes unchanged, with its
 * error, to the table that the statement names. All others are loaded as if it
 * had not been there. A record is rejected only for an error that is about its
 * data. An error of the server (no space, a lock timeout, a cancel, a missing
 * right) ends the statement as before: is_about_the_record() has the list.
 *
 * TWO STAGES.  First the values that the core leaves to the server are read,
 * in subtransactions that write nothing and so take no transaction ID. A
 * record whose values cannot be read is found there. Then a group of rows is
 * tried within a subtransaction, with a separate executor, indexes and a level
 * of AFTER triggers. If anything fails because of the data, the whole group is
 * rolled back, and smaller groups are tried, down to the one record that is at
 * fault.
 *
 * WHY A SUBTRANSACTION FOR A GROUP.  Only a rollback undoes what a failed
 * insertion has done by then: rows, index entries, queued triggers, what
 * triggers did. An attempt changes the load's own state in a copy
 * (AttemptWork.inner), which is taken over if the attempt succeeds. State
 * outside of the copy is restored explicitly: the report, the progress view
 * (base/subtransaction.c), what input functions remember (renew_functions).
 *
 * HOW THE RECORD IS FOUND.  An error that is raised for one row names its
 * line. Everything before the row is tried as the next group, which succeeds,
 * and then the row is tried alone. An error that is raised for all rows
 * together (a deferred check, a statement's end) names the last line, or none:
 * then the group is halved. After a record was rejected, the size of the next
 * group follows from the distance between the last two bad records.
 *
 * THE COST.  Each group takes a transaction ID, and beyond 64 of them
 * (PGPROC_MAX_CACHED_SUBXIDS) snapshots of all other sessions get slower. So
 * rows wait for others to form a group with, in separate memory. While no
 * record fails, groups grow up to WAITING_MOST. After a failure they begin
 * small again.
 *
 * THE ORDER of rows in the table is that of the input: a group is tried only
 * after all rows before it are in, or rejected. That holds for the reject
 * table, too.
 *
 * Foreign keys of the table to itself that are checked at the statement's end
 * are not allowed: here a "statement" is a group, and a parent that comes later
 * would be missed.
 *
 * The rejects' table is written outside of any attempt, so that a rollback of
 * an attempt does not remove what was rejected before.
 */
#include "rejects/rejects.h"

#include "catalog/partition.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

static const char *const reject_columns[] = {
	"line", "column_name", "sqlstate", "message", "detail", "record", "record_bytes",
};
static const Oid reject_types[] = {
	INT8OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID,
};

/*
 * Memory of the rows that wait for their attempt: after a failure, and the
 * most.
 */
#define WAITING_FIRST ((Size) 256 << 10)
#define WAITING_MOST ((Size) 16 << 20)

/*
 * Rows that wait: of a slice, or one that the server has read. slice.eol is the
 * line end of these rows, and EOL_UNKNOWN if they have none.
 */
typedef struct SluiceWaiting
{
	SluiceSlice slice;			/* what it points to is copied, unless the rows are tried at once */
	uint64		lines;			/* lines before it */
	Datum	   *values;			/* of its asks, if they have been read; else NULL */
	ErrorData **unreadable;		/* of its rows: why they cannot be read, or NULL */
	bool		by_server;		/* NOT NULL constraints were not checked */
} SluiceWaiting;

struct SluiceRejects
{
	SluiceSpiInsert *kept;
	int64		limit;			/* or SLUICE_NO_LIMIT */
	uint64		count;
	size_t		group;			/* how many rows are tried together next */
	size_t		accepted;		/* rows since the last record that was rejected */
	MemoryContext attempt;		/* for one attempt, and its error */
	MemoryContext waiting_context;	/* of rows that wait, and of their errors */
	List	   *waiting;		/* of SluiceWaiting, in their order */
	Size		room;			/* how much memory they may take until they are tried */
	TupleTableSlot *slot;		/* for a record that the server reads */
	MemoryContext functions;	/* for what input functions remember */
	StringInfoData long_record; /* one that does not fit into the source's memory */
};

/* What an attempt is to do, and what it found. */
typedef struct SluiceAttempt
{
	const SluiceWaiting *rows;	/* these rows, from `from` up to `to`; */
	size_t		from;
	size_t		to;
	const List *all;			/* or else all of these */
	ErrorData  *error;			/* why it failed, or NULL */
	uint64		line;			/* of the error */
} SluiceAttempt;

/*
 * Whether it is a foreign key to one of these tables that is checked before
 * the transaction's end.
 */
static bool
refers_to(HeapTuple tuple, TupleDesc desc, const void *targets)
{
	Form_pg_constraint constraint = (Form_pg_constraint) GETSTRUCT(tuple);

	return constraint->contype == CONSTRAINT_FOREIGN && !constraint->condeferred &&
		compat_is_enforced(constraint) && list_member_oid(targets, constraint->confrelid);
}

/*
 * Whether a row's parent may come later in the input. That is so with a
 * foreign key of the table to itself, to a partition that takes its rows, or
 * to the partitioned table of which it is a part. A partition may have its own
 * key of this kind.
 */
static bool
refers_to_itself(Relation rel)
{
	List	   *tables = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(RelationGetRelid(rel), NoLock, NULL) :
		list_make1_oid(RelationGetRelid(rel));
	List	   *targets = list_concat_copy(tables, get_partition_ancestors(RelationGetRelid(rel)));
	ListCell   *lc;

	foreach(lc, tables)
	{
		if (sluice_any_constraint(lfirst_oid(lc), refers_to, targets))
			return true;
	}
	return false;
}

/*
 * Inserts rows into the table, as if they had just been formed. The core has
 * not checked the NOT NULL constraints of rows that the server has read.
 */
static void
accept_waiting(SluiceLoad *load, const SluiceWaiting *rows, size_t from, size_t to)
{
	bool		check_rows = load->check_rows;

	load->lines = rows->lines;
	load->values = rows->values;
	load->unreadable = rows->unreadable;
	load->check_rows |= rows->by_server;
	sluice_accept_range(load, &rows->slice, from, to);
	load->check_rows = check_rows;
}

/* Does the work of one attempt, in its subtransaction. */
static void
attempt_rows(SluiceLoad *load, const SluiceAttempt *attempt)
{
	ListCell   *lc;

	AfterTriggerBeginQuery();
	sluice_open_executor(load);
	if (attempt->rows)
		accept_waiting(load, attempt->rows, attempt->from, attempt->to);
	foreach(lc, attempt->all)
	{
		const SluiceWaiting *rows = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		accept_waiting(load, rows, 0, rows->slice.rows_used);
	}
	sluice_flush(load, NULL);
	AfterTriggerEndQuery(load->estate);
	sluice_close_executor(load);
}

/* Creates the context for what input functions and defaults remember. */
static MemoryContext
open_functions(MemoryContext parent)
{
	return AllocSetContextCreate(parent, "pgsluice input functions", ALLOCSET_DEFAULT_SIZES);
}

/*
 * Replaces the state of input functions and defaults, which an error may have
 * left incomplete. The new defaults are made from the old ones' expressions,
 * so the old ones are freed last.
 */
static void
renew_functions(SluiceLoad *load)
{
	CopyFromState cstate = load->cstate;
	MemoryContext before = load->rejects->functions;
	MemoryContext old;

	load->rejects->functions = open_functions(MemoryContextGetParent(before));
	old = MemoryContextSwitchTo(load->rejects->functions);
	for (int i = 0; i < RelationGetDescr(cstate->rel)->natts; i++)
	{
		if (!TupleDescAttr(RelationGetDescr(cstate->rel), i)->attisdropped)
			fmgr_info(cstate->in_functions[i].fn_oid, &cstate->in_functions[i]);
	}
	compat_renew_defaults(cstate);
	for (int i = 0; i < load->nvolatile; i++)
		load->volatiles[i].state = compat_default_of(cstate, load->volatiles[i].attnum);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(before);
}

/*
 * Notes the column whose value was being read. The next record begins without
 * one.
 */
static void
name_column(SluiceLoad *load, ErrorData *error)
{
	CopyFromState cstate = load->cstate;

	if (error->column_name == NULL && cstate->cur_attname)
		error->column_name = pstrdup(cstate->cur_attname);
	cstate->cur_attname = NULL;
	cstate->cur_attval = NULL;
	cstate->line_buf_valid = false;
}

/* One attempt, as work of a subtransaction. */
typedef struct AttemptWork
{
	SluiceLoad	inner;			/* changes by an attempt that fails are dropped with it */
	SluiceAttempt *attempt;
} AttemptWork;

/* The callback that runs an attempt in a subtransaction. */
static void
run_attempt_work(void *arg)
{
	AttemptWork *work = arg;

	attempt_rows(&work->inner, work->attempt);
}

/*
 * Functions of the server that raise an error with the SQLSTATE of values that
 * are too large, although it would come for any record. Only their names
 * distinguish these errors. blame.rs of the loader has the same list.
 */
static const char *const limits_of_the_server[] = {
	"GetNewTransactionId", "GetNewMultiXactId", /* before a wraparound */
	"PushTransaction", "CommandCounterIncrement",	/* of one transaction */
	"ReadBuffer_common", "ExtendBufferedRelShared", "ExtendBufferedRelLocal",	/* of one relation */
	"mdextend", "mdzeroextend",
};

/* Whether the error that was just caught is caused by the record. */
static bool
is_about_the_record(const SluiceLoad *load, const ErrorData *error)
{
	bool		of_limit = error->sqlerrcode == ERRCODE_PROGRAM_LIMIT_EXCEEDED && error->funcname != NULL;

	for (int i = 0; of_limit && i < (int) lengthof(limits_of_the_server); i++)
	{
		if (strcmp(error->funcname, limits_of_the_server[i]) == 0)
			return false;
	}
	return sluice_is_about_the_data(error->sqlerrcode, load->cstate->cur_attname != NULL);
}

/*
 * Runs the attempt. Returns true if the rows are in. Otherwise nothing is in,
 * and attempt->error says why, until the next attempt. An error that is not
 * about the data is raised again.
 */
static bool
run_attempt(SluiceLoad *load, SluiceAttempt *attempt)
{
	CopyFromState cstate = load->cstate;
	AttemptWork work = {.inner = *load, .attempt = attempt};
	SluiceReport report = sluice_report;
	MemoryContext old = MemoryContextSwitchTo(load->rejects->attempt);

	MemoryContextReset(load->rejects->attempt);
	attempt->error = sluice_in_subtransaction(run_attempt_work, &work);
	if (attempt->error == NULL)
	{
		load->processed = work.inner.processed;
		load->excluded = work.inner.excluded;
		load->duplicates = work.inner.duplicates;
		MemoryContextSwitchTo(old);
		MemoryContextReset(load->rejects->attempt);
		return true;
	}
	if (work.inner.duplicates.keeping || !is_about_the_record(load, attempt->error))
		ReThrowError(attempt->error);
	name_column(load, attempt->error);
	MemoryContextSwitchTo(old);
	attempt->line = cstate->cur_lineno;
	sluice_report = report;
	renew_functions(load);
	return false;
}

/*
 * A record cannot be read. If that is because of its data, the load goes on
 * with the next one; otherwise the error is raised again.
 */
static void
end_reading(SluiceLoad *load, ErrorData *error)
{
	load->record = NULL;
	if (!is_about_the_record(load, error))
		ReThrowError(error);
	name_column(load, error);
	renew_functions(load);
}

/* The reading of a slice's values, as work of a subtransaction. */
typedef struct ReadWork
{
	SluiceLoad *load;
	const SluiceSlice *slice;	/* the next one that is to be accepted */
	size_t		row;			/* the next one; after an error, the one at fault */
	size_t		ask;			/* its first ask */
	Datum	   *values;			/* of all asks */
	Datum	   *by_column;		/* of one row */
} ReadWork;

/*
 * The callback that reads values in a subtransaction. After a failure `row` is
 * the row at fault, and the caller goes on after it.
 */
static void
run_read_work(void *arg)
{
	ReadWork   *work = arg;
	const SluiceSlice *slice = work->slice;

	for (; work->row < slice->rows_used; work->row++)
	{
		const SluiceRow *row = &slice->rows[work->row];
		const SluiceAsk *asks = slice->asks + work->ask;

		if (row->asks == 0)
			continue;
		CHECK_FOR_INTERRUPTS();
		sluice_show_record(work->load, slice, work->row);
		sluice_read_asks(work->load, slice, row, asks, work->by_column);
		for (uint32 i = 0; i < row->asks; i++)
			work->values[work->ask + i] = work->by_column[asks[i].column];
		work->ask += row->asks;
	}
	work->load->record = NULL;
}

/* Returns the number of asks of all rows of the slice. */
static size_t
count_asks(const SluiceSlice *slice)
{
	size_t		asks = 0;

	for (size_t i = 0; i < slice->rows_used; i++)
		asks += slice->rows[i].asks;
	return asks;
}

/*
 * Reads the values that the core has left to the server, of all rows of the
 * slice. Rows whose values cannot be read are noted with their errors. This
 * takes no transaction ID.
 */
static void
read_values(SluiceLoad *load, SluiceWaiting *rows)
{
	const SluiceSlice *slice = &rows->slice;
	ReadWork	work = {.load = load, .slice = slice};
	size_t		asks = count_asks(slice);

	/*
	 * If functions may look at earlier rows, each row is read after these are
	 * in.
	 */
	if (asks == 0 || load->volatile_checks)
		return;
	rows->values = work.values = palloc(sizeof(Datum) * asks);
	work.by_column = palloc(sizeof(Datum) * load->args.ncolumns);
	while (work.row < slice->rows_used)
	{
		ErrorData  *error = sluice_in_subtransaction(run_read_work, &work);

		if (error == NULL)
			break;
		end_reading(load, error);
		if (rows->unreadable == NULL)
			rows->unreadable = palloc0(sizeof(ErrorData *) * slice->rows_used);
		rows->unreadable[work.row] = error;
		work.ask += slice->rows[work.row++].asks;
	}
}

/* Returns a text column of the rejects' table. */
static Datum
text_or_null(const char *text, bool *isnull)
{
	*isnull = text == NULL;
	return text ? CStringGetTextDatum(text) : (Datum) 0;
}

/* Ends the statement: the record of this error is beyond the limit. */
static void
refuse_too_many(SluiceLoad *load, const ErrorData *error, uint64 line)
{
	load->cstate->cur_lineno = line;
	load->cstate->line_buf_valid = false;
	ereport(ERROR,
			(errcode(error->sqlerrcode),
			 errmsg("COPY has more than %lld records to reject (option \"max_rejects\")",
					(long long) load->rejects->limit),
			 errdetail("The last one: %s", error->message),
			 errhint("A higher max_rejects lets more pass, max_rejects 'none' any number.")));
}

/* Keeps the record that failed when it was tried alone. */
static void
reject(SluiceLoad *load, const ErrorData *error, const char *record, size_t len, uint64 line)
{
	SluiceRejects *rejects = load->rejects;
	Datum		values[lengthof(reject_columns)];
	bool		isnull[lengthof(reject_columns)];
	MemoryContext old;
	bool		valid;

	rejects->count++;
	sluice_report.rejected = rejects->count;
	if (rejects->limit >= 0 && rejects->count > (uint64) rejects->limit)
		refuse_too_many(load, error, line);
	valid = pg_verify_mbstr(GetDatabaseEncoding(), record, (int) len, true);

	old = MemoryContextSwitchTo(rejects->attempt);
	values[0] = Int64GetDatum((int64) line);
	isnull[0] = false;
	values[1] = text_or_null(error->column_name, &isnull[1]);
	values[2] = text_or_null(unpack_sql_state(error->sqlerrcode), &isnull[2]);
	values[3] = text_or_null(error->message, &isnull[3]);
	values[4] = text_or_null(error->detail, &isnull[4]);
	isnull[5] = !valid;
	isnull[6] = valid;
	values[valid ? 5 : 6] = PointerGetDatum(cstring_to_text_with_len(record, (int) len));
	sluice_spi_insert_row(rejects->kept, values, isnull);
	MemoryContextSwitchTo(old);
	MemoryContextReset(rejects->attempt);
}

/*
 * Whether there is anything to try. A group that has only unreadable records
 * needs no transaction ID.
 */
static bool
has_readable_rows(const SluiceAttempt *attempt)
{
	ErrorData **unreadable = attempt->rows->unreadable;

	for (size_t i = attempt->from; i < attempt->to; i++)
	{
		if (unreadable == NULL || unreadable[i] == NULL)
			return true;
	}
	return false;
}

/*
 * Returns the row at which the group failed, or else the one in its middle. An
 * error that is found for all rows together names the last one.
 */
static size_t
failed_at(const SluiceAttempt *attempt)
{
	for (size_t i = attempt->from; i + 1 < attempt->to; i++)
	{
		if (attempt->rows->lines + attempt->rows->slice.rows[i].line == attempt->line)
			return i;
	}
	return attempt->from + (attempt->to - attempt->from) / 2;
}

/* Keeps a row, without its line end, with its error. */
static void
reject_row(SluiceLoad *load, const SluiceWaiting *rows, size_t i, const ErrorData *error)
{
	const SluiceSlice *slice = &rows->slice;
	const SluiceRow *row = &slice->rows[i];
	size_t		end = i + 1 < slice->rows_used ? row[1].record : slice->consumed;
	const char *record = (const char *) slice->input + row->record;
	size_t		len = sluice_line_length(&load->args.dialect, record, end - row->record,
										 (EolType) slice->eol);

	reject(load, error, record, len, rows->lines + row->line);
}

/*
 * Keeps the unreadable rows among these, with their errors. The others are in
 * the table.
 */
static void
reject_unreadable(SluiceLoad *load, const SluiceWaiting *rows, size_t from, size_t to)
{
	for (size_t i = from; rows->unreadable && i < to; i++)
	{
		if (rows->unreadable[i])
			reject_row(load, rows, i, rows->unreadable[i]);
	}
}

/*
 * Tries these rows in groups that get smaller until all bad ones are found.
 * Returns true if there were none.
 */
static bool
try_groups(SluiceLoad *load, const SluiceWaiting *rows)
{
	SluiceRejects *rejects = load->rejects;
	SluiceAttempt attempt = {.rows = rows};
	bool		well = true;

	while (attempt.from < rows->slice.rows_used)
	{
		size_t		count = Min(rejects->group, rows->slice.rows_used - attempt.from);

		CHECK_FOR_INTERRUPTS();
		attempt.to = attempt.from + count;
		if (!has_readable_rows(&attempt) || run_attempt(load, &attempt))
		{
			reject_unreadable(load, rows, attempt.from, attempt.to);
			attempt.from = attempt.to;
			rejects->accepted += count;
			rejects->group = Min(rejects->group * 2, SLUICE_SLICE_ROWS);
			continue;
		}
		well = false;
		if (count > 1)
			rejects->group = Max(failed_at(&attempt) - attempt.from, 1);
		else
		{
			reject_row(load, rows, attempt.from++, attempt.error);
			/* The next one is likely to be as far away. */
			rejects->group = Min(Max(rejects->accepted * 2, 1), SLUICE_SLICE_ROWS);
			rejects->accepted = 0;
		}
	}
	return well;
}

/* Tries all rows that wait. */
void
sluice_rejects_flush(SluiceLoad *load)
{
	SluiceRejects *rejects = load->rejects;
	SluiceAttempt attempt = {.all = rejects->waiting};
	bool		together = list_length(rejects->waiting) > 1 && run_attempt(load, &attempt);
	bool		well = true;
	ListCell   *lc;

	foreach(lc, rejects->waiting)
	{
		const SluiceWaiting *rows = lfirst(lc);

		if (together)
		{
			reject_unreadable(load, rows, 0, rows->slice.rows_used);
			rejects->accepted += rows->slice.rows_used;
		}
		else
			well &= try_groups(load, rows);
	}
	rejects->room = well ? Min(rejects->room * 2, WAITING_MOST) : WAITING_FIRST;
	rejects->waiting = NIL;
	MemoryContextReset(rejects->waiting_context);
}

/* Copies bytes into the memory of rows that wait. */
static void *
copy_bytes(const void *bytes, Size len)
{
	return len > 0 ? memcpy(palloc(len), bytes, len) : NULL;
}

/*
 * Whether the next rows are tried at once, because they are very long or
 * because functions may look at earlier rows. Then the rows that wait are
 * tried first, here.
 */
static bool
tries_at_once(SluiceLoad *load, Size len)
{
	if (!load->volatile_checks && len <= WAITING_MOST)
		return false;
	sluice_rejects_flush(load);
	return true;
}

/*
 * Adds rows to those that wait. Tries them if `at_once`, or if there is no
 * more room.
 */
static void
add_waiting(SluiceLoad *load, SluiceWaiting *rows, bool at_once)
{
	SluiceRejects *rejects = load->rejects;
	SluiceSlice *slice = &rows->slice;

	if (!at_once)
	{
		slice->input = copy_bytes(slice->input, slice->consumed);
		if (!rows->by_server)
		{
			slice->arena = copy_bytes(slice->arena, slice->arena_used);
			slice->rows = copy_bytes(slice->rows, sizeof(SluiceRow) * slice->rows_used);
			slice->asks = rows->values ? copy_bytes(slice->asks, sizeof(SluiceAsk) * count_asks(slice)) : NULL;
		}
	}
	rejects->waiting = lappend(rejects->waiting, rows);
	if (at_once || MemoryContextMemAllocated(rejects->waiting_context, true) >= rejects->room)
		sluice_rejects_flush(load);
}

/* Takes the rows that the core has formed, in place of rows/. */
static void
accept_slice(SluiceLoad *load, const SluiceSlice *slice)
{
	bool		at_once = tries_at_once(load, slice->consumed);
	MemoryContext old = MemoryContextSwitchTo(load->rejects->waiting_context);
	SluiceWaiting *rows;

	if (slice->rows_used > 0)
	{
		rows = palloc0(sizeof(SluiceWaiting));
		rows->slice = *slice;
		rows->lines = load->lines;
		read_values(load, rows);
		add_waiting(load, rows, at_once);
	}
	MemoryContextSwitchTo(old);
}

/*
 * Reads on until the record at the source's start is complete. Returns false
 * if it fills the slice, or has bytes that cannot be converted.
 */
static bool
find_end(SluiceLoad *load, SluiceRecordEnd *search, uint32 more)
{
	SluiceSource *src = &load->source;

	memset(search, 0, sizeof(*search));
	search->more = more;
	search->eol = (EolType) load->slice.eol;
	while (!sluice_record_end(search, &load->args.dialect, src->buf + src->start,
							  src->end - src->start, src->eof || src->sealed))
	{
		if (!sluice_source_fill(src) && !src->eof)
			return false;
	}
	return true;
}

/*
 * Takes the record at the source's start, and `more` after it, out of the
 * source for the server to read. A long one may be as long as a line of stock
 * COPY.
 */
static void
take_record(SluiceLoad *load, SluiceRecordEnd *search, uint32 more, SluiceSource *lent)
{
	SluiceSource *src = &load->source;
	StringInfo	record = &load->rejects->long_record;
	bool		whole = find_end(load, search, more);

	memset(lent, 0, sizeof(*lent));
	lent->cstate = src->cstate;
	lent->kind = src->kind;
	lent->single_byte = src->single_byte;
	lent->eof = true;
	lent->buf = src->buf + src->start;
	if (whole)
		sluice_source_skip(src, search->at);
	else
	{
		resetStringInfo(record);
		appendBinaryStringInfo(record, src->buf + src->start, (int) (src->end - src->start));
		sluice_source_skip(src, src->end - src->start);
		while (!sluice_record_end(search, &load->args.dialect, record->data, record->len, src->eof))
		{
			char	   *piece = src->buf + SLUICE_HEADROOM;
			size_t		len = sluice_source_read(src, piece, SLUICE_SLICE);

			if (len == 0 && !src->eof)
				sluice_source_refuse(src);
			appendBinaryStringInfo(record, piece, (int) len);
		}
		sluice_source_set(src, record->data + search->at, record->len - search->at);
		lent->buf = record->data;
	}
	lent->end = lent->valid = search->at;
	lent->bytes = src->bytes;
}

/*
 * The reading of a record by stock COPY's parser, as work of a subtransaction.
 */
typedef struct RecordWork
{
	SluiceLoad *load;
	SluiceSource *record;
	HeapTuple	tuple;			/* NULL: it was the end of the data */
} RecordWork;

/*
 * The core leaves a record to the server if a NOT NULL column gets a NULL.
 * Such a record cannot go into the table, unless WHERE excludes it, so its
 * error is raised now. There are exceptions: the error of a partition names
 * another table, and with generated columns the error shows their values. Then
 * it is raised when the row is inserted.
 */
static void
check_not_null(SluiceLoad *load, TupleTableSlot *slot)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;

	if (load->volatile_checks || load->proute || load->cstate->whereClause ||
		(desc->constr && desc->constr->has_generated_stored))
		return;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attnotnull && !att->attgenerated && slot->tts_isnull[i])
			ExecConstraints(load->rri, slot, load->estate);
	}
}

/*
 * The callback that reads one record in a subtransaction, by stock COPY's
 * parser. The tuple is formed outside of the per-tuple memory, which the next
 * record resets.
 */
static void
run_record_work(void *arg)
{
	RecordWork *work = arg;
	SluiceLoad *load = work->load;
	CopyFromState cstate = load->cstate;
	TupleTableSlot *slot = ExecClearTuple(load->rejects->slot);
	bool		found;
	MemoryContext old;

	cstate->cur_lineno = load->lines;
	cstate->eol_type = (EolType) load->slice.eol;
	ResetPerTupleExprContext(load->estate);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));
	found = sluice_stock_row(work->record, load->econtext, slot->tts_values, slot->tts_isnull);
	if (found)
	{
		ExecStoreVirtualTuple(slot);
		check_not_null(load, slot);
	}
	MemoryContextSwitchTo(old);
	if (found)
		work->tuple = heap_form_tuple(slot->tts_tupleDescriptor, slot->tts_values, slot->tts_isnull);
	ExecClearTuple(slot);
}

/*
 * Whether rows wait that have not drawn the values of their sequences and
 * other volatile defaults yet. A record that the server reads draws its values
 * at once, so these rows must go in before it.
 */
static bool
values_are_due(const SluiceLoad *load)
{
	ListCell   *lc;

	if (!OidIsValid(load->args.serial.sequence) && load->nvolatile == 0)
		return false;
	foreach(lc, load->rejects->waiting)
	{
		if (!((SluiceWaiting *) lfirst(lc))->by_server)
			return true;
	}
	return false;
}

/*
 * Reads one record by stock COPY's parser; the row then waits with the others.
 * Returns false at the end of the data.
 */
static bool
ask_server(SluiceLoad *load)
{
	SluiceRecordEnd search;
	SluiceSource lent;
	RecordWork	work = {.load = load, .record = &lent};
	SluiceWaiting *rows;
	SluiceRow  *row;
	ErrorData  *error;
	MemoryContext old;
	bool		at_once;

	if (values_are_due(load))
		sluice_rejects_flush(load);
	take_record(load, &search, 0, &lent);
	if (lent.end == 0)
		return false;
	at_once = tries_at_once(load, lent.end);
	old = MemoryContextSwitchTo(load->rejects->waiting_context);
	rows = palloc0(sizeof(SluiceWaiting));
	row = palloc0(sizeof(SluiceRow));
	rows->slice = (SluiceSlice) {.input = (const uint8_t *) lent.buf,.consumed = lent.end,.rows = row,.rows_used = 1};
	/* If the data ends within quotes, a line end there belongs to the record. */
	rows->slice.eol = (uint8_t) (search.in_quote ? EOL_UNKNOWN : search.eol);
	rows->lines = load->lines;
	rows->by_server = true;
	row->line = (uint32_t) search.lines;
	if (sluice_marker_ends(&load->source, lent.buf, lent.end, search.eol))
		sluice_source_end(&load->source);
	error = sluice_in_subtransaction(run_record_work, &work);
	if (error)
	{
		end_reading(load, error);
		rows->unreadable = palloc(sizeof(ErrorData *));
		rows->unreadable[0] = error;
	}
	else if (work.tuple)
	{
		if (lent.start != lent.end)
			elog(ERROR, "pgsluice: a record's end was not where it was found");
		rows->slice.arena = (uint8_t *) work.tuple->t_data;
		row->len = work.tuple->t_len;
		sluice_report.rows_by_server++;
	}
	load->lines += search.lines;
	if (!search.marker)
		load->slice.eol = error || !work.tuple ? (uint8_t) search.eol : (uint8_t) load->cstate->eol_type;
	if (error || work.tuple)
		add_waiting(load, rows, at_once);
	MemoryContextSwitchTo(old);
	return error || work.tuple;
}

/*
 * Reads the header by itself, all lines of it, before there is a plan. If it is
 * not as it must be, the statement ends.
 */
void
sluice_rejects_read_header(SluiceLoad *load)
{
	SluiceRecordEnd search;
	SluiceSource lent;

	sluice_plan_quoting(load->cstate, &load->args.dialect);
	take_record(load, &search, compat_header_lines(load->cstate) - 1, &lent);
	(void) sluice_take_server_row(load, &lent);
	load->lines = search.lines;
	load->slice.eol = (uint8_t) search.eol;
	/*
	 * A \. ended the header, and with it the data, wherever the data comes
	 * from.
	 */
	if (lent.ended)
		sluice_source_end(&load->source);
}

/*
 * Called when the COPY begins. From here on rows and records come here instead
 * of to rows/.
 */
SluiceRejects *
sluice_rejects_open(const SluiceStatement *s, SluiceLoad *load)
{
	SluiceRejects *rejects = palloc0(sizeof(SluiceRejects));

	if (s->rel->trigdesc && s->rel->trigdesc->trig_insert_new_table)
		sluice_refuse_combination("rejects_to", "a trigger that has a transition table");
	if (refers_to_itself(s->rel))
		sluice_refuse_combination("rejects_to", "a foreign key of the table to itself that is not INITIALLY DEFERRED");
	rejects->kept = sluice_spi_insert_open(s->options.rejects_to, "rejects_to", s->rel,
									 reject_columns, reject_types, lengthof(reject_columns));
	load->rejects_run_code = sluice_spi_insert_runs_code(rejects->kept);
	rejects->limit = s->options.max_rejects;
	rejects->group = SLUICE_BATCH_ROWS;
	rejects->attempt = AllocSetContextCreate(CurrentMemoryContext, "pgsluice attempt",
											 ALLOCSET_DEFAULT_SIZES);
	rejects->waiting_context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice waiting rows",
													 ALLOCSET_DEFAULT_SIZES);
	rejects->room = WAITING_FIRST;
	rejects->slot = MakeSingleTupleTableSlot(RelationGetDescr(s->rel), &TTSOpsVirtual);
	rejects->functions = open_functions(CurrentMemoryContext);
	initStringInfo(&rejects->long_record);
	load->accept_slice = accept_slice;
	load->ask_server = ask_server;
	return rejects;
}

/* Reports how many records were rejected. */
void
sluice_rejects_close(SluiceRejects *rejects)
{
	ExecDropSingleTupleTableSlot(rejects->slot);
	if (rejects->count > 0)
		ereport(NOTICE,
				(errmsg_plural("%llu record was rejected", "%llu records were rejected",
							   (unsigned long) rejects->count,
							   (unsigned long long) rejects->count),
				 errdetail("Rejected records are kept in %s.", sluice_spi_insert_name(rejects->kept))));
}
