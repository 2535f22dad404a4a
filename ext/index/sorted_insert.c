/*
 * Indexes of a table that others can reach: the entries of many rows are
 * sorted before they are inserted, so that all that go to one leaf are merged
 * into it at once (index/btree_merge.c); those that come behind all that the
 * index has go there as whole leaves. Those of unique indexes may go in with
 * the rows that were inserted together (index/unique_append.c).
 *
 * Only entries whose insertion cannot fail for what is in the row wait: of
 * B-trees over plain columns that are not unique, and of rows too short to be
 * too large for them. All others are inserted with the row, in the order and
 * with the errors of stock COPY. Entries of GIN and hash indexes are extracted
 * with the row and may wait then, too: other_methods.c. So no error is raised later than stock COPY
 * would raise it: what waits can fail for want of disk space, by a cancel or
 * by a serialization failure, and none of these is about a row.
 *
 * WHO MIGHT MISS AN ENTRY THAT WAITS.  Other transactions do not see the rows
 * before the commit, and all entries are in by the end of the command. The
 * command itself does not see its own rows. AFTER triggers run when the
 * command is through; they find the entries there. A function that the COPY
 * calls in between may run queries of its own, but those do not see this
 * command's rows either: a volatile function gets a snapshot with the current
 * command identifier, and the rows have that identifier, which counts as not
 * yet visible. Volatile CHECK constraints and conditions of triggers are the
 * exception, since stock COPY lets rows of earlier batches be found by index
 * checks. With those none wait (`never` in writer.c).
 *
 * HOT.  Nobody can update a row before its entries are there: a row of the
 * current command is invisible to every UPDATE.
 *
 * VACUUM may run meanwhile. It meets rows of a transaction in progress, which
 * it leaves alone, and so it needs no entry of theirs.
 *
 * MEMORY.  All indexes share pgsluice.live_index_memory. When the core is
 * full, or has too many values that need the server, its entries are inserted
 * and it begins again.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* An index whose entries wait. */
typedef struct Extended
{
	SluiceIndexBuild build;
	IndexUse *taken;
	bool		waiting;		/* some do */
	bool		ascends;		/* all that were inserted together the last time came behind all others */
} Extended;

struct SortedInsert
{
	ResultRelInfo *rri;
	MemoryContext context;		/* of this struct, all that it points to, and the entries */
	Size		memory;			/* for entries that wait, of all indexes */
	uint32		longest;		/* bytes of a row whose entries are surely not too large */
	int			count;
	Extended   *extended;
	ResultRelInfo all;			/* the table's indexes before some were taken out */
	bool	   *waits;			/* which of them have entries that wait */
	UniqueAppend **append;	/* and are appended to, or NULL */
	bool	   *done;			/* and have those of the rows at hand, or let them wait elsewhere */
	IndexStrategy *ways;		/* of each */
	OtherMethods *others;		/* the waiting ones that are no B-trees, or NULL */
};

/* The core of an index's entries, with its share of the memory. */
static void
open_core(SortedInsert *extend, Extended *extended)
{
	sluice_index_open_sorter(&extended->build, extend->memory / extend->count);
}

/*
 * Takes the indexes whose entries can wait out of those that get one with each
 * row. `memory`: the most bytes for such entries.
 */
SortedInsert *
sluice_sorted_insert_open(ResultRelInfo *rri, Size memory)
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
	extend->all = *rri;
	extend->longest = PG_UINT32_MAX;
	extend->context = context;
	extend->memory = memory;
	extend->extended = palloc0(sizeof(Extended) * count);
	extend->waits = palloc0(sizeof(bool) * count);
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
		SluiceIndexBuild *build;

		extend->ways[i] = way;
		waiting += way == SLUICE_INDEX_SORTED;
		taken[i] = rri->ri_RootResultRelInfo ?
			sluice_index_take_of_leaf(index, way, because) : sluice_index_take(index, way, because);
		if (way == SLUICE_INDEX_LEAVES)
			extend->append[i] = sluice_unique_append_open(rri->ri_RelationDesc, index, info,
														 attributes, memory, taken[i]);
		if (way != SLUICE_INDEX_SORTED || index->rd_rel->relam != BTREE_AM_OID)
			continue;
		extend->waits[i] = true;
		extend->extended[extend->count].taken = taken[i];
		build = &extend->extended[extend->count++].build;
		build->heap = rri->ri_RelationDesc;
		build->index = index;
		build->info = info;
		memcpy(build->attributes, attributes, sizeof(attributes));
		/* The same column may be in the index more than once. */
		extend->longest = Min(extend->longest, COMPAT_BT_MAX_ITEM / info->ii_NumIndexAttrs);
	}
	if (waiting > 0)
	{
		sluice_report.index_memory = sluice_live_index_memory();	/* of all partitions */
		extend->others = sluice_other_methods_open(&extend->all, extend->ways, taken, memory / waiting);
		extend->memory = memory / waiting * extend->count;
	}
	for (int i = 0; i < extend->count; i++)
	{
		sluice_index_own_core(&extend->extended[i].build, palloc0(sizeof(MemoryContextCallback)));
		open_core(extend, &extend->extended[i]);
	}
	MemoryContextSwitchTo(old);
	return extend;
}

/*
 * The indexes that get their entries with the row: also those whose entries
 * could wait?
 */
static void
set_indexes(SortedInsert *extend, bool waiting_too)
{
	ResultRelInfo *rri = extend->rri;

	rri->ri_NumIndices = 0;
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		if (extend->done[i] || (extend->waits[i] && !waiting_too))
			continue;
		rri->ri_IndexRelationDescs[rri->ri_NumIndices] = extend->all.ri_IndexRelationDescs[i];
		rri->ri_IndexRelationInfo[rri->ri_NumIndices++] = extend->all.ri_IndexRelationInfo[i];
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
	memset(extend->done, 0, sizeof(bool) * extend->all.ri_NumIndices);
	for (int i = 0; i < extend->all.ri_NumIndices; i++)
		extend->done[i] = extend->append[i] ?
			sluice_unique_append_rows(extend->append[i], rows, count, line) :
			extend->ways[i] == SLUICE_INDEX_SORTED && !extend->waits[i];
	set_indexes(extend, false);
}

/* Whether it has indexes whose entries wait. */
bool
sluice_sorted_insert_waits(const SortedInsert *extend)
{
	return extend->count > 0 || extend->others != NULL;
}

/* By the access method. The indexes are not unique, so nothing is checked. */
static void
insert_entry(SluiceIndexBuild *build, Datum *values, bool *isnull, ItemPointer tid)
{
	index_insert(build->index, values, isnull, tid, build->heap, UNIQUE_CHECK_NO, false,
				 build->info);
}

/*
 * Inserts entries that are in the index's order: those of each leaf together;
 * the last ones, if they come behind all others, as whole leaves. What is allocated goes with the current
 * memory context, which is reset.
 */
static void
insert_some(Extended *extended, IndexTuple *tuples, int count)
{
	SluiceIndexBuild *build = &extended->build;
	uint64	   *rows = extended->taken->rows;
	int			behind = sluice_allowed.index_append ?
		sluice_btree_append_from(build->index, tuples, count) : count;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	bool		merges = sluice_allowed.index_leaf_merge && RelationNeedsWAL(build->index);
	int			n = 0;

	extended->ascends &= behind == 0;
	if (count - behind < (int) sluice_threshold(SLUICE_INDEX_FEWEST))
		behind = count;
	while (n < count)
	{
		IndexStrategy way = n >= behind ? SLUICE_INDEX_LEAVES : SLUICE_INDEX_LEAF_MERGE;
		int			taken = 0;

		CHECK_FOR_INTERRUPTS();
		if (way == SLUICE_INDEX_LEAVES)
			taken = sluice_btree_append(build->heap, build->index, tuples + n, count - n);
		else if (merges)
			taken = sluice_btree_merge(build->heap, build->index, tuples + n, behind - n);
		if (taken < 0 && way == SLUICE_INDEX_LEAF_MERGE)
			merges = false;
		else if (taken < 0)
		{
			/* Others have gone beyond us. */
			behind = count;
			extended->ascends = false;
		}
		if (taken > 0)
		{
			n += taken;
			rows[way] += taken;
		}
		else
		{
			index_deform_tuple(tuples[n], RelationGetDescr(build->index), values, isnull);
			insert_entry(build, values, isnull, &tuples[n++]->t_tid);
			rows[SLUICE_INDEX_SORTED]++;
		}
		MemoryContextReset(CurrentMemoryContext);
	}
}

/* Inserts the entries that wait for an index, in its order. */
static void
insert_sorted(SortedInsert *extend, Extended *extended)
{
	SluiceIndexBuild *build = &extended->build;
	MemoryContext caller = MemoryContextSwitchTo(extend->context);
	MemoryContext scratch = AllocSetContextCreate(extend->context, "pgsluice index entry",
												  ALLOCSET_DEFAULT_SIZES);
	SluiceIndexStep step = {0};

	/* Rows that were added one by one have their values' numbers. */
	(void) sluice_index_rank(build);
	sluice_index_checked(build, pgsluice_index_sort(build->core));
	extended->ascends = true;
	for (uint64 done = 0;; done += step.rows)
	{
		SluiceIndexStatus status = pgsluice_index_sorted(build->core, done, &step);
		IndexTuple *tuples;
		char	   *at = (char *) step.bytes;

		sluice_index_checked(build, status);
		if (status == SLUICE_INDEX_DONE)
			break;
		tuples = palloc(sizeof(IndexTuple) * step.rows);
		for (uint64 i = 0; i < step.rows; i++)
		{
			tuples[i] = (IndexTuple) at;
			at += IndexTupleSize(tuples[i]);
		}
		MemoryContextSwitchTo(scratch);
		insert_some(extended, tuples, (int) step.rows);
		MemoryContextSwitchTo(extend->context);
		pfree(tuples);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	extended->waiting = false;
}

/* Lets an entry of the row wait, or inserts it. */
static void
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
			/* Other values from here on. */
			insert_sorted(extend, extended);
			sluice_index_forget_ranks(build);
			open_core(extend, extended);
			pg_fallthrough;
		case SLUICE_INDEX_UNFIT:
			insert_entry(build, values, isnull, &slot->tts_tid);
			break;
		case SLUICE_INDEX_FULL:
			insert_sorted(extend, extended);
			break;
		default:
			extended->waiting = true;
			break;
	}
}

/*
 * The row has just been inserted into the table. Entries that can wait do so;
 * the table's list of indexes is left with those that cannot. Gives those that
 * are no B-trees, whose entries are to be added yet, or NULL.
 */
OtherMethods *
sluice_sorted_insert_row(SortedInsert *extend, TupleTableSlot *slot)
{
	bool		too_long = ExecFetchSlotHeapTuple(slot, false, NULL)->t_len > extend->longest;

	if (extend->count == 0)
		return extend->others;
	set_indexes(extend, too_long);
	for (int i = 0; i < extend->count && !too_long; i++)
		add_entry(extend, &extend->extended[i], slot);
	return extend->others;
}

/*
 * Inserts what waits. Gives the indexes that have taken the last entries
 * behind all that they had.
 */
List *
sluice_sorted_insert_ascending(SortedInsert *extend)
{
	List	   *ascending = NIL;

	for (int i = 0; i < extend->all.ri_NumIndices; i++)
	{
		if (extend->append[i] && sluice_unique_append_goes_on(extend->append[i]))
			ascending = lappend_oid(ascending,
									RelationGetRelid(extend->all.ri_IndexRelationDescs[i]));
	}
	for (int i = 0; i < extend->count; i++)
	{
		Extended   *extended = &extend->extended[i];

		if (extended->waiting)
			insert_sorted(extend, extended);
		if (extended->ascends)
			ascending = lappend_oid(ascending, RelationGetRelid(extended->build.index));
	}
	return ascending;
}

/* Inserts what waits, and gives the table its indexes back. */
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
	extend->rri->ri_NumIndices = extend->all.ri_NumIndices;
	extend->rri->ri_IndexRelationDescs = extend->all.ri_IndexRelationDescs;
	extend->rri->ri_IndexRelationInfo = extend->all.ri_IndexRelationInfo;
	MemoryContextDelete(extend->context);
}
