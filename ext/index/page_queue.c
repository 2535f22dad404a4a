/*
 * Pages of an index on their way from the leader, who forms them, to the
 * worker who writes them: while one is written, the next ones are formed. They
 * lie in memory that both share, some lots of as many as go together in one
 * WAL record.
 *
 * There is one sender and one receiver, so two counters are enough: `sent` is
 * changed by the leader alone and `written` by the worker alone. A lot belongs
 * to the leader while sent - written < LOTS, and to the worker from the moment
 * at which it is counted in `sent`. The counters are changed by atomic
 * additions (full barriers) and waited for with one condition variable.
 *
 * MEMORY ORDER.  The leader writes a lot, then counts it: the addition is a
 * full barrier, so a worker that sees the count sees the pages. The worker
 * copies a page out, then counts the lot as written: a leader that sees that
 * count may overwrite the lot. Neither reads a lot that the other one may be
 * writing.
 *
 * THE END is set after the last lot was sent. So a worker that sees the end
 * looks again whether a lot came before it. ABANDONED means that the leader
 * will raise an error or has found the build unfit: the worker leaves the file
 * as it is, for it goes with the transaction, or is given up.
 *
 * WHY A HALF-WRITTEN FILE HARMS NOBODY.  The metapage is written last, by the
 * same worker, and only after COMPLETE: until then the file has no root. The
 * file is new in this transaction, whose catalog rows alone name it, and goes
 * with it. The worker logs and writes as the leader alone would: page_writer.c
 * says why a crash at any moment leaves either the whole index or none.
 *
 * DEADLOCK is impossible: the leader waits only for a free lot, which the
 * worker gives back without the leader's help, and the worker waits only for a
 * lot or the end. If either raises an error, the ParallelContext ends the
 * other: a waiting process is interrupted in ConditionVariableSleep().
 */
#include "index/build.h"

#include "access/xlogrecord.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "utils/wait_event.h"

/* As many pages as one WAL record takes. */
#define LOT XLR_MAX_BLOCK_ID

#define LOTS 4

/* What comes behind the lots that were sent. */
typedef enum End
{
	OPEN,						/* others */
	COMPLETE,					/* the metapage */
	ABANDONED					/* nothing: the file is of no use */
} End;

typedef struct Lot
{
	int			count;
	BlockNumber blocks[LOT];
	PGAlignedBlock pages[LOT];
} Lot;

struct PageQueueShared
{
	ConditionVariable changed;
	pg_atomic_uint64 sent;		/* lots */
	pg_atomic_uint64 written;
	pg_atomic_uint32 end;
	BlockNumber root;			/* for the metapage */
	uint32		level;
	bool		allequalimage;
	pg_atomic_uint32 pages;		/* that the file has in the end; 0: that is to come */
	Lot			lots[LOTS];
};

struct PageQueue
{
	PageQueueShared *shared;
	int			used;			/* pages in the lot that is being filled, or read */
	bool		ended;
};

/* Bytes of shared memory: about LOTS * LOT pages. */
Size
sluice_page_queue_size(void)
{
	return sizeof(PageQueueShared);
}

/* Before the workers start. */
PageQueueShared *
sluice_page_queue_init(void *memory)
{
	PageQueueShared *shared = memory;

	memset(shared, 0, offsetof(PageQueueShared, lots));
	ConditionVariableInit(&shared->changed);
	pg_atomic_init_u64(&shared->sent, 0);
	pg_atomic_init_u64(&shared->written, 0);
	pg_atomic_init_u32(&shared->end, OPEN);
	pg_atomic_init_u32(&shared->pages, 0);
	return shared;
}

/* One end of the queue, in the process that uses it. */
PageQueue *
sluice_page_queue_open(PageQueueShared *shared)
{
	PageQueue *pipe = palloc0(sizeof(PageQueue));

	pipe->shared = shared;
	return pipe;
}

/* Adds to what the other one waits for. */
static void
tell(PageQueueShared *shared, pg_atomic_uint64 *count)
{
	/* A full barrier: what it is about can be seen. */
	pg_atomic_fetch_add_u64(count, 1);
	ConditionVariableBroadcast(&shared->changed);
}

/* The lot that is being filled, once it is free. */
static Lot *
free_lot(PageQueue *pipe)
{
	PageQueueShared *shared = pipe->shared;
	uint64		sent = pg_atomic_read_u64(&shared->sent);

	if (pipe->used == 0)
	{
		while (sent - pg_atomic_read_u64(&shared->written) >= LOTS)
			ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
		ConditionVariableCancelSleep();
		pg_memory_barrier();
	}
	return &shared->lots[sent % LOTS];
}

/* The lot is the worker's from now on: tell() is a full barrier. */
static void
send_lot(PageQueue *pipe, Lot *lot)
{
	lot->count = pipe->used;
	pipe->used = 0;
	tell(pipe->shared, &pipe->shared->sent);
}

/*
 * Sends all pages that the core has ready; some may wait for their lot to
 * fill.
 */
void
sluice_page_queue_send(PageQueue *pipe, SluiceIndex *core)
{
	for (;;)
	{
		Lot		   *lot = free_lot(pipe);

		if (!sluice_index_next_page(core, lot->pages[pipe->used].data, &lot->blocks[pipe->used]))
			return;
		if (++pipe->used == LOT)
			send_lot(pipe, lot);
	}
}

/*
 * Says so once. The first word counts: after COMPLETE nothing can be
 * abandoned.
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
 * Has the metapage written; gives the number of pages, once all of them are.
 */
BlockNumber
sluice_page_queue_close(PageQueue *pipe, BlockNumber root, uint32 level,
						bool allequalimage)
{
	PageQueueShared *shared = pipe->shared;
	BlockNumber pages;

	if (pipe->used > 0)
		send_lot(pipe, free_lot(pipe));
	shared->root = root;
	shared->level = level;
	shared->allequalimage = allequalimage;
	tell_end(pipe, COMPLETE);
	while ((pages = pg_atomic_read_u32(&shared->pages)) == 0)
		ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
	ConditionVariableCancelSleep();
	return pages;
}

/* There will be no more pages, whether or not there were all. */
void
sluice_page_queue_abandon(PageQueue *pipe)
{
	tell_end(pipe, ABANDONED);
}

/* Waits for a lot that is not read; NULL: there will be none. */
static Lot *
next_lot(PageQueue *pipe)
{
	PageQueueShared *shared = pipe->shared;
	uint64		written = pg_atomic_read_u64(&shared->written);
	bool		ended = false;

	for (;;)
	{
		/* The last pages were sent before the end was set. */
		if (pg_atomic_read_u64(&shared->sent) > written || ended)
			break;
		ended = pg_atomic_read_u32(&shared->end) != OPEN;
		pg_memory_barrier();
		if (!ended)
			ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_FINISH);
	}
	ConditionVariableCancelSleep();
	pg_memory_barrier();
	return pg_atomic_read_u64(&shared->sent) > written ? &shared->lots[written % LOTS] : NULL;
}

/* The next page of those that were sent. */
static bool
receive_page(void *source, char *page, BlockNumber *block)
{
	PageQueue *pipe = source;
	PageQueueShared *shared = pipe->shared;
	Lot		   *lot = &shared->lots[pg_atomic_read_u64(&shared->written) % LOTS];

	if (pipe->used == 0)
	{
		CHECK_FOR_INTERRUPTS();
		lot = next_lot(pipe);
		if (lot == NULL)
			return false;
	}
	memcpy(page, lot->pages[pipe->used].data, BLCKSZ);
	*block = lot->blocks[pipe->used];
	if (++pipe->used == lot->count)
	{
		pipe->used = 0;
		tell(shared, &shared->written);
	}
	return true;
}

/* The worker's part: writes what the leader sends, to the end. */
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
