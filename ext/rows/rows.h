/*
 * From bytes to rows: see README.md.
 *
 * The callers are copy/ (the loop over the data), workers/ (chunks that
 * another process may have formed) and rejects/ (attempts). All of them use
 * sluice_accept_range() for rows that the core has formed, and
 * sluice_take_server_row() for records that it leaves to stock COPY's parser.
 * So a row passes the same checks in the same order wherever it comes from.
 */
#ifndef PGSLUICE_ROWS_H
#define PGSLUICE_ROWS_H

#include "heap/heap.h"
/* source.c */
extern void sluice_source_open(SluiceSource *src, CopyFromState cstate);
extern bool sluice_source_fill(SluiceSource *src);
extern void sluice_source_validate(SluiceSource *src);
extern size_t sluice_source_read(SluiceSource *src, char *buf, size_t len);
extern void sluice_source_refuse(SluiceSource *src);
extern void sluice_source_skip(SluiceSource *src, size_t len);
extern void sluice_source_set(SluiceSource *src, const char *data, size_t len);
extern size_t sluice_valid(bool single_byte, const char *data, size_t len);
extern void sluice_source_drain(SluiceSource *src);
extern uint64 sluice_stock_copy(SluiceSource *src);
extern void sluice_source_end(SluiceSource *src);
extern bool sluice_stock_row(SluiceSource *src, ExprContext *econtext,
							 Datum *values, bool *nulls);

/*
 * The state of a search for a record's end by stock COPY's rules. The search
 * can continue when there are more bytes.
 */
typedef struct SluiceRecordEnd
{
	size_t		at;				/* bytes that were examined */
	uint32		more;			/* further records that belong to it, such as the lines of a header */
	bool		in_quote;
	bool		escaped;
	bool		marker;			/* the line ends after a \., which says nothing of other line ends */
	uint64		lines;			/* lines that end within the record, its own line end included */
	EolType		eol;
} SluiceRecordEnd;

/* record.c */
extern bool sluice_marker_ends(const SluiceSource *src, const char *lines, size_t len, EolType eol);
extern bool sluice_record_end(SluiceRecordEnd *search, const SluiceDialect *dialect,
							  const char *data, size_t len, bool last);
extern size_t sluice_line_length(const SluiceDialect *dialect, const char *record, size_t len,
								 EolType eol);
extern size_t sluice_last_record_end(const char *data, size_t len, const SluicePlanArgs *args);

/* The part of the dialect that decides where records end. The rest is known once there is a plan. */
static inline void
sluice_plan_quoting(CopyFromState cstate, SluiceDialect *dialect)
{
	dialect->csv = compat_is_csv(cstate);
	if (dialect->csv)
	{
		dialect->quote = cstate->opts.quote[0];
		dialect->escape = cstate->opts.escape[0];
	}
}

/* plan.c */
extern void sluice_plan_args(CopyFromState cstate, SluicePlanArgs *args, bool computes);
extern SluicePlan *sluice_make_plan(const SluicePlanArgs *args);
extern Size sluice_plan_serialized_size(const SluicePlanArgs *args);
extern void sluice_plan_serialize(const SluicePlanArgs *args, char *flat);
extern void sluice_plan_deserialize(const char *flat, SluicePlanArgs *args);

/* defaults.c */
extern const char *sluice_default_why_not(const SluiceStatement *s, bool marker, bool freeze);
extern bool sluice_defaults_may_fail(CopyFromState cstate);
extern void sluice_plan_default(CopyFromState cstate, Form_pg_attribute att,
								SluiceColumn *column, SluicePlanArgs *args);

typedef struct SluiceExpressions SluiceExpressions;

/* expressions.c */
extern void sluice_expressions_find(SluiceLoad *load);
extern bool sluice_forms_again(const SluiceExpressions *expressions);
extern char *sluice_expressions_text(const SluiceLoad *load);
extern SluiceExpressions *sluice_expressions_read(char *text, TupleDesc desc, int serial);
extern void sluice_expressions_begin(SluiceExpressions *expressions, MemoryContext memory);
extern bool sluice_compute_row(SluiceExpressions *expressions, SluicePacker *packer,
							   const SluiceSlice *slice, size_t n);

/* rows.c */
extern size_t sluice_record_length(const SluiceLoad *load);
extern Datum sluice_read_value(FmgrInfo *function, bool binary, const char *bytes, uint32 len,
							   Oid ioparam, int32 typmod);
extern void sluice_read_asks(SluiceLoad *load, const SluiceSlice *slice, const SluiceRow *row,
							 const SluiceAsk *asks, Datum *values);
extern void sluice_accept_range(SluiceLoad *load, const SluiceSlice *slice,
								size_t from, size_t to);
extern void sluice_accept_slice(SluiceLoad *load, const SluiceSlice *slice);
extern bool sluice_take_server_row(SluiceLoad *load, SluiceSource *src);
extern bool sluice_ask_server(SluiceLoad *load);
extern void sluice_free_tuples(SluiceLoad *load);
extern bool sluice_fill(SluiceLoad *load);
extern SluiceStatus sluice_form(SluiceLoad *load);
extern bool sluice_go_on(SluiceLoad *load, SluiceStatus status);
extern bool sluice_finish_source(SluiceLoad *load);
extern void sluice_make_row_plan(SluiceLoad *load);
extern void sluice_core_failed(SluiceStatus status);

/*
 * Whether workers are still to be started, to form all rows, as tests can
 * demand it.
 */
static inline bool
sluice_forces_workers(const SluiceLoad *load)
{
	return sluice_force == SLUICE_FORCE_WORKERS && load->workers > 0 && load->pipeline == NULL &&
		!load->source.sealed;
}

/* Whether workers can form rows: only if it is known how lines end. */
static inline bool
sluice_knows_lines(const SluiceLoad *load)
{
	return load->source.binary || load->slice.eol != EOL_UNKNOWN;
}

#endif							/* PGSLUICE_ROWS_H */
