/*
 * Where a record ends, whether or not it is valid: the quoting and line ends
 * of CopyReadLineText (src/backend/commands/copyfromparse.c). If that would
 * raise an error about a line end, the search continues to the real one. Also
 * where the last record of a chunk ends.
 *
 * There are two kinds of search, for two callers. rejects/ must find the end
 * of a record that may be broken, exactly where stock COPY would begin the
 * next one. sluice_record_end() goes byte by byte, and can stop in the middle
 * and continue when there are more bytes. workers/ must quickly find some
 * record end near the end of a chunk. sluice_last_record_end() searches
 * backwards. It may be called only if LF ends lines and each quote toggles
 * quoting, wherever it is.
 */
#include "rows/rows.h"

#include "port/pg_bitutils.h"
#include "port/pg_bswap.h"

/* Whether a backslash escapes this byte of text. */
static bool
is_hidden(const char *data, size_t at)
{
	size_t		slashes = 0;

	while (slashes < at && data[at - 1 - slashes] == '\\')
		slashes++;
	return slashes % 2 == 1;
}

/* Whether text ends in \. */
static bool
ends_in_marker(const char *data, size_t len)
{
	return len > 0 && data[len - 1] == '.' && is_hidden(data, len - 1);
}

/* Applies one character to the state of quoting (csv). */
static void
follow_quotes(SluiceRecordEnd *search, const SluiceDialect *dialect, uint8 c)
{
	/* An escape that is the quote itself needs no special treatment. */
	bool		escapes = dialect->escape != dialect->quote;

	if (escapes && search->in_quote && c == dialect->escape)
		search->escaped = !search->escaped;
	if (c == dialect->quote && !search->escaped)
		search->in_quote = !search->in_quote;
	if (!escapes || c != dialect->escape)
		search->escaped = false;
	if (search->in_quote && c == (search->eol == EOL_NL ? '\n' : '\r'))
		search->lines++;
}

/*
 * Continues the search in data[0, len), which begins with the record and
 * contains everything that the search has seen before. Returns true when
 * search->at is the end of the record, and of `more` records after it. With
 * `last`, no bytes follow, and the record ends there at the latest.
 */
bool
sluice_record_end(SluiceRecordEnd *search, const SluiceDialect *dialect,
				  const char *data, size_t len, bool last)
{
	while (search->at < len)
	{
		uint8		c = (uint8) data[search->at];
		bool		has_next = search->at + 1 < len;

		/* The meaning of these depends on the next byte. */
		if ((c == '\r' || (c == '\\' && !dialect->csv)) && !has_next && !last)
			return false;
		search->at++;
		if (dialect->csv)
			follow_quotes(search, dialect, c);
		else if (c == '\\')
		{
			/*
			 * The next byte is data, except in \. which ends the data or is an
			 * error.
			 */
			if (has_next)
				search->at++;
			continue;
		}
		if (search->in_quote)
			continue;
		/*
		 * Up to 17, one byte ends a \. before it is known what a line end is, and
		 * does not determine it. A LF after a CR is then the next line.
		 */
		search->marker = search->eol == EOL_UNKNOWN && (c == '\n' || c == '\r') && compat_dot_line_ends() &&
			!dialect->csv && ends_in_marker(data, search->at - 1);
		if (c == '\n' && (search->eol == EOL_UNKNOWN || search->eol == EOL_NL))
		{
			search->eol = EOL_NL;
			search->lines++;
			if (search->more-- == 0)
				return true;
			continue;
		}
		if (c == '\r' && search->eol != EOL_NL)
		{
			bool		crnl = has_next && data[search->at] == '\n' && !search->marker;

			if (crnl && search->eol != EOL_CR)
			{
				search->at++;
				search->eol = EOL_CRNL;
			}
			else if (search->eol == EOL_CRNL)
				continue;
			else
				search->eol = EOL_CR;
			search->lines++;
			if (search->more-- == 0)
				return true;
			continue;
		}
	}
	if (last)
		search->lines++;
	return last;
}

/*
 * How many bytes at the end are a line end of this kind; 0 if there is none,
 * as with EOL_UNKNOWN.
 */
static size_t
line_end_length(const char *lines, size_t len, EolType eol)
{
	if (eol == EOL_CRNL)
		return len > 1 && lines[len - 2] == '\r' && lines[len - 1] == '\n' ? 2 : 0;
	if (eol == EOL_UNKNOWN || len == 0)
		return 0;
	return lines[len - 1] == (eol == EOL_NL ? '\n' : '\r') ? 1 : 0;
}

/*
 * The length of a record without its line end, which is of this kind
 * (EOL_UNKNOWN: it has none). Another line end is data, and so is one that a
 * backslash escapes.
 */
size_t
sluice_line_length(const SluiceDialect *dialect, const char *record, size_t len, EolType eol)
{
	size_t		end = line_end_length(record, len, eol);

	if (end > 0 && !dialect->csv && is_hidden(record, len - end))
		end = 0;
	return len - end;
}

/*
 * Whether a \. ends the last of these lines, which the server has read as a
 * whole, and with it the data. After a row, stock COPY up to 17 takes \. as the
 * end of what a client sends, but not as the end of a file. From 18 on, and
 * before a line end of another kind than this, such a \. is an error of its
 * record.
 */
bool
sluice_marker_ends(const SluiceSource *src, const char *lines, size_t len, EolType eol)
{
	size_t		end;

	if (!compat_dot_line_ends() || src->kind != COPY_FRONTEND || src->binary || compat_is_csv(src->cstate))
		return false;
	/* If no line has ended before, stock COPY accepts either byte. */
	if (eol == EOL_UNKNOWN && len > 0)
		eol = lines[len - 1] == '\n' ? EOL_NL : EOL_CR;
	end = line_end_length(lines, len, eol);
	return end > 0 && ends_in_marker(lines, len - end);
}

/*
 * Where the last complete tuple ends in binary data[0, len). If something is
 * not a tuple, such as the trailer, the rest goes to the server in one piece.
 */
static size_t
last_tuple_end(const char *data, size_t len, size_t fields)
{
	size_t		at = 0;

	for (;;)
	{
		size_t		next = at + 2;
		uint16		count;

		if (next > len)
			return at;
		memcpy(&count, data + at, 2);
		if (pg_ntoh16(count) != fields)
			return len;
		for (size_t i = 0; i < fields; i++)
		{
			uint32		size;

			if (len - next < 4)
				return at;
			memcpy(&size, data + next, 4);
			size = pg_ntoh32(size);
			next += 4;
			if (size == PG_UINT32_MAX)
				continue;		/* NULL */
			if (size > PG_INT32_MAX)
				return len;
			if (len - next < size)
				return at;
			next += size;
		}
		at = next;
	}
}

/*
 * Whether the byte occurs an odd number of times. Only the parity is wanted,
 * so eight positions are counted at once, by one bit for each.
 */
static bool
occurs_oddly(const char *data, size_t len, uint8 byte)
{
	const uint64 low = UINT64CONST(0x7f7f7f7f7f7f7f7f);
	const uint64 pattern = UINT64CONST(0x0101010101010101) * byte;
	uint64		odd = 0;
	size_t		i = 0;

	for (; len - i >= sizeof(odd); i += sizeof(odd))
	{
		uint64		word;

		memcpy(&word, data + i, sizeof(word));
		word ^= pattern;
		/* the high bit of each byte that is zero now; no carry leaves a byte */
		odd ^= ~(((word & low) + low) | word | low);
	}
	for (; i < len; i++)
		odd ^= (uint8) data[i] == byte;
	return (pg_popcount64(odd) & 1) != 0;
}

/*
 * Where the last complete record of data[0, len) ends; 0 if there is none.
 *
 * CSV: after the last LF with an even number of quotes before it; a quote
 * toggles quoting wherever it is. Text: after the last LF that no backslash
 * escapes.
 */
size_t
sluice_last_record_end(const char *data, size_t len, const SluicePlanArgs *args)
{
	const SluiceDialect *dialect = &args->dialect;
	bool		in_quote = false;

	if (dialect->binary)
		return last_tuple_end(data, len, args->fields);

	if (dialect->csv)
		in_quote = occurs_oddly(data, len, dialect->quote);
	for (size_t i = len; i > 0; i--)
	{
		char		c = data[i - 1];

		if (dialect->csv && (uint8_t) c == dialect->quote)
			in_quote = !in_quote;
		else if (c == '\n' && !in_quote && (dialect->csv || !is_hidden(data, i - 1)))
			return i;
	}
	return 0;
}
