/*
 * Indexes of a table that other sessions can reach. The entries of many rows
 * are sorted before they are inserted, so that all entries of one leaf are
 * merged into it at once (index/btree_merge.c). Entries that come after all
 * that the index has are added as whole leaves. As long as no entries of a
 * unique index wait, those of a batch of rows may go in as whole leaves when
 * the rows are inserted (index/unique_append.c).
 *
 * Entries wait only for B-trees over plain columns, and only if they cannot be
 * too large. All others are inserted with the row, in the order and with the
 * errors of stock COPY. Entries of GIN and hash
 * indexes are extracted with the row and may wait from then on:
 * other_methods.c. A waiting entry can be rejected for only one reason that is
 * about its row: the key of a unique index is there already. Then the row that
 * stock COPY would reject is rejected (index/first_refusal.c). All other
 * failures are not about a row: disk space, a cancel, a serialization failure.
 *
 * WHO MIGHT MISS AN ENTRY THAT WAITS.  Other transactions do not see the rows
 * before the commit, and all entries are in by the end of the command. A
 * transaction that inserts the same key before our entry is in comes first, as
 * it might have without us. AFTER triggers run when the command has finished,
 * and find the entries. A volatile function that the COPY calls in between may
 * see rows of earlier batches, because its statements advance the command
 * counter. So with volatile CHECK constraints and trigger conditions no entry
 * waits (`never` in writer.c). With other volatile functions stock COPY does
 * the work (copy/decide.c). Before a BEFORE trigger runs that a partition has
 * got in the meantime, all entries are inserted (heap/batches.c). Stable and
 * immutable functions use the snapshot of the command, which does not show its
 * rows. With FREEZE it does, so stable functions count as volatile there.
 *
 * WAITING FOR OTHERS.  If another transaction has the key and is not finished,
 * we wait for it as soon as the entry's turn comes, with no page locked. Loads
 * of the same rows insert the keys in the same order, that of the index, so
 * one of them waits and the other one continues.
 *
 * LOCKS.  No page is locked in this file. Each call that inserts
 * (btree_merge.c, btree_append.c, unique_append.c, index_insert()) locks what
 * it changes, and releases it before it returns. So whatever may take long, or
 * raise an error for a row, is done here between two calls: waiting for a
 * transaction, searching for the row to reject, a cancel. The locks of the
 * table and its indexes are COPY's own, RowExclusiveLock, until the end of the
 * transaction.
 *
 * AFTER A CRASH, or an error, some of the entries are in and others are not.
 * All of them are of rows whose transaction has not committed. Stock COPY
 * leaves the same state when it ends between a row and its entries. VACUUM
 * removes the rows, and those entries that are there. No entry is there
 * without its row, because the row's WAL comes before the entry's. A
 * transaction cannot commit while entries wait: sluice_index_finish() inserts
 * them before the command ends, and an error in it aborts the transaction.
 *
 * WHAT IS LEFT TO THE ACCESS METHOD, entry by entry, but still in the order of
 * the index:
 *   - entries of an index that writes no WAL, unless they come after its last
 *     key (btree_merge.c changes pages by their WAL records);
 *   - what the other ways return without having done it: a split of an inner
 *     page, dead items to be removed, a root that is a leaf.
 *
 * HOT.  No one can update a row before its entries are in: a row of the
 * current command is invisible to every UPDATE.
 *
 * VACUUM may run at the same time. It leaves rows of a transaction in progress
 * alone, so it needs none of their entries.
 *
 * MEMORY.  All indexes whose entries wait share pgsluice.live_index_memory. If
 * one of them is unique, the TIDs and lines of rows have a share, too. When
 * the core of an index is full, its entries are inserted and it begins again.
 * That is done between two rows: if a row is rejected then, all indexes have
 * taken the entries of the same rows. If a core has too many values that the
 * server must compare, its entries are inserted at once. The current row's
 * entry is not among them; the executor inserts it with the row.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/*
 * One part in LINES_SHARE of the memory is for TIDs and lines. Rows that
 * follow one another on a page take 16 bytes together, so TIDs and lines are
 * seldom as large as the entries.
 */
#define LINES_SHARE 8

/* An index whose entries wait. */
typedef struct Extended
{
	SluiceIndexBuild build;
	IndexUse *taken;
	int			at;				/* its number in the table's list */
	bool		unique;
	bool		shares;			/* it has a core, and a share of the memory */
	bool		takes;			/* entries of the current rows wait */
	bool		by_itself;		/* but not the current row's: it goes in with the row */
	bool		waiting;		/* some entries wait */
	bool		full;			/* they must be inserted before those of the next row */
	bool		ascends;		/* all entries of the last insertion came after those of the index */
} Extended;

struct SortedInsert
{
	dlist_node	node;			/* in `opened` */
	CopyFromState cstate;
	bool		refuses;		/* a conflict was found, or a search for one has begun */
	ResultRelInfo *rri;
	MemoryContext context;		/* of this struct, all that it points to, and the entries */
	Size		all_memory;		/* for waiting entries of all indexes */
	Size		memory;			/* for those of one index */
	Size		line_memory;	/* for the TIDs and lines of rows */
	uint32		longest;		/* rows of up to this many bytes have no entry that is too large */
	int			count;
	Extended   *extended;
	ResultRelInfo all;			/* the table's indexes, before some were taken out */
	Extended  **waits;			/* for each of them: its state if its entries may wait, or NULL */
	UniqueAppend **append;	/* for each: its state if leaves may be appended to it, or NULL */
	bool	   *done;			/* for each: it has the entries of the current rows, or they wait elsewhere */
	IndexStrategy *ways;		/* for each */
	OtherMethods *others;		/* inserts into the indexes one by one, or NULL */
	Oid			current;		/* the index into which it inserts a row, or InvalidOid */
	RowLines   *lines;			/* of the rows since entries of unique indexes wait; NULL: none ever do */
	MemoryContextCallback callback;
};

/*
 * The ones that are open in this session: of the partitions of a table, and of
 * COPYs within a COPY. After an error the callback of their memory removes
 * them, so the list never has one that is freed. A search for conflicts covers
 * all of one load.
 */
static dlist_head opened = DLIST_STATIC_INIT(opened);

/* Opens the core for the entries of an index, with its share of the memory. */
static void
open_core(SortedInsert *extend, Extended *extended)
{
	sluice_index_open_sorter(&extended->build, extend->memory);
}

/* Removes it from `opened`: its memory is about to be freed. */
static void
forget(void *extend)
{
	dlist_delete(&((SortedInsert *) extend)->node);
}

/* Prepares an index whose entries can wait. */
static void
init_extended(SortedInsert *extend, int i, IndexUse *taken, const SluiceIndexAttribute *attributes)
{
	Extended   *extended = extend->waits[i];
	SluiceIndexBuild *build = &extended->build;

	extended->at = i;
	extended->taken = taken;
	build->heap = extend->rri->ri_RelationDesc;
	build->index = extend->all.ri_IndexRelationDescs[i];
	build->info = extend->all.ri_IndexRelationInfo[i];
	memcpy(build->attributes, attributes, sizeof(build->attributes));
	/*
	 * No value is longer than its row, but an index may have the same column
	 * several times. A row up to this length has no entry that is too large.
	 * So no waiting entry fails because of its size, long after its row.
	 */
	extend->longest = Min(extend->longest, COMPAT_BT_MAX_ITEM / build->info->ii_NumIndexAttrs);
	extended->unique = build->index->rd_index->indisunique;
	/* If leaves can be appended, entries may never wait: see append_rows(). */
	extended->shares = extend->append[i] == NULL;
	sluice_index_own_core(build, palloc0(sizeof(MemoryContextCallback)));
	if (extended->unique && extend->lines == NULL)
		extend->lines = sluice_row_lines_open();
}

/*
 * Divides the memory among the indexes whose entries wait. None waits at the
 * moment.
 */
static void
share_memory(SortedInsert *extend)
{
	int			shares = 0;
	bool		unique = false;

	for (int i = 0; i < extend->count; i++)
	{
		Assert(!extend->extended[i].waiting);
		shares += extend->extended[i].shares;
		unique |= extend->extended[i].shares && extend->extended[i].unique;
	}
	extend->line_memory = unique ? extend->all_memory / LINES_SHARE : 0;
	extend->memory = (extend->all_memory - extend->line_memory) / Max(1, shares);
	for (int i = 0; i < extend->count; i++)
	{
		if (!extend->extended[i].shares)
			continue;
		sluice_index_forget_ranks(&extend->extended[i].build);
		open_core(extend, &extend->extended[i]);
	}
}

/*
 * Takes the indexes whose entries can wait out of those that get one with each
 * row. `memory`: the most bytes for waiting entries.
 */
SortedInsert *
sluice_sorted_insert_open(ResultRelInfo *rri, CopyFromState cstate, Size memory)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice index entries",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	SortedInsert *extend = palloc0(sizeof(SortedInsert));
	int			count = rri->ri_NumIndices;
	IndexUse  **taken;
	int			waiting = 0;
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];

	extend->rri = rri;
	extend->cstate = cstate;
	/*
	 * `all` keeps the arrays. The executor gets new ones, with the indexes
	 * left for it.
	 */
	extend->all = *rri;
	extend->longest = PG_UINT32_MAX;
	extend->context = context;
	extend->extended = palloc0(sizeof(Extended) * count);
	extend->waits = palloc0(sizeof(Extended *) * count);
	extend->done = palloc0(sizeof(bool) * count);
	extend->append = palloc0(sizeof(UniqueAppend *) * count);
	extend->ways = palloc0(sizeof(IndexStrategy) * count);
	taken = palloc0(sizeof(IndexUse *) * count);
	rri->ri_IndexRelationDescs = palloc(sizeof(Relation) * count);
	rri->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * count);
	for (int i = 0; i < count; i++)
	{
		Relation	index = extend->all.ri_IndexRelationDescs[i];
		IndexInfo  *info = extend->all.ri_IndexRelationInfo[i];
		const char *because;
		IndexStrategy way = sluice_index_way(rri->ri_RelationDesc, index, info, false,
											  attributes, &because);

		extend->ways[i] = way;
		waiting += way == SLUICE_INDEX_SORTED ||
			(way == SLUICE_INDEX_LEAVES && sluice_index_unique_waits(index));
		taken[i] = rri->ri_RootResultRelInfo ?
			sluice_index_take_of_leaf(index, way, because) : sluice_index_take(index, way, because);
		if (way == SLUICE_INDEX_LEAVES)
			extend->append[i] = sluice_unique_append_open(rri->ri_RelationDesc, index, info,
														 attributes, memory, false, taken[i]);
		if (index->rd_rel->relam != BTREE_AM_OID ||
			(way != SLUICE_INDEX_SORTED && (way != SLUICE_INDEX_LEAVES || !sluice_index_unique_waits(index))))
			continue;
		extend->waits[i] = &extend->extended[extend->count++];
		init_extended(extend, i, taken[i], attributes);
	}
	extend->all_memory = memory;
	if (waiting > 0)
	{
		sluice_report.index_memory = sluice_live_index_memory();	/* of all partitions */
		extend->others = sluice_other_methods_open(&extend->all, extend->ways, taken, memory / waiting,
												   &extend->current);
		/* Each of these has one share; the rest is for the B-trees. */
		for (int i = 0; i < count; i++)
		{
			if (extend->ways[i] == SLUICE_INDEX_SORTED && extend->waits[i] == NULL)
				extend->all_memory -= memory / waiting;
		}
	}
	share_memory(extend);
	dlist_push_tail(&opened, &extend->node);
	extend->callback.func = forget;
	extend->callback.arg = extend;
	MemoryContextRegisterResetCallback(context, &extend->callback);
	MemoryContextSwitchTo(old);
	return extend;
}

/*
 * Sets the table's list to the indexes that get their entries with the row.
 * The executor inserts into the indexes in this list. Each index must be in
 * exactly one place: `done` with these rows, `takes` and not `by_itself`, or
 * in the list. Otherwise an entry would be missing, or be inserted twice.
 */
static void
set_indexes(SortedInsert *extend)
{
	ResultRelInfo *rri = extend->rri;

	rri->ri_NumIndices = 0;
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		const Extended *extended = extend->waits[i];

		if (extend->done[i] || (extended && extended->takes && !extended->by_itself))
			continue;
		rri->ri_IndexRelationDescs[rri->ri_NumIndices] = extend->all.ri_IndexRelationDescs[i];
		rri->ri_IndexRelationInfo[rri->ri_NumIndices++] = extend->all.ri_IndexRelationInfo[i];
	}
}

/* Whether entries of unique indexes wait. */
static bool
unique_waits(const SortedInsert *extend)
{
	for (int i = 0; i < extend->count; i++)
	{
		if (extend->extended[i].unique && extend->extended[i].waiting)
			return true;
	}
	return false;
}

/*
 * Inserts an entry by the access method. Returns false if the entry of a
 * unique index is in, and its key may be a duplicate.
 */
static bool
insert_entry(SluiceIndexBuild *build, Datum *values, bool *isnull, ItemPointer tid,
			 IndexUniqueCheck check)
{
	return index_insert(build->index, values, isnull, tid, build->heap, check, false, build->info) ||
		check != UNIQUE_CHECK_PARTIAL;
}

/*
 * Inserts an entry that is left to the access method. Returns false if its row
 * has a conflict. The access method does not reject the row, because another
 * row may come first.
 */
static bool
insert_single(SortedInsert *extend, Extended *extended, IndexTuple tuple, SluiceRival *rival)
{
	SluiceIndexBuild *build = &extended->build;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	index_deform_tuple(tuple, RelationGetDescr(build->index), values, isnull);
	/*
	 * With UNIQUE_CHECK_PARTIAL the entry goes in even if its key is there
	 * already. If the search below finds a rival, the COPY ends with an error.
	 * If the rival is gone by then, because its transaction has rolled back,
	 * the entry is where it belongs.
	 */
	if (insert_entry(build, values, isnull, &tuple->t_tid,
					 extended->unique ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO))
		return true;
	extend->cstate->cur_lineno = sluice_row_lines_find(extend->lines, &tuple->t_tid);
	return !sluice_btree_look(build->heap, build->index, tuple, false, rival);
}

/*
 * Returns how many of the entries can go after all that the index has: in a
 * unique index, those before the first one with a NULL. btree_append.c checks
 * a unique index by comparing the first key with the last one in the index,
 * and NULLs are equal to no other.
 */
static int
count_plain(const Extended *extended, IndexTuple *tuples, int count)
{
	int			n = 0;

	if (!extended->unique)
		return count;
	while (n < count && !IndexTupleHasNulls(tuples[n]))
		n++;
	return n;
}

/* The next entries of an index, to be inserted. */
typedef struct Batch
{
	IndexTuple *tuples;
	int			count;
	int			behind;			/* from this one on, entries come after all that the index had */
	bool		merges;
	SluiceRival rival;			/* of the entry that could not be inserted */
} Batch;

/*
 * Inserts entries from number n on, as many as go to one place; returns how
 * many. -1: the row of entry n has a conflict. 0: none was inserted, call
 * again.
 */
static int
insert_together(SortedInsert *extend, Extended *extended, Batch *batch, int n)
{
	SluiceIndexBuild *build = &extended->build;
	uint64	   *rows = extended->taken->rows;
	IndexStrategy way = n >= batch->behind ? SLUICE_INDEX_LEAVES : SLUICE_INDEX_LEAF_MERGE;
	SluiceRival *rival = extended->unique ? &batch->rival : NULL;
	int			taken = 0;

	batch->rival.found = false;
	if (way == SLUICE_INDEX_LEAVES)
	{
		int			plain = count_plain(extended, batch->tuples + n, batch->count - n);

		taken = plain > 0 ?
			sluice_btree_append(build, batch->tuples + n, plain) : -1;
		if (taken < 0)
		{
			/*
			 * Another session has inserted larger keys, or these entries have
			 * NULLs. From here on all are merged. Nothing is lost, because
			 * this call has inserted none.
			 */
			batch->behind = batch->count;
			extended->ascends = false;
			return 0;
		}
	}
	else if (batch->merges)
		taken = sluice_btree_merge(build, batch->tuples + n, batch->behind - n, rival);
	if (taken < 0)
	{
		batch->merges = false;
		return 0;
	}
	if (batch->rival.found && !TransactionIdIsValid(rival->wait))
		return -1;
	if (batch->rival.found)
	{
		/*
		 * Try the entry again after the wait: the other transaction may have
		 * rolled back.
		 */
		extend->cstate->cur_lineno = sluice_row_lines_find(extend->lines, &batch->tuples[n]->t_tid);
		sluice_btree_wait(build->index, rival, &batch->tuples[n]->t_tid);
		return 0;
	}
	/*
	 * The access method inserts one and may split a page. Then the next ones
	 * are merged again.
	 */
	if (taken == 0)
	{
		if (!insert_single(extend, extended, batch->tuples[n], rival))
			return -1;
		way = SLUICE_INDEX_SORTED;
		taken = 1;
	}
	rows[way] += taken;
	return taken;
}

/*
 * Inserts entries that are in the index's order: those of each leaf together,
 * and the last ones as whole leaves if they come after all others. Returns how
 * many are in: fewer than `count` if the next one has this rival. Memory is
 * allocated in the current context, which is reset.
 */
static int
insert_some(SortedInsert *extend, Extended *extended, IndexTuple *tuples, int count,
			SluiceRival *rival)
{
	SluiceIndexBuild *build = &extended->build;
	Batch		batch = {.tuples = tuples,.count = count,.behind = count};
	int			n = 0;

	if (count == 0)
		return 0;
	if (sluice_allowed.index_append)
		batch.behind = sluice_btree_append_from(build->index, tuples, count);
	batch.merges = sluice_allowed.index_leaf_merge && RelationNeedsWAL(build->index);
	extended->ascends &= batch.behind == 0;
	/* For a few entries a new leaf is more to log than the entries. */
	if (count - batch.behind < (int) sluice_threshold(SLUICE_INDEX_FEWEST))
		batch.behind = count;
	while (n < count)
	{
		int			taken;

		CHECK_FOR_INTERRUPTS();
		Assert(!extend->refuses);
		taken = insert_together(extend, extended, &batch, n);
		Assert(taken <= count - n);
		MemoryContextReset(CurrentMemoryContext);
		if (taken < 0)
			break;
		n += taken;
	}
	*rival = batch.rival;
	return n;
}

/*
 * Returns the next of an index's sorted entries, from number `done` on; NULL
 * if there are no more.
 */
static IndexTuple *
next_sorted(SluiceIndexBuild *build, uint64 done, int *count)
{
	SluiceIndexStep step = {0};
	SluiceIndexStatus status = pgsluice_index_sorted(build->core, done, &step);
	IndexTuple *tuples;
	char	   *at = (char *) step.bytes;

	sluice_index_checked(build, status);
	if (status == SLUICE_INDEX_DONE)
		return NULL;
	/* The tuples point into the core's buffer, which the next call reuses. */
	Assert(step.rows > 0);
	*count = (int) step.rows;
	tuples = palloc(sizeof(IndexTuple) * step.rows);
	for (uint64 i = 0; i < step.rows; i++)
	{
		tuples[i] = (IndexTuple) at;
		at += IndexTupleSize(tuples[i]);
	}
	return tuples;
}

/* Sorts the waiting entries of an index. */
static void
sort(Extended *extended)
{
	/*
	 * The result does not matter: rows that were added one by one have been
	 * numbered already, so there cannot be too many values.
	 */
	(void) sluice_index_rank(&extended->build);
	sluice_index_checked(&extended->build, pgsluice_index_sort(extended->build.core));
}

/*
 * Searches the waiting entries of an index, from these on, for rows with a
 * conflict. Afterwards none of them waits any more.
 */
static void
look_on(SortedInsert *extend, Extended *extended, FirstRefusal *first, IndexTuple before,
		IndexTuple *tuples, int count, uint64 done)
{
	SluiceIndexBuild *build = &extended->build;

	do
	{
		sluice_first_refusal_look(first, extend->lines, extend->cstate, build->heap, build->index,
								  &before, tuples, count);
		done += count;
	} while ((tuples = next_sorted(build, done, &count)) != NULL);
	extended->waiting = false;
}

/* The same for all waiting entries of the table's unique indexes. */
void
sluice_sorted_insert_look(SortedInsert *extend, FirstRefusal *first)
{
	MemoryContext caller = MemoryContextSwitchTo(extend->context);

	extend->refuses = true;
	for (int i = 0; i < extend->count; i++)
	{
		Extended   *extended = &extend->extended[i];
		IndexTuple *tuples;
		int			count;

		if (!extended->unique || !extended->waiting)
			continue;
		sort(extended);
		tuples = next_sorted(&extended->build, 0, &count);
		if (tuples)
			look_on(extend, extended, first, NULL, tuples, count, 0);
	}
	MemoryContextSwitchTo(caller);
}

/* Returns the one of this load that was opened after `last`, or NULL. */
SortedInsert *
sluice_sorted_insert_next(CopyFromState cstate, SortedInsert *last)
{
	dlist_node *node = last ? &last->node : &opened.head;

	while (!dlist_is_empty(&opened) && (node = node->next) != &opened.head)
	{
		SortedInsert *extend = dlist_container(SortedInsert, node, node);

		if (extend->cstate == cstate)
			return extend;
	}
	return NULL;
}

/*
 * Whether entries wait in this load whose keys may be there already, and no
 * search for conflicts has begun.
 */
bool
sluice_sorted_insert_checks(CopyFromState cstate)
{
	bool		waits = false;

	for (SortedInsert *at = NULL; (at = sluice_sorted_insert_next(cstate, at)) != NULL;)
	{
		if (at->refuses)
			return false;
		waits |= unique_waits(at);
	}
	return waits;
}

/*
 * Returns the table's indexes, before some were taken out, and the one into
 * which a row is being inserted. InvalidOid: none, or no index may reject the
 * row without being named.
 */
const ResultRelInfo *
sluice_sorted_insert_indexes(const SortedInsert *extend, Oid *current)
{
	*current = extend->current;
	return &extend->all;
}

/*
 * The first of these entries has a rival (NULL: that is the entry before it).
 * Rejects its row, or a row with a conflict that comes before it in the input.
 * Does not return. From here on nothing is inserted (`refuses`), so the
 * entries of other indexes and partitions still wait and can be searched.
 */
static void
refuse(SortedInsert *extend, Extended *extended, const SluiceRival *rival, IndexTuple before,
	   IndexTuple *tuples, int count, uint64 done)
{
	SluiceIndexBuild *build = &extended->build;
	FirstRefusal first = {.line = PG_UINT64_MAX};

	extend->refuses = true;
	if (rival)
		sluice_first_refusal_add(&first, extend->lines, build->heap, build->index, tuples[0], rival);
	look_on(extend, extended, &first, before, tuples, count, done);
	for (SortedInsert *at = NULL; (at = sluice_sorted_insert_next(extend->cstate, at)) != NULL;)
		sluice_sorted_insert_look(at, &first);
	sluice_first_refusal_raise(&first, extend->cstate);
}

/*
 * Returns how many of the entries, from the first one on, have another key
 * than the entry before them.
 */
static int
count_different(const Extended *extended, IndexTuple before, IndexTuple *tuples, int count)
{
	Relation	index = extended->build.index;
	const SluiceIndexAttribute *attributes = extended->build.attributes;
	int			keys = IndexRelationGetNumberOfKeyAttributes(index);
	int			n = 0;

	if (!extended->unique)
		return count;
	for (; n < count; before = tuples[n++])
	{
		int			order;

		if (before == NULL)
			continue;
		if (sluice_btree_order(attributes, keys, before, tuples[n], &order))
		{
			if (order == 0)
				break;
		}
		else if (sluice_index_equal_keys(index, index->rd_index->indnullsnotdistinct, before, tuples[n]))
			break;
	}
	return n;
}

/*
 * Inserts the waiting entries of an index, in the index's order. Entries with
 * equal keys of a unique index are never passed to btree_merge.c in one call:
 * it compares an entry with those in the index, not with the others of the
 * call.
 */
static void
insert_sorted(SortedInsert *extend, Extended *extended)
{
	SluiceIndexBuild *build = &extended->build;
	MemoryContext caller = MemoryContextSwitchTo(extend->context);
	MemoryContext scratch = AllocSetContextCreate(extend->context, "pgsluice index entry",
												  ALLOCSET_DEFAULT_SIZES);
	uint64		line = extend->cstate->cur_lineno;
	IndexTuple	before = NULL;	/* the last one that was inserted */
	IndexTuple *tuples;
	int			count;

	Assert(!extend->refuses);
	sort(extended);
	extended->ascends = true;
	for (uint64 done = 0; (tuples = next_sorted(build, done, &count)) != NULL; done += count)
	{
		int			different = count_different(extended, before, tuples, count);
		SluiceRival rival;
		int			n;

		MemoryContextSwitchTo(scratch);
		n = insert_some(extend, extended, tuples, different, &rival);
		MemoryContextSwitchTo(extend->context);
		if (n < count)
			refuse(extend, extended, n < different ? &rival : NULL,
				   n > 0 ? CopyIndexTuple(tuples[n - 1]) : before, tuples + n, count - n, done + n);
		if (before)
			pfree(before);
		before = extended->unique ? CopyIndexTuple(tuples[count - 1]) : NULL;
		pfree(tuples);
	}
	/* There may be a flush for each long row. */
	if (before)
		pfree(before);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	/* An error raised after this is about the row that came last. */
	extend->cstate->cur_lineno = line;
	extended->waiting = extended->full = false;
}

/*
 * If no entries of the index wait, it takes the current rows as whole leaves,
 * if it can. Otherwise their entries wait, but not those of a small batch if
 * the batches so far were appended as leaves.
 */
static void
append_rows(SortedInsert *extend, int i, const PlacedRow *rows, int count, uint64 *line)
{
	Extended   *extended = extend->waits[i];
	UniqueAppend *append = extend->append[i];

	/*
	 * While entries wait, all do: the key of an entry that is inserted earlier
	 * could be one that waits.
	 */
	if (extended && extended->waiting)
		return;
	extend->done[i] = sluice_unique_append_rows(append, rows, count, line);
	if (extended)
		extended->takes = !extend->done[i] &&
			(count >= (int) sluice_threshold(SLUICE_INDEX_FEWEST) || !sluice_unique_append_goes_on(append));
	/*
	 * These are the first entries of the index to wait: divide the memory
	 * again. For that no entry of another index may wait.
	 */
	if (extended && extended->takes && !extended->shares)
	{
		for (int n = 0; n < extend->count; n++)
		{
			if (extend->extended[n].waiting)
				insert_sorted(extend, &extend->extended[n]);
		}
		extended->shares = true;
		share_memory(extend);
	}
}

/*
 * Notes the TIDs and lines of the rows, if entries of unique indexes will
 * wait.
 */
static void
note_lines(SortedInsert *extend, const PlacedRow *rows, int count)
{
	bool		takes = false;

	if (extend->lines == NULL)
		return;
	/*
	 * The entries of the rows that are forgotten are in, so none of these can
	 * be rejected any more.
	 */
	if (!unique_waits(extend))
		sluice_row_lines_forget(extend->lines);
	for (int i = 0; i < extend->count; i++)
		takes |= extend->extended[i].unique && (extend->extended[i].takes || extend->extended[i].waiting);
	if (takes)
		sluice_row_lines_note(extend->lines, rows, count);
}

/*
 * Inserts the waiting entries of unique indexes if there is no room for more
 * TIDs and lines.
 */
static void
make_room(SortedInsert *extend)
{
	if (extend->lines == NULL || sluice_row_lines_size(extend->lines) < extend->line_memory)
		return;
	for (int i = 0; i < extend->count; i++)
	{
		if (extend->extended[i].unique && extend->extended[i].waiting)
			insert_sorted(extend, &extend->extended[i]);
	}
}

/*
 * These rows have just been inserted into the table. Unique indexes may get
 * the entries of all of them at once; the others get theirs row by row. An
 * error names the line of its row.
 */
void
sluice_sorted_insert_rows(SortedInsert *extend, const PlacedRow *rows, int count,
						 uint64 *line)
{
	make_room(extend);
	memset(extend->done, 0, sizeof(bool) * extend->all.ri_NumIndices);
	for (int i = 0; i < extend->count; i++)
	{
		extend->extended[i].takes = true;
		extend->extended[i].by_itself = false;
	}
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		if (extend->append[i])
			append_rows(extend, i, rows, count, line);
		else
			extend->done[i] = extend->ways[i] == SLUICE_INDEX_SORTED && extend->waits[i] == NULL;
	}
	note_lines(extend, rows, count);
	set_indexes(extend);
}

/* Whether entries of the current rows are to wait, or go in by `others`. */
bool
sluice_sorted_insert_waits(const SortedInsert *extend)
{
	for (int i = 0; i < extend->count; i++)
	{
		if (extend->extended[i].takes)
			return true;
	}
	return extend->others != NULL;
}

/* Makes an entry of the row wait. Returns false if the core does not take it. */
static bool
add_entry(SortedInsert *extend, Extended *extended, TupleTableSlot *slot)
{
	SluiceIndexBuild *build = &extended->build;
	uint64		address = ((uint64) ItemPointerGetBlockNumber(&slot->tts_tid) << 16) |
		ItemPointerGetOffsetNumber(&slot->tts_tid);
	SluiceIndexStatus status;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	for (int i = 0; i < build->info->ii_NumIndexAttrs; i++)
		values[i] = slot_getattr(slot, build->info->ii_IndexAttrNumbers[i], &isnull[i]);
	status = pgsluice_index_add(build->core, address, false, false, values, isnull);
	sluice_index_checked(build, status);
	switch (status)
	{
		case SLUICE_INDEX_CROWDED:
			/*
			 * More different values than can have ranks. The entries so far go
			 * in with their ranks. The next ones after this one wait in a new
			 * core.
			 */
			insert_sorted(extend, extended);
			sluice_index_forget_ranks(build);
			open_core(extend, extended);
			return false;
		case SLUICE_INDEX_UNFIT:
			return false;
		case SLUICE_INDEX_FULL:
			/* This one is taken. Insert before the next row: see MEMORY. */
			extended->waiting = extended->full = true;
			return true;
		default:
			extended->waiting = true;
			return true;
	}
}

/*
 * Whether the row's entry may be too large for the index. A leaf has only few
 * entries of half of that size, so none of these waits either. The size here is
 * an upper bound: values are stored as they are, or shorter. A value that is
 * out of line would have to be fetched.
 */
static bool
entry_may_be_too_large(const SluiceIndexBuild *build, TupleTableSlot *slot)
{
	TupleDesc	desc = RelationGetDescr(build->index);
	Size		size = MAXALIGN(sizeof(IndexTupleData) + sizeof(IndexAttributeBitMapData));

	for (int i = 0; i < desc->natts; i++)
	{
		int			len = TupleDescAttr(desc, i)->attlen;
		bool		isnull;
		Datum		value = slot_getattr(slot, build->info->ii_IndexAttrNumbers[i], &isnull);

		if (isnull)
			continue;
		if (len == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(value)))
			return true;
		size += MAXALIGN(len == -1 ? VARSIZE_ANY(DatumGetPointer(value)) : (Size) len);
	}
	return size > COMPAT_BT_MAX_ITEM / 2;
}

/*
 * Whether any index may reject the row because of its length. Only the entries
 * of B-trees over plain columns have a known size.
 */
static bool
may_be_too_large(const SortedInsert *extend, TupleTableSlot *slot)
{
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		/* Its leaves have the entry. */
		if (extend->append[i] && extend->done[i])
			continue;
		if (extend->waits[i] == NULL || entry_may_be_too_large(&extend->waits[i]->build, slot))
			return true;
	}
	return false;
}

/*
 * The row has just been inserted into the table. Entries that can wait do so.
 * The table's list of indexes keeps those whose entries cannot wait: there,
 * each is inserted in its turn, as in stock COPY. Returns what the caller must
 * insert them with, or NULL: the executor alone.
 */
OtherMethods *
sluice_sorted_insert_row(SortedInsert *extend, TupleTableSlot *slot)
{
	bool		long_row = ExecFetchSlotHeapTuple(slot, false, NULL)->t_len > extend->longest;
	bool		too_large;

	if (extend->count == 0)
		return extend->others;
	too_large = long_row && may_be_too_large(extend, slot);
	for (int i = 0; i < extend->count; i++)
	{
		Extended   *extended = &extend->extended[i];

		/*
		 * Insert before a row that may be rejected while a page is locked: see
		 * first_refusal.c.
		 */
		if (extended->full || (too_large && extended->unique && extended->waiting))
			insert_sorted(extend, extended);
	}
	for (int i = 0; i < extend->count; i++)
	{
		Extended   *extended = &extend->extended[i];

		extended->by_itself = extended->takes &&
			((long_row && entry_may_be_too_large(&extended->build, slot)) || !add_entry(extend, extended, slot));
	}
	set_indexes(extend);
	return extend->others;
}

/*
 * Inserts the waiting entries. Returns the indexes whose last entries came
 * after all that they had.
 */
List *
sluice_sorted_insert_ascending(SortedInsert *extend)
{
	List	   *ascending = NIL;

	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		if (extend->append[i] && !(extend->waits[i] && extend->waits[i]->waiting) &&
			sluice_unique_append_goes_on(extend->append[i]))
			ascending = lappend_oid(ascending,
									RelationGetRelid(extend->all.ri_IndexRelationDescs[i]));
	}
	for (int i = 0; i < extend->count; i++)
	{
		Extended   *extended = &extend->extended[i];

		if (!extended->waiting)
			continue;
		insert_sorted(extend, extended);
		if (extended->ascends)
			ascending = lappend_oid(ascending, RelationGetRelid(extended->build.index));
	}
	return ascending;
}

/*
 * Inserts the waiting entries, and gives the table its list of indexes back as
 * the executor opened them, because the executor closes the indexes in the
 * list. Not called after an error, when nothing more may be inserted.
 */
void
sluice_sorted_insert_close(SortedInsert *extend)
{
	for (int i = 0; i < extend->count; i++)
	{
		if (extend->extended[i].waiting)
			insert_sorted(extend, &extend->extended[i]);
	}
	if (extend->others)
		sluice_other_methods_flush(extend->others);
	for (int i = 0; i < extend->count; i++)
	{
		Assert(!extend->extended[i].waiting);
		sluice_btree_give_back(&extend->extended[i].build);
	}
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		if (extend->append[i])
			sluice_unique_append_close(extend->append[i]);
	}
	extend->rri->ri_NumIndices = extend->all.ri_NumIndices;
	extend->rri->ri_IndexRelationDescs = extend->all.ri_IndexRelationDescs;
	extend->rri->ri_IndexRelationInfo = extend->all.ri_IndexRelationInfo;
	MemoryContextDelete(extend->context);
}
