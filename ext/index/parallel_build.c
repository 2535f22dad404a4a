/*
 * Several processes read the table, and sort its rows, for one index. The
 * leader and the workers of a ParallelContext take one range of its blocks
 * each. When all have read theirs, all sort in one layout, which suits the
 * rows of all. The workers leave their rows in temporary files that they share
 * with the leader. The leader puts everything together and forms the index as
 * if it had been alone so far. Meanwhile the first worker writes the pages
 * (index/page_queue.c).
 *
 *    leader    reads the first blocks alone, starts workers, reads its range
 *    workers   read their ranges
 *    all       report what they have found (Part), and wait
 *    leader    gives the verdict: WHOLE, RUNS or PART
 *    workers   hand over their rows in a file each, as the verdict says
 *    leader    takes them in, merges, forms pages
 *    worker 0  writes the pages
 *
 * WHOLE: the rows are short and fit into memory. They are handed over as they
 * are, packed in the same way by all processes (`spread` says in which bits
 * the rows of all differ). RUNS: every worker spills sorted runs, which the
 * leader merges. PART: the rows cannot be put together, and the build starts
 * again without workers. That is so if values that the server must rank would
 * have to be spilled, because each process has numbered its own values; or if
 * a process has found rows that the core cannot take.
 *
 * NOBODY WAITS FOR A PROCESS THAT IS NOT THERE.  The leader counts only on
 * workers that were launched, and reads the ranges of the others itself. It
 * waits until the launched ones have attached before it waits for their
 * reports. A worker that fails ends the leader's statement at the next
 * CHECK_FOR_INTERRUPTS(), by PostgreSQL's own rules for parallel workers
 * (condition variables serve interrupts).
 *
 * MEMORY ORDER.  A worker writes its Part before it counts itself in `scanned`
 * by an atomic addition, which is a full barrier. The leader reads the Part
 * after it has seen the count, and after a read barrier. The same holds for
 * the files and `handed`.
 *
 * Visibility is decided as in the leader: a worker uses the same rule for
 * which rows are ordinary (heap_scan.c), and PostgreSQL's own scan for the
 * rest, which takes no snapshot in a plain CREATE INDEX.
 *
 * Buffer and WAL usage of the workers is added to the leader's, as for any
 * parallel build.
 */
#include "index/build.h"

#include <fcntl.h>

#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/buffile.h"
#include "storage/condition_variable.h"
#include "storage/sharedfileset.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define KEY_TEAM 1
#define KEY_PIPE 2

/* The leader first reads these alone, to see what kind of rows there are. */
#define ALONE_BLOCKS 128

/* While the leader waits for workers, it reports their progress this often. */
#define REPORT_MILLISECONDS 500

/* Bytes of memory for a row: its entry, and the word it may be packed into. */
#define ROW_BYTES 32

/* The decision of the leader, from all reports. */
typedef enum Verdict
{
	UNKNOWN,
	WHOLE,						/* sort by the spread of all, and hand the rows over */
	RUNS,						/* spill the rows, and hand the runs over */
	PART						/* the rows cannot be put together */
} Verdict;

/* The report of a worker, and what its file has. */
typedef struct Part
{
	bool		fit;
	bool		whole;			/* the rows can be handed over whole; `spread` is set */
	SluiceIndexSpread spread;
	bool		broken_hot_chain;
	double		rows;
	double		reltuples;
	uint64		bytes;			/* in its file */
	uint64		runs;			/* bytes after them that say where the runs are */
	BufferUsage buffers;
	WalUsage	wal;
} Part;

typedef struct Shared
{
	char		build[SLUICE_BUILD_LEN];
	Oid			heap;
	Oid			index;
	int			memory;			/* of each process, in kB */
	int			ranges;			/* the leader's is the first */
	BlockNumber first;			/* the blocks to read: from this one up to `end` */
	BlockNumber end;
	SharedFileSet files;
	ConditionVariable changed;
	pg_atomic_uint32 blocks_done;	/* read so far, by all processes */
	pg_atomic_uint32 scanned;	/* workers that have read their range */
	pg_atomic_uint32 verdict;
	pg_atomic_uint32 handed;	/* workers that have left their rows */
	SluiceIndexSpread spread;	/* of all, once there is a verdict */
	Part		parts[FLEXIBLE_ARRAY_MEMBER];	/* of the workers */
} Shared;

/* The state of the leader. */
typedef struct ParallelBuild
{
	ParallelContext *parallel;
	Shared	   *shared;
	BufFile   **files;			/* of the workers, while their runs are merged */
	PageQueue *pipe;		/* to the worker that writes, or NULL */
	SluiceSlots slots;
} ParallelBuild;

PGDLLEXPORT void pgsluice_index_team_main(dsm_segment *segment, shm_toc *toc);

/* Reads one of the ranges. */
static void
scan_range(SluiceIndexScan *scan, const Shared *shared, int range)
{
	uint64		count = shared->end - shared->first;

	sluice_index_scan_range(scan, shared->first + (BlockNumber) (count * range / shared->ranges),
							shared->first + (BlockNumber) (count * (range + 1) / shared->ranges));
}

/* Whether the server has to rank values of a key column. */
static bool
is_ranked(const SluiceIndexBuild *build)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(build->index); i++)
	{
		if (build->attributes[i].order == SLUICE_ORDER_RANKED)
			return true;
	}
	return false;
}

/* Reports what a worker has found, and waits for the verdict. */
static Verdict
report_part(Shared *shared, SluiceIndexBuild *build, Part *part)
{
	Verdict		verdict;

	part->fit = build->unfit == NULL;
	part->whole = part->fit && pgsluice_index_spread(build->core, &part->spread);
	part->broken_hot_chain = build->info->ii_BrokenHotChain;
	part->rows = build->rows;
	part->reltuples = build->reltuples;
	pg_atomic_fetch_add_u32(&shared->scanned, 1);
	ConditionVariableBroadcast(&shared->changed);
	while ((verdict = pg_atomic_read_u32(&shared->verdict)) == UNKNOWN)
		ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
	ConditionVariableCancelSleep();
	pg_read_barrier();
	return verdict;
}

/* Writes a worker's rows to its file, for the leader. */
static void
hand_over(Shared *shared, SluiceIndexBuild *build, Part *part, Verdict verdict)
{
	SluiceIndexStep step = {0};

	if (part->rows == 0)
		return;
	if (verdict == WHOLE)
	{
		sluice_index_checked(build, pgsluice_index_sort_as(build->core, &shared->spread, &step));
		sluice_index_write_run(build, &step);
		part->bytes = build->spilled;
	}
	else
	{
		SluiceIndexStatus status = pgsluice_index_spill(build->core);

		sluice_index_checked(build, status);
		if (status == SLUICE_INDEX_GO)
			sluice_index_write_sorted(build);
		part->bytes = build->spilled;
		sluice_index_checked(build, pgsluice_index_runs(build->core, &step));
		sluice_index_write_run(build, &step);
		part->runs = step.len;
	}
	BufFileExportFileSet(build->file);
}

/* Sets `name` to the name of the temporary file that this worker leaves. */
static void
file_name(char *name, int worker)
{
	snprintf(name, MAXPGPATH, "rows%d", worker);
}

/* A worker's part: reads its range, reports, and hands its rows over. */
static Verdict
collect(Shared *shared, SluiceIndexBuild *build, Part *part)
{
	SluiceIndexScan *scan;
	Verdict		verdict;

	if (sluice_index_shape(build->heap, build->index, false, build->attributes) != NULL)
		elog(ERROR, "pgsluice: the core cannot sort for index \"%s\"",
			 RelationGetRelationName(build->index));
	sluice_index_open_core(build, false, shared->memory);
	scan = sluice_index_scan_open(build);
	scan_range(scan, shared, ParallelWorkerNumber + 1);
	sluice_index_scan_close(scan);
	verdict = report_part(shared, build, part);
	if (verdict != PART)
		hand_over(shared, build, part, verdict);
	if (build->file)
		BufFileClose(build->file);
	pg_atomic_fetch_add_u32(&shared->handed, 1);
	ConditionVariableBroadcast(&shared->changed);
	return verdict;
}

/*
 * A worker's main function. PostgreSQL has already restored the leader's
 * transaction. The locks are those that the leader has; within the lock group
 * they are granted at once.
 */
void
pgsluice_index_team_main(dsm_segment *segment, shm_toc *toc)
{
	Shared	   *shared = shm_toc_lookup(toc, KEY_TEAM, false);
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "pgsluice index build",
												  ALLOCSET_DEFAULT_SIZES);
	Relation	heap;
	Relation	index;
	char		name[MAXPGPATH];
	SluiceIndexBuild build = {0};
	Part	   *part = &shared->parts[ParallelWorkerNumber];
	Verdict		verdict;

	(void) sluice_require_build(shared->build, ERROR);
	InstrStartParallelQuery();
	heap = build.heap = table_open(shared->heap, ShareLock);
	index = build.index = index_open(shared->index, AccessExclusiveLock);
	build.info = BuildIndexInfo(index);
	build.blocks_done = &shared->blocks_done;
	build.shared = &shared->files.fs;
	build.shared_name = name;
	SharedFileSetAttach(&shared->files, segment);
	file_name(name, ParallelWorkerNumber);
	MemoryContextSwitchTo(context);
	verdict = collect(shared, &build, part);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	if (verdict != PART && ParallelWorkerNumber == 0)
		sluice_page_queue_write(shm_toc_lookup(toc, KEY_PIPE, false), index);
	InstrEndParallelQuery(&part->buffers, &part->wal);
	index_close(index, NoLock);
	table_close(heap, NoLock);
}

/* Returns the number of blocks that the leader reads alone first. */
static BlockNumber
alone_blocks(void)
{
	return Max(sluice_threshold(ALONE_BLOCKS), 1);
}

/*
 * Whether workers pay, judged by the rows that were read so far. If the server
 * must rank values, the core must not have numbered any yet, and all rows must
 * fit into half of the memory, with a quarter to spare.
 */
static bool
pays(SluiceIndexBuild *build, BlockNumber blocks)
{
	SluiceIndexSpread spread = {0};
	double		bytes = build->rows / alone_blocks() * blocks * ROW_BYTES * 1.25;

	if (build->unfit || build->rows == 0)
		return false;
	return !is_ranked(build) ||
		(pgsluice_index_spread(build->core, &spread) &&
		 bytes <= (double) build->memory * 1024 / 2);
}

/* Initializes the shared memory. No worker runs yet: no barrier is needed. */
static void
fill_shared(Shared *shared, SluiceIndexBuild *build, BlockNumber blocks, int workers)
{
	memset(shared, 0, offsetof(Shared, parts) + sizeof(Part) * workers);
	strlcpy(shared->build, sluice_build, sizeof(shared->build));
	shared->heap = RelationGetRelid(build->heap);
	shared->index = RelationGetRelid(build->index);
	shared->memory = Max(build->memory / (workers + 1), 64);
	shared->ranges = workers + 1;
	shared->first = alone_blocks();
	shared->end = blocks;
	ConditionVariableInit(&shared->changed);
	pg_atomic_init_u32(&shared->blocks_done, shared->first);
	pg_atomic_init_u32(&shared->scanned, 0);
	pg_atomic_init_u32(&shared->verdict, UNKNOWN);
	pg_atomic_init_u32(&shared->handed, 0);
}

/* Waits until all launched workers have counted themselves in `come`. */
static void
wait_for(Shared *shared, pg_atomic_uint32 *come, int launched)
{
	while (pg_atomic_read_u32(come) < (uint32) launched)
	{
		pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, pg_atomic_read_u32(&shared->blocks_done));
		(void) ConditionVariableTimedSleep(&shared->changed, REPORT_MILLISECONDS,
										   WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
	}
	ConditionVariableCancelSleep();
	pg_read_barrier();
}

/*
 * Waits until all workers have read their rows, and decides what is done with
 * the rows.
 */
static Verdict
judge(Shared *shared, SluiceIndexBuild *build, int launched)
{
	bool		fit = build->unfit == NULL;
	bool		whole = fit && pgsluice_index_spread(build->core, &shared->spread);
	Verdict		verdict;

	wait_for(shared, &shared->scanned, launched);
	for (int i = 0; i < launched; i++)
	{
		fit &= shared->parts[i].fit;
		whole &= shared->parts[i].whole;
		pgsluice_index_spread_with(&shared->spread, &shared->parts[i].spread);
	}
	if (whole)
		verdict = WHOLE;
	else
		verdict = fit && !is_ranked(build) ? RUNS : PART;
	pg_write_barrier();
	pg_atomic_write_u32(&shared->verdict, verdict);
	ConditionVariableBroadcast(&shared->changed);
	return verdict;
}

/* Reads bytes of a worker's file, from position `from` on. */
static char *
read_file(BufFile *file, uint64 from, Size len)
{
	char	   *bytes = MemoryContextAllocHuge(CurrentMemoryContext, len);

	sluice_index_read_file(file, from, bytes, len);
	return bytes;
}

/* Takes the rows that a worker has left. */
static void
take_part(SluiceIndexBuild *build, int worker, Verdict verdict)
{
	ParallelBuild *team = build->team;
	const Part *part = &team->shared->parts[worker];
	const uint64 place = (uint64) (worker + 1) << SLUICE_INDEX_PLACE_BITS;
	char		name[MAXPGPATH];
	char	   *bytes;

	build->rows += part->rows;
	build->reltuples += part->reltuples;
	build->info->ii_BrokenHotChain |= part->broken_hot_chain;
	if (part->bytes == 0)
		return;
	file_name(name, worker);
	team->files[worker] = BufFileOpenFileSet(&team->shared->files.fs, name, O_RDONLY, false);
	if (verdict == WHOLE)
	{
		bytes = read_file(team->files[worker], 0, part->bytes);
		sluice_index_checked(build, pgsluice_index_join(build->core, (const uint8 *) bytes,
														part->bytes));
	}
	else
	{
		const uint64 *runs;

		bytes = read_file(team->files[worker], part->bytes, part->runs);
		runs = (const uint64 *) bytes;
		for (Size i = 0; i < part->runs / sizeof(uint64); i += 2)
			sluice_index_checked(build, pgsluice_index_adopt(build->core, place + runs[i],
															 place + runs[i + 1]));
		build->team_spilled += part->bytes;
	}
	pfree(bytes);
}

/*
 * The leader's part: reads its range, and takes over the rows of the workers.
 */
static void
lead(SluiceIndexBuild *build, SluiceIndexScan *scan)
{
	ParallelBuild *team = build->team;
	Shared	   *shared = team->shared;
	int			launched = team->parallel->nworkers_launched;
	SluiceIndexStep step = {0};
	Verdict		verdict;

	pgsluice_index_limit(build->core, (Size) shared->memory * 1024);
	build->blocks_done = &shared->blocks_done;
	scan_range(scan, shared, 0);
	/* The leader reads the ranges of workers that were not launched. */
	for (int range = launched + 1; range < shared->ranges; range++)
		scan_range(scan, shared, range);
	/* Otherwise we would wait forever for a worker that failed to start. */
	WaitForParallelWorkersToAttach(team->parallel);
	verdict = judge(shared, build, launched);
	if (verdict == PART)
	{
		WaitForParallelWorkersToFinish(team->parallel);
		build->parted = true;
		build->unfit = "what several processes have read cannot be put together";
		return;
	}
	if (verdict == WHOLE)
		sluice_index_checked(build, pgsluice_index_sort_as(build->core, &shared->spread, &step));
	wait_for(shared, &shared->handed, launched);
	for (int i = 0; i < launched; i++)
		take_part(build, i, verdict);
	team->pipe = sluice_page_queue_open(shm_toc_lookup(team->parallel->toc, KEY_PIPE, false));
	build->request->report->workers = launched;
}

/*
 * Returns the queue to the worker that writes the pages; NULL if there is no
 * such worker.
 */
PageQueue *
sluice_parallel_build_pipe(const SluiceIndexBuild *build)
{
	return build->team ? build->team->pipe : NULL;
}

/* Returns a worker's file while its runs are merged; NULL if it has none. */
BufFile *
sluice_parallel_build_file(SluiceIndexBuild *build, int worker)
{
	ParallelBuild *team = build->team;

	return team && worker < team->parallel->nworkers_launched ? team->files[worker] : NULL;
}

/*
 * Ends the workers and closes their files. All pages have been sent, or none
 * will be.
 */
void
sluice_parallel_build_end(SluiceIndexBuild *build)
{
	ParallelBuild *team = build->team;

	if (team == NULL)
		return;
	if (team->pipe)
	{
		sluice_page_queue_abandon(team->pipe);
		WaitForParallelWorkersToFinish(team->parallel);
	}
	for (int i = 0; i < team->parallel->nworkers_launched; i++)
	{
		InstrAccumParallelQuery(&team->shared->parts[i].buffers, &team->shared->parts[i].wal);
		if (team->files[i])
			BufFileClose(team->files[i]);
	}
	DestroyParallelContext(team->parallel);
	ExitParallelMode();
	sluice_slots_keep(&team->slots, 0);
	build->team = NULL;
	build->blocks_done = NULL;
}

/*
 * Starts workers for the blocks that the leader has not read alone. Returns
 * false if none was launched.
 */
static bool
begin_team(SluiceIndexBuild *build, BlockNumber blocks)
{
	ParallelBuild *team = palloc0(sizeof(ParallelBuild));
	int			workers = sluice_slots_take(&team->slots, build->workers);
	Size		size = offsetof(Shared, parts) + sizeof(Part) * workers;
	ParallelContext *parallel;

	if (workers == 0)
		return false;
	build->team = team;
	EnterParallelMode();
	team->parallel = parallel = CreateParallelContext("pgsluice", "pgsluice_index_team_main",
													  workers);
	team->files = palloc0(sizeof(BufFile *) * workers);
	shm_toc_estimate_chunk(&parallel->estimator, size);
	shm_toc_estimate_chunk(&parallel->estimator, sluice_page_queue_size());
	shm_toc_estimate_keys(&parallel->estimator, 2);
	if (!sluice_share_parallel(parallel))
		return false;
	team->shared = shm_toc_allocate(parallel->toc, size);
	fill_shared(team->shared, build, blocks, workers);
	SharedFileSetInit(&team->shared->files, parallel->seg);
	shm_toc_insert(parallel->toc, KEY_TEAM, team->shared);
	shm_toc_insert(parallel->toc, KEY_PIPE,
				   sluice_page_queue_init(shm_toc_allocate(parallel->toc, sluice_page_queue_size())));
	LaunchParallelWorkers(parallel);
	/* The others' places are for the workers of other sessions. */
	sluice_slots_keep(&team->slots, parallel->nworkers_launched);
	return parallel->nworkers_launched > 0;
}

/*
 * Reads the table with the help of workers, if that pays. Returns the first
 * block that was not read. If `parted` is set, the rows that were read cannot
 * be used. The workers end when the index is written.
 */
BlockNumber
sluice_parallel_build_scan(SluiceIndexBuild *build, SluiceIndexScan *scan, BlockNumber blocks)
{
	BlockNumber next = Min(alone_blocks(), blocks);

	sluice_index_scan_range(scan, 0, next);
	if (next == blocks || !pays(build, blocks))
		return next;
	if (!begin_team(build, blocks))
	{
		sluice_parallel_build_end(build);
		return next;
	}
	lead(build, scan);
	return blocks;
}
