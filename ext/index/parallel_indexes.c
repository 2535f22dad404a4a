/*
 * Builds several indexes of one table at once. The leader and the workers of a
 * ParallelContext take one index after the other and build it completely, from
 * the scan of the table to the last page. The workers belong to the leader's
 * transaction: they see what it sees and write WAL as it does, and an error or
 * a cancel of one process ends all of them.
 *
 * Each index is a new and empty file of a table that only this transaction can
 * reach. Two processes never touch the same file. They share only the list of
 * indexes and the number of the next one, an atomic. A worker writes its
 * results into the entry of the index that it took. The leader reads them
 * after WaitForParallelWorkersToFinish(), which orders the memory.
 *
 * A worker changes no catalog, because parallel mode forbids it. The leader
 * does that part of index_build() afterwards, one index after the other
 * (deferred.c).
 *
 * Memory is divided by the number of processes, so that all of them together
 * stay within maintenance_work_mem.
 *
 * A worker of another build of the library (base/require_build.c) leaves
 * before it takes an index. The leader takes all that nobody else takes.
 *
 * Buffer and WAL usage of the workers is added to the leader's, as for any
 * parallel build.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#define KEY_BUILDS 1
#define KEY_USAGE 2

/* What the leader gives the workers, and what they report. */
typedef struct SharedBuilds
{
	char		build[SLUICE_BUILD_LEN];
	Oid			heap;
	int			memory;			/* of each participant, in kB */
	int			count;
	pg_atomic_uint32 next;		/* the first index that is not taken */
	SluiceIndexBuilt built[FLEXIBLE_ARRAY_MEMBER];
} SharedBuilds;

/* What a worker has used; all zero if it has left at once. */
typedef struct BuildUsage
{
	bool		helped;
	BufferUsage buffers;
	WalUsage	wal;
} BuildUsage;

PGDLLEXPORT void pgsluice_index_worker_main(dsm_segment *segment, shm_toc *toc);

/* Builds an index, which is a new and empty file, in `memory` kB. */
static void
build_one(Relation heap, SluiceIndexBuilt *built, int memory, DuplicatePairs *pairs)
{
	Relation	index = index_open(built->index, AccessExclusiveLock);
	SluiceIndexConflict conflict = {.index = InvalidOid,.context = CurrentMemoryContext};
	const BuildRequest request = {
		.old = built->old.blocks > 0 ? &built->old : NULL,
		.memory = memory,
		.conflict = &conflict,
		.pairs = pairs,
		.report = &built->report,
	};
	IndexBuildResult *result;
	const int	params[] = {PROGRESS_CREATEIDX_INDEX_OID, PROGRESS_CREATEIDX_ACCESS_METHOD_OID, PROGRESS_CREATEIDX_PHASE};
	const int64 values[] = {built->index, BTREE_AM_OID, PROGRESS_CREATEIDX_PHASE_BUILD};

	Assert(RelationGetNumberOfBlocks(index) == 0);
	pgstat_progress_update_multi_param(lengthof(params), params, values);
	result = sluice_index_build(heap, index, BuildIndexInfo(index), &request);
	built->fit = result != NULL;
	if (result)
		built->result = *result;
	built->conflict = OidIsValid(conflict.index);
	if (built->conflict)
	{
		built->earlier = conflict.earlier;
		memcpy(built->tuple, conflict.tuple, IndexTupleSize(conflict.tuple));
	}
	index_close(index, NoLock);
}

/* Builds indexes until all are taken. */
static void
build_some(Relation heap, SharedBuilds *shared, DuplicatePairs *pairs)
{
	uint32		i;

	while ((i = pg_atomic_fetch_add_u32(&shared->next, 1)) < (uint32) shared->count)
		build_one(heap, &shared->built[i], shared->memory, pairs);
}

/* A worker's main function. The locks are those of the leader's lock group. */
void
pgsluice_index_worker_main(dsm_segment *segment, shm_toc *toc)
{
	SharedBuilds *shared = shm_toc_lookup(toc, KEY_BUILDS, false);
	BuildUsage *usage;
	Relation	heap;

	if (!sluice_require_build(shared->build, LOG))
		return;
	usage = (BuildUsage *) shm_toc_lookup(toc, KEY_USAGE, false) + ParallelWorkerNumber;
	InstrStartParallelQuery();
	heap = table_open(shared->heap, ShareLock);
	build_some(heap, shared, NULL);
	usage->helped = true;
	InstrEndParallelQuery(&usage->buffers, &usage->wal);
	table_close(heap, NoLock);
}

static void
fill_shared(SharedBuilds *shared, Relation heap, const SluiceIndexBuilt *built, int count,
			int participants)
{
	strlcpy(shared->build, sluice_build, sizeof(shared->build));
	shared->heap = RelationGetRelid(heap);
	shared->memory = Max(maintenance_work_mem / participants, 64);
	shared->count = count;
	pg_atomic_init_u32(&shared->next, 0);
	memcpy(shared->built, built, sizeof(SluiceIndexBuilt) * count);
}

/*
 * Builds all indexes without workers, or if there is no shared memory for
 * them. The same code works on a private list.
 */
static void
build_alone(Relation heap, SluiceIndexBuilt *built, int count, Size size, DuplicatePairs *pairs)
{
	SharedBuilds *builds = palloc(size);

	fill_shared(builds, heap, built, count, 1);
	build_some(heap, builds, pairs);
	memcpy(built, builds->built, sizeof(SluiceIndexBuilt) * count);
	pfree(builds);
}

/*
 * Builds the indexes, all of which are new and empty files of one private
 * table. Those that take longest should come first. `pairs`, or NULL, takes
 * the rows with equal keys of the first index, which must then be the only
 * one. Returns the number of workers that helped.
 */
int
sluice_index_build_all(Relation heap, SluiceIndexBuilt *built, int count, int workers,
					   DuplicatePairs *pairs)
{
	Size		size = offsetof(SharedBuilds, built) + sizeof(SluiceIndexBuilt) * count;
	SharedBuilds *shared;
	BuildUsage *usage;
	ParallelContext *parallel;
	SluiceSlots slots = {0};
	int			helped = 0;
	bool		shares;

	Assert(pairs == NULL || (count == 1 && workers == 0));
	workers = Min(Min(workers, max_parallel_maintenance_workers), count - 1);
	if (RelationUsesLocalBuffers(heap))
		workers = 0;
	workers = sluice_slots_take(&slots, workers);
	if (workers == 0)
	{
		build_alone(heap, built, count, size, pairs);
		return 0;
	}

	EnterParallelMode();
	parallel = CreateParallelContext("pgsluice", "pgsluice_index_worker_main", workers);
	shm_toc_estimate_chunk(&parallel->estimator, size);
	shm_toc_estimate_chunk(&parallel->estimator, sizeof(BuildUsage) * workers);
	shm_toc_estimate_keys(&parallel->estimator, 2);
	shares = sluice_share_parallel(parallel);
	if (shares)
	{
		shared = shm_toc_allocate(parallel->toc, size);
		fill_shared(shared, heap, built, count, workers + 1);
		shm_toc_insert(parallel->toc, KEY_BUILDS, shared);
		usage = shm_toc_allocate(parallel->toc, sizeof(BuildUsage) * workers);
		memset(usage, 0, sizeof(BuildUsage) * workers);
		shm_toc_insert(parallel->toc, KEY_USAGE, usage);
		LaunchParallelWorkers(parallel);
		/* The others' places are for the workers of other sessions. */
		sluice_slots_keep(&slots, parallel->nworkers_launched);
		build_some(heap, shared, NULL);
		WaitForParallelWorkersToFinish(parallel);
		for (int i = 0; i < parallel->nworkers_launched; i++)
		{
			InstrAccumParallelQuery(&usage[i].buffers, &usage[i].wal);
			helped += usage[i].helped;
		}
		memcpy(built, shared->built, sizeof(SluiceIndexBuilt) * count);
	}
	DestroyParallelContext(parallel);
	ExitParallelMode();
	sluice_slots_keep(&slots, 0);
	if (!shares)
		build_alone(heap, built, count, size, pairs);
	return helped;
}
