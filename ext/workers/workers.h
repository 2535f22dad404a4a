/*
 * What the leader and the workers of one COPY FROM share: a ring of chunks in
 * dynamic shared memory.
 *
 * The leader fills chunks in the order of the data and installs them in the
 * same order. In between, the process that claims a chunk forms its rows: a
 * worker, or the leader when it would have to wait. Once they have connected,
 * the workers use this memory and nothing else of the server: no transaction,
 * no catalog, no relation. The exception is work that needs the server's
 * functions: reading values by input functions, evaluating expressions,
 * compressing values. For that they join the leader's transaction.
 */
#ifndef PGSLUICE_WORKER_H
#define PGSLUICE_WORKER_H

#include "rows/rows.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/proc.h"

/* A worker that has waited for data for this long leaves. */
#define IDLE_MILLISECONDS 3000

/* The sizes of a chunk: its input, and room for the output of usual rows. */
#define CHUNK_INPUT ((Size) 256 << 10)
#define CHUNK_ARENA ((Size) 1280 << 10)
#define CHUNK_ROWS SLUICE_MOST_ROWS
#define CHUNK_ASKS 32768

/* Why workers do not join the session, or have left it. */
#define SLUICE_RUNS_CODE "triggers or rules may run while rows are loaded"

typedef enum SluiceChunkState
{
	CHUNK_WAITING,				/* to be claimed, or claimed */
	CHUNK_FORMED,				/* `slice` and `status` say how far */
	CHUNK_ABANDONED				/* its worker has ended before it was formed */
} SluiceChunkState;

typedef struct SluiceChunk
{
	pg_atomic_uint32 state;
	Size		input_len;
	bool		last;			/* no data follows */
	uint8_t		eol;
	SluiceStatus status;
	SluiceSlice slice;			/* pointers are the forming process's own */
	uint64		values_read;	/* by input functions in a worker */
	uint64		values_compressed;	/* in a worker */
	bool		completed;		/* a worker has evaluated the table's expressions for its rows */
} SluiceChunk;

/* A column, for a worker that reads its values. */
typedef struct SluiceReadColumn
{
	Oid			function;		/* InvalidOid: the leader reads them */
	Oid			ioparam;
	FormData_pg_attribute att;
} SluiceReadColumn;

typedef struct SluiceSession SluiceSession;
typedef struct SluiceReader SluiceReader;

typedef struct SluiceShared
{
	/*
	 * If the leader and a worker are of different builds, only these two
	 * fields are known to be at the same place in both.
	 */
	char		build[SLUICE_BUILD_LEN];
	pg_atomic_uint32 strangers; /* workers of another build, which leave at once */
	pg_atomic_uint32 stop;
	pg_atomic_uint64 filled;	/* chunks that the leader has filled so far */
	pg_atomic_uint64 claimed;	/* chunks that someone has claimed so far */
	Latch	   *leader;
	PGPROC	   *leader_proc;
	pid_t		leader_pid;
	Oid			leader_user;	/* the role with which it logged in */
	Latch	   *workers[SLUICE_MAX_WORKERS];	/* NULL: it has not started, or has ended */
	pg_atomic_uint32 left;		/* workers that have ended because they had no place, or no data for a while */
	uint32		nchunks;
	uint32		asks_len;		/* of each chunk: CHUNK_ASKS, or 0 for none */
	bool		binary;			/* the data is in FORMAT binary */
	bool		single_byte;	/* the database's encoding has one byte for each character */
	bool		pack;			/* rows are formed in pages */
	uint32		page_longest;	/* this and the next: see SluiceSlice */
	uint32		page_reserve;
	int			natts;			/* columns of the table */
	int			serial;			/* the column whose value the leader draws from a sequence, or -1 */
	Size		plan_at;		/* where the plan's arguments are */
	Size		columns_at;		/* SluiceReadColumn of each column */
	Size		session_at;		/* the leader's session; 0: workers do not join it */
	uint32		toast_target;	/* the row size for which workers compress values; 0: they do not */
	Size		expressions_at; /* the expressions that workers evaluate, as text; 0: none */
	Size		chunks_at;
	Size		memory_at;		/* where the chunks' memory begins */
} SluiceShared;

#define CHUNK_ROWS_SIZE MAXALIGN(sizeof(SluiceRow) * CHUNK_ROWS)
#define CHUNK_ASKS_SIZE MAXALIGN(sizeof(SluiceAsk) * CHUNK_ASKS)
#define CHUNK_MEMORY \
	TYPEALIGN(COMPAT_IO_ALIGN, CHUNK_INPUT + CHUNK_ARENA + CHUNK_ROWS_SIZE + CHUNK_ASKS_SIZE)

/* The memory of a chunk: input, arena, rows, asks. */
static inline char *
chunk_memory(SluiceShared *shared, uint64 number)
{
	return (char *) shared + shared->memory_at + (number % shared->nchunks) * CHUNK_MEMORY;
}

static inline SluiceChunk *
chunk_of(SluiceShared *shared, uint64 number)
{
	return (SluiceChunk *) ((char *) shared + shared->chunks_at) + number % shared->nchunks;
}

/* Claims the next chunk that waits; false if there is none. */
static inline bool
claim_chunk(SluiceShared *shared, uint64 *number)
{
	*number = pg_atomic_read_u64(&shared->claimed);
	while (*number < pg_atomic_read_u64(&shared->filled))
	{
		if (pg_atomic_compare_exchange_u64(&shared->claimed, number, *number + 1))
			return true;
	}
	return false;
}

/* pipeline.c */
extern bool sluice_pipeline(SluiceLoad *load);
extern void sluice_pipeline_close(SluiceLoad *load);

/* worker.c */
extern void sluice_form_chunk(SluiceShared *shared, uint64 number, SluicePlan *plan,
							  SluiceReader *reader);

/* session.c */
extern Size sluice_session_size(void);
extern void sluice_session_save(SluiceSession *session);
extern bool sluice_session_show(const SluiceShared *shared);
extern bool sluice_session_join(SluiceSession *session, int number);
extern void sluice_session_begin(SluiceSession *session);

/* parallel_safety.c */
extern bool sluice_workers_may_join(const SluiceLoad *load, SluiceReadColumn *columns, bool work);

/* reader.c */
extern SluiceReader *sluice_reader_open(SluiceShared *shared, int number);
extern void sluice_reader_close(void);
extern void sluice_read_values(SluiceReader *reader, SluiceChunk *chunk);

/* compress.c */
extern uint32 sluice_compression_target(const SluiceLoad *load);
extern HeapTuple sluice_compress_row(TupleDesc desc, HeapTuple tuple, uint32 target, uint64 *values_done);

#endif							/* PGSLUICE_WORKER_H */
