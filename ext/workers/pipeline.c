/*
 * The leader's side of a load with workers: it fills chunks that end where
 * records end, and installs them in their order.
 *
 *    leader:   reads bytes -> chunk n+2      installs chunk n
 *    workers:                  chunk n+1 is formed
 *
 * The chunks are a ring in dynamic shared memory (workers.h). A chunk belongs
 * to one process at a time:
 *
 *    the leader    from the moment it is free until `filled` counts it
 *    the claimant  from its compare-and-exchange on `claimed` until the state
 *                  of the chunk is FORMED; it is a worker, or the leader when
 *                  it would otherwise wait
 *    the leader    from FORMED on, to install its rows, until `consumed`
 *                  counts it
 *
 * Each hand-over is an atomic write after a write barrier and a read followed
 * by a read barrier. There are no locks, so a process that dies cannot leave
 * one behind. A worker that ends in the middle of a chunk marks it ABANDONED
 * in its exit callback, and the leader forms it again: the input is still
 * there, because forming does not change it.
 *
 * ORDER.  Rows go into the table in the order of the input, because chunks are
 * installed by number. So errors come in stock COPY's order, a sequence's
 * values are drawn in order, and on_duplicate sees which row came first.
 *
 * WHERE A CHUNK IS CUT.  At the last record end that is certain without
 * knowing what came before the chunk (sluice_last_record_end() in
 * rows/record.c). The rest goes to the front of the next chunk. If no end is
 * certain (CR line ends, an escape that is not the quote, a record longer than
 * a chunk), the load goes on without workers.
 *
 * WHAT THE CORE LEAVES of a chunk, because the server must read a value or a
 * record, goes through the leader's own loop. There it is a separate source,
 * which is `sealed`: nothing can be read beyond it. If stock COPY's parser
 * must look further, to name a byte at the chunk's end, it is shown the
 * following bytes but cannot use them up.
 *
 * THE LEADER NEVER DEPENDS ON A WORKER.  It starts workers and goes on. If
 * none starts, it forms all chunks itself, and loses only the time for
 * copying.
 *
 * ERRORS.  The segment belongs to a resource owner. When the statement ends,
 * with or without an error, detaching from the segment sets `stop` and wakes
 * the workers. Then the leader waits for workers that have joined its
 * transaction, because their snapshot and locks are the leader's.
 *
 * Workers that have joined the session must end before code of a user runs in
 * it (dismiss_readers). The ring stays, and the leader forms what is left.
 */
#include "workers/workers.h"

#include <sys/statvfs.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/proc.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/*
 * Input of a chunk with pgsluice.debug_force_routes: few bytes, so that little
 * data makes several chunks.
 */
#define FORCED_INPUT ((Size) 512)

/*
 * And the time, in milliseconds, for which the leader leaves a chunk to a
 * worker.
 */
#define FORCED_WAIT 1000

struct SluicePipeline
{
	ResourceOwner owner;		/* of the segment */
	dsm_segment *segment;
	SluiceShared *shared;
	BackgroundWorkerHandle *handles[SLUICE_MAX_WORKERS];	/* NULL: there is no worker */
	uint64		filled;
	uint64		consumed;
	uint64		own;			/* one more than the last chunk that the leader has formed */
	size_t		input;			/* bytes of input for one chunk */
	/* the record that was cut off at the last chunk's end */
	char	   *rest;
	size_t		rest_len;
	size_t		since_left;		/* bytes read since workers have left */
	bool		stuck;			/* the rest is longer than a chunk, or cannot be converted */
	bool		finished;		/* the last chunk is filled */
};

/*
 * Wakes all workers. The first one that claims the chunk has it, and the
 * others go back to sleep. There are few.
 */
static void
wake_workers(SluiceShared *shared)
{
	/*
	 * Either we see the latch of a worker that has started, or it sees the
	 * chunk.
	 */
	pg_memory_barrier();
	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		Latch	   *latch = ((volatile SluiceShared *) shared)->workers[i];

		if (latch)
			SetLatch(latch);
	}
}

/* The statement ends, with or without an error: stops the workers. */
static void
stop_workers(dsm_segment *segment, Datum arg)
{
	SluiceShared *shared = dsm_segment_address(segment);

	pg_atomic_write_u32(&shared->stop, 1);
	wake_workers(shared);
}

/*
 * The statement ends with an error. Ends the workers in its transaction before
 * its locks are released, even if a worker waits for a lock itself.
 */
static void
end_readers(dsm_segment *segment, Datum arg)
{
	SluicePipeline *pipe = (SluicePipeline *) DatumGetPointer(arg);

	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		if (pipe->handles[i])
			TerminateBackgroundWorker(pipe->handles[i]);
	}
	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		if (pipe->handles[i])
			(void) WaitForBackgroundWorkerShutdown(pipe->handles[i]);
	}
}

/*
 * Whether shared memory of that size is available, and as much again for
 * others: containers have little.
 */
static bool
shared_memory_fits(Size size)
{
	struct statvfs fs;

	return statvfs("/dev/shm", &fs) != 0 ||
		(uint64) fs.f_bavail * fs.f_frsize > 2 * (uint64) size;
}

/*
 * Sets where everything is in the segment, but for the alignment of the chunks'
 * memory; returns the size of the segment.
 * `columns`: of workers that join the session, or NULL. `expressions`: those
 * that workers evaluate, or NULL.
 */
static Size
lay_out(const SluiceLoad *load, SluiceShared *shared, const SluiceReadColumn *columns,
		const char *expressions)
{
	Size		at = MAXALIGN(sizeof(SluiceShared));

	/*
	 * Reading values takes long, and not always equally long: workers may be
	 * further ahead.
	 */
	shared->nchunks = columns ? 2 * load->workers + 2 : load->workers + 2;
	shared->natts = (int) load->args.ncolumns;
	shared->plan_at = at;
	at += MAXALIGN(sluice_plan_serialized_size(&load->args));
	if (columns)
	{
		shared->columns_at = at;
		at += MAXALIGN(sizeof(SluiceReadColumn) * shared->natts);
		shared->session_at = at;
		at += MAXALIGN(sluice_session_size());
	}
	if (columns && expressions)
	{
		shared->expressions_at = at;
		at += MAXALIGN(strlen(expressions) + 1);
	}
	shared->chunks_at = at;
	at += sizeof(SluiceChunk) * shared->nchunks;
	shared->memory_at = at;
	return at + COMPAT_IO_ALIGN + CHUNK_MEMORY * shared->nchunks;
}

/* Initializes the segment, except for the memory of its chunks. */
static void
fill_shared(const SluiceLoad *load, SluiceShared *shared, const SluiceReadColumn *columns,
			const char *expressions)
{
	char	   *base = (char *) shared;

	strlcpy(shared->build, sluice_build, sizeof(shared->build));
	pg_atomic_init_u32(&shared->strangers, 0);
	pg_atomic_init_u32(&shared->stop, 0);
	pg_atomic_init_u64(&shared->filled, 0);
	pg_atomic_init_u64(&shared->claimed, 0);
	pg_atomic_init_u32(&shared->left, 0);
	shared->leader = MyLatch;
	shared->leader_proc = MyProc;
	shared->leader_pid = MyProcPid;
	shared->leader_user = GetAuthenticatedUserId();
	BecomeLockGroupLeader();
	shared->asks_len = load->slice.asks_len ? CHUNK_ASKS : 0;
	shared->binary = load->source.binary;
	shared->single_byte = load->source.single_byte;
	shared->pack = load->route != SLUICE_INSERT;
	shared->page_longest = load->slice.page_longest;
	shared->page_reserve = load->slice.page_reserve;
	shared->serial = load->args.serial.attnum - 1;
	memset(base + shared->chunks_at, 0, sizeof(SluiceChunk) * shared->nchunks);
	for (uint32 i = 0; i < shared->nchunks; i++)
		pg_atomic_init_u32(&chunk_of(shared, i)->state, CHUNK_WAITING);
	memset(base + shared->plan_at, 0, shared->chunks_at - shared->plan_at);
	sluice_plan_serialize(&load->args, base + shared->plan_at);
	if (columns)
	{
		memcpy(base + shared->columns_at, columns, sizeof(SluiceReadColumn) * shared->natts);
		sluice_session_save((SluiceSession *) (base + shared->session_at));
	}
	if (shared->expressions_at)
		strcpy(base + shared->expressions_at, expressions);
}

/* Frees the handles of workers that have ended. */
static void
reap_workers(SluicePipeline *pipe)
{
	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		pid_t		pid;

		if (pipe->handles[i] && GetBackgroundWorkerPid(pipe->handles[i], &pid) == BGWH_STOPPED)
		{
			pfree(pipe->handles[i]);
			pipe->handles[i] = NULL;
		}
	}
}

/*
 * Registers the workers that are missing. They start some time later, or not
 * at all. Returns how many there are.
 */
static int
start_workers(const SluiceLoad *load, SluicePipeline *pipe)
{
	/* An abort frees the statement's memory before it ends the workers. */
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	BackgroundWorker worker = {0};
	int			count = 0;
	int			more;

	for (int i = 0; i < load->workers; i++)
		count += pipe->handles[i] != NULL;
	more = sluice_slots_free(load->workers - count);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION |
		BGWORKER_CLASS_PARALLEL;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(pipe->segment));
	snprintf(worker.bgw_name, BGW_MAXLEN, "pgsluice worker for PID %d", MyProcPid);
	snprintf(worker.bgw_type, BGW_MAXLEN, "pgsluice worker");
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pgsluice");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "pgsluice_worker_main");
	for (int i = 0; i < load->workers && more > 0; i++)
	{
		if (pipe->handles[i])
			continue;
		memcpy(worker.bgw_extra, &i, sizeof(i));
		if (!RegisterDynamicBackgroundWorker(&worker, &pipe->handles[i]))
		{
			pipe->handles[i] = NULL;
			break;
		}
		count++;
		more--;
	}
	MemoryContextSwitchTo(old);
	sluice_report.workers = Max(sluice_report.workers, count);
	return count;
}

/*
 * More data has come. Starts workers again that have left for want of data,
 * unless it is a trickle, which is not worth their start.
 */
static void
replace_workers(const SluiceLoad *load, SluicePipeline *pipe, size_t len)
{
	if (pg_atomic_read_u32(&pipe->shared->left) == 0 || pg_atomic_read_u32(&pipe->shared->stop))
		return;
	pipe->since_left += len;
	if (pipe->since_left < pipe->input)
		return;
	pipe->since_left = 0;
	pg_atomic_write_u32(&pipe->shared->left, 0);
	reap_workers(pipe);
	if (start_workers(load, pipe) < load->workers)
		pg_atomic_fetch_add_u32(&pipe->shared->left, 1);
}

/* Stops the workers and waits until they have ended. */
static void
end_workers(SluicePipeline *pipe)
{
	stop_workers(pipe->segment, (Datum) 0);
	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		if (pipe->handles[i])
			(void) WaitForBackgroundWorkerShutdown(pipe->handles[i]);
	}
	reap_workers(pipe);
}

/*
 * Ends the workers that have joined the session: code of a user is about to run
 * in it (session.c). They complete the chunks that are filled, and leave the
 * values to the leader, which also forms all further chunks.
 */
static void
dismiss_readers(SluiceLoad *load)
{
	SluicePipeline *pipe = load->pipeline;

	if (pipe->shared->session_at == 0 || pg_atomic_read_u32(&pipe->shared->stop))
		return;
	end_workers(pipe);
	sluice_report.leader_reads = SLUICE_RUNS_CODE;
}

/*
 * Creates the ring and registers workers. Returns false if there is no shared
 * memory or no worker could be registered. The load goes on whether or not
 * they start.
 */
static bool
open_pipeline(SluiceLoad *load)
{
	SluicePipeline *pipe;
	SluiceShared shared = {0};
	SluiceReadColumn *columns = palloc0(sizeof(SluiceReadColumn) * load->args.ncolumns);
	char	   *expressions = sluice_expressions_text(load);
	uint32		target = sluice_compression_target(load);
	Size		size;
	int			count = 0;

	if (!sluice_workers_may_join(load, columns, expressions != NULL || target > 0))
		columns = NULL;
	shared.toast_target = target;
	size = lay_out(load, &shared, columns, expressions);
	if (!shared_memory_fits(size))
		return false;
	/* As in start_workers(): an abort must still find this. */
	pipe = MemoryContextAllocZero(TopTransactionContext, sizeof(*pipe));
	pipe->segment = sluice_share_create(size, &pipe->owner);
	if (pipe->segment != NULL)
	{
		char	   *base = dsm_segment_address(pipe->segment);
		char	   *memory = base + shared.memory_at;

		/*
		 * Pages are written from here, perhaps around the system's cache. With
		 * min_dynamic_shared_memory, a segment need not begin where a page of
		 * memory does; but it has the same address in all processes then.
		 */
		shared.memory_at = (char *) TYPEALIGN(COMPAT_IO_ALIGN, memory) - base;
		pipe->shared = (SluiceShared *) base;
		memcpy(pipe->shared, &shared, sizeof(shared));
		fill_shared(load, pipe->shared, columns, expressions);
		if (columns)
			on_dsm_detach(pipe->segment, end_readers, PointerGetDatum(pipe));
		on_dsm_detach(pipe->segment, stop_workers, (Datum) 0);
		count = start_workers(load, pipe);
	}
	if (pipe->segment == NULL)
		return false;
	pipe->rest = palloc(CHUNK_INPUT);
	pipe->input = sluice_force ? FORCED_INPUT : CHUNK_INPUT;
	load->pipeline = pipe;
	load->dismiss_readers = dismiss_readers;
	return count > 0;
}

/*
 * All rows are in. Waits for the workers, so that none is seen after the
 * statement, and none holds resources that the statement's end releases.
 */
void
sluice_pipeline_close(SluiceLoad *load)
{
	SluicePipeline *pipe = load->pipeline;
	int			strangers;

	end_workers(pipe);
	strangers = pg_atomic_read_u32(&pipe->shared->strangers);
	if (strangers > 0)
	{
		sluice_report.workers -= strangers;
		sluice_report.leader_reads = SLUICE_REPLACED;
		/* Workers for the indexes would be of the other build, too. */
		load->workers = 0;
	}
	sluice_share_end(pipe->segment, pipe->owner);
	pfree(pipe);
	load->pipeline = NULL;
}

/* Fills the next chunk. */
static void
fill_chunk(SluiceLoad *load)
{
	SluicePipeline *pipe = load->pipeline;
	SluiceShared *shared = pipe->shared;
	SluiceSource *src = &load->source;
	SluiceChunk *chunk = chunk_of(shared, pipe->filled);
	char	   *memory = chunk_memory(shared, pipe->filled);
	size_t		len = pipe->rest_len;
	size_t		cut,
				got;
	instr_time	before,
				after;

	memcpy(memory, pipe->rest, len);
	INSTR_TIME_SET_CURRENT(before);
	got = sluice_source_read(src, memory + len, pipe->input - Min(len, pipe->input));
	len += got;
	replace_workers(load, pipe, got);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.reading, after, before);
	cut = src->eof ? len : sluice_last_record_end(memory, len, &load->args);
	Assert(cut <= len && len <= CHUNK_INPUT);
	pipe->rest_len = len - cut;
	memcpy(pipe->rest, memory + cut, pipe->rest_len);
	if (cut == 0)
	{
		pipe->stuck = got == 0;
		pipe->finished = src->eof;
		return;
	}
	pipe->finished = src->eof;
	chunk->input_len = cut;
	chunk->last = src->eof;
	chunk->eol = load->slice.eol;
	pg_atomic_write_u32(&chunk->state, CHUNK_WAITING);
	pg_write_barrier();
	pg_atomic_write_u64(&shared->filled, ++pipe->filled);
	wake_workers(shared);
}

/*
 * Claims a chunk for the leader, which does not wait while it can form one
 * itself. If workers also read values, it forms no further chunk while one
 * that it has formed is not installed: it forms without reading values, and
 * would soon have taken all chunks from them.
 */
static bool
claim_for_leader(SluicePipeline *pipe, uint64 *number)
{
	if ((pipe->shared->session_at && pipe->own > pipe->consumed) ||
		!claim_chunk(pipe->shared, number))
		return false;
	pipe->own = *number + 1;
	return true;
}

/* Whether a worker runs, or is still to start. */
static bool
has_worker(const SluicePipeline *pipe)
{
	pid_t		pid;

	for (int i = 0; i < SLUICE_MAX_WORKERS; i++)
	{
		BgwHandleStatus status = pipe->handles[i] ?
			GetBackgroundWorkerPid(pipe->handles[i], &pid) : BGWH_STOPPED;

		if (status == BGWH_STARTED || status == BGWH_NOT_YET_STARTED)
			return true;
	}
	return false;
}

/*
 * Waits until the next chunk to be installed is formed. Meanwhile the leader
 * forms chunks itself.
 */
static SluiceChunk *
await_chunk(SluiceLoad *load)
{
	SluicePipeline *pipe = load->pipeline;
	SluiceShared *shared = pipe->shared;
	SluiceChunk *chunk = chunk_of(shared, pipe->consumed);
	long		timeout = sluice_force == SLUICE_FORCE_WORKERS ? FORCED_WAIT : -1;
	instr_time	before,
				after;

	INSTR_TIME_SET_CURRENT(before);
	for (;;)
	{
		uint32		state = pg_atomic_read_u32(&chunk->state);
		uint64		number;

		if (state == CHUNK_FORMED)
			break;
		if (state == CHUNK_ABANDONED)
			sluice_form_chunk(shared, pipe->consumed, load->plan, NULL);
		else if ((timeout < 0 || !has_worker(pipe)) && claim_for_leader(pipe, &number))
			sluice_form_chunk(shared, number, load->plan, NULL);
		else
		{
			int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;

			if (timeout >= 0)
				events |= WL_TIMEOUT;
			if (WaitLatch(MyLatch, events, timeout, PG_WAIT_EXTENSION) & WL_TIMEOUT)
				timeout = -1;
			ResetLatch(MyLatch);
		}
		CHECK_FOR_INTERRUPTS();
	}
	pg_read_barrier();
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.forming, after, before);
	return chunk;
}

/* Gives the source the bytes that follow the chunk that is being installed. */
static void
show_what_follows(SluicePipeline *pipe, SluiceSource *src)
{
	uint64		next = pipe->consumed + 1;

	if (next < pipe->filled)
	{
		src->after = chunk_memory(pipe->shared, next);
		src->after_len = chunk_of(pipe->shared, next)->input_len;
		return;
	}
	if (pipe->rest_len == 0)
		pipe->rest_len = sluice_source_read(src, pipe->rest, CHUNK_INPUT);
	src->after = pipe->rest;
	src->after_len = pipe->rest_len;
}

/*
 * Installs a chunk. What the core has left of it goes through the leader's own
 * loop. Returns false if a line of \. ended the data.
 */
static bool
install_chunk(SluiceLoad *load, SluiceChunk *chunk)
{
	SluicePipeline *pipe = load->pipeline;
	SluiceSource *src = &load->source;
	SluiceSlice slice = chunk->slice;
	char	   *memory = chunk_memory(pipe->shared, pipe->consumed);
	bool		more = true;

	Assert(pg_atomic_read_u32(&chunk->state) == CHUNK_FORMED);
	Assert(slice.consumed <= chunk->input_len && slice.arena_used <= CHUNK_ARENA);
	if (chunk->status == SLUICE_PANIC || chunk->status == SLUICE_MEMORY)
		sluice_core_failed(chunk->status);
	/* The same memory at this process's addresses. */
	slice.input = (const uint8_t *) memory;
	slice.arena = (uint8_t *) memory + CHUNK_INPUT;
	slice.rows = (SluiceRow *) (memory + CHUNK_INPUT + CHUNK_ARENA);
	slice.asks = (SluiceAsk *) (memory + CHUNK_INPUT + CHUNK_ARENA + CHUNK_ROWS_SIZE);
	sluice_report.values_by_workers += chunk->values_read;
	sluice_report.values_compressed += chunk->values_compressed;
	load->completed = chunk->completed;
	if (load->completed)
		sluice_report.expressions = "workers";
	load->accept_slice(load, &slice);
	load->completed = false;
	sluice_free_tuples(load);
	load->lines += slice.lines;
	load->cstate->cur_lineno = load->lines + 1;
	if (chunk->status == SLUICE_ENDED)
	{
		src->ended = true;
		more = false;
	}
	else if (slice.consumed < chunk->input_len)
	{
		sluice_source_set(src, memory + slice.consumed, chunk->input_len - slice.consumed);
		src->sealed = !chunk->last;
		if (src->sealed)
			show_what_follows(pipe, src);
		more = sluice_finish_source(load);
		src->sealed = false;
		sluice_free_tuples(load);
	}
	pipe->consumed++;
	return more;
}

/*
 * Goes on with workers for as long as records fit into chunks. Returns true if
 * the caller's loop must go on, and false at the end of the data.
 */
bool
sluice_pipeline(SluiceLoad *load)
{
	SluicePipeline *pipe;
	SluiceSource *src = &load->source;
	bool		more = true;

	/* A cut is certain only if LF ends lines and each quote toggles. */
	if ((!src->binary && load->slice.eol != EOL_NL && load->slice.eol != EOL_CRNL) ||
		(load->args.dialect.csv && load->args.dialect.escape != load->args.dialect.quote) ||
		src->end - src->start > CHUNK_INPUT / 2)
		return true;
	if (load->pipeline == NULL && !open_pipeline(load))
	{
		load->workers = 0;
		return true;
	}
	pipe = load->pipeline;
	sluice_free_tuples(load);
	pipe->rest_len = src->end - src->start;
	memcpy(pipe->rest, src->buf + src->start, pipe->rest_len);
	src->start = src->valid = src->end = SLUICE_HEADROOM;
	pipe->stuck = pipe->finished = false;

	while (more)
	{
		while (!pipe->stuck && !pipe->finished &&
			   pipe->filled - pipe->consumed < pipe->shared->nchunks)
			fill_chunk(load);
		if (pipe->filled == pipe->consumed)
			break;
		more = install_chunk(load, await_chunk(load));
	}
	if (!more)
		return false;
	if (pipe->finished && pipe->rest_len == 0)
		return false;
	sluice_source_set(src, pipe->rest, pipe->rest_len);
	pipe->rest_len = 0;
	return true;
}
