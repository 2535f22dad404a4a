/*
 * The state of one COPY FROM while it runs. This file has types only: the
 * rooms that read and change the state declare their functions in separate
 * headers.
 */
#ifndef PGSLUICE_LOAD_H
#define PGSLUICE_LOAD_H

#include "base/pgsluice.h"

typedef struct SluicePipeline SluicePipeline;
typedef struct SluiceRejects SluiceRejects;

/* How rows get into the table. */
typedef enum SluiceRoute
{
	SLUICE_INSERT,				/* heap_multi_insert */
	SLUICE_APPEND,				/* whole pages into shared buffers */
	SLUICE_FRESH				/* whole pages that bypass shared buffers */
} SluiceRoute;

typedef struct SluiceVolatile
{
	AttrNumber	attnum;
	ExprState  *state;
} SluiceVolatile;

/*
 * Where the bytes come from. Bytes that were read and not yet formed are in
 * buf[start, end), in the server's encoding. Of these, buf[start, valid) are
 * known to be valid. With FORMAT binary the bytes are as they were sent. The
 * first SLUICE_HEADROOM bytes are kept free for what stock COPY gives back.
 */
#define SLUICE_HEADROOM RAW_BUF_SIZE
#define SLUICE_SLICE ((size_t) 1 << 20)

typedef struct SluiceSource
{
	CopyFromState cstate;
	CopySource	kind;			/* copy_src, before we replaced it */
	char	   *buf;
	size_t		start;
	size_t		valid;
	size_t		end;
	bool		eof;
	char	   *failure;		/* why the client's data ends with an error, or NULL */
	int			failure_code;	/* its SQLSTATE */
	bool		ended;			/* a line of \. was read */
	bool		sealed;			/* it holds one whole chunk: nothing more is read */
	const char *after;			/* the bytes that follow a sealed chunk */
	size_t		after_len;
	bool		overlent;		/* the parser has read beyond the chunk */
	bool		binary;			/* FORMAT binary */
	bool		single_byte;	/* the server's encoding is single-byte: any byte but NUL is valid */
	/*
	 * If the data is in another encoding than the server's: the bytes that are
	 * not yet converted.
	 */
	char	   *raw;			/* NULL if nothing has to be converted */
	size_t		raw_start;
	size_t		raw_end;
	bool		raw_eof;
	int			encoding;		/* of the data */
	bool		refilled;		/* more was read while stock COPY had the bytes */
	uint64		bytes;			/* read so far */
} SluiceSource;

/* The arguments that a plan is made from. */
typedef struct SluicePlanArgs
{
	SluiceColumn *columns;
	size_t		ncolumns;
	size_t		fields;
	SluiceDialect dialect;
	SluiceEnv	env;
	SluiceSequence serial;
	List	   *volatiles;		/* columns whose defaults differ for every row */
} SluicePlanArgs;

/* Rows that wait for the next insertion, in the order of the input. */
#define SLUICE_BATCH_ROWS 1000
#define SLUICE_BATCH_ASKS (8 * SLUICE_BATCH_ROWS)
#define SLUICE_ARENA ((size_t) 4 << 20)

/* A partition fills at most this many pages before they are installed. */
#define SLUICE_LEAF_PAGES 32

/* Rows of a partition that wait in pages: heap/leaf_pages.c. */
typedef struct SluiceLeafPages
{
	int			used;			/* pages; rows are added to the last one */
	uint32		lower;			/* pd_lower and pd_upper of the last page */
	uint32		upper;
	uint32		reserve;		/* bytes that stay free in each page */
	uint64		touched;		/* pool->rows when its last row came */
	TupleTableSlot *slot;		/* for one row; NULL: not created yet */
	bool		indexed;		/* its rows go to indexes */
	bool		refused;		/* its rows go to the batch until that is flushed */
	char	   *pages[SLUICE_LEAF_PAGES];
} SluiceLeafPages;

typedef struct SluiceBatch
{
	SluiceLeafPages leaf;
	struct IndexWriter *indexes;
	ResultRelInfo *rri;
	EState	   *estate;
	CopyFromState cstate;
	BulkInsertState bistate;
	CommandId	cid;
	int			options;		/* TABLE_INSERT_… */
	int			given_options;	/* those that stock COPY would use */
	bool		toast_is_full;	/* the TOAST table has no room for values */
	int			used;
	uint64		inserted;		/* rows of earlier flushes */
	int			made;			/* slots that were created */
	TupleDesc	desc;			/* of the slots */
	bool		in_order;		/* rows go to the table's end, one after the other */
	struct PlacedRow *placed;		/* space for the rows as the indexes get them */
	/*
	 * Of SLUICE_BATCH_ROWS each; NULL until the first row comes. The rows of
	 * thousands of partitions may be in pages only.
	 */
	TupleTableSlot **slots;
	uint64	   *lines;
} SluiceBatch;

typedef struct SluiceLoad SluiceLoad;

struct SluiceLoad
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
	SluiceRoute route;			/* for whole pages */
	TupleTableSlot *page_slot;	/* for the rows in them */
	SluiceBatch *batch;			/* of a plain table */
	List	   *batches;
	struct PartitionTupleRouting *proute;	/* of a partitioned table */
	bool		by_partition;	/* each partition's rows are inserted when it has enough of them */
	TupleTableSlot *root_slot;
	ResultRelInfo *leaf;		/* of the last row that was routed */
	struct HTAB *judged_leaves; /* leaves whose own expressions have been examined */
	struct SluiceLeafPool *leaf_pool;	/* pages for its partitions; NULL: they use batches only */
	CommandId	cid;
	int			options;		/* TABLE_INSERT_… */
	int			waiting;		/* rows in all batches */
	Size		materialized;	/* memory of these rows outside the arena */
	Size		line_bytes;		/* total length of their lines */
	int			nvolatile;
	SluiceVolatile *volatiles;	/* defaults that differ for every row */
	SluiceRow  *rows;
	uint64		lines;			/* lines before source.start */
	uint64		processed;
	uint64		excluded;
	bool		check_rows;		/* rows are checked before they are inserted */
	struct SluiceExpressions *expressions;	/* expressions that are evaluated before the insertion, or NULL */
	bool		completed;		/* a worker has evaluated them for the slice that is being accepted */
	bool		volatile_checks;		/* a CHECK constraint or a condition is volatile and may read the table */
	/* The record that is being checked, for an error's CONTEXT. */
	const char *record;
	size_t		record_len;
	bool		locked;			/* a lock may have been held at the last error: its CONTEXT sets this */
	int			workers;		/* the most that may be started */
	int			index_workers;	/* the same for the indexes at the end */
	uint64		alone_limit;	/* bytes that are loaded before workers are started */
	uint64		alone;			/* source.bytes when workers were last considered */
	SluicePipeline *pipeline;	/* NULL until workers are started */
	/*
	 * Ends the workers that have joined the session, before code of a user
	 * runs in it; belongs to workers/. Set while there is a pipeline.
	 */
	void		(*dismiss_readers) (SluiceLoad *load);
	SluiceDuplicates duplicates;
	SluiceRejects *rejects;		/* NULL: an error ends the statement */
	bool		rejects_run_code;	/* keeping a rejected record may run code of a user */
	/* With rejects, for the slice that is being accepted: */
	const Datum *values;		/* of its asks, already read; NULL: they have to be read */
	ErrorData **unreadable;		/* for each row, why its values cannot be read, or NULL */
	/*
	 * The functions that accept rows formed by the core, and records that the
	 * server reads. They belong to rows/ or to rejects/.
	 */
	void		(*accept_slice) (SluiceLoad *load, const SluiceSlice *slice);
	/*
	 * Evaluates `expressions` for the rows of the slice's pages; belongs to
	 * rows/. It may point the slice to other memory. False: the rows take the
	 * insert route.
	 */
	bool		(*complete_slice) (SluiceLoad *load, SluiceSlice *slice);
	bool		(*ask_server) (SluiceLoad *load);
};

/*
 * What the leader forms in one step without workers: few enough pages that
 * they are still in the processor's L2 cache when they are installed, and the
 * rows that they can hold.
 */
#define SLUICE_SLICE_PAGES 32
#define SLUICE_SLICE_ROWS (SLUICE_SLICE_PAGES * MaxHeapTuplesPerPage)

/* The most rows of any slice: the rows of a worker's chunk. */
#define SLUICE_MOST_ROWS 16384

#endif							/* PGSLUICE_LOAD_H */
