/*
 * Keys that are kept while a COPY installs its rows: one of the indexes that are
 * built at its end has all of its keys by then, and the table is not read again
 * for it. Their runs are those of any build, sorted and spilled as the memory
 * fills.
 *
 * Kept are the rows of the COPY alone. Whatever else has put rows into the table
 * meanwhile was a command of its own: then the caller lets the table be read.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "storage/buffile.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

struct SluiceIndexKept
{
	MemoryContext context;		/* of all of it */
	Oid			index;
	SluiceIndexBuild build;
	SluiceIndexSource *source;
};

/* Begins to keep the keys of an index that the core can sort, in so many kB of memory. */
SluiceIndexKept *
sluice_index_keep(Relation heap, Relation index, IndexInfo *info, int memory,
				  bool twins)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice index keys",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	SluiceIndexKept *kept = palloc0(sizeof(SluiceIndexKept));
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
	build->twins = twins;
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
sluice_index_keep_rows(SluiceIndexKept *kept, const SluicePlaced *rows, int count)
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
			const SluicePlaced *row = &rows[first + i];

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
sluice_index_keep_end(SluiceIndexKept *kept)
{
	MemoryContext old = MemoryContextSwitchTo(kept->context);
	bool		fit;

	kept->build.index = index_open(kept->index, NoLock);
	fit = sluice_index_rank(&kept->build);
	index_close(kept->build.index, NoLock);
	MemoryContextSwitchTo(old);
	return fit;
}

Oid
sluice_index_kept_for(const SluiceIndexKept *kept)
{
	return kept->index;
}

/*
 * Builds the index, which is a new and empty file, of all the rows that were kept and of what
 * was in its old one; and forgets them. False, and nothing written: only the stock build can.
 */
bool
sluice_index_build_kept(SluiceIndexKept *kept, Relation index, const SluiceIndexOld *old,
						IndexBuildResult *result)
{
	MemoryContext caller = MemoryContextSwitchTo(kept->context);
	SluiceIndexReport *report = &sluice_index_report;
	bool		fit;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	memset(report, 0, sizeof(*report));
	report->relid = kept->index;
	kept->build.index = index;
	if (old->blocks > 0)
		sluice_index_add_old(&kept->build, old);
	fit = kept->build.unfit == NULL && sluice_index_rank(&kept->build);
	if (fit)
		sluice_index_write(&kept->build);
	else
		strlcpy(report->reason, kept->build.unfit, sizeof(report->reason));
	report->rows = (uint64) kept->build.rows;
	report->spilled = kept->build.spilled;
	result->heap_tuples = old->blocks > 0 ? -1 : kept->build.rows;
	result->index_tuples = kept->build.rows;
	MemoryContextSwitchTo(caller);
	sluice_index_forget(kept);
	INSTR_TIME_SET_CURRENT(report->total);
	INSTR_TIME_SUBTRACT(report->total, start);
	return fit;
}

void
sluice_index_forget(SluiceIndexKept *kept)
{
	if (kept->build.file)
		BufFileClose(kept->build.file);
	MemoryContextDelete(kept->context);
}
