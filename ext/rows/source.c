/*
 * The bytes of a COPY FROM: read in slices for the core, lent to stock COPY's
 * own parser one record at a time, and taken back from it.
 *
 *    buf:  | headroom | start ... valid ... end |          |
 *
 * Bytes before `valid` are known to be text of the server's encoding, and the
 * core reads nothing else. The core stops at the first byte that is not valid.
 * The record that contains it goes to stock COPY's parser, which raises the
 * error with its own message.
 *
 * LENDING.  Stock COPY's parser is made to read from a callback
 * (COPY_CALLBACK), which gives it the bytes at `start`. The parser reads
 * ahead. When it has parsed its record, the bytes that it has not used are
 * copied back in front of `start`. The headroom is kept for them: it holds as
 * much as the parser can have read (RAW_BUF_SIZE). So both parsers see the
 * same bytes, and each can continue where the other one stopped.
 * docs/decisions/0004-copy-takes-over-by-lending.md has the reasons.
 *
 * BAD ENDS.  A client may give up, send a wrong message or go away. That is
 * noticed when its bytes are read, which may be far ahead of the row that is
 * being loaded. Stock COPY would have loaded the rows before it. So the
 * failure is recorded (fail_later), and raised when all bytes before it are
 * used up.
 *
 * ENCODING.  Data in another encoding is converted piece by piece as it is
 * read, in stock COPY's way. A byte sequence that cannot be converted stops
 * the conversion, and its error is raised when the rows before it are in.
 */
#include "rows/rows.h"

#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

/*
 * The source whose bytes stock COPY's parser is reading; its callback has no
 * argument. A function that the parser calls may run another COPY. So the code
 * that sets this variable restores the previous value, after an error too.
 */
static SluiceSource *lender;

/*
 * Raises the error that ends the data, when everything that was read is used
 * up: the client has given up or is gone, or the bytes cannot be converted
 * (with CopyConversionError's message).
 */
void
sluice_source_refuse(SluiceSource *src)
{
	unsigned char converted[(MAX_CONVERSION_INPUT_LENGTH + 1) * MAX_CONVERSION_GROWTH + 1];

	if (src->failure)
	{
		/* The error is within a message, so it must end the session. */
		if (src->failure_code == ERRCODE_PROTOCOL_VIOLATION)
			pq_startmsgread();
		ereport(ERROR, (errcode(src->failure_code), errmsg_internal("%s", src->failure)));
	}
	(void) pg_do_encoding_conversion_buf(src->cstate->conversion_proc, src->encoding,
										 GetDatabaseEncoding(),
										 (unsigned char *) src->raw + src->raw_start,
										 (int) (src->raw_end - src->raw_start),
										 converted, sizeof(converted), false);
	elog(ERROR, "encoding conversion failed without error");
}

/* Gives bytes to stock COPY's parser, as its callback (COPY_CALLBACK). */
static int
lend(void *outbuf, int minread, int maxread)
{
	size_t		len;

	/*
	 * To report a bad byte at a chunk's end, the parser needs the bytes after
	 * it.
	 */
	if (lender->start == lender->end && lender->sealed)
	{
		len = Min((size_t) maxread, lender->after_len);
		memcpy(outbuf, lender->after, len);
		lender->after_len -= len;
		lender->after += len;
		/* After the trailer of binary data there may be nothing. */
		lender->overlent = len > 0 || !lender->binary;
		return (int) len;
	}
	if (lender->start == lender->end && !lender->eof)
	{
		if (!sluice_source_fill(lender) && !lender->eof)
			sluice_source_refuse(lender);
		lender->refilled = true;
	}
	len = Min((size_t) maxread, lender->end - lender->start);
	memcpy(outbuf, lender->buf + lender->start, len);
	lender->start += len;
	return (int) len;
}

/*
 * Puts the source between the state that BeginCopyFrom has set up and its
 * data. From now on the parser of that state reads what we lend.
 */
void
sluice_source_open(SluiceSource *src, CopyFromState cstate)
{
	src->cstate = cstate;
	src->kind = cstate->copy_src;
	src->buf = palloc(SLUICE_HEADROOM + SLUICE_SLICE);
	src->start = src->valid = src->end = SLUICE_HEADROOM;
	src->eof = src->ended = src->sealed = false;
	src->failure = NULL;
	src->bytes = 0;
	src->single_byte = pg_database_encoding_max_length() == 1;
	src->binary = compat_is_binary(cstate);
	if (src->binary)
	{
		/*
		 * Bytes that were read with the header, which stock COPY has checked.
		 */
		src->bytes = cstate->bytes_processed;
		src->end += cstate->raw_buf_len - cstate->raw_buf_index;
		memcpy(src->buf + src->start, cstate->raw_buf + cstate->raw_buf_index,
			   src->end - src->start);
		src->eof = cstate->raw_reached_eof;
	}
	else if (cstate->need_transcoding)
	{
		/* From now on the parser reads bytes in the server's encoding. */
		src->raw = palloc(RAW_BUF_SIZE);
		src->encoding = cstate->file_encoding;
		cstate->need_transcoding = false;
		cstate->file_encoding = GetDatabaseEncoding();
		pfree(cstate->input_buf);
		cstate->input_buf = cstate->raw_buf;
	}
	cstate->copy_src = COPY_CALLBACK;
	cstate->data_source_cb = lend;
}

/*
 * Records that the client's data ends badly. The bytes before that are used up
 * first, as in stock COPY.
 */
static void
fail_later(SluiceSource *src, int code, const char *why)
{
	src->failure = MemoryContextStrdup(src->cstate->copycontext, why);
	src->failure_code = code;
}

/*
 * Reads one whole message; false if no data follows. As CopyGetData of
 * copyfromparse.c.
 */
static bool
next_message(SluiceSource *src, StringInfo msg)
{
	for (;;)
	{
		int			type;

		HOLD_CANCEL_INTERRUPTS();
		pq_startmsgread();
		type = pq_peekbyte();
		if (type != EOF && (type == '\0' || strchr("cdfHS", type) == NULL))
		{
			/*
			 * The message is not consumed. If a row before it raises an error,
			 * the message is then handled like any other.
			 */
			pq_endmsgread();
			fail_later(src, ERRCODE_PROTOCOL_VIOLATION,
					   psprintf(_("unexpected message type 0x%02X during COPY from stdin"), type));
		}
		else if (type == EOF || pq_getbyte() == EOF ||
				 pq_getmessage(msg, type == 'd' ? PQ_LARGE_MESSAGE_LIMIT : PQ_SMALL_MESSAGE_LIMIT))
			fail_later(src, ERRCODE_CONNECTION_FAILURE,
					   _("unexpected EOF on client connection with an open transaction"));
		else if (type == 'f')
			fail_later(src, ERRCODE_QUERY_CANCELED,
					   psprintf(_("COPY from stdin failed: %s"), pq_getmsgstring(msg)));
		else if (type == 'c')
			src->eof = true;
		RESUME_CANCEL_INTERRUPTS();
		if (src->eof || src->failure)
			return false;
		if (type == 'd')
			return true;
		/*
		 * Ignore Flush and Sync, which clients may send without noticing the
		 * COPY.
		 */
	}
}

/* Whether the client has sent more than was read. A guess is good enough. */
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
 * Reads from the client until the memory is full or the client pauses: rows
 * that have arrived do not wait for those that have not.
 */
static size_t
read_from_client(SluiceSource *src, char *buf, size_t limit)
{
	StringInfo	msg = src->cstate->fe_msgbuf;
	size_t		done = 0;

	while (done < limit)
	{
		size_t		len = msg->len - msg->cursor;

		if (len == 0)
		{
			if (done > 0 && !client_has_more())
				break;
			if (!next_message(src, msg))
			{
				msg->cursor = msg->len;
				break;
			}
			continue;
		}
		len = Min(len, limit - done);
		pq_copymsgbytes(msg, buf + done, (int) len);
		done += len;
	}
	return done;
}

/*
 * Reads in pieces of stock COPY's size: fread() returns when it has all bytes,
 * even if the COPY was cancelled.
 */
static size_t
read_from_file(SluiceSource *src, char *buf, size_t limit)
{
	FILE	   *file = src->cstate->copy_file;
	size_t		done = 0;

	while (done < limit && !src->eof)
	{
		size_t		len = fread(buf + done, 1, Min(limit - done, RAW_BUF_SIZE), file);

		if (ferror(file))
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read from COPY file: %m")));
		CHECK_FOR_INTERRUPTS();
		src->eof = len == 0 || feof(file);
		done += len;
	}
	return done;
}

/*
 * Reads at most `len` bytes into `buf` without conversion; 0 at the end of the
 * data.
 */
static size_t
read_bytes(SluiceSource *src, char *buf, size_t len)
{
	size_t		done;

	/* If no bytes were requested, reading none does not mean the end. */
	if (src->eof || src->failure || len == 0)
		return 0;
	if (src->kind == COPY_FRONTEND)
		done = read_from_client(src, buf, len);
	else
		done = read_from_file(src, buf, len);
	src->bytes += done;
	src->cstate->bytes_processed = src->bytes;
	pgstat_progress_update_param(PROGRESS_COPY_BYTES_PROCESSED, (int64) src->bytes);
	CHECK_FOR_INTERRUPTS();
	return done;
}

/*
 * Converts the raw bytes into at most `len` bytes, a terminating zero
 * included; returns the length of the result. As CopyConvertBuf of
 * copyfromparse.c.
 */
static size_t
convert(SluiceSource *src, char *buf, size_t len)
{
	int			used;

	if (src->raw_start == src->raw_end)
		return 0;
	used = pg_do_encoding_conversion_buf(src->cstate->conversion_proc, src->encoding,
										 GetDatabaseEncoding(),
										 (unsigned char *) src->raw + src->raw_start,
										 (int) (src->raw_end - src->raw_start),
										 (unsigned char *) buf, (int) len, true);
	src->raw_start += used;
	return used ? strlen(buf) : 0;
}

/*
 * Reads and converts; 0 at the end of the data and before bytes that cannot be
 * converted.
 */
static size_t
read_converted(SluiceSource *src, char *buf, size_t len)
{
	size_t		done = 0;

	/* With less room, a character might seem not to be convertible. */
	while (len - done > MAX_CONVERSION_INPUT_LENGTH * MAX_CONVERSION_GROWTH)
	{
		size_t		got = convert(src, buf + done, len - done);
		size_t		rest = src->raw_end - src->raw_start;

		done += got;
		if (got > 0)
			continue;
		if (src->raw_eof || src->failure || rest >= MAX_CONVERSION_INPUT_LENGTH ||
			(done > 0 && src->kind == COPY_FRONTEND))
			break;
		memmove(src->raw, src->raw + src->raw_start, rest);
		src->raw_start = 0;
		src->raw_end = rest + read_bytes(src, src->raw + rest, RAW_BUF_SIZE - rest);
		src->raw_eof = src->eof;
		src->eof = false;
	}
	src->eof = src->raw_eof && src->raw_start == src->raw_end;
	return done;
}

/*
 * Reads at most `len` bytes in the server's encoding; 0 if there are no more.
 */
size_t
sluice_source_read(SluiceSource *src, char *buf, size_t len)
{
	return src->raw ? read_converted(src, buf, len) : read_bytes(src, buf, len);
}

/* How many bytes at the front of `data` are text in the server's encoding. */
size_t
sluice_valid(bool single_byte, const char *data, size_t len)
{
	const char *nul;

	if (!single_byte)
		return pgsluice_valid_utf8((const uint8_t *) data, len);
	nul = memchr(data, 0, len);
	return nul ? (size_t) (nul - data) : len;
}

/* Extends the range that is known to be valid: the core reads nothing else. */
void
sluice_source_validate(SluiceSource *src)
{
	if (src->binary)
		src->valid = src->end;
	else
		src->valid += sluice_valid(src->single_byte, src->buf + src->valid,
								   src->end - src->valid);
}

/*
 * Moves the unread bytes to the front and reads more. False if nothing was
 * added: at the end of the data, or because one record fills the slice.
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
	if (before == limit || src->sealed)
		return false;
	src->end += sluice_source_read(src, src->buf + src->end, limit - before);
	return src->end > before;
}

/*
 * Takes bytes at the front out of the source. They stay where they are until
 * the source is filled.
 */
void
sluice_source_skip(SluiceSource *src, size_t len)
{
	src->start += len;
	src->valid = Max(src->valid, src->start);
}

/* Puts bytes that were read already into the source, which must be empty. */
void
sluice_source_set(SluiceSource *src, const char *data, size_t len)
{
	Assert(src->start == src->end && len <= SLUICE_SLICE);
	src->start = src->valid = SLUICE_HEADROOM;
	src->end = src->start + len;
	memcpy(src->buf + src->start, data, len);
}

/*
 * Reads the client's messages to their end, after a line of \. ended the data.
 */
void
sluice_source_drain(SluiceSource *src)
{
	src->start = src->valid = src->end = SLUICE_HEADROOM;
	src->eof |= src->raw_eof;
	while (src->kind == COPY_FRONTEND && !src->eof)
	{
		if (src->failure)
			sluice_source_refuse(src);
		read_bytes(src, src->buf, SLUICE_SLICE);
	}
	/*
	 * ClosePipeFromProgram uses this: after a line of \. stock COPY does not
	 * read on.
	 */
	src->cstate->raw_reached_eof = src->eof && (src->binary || !src->ended);
}

/*
 * Prepares stock COPY's parser, whose own buffers are empty, to read the bytes
 * of the source.
 */
static void
begin_lending(SluiceSource *src)
{
	CopyFromState cstate = src->cstate;

	cstate->raw_buf_index = cstate->raw_buf_len = 0;
	cstate->input_buf_index = cstate->input_buf_len = 0;
	cstate->raw_reached_eof = cstate->input_reached_eof = false;
	cstate->input_reached_error = false;
	src->refilled = src->overlent = false;
}

/* The parser has counted the bytes again, so the count is set back. */
static void
end_lending(SluiceSource *src)
{
	src->cstate->bytes_processed = src->bytes;
	pgstat_progress_update_param(PROGRESS_COPY_BYTES_PROCESSED, (int64) src->bytes);
}

/*
 * Lets stock COPY load all of the source; returns how many rows it has
 * inserted.
 */
uint64
sluice_stock_copy(SluiceSource *src)
{
	SluiceSource *outer = lender;
	uint64		rows = 0;

	begin_lending(src);
	src->cstate->bytes_processed = 0;
	PG_TRY();
	{
		lender = src;
		rows = CopyFrom(src->cstate);
	}
	PG_FINALLY();
	{
		lender = outer;
	}
	PG_END_TRY();
	end_lending(src);
	return rows;
}

/* Ends the data here. What follows is only read and discarded. */
void
sluice_source_end(SluiceSource *src)
{
	src->start = src->valid = src->end;
	src->ended = true;
}

/*
 * Lets stock COPY's parser read the record at src->start. It returns the row
 * as it would have read it, or raises the error that it would have raised.
 * False at the end of the data. cur_lineno and eol_type must be right before,
 * and are right afterwards.
 */
bool
sluice_stock_row(SluiceSource *src, ExprContext *econtext,
				 Datum *values, bool *nulls)
{
	CopyFromState cstate = src->cstate;
	SluiceSource *outer = lender;
	size_t		unread;
	bool		found = false;
	int			used;

	begin_lending(src);
	compat_read_no_further(cstate);
	PG_TRY();
	{
		lender = src;
		found = NextCopyFrom(cstate, econtext, values, nulls);
	}
	PG_FINALLY();
	{
		lender = outer;
	}
	PG_END_TRY();

	/* Chunks end where records end, so the parser must not need more bytes. */
	if (src->overlent)
		elog(ERROR, "pgsluice: a record goes on beyond its chunk");
	/* What the parser has loaded and not used is the tail of what we lent. */
	used = src->binary ? cstate->raw_buf_index : cstate->input_buf_index;
	unread = cstate->raw_buf_len - used;
	Assert(unread <= src->start);
	src->start -= unread;
	memcpy(src->buf + src->start, cstate->raw_buf + used, unread);
	/*
	 * If all lent bytes were valid, they stay so; otherwise they are checked
	 * again.
	 */
	if (src->refilled || src->valid < src->start + unread)
		src->valid = src->start;
	if (found && sluice_marker_ends(src, cstate->input_buf, used, cstate->eol_type))
		sluice_source_end(src);
	end_lending(src);
	return found;
}
