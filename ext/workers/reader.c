/*
 * Workers read the values that the core does not read, each through the input
 * or receive function of its type, in the leader's session
 * (workers/session.c). They evaluate the table's expressions in the same way
 * (rows/expressions.c).
 *
 * A worker only ever gives a value or none. If a function rejects a value of a
 * row, or has a message about it (NOTICE, WARNING), the row stays as it was.
 * The leader reads it again when its turn comes, and what is raised then is
 * COPY's own error, at its place in the input. So the functions are called
 * twice for such a row; they are not volatile.
 *
 * WHERE THE ROWS LIE.  The core has formed the rows of the chunk at the start
 * of the arena, and has left the text of the values at the arena's end. A row
 * whose values were read is formed again after the others, as far as there is
 * room (`room_end`). Rows that were formed again have no asks left; the asks
 * of the others are moved together.
 *
 * ERRORS.  A function's error ends the worker's part of the transaction. State
 * that functions keep between calls (fn_extra) is in that transaction's memory
 * and is freed with it. The next row begins in another part with the same
 * snapshot.
 *
 * When all rows of the chunk are complete, they are packed into pages, like
 * those that the core forms alone. Then the leader can install them by the
 * page routes.
 *
 * EXPRESSIONS are evaluated for all rows of a chunk or for none. If the values
 * of one row were not read, or the row violates a constraint, or a function
 * fails or has a message, the leader evaluates the expressions again for each
 * row of the chunk. Until then nothing of the chunk has changed, except the
 * room of values that are generated.
 */
#include "workers/workers.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

struct SluiceReader
{
	SluiceShared *shared;
	SluiceSession *session;
	const SluiceReadColumn *columns;
	MemoryContext context;		/* of one row */
	TupleDesc	desc;
	Datum	   *values;
	bool	   *isnull;
	FmgrInfo   *functions;		/* of this part of the transaction */
	SluicePacker *packer;		/* NULL: the rows do not go into pages */
	SluiceExpressions *expressions; /* or NULL */
	int64		in_vain;		/* rows whose values were not compressed, minus rows whose values were */
};

/* A function has had a message for the client, or for the log. */
static bool spoken;

static emit_log_hook_type prev_emit_log_hook;

/* NULL unless this process is a worker that reads values. */
static SluiceShared *log_shared;

/*
 * Suppresses the messages of functions, because the leader's own call repeats
 * them. Also suppresses the message about the end of a worker that the leader
 * has ended.
 */
static void
keep_back(ErrorData *edata)
{
	if (edata->elevel < ERROR)
		spoken = true;
	if (edata->elevel < FATAL || pg_atomic_read_u32(&log_shared->stop))
		edata->output_to_server = false;
	else if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

/*
 * Removes the hook: the memory that is shared with the leader is about to go.
 */
void
sluice_reader_close(void)
{
	if (log_shared)
		emit_log_hook = prev_emit_log_hook;
	log_shared = NULL;
}

/*
 * Begins a part of the transaction. The state that functions kept between
 * calls was freed with the last part, so all of them are looked up again.
 */
static void
begin(SluiceReader *reader)
{
	int			natts = reader->desc->natts;

	sluice_session_begin(reader->session);
	reader->functions = MemoryContextAllocZero(TopTransactionContext, sizeof(FmgrInfo) * natts);
	for (int i = 0; i < natts; i++)
	{
		if (OidIsValid(reader->columns[i].function))
			fmgr_info_cxt(reader->columns[i].function, &reader->functions[i],
						  TopTransactionContext);
	}
	if (reader->expressions)
		sluice_expressions_begin(reader->expressions, TopTransactionContext);
	MemoryContextSwitchTo(reader->context);
}

/* Prepares this worker to read values; returns NULL if the leader is gone. */
SluiceReader *
sluice_reader_open(SluiceShared *shared, int number)
{
	SluiceReader *reader = palloc0(sizeof(SluiceReader));
	int			natts = shared->natts;
	Form_pg_attribute *atts = palloc(sizeof(Form_pg_attribute) * natts);

	reader->shared = shared;
	reader->session = (SluiceSession *) ((char *) shared + shared->session_at);
	reader->columns = (SluiceReadColumn *) ((char *) shared + shared->columns_at);
	reader->context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice row",
											ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < natts; i++)
		atts[i] = (Form_pg_attribute) &reader->columns[i].att;
	reader->desc = CreateTupleDesc(natts, atts);
	reader->values = palloc(sizeof(Datum) * natts);
	reader->isnull = palloc(sizeof(bool) * natts);
	reader->packer = shared->pack ? sluice_packer_make(CHUNK_ARENA, CHUNK_ROWS) : NULL;
	if (shared->expressions_at)
		reader->expressions = sluice_expressions_read((char *) shared + shared->expressions_at,
													  reader->desc, shared->serial);
	if (!sluice_session_join(reader->session, number))
		return NULL;
	log_shared = shared;
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = keep_back;
	/*
	 * The hook must receive every message that the client may have requested.
	 * With LOG as the lowest level it would not receive warnings and notices.
	 */
	compat_log_min_messages = Min(Min(compat_log_min_messages, client_min_messages), INFO);
	if (compat_log_min_messages == LOG)
		compat_log_min_messages = INFO;
	begin(reader);
	return reader;
}

/*
 * Returns where a column of fixed length that is not NULL begins, from the
 * start of the tuple.
 */
static uint32
offset_of(TupleDesc desc, HeapTuple tuple, int column, const bool *isnull)
{
	char	   *data = (char *) tuple->t_data + tuple->t_data->t_hoff;
	uint32		at = 0;

	for (int i = 0;; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (isnull[i])
			continue;
		at = att_align_pointer(at, att->attalign, att->attlen, data + at);
		if (i == column)
			return tuple->t_data->t_hoff + at;
		at = att_addlength_pointer(at, att->attlen, data + at);
	}
}

/*
 * How far a chunk has been read. The asks of the rows that are left to the
 * leader move up.
 */
typedef struct Progress
{
	size_t		row;
	size_t		asks_seen;
	size_t		asks_kept;
	size_t		room_end;		/* where the values' bytes begin in the arena, after the tuples */
	uint64		read;
	uint64		compressed;		/* values */
	size_t		completed;		/* rows whose expressions were evaluated */
	bool		failed;			/* the leader evaluates them, for all rows */
} Progress;

/*
 * heap_form_tuple() has formed the header of a composite value. Clears what
 * the core leaves zero, as heap_prepare_insert() does.
 */
static void
clear_header(HeapTuple formed)
{
	memset(formed->t_data, 0, offsetof(HeapTupleHeaderData, t_infomask2));
	formed->t_data->t_infomask &= ~HEAP_XACT_MASK;
	formed->t_data->t_infomask2 &= ~HEAP2_XACT_MASK;
}

/*
 * Reads a row's values and forms it again. Returns false if the row is left to
 * the leader.
 */
static bool
read_row(SluiceReader *reader, SluiceSlice *slice, const Progress *progress)
{
	SluiceRow  *row = &slice->rows[progress->row];
	const SluiceAsk *asks = slice->asks + progress->asks_seen;
	size_t		place = MAXALIGN(slice->arena_used);
	HeapTupleData tuple = {0};
	HeapTuple	formed;

	for (uint32 i = 0; i < row->asks; i++)
	{
		if (!OidIsValid(reader->columns[asks[i].column].function))
			return false;
	}
	tuple.t_len = row->len;
	tuple.t_data = (HeapTupleHeader) (slice->arena + row->offset);
	heap_deform_tuple(&tuple, reader->desc, reader->values, reader->isnull);
	spoken = false;
	for (uint32 i = 0; i < row->asks; i++)
	{
		int			m = (int) asks[i].column;
		const SluiceReadColumn *column = &reader->columns[m];

		reader->values[m] = sluice_read_value(&reader->functions[m], reader->shared->binary,
											  (char *) slice->arena + asks[i].offset,
											  asks[i].len, column->ioparam, column->att.atttypmod);
		reader->isnull[m] = false;
	}
	if (spoken)
		return false;
	formed = heap_form_tuple(reader->desc, reader->values, reader->isnull);
	if (place + formed->t_len > progress->room_end)
		return false;
	clear_header(formed);
	memcpy(slice->arena + place, formed->t_data, formed->t_len);
	slice->arena_used = place + MAXALIGN(formed->t_len);
	row->offset = (uint32) place;
	row->len = formed->t_len;
	if (row->blank)
		row->blank = offset_of(reader->desc, formed, reader->shared->serial, reader->isnull);
	return true;
}

/*
 * The leader tries again what cannot be compressed. So a worker compresses no
 * more once this many more rows were in vain than were not.
 */
#define MOST_IN_VAIN 8

/*
 * Compresses the values of a wide row. The new row takes the place of the old
 * one, because it is shorter.
 */
static void
compress_row(SluiceReader *reader, SluiceSlice *slice, Progress *progress)
{
	SluiceRow  *row = &slice->rows[progress->row];
	HeapTupleData tuple = {0};
	HeapTuple	formed;
	uint64		compressed;

	tuple.t_len = row->len;
	tuple.t_data = (HeapTupleHeader) (slice->arena + row->offset);
	formed = sluice_compress_row(reader->desc, &tuple, reader->shared->toast_target, &compressed);
	if (formed == NULL || formed->t_len > row->len)
	{
		reader->in_vain++;
		return;
	}
	reader->in_vain--;
	clear_header(formed);
	if (row->blank)
	{
		heap_deform_tuple(formed, reader->desc, reader->values, reader->isnull);
		row->blank = offset_of(reader->desc, formed, reader->shared->serial, reader->isnull);
	}
	memcpy(tuple.t_data, formed->t_data, formed->t_len);
	row->len = formed->t_len;
	progress->compressed += compressed;
}

/* Moves on to the next row. `read`: the values of this one were read. */
static void
next_row(Progress *progress, SluiceSlice *slice, bool read)
{
	SluiceRow  *row = &slice->rows[progress->row++];
	SluiceAsk  *asks = (SluiceAsk *) slice->asks;
	uint32		count = row->asks;

	if (read)
	{
		progress->read += count;
		row->asks = 0;
	}
	else
	{
		memmove(asks + progress->asks_kept, asks + progress->asks_seen, sizeof(*asks) * count);
		progress->asks_kept += count;
	}
	progress->asks_seen += count;
}

/*
 * Goes on from the row at which `progress` is. After an error, that is the row
 * at fault.
 */
static void
read_rows(SluiceReader *reader, SluiceSlice *slice, Progress *progress)
{
	while (progress->row < slice->rows_used)
	{
		SluiceRow  *row = &slice->rows[progress->row];
		bool		read = false;

		/* The leader has stopped the workers: it reads the rest. */
		if (pg_atomic_read_u32(&reader->shared->stop))
		{
			next_row(progress, slice, false);
			continue;
		}
		CHECK_FOR_INTERRUPTS();
		if (row->asks > 0)
			read = read_row(reader, slice, progress);
		if (reader->shared->toast_target > 0 && row->len > TOAST_TUPLE_THRESHOLD &&
			(row->asks == 0 || read) && reader->in_vain < MOST_IN_VAIN)
			compress_row(reader, slice, progress);
		MemoryContextReset(reader->context);
		next_row(progress, slice, read);
	}
}

/*
 * Evaluates the table's expressions, and packs rows that were formed again.
 * Ends at the first row that cannot be completed, or for which a function has
 * a message.
 */
static void
complete_rows(SluiceReader *reader, SluiceSlice *slice, Progress *progress)
{
	SluicePacker *packer = reader->packer;

	Assert(packer != NULL);
	sluice_packer_clear(packer);
	/* Rows that were formed again are in no page. */
	if (progress->read + progress->compressed > 0 && slice->rows_used > 0)
		packer->begun = true;
	while (!progress->failed && progress->completed < slice->rows_used)
	{
		size_t		n = progress->completed;

		if (pg_atomic_read_u32(&reader->shared->stop))
			break;
		CHECK_FOR_INTERRUPTS();
		spoken = false;
		if (slice->rows[n].asks > 0 ||
			!sluice_compute_row(reader->expressions, packer, slice, n) || spoken)
			progress->failed = true;
		else
			progress->completed++;
	}
}

/*
 * Packs the rows of a slice whose values were read into pages: all of them or
 * none.
 */
static void
pack_rows(SluicePacker *packer, SluiceSlice *slice)
{
	sluice_packer_clear(packer);
	if (sluice_packer_add_until(packer, slice, slice->rows_used))
		sluice_packer_take(packer, slice);
}

/*
 * Returns where the bytes of values begin. They fill the arena from its end,
 * so those of the last value come first.
 */
static size_t
room_end(const SluiceSlice *slice)
{
	size_t		asks = 0;

	for (size_t i = 0; i < slice->rows_used; i++)
		asks += slice->rows[i].asks;
	return asks > 0 ? slice->asks[asks - 1].offset : slice->arena_len;
}

/*
 * Reads what the core has left of a chunk's rows, compresses their values,
 * evaluates the table's expressions, and packs the rows. The chunk records how
 * far that went. An error ends the part of the transaction, and the next row
 * begins in another one.
 */
void
sluice_read_values(SluiceReader *reader, SluiceChunk *chunk)
{
	SluiceSlice *slice = &chunk->slice;
	Progress   *progress = MemoryContextAllocZero(TopMemoryContext, sizeof(Progress));
	bool		again;
	bool		through = false;

	progress->room_end = room_end(slice);
	while (!through)
	{
		PG_TRY();
		{
			read_rows(reader, slice, progress);
			if (reader->expressions && !progress->failed)
				complete_rows(reader, slice, progress);
			through = true;
		}
		PG_CATCH();
		{
			HOLD_INTERRUPTS();
			AbortOutOfAnyTransaction();
			FlushErrorState();
			RESUME_INTERRUPTS();
			if (progress->row < slice->rows_used)
				next_row(progress, slice, false);
			else
				progress->failed = true;
			MemoryContextReset(reader->context);
			begin(reader);
		}
		PG_END_TRY();
	}
	chunk->values_read = progress->read;
	chunk->values_compressed = progress->compressed;
	chunk->completed = reader->expressions && !progress->failed && progress->completed == slice->rows_used;
	again = progress->read > 0 || progress->compressed > 0;
	pfree(progress);
	if (chunk->completed && reader->packer->begun)
		sluice_packer_take(reader->packer, slice);
	else if (reader->packer && reader->expressions == NULL && again)
		pack_rows(reader->packer, slice);
}
