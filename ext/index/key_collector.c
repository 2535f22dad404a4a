/*
 * Keys that are collected while a COPY installs its rows: one of the indexes
 * that are built at its end has all of its keys by then, and the table is not
 * read again for it. Their runs are those of any build, sorted and spilled as
 * the memory fills.
 *
 * Collected are the rows of the COPY alone. Whatever else has put rows into
 * the table meanwhile (a function that the COPY called, a trigger) was a
 * command of its own, which the command counter shows: `disturbed` in
 * deferred.c. Then the keys are dropped and the table is read, whose rows are
 * the truth.
 *
 * The index itself is not open while keys are collected: the executor gave up
 * its lock when the index was left to the end. A RowExclusiveLock is kept
 * here, so that nobody can drop or change it, and the relation is opened for
 * each batch without another lock. No pointer into a relation cache entry is
 * kept between two batches.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "storage/buffile.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

struct KeyCollector
{
	MemoryContext context;		/* of all of it */
	Oid			index;
	SluiceIndexBuild build;
	SluiceIndexSource *source;
};

/*
 * Begins to keep the keys of an index that the core can sort, in so many kB of
 * memory.
 */
KeyCollector *
sluice_key_collector_open(Relation heap, Relation index, IndexInfo *info, int memory,
						  bool wants_pairs)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice index keys",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	KeyCollector *kept = palloc0(sizeof(KeyCollector));
	SluiceIndexBuild *build = &kept->build;
	int			natts;

	kept->context = context;
	kept->index = RelationGetRelid(index);
	/* The executor gives up its lock when it leaves the index to the end. */
	LockRelationOid(kept->index, RowExclusiveLock);
	build->heap = heap;
	build->index = index;
	build->info = info;
	build->for_copy = true;
	build->wants_pairs = wants_pairs;
	if (sluice_index_shape(heap, index, false, build->attributes) != NULL)
		elog(ERROR, "pgsluice: the core cannot sort for index \"%s\"",
			 RelationGetRelationName(index));
	sluice_index_open_core(build, false, memory);
	kept->source = sluice_index_open_source(heap, info, &natts);
	MemoryContextSwitchTo(old);
	return kept;
}

/* These rows are in the table. False: the keys are of no more use. */
bool
sluice_key_collector_rows(KeyCollector *kept, const PlacedRow *rows, int count)
{
	MemoryContext old = MemoryContextSwitchTo(kept->context);
	SluiceIndexBuild *build = &kept->build;
	SluiceIndexTuple tuples[MaxHeapTuplesPerPage];
	int			n;

	build->index = index_open(kept->index, NoLock);
	for (int first = 0; first < count && !build->unfit; first += n)
	{
		n = Min(count - first, (int) lengthof(tuples));
		for (int i = 0; i < n; i++)
		{
			const PlacedRow *row = &rows[first + i];

			tuples[i].tuple = (const uint8 *) row->tuple;
			tuples[i].len = row->len;
			tuples[i].tid = ((uint64) ItemPointerGetBlockNumber(&row->tid) << 16) |
				ItemPointerGetOffsetNumber(&row->tid);
		}
		sluice_index_add_tuples(build, kept->source, tuples, n);
	}
	index_close(build->index, NoLock);
	MemoryContextSwitchTo(old);
	return build->unfit == NULL;
}

/* All rows have come. False: the keys are of no use. */
bool
sluice_key_collector_end(KeyCollector *kept)
{
	MemoryContext old = MemoryContextSwitchTo(kept->context);
	bool		fit;

	kept->build.index = index_open(kept->index, NoLock);
	fit = sluice_index_rank(&kept->build);
	index_close(kept->build.index, NoLock);
	MemoryContextSwitchTo(old);
	return fit;
}

/* Whose keys they are. */
Oid
sluice_key_collector_index(const KeyCollector *kept)
{
	return kept->index;
}

/*
 * Builds the index, which is a new and empty file, of all the rows that were
 * kept and of what was in its old one; and forgets them. False, and nothing
 * written: only the stock build can.
 */
bool
sluice_key_collector_build(KeyCollector *kept, Relation index, const BuildRequest *request,
						   IndexBuildResult *result)
{
	MemoryContext caller = MemoryContextSwitchTo(kept->context);
	SluiceIndexReport *report = request->report;
	bool		fit;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	memset(report, 0, sizeof(*report));
	report->relid = kept->index;
	kept->build.index = index;
	kept->build.request = request;
	if (request->old)
		sluice_index_add_old(&kept->build, request->old);
	fit = kept->build.unfit == NULL && sluice_index_rank(&kept->build);
	if (fit)
		sluice_index_write(&kept->build);
	else
		strlcpy(report->reason, kept->build.unfit, sizeof(report->reason));
	report->rows = (uint64) kept->build.rows;
	report->spilled = kept->build.spilled;
	result->heap_tuples = request->old ? -1 : kept->build.rows;
	result->index_tuples = kept->build.rows;
	MemoryContextSwitchTo(caller);
	sluice_key_collector_close(kept);
	INSTR_TIME_SET_CURRENT(report->total);
	INSTR_TIME_SUBTRACT(report->total, start);
	return fit;
}

/*
 * Whether or not they were used. Temporary files are closed by hand, since
 * they belong to the resource owner and not to the memory context.
 */
void
sluice_key_collector_close(KeyCollector *kept)
{
	if (kept->build.file)
		BufFileClose(kept->build.file);
	MemoryContextDelete(kept->context);
}
