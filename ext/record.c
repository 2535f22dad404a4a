/*
 * Where a record ends, whether or not it is a good one: the quoting and line
 * ends of CopyReadLineText (src/backend/commands/copyfromparse.c). Where that
 * raises an error about a line end, the search goes on to the true one.
 */
#include "load.h"

/* What the character does to quoting (csv). */
static void
follow_quotes(SluiceRecordEnd *search, const SluiceDialect *dialect, uint8 c)
{
	/* An escape that is the quote itself needs no attention. */
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
 * Looks on in data[0, len), which begins with the record and holds all that the
 * search has seen before. True once search->at is where the record ends; with
 * `last`, no bytes follow, and it ends there at the latest.
 */
bool
sluice_record_end(SluiceRecordEnd *search, const SluiceDialect *dialect,
				  const char *data, size_t len, bool last)
{
	while (search->at < len)
	{
		uint8		c = (uint8) data[search->at];
		bool		has_next = search->at + 1 < len;

		/* What these mean depends on what follows. */
		if ((c == '\r' || (c == '\\' && !dialect->csv)) && !has_next && !last)
			return false;
		search->at++;
		if (dialect->csv)
			follow_quotes(search, dialect, c);
		else if (c == '\\')
		{
			/* The next one is data, except behind \. which ends the data or is an error. */
			if (has_next)
				search->at++;
			continue;
		}
		if (search->in_quote)
			continue;
		if (c == '\n' && (search->eol == EOL_UNKNOWN || search->eol == EOL_NL))
		{
			search->eol = EOL_NL;
			search->lines++;
			return true;
		}
		if (c == '\r' && search->eol != EOL_NL)
		{
			bool		crnl = has_next && data[search->at] == '\n';

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
			return true;
		}
	}
	if (last)
		search->lines++;
	return last;
}
