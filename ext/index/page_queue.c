/*
 * A queue of index pages in shared memory. The leader forms the pages and a
 * worker writes them: while one page is written, the next ones are formed. The
 * queue has room for a few batches (PageBatch) of as many pages as one WAL record
 * can hold.
 *
 * There is one sender and one receiver, so two counters are enough: only the
 * leader changes `sent`, and only the worker changes `written`. The next batch
 * belongs to the leader while sent - written < BATCHES, and to the worker from
 * the moment at which `sent` counts it. The counters are changed by atomic
 * additions (full barriers), and both processes wait for changes with one
 * condition variable.
 *
 * MEMORY ORDER.  The leader writes a batch, then counts it. The addition is a
 * full barrier, so a worker that sees the count sees the pages. The worker
 * copies the pages out, then counts the batch as written. A leader that sees
 * that count may overwrite the batch. Neither process reads a batch that the
 * other one may be writing.
 *
 * THE END is set after the last batch was sent. So a worker that sees the end
 * checks again whether a batch was sent before it. ABANDONED means that the
 * leader will raise an error or has found the build unfit. Then the worker
 * leaves the file as it is: the file is removed with the transaction, or is
 * not used.
 *
 * WHY A HALF-WRITTEN FILE HARMS NOBODY.  The metapage is written last, by the
 * same worker, and only after COMPLETE; until then the file has no root. The
 * file is new in this transaction. Only the transaction's own catalog rows
 * name it, and it is removed with them. The worker logs and writes as the
 * leader alone would: page_writer.c says why a crash at any moment leaves
 * either the whole index or none.
 *
 * DEADLOCK is impossible. The leader waits only for a free batch, or at the
 * end for the number of pages; the worker provides both without the leader's
 * help. The worker waits only for a batch or the end. If either raises an
 * error, the ParallelContext ends the other: a waiting process is interrupted
 * in ConditionVariableSleep().
 */
#include "index/build.h"

#include "access/xlogrecord.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "utils/wait_event.h"

/* The pages of a batch: as many as one WAL record can hold. */
#define BATCH_PAGES XLR_MAX_BLOCK_ID

#define BATCHES 4

/* What follows the batches that were sent. */
typedef enum End
{
	OPEN,						/* more batches */
	COMPLETE,					/* the metapage */
	ABANDONED					/* nothing: the file is not used */
} End;

typedef struct PageBatch
{
	int			count;
	BlockNumber blocks[BATCH_PAGES];
	PGAlignedBlock pages[BATCH_PAGES];
} PageBatch;

struct PageQueueShared
{
	ConditionVariable changed;
	pg_atomic_uint64 sent;		/* batches */
	pg_atomic_uint64 written;
	pg_atomic_uint32 end;
	BlockNumber root;			/* for the metapage */
	uint32		level;
	bool		allequalimage;
	pg_atomic_uint32 pages;		/* of the complete file; 0 until it is written */
	PageBatch			batches[BATCHES];
};

struct PageQueue
{
	PageQueueShared *shared;
	int			used;			/* pages of the current batch that are filled, or read */
	bool		ended;
};

/* Returns the bytes of shared memory for a queue: about BATCHES * BATCH_PAGES pages. */
Size
sluice_page_queue_size(void)
{
	return sizeof(PageQueueShared);
}

/* Initializes the queue, before the workers start. */
PageQueueShared *
sluice_page_queue_init(void *memory)
{
	PageQueueShared *shared = memory;

	memset(shared, 0, offsetof(PageQueueShared, batches));
	ConditionVariableInit(&shared->changed);
	pg_atomic_init_u64(&shared->sent, 0);
	pg_atomic_init_u64(&shared->written, 0);
	pg_atomic_init_u32(&shared->end, OPEN);
	pg_atomic_init_u32(&shared->pages, 0);
	return shared;
}

/* Opens one end of the queue, in the process that uses it. */
PageQueue *
sluice_page_queue_open(PageQueueShared *shared)
{
	PageQueue *pipe = palloc0(sizeof(PageQueue));

	pipe->shared = shared;
	return pipe;
}

/* Increments a counter, and wakes the process that waits for it. */
static void
tell(PageQueueShared *shared, pg_atomic_uint64 *count)
{
	/*
	 * A full barrier: a process that sees the count sees all earlier writes.
	 */
	pg_atomic_fetch_add_u64(count, 1);
	ConditionVariableBroadcast(&shared->changed);
}

/* Returns the batch that is being filled; waits until it is free. */
static PageBatch *
free_batch(PageQueue *pipe)
{
	PageQueueShared *shared = pipe->shared;
	uint64		sent = pg_atomic_read_u64(&shared->sent);

	if (pipe->used == 0)
	{
		while (sent - pg_atomic_read_u64(&shared->written) >= BATCHES)
			ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
		ConditionVariableCancelSleep();
		pg_memory_barrier();
	}
	return &shared->batches[sent % BATCHES];
}

/* Hands the batch over to the worker. tell() is a full barrier. */
static void
send_batch(PageQueue *pipe, PageBatch *batch)
{
	batch->count = pipe->used;
	pipe->used = 0;
	tell(pipe->shared, &pipe->shared->sent);
}

/*
 * Sends all pages that the core has ready; some may wait for their batch to
 * fill.
 */
void
sluice_page_queue_send(PageQueue *pipe, SluiceIndex *core)
{
	for (;;)
	{
		PageBatch		   *batch = free_batch(pipe);

		if (!sluice_index_next_page(core, batch->pages[pipe->used].data, &batch->blocks[pipe->used]))
			return;
		if (++pipe->used == BATCH_PAGES)
			send_batch(pipe, batch);
	}
}

/*
 * Sets the end. Only the first call has an effect: after COMPLETE nothing can
 * be abandoned.
 */
static void
tell_end(PageQueue *pipe, End how)
{
	if (pipe->ended)
		return;
	pipe->ended = true;
	pg_write_barrier();
	pg_atomic_write_u32(&pipe->shared->end, how);
	ConditionVariableBroadcast(&pipe->shared->changed);
}

/*
 * Makes the worker write the metapage. Returns the number of pages once all
 * are written.
 */
BlockNumber
sluice_page_queue_close(PageQueue *pipe, BlockNumber root, uint32 level,
						bool allequalimage)
{
	PageQueueShared *shared = pipe->shared;
	BlockNumber pages;

	if (pipe->used > 0)
		send_batch(pipe, free_batch(pipe));
	shared->root = root;
	shared->level = level;
	shared->allequalimage = allequalimage;
	tell_end(pipe, COMPLETE);
	while ((pages = pg_atomic_read_u32(&shared->pages)) == 0)
		ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
	ConditionVariableCancelSleep();
	return pages;
}

/* No more pages follow. If the queue was closed, this has no effect. */
void
sluice_page_queue_abandon(PageQueue *pipe)
{
	tell_end(pipe, ABANDONED);
}

/* Waits for a batch that is not read yet. Returns NULL if none follows. */
static PageBatch *
next_batch(PageQueue *pipe)
{
	PageQueueShared *shared = pipe->shared;
	uint64		written = pg_atomic_read_u64(&shared->written);
	bool		ended = false;

	for (;;)
	{
		/* The last pages were sent before the end was set: check again. */
		if (pg_atomic_read_u64(&shared->sent) > written || ended)
			break;
		ended = pg_atomic_read_u32(&shared->end) != OPEN;
		pg_memory_barrier();
		if (!ended)
			ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
	}
	ConditionVariableCancelSleep();
	pg_memory_barrier();
	return pg_atomic_read_u64(&shared->sent) > written ? &shared->batches[written % BATCHES] : NULL;
}

/* Copies the next page that was sent; returns false if none follows. */
static bool
receive_page(void *source, char *page, BlockNumber *block)
{
	PageQueue *pipe = source;
	PageQueueShared *shared = pipe->shared;
	PageBatch		   *batch = &shared->batches[pg_atomic_read_u64(&shared->written) % BATCHES];

	if (pipe->used == 0)
	{
		CHECK_FOR_INTERRUPTS();
		batch = next_batch(pipe);
		if (batch == NULL)
			return false;
	}
	memcpy(page, batch->pages[pipe->used].data, BLCKSZ);
	*block = batch->blocks[pipe->used];
	if (++pipe->used == batch->count)
	{
		pipe->used = 0;
		tell(shared, &shared->written);
	}
	return true;
}

/* The worker's part: writes the pages that the leader sends, until the end. */
void
sluice_page_queue_write(PageQueueShared *shared, Relation index)
{
	PageQueue *pipe = sluice_page_queue_open(shared);
	SluicePageWriter *writer = sluice_page_writer_open(index);

	sluice_page_writer_write(writer, receive_page, pipe);
	if (pg_atomic_read_u32(&shared->end) == ABANDONED)
		return;
	pg_read_barrier();
	pg_atomic_write_u32(&shared->pages,
						sluice_page_writer_close(writer, shared->root, shared->level,
												  shared->allequalimage));
	ConditionVariableBroadcast(&shared->changed);
}
