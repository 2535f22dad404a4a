/*
 * The table read, and its rows sorted, by several processes for one index: the
 * leader and workers of a ParallelContext take a range of its blocks each.
 * When all have read theirs, all sort in the way that suits all; the workers
 * leave their rows in temporary files that they share with the leader, who
 * puts everything together and forms the index as if it had come alone so far.
 * The first worker writes the pages meanwhile (index/page_queue.c).
 *
 *    leader    reads the first blocks alone, starts workers, reads its range
 *    workers   read their ranges
 *    all       say what they have found (Part), and wait
 *    leader    gives the verdict: WHOLE, RUNS or PART
 *    workers   hand their rows over in a file each, as the verdict says
 *    leader    takes them in, merges, forms pages
 *    worker 0  writes the pages
 *
 * WHOLE: rows are short and fit into memory; they are handed over as they lie,
 * packed in the same way by all (`spread` is what all have in common). RUNS:
 * everybody spills sorted runs, which the leader merges. PART: values that the
 * server is to rank cannot be spilled for others, for each process has
 * numbered its own; where that would be necessary, the build starts again without
 * workers.
 *
 * NOBODY WAITS FOR A PROCESS THAT IS NOT THERE.  The leader counts only on
 * workers that were launched, reads the ranges of the others itself, and waits
 * for the launched ones to attach before it waits for what they say. A worker
 * that fails ends the leader's statement, by PostgreSQL's own rules for
 * parallel workers, at the next CHECK_FOR_INTERRUPTS() (condition variables
 * serve interrupts).
 *
 * MEMORY ORDER.  A Part is written before its owner counts itself in `scanned`
 * by an atomic addition, which is a full barrier, and read after the count was
 * seen and a read barrier. The same holds for the files and `handed`.
 *
 * Visibility is the leader's: a worker uses the same rule for which rows are
 * ordinary (heap_scan.c), and PostgreSQL's own scan for the rest, which takes
 * no snapshot in a plain CREATE INDEX.
 *
 * Buffers and WAL that workers use are added to the leader's, as for any
 * parallel build.
 */
#include "index/build.h"

#include <fcntl.h>

#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "storage/condition_variable.h"
#include "storage/sharedfileset.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define KEY_TEAM 1
#define KEY_PIPE 2

/* The leader reads these alone first, to see what kind of rows there are. */
#define ALONE_BLOCKS 128

/* Bytes of memory for a row: its entry, and the word it may be packed into. */
#define ROW_BYTES 32

/* What the leader makes of all that was found. */
typedef enum Verdict
{
	UNKNOWN,
	WHOLE,						/* sort as the spread of all says, and hand over */
	RUNS,						/* spill what is there, and hand over the runs */
	PART						/* it cannot be put together */
} Verdict;

/* What one of the workers has found, and left. */
typedef struct Part
{
	bool		fit;
	bool		whole;			/* it can be handed over whole, and looks like this: */
	SluiceIndexSpread spread;
	bool		broken_hot_chain;
	double		rows;
	double		reltuples;
	uint64		bytes;			/* in its file */
	uint64		runs;			/* bytes behind them that say where the runs are */
	BufferUsage buffers;
	WalUsage	wal;
} Part;

typedef struct Shared
{
	char		build[SLUICE_BUILD_LEN];
	Oid			heap;
	Oid			index;
	int			memory;			/* of each, in kB */
	int			ranges;			/* the leader's is the first */
	BlockNumber first;			/* of all that are to be read */
	BlockNumber end;
	SharedFileSet files;
	ConditionVariable changed;
	pg_atomic_uint32 scanned;	/* so many workers have read their range */
	pg_atomic_uint32 verdict;
	pg_atomic_uint32 handed;	/* so many have left their rows */
	SluiceIndexSpread spread;	/* of all, once there is a verdict */
	Part		parts[FLEXIBLE_ARRAY_MEMBER];	/* of the workers */
} Shared;

/* The leader's side of it. */
typedef struct ParallelBuild
{
	ParallelContext *parallel;
	Shared	   *shared;
	BufFile   **files;			/* of the workers, while their runs are merged */
	PageQueue *pipe;		/* to the one who writes, or NULL */
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

/* Says what was found, and waits for what is to be done about it. */
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

/* Leaves a worker's rows to the leader. */
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

/* Of the temporary file that the worker with this number leaves. */
static void
file_name(char *name, int worker)
{
	snprintf(name, MAXPGPATH, "rows%d", worker);
}

/* A worker's part of the rows. */
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
 * A worker's main function. PostgreSQL has restored the leader's transaction
 * by now. The locks are those that the leader has, and are granted at once
 * within the lock group.
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

	sluice_require_build(shared->build);
	InstrStartParallelQuery();
	heap = build.heap = table_open(shared->heap, ShareLock);
	index = build.index = index_open(shared->index, AccessExclusiveLock);
	build.info = BuildIndexInfo(index);
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

/* Blocks that the leader reads alone first. */
static BlockNumber
alone_blocks(void)
{
	return Max(sluice_threshold(ALONE_BLOCKS), 1);
}

/*
 * Whether to have a team, by the rows that were read so far: values to be
 * ranked must wait, and fit into half of the memory, with a quarter to spare.
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

/* Before any worker runs: no barrier is needed. */
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
	pg_atomic_init_u32(&shared->scanned, 0);
	pg_atomic_init_u32(&shared->verdict, UNKNOWN);
	pg_atomic_init_u32(&shared->handed, 0);
}

/* Waits until as many workers as were launched have come so far. */
static void
wait_for(Shared *shared, pg_atomic_uint32 *come, int launched)
{
	while (pg_atomic_read_u32(come) < (uint32) launched)
		ConditionVariableSleep(&shared->changed, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
	ConditionVariableCancelSleep();
	pg_read_barrier();
}

/* Waits until all have read their rows, and says what is to become of them. */
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

/* Bytes of a worker's file, from there on. */
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

/* The leader's part. */
static void
lead(SluiceIndexBuild *build, SluiceIndexScan *scan)
{
	ParallelBuild *team = build->team;
	Shared	   *shared = team->shared;
	int			launched = team->parallel->nworkers_launched;
	SluiceIndexStep step = {0};
	Verdict		verdict;

	pgsluice_index_limit(build->core, (Size) shared->memory * 1024);
	scan_range(scan, shared, 0);
	/* Those that never came have left their ranges. */
	for (int range = launched + 1; range < shared->ranges; range++)
		scan_range(scan, shared, range);
	/* One that failed to start would be waited for in vain. */
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
 * Where the pages are to go for a worker to write them; NULL: there is none
 * that does.
 */
PageQueue *
sluice_parallel_build_pipe(const SluiceIndexBuild *build)
{
	return build->team ? build->team->pipe : NULL;
}

/* A worker's file, while its runs are merged; NULL: it has none. */
BufFile *
sluice_parallel_build_file(SluiceIndexBuild *build, int worker)
{
	ParallelBuild *team = build->team;

	return team && worker < team->parallel->nworkers_launched ? team->files[worker] : NULL;
}

/*
 * All pages are on their way, or will not be: the workers and their files go.
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
}

/*
 * Starts workers on the blocks that the leader has not read alone. False: none
 * came.
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
	return parallel->nworkers_launched > 0;
}

/*
 * Reads the table with the help of workers, if that pays. Returns the first
 * block that was not read. If `parted` is set, what was read is of no use. The
 * team ends when the index is written.
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
