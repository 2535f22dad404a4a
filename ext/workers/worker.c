/*
 * A worker forms the rows of chunks until its leader stops it, or until no
 * data has come for some seconds. Then others may use its place, and the
 * leader starts another worker when data flows again.
 *
 * It uses the chunk that it has claimed, the segment's atomics, the latches,
 * and the lock that is its place (base/worker_slots.c). It takes no other
 * lock, opens no relation and begins no transaction, unless it has joined the
 * leader's session (reader.c). So nothing that it does can fail in a way that
 * the leader would have to undo.
 *
 * A worker finds its plan in the segment, in a form without pointers, and
 * compiles it again with its own core. Leader and worker must be of the same
 * build of the library; otherwise the worker leaves (`strangers`). After an
 * upgrade of the package a new process loads another file than the leader has
 * loaded.
 *
 * SIGTERM must not end the worker within the core. die() sets a flag, which is
 * checked between two chunks.
 */
#include "workers/workers.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

PGDLLEXPORT void pgsluice_worker_main(Datum arg);

/* The chunk that this worker is forming. */
static SluiceChunk *current;

/*
 * Forms a claimed chunk with this process's own pointers. `reader`, if not
 * NULL, reads its values.
 */
void
sluice_form_chunk(SluiceShared *shared, uint64 number, SluicePlan *plan, SluiceReader *reader)
{
	SluiceChunk *chunk = chunk_of(shared, number);
	char	   *memory = chunk_memory(shared, number);
	SluiceSlice *slice = &chunk->slice;
	size_t		valid;

	memset(slice, 0, sizeof(*slice));
	slice->input = (const uint8_t *) memory;
	slice->arena = (uint8_t *) memory + CHUNK_INPUT;
	slice->arena_len = CHUNK_ARENA;
	slice->rows = (SluiceRow *) (memory + CHUNK_INPUT + CHUNK_ARENA);
	slice->rows_len = CHUNK_ROWS;
	slice->asks = (SluiceAsk *) (memory + CHUNK_INPUT + CHUNK_ARENA + CHUNK_ROWS_SIZE);
	slice->asks_len = shared->asks_len;
	slice->eol = chunk->eol;
	slice->pack = shared->pack;
	slice->page_longest = shared->page_longest;
	slice->page_reserve = shared->page_reserve;
	valid = shared->binary ? chunk->input_len :
		sluice_valid(shared->single_byte, memory, chunk->input_len);
	slice->input_len = valid;
	slice->last = chunk->last && valid == chunk->input_len;
	chunk->status = pgsluice_form(plan, slice);
	chunk->completed = false;
	chunk->values_read = chunk->values_compressed = 0;
	if (reader)
		sluice_read_values(reader, chunk);
	pg_write_barrier();
	pg_atomic_write_u32(&chunk->state, CHUNK_FORMED);
}

/* Called when the worker ends, whatever the cause. */
static void
leave(dsm_segment *segment, Datum arg)
{
	SluiceShared *shared = dsm_segment_address(segment);

	((volatile SluiceShared *) shared)->workers[DatumGetInt32(arg)] = NULL;
	sluice_reader_close();
	if (current)
	{
		pg_atomic_write_u32(&current->state, CHUNK_ABANDONED);
		SetLatch(shared->leader);
	}
}

/*
 * Ends the worker if the leader is of another build. The leader goes on
 * without it.
 */
static void
leave_as_stranger(SluiceShared *shared)
{
	if (sluice_require_build(shared->build, LOG))
		return;
	pg_atomic_fetch_add_u32(&shared->strangers, 1);
	proc_exit(0);
}

/*
 * The main function. The order at its beginning matters: attach; compare
 * builds before anything else in the segment is read; register the exit
 * callback before a place is taken; connect; and only then become visible to
 * the leader (`workers`).
 */
void
pgsluice_worker_main(Datum arg)
{
	dsm_segment *segment;
	SluiceShared *shared;
	SluicePlanArgs args;
	SluicePlan *plan;
	SluiceReader *reader = NULL;
	int			which;

	/* Not the default handler, which would end the process within the core. */
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	CurrentResourceOwner = ResourceOwnerCreate(NULL, "pgsluice worker");
	CurrentMemoryContext = AllocSetContextCreate(TopMemoryContext, "pgsluice worker",
												 ALLOCSET_DEFAULT_SIZES);
	segment = dsm_attach(DatumGetUInt32(arg));
	if (segment == NULL)
		proc_exit(0);			/* the leader has finished already */
	shared = dsm_segment_address(segment);
	leave_as_stranger(shared);
	sluice_plan_deserialize((char *) shared + shared->plan_at, &args);
	plan = sluice_make_plan(&args);
	memcpy(&which, MyBgworkerEntry->bgw_extra, sizeof(which));
	on_dsm_detach(segment, leave, Int32GetDatum(which));
	if (!sluice_slots_take_one())
	{
		pg_atomic_fetch_add_u32(&shared->left, 1);
		proc_exit(0);
	}
	if (shared->session_at ? (reader = sluice_reader_open(shared, which)) == NULL :
		!sluice_session_show(shared))
		proc_exit(0);
	pgstat_report_activity(STATE_RUNNING, psprintf("pgsluice worker for PID %d", (int) shared->leader_pid));
	shared->workers[which] = MyLatch;

	for (;;)
	{
		uint64		number;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (pg_atomic_read_u32(&shared->stop))
			break;
		while (claim_chunk(shared, &number))
		{
			current = chunk_of(shared, number);
			CHECK_FOR_INTERRUPTS();
			sluice_form_chunk(shared, number, plan, reader);
			current = NULL;
			SetLatch(shared->leader);
		}
		if ((WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   IDLE_MILLISECONDS, PG_WAIT_EXTENSION) & WL_TIMEOUT) &&
			pg_atomic_read_u64(&shared->claimed) >= pg_atomic_read_u64(&shared->filled))
		{
			pg_atomic_fetch_add_u32(&shared->left, 1);
			break;
		}
	}
	/*
	 * Do not detach here: proc_exit() first ends the transaction, which uses
	 * the segment.
	 */
	proc_exit(0);
}
