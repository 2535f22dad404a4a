/*
 * Indexes of a table that only this transaction can reach. Once a COPY has
 * made the table grow beyond a few pages, B-trees that the core can sort get
 * no more entries. They are rebuilt from all rows after the last one is in.
 *
 * A table is private if this transaction has created or truncated it, or has
 * locked it against everybody, and if it was empty when the COPY began. For a
 * table that had rows, see index/merge.c.
 *
 * WHY NOTHING CAN MISS THE ENTRIES meanwhile. Other transactions cannot open
 * the table. The rows are invisible to the command that inserts them, unless
 * they are frozen. AFTER triggers wait until the indexes are complete. Where a
 * volatile CHECK constraint or condition may read the table, or with FREEZE a
 * stable one, no entries wait (checks_why_not() in copy/decide.c). There
 * remains a function that the COPY calls and that runs its own commands on the
 * table. If it inserts rows, it uses an index that lacks entries of the COPY's
 * rows, but it can see none of these rows. The executor inserts the entries of the
 * function's rows. The build at the end takes all rows of the table, also
 * those of other commands of the transaction (`disturbed`), and finds a key
 * that two of them have.
 *
 * A NEW FILE.  An index is not filled: it gets a new file (relfilenumber), as
 * TRUNCATE gives one. So a rollback, also one to a savepoint, restores the old
 * file with all its contents, and an error in the middle of the build leaves
 * nothing to repair. Crash recovery needs nothing else. For the new file, see
 * page_writer.c. The old file is removed at the commit, by the commit record
 * itself.
 *
 * KEYS IN ORDER.  If the only index that could be built is a unique one whose
 * keys may ascend, a serial key above all, leaves are appended to it as rows
 * come in (unique_append.c), which takes less time than a build. As long as
 * each batch has keys above those of the index, this rejects no row, so it does
 * not matter that indexes which cannot be built wait (`late`). With the first
 * batch that has not, the index waits for the end, and is built from all rows:
 * what was appended is in the file that is replaced. If the file cannot be
 * replaced then, only the rows from that batch on get entries. Leaves are only
 * appended to files that are new in the subtransaction: a rollback removes
 * them.
 *
 * UNLOGGED tables are taken only if their files are new in this transaction:
 * may_have_new_files() in writer.c gives the reason.
 *
 * SEVERAL INDEXES.  If an index that waits is unique, all indexes that check
 * immediately wait with it (`late`). Of two rows to be rejected, stock COPY
 * reports the one that comes first, and this is only known when all indexes
 * are built.
 *
 * REJECTED ROWS.  A duplicate key is rejected with stock COPY's error. It
 * names the line of the first row in the input that has a duplicate key, and a
 * hint names the line that had the key before. All indexes are built before a
 * row is rejected. Each index records its first conflict, and the one of the
 * earliest row is raised. Before that, the other indexes get the entries of
 * the rows up to it, because they might reject one of those.
 *
 * If the core cannot build an index, the stock build does. Its errors have
 * other messages, and it checks rows in key order. So if it rejects a row,
 * entries are inserted row after row, as stock COPY inserts them, until the
 * row is rejected in that way.
 *
 * Locks: an index that is left for the end stays open, with the executor's
 * RowExclusiveLock, until the COPY ends, except while it is completed. So a
 * function or a trigger that drops or rebuilds it is refused, as during stock
 * COPY. The build takes AccessExclusiveLock, as REINDEX does. If something
 * else in the session has the index open then (a cursor), its file is not
 * replaced, and its entries are inserted one by one.
 *
 * SERIALIZABLE transactions may have read a part of the index before. Their
 * predicate locks are moved to the whole table. The conflict check is made at
 * once, because no insertion into the index will make it.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/backend_status.h"
#include "utils/memutils.h"

/*
 * Up to this many blocks of the table, single entries are cheaper than a new
 * file.
 */
#define SMALL_TABLE 256

/* No row up to this many bytes has a value that needs the stock build. */
#define LONG_ROW 500

/*
 * Whether the index can be built at the end. If not, *because is the reason;
 * otherwise it is NULL.
 */
bool
sluice_index_can_wait(Relation heap, Relation index, IndexInfo *info, const char **because)
{
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];

	return sluice_index_way(heap, index, info, true, attributes, because) != SLUICE_INDEX_ROWS;
}

/* The index to which leaves are appended, or were for a while. */
typedef struct AppendedIndex
{
	Oid			index;
	UniqueAppend *append;		/* NULL: no more are appended */
	IndexUse   *taken;
} AppendedIndex;

/*
 * Whether the files of a table and its indexes are new in the current
 * subtransaction. If it fails, nothing is left of entries in them. Otherwise
 * dead entries would be left, as after stock COPY, and make the next load slow.
 */
static bool
files_are_new(Relation rel)
{
	SubTransactionId current = GetCurrentSubTransactionId();

	return rel->rd_createSubid == current || rel->rd_firstRelfilelocatorSubid == current;
}

/*
 * Begins to append leaves to index `i`, if it is the only one that waits and
 * its keys may ascend. Where duplicates are searched for, the build finds them.
 */
static bool
start_append(IndexWriter *load, int i, int waiting)
{
	Relation	heap = load->rri->ri_RelationDesc;
	Relation	index = load->rri->ri_IndexRelationDescs[i];
	IndexInfo  *info = load->rri->ri_IndexRelationInfo[i];
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
	const char *because;
	IndexStrategy way = sluice_index_way(heap, index, info, true, attributes, &because);

	if (!load->is_private || load->duplicates || !files_are_new(heap) ||
		sluice_index_way_beside(way, waiting) != SLUICE_INDEX_LEAVES)
		return false;
	load->appended = palloc0(sizeof(AppendedIndex));
	load->appended->index = RelationGetRelid(index);
	load->appended->taken = sluice_index_take(index, SLUICE_INDEX_LEAVES, NULL);
	load->appended->append = sluice_unique_append_open(heap, index, info, attributes,
													   sluice_live_index_memory(), true, load->appended->taken);
	return true;
}

/* Appends no more leaves. Returns whether some were, up to now. */
static bool
end_append(IndexWriter *load)
{
	if (load->appended == NULL || load->appended->append == NULL)
		return false;
	sluice_unique_append_close(load->appended->append);
	load->appended->append = NULL;
	return true;
}

/*
 * Appends the entries of these rows, which are in no index yet. If their keys
 * are not above those of the index, or cannot be compared here, the index
 * waits from now on.
 */
static void
append_rows(IndexWriter *load, const PlacedRow *rows, int count)
{
	AppendedIndex *appended = load->appended;
	MemoryContext old;

	if (appended->append == NULL ||
		sluice_unique_append_rows(appended->append, rows, count, &load->cstate->cur_lineno))
		return;
	old = MemoryContextSwitchTo(load->context);
	end_append(load);
	load->apart = load->used;
	appended->taken->rows[SLUICE_INDEX_LEAVES] = 0;
	appended->taken->way = SLUICE_INDEX_BUILD;
	load->deferred = lappend_oid(load->deferred, appended->index);
	MemoryContextSwitchTo(old);
}

/*
 * Whether index `i` of the table can be left for the end. If not, *because is
 * the reason.
 */
static bool
waits(const IndexWriter *load, int i, const char **because)
{
	Relation	index = load->rri->ri_IndexRelationDescs[i];

	return sluice_index_can_wait(load->rri->ri_RelationDesc, index,
								 load->rri->ri_IndexRelationInfo[i], because) &&
		(load->is_private || sluice_index_can_merge(load, index));
}

/*
 * Removes the indexes that can wait from those that get an entry for each row.
 * If one of them is unique, the others that check immediately wait as well: of
 * two rows to be rejected, stock COPY reports the one that comes first.
 */
static void
defer(IndexWriter *load)
{
	ResultRelInfo *rri = load->rri;
	MemoryContext old = MemoryContextSwitchTo(load->context);
	bool	   *can = palloc(sizeof(bool) * rri->ri_NumIndices);
	const char **because = palloc(sizeof(char *) * rri->ri_NumIndices);
	bool		unique = false;
	int			waiting = 0;
	int			kept = 0;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		can[i] = waits(load, i, &because[i]);
		waiting += can[i];
		unique |= can[i] && rri->ri_IndexRelationDescs[i]->rd_index->indisunique;
	}
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		Relation	index = rri->ri_IndexRelationDescs[i];
		bool		appends = can[i] && start_append(load, i, waiting);

		if (!appends && (can[i] || load->is_private))
			sluice_index_take(index, !can[i] ? SLUICE_INDEX_ROWS : load->is_private ?
							  SLUICE_INDEX_BUILD : SLUICE_INDEX_MERGE, because[i]);
		if (can[i] || (unique && index->rd_index->indimmediate))
		{
			if (can[i] && !appends)
				load->deferred = lappend_oid(load->deferred, RelationGetRelid(index));
			else if (!can[i])
			{
				load->late = lappend_oid(load->late, RelationGetRelid(index));
				if (load->merges)
					sluice_index_take(index, SLUICE_INDEX_ROWS, "another index that checks waits");
			}
			compat_index_cleanup(index, rri->ri_IndexRelationInfo[i]);
			load->kept_open = lappend(load->kept_open, index);
			continue;
		}
		rri->ri_IndexRelationDescs[kept] = index;
		rri->ri_IndexRelationInfo[kept] = rri->ri_IndexRelationInfo[i];
		kept++;
	}
	rri->ri_NumIndices = kept;
	MemoryContextSwitchTo(old);
}

/*
 * A table that had rows has grown so much that it is faster to rewrite its
 * indexes, except those whose new entries come after all others. Returns false
 * if none is rewritten.
 */
bool
sluice_index_start_merge(IndexWriter *load, List *ascending)
{
	const char *because;

	load->ascending = ascending;
	load->had_blocks = 0;
	load->decided = true;
	load->merges = true;
	for (int i = 0; i < load->rri->ri_NumIndices; i++)
	{
		/* If one unique index waits, all that check must wait. */
		if (load->rri->ri_IndexRelationDescs[i]->rd_index->indisunique &&
			waits(load, i, &because))
			load->ascending = NIL;
	}
	defer(load);
	return load->deferred != NIL;
}

/*
 * Called when these rows are in the table, but in no index yet, like those
 * that follow: `left` rows altogether.
 */
void
sluice_index_defer_rows(IndexWriter *load, const PlacedRow *rows, int count, int left)
{
	for (int i = 0; i < count; i++)
		load->has_long_rows |= rows[i].len > LONG_ROW;
	if (!load->decided &&
		(load->duplicates ||
		 RelationGetNumberOfBlocks(load->rri->ri_RelationDesc) > sluice_threshold(SMALL_TABLE)))
	{
		load->decided = true;
		load->first_waiting = load->apart = load->used;
		defer(load);
	}
	if (load->appended && load->ahead == 0)
	{
		append_rows(load, rows, left);
		load->ahead = left;
	}
	load->ahead -= Min(load->ahead, count);
	if (!load->decided || load->deferred != NIL || load->appended)
		sluice_index_note_rows(load, rows, count);
	load->waited += count;
}

/* ----------------------------------------------------------------
 * Index entries one by one, for rows of a COPY that are in the table already:
 * for indexes that were to be built at the end and now cannot be.
 * ----------------------------------------------------------------
 */

typedef struct EntryScan
{
	IndexWriter *load;
	ItemPointerData first;		/* the first row that gets entries */
	ItemPointer end;			/* the last such row, or NULL */
	int			of_end;			/* how many of the indexes get an entry of that row */
	TupleTableSlot *slot;
	int			batch;			/* the batch that has the next row's line */
	int			row;
} EntryScan;

/*
 * The command that has inserted a tuple of this transaction. The rows of
 * FREEZE are frozen, and HeapTupleHeaderGetCmin() is not for those. They never
 * have a combo command ID.
 */
static CommandId
inserted_by(HeapTupleHeader header)
{
	return (header->t_infomask & HEAP_COMBOCID) != 0 ?
		HeapTupleHeaderGetCmin(header) : HeapTupleHeaderGetRawCommandId(header);
}

/* Whether this COPY has inserted the tuple since entries began to wait. */
static bool
is_ours(EntryScan *scan, HeapTuple tuple)
{
	IndexWriter *load = scan->load;

	return ItemPointerCompare(&tuple->t_self, &scan->first) >= 0 &&
		(scan->end == NULL || ItemPointerCompare(&tuple->t_self, scan->end) <= 0) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tuple->t_data)) &&
		inserted_by(tuple->t_data) == load->cid;
}

/*
 * The line of the next row, or 0 if it is unknown. The table has the rows in
 * input order.
 */
static uint64
next_line(EntryScan *scan)
{
	const InsertedRows *rows = &scan->load->batches[scan->batch];
	uint64		line = sluice_index_line_in(rows, scan->row);

	if (++scan->row == rows->count)
	{
		scan->batch++;
		scan->row = 0;
	}
	return line;
}

/*
 * Inserts the entries of one row, in all indexes that are open for it. The row
 * at `end` gets entries only in the indexes that stock COPY would have
 * inserted into before the error.
 */
static void
insert_entry(EntryScan *scan, HeapTuple tuple)
{
	IndexWriter *load = scan->load;

	if (scan->batch == load->used)
		elog(ERROR, "pgsluice: the table has more rows than were inserted");
	load->cstate->cur_lineno = next_line(scan);
	if (scan->end && ItemPointerEquals(&tuple->t_self, scan->end))
		load->rri->ri_NumIndices = scan->of_end;
	ExecStoreHeapTuple(tuple, scan->slot, false);
	list_free(compat_insert_index_tuples(load->rri, scan->slot, load->estate));
	ResetPerTupleExprContext(load->estate);
}

/*
 * Inserts the entries of a page's rows. Works on a copy of the page, because
 * an insertion into an index must not be made while a page of the table is
 * locked.
 */
static void
insert_page(EntryScan *scan, BlockNumber block)
{
	Relation	rel = scan->load->rri->ri_RelationDesc;
	Buffer		buffer = ReadBuffer(rel, block);
	PGAlignedBlock copy;
	HeapTupleData tuple;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy.data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	tuple.t_tableOid = RelationGetRelid(rel);
	for (OffsetNumber offset = FirstOffsetNumber;
		 offset <= PageGetMaxOffsetNumber((Page) copy.data); offset++)
	{
		ItemId		item = PageGetItemId((Page) copy.data, offset);

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem((Page) copy.data, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, block, offset);
		if (is_ours(scan, &tuple))
			insert_entry(scan, &tuple);
	}
}

/*
 * Opens the indexes for insertions into the table, in the order in which those
 * use them.
 */
static void
open_indexes(EntryScan *scan, List *indexes, Oid refuses)
{
	ResultRelInfo *rri = scan->load->rri;
	ListCell   *lc;

	list_sort(indexes, list_oid_cmp);
	rri->ri_NumIndices = 0;
	rri->ri_IndexRelationDescs = palloc(sizeof(Relation) * list_length(indexes));
	rri->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * list_length(indexes));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), RowExclusiveLock);

		if (lfirst_oid(lc) < refuses)
			scan->of_end++;
		rri->ri_IndexRelationDescs[rri->ri_NumIndices] = index;
		rri->ri_IndexRelationInfo[rri->ri_NumIndices++] = BuildIndexInfo(index);
	}
}

/*
 * Inserts the entries of the COPY's rows from the first row of a batch on,
 * with stock COPY's errors. If `end` is not NULL, it is the last row, which
 * the index `refuses` rejects: indexes that come before that one get its
 * entries too.
 */
static void
insert_entries(IndexWriter *load, List *indexes, int batch, ItemPointer end,
							Oid refuses)
{
	ResultRelInfo *rri = load->rri;
	ResultRelInfo saved = *rri;
	EntryScan	scan = {.load = load,.first = load->batches[batch].first,.end = end,.batch = batch};
	BlockNumber blocks = RelationGetNumberOfBlocks(rri->ri_RelationDesc);

	open_indexes(&scan, indexes, refuses);
	scan.slot = MakeSingleTupleTableSlot(RelationGetDescr(rri->ri_RelationDesc), &TTSOpsHeapTuple);
	load->cstate->line_buf_valid = false;
	for (BlockNumber block = ItemPointerGetBlockNumber(&scan.first);
		 block < blocks && (end == NULL || block <= ItemPointerGetBlockNumber(end)); block++)
	{
		CHECK_FOR_INTERRUPTS();
		insert_page(&scan, block);
	}
	ExecDropSingleTupleTableSlot(scan.slot);
	rri->ri_NumIndices = list_length(indexes);
	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		compat_index_cleanup(rri->ri_IndexRelationDescs[i], rri->ri_IndexRelationInfo[i]);
		index_close(rri->ri_IndexRelationDescs[i], RowExclusiveLock);
	}
	rri->ri_NumIndices = saved.ri_NumIndices;
	rri->ri_IndexRelationDescs = saved.ri_IndexRelationDescs;
	rri->ri_IndexRelationInfo = saved.ri_IndexRelationInfo;
}

/* ----------------------------------------------------------------
 * A duplicate key, found when the indexes of a COPY are built at its end: the
 * row that stock COPY would have rejected.
 * ----------------------------------------------------------------
 */

/* Raises stock COPY's error for the row that has a duplicate key. */
static void
raise_conflict(IndexWriter *load, const SluiceIndexBuilt *built)
{
	Relation	index = index_open(built->index, AccessShareLock);
	IndexTuple	tuple = (IndexTuple) built->tuple;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		line = sluice_index_line_of(load, &tuple->t_tid);
	uint64		earlier = sluice_index_line_of(load, (ItemPointer) &built->earlier);
	char	   *key;

	load->cstate->line_buf_valid = false;
	load->cstate->cur_lineno = line;
	index_deform_tuple(tuple, RelationGetDescr(index), values, isnull);
	key = BuildIndexValueDescription(index, values, isnull);
	/* The message is that of _bt_check_unique(). */
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					RelationGetRelationName(index)),
			 key ? errdetail("Key %s already exists.", key) : 0,
			 line && earlier ? errhint("The key is first in line " UINT64_FORMAT " and again in line " UINT64_FORMAT ".",
									   earlier, line) : 0,
			 errtableconstraint(load->rri->ri_RelationDesc,
								RelationGetRelationName(index))));
}

/*
 * The index in which the first row has a duplicate key, or NULL. If several
 * reject the same row, the one that stock COPY would have inserted into first.
 */
static SluiceIndexBuilt *
first_conflict(SluiceIndexBuilt *built, int count)
{
	SluiceIndexBuilt *first = NULL;

	for (int i = 0; i < count; i++)
	{
		int			order = 0;

		if (!built[i].conflict)
			continue;
		if (first)
			order = ItemPointerCompare(&((IndexTuple) built[i].tuple)->t_tid,
									   &((IndexTuple) first->tuple)->t_tid);
		if (first == NULL || order < 0 || (order == 0 && built[i].index < first->index))
			first = &built[i];
	}
	return first;
}

/* ----------------------------------------------------------------
 * The end of a COPY that has left indexes for it: they are built from all
 * rows. An index that is rebuilt gets a new file, so that a rollback to a
 * savepoint restores the old one.
 *
 * A duplicate key is rejected with stock COPY's error. It names the line of
 * the first row in the input that has a duplicate key, and a hint names the
 * line that had the key before.
 *
 * If the core cannot build an index, the stock build does. Its errors have
 * other messages, and it checks rows in key order. So if it rejects a row,
 * entries are inserted row after row, as stock COPY inserts them, until the
 * row is rejected in that way.
 * ----------------------------------------------------------------
 */

/*
 * Gives the index a new and empty file, which the end of the transaction keeps
 * or removes. Records where the old one is. Returns false if something that
 * the COPY ran has the index open. Also returns false if the index is unique
 * and its keys may be too long for the core to sort; that does not matter
 * where duplicates are not rejected.
 */
static bool
empty_index(IndexWriter *load, Oid indexid, SluiceIndexOld *old)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(indexid, AccessExclusiveLock);
	bool		can = index->rd_refcnt == 1 &&
		!(index->rd_index->indisunique && load->has_long_rows && load->duplicates == NULL &&
		  sluice_index_has_long_keys(index));

	if (can)
	{
		if (old)
			sluice_index_old_file(load, index, old);
		/*
		 * No insertion has checked for conflicts with transactions that have
		 * read a part of the index, so check now.
		 */
		TransferPredicateLocksToHeapRelation(index);
		CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
		compat_set_new_file(index, rel->rd_rel->relpersistence);
	}
	else
		sluice_index_take(index, SLUICE_INDEX_ROWS,
						  "another command has it open, or keys may be too long to sort");
	index_close(index, NoLock);
	return can;
}

/*
 * Updates the catalogs for an index that is built. If the core could not build
 * it, runs the stock build.
 */
static void
complete_index(IndexWriter *load, SluiceIndexBuilt *built)
{
	Relation	index = index_open(built->index, NoLock);

	if (built->fit)
		sluice_index_complete(load->rri->ri_RelationDesc, index, built);
	else
		compat_index_build(load->rri->ri_RelationDesc, index);
	if (built->fit && built->old.blocks > 0)
		sluice_index_take(index, SLUICE_INDEX_MERGE, NULL)->rows[SLUICE_INDEX_MERGE] = load->waited;
	else if (load->merges || !built->fit)
		sluice_index_take(index, SLUICE_INDEX_BUILD, built->fit ? NULL : built->report.reason);
	index_close(index, NoLock);
}

typedef struct ServerBuild
{
	IndexWriter *load;
	SluiceIndexBuilt *built;
} ServerBuild;

/* The work of a subtransaction. */
static void
run_server_build(void *arg)
{
	ServerBuild *build = arg;

	complete_index(build->load, build->built);
}

/*
 * Lets the stock build do the index. If it rejects a row for a reason that
 * stock COPY has too, everything it did is rolled back, and the error is
 * returned. Returns NULL if it succeeds. Other errors are raised.
 */
static ErrorData *
build_by_server(IndexWriter *load, SluiceIndexBuilt *built)
{
	ServerBuild build = {.load = load, .built = built};
	ErrorData  *refusal = sluice_in_subtransaction(run_server_build, &build);

	if (refusal == NULL)
		sluice_index_note_stock_build(&built->report);
	else if (refusal->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
			 refusal->sqlerrcode != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
		ReThrowError(refusal);
	return refusal;
}

/* Gives the index another new file, with a tree that has no entries. */
void
sluice_index_empty_tree(IndexWriter *load, Oid indexid)
{
	Relation	index = index_open(indexid, NoLock);

	compat_set_new_file(index, load->rri->ri_RelationDesc->rd_rel->relpersistence);
	sluice_page_writer_close(sluice_page_writer_open(index), P_NONE, 0,
							  _bt_allequalimage(index, true));
	index_close(index, NoLock);
}

/*
 * Prepares the indexes that were not built to get entries one by one, as the
 * others do. Returns all of them. They lack what a merge would have copied
 * from the old files: they only serve to find the row that is rejected.
 */
static List *
begin_entries(IndexWriter *load, const SluiceIndexBuilt *built, int count, List *others)
{
	List	   *unfit = NIL;

	for (int i = 0; i < count; i++)
	{
		if (built[i].fit)
			continue;
		sluice_index_empty_tree(load, built[i].index);
		unfit = lappend_oid(unfit, built[i].index);
	}
	/*
	 * The first rows have entries in all other indexes, and had them in the
	 * old files of these.
	 */
	if (unfit != NIL && load->first_waiting > 0)
		insert_entries(load, unfit, 0, &load->batches[load->first_waiting].first,
									InvalidOid);
	return list_concat(others, unfit);
}

/*
 * Adds an index to those to be built. Indexes whose keys take longer to sort
 * come first.
 */
static void
list_built(SluiceIndexBuilt *built, int count, Oid indexid, const SluiceIndexOld *old)
{
	Relation	index = index_open(indexid, NoLock);
	bool		long_keys = sluice_index_has_long_keys(index);

	index_close(index, NoLock);
	built[count].index = indexid;
	built[count].old = *old;
	built[count].long_keys = long_keys;
	for (int i = count; long_keys && i > 0 && !built[i - 1].long_keys; i--)
	{
		SluiceIndexBuilt shorter = built[i - 1];

		built[i - 1] = built[i];
		built[i] = shorter;
	}
}

/* Moves this index to the front. Returns false if it is not to be built. */
static bool
put_first(SluiceIndexBuilt *built, int count, Oid index)
{
	int			at = 0;
	SluiceIndexBuilt first;

	while (at < count && built[at].index != index)
		at++;
	if (at == count)
		return false;
	first = built[at];
	memmove(&built[1], &built[0], sizeof(SluiceIndexBuilt) * at);
	built[0] = first;
	return true;
}

/*
 * Called when a merge has found duplicate keys. They are real only if the rows
 * of these entries are live, which the old file does not show. So the index is
 * built again, from the table.
 */
static void
rebuild_from_table(IndexWriter *load, SluiceIndexBuilt *built)
{
	Relation	rel = load->rri->ri_RelationDesc;
	Relation	index = index_open(built->index, NoLock);

	compat_set_new_file(index, rel->rd_rel->relpersistence);
	index_close(index, NoLock);
	built->old.blocks = 0;
	(void) sluice_index_build_all(rel, built, 1, 0, NULL);
}

/* Builds all indexes. Returns how many workers helped. */
static int
build_all(IndexWriter *load, SluiceIndexBuilt *built, int count, int workers)
{
	Relation	rel = load->rri->ri_RelationDesc;
	int			settled = 0;

	if (load->duplicates)
	{
		sluice_dedupe(load, built);
		settled = 1;
	}
	if (count > settled)
		workers = sluice_index_build_all(rel, built + settled, count - settled, workers, NULL);
	for (int i = 0; i < count; i++)
	{
		if (built[i].conflict && built[i].old.blocks > 0)
			rebuild_from_table(load, &built[i]);
	}
	return workers;
}

/*
 * Completes all indexes: the server completes those that are built, builds
 * those that are not, and the late ones get their entries. If rows are to be
 * rejected, raises the error of the first one.
 */
static void
complete(IndexWriter *load, SluiceIndexBuilt *built, int count, List *others, int workers)
{
	SluiceIndexBuilt *conflict = first_conflict(built, count);
	ErrorData  *refusal = NULL;

	for (int i = 0; i < count && conflict == NULL && refusal == NULL; i++)
	{
		if (!built[i].fit)
			refusal = build_by_server(load, &built[i]);
	}
	if (conflict || refusal)
		others = begin_entries(load, built, count, others);
	if (others)
		insert_entries(load, others, load->first_waiting,
									conflict ? &((IndexTuple) conflict->tuple)->t_tid : NULL,
									conflict ? conflict->index : InvalidOid);
	if (conflict)
		raise_conflict(load, conflict);
	if (refusal)
		ReThrowError(refusal);
	for (int i = 0; i < count; i++)
	{
		if (!built[i].fit)
			continue;
		built[i].report.workers = workers;
		complete_index(load, &built[i]);
	}
}

/* What pg_stat_progress_copy shows, saved. */
typedef struct CopyProgress
{
	bool		shown;
	Oid			relid;
	int			params[PGSTAT_NUM_PROGRESS_PARAM];
	int64		values[PGSTAT_NUM_PROGRESS_PARAM];
} CopyProgress;

/* From now on, pg_stat_progress_create_index shows the statement. */
static void
begin_progress(IndexWriter *load, CopyProgress *copy)
{
	Relation	rel = load->rri->ri_RelationDesc;

	copy->shown = MyBEEntry && MyBEEntry->st_progress_command == PROGRESS_COMMAND_COPY;
	if (!copy->shown)
		return;
	copy->relid = MyBEEntry->st_progress_command_target;
	for (int i = 0; i < PGSTAT_NUM_PROGRESS_PARAM; i++)
	{
		copy->params[i] = i;
		copy->values[i] = MyBEEntry->st_progress_param[i];
	}
	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX, RelationGetRelid(rel));
	pgstat_progress_update_param(PROGRESS_CREATEIDX_COMMAND, PROGRESS_CREATEIDX_COMMAND_CREATE);
}

/* Now pg_stat_progress_copy shows it again. */
static void
end_progress(const CopyProgress *copy)
{
	if (!copy->shown)
		return;
	pgstat_progress_start_command(PROGRESS_COMMAND_COPY, copy->relid);
	pgstat_progress_update_multi_param(PGSTAT_NUM_PROGRESS_PARAM, copy->params, copy->values);
}

/*
 * Whether one of the indexes has values to be ranked, which takes memory for
 * each value.
 */
static bool
any_is_ranked(Relation heap, const SluiceIndexBuilt *built, int count)
{
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
	bool		ranked = false;

	for (int i = 0; i < count; i++)
	{
		Relation	index = index_open(built[i].index, NoLock);

		if (sluice_index_shape(heap, index, false, attributes) != NULL)
			ranked = true;
		for (int k = 0; k < IndexRelationGetNumberOfKeyAttributes(index) && !ranked; k++)
			ranked = attributes[k].order == SLUICE_ORDER_RANKED;
		index_close(index, NoLock);
	}
	return ranked;
}

/*
 * Inserts the missing entries into the index that leaves were appended to,
 * which cannot get a new file. An error names a row with a duplicate key in
 * this index, whatever others find.
 */
static void
insert_rest(IndexWriter *load)
{
	insert_entries(load, list_make1_oid(load->appended->index), load->apart, NULL, InvalidOid);
}

/* Completes the indexes that have waited. */
static void
finish_waiting(IndexWriter *load, int workers, int most)
{
	SluiceIndexBuilt *built;
	List	   *others = list_copy(load->late);
	int			count = 0;
	ListCell   *lc;
	CopyProgress copy;

	built = palloc0(sizeof(SluiceIndexBuilt) * list_length(load->deferred));
	foreach(lc, load->deferred)
	{
		SluiceIndexOld old = {.blocks = 0};

		if (empty_index(load, lfirst_oid(lc), load->merges && !load->disturbed ? &old : NULL))
			list_built(built, count++, lfirst_oid(lc), &old);
		else if (load->appended && load->appended->index == lfirst_oid(lc))
			insert_rest(load);
		else
			others = lappend_oid(others, lfirst_oid(lc));
	}
	if (load->duplicates && !put_first(built, count, sluice_index_arbiter(load)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the index that finds duplicates is being used by active queries in this session")));
	begin_progress(load, &copy);
	if (most > workers && !any_is_ranked(load->rri->ri_RelationDesc, built, count))
		workers = most;
	workers = build_all(load, built, count, workers);
	complete(load, built, count, others, workers);
	end_progress(&copy);
}

/* Closes the indexes that wait. ExecOpenIndices() has taken the lock. */
static void
close_waiting(IndexWriter *load)
{
	ListCell   *lc;

	foreach(lc, load->kept_open)
		index_close(lfirst(lc), RowExclusiveLock);
	list_free(load->kept_open);
	load->kept_open = NIL;
}

/*
 * Opens these indexes again, with the executor's lock, for the triggers that
 * follow. sluice_index_close() closes them.
 */
static void
open_again(IndexWriter *load, List *indexes)
{
	MemoryContext old = MemoryContextSwitchTo(load->context);
	ListCell   *lc;

	foreach(lc, indexes)
		load->kept_open = lappend(load->kept_open, index_open(lfirst_oid(lc), RowExclusiveLock));
	MemoryContextSwitchTo(old);
}

/*
 * Called when all rows are in the table, and only once if indexes have waited:
 * completes these, with `workers` workers. Uses `most` if the indexes can do
 * with less memory for each worker. Ranked values cannot: if they do not fit
 * into it, they take twice as long.
 */
void
sluice_index_finish_deferred(IndexWriter *load, int workers, int most)
{
	bool		appended = end_append(load);

	Assert(load->sorted == NULL && load->ahead == 0);
	/*
	 * If the command ID has changed, another command may have put rows into
	 * the table.
	 */
	load->disturbed = GetCurrentCommandId(false) != load->cid;
	if ((load->deferred == NIL && load->late == NIL) || load->used == 0)
		return;
	close_waiting(load);
	finish_waiting(load, workers, most);
	open_again(load, load->deferred);
	open_again(load, load->late);
	if (appended)
		open_again(load, list_make1_oid(load->appended->index));
}
