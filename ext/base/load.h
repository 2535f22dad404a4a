/*
 * The state of one COPY FROM while it runs.
 */
#ifndef PGSLUICE_LOAD_H
#define PGSLUICE_LOAD_H

#include "base/pgsluice.h"

typedef struct SluicePipeline SluicePipeline;
typedef struct SluiceKept SluiceKept;
typedef struct SluiceRejects SluiceRejects;

/* How rows get into the table. */
typedef enum SluiceRoute
{
	SLUICE_INSERT,				/* heap_multi_insert */
	SLUICE_APPEND,				/* whole pages into shared buffers */
	SLUICE_FRESH				/* whole pages around them */
} SluiceRoute;

typedef struct SluiceVolatile
{
	AttrNumber	attnum;
	ExprState  *state;
} SluiceVolatile;

/* COPY's option on_duplicate. */
typedef struct SluiceDuplicates
{
	SluiceOnDuplicate mode;
	Oid			arbiter;		/* the unique index of the table that the statement names */
	SluiceKept *kept;			/* where the rows go that lose, or NULL */
	bool		at_end;			/* they are told apart when all rows are in */
	uint64		skipped;
	uint64		replaced;
} SluiceDuplicates;

typedef struct SluiceLoad
{
	CopyFromState cstate;
	EState	   *estate;
	ModifyTableState *mtstate;
	ResultRelInfo *rri;
	ExprContext *econtext;
	SluiceSource source;
	SluicePlanArgs args;
	SluicePlan *plan;
	SluiceSlice slice;
	SluiceRoute route;			/* of whole pages */
	TupleTableSlot *page_slot;	/* for rows that lie in them */
	SluiceBatch *batch;			/* of a plain table */
	List	   *batches;
	struct PartitionTupleRouting *proute;	/* of a partitioned table */
	TupleTableSlot *root_slot;
	CommandId	cid;
	int			options;		/* TABLE_INSERT_… */
	int			waiting;		/* rows in all batches */
	Size		materialized;	/* memory of theirs outside of the arena */
	Size		line_bytes;		/* bytes of their lines */
	int			nvolatile;
	SluiceVolatile *volatiles;	/* defaults that are another for every row */
	SluiceRow  *rows;
	uint64		lines;			/* lines before source.start */
	uint64		processed;
	uint64		excluded;
	bool		check_rows;		/* rows need more than to be inserted */
	bool		watched;		/* a CHECK constraint or a condition may see which rows are in: see sluice_batch_ends() */
	/* the record that is being checked, for an error's CONTEXT */
	const char *record;
	size_t		record_len;
	int			workers;		/* how many may be started */
	uint64		alone_limit;	/* bytes that are loaded alone before they are */
	uint64		alone;			/* bytes read when that was last thought of */
	SluicePipeline *pipeline;	/* NULL before they are */
	SluiceDuplicates duplicates;
	SluiceRejects *rejects;		/* NULL: an error ends the statement */
	/* With rejects, of the slice that is being accepted: */
	const Datum *values;		/* of its asks, read already; NULL: they are still to be read */
	ErrorData **unreadable;		/* of its rows: why their values cannot be read, or NULL */
} SluiceLoad;

/*
 * What the leader forms at once without workers: few enough pages that they are still in the
 * processor's second cache when they are installed, and the rows that they can hold.
 */
#define SLUICE_SLICE_PAGES 32
#define SLUICE_SLICE_ROWS (SLUICE_SLICE_PAGES * MaxHeapTuplesPerPage)

/* copy/copy.c */
extern bool sluice_batch_ends(SluiceLoad *load);
extern void sluice_open_executor(SluiceLoad *load);
extern void sluice_close_executor(SluiceLoad *load);

/* heap/batches.c */
extern void sluice_open_batches(SluiceLoad *load);
extern SluiceBatch *sluice_route(SluiceLoad *load, TupleTableSlot **slot);
extern void sluice_flush_batches(SluiceLoad *load);
extern void sluice_close_batches(SluiceLoad *load);

/* heap/page_routes.c */
extern void sluice_choose_route(SluiceLoad *load);
extern bool sluice_pages_wanted(SluiceLoad *load);
extern size_t sluice_install_pages(SluiceLoad *load, const SluiceSlice *slice);

/* rows/rows.c */
extern void sluice_count_rows(SluiceLoad *load, uint64 count);
extern void sluice_show_record(SluiceLoad *load, const SluiceSlice *slice, size_t n);
extern void sluice_accept_rows(SluiceLoad *load, const SluiceSlice *slice);
extern void sluice_read_asks(SluiceLoad *load, const SluiceSlice *slice, const SluiceRow *row,
							 const SluiceAsk *asks, Datum *values);
extern void sluice_accept_range(SluiceLoad *load, const SluiceSlice *slice,
								size_t from, size_t to);
extern bool sluice_take_server_row(SluiceLoad *load, SluiceSource *src);
extern void sluice_flush(SluiceLoad *load);
extern void sluice_free_tuples(SluiceLoad *load);
extern bool sluice_fill(SluiceLoad *load);
extern bool sluice_finish_source(SluiceLoad *load);
extern void sluice_load_rows(SluiceLoad *load);
extern void sluice_core_failed(SluiceStatus status);

/* workers/reader.c */
extern Datum sluice_read_value(FmgrInfo *function, bool binary, char *bytes, uint32 len,
							   Oid ioparam, int32 typmod);

/* workers/pipeline.c */
extern bool sluice_pipeline(SluiceLoad *load);
extern void sluice_pipeline_close(SluiceLoad *load);

/* base/spi_insert.c */
extern SluiceKept *sluice_kept_open(const char *name, const char *option, Relation target,
									const char *const *columns, const Oid *types, int ncolumns);
extern void sluice_kept_add(SluiceKept *kept, Datum *values, const bool *isnull);
extern bool sluice_kept_runs_code(const SluiceKept *kept);
extern const char *sluice_kept_name(const SluiceKept *kept);

/*
 * A search for a record's end by stock COPY's rules, which can go on when more
 * bytes are there.
 */
typedef struct SluiceRecordEnd
{
	size_t		at;				/* bytes looked at */
	uint32		more;			/* records that belong to it, as lines of a header do */
	bool		in_quote;
	bool		escaped;
	uint64		lines;			/* that end within the record, its own end included */
	EolType		eol;
} SluiceRecordEnd;

/* rows/record.c */
extern bool sluice_record_end(SluiceRecordEnd *search, const SluiceDialect *dialect,
							  const char *data, size_t len, bool last);
extern size_t sluice_line_length(const SluiceDialect *dialect, const char *record, size_t len);
extern size_t sluice_last_record_end(const char *data, size_t len, const SluicePlanArgs *args);

/* rejects/rejects.c */
extern SluiceRejects *sluice_rejects_open(const SluiceStatement *s, SluiceLoad *load);
extern void sluice_rejects_accept(SluiceLoad *load, const SluiceSlice *slice);
extern bool sluice_rejects_ask_server(SluiceLoad *load);
extern void sluice_rejects_flush(SluiceLoad *load);
extern void sluice_rejects_read_header(SluiceLoad *load);
extern void sluice_rejects_close(SluiceRejects *rejects);

/* rejects/duplicates.c */
extern Oid	sluice_duplicates_arbiter(const SluiceStatement *s);
extern Bitmapset *sluice_duplicates_read_columns(const SluiceStatement *s);
extern void sluice_duplicates_open(SluiceDuplicates *duplicates, const SluiceStatement *s);
extern void sluice_duplicates_keep(const SluiceDuplicates *duplicates, ResultRelInfo *rri,
								   EState *estate, Relation arbiter, IndexInfo *info,
								   TupleTableSlot *lost, uint64 line);
extern void sluice_duplicates_flush(SluiceDuplicates *duplicates, SluiceBatch *batch);

#endif							/* PGSLUICE_LOAD_H */
