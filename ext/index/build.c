/*
 * Builds one index: passes rows from the scan to the core, runs to temporary
 * files and back, and pages from the core to the relation.
 *
 * The core (crates/core/src/sort) keeps entries, sorts them, merges runs and
 * forms pages. It does no input or output: each call returns what it needs
 * next (a SluiceIndexStatus), and this file does it. So every call is short,
 * interrupts are processed between calls, and an error of PostgreSQL never
 * crosses a stack frame of the core.
 *
 *    GO          continue with the next rows
 *    FULL        memory is used up: sort the rows and write them as a run
 *    UNFIT       this value needs the server: form it as the index will store
 *                it, and offer it again
 *    CROWDED     too many different values for the server to rank
 *    WRITE READ  a step of the merge needs bytes written to, or read from, the
 *                temporary file
 *    PAGES       pages are ready to be taken
 *    DUPLICATE   a unique index has a duplicate key
 *    DONE        the index is complete
 *
 * Entries have PostgreSQL's order: by the operator class, then by heap TID
 * (heapkeyspace). Values that the core cannot order by their bytes are passed
 * as ranks, which the server has computed (value_ranks.c). If the table has a
 * value that the core can take in neither way, the build stops (`unfit`)
 * before anything is written, and btbuild() builds the index from the
 * beginning. For this reason, nothing is written to the relation before all
 * rows have been read: btbuild() does not accept an index file that already
 * has pages.
 *
 * There are at most three attempts. The first may have workers
 * (parallel_build.c). If their results cannot be combined (`parted`), the
 * second attempt has none. If equal values turn out to be stored in different
 * ways (`rank_all`), the last attempt ranks every column, and each row keeps
 * its own form.
 *
 * The core's memory is not palloc's (core_memory.c). A callback of the memory
 * context that has the build frees it, so an error in any call leaves nothing
 * behind.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/buffile.h"
#include "utils/memutils.h"

#define TOO_LONG "a value is compressed or too long"

/* Frees a core that its build does not replace. */
static void
free_core(void *core)
{
	pgsluice_index_free(core);
}

/*
 * Records the row with this tuple for the COPY, if it is the first one so far,
 * and the earlier row with the same key.
 */
static void
note_conflict(SluiceIndexBuild *build, IndexTuple tuple, uint64 earlier)
{
	SluiceIndexConflict *conflict = build->request->conflict;

	if (OidIsValid(conflict->index) &&
		ItemPointerCompare(&conflict->tuple->t_tid, &tuple->t_tid) <= 0)
		return;
	conflict->index = RelationGetRelid(build->index);
	conflict->tuple = MemoryContextAlloc(conflict->context, IndexTupleSize(tuple));
	memcpy(conflict->tuple, tuple, IndexTupleSize(tuple));
	ItemPointerSet(&conflict->earlier, (BlockNumber) (earlier >> 16), (OffsetNumber) earlier);
}

/*
 * A unique index has a duplicate key. For a COPY, the first such row is
 * recorded and no error is raised yet, because another index may reject an
 * earlier row. Otherwise this is the error of CREATE INDEX.
 */
static void
report_duplicate(SluiceIndexBuild *build, const SluiceIndexStep *step)
{
	IndexTuple	tuple = (IndexTuple) step->bytes;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	char	   *key;

	if (build->for_copy)
	{
		note_conflict(build, tuple, step->start);
		return;
	}
	/* Let workers that wait for more pages end in good order. */
	sluice_parallel_build_end(build);
	index_deform_tuple(tuple, RelationGetDescr(build->index), values, isnull);
	key = BuildIndexValueDescription(build->index, values, isnull);
	/* The message is that of PostgreSQL's own sort of an index. */
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("could not create unique index \"%s\"",
					RelationGetRelationName(build->index)),
			 key ? errdetail("Key %s is duplicated.", key) :
			 errdetail("Duplicate keys exist."),
			 errtableconstraint(build->heap, RelationGetRelationName(build->index))));
}

/*
 * Raises an error for what the core could not do. Other statuses are up to the
 * caller.
 */
static SluiceIndexStatus
checked(SluiceIndexBuild *build, SluiceIndexStatus status, const SluiceIndexStep *step)
{
	switch (status)
	{
		case SLUICE_INDEX_DUPLICATE:
			report_duplicate(build, step);
			break;
		case SLUICE_INDEX_NO_MEMORY:
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory"),
					 errdetail("Failed while building index \"%s\".",
							   RelationGetRelationName(build->index))));
			break;
		case SLUICE_INDEX_CORRUPT:
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("a temporary file does not hold what was written to it"),
					 errdetail("Failed while building index \"%s\".",
							   RelationGetRelationName(build->index))));
			break;
		case SLUICE_INDEX_INTERRUPTED:
			CHECK_FOR_INTERRUPTS();
			elog(ERROR, "pgsluice: interrupted while building index \"%s\"",
				 RelationGetRelationName(build->index));
			break;
		case SLUICE_INDEX_PANIC:
			elog(ERROR, "pgsluice: the core failed while building index \"%s\"",
				 RelationGetRelationName(build->index));
			break;
		default:
			break;
	}
	return status;
}

/* The same, for a call that returns no other statuses. */
void
sluice_index_checked(SluiceIndexBuild *build, SluiceIndexStatus status)
{
	checked(build, status, NULL);
}

static void flush_run(SluiceIndexBuild *build);

/*
 * Adds a row whose values have to be formed as the index will store them.
 */
static SluiceIndexStatus
add_formed(SluiceIndexBuild *build, uint64 address, bool alive,
		   const Datum *values, const bool *isnull)
{
	Datum		stored[INDEX_MAX_KEYS];
	SluiceIndexStatus status;
	MemoryContext old = MemoryContextSwitchTo(build->scratch);

	sluice_index_store_values(build, values, isnull, stored);
	status = pgsluice_index_add(build->core, address, !alive, true, stored, isnull);
	MemoryContextSwitchTo(old);
	MemoryContextReset(build->scratch);
	return checked(build, status, NULL);
}

/* Adds one row. */
void
sluice_index_add(SluiceIndexBuild *build, ItemPointer tid, bool alive,
				 Datum *values, bool *isnull)
{
	uint64		address = ((uint64) ItemPointerGetBlockNumber(tid) << 16) |
		ItemPointerGetOffsetNumber(tid);
	SluiceIndexStatus status;

	if (build->unfit)
		return;
	build->rows += 1;
	status = checked(build,
					 pgsluice_index_add(build->core, address, !alive, false, values, isnull),
					 NULL);
	if (status == SLUICE_INDEX_UNFIT)
	{
		status = add_formed(build, address, alive, values, isnull);
		build->rank_all = status == SLUICE_INDEX_UNFIT;
	}
	switch (status)
	{
		case SLUICE_INDEX_FULL:
			flush_run(build);
			break;
		case SLUICE_INDEX_UNFIT:
			build->unfit = TOO_LONG;
			break;
		case SLUICE_INDEX_CROWDED:
			build->unfit = SLUICE_INDEX_TOO_MANY;
			break;
		default:
			break;
	}
}

/*
 * Processes the core's status for rows that were added together. Returns false
 * if the next row is UNFIT.
 */
static bool
took(SluiceIndexBuild *build, SluiceIndexStatus status, size_t count)
{
	build->rows += count;
	if (checked(build, status, NULL) == SLUICE_INDEX_FULL)
		flush_run(build);
	else if (status == SLUICE_INDEX_CROWDED)
		build->unfit = SLUICE_INDEX_TOO_MANY;
	return status != SLUICE_INDEX_UNFIT;
}

/*
 * Adds rows of a page, from offsets[*next] on. Returns false if the row at
 * *next has to be added by its values.
 */
bool
sluice_index_add_page(SluiceIndexBuild *build, SluiceIndexSource *source,
					  const char *page, BlockNumber block,
					  const OffsetNumber *offsets, size_t count, size_t *next)
{
	while (*next < count && !build->unfit)
	{
		size_t		first = *next;
		SluiceIndexStatus status = pgsluice_index_add_page(build->core, source,
														   (const uint8 *) page, block,
														   offsets, count, next);

		if (!took(build, status, *next - first))
			return false;
	}
	return true;
}

/* ----------------------------------------------------------------
 * Sorted runs of an index build: written to a temporary file, and read back
 * for the merge. They are the process's own runs and those that workers have
 * left.
 * ----------------------------------------------------------------
 */

/* The most bytes that a step requests at once. */
#define READ_BUFFER (64 * 1024)

/*
 * Appends bytes that the core has sorted to the temporary file. The file is
 * created when it is first needed, because most builds need none.
 */
void
sluice_index_write_run(SluiceIndexBuild *build, const SluiceIndexStep *step)
{
	if (build->file == NULL && build->shared)
		build->file = BufFileCreateFileSet(build->shared, build->shared_name);
	else if (build->file == NULL)
	{
		PrepareTempTablespaces();
		build->file = BufFileCreateTemp(false);
	}
	/* A merge reads and writes in turns, so the position may be anywhere. */
	if (BufFileSeek(build->file, 0, (off_t) build->spilled, SEEK_SET) != 0)
		elog(ERROR, "could not seek in a temporary file");
	BufFileWrite(build->file, unconstify(uint8 *, step->bytes), step->len);
	build->spilled += step->len;
}

/* Reads `len` bytes of a temporary file, starting at `from`. */
void
sluice_index_read_file(BufFile *file, uint64 from, void *bytes, Size len)
{
	if (BufFileSeek(file, 0, (off_t) from, SEEK_SET) != 0 ||
		BufFileRead(file, bytes, len) != len)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read a temporary file: %m")));
}

/*
 * Supplies the bytes that the core requests. The upper bits of an offset have
 * the number of a worker's file (SLUICE_INDEX_PLACE_BITS).
 */
static void
read_run(SluiceIndexBuild *build, const SluiceIndexStep *step)
{
	int			worker = (int) (step->start >> SLUICE_INDEX_PLACE_BITS) - 1;
	uint64		from = step->start & ((UINT64CONST(1) << SLUICE_INDEX_PLACE_BITS) - 1);
	BufFile    *file = worker < 0 ? build->file : sluice_parallel_build_file(build, worker);
	size_t		len = step->end - step->start;

	if (file == NULL || len > READ_BUFFER)
		elog(ERROR, "pgsluice: the core asks for what it never wrote");
	if (build->buffer == NULL)
		build->buffer = palloc(READ_BUFFER);
	sluice_index_read_file(file, from, build->buffer, len);
	sluice_index_checked(build, pgsluice_index_supply(build->core, build->buffer, len));
}

/* Writes the run that the core has sorted. */
void
sluice_index_write_sorted(SluiceIndexBuild *build)
{
	SluiceIndexStatus status;
	SluiceIndexStep step = {0};

	do
	{
		CHECK_FOR_INTERRUPTS();
		status = pgsluice_index_step(build->core, &step);
		sluice_index_checked(build, status);
		if (status == SLUICE_INDEX_WRITE)
			sluice_index_write_run(build, &step);
	} while (status != SLUICE_INDEX_ADD);
}

/*
 * Sorts the rows that fill the memory and writes them to the temporary file.
 */
static void
flush_run(SluiceIndexBuild *build)
{
	if (!sluice_index_rank(build))
		return;
	sluice_index_checked(build, pgsluice_index_flush(build->core));
	sluice_index_write_sorted(build);
}

/* ----------------------------------------------------------------
 * Pages.
 * ----------------------------------------------------------------
 */

/* Writes the pages that are ready, or sends them to the process that does. */
static void
write_pages(SluiceIndexBuild *build, SluicePageWriter *writer)
{
	if (writer)
		sluice_page_writer_write(writer, sluice_index_next_page, build->core);
	else
		sluice_page_queue_send(sluice_parallel_build_pipe(build), build->core);
}

/* Completes the file with its metapage. Returns the number of pages. */
static BlockNumber
close_file(SluiceIndexBuild *build, SluicePageWriter *writer, const SluiceIndexStep *step)
{
	write_pages(build, writer);
	if (writer)
		return sluice_page_writer_close(writer, step->root, step->level, build->allequalimage);
	return sluice_page_queue_close(sluice_parallel_build_pipe(build), step->root, step->level,
								   build->allequalimage);
}

/*
 * Sorts and merges the rows, whose values are ranked by now, and writes the
 * index.
 */
static void
write_index(SluiceIndexBuild *build)
{
	SluicePageWriter *writer = sluice_parallel_build_pipe(build) ? NULL :
		sluice_page_writer_open(build->index);
	SluiceIndexStep step = {0};

	checked(build, pgsluice_index_finish(build->core), &step);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 PROGRESS_BTREE_PHASE_LEAF_LOAD);
	for (;;)
	{
		SluiceIndexStatus status;

		CHECK_FOR_INTERRUPTS();
		status = checked(build, pgsluice_index_step(build->core, &step), &step);
		if (build->wants_pairs)
			sluice_dedupe_take_pairs(build);
		switch (status)
		{
			case SLUICE_INDEX_WRITE:
				sluice_index_write_run(build, &step);
				break;
			case SLUICE_INDEX_READ:
				read_run(build, &step);
				break;
			case SLUICE_INDEX_PAGES:
				write_pages(build, writer);
				pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE, step.rows);
				break;
			case SLUICE_INDEX_DUPLICATE:
				/*
				 * This file is of no use: it will be rolled back, or rebuilt
				 * from the table. A COPY has no workers here, so there is a
				 * writer.
				 */
				sluice_page_writer_close(writer, P_NONE, 0, build->allequalimage);
				return;
			case SLUICE_INDEX_DONE:
				build->request->report->pages = close_file(build, writer, &step);
				return;
			default:
				break;
		}
	}
}

/* Reports to pg_stat_progress_create_index that the scan has finished. */
static void
report_scanned(const SluiceIndexBuild *build)
{
	const int	params[] = {
		PROGRESS_CREATEIDX_TUPLES_TOTAL,
		PROGRESS_SCAN_BLOCKS_TOTAL,
		PROGRESS_SCAN_BLOCKS_DONE,
		PROGRESS_CREATEIDX_SUBPHASE
	};
	const int64 values[] = {(int64) build->rows, 0, 0, PROGRESS_BTREE_PHASE_PERFORMSORT_1};

	pgstat_progress_update_multi_param(lengthof(params), params, values);
}

/*
 * Whether CHECK_FOR_INTERRUPTS() would end the query. The core calls this
 * function instead, because an error must not leave the core from within.
 */
static bool
is_interrupted(void)
{
	return (QueryCancelPending || ProcDiePending || compat_transaction_timed_out()) &&
		INTERRUPTS_CAN_BE_PROCESSED();
}

/* Creates a core, with the rules of the index in the core's terms. */
static SluiceIndex *
new_core(SluiceIndexBuild *build, int memory)
{
	SluiceIndexRules rules = {
		.keys = IndexRelationGetNumberOfKeyAttributes(build->index),
		.memory = (size_t) memory * 1024,
		.leaf_free = BTGetTargetPageFreeSpace(build->index),
		.unique = build->info->ii_Unique,
		.nulls_not_distinct = build->info->ii_NullsNotDistinct,
		.first_in_table = build->for_copy,
		.reports_pairs = build->wants_pairs,
		.deduplicate = build->deduplicates,
		.mixed = build->mixed,
		.interrupted = is_interrupted,
	};

	return pgsluice_index_new(build->attributes,
							  IndexRelationGetNumberOfAttributes(build->index), &rules);
}

/*
 * Frees the core that the build has now. It may have replaced an earlier one.
 */
static void
free_core_of(void *build)
{
	pgsluice_index_free(((SluiceIndexBuild *) build)->core);
}

/*
 * Makes the current memory context, which has the build, free the core that
 * the build has by then.
 */
void
sluice_index_own_core(SluiceIndexBuild *build, MemoryContextCallback *callback)
{
	callback->func = free_core_of;
	callback->arg = build;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
}

/*
 * Creates the core of a build that only sorts entries, with `memory` bytes.
 * Frees an earlier core.
 */
void
sluice_index_open_sorter(SluiceIndexBuild *build, Size memory)
{
	SluiceIndexRules rules = {
		.keys = IndexRelationGetNumberOfKeyAttributes(build->index),
		.memory = memory,
		.interrupted = is_interrupted,
	};

	pgsluice_index_free(build->core);
	build->core = pgsluice_index_new(build->attributes,
									 IndexRelationGetNumberOfAttributes(build->index), &rules);
	if (build->core == NULL)
		checked(build, SLUICE_INDEX_NO_MEMORY, NULL);
	/*
	 * No rows wait here for the numbers of their values: that there are too
	 * many is known when a row is added.
	 */
	sluice_index_checked(build, pgsluice_index_settle(build->core));
}

/*
 * Creates the core, with `memory` kB. The current memory context frees it.
 */
void
sluice_index_open_core(SluiceIndexBuild *build, bool rank_all, int memory)
{
	MemoryContextCallback *callback;

	build->memory = memory;
	build->allequalimage = _bt_allequalimage(build->index, true);
	build->deduplicates = build->allequalimage && !build->info->ii_Unique &&
		BTGetDeduplicateItems(build->index);
	build->mixed = rank_all;
	build->scratch = AllocSetContextCreate(CurrentMemoryContext, "pgsluice values",
										   ALLOCSET_DEFAULT_SIZES);
	callback = palloc0(sizeof(MemoryContextCallback));
	/* From here on, nothing can fail before the core has its owner. */
	build->core = new_core(build, memory);
	if (build->core == NULL)
		checked(build, SLUICE_INDEX_NO_MEMORY, NULL);
	callback->func = free_core;
	callback->arg = build->core;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
}

/*
 * Builds the index. Returns NULL, with nothing written, if the table has
 * values that only the stock build can take, or that need all columns to be
 * ranked.
 */
static IndexBuildResult *
build_sorted(SluiceIndexBuild *build, bool rank_all, int memory)
{
	SluiceIndexReport *report = build->request->report;
	IndexBuildResult *result;
	instr_time	start;

	sluice_index_open_core(build, rank_all, memory);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 PROGRESS_BTREE_PHASE_INDEXBUILD_TABLESCAN);
	INSTR_TIME_SET_CURRENT(start);
	if (sluice_index_scans_pages(build->heap, build->info))
	{
		report->scan = "pages";
		if (build->old)
			sluice_index_add_old(build, build->old);
		sluice_index_scan_pages(build);
	}
	else
	{
		report->scan = "rows";
		sluice_index_scan_rows(build);
	}
	INSTR_TIME_SET_CURRENT(report->scanning);
	INSTR_TIME_SUBTRACT(report->scanning, start);
	if (build->unfit == NULL)
	{
		report_scanned(build);
		if (sluice_index_rank(build))
			write_index(build);
	}
	sluice_parallel_build_end(build);
	if (build->file)
		BufFileClose(build->file);
	if (build->unfit)
		return NULL;
	result = palloc(sizeof(IndexBuildResult));
	result->heap_tuples = build->old ? -1 : build->reltuples;
	result->index_tuples = build->rows;
	return result;
}

/* Makes one attempt. Returns why the stock build has to do it, or NULL. */
static const char *
attempt(SluiceIndexBuild *build, bool rank_all, int memory, IndexBuildResult **result)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	IndexBuildResult *built;
	const char *reason = RelationGetNumberOfBlocks(build->heap) == 0 ? "the table is empty" :
		sluice_index_shape(build->heap, build->index, rank_all, build->attributes);

	if (reason)
		return reason;
	context = AllocSetContextCreate(caller, "pgsluice index build", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	built = build_sorted(build, rank_all, memory);
	MemoryContextSwitchTo(caller);
	if (built)
		*result = memcpy(palloc(sizeof(*built)), built, sizeof(*built));
	MemoryContextDelete(context);
	return build->unfit;
}

/*
 * Builds the index if the core can, including the entries of the old file if
 * there is one. Otherwise stores the reason in the report and returns NULL.
 */
IndexBuildResult *
sluice_index_build(Relation heap, Relation index, IndexInfo *info, const BuildRequest *request)
{
	SluiceIndexReport *report = request->report;
	const SluiceIndexBuild fresh = {
		.heap = heap,.index = index,.info = info,.old = request->old,.request = request,
		.for_copy = request->conflict != NULL,
		.wants_pairs = request->pairs != NULL,
	};
	SluiceIndexBuild build = fresh;
	IndexBuildResult *result = NULL;
	const char *reason;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	memset(report, 0, sizeof(*report));
	report->relid = RelationGetRelid(index);
	report->method = "sorted";
	/*
	 * The stock build may plan more workers than there are processors. They
	 * would only take turns.
	 */
	build.workers = fresh.for_copy || fresh.old ? 0 :
		Min(info->ii_ParallelWorkers, sluice_workers_allowed());
	reason = attempt(&build, false, request->memory, &result);
	if (build.parted)
	{
		build = fresh;
		reason = attempt(&build, false, request->memory, &result);
	}
	if (reason && build.rank_all)
	{
		build = fresh;
		reason = attempt(&build, true, request->memory, &result);
	}
	report->rows = (uint64) build.rows;
	report->spilled = build.spilled + build.team_spilled;
	if (reason)
		strlcpy(report->reason, reason, sizeof(report->reason));
	INSTR_TIME_SET_CURRENT(report->total);
	INSTR_TIME_SUBTRACT(report->total, start);
	return result;
}
