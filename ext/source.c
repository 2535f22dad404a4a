/*
 * The bytes of a COPY FROM: read in slices for the core, lent to stock COPY's
 * own parser one record at a time, and taken back from it.
 */
#include "pgsluice.h"

#include "commands/progress.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/backend_progress.h"
#include "utils/wait_event.h"

/* Whose bytes stock COPY reads at this moment; set anew for every record. */
static SluiceSource *lender;

/* Stock COPY asks for bytes (COPY_CALLBACK). */
static int
lend(void *outbuf, int minread, int maxread)
{
	size_t		len;

	if (lender->start == lender->end && !lender->eof)
	{
		sluice_source_fill(lender);
		lender->refilled = true;
	}
	len = Min((size_t) maxread, lender->end - lender->start);
	memcpy(outbuf, lender->buf + lender->start, len);
	lender->start += len;
	return (int) len;
}

/*
 * Steps between the state that BeginCopyFrom set up and its data: from here on
 * its parser reads what we lend.
 */
void
sluice_source_open(SluiceSource *src, CopyFromState cstate)
{
	src->cstate = cstate;
	src->kind = cstate->copy_src;
	src->buf = palloc(SLUICE_HEADROOM + SLUICE_SLICE);
	src->start = src->valid = src->end = SLUICE_HEADROOM;
	src->eof = false;
	src->bytes = 0;
	cstate->copy_src = COPY_CALLBACK;
	cstate->data_source_cb = lend;
}

/* Reads one whole message; false at CopyDone. As CopyGetData of copyfromparse.c. */
static bool
next_message(StringInfo msg)
{
	for (;;)
	{
		int			type;
		int			limit = PQ_SMALL_MESSAGE_LIMIT;

		HOLD_CANCEL_INTERRUPTS();
		pq_startmsgread();
		type = pq_getbyte();
		if (type == 'd')
			limit = PQ_LARGE_MESSAGE_LIMIT;
		else if (type != EOF && strchr("cfHS", type) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("unexpected message type 0x%02X during COPY from stdin",
							type)));
		if (type == EOF || pq_getmessage(msg, limit))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("unexpected EOF on client connection with an open transaction")));
		RESUME_CANCEL_INTERRUPTS();
		if (type == 'd')
			return true;
		if (type == 'c')
			return false;
		if (type == 'f')
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("COPY from stdin failed: %s", pq_getmsgstring(msg))));
		/* Flush and Sync are sent by clients that do not know it is a COPY. */
	}
}

/* Whether the client has sent more than we have read; a guess is good enough. */
static bool
client_has_more(void)
{
	WaitEvent	events[FeBeWaitSetNEvents];
	int			n;

	if (compat_client_bytes_buffered())
		return true;
	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_READABLE, NULL);
	n = WaitEventSetWait(FeBeWaitSet, 0, events, lengthof(events), WAIT_EVENT_CLIENT_READ);
	for (int i = 0; i < n; i++)
	{
		if (events[i].events & WL_SOCKET_READABLE)
			return true;
	}
	return false;
}

/*
 * Reads from the client until the slice is full or the client pauses: rows that
 * came are not kept waiting for those that have not.
 */
static void
fill_from_client(SluiceSource *src, size_t limit)
{
	StringInfo	msg = src->cstate->fe_msgbuf;
	size_t		first = src->end;

	while (src->end < limit)
	{
		size_t		len = msg->len - msg->cursor;

		if (len == 0)
		{
			if (src->end > first && !client_has_more())
				return;
			if (!next_message(msg))
			{
				src->eof = true;
				return;
			}
			continue;
		}
		len = Min(len, limit - src->end);
		pq_copymsgbytes(msg, src->buf + src->end, (int) len);
		src->end += len;
	}
}

static void
fill_from_file(SluiceSource *src, size_t limit)
{
	FILE	   *file = src->cstate->copy_file;
	size_t		len = fread(src->buf + src->end, 1, limit - src->end, file);

	if (ferror(file))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read from COPY file: %m")));
	src->end += len;
	if (len == 0)
		src->eof = true;
}

/* Extends what is known to be valid UTF-8. */
static void
validate(SluiceSource *src)
{
	src->valid += pgsluice_valid_utf8((const uint8_t *) src->buf + src->valid,
									  src->end - src->valid);
}

/*
 * Moves what is unread to the front and reads on. False where nothing was
 * added: at the end of the data, or because a record fills the slice.
 */
bool
sluice_source_fill(SluiceSource *src)
{
	size_t		rest = src->end - src->start;
	size_t		limit = SLUICE_HEADROOM + SLUICE_SLICE;
	size_t		before;

	if (src->start != SLUICE_HEADROOM)
	{
		memmove(src->buf + SLUICE_HEADROOM, src->buf + src->start, rest);
		src->valid = SLUICE_HEADROOM +
			(src->valid > src->start ? src->valid - src->start : 0);
		src->start = SLUICE_HEADROOM;
		src->end = src->start + rest;
	}
	before = src->end;
	if (src->eof || before == limit)
		return false;
	if (src->kind == COPY_FRONTEND)
		fill_from_client(src, limit);
	else
		fill_from_file(src, limit);
	src->bytes += src->end - before;
	src->cstate->bytes_processed = src->bytes;
	pgstat_progress_update_param(PROGRESS_COPY_BYTES_PROCESSED, (int64) src->bytes);
	validate(src);
	CHECK_FOR_INTERRUPTS();
	return src->end > before;
}

/* A line of \. ended the data: the client's messages are read to their end. */
void
sluice_source_drain(SluiceSource *src)
{
	while (src->kind == COPY_FRONTEND && !src->eof)
	{
		src->start = src->valid = src->end;
		sluice_source_fill(src);
	}
	/* As ClosePipeFromProgram wants to know. */
	src->cstate->raw_reached_eof = src->eof;
}

/*
 * Lets stock COPY's parser read the record at src->start: the row as it would
 * have read it, or the error as it would have raised it. False at the end of
 * the data. cur_lineno and eol_type must be right before and are so after.
 */
bool
sluice_stock_row(SluiceSource *src, ExprContext *econtext,
				 Datum *values, bool *nulls)
{
	CopyFromState cstate = src->cstate;
	size_t		unread;
	bool		found;

	cstate->raw_buf_index = cstate->raw_buf_len = 0;
	cstate->input_buf_index = cstate->input_buf_len = 0;
	cstate->raw_reached_eof = cstate->input_reached_eof = false;
	cstate->input_reached_error = false;
	lender = src;
	src->refilled = false;
	found = NextCopyFrom(cstate, econtext, values, nulls);

	/* What it loaded and did not use is the tail of what we lent. */
	unread = cstate->raw_buf_len - cstate->input_buf_index;
	Assert(unread <= src->start);
	src->start -= unread;
	memcpy(src->buf + src->start, cstate->raw_buf + cstate->input_buf_index, unread);
	/* Lent bytes that were all valid stay so; others are looked at again. */
	if (src->refilled || src->valid < src->start + unread)
	{
		src->valid = src->start;
		validate(src);
	}
	cstate->bytes_processed = src->bytes;
	return found;
}
