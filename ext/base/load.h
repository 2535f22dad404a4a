/*
 * The state of one COPY FROM while it runs. Types alone: the rooms that read
 * and change it declare their functions in separate headers.
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
	SLUICE_FRESH				/* whole pages around them */
} SluiceRoute;

typedef struct SluiceVolatile
{
	AttrNumber	attnum;
	ExprState  *state;
} SluiceVolatile;

/*
 * Where the bytes come from. What was read and not yet formed lies in
 * buf[start, end), in the server's encoding; of that, buf[start, valid) is
 * known to be valid. FORMAT binary is bytes as they come. The first
 * SLUICE_HEADROOM bytes stay free for what stock COPY gives back.
 */
#define SLUICE_HEADROOM RAW_BUF_SIZE
#define SLUICE_SLICE ((size_t) 1 << 20)

typedef struct SluiceSource
{
	CopyFromState cstate;
	CopySource	kind;			/* what the data came by before we stepped in */
	char	   *buf;
	size_t		start;
	size_t		valid;
	size_t		end;
	bool		eof;
	char	   *failure;		/* why the client's data ends badly, or NULL */
	int			failure_code;	/* its SQLSTATE */
	bool		ended;			/* a line of \. was met */
	bool		sealed;			/* nothing more is to be read: it is a whole chunk */
	const char *after;			/* what follows upon a sealed chunk */
	size_t		after_len;
	bool		overlent;		/* it was lent */
	bool		binary;			/* FORMAT binary */
	bool		single_byte;	/* the server's encoding: any byte but NUL is valid */
	/*
	 * Where the data is in another encoding than the server's: what is not yet
	 * converted.
	 */
	char	   *raw;			/* NULL where it is not */
	size_t		raw_start;
	size_t		raw_end;
	bool		raw_eof;
	int			encoding;		/* the data's */
	bool		refilled;		/* read on while stock COPY had the bytes */
	uint64		bytes;			/* read so far */
} SluiceSource;

/* What a plan is made of. */
typedef struct SluicePlanArgs
{
	SluiceColumn *columns;
	size_t		ncolumns;
	size_t		fields;
	SluiceDialect dialect;
	SluiceEnv	env;
	SluiceSequence serial;
	List	   *volatiles;		/* columns whose defaults are another for every row */
} SluicePlanArgs;

/* Rows that wait for the next insertion, in the order of the input. */
#define SLUICE_BATCH_ROWS 1000
#define SLUICE_BATCH_ASKS (8 * SLUICE_BATCH_ROWS)
#define SLUICE_ARENA ((size_t) 4 << 20)

/* A partition fills at most so many pages before they are installed. */
#define SLUICE_LEAF_PAGES 32

/* Rows of a partition that wait in pages: heap/leaf_pages.c. */
typedef struct SluiceLeafPages
{
	int			used;			/* pages; rows are added to the last one */
	uint32		lower;			/* its pd_lower and pd_upper */
	uint32		upper;
	uint32		reserve;		/* bytes that stay free in each page */
	uint64		touched;		/* when a row came last */
	TupleTableSlot *slot;		/* for one row; NULL: there was none yet */
	bool		indexed;		/* its rows go to indexes */
	bool		refused;		/* its rows go to the batch until that was inserted */
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
	int			used;
	uint64		inserted;		/* rows of earlier flushes */
	int			made;			/* slots that there are */
	TupleDesc	desc;			/* theirs */
	bool		in_order;		/* rows go to the table's end, one behind the other */
	struct PlacedRow *placed;		/* room for the rows that the indexes get */
	TupleTableSlot *slots[SLUICE_BATCH_ROWS];
	uint64		lines[SLUICE_BATCH_ROWS];
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
	SluiceRoute route;			/* of whole pages */
	TupleTableSlot *page_slot;	/* for rows that lie in them */
	SluiceBatch *batch;			/* of a plain table */
	List	   *batches;
	struct PartitionTupleRouting *proute;	/* of a partitioned table */
	bool		by_partition;	/* each partition's rows go in when it has enough of them */
	TupleTableSlot *root_slot;
	struct SluiceLeafPool *leaf_pool;	/* of pages for its partitions; NULL: they get batches */
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
	struct SluiceExpressions *expressions;	/* that may be evaluated before the insertion, or NULL */
	bool		completed;		/* a worker has done so for the slice that is being accepted */
	bool		volatile_checks;		/* a CHECK constraint or a condition may look at the table */
	/* the record that is being checked, for an error's CONTEXT */
	const char *record;
	size_t		record_len;
	bool		locked;			/* something was, when the last error was raised: its CONTEXT notes it */
	int			workers;		/* how many may be started */
	int			index_workers;	/* and for the indexes at the end */
	uint64		alone_limit;	/* bytes that are loaded alone before they are */
	uint64		alone;			/* bytes read when that was last thought of */
	SluicePipeline *pipeline;	/* NULL before they are */
	SluiceDuplicates duplicates;
	SluiceRejects *rejects;		/* NULL: an error ends the statement */
	/* With rejects, of the slice that is being accepted: */
	const Datum *values;		/* of its asks, read already; NULL: they are still to be read */
	ErrorData **unreadable;		/* of its rows: why their values cannot be read, or NULL */
	/*
	 * Who takes the rows that the core has formed, and the records that the
	 * server reads: rows/ or rejects/.
	 */
	void		(*accept_slice) (SluiceLoad *load, const SluiceSlice *slice);
	/*
	 * rows/ evaluates `expressions` for the rows of the slice's pages, which may
	 * become another slice for that. False: the rows go in one by one.
	 */
	bool		(*complete_slice) (SluiceLoad *load, SluiceSlice *slice);
	bool		(*ask_server) (SluiceLoad *load);
};

/*
 * What the leader forms at once without workers: few enough pages that they
 * are still in the processor's second cache when they are installed, and the
 * rows that they can hold.
 */
#define SLUICE_SLICE_PAGES 32
#define SLUICE_SLICE_ROWS (SLUICE_SLICE_PAGES * MaxHeapTuplesPerPage)

/* The most rows of any slice: those of a worker's chunk. */
#define SLUICE_MOST_ROWS 16384

#endif							/* PGSLUICE_LOAD_H */
