/*
 * The bytes of a COPY FROM: read in slices for the core, lent to stock COPY's
 * own parser one record at a time, and taken back from it.
 *
 *    buf:  | headroom | start ... valid ... end |          |
 *
 * Bytes before `valid` are known to be text of the server's encoding, and the
 * core reads nothing else. The first byte that is not valid stops it, and the
 * record in which it lies goes to stock COPY's parser, which raises the error
 * with its own words.
 *
 * LENDING.  Stock COPY's parser is made to read from a callback
 * (COPY_CALLBACK), which gives it what lies at `start`. It reads ahead; what
 * it has not used when it has parsed its record is copied back in front of
 * `start`, for which the headroom is kept: it holds as much as the parser can
 * have read (RAW_BUF_SIZE). So both parsers see the same bytes, and either can
 * go on where the other one stopped.
 * docs/decisions/0004-copy-takes-over-by-lending.md has the reasons.
 *
 * BAD ENDS.  A client that gives up, sends a wrong message or goes away is
 * noticed when its bytes are read, which may be far ahead of the row that is
 * being loaded. Stock COPY would have loaded the rows before. So the failure
 * is noted (fail_later) and raised when all bytes before it are used up.
 *
 * ENCODING.  Data in another encoding is converted piece by piece as it is
 * read, in stock COPY's way; a byte sequence that cannot be converted stops
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
 * The source whose bytes stock COPY's parser reads now: its callback has no
 * argument. A function that it calls may run another COPY, so the code that
 * sets this restores the previous value, after an error too.
 */
static SluiceSource *lender;

/*
 * What was read is used up, and nothing comes after it: the client has given
 * up or is gone, or the bytes cannot be converted (as CopyConversionError says
 * it).
 */
void
sluice_source_refuse(SluiceSource *src)
{
	unsigned char converted[(MAX_CONVERSION_INPUT_LENGTH + 1) * MAX_CONVERSION_GROWTH + 1];

	if (src->failure)
	{
		/* Within a message: so the error ends the session. */
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

/* Stock COPY asks for bytes (COPY_CALLBACK). */
static int
lend(void *outbuf, int minread, int maxread)
{
	size_t		len;

	/*
	 * To name a bad byte at a chunk's end, the parser looks at what follows.
	 */
	if (lender->start == lender->end && lender->sealed)
	{
		len = Min((size_t) maxread, lender->after_len);
		memcpy(outbuf, lender->after, len);
		lender->after_len -= len;
		lender->after += len;
		/* Behind the trailer of binary data there may be nothing. */
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
	src->eof = src->ended = src->sealed = false;
	src->failure = NULL;
	src->bytes = 0;
	src->single_byte = pg_database_encoding_max_length() == 1;
	src->binary = compat_is_binary(cstate);
	if (src->binary)
	{
		/* What was read with the header, which is stock COPY's to check. */
		src->bytes = cstate->bytes_processed;
		src->end += cstate->raw_buf_len - cstate->raw_buf_index;
		memcpy(src->buf + src->start, cstate->raw_buf + cstate->raw_buf_index,
			   src->end - src->start);
		src->eof = cstate->raw_reached_eof;
	}
	else if (cstate->need_transcoding)
	{
		/* From here on what its parser reads is in the server's encoding. */
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
 * The client's data ends badly. What came before is used up first, as stock
 * COPY has done by then.
 */
static void
fail_later(SluiceSource *src, int code, const char *why)
{
	src->failure = MemoryContextStrdup(src->cstate->copycontext, why);
	src->failure_code = code;
}

/*
 * Reads one whole message; false where no data follows. As CopyGetData of
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
			 * It stays: behind a row that is refused it is a message as any
			 * other.
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
		/* Flush and Sync are sent by clients that do not know it is a COPY. */
	}
}

/*
 * Whether the client has sent more than we have read; a guess is good enough.
 */
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
 * that came are not kept waiting for those that have not.
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
 * In pieces of the size that stock COPY reads: fread() returns when it has them,
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
 * Reads at most `len` bytes into `buf` as they come; 0 at the end of the data.
 */
static size_t
read_bytes(SluiceSource *src, char *buf, size_t len)
{
	size_t		done;

	/* Nothing read because nothing was asked for is not the end. */
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
 * Converts what is there into at most `len` bytes, one of which ends a string;
 * returns how many. As CopyConvertBuf of copyfromparse.c.
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
 * Reads and converts; 0 at the end of the data and before what cannot be
 * converted.
 */
static size_t
read_converted(SluiceSource *src, char *buf, size_t len)
{
	size_t		done = 0;

	/* With less room a character might seem not to be convertible. */
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
 * Reads at most `len` bytes in the server's encoding; 0 where there are no
 * more.
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

/* Extends what is known to be valid: the core reads nothing else. */
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
	if (before == limit || src->sealed)
		return false;
	src->end += sluice_source_read(src, src->buf + src->end, limit - before);
	return src->end > before;
}

/*
 * Takes bytes at the front out of the source; where they are, they stay until
 * it is filled.
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

/* A line of \. ended the data: the client's messages are read to their end. */
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
	 * As ClosePipeFromProgram wants to know: behind a line of \. stock COPY
	 * does not read.
	 */
	src->cstate->raw_reached_eof = src->eof && (src->binary || !src->ended);
}

/*
 * Stock COPY's parser, which has nothing left in its own memory, is to read
 * what lies here.
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

/* It has counted the bytes again. */
static void
end_lending(SluiceSource *src)
{
	src->cstate->bytes_processed = src->bytes;
	pgstat_progress_update_param(PROGRESS_COPY_BYTES_PROCESSED, (int64) src->bytes);
}

/*
 * Lets stock COPY do the whole of it; returns how many rows it has inserted.
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

/* The data ends here: what follows is read to its end, and no more. */
void
sluice_source_end(SluiceSource *src)
{
	src->start = src->valid = src->end;
	src->ended = true;
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
	SluiceSource *outer = lender;
	size_t		unread;
	bool		found = false;
	int			used;

	begin_lending(src);
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

	/* Chunks end where records end. */
	if (src->overlent)
		elog(ERROR, "pgsluice: a record goes on beyond its chunk");
	/* What it loaded and did not use is the tail of what we lent. */
	used = src->binary ? cstate->raw_buf_index : cstate->input_buf_index;
	unread = cstate->raw_buf_len - used;
	Assert(unread <= src->start);
	src->start -= unread;
	memcpy(src->buf + src->start, cstate->raw_buf + used, unread);
	/* Lent bytes that were all valid stay so; others are looked at again. */
	if (src->refilled || src->valid < src->start + unread)
		src->valid = src->start;
	if (found && sluice_marker_ends(src, cstate->input_buf, used))
		sluice_source_end(src);
	end_lending(src);
	return found;
}
