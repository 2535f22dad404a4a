/*
 * The only interface to the indexes of a table that a COPY fills. The routes into the table hand over rows that are in
 * it. The writer sees to their index entries and their AFTER ROW triggers. How an entry gets into its index concerns
 * this room alone:
 *
 *   row by row       by the executor, as in stock COPY (ExecInsertIndexTuples)
 *   sorted           many entries, in the index's order (sorted_insert.c): those of a leaf of a B-tree together
 *                    (btree_merge.c), or each by the access method; those of a page of a GIN or hash index
 *                    together (gin_merge.c, hash_merge.c)
 *   whole leaves     after the last leaf of a B-tree (btree_append.c; in a unique one, unique_append.c, and in
 *                    one of a table that only this transaction can reach, deferred.c)
 *   merge, build     a new file, when all rows are in (deferred.c, merge.c)
 *
 * strategy.c has the rule that says which way an index gets, and index_report.c reports what was done.
 *
 * The invariant of all ways: when stock COPY would look into an index, or let others look, all entries that stock COPY
 * would have put there are there, or an error is raised that also removes the rows. Entries may wait because no one
 * sees the rows until the command ends. Other transactions do not, because the rows are uncommitted. The command's own
 * snapshot does not show them. AFTER triggers run after the command. Only volatile functions that the COPY itself
 * calls might see them: with volatile constraints no entry waits (`never`); see also sorted_insert.c.
 *
 * An index whose entries wait is taken out of rri->ri_IndexRelationDescs, so that the executor skips it. It is put
 * back before the executor's state is closed. So ri_NumIndices is at any time the number of indexes that get an entry
 * with each row.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/pg_class.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

/*
 * Whether indexes of the table may get new files: the table is this
 * transaction's own, or locked. An unlogged table must have new files already.
 * Suppose that a server is killed after it has flushed the creation of a
 * file's init fork, but not the abort that removed the file. Then recovery
 * creates the init fork again, finds the main fork there, and the server does
 * not start. TRUNCATE takes that risk; a COPY must not.
 */
static bool
may_have_new_files(Relation rel)
{
	if (rel->rd_createSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
		return true;
	return rel->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED &&
		CheckRelationLockedByMe(rel, AccessExclusiveLock, true);
}

/*
 * Partitions that may have memory at once. It is rare that more of them do,
 * since batches are closed (heap/batches.c).
 */
#define PARTITIONS_AT_ONCE 64

/* Returns the most bytes for one kind of data that waits. */
static Size
memory_of(const IndexWriter *writer)
{
	return sluice_live_index_memory() / (writer->rri->ri_RootResultRelInfo ? PARTITIONS_AT_ONCE : 1);
}

/*
 * If no row is taken back, each value of a foreign key is checked once: see
 * foreign_keys.c.
 */
static ForeignKeys *
open_foreign_keys(const IndexWriter *writer, const SluiceDuplicates *duplicates)
{
	if (!sluice_allowed.foreign_keys || writer->never || duplicates != NULL ||
		writer->cstate->transition_capture != NULL)
		return NULL;
	return sluice_foreign_keys_open(writer->rri, memory_of(writer));
}

/*
 * Opens the writer, before the first row of a table or of a partition.
 * `never`: why each row must have its entries at once, or NULL. `duplicates`
 * are searched for when all rows are in, if that is possible.
 */
IndexWriter *
sluice_index_open(ResultRelInfo *rri, EState *estate, CopyFromState cstate, CommandId cid,
				  SluiceDuplicates *duplicates, const char *never)
{
	IndexWriter *writer = palloc0(sizeof(IndexWriter));
	Relation	rel = rri->ri_RelationDesc;
	BlockNumber blocks;

	writer->rri = rri;
	writer->estate = estate;
	writer->cstate = cstate;
	writer->cid = cid;
	writer->context = CurrentMemoryContext;
	/* Not for a partition: its batch may be closed and opened again. */
	if (rri->ri_NumIndices > 0 && rri->ri_RootResultRelInfo == NULL && may_have_new_files(rel))
	{
		blocks = RelationGetNumberOfBlocks(rel);
		writer->is_private = blocks == 0;
		/* Not for a temporary table: no worker could read its indexes. */
		if (!RelationUsesLocalBuffers(rel))
			writer->had_blocks = blocks;
	}
	if (never == NULL && duplicates != NULL && !sluice_index_can_dedupe(writer, duplicates))
		never = "rows may be rejected, or be duplicates";
	if (never != NULL)
	{
		writer->is_private = false;
		writer->had_blocks = 0;
		writer->never = never;
	}
	writer->foreign_keys = open_foreign_keys(writer, duplicates);
	return writer;
}

/*
 * Whether rows must be placed in order: their TIDs then show which of two came
 * first, and which rows an index does not have yet.
 */
static bool
needs_order(const IndexWriter *writer)
{
	return writer->is_private || writer->deferred != NIL;
}

/* Whether the executor must do something for each row. */
static bool
needs_row_work(const IndexWriter *writer)
{
	const ResultRelInfo *rri = writer->rri;

	return rri->ri_NumIndices > 0 ||
		(writer->sorted && sluice_sorted_insert_waits(writer->sorted)) ||
		(rri->ri_TrigDesc != NULL &&
		 (rri->ri_TrigDesc->trig_insert_after_row ||
		  rri->ri_TrigDesc->trig_insert_new_table));
}

/*
 * Returns what the writer needs from now on, until rows are handed over again.
 */
IndexNeeds
sluice_index_needs(const IndexWriter *writer)
{
	if (needs_order(writer))
		return SLUICE_INDEX_NEEDS_ORDER;
	return writer->sorted != NULL || needs_row_work(writer) ? SLUICE_INDEX_NEEDS_ROWS : SLUICE_INDEX_NEEDS_NOTHING;
}

/*
 * Inserts the index entries of one row and queues its AFTER ROW triggers, in
 * stock COPY's order.
 */
static void
finish_row(IndexWriter *writer, TupleTableSlot *slot)
{
	ResultRelInfo *rri = writer->rri;
	List	   *recheck = NIL;
	OtherMethods *others = NULL;

	Assert(ItemPointerIsValid(&slot->tts_tid));
	if (writer->sorted)
		others = sluice_sorted_insert_row(writer->sorted, slot);
	if (others)
		recheck = sluice_other_methods_row(others, rri, slot, writer->estate);
	else if (rri->ri_NumIndices > 0)
		recheck = compat_insert_index_tuples(rri, slot, writer->estate);
	if (writer->foreign_keys == NULL || sluice_foreign_keys_need_check(writer->foreign_keys, slot))
		ExecARInsertTriggers(writer->estate, rri, slot, recheck,
							 writer->cstate->transition_capture);
	list_free(recheck);
}

/*
 * More rows will come than one batch. Entries of indexes that other sessions
 * can reach may wait to be sorted from now on.
 */
static void
start_sorted_inserts(IndexWriter *writer)
{
	MemoryContext old;

	if (writer->sorted || writer->is_private || writer->never || writer->rri->ri_NumIndices == 0)
		return;
	old = MemoryContextSwitchTo(writer->estate->es_query_cxt);
	writer->sorted = sluice_sorted_insert_open(writer->rri, writer->cstate, memory_of(writer));
	MemoryContextSwitchTo(old);
}

/*
 * The rows up to this one are in the table and its indexes. If a table that
 * had rows is ours alone and has grown enough, some indexes are left for the
 * end.
 */
static void
consider_merge(IndexWriter *writer, const ItemPointerData *last)
{
	List	   *ascending = NIL;

	if (!sluice_index_outgrows(writer, last))
		return;
	if (writer->sorted)
	{
		ascending = sluice_sorted_insert_ascending(writer->sorted);
		sluice_sorted_insert_close(writer->sorted);
		writer->sorted = NULL;
	}
	sluice_index_start_merge(writer, ascending);
	start_sorted_inserts(writer);
}

/*
 * Returns how many of the rows are handled together: those of one page if the
 * executor must do something for each row, else those of all consecutive
 * pages.
 */
static int
rows_together(const NewRows *rows, int first, bool row_work)
{
	int			end = first + 1;

	while (end < rows->count)
	{
		BlockNumber last = ItemPointerGetBlockNumber(&rows->placed[end - 1].tid);
		BlockNumber block = ItemPointerGetBlockNumber(&rows->placed[end].tid);

		if (block != last && (row_work || block != last + 1))
			break;
		end++;
	}
	return end - first;
}

/* Returns the row in a slot that triggers and indexes can read. */
static TupleTableSlot *
slot_of(const NewRows *rows, int i)
{
	return rows->slots ? rows->slots[i] : rows->store(rows->slot, &rows->placed[i]);
}

/*
 * These rows have just been inserted into the table, in this order, and are in
 * no index yet. An error names the line of its row.
 */
void
sluice_index_rows(IndexWriter *writer, const NewRows *rows)
{
	uint64	   *line = &writer->cstate->cur_lineno;
	bool		deferred = needs_order(writer);
	bool		row_work;
	int			count;

	Assert(rows->count > 0);
	if (rows->many)
		start_sorted_inserts(writer);
	if (writer->sorted)
		sluice_sorted_insert_rows(writer->sorted, rows->placed, rows->count, line);
	row_work = needs_row_work(writer);
	for (int first = 0; first < rows->count && (deferred || row_work); first += count)
	{
		count = rows_together(rows, first, row_work);
		if (deferred)
			sluice_index_defer_rows(writer, rows->placed + first, count, rows->count - first);
		/* Some indexes may have been left for the end: check again. */
		row_work = needs_row_work(writer);
		for (int i = first; i < first + count && row_work; i++)
		{
			*line = rows->placed[i].line;
			finish_row(writer, slot_of(rows, i));
			if (rows->slots == NULL)
				ExecClearTuple(rows->slot);
		}
		ResetPerTupleExprContext(writer->estate);
	}
	if (writer->foreign_keys)
		sluice_foreign_keys_rest(writer->foreign_keys);
	consider_merge(writer, &rows->placed[rows->count - 1].tid);
}

/*
 * All rows are in. Inserts the waiting entries, and builds the indexes that
 * were left for the end, with `workers` workers, or with `most` if the indexes
 * need no more memory for that: see sluice_index_finish_deferred().
 */
void
sluice_index_finish(IndexWriter *writer, int workers, int most)
{
	if (writer->sorted)
		sluice_sorted_insert_close(writer->sorted);
	writer->sorted = NULL;
	if (writer->foreign_keys)
		sluice_foreign_keys_close(writer->foreign_keys, false);
	sluice_index_finish_deferred(writer, workers, most);
}

/*
 * Reports what became of the indexes, for the view pgsluice.last_copy.
 * `writer` is NULL if the rows went to partitions.
 */
void
sluice_index_explain(const IndexWriter *writer, ResultRelInfo *rri, uint64 rows)
{
	const char *because = "no partition got many rows";

	if (writer)
		because = writer->never ? writer->never :
			writer->is_private ? "the table is small" : "the load is small";
	sluice_index_uses_close(rri, rows, because);
}

/*
 * Frees the writer. Waiting entries are lost if sluice_index_finish() was not
 * called.
 */
void
sluice_index_close(IndexWriter *writer)
{
	ListCell   *lc;

	foreach(lc, writer->kept_open)
		index_close(lfirst(lc), RowExclusiveLock);
	if (writer->foreign_keys)
		sluice_foreign_keys_close(writer->foreign_keys, true);
	pfree(writer);
}
