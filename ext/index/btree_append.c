/*
 * Appends entries at the right-hand edge of a B-tree that others can reach.
 * Entries that come after all existing ones, by key and then by heap TID, go
 * into whole new leaves. Equal keys share posting lists, as nbtsort.c forms
 * them.
 *
 * Why it is faster: the access method's own insertion descends the tree, locks
 * a leaf and writes a WAL record for each entry. Here one descent, one set of
 * locks and one record serve all entries of up to MAX_LEAVES leaves.
 *
 * THE INVARIANT.  At any time at which another process can look, the tree is
 * one that nbtree itself could have made: every level is sorted from left to
 * right, each page except the rightmost one of its level has a high key,
 * siblings point to each other, and each page has a downlink in its parent.
 *
 * LOCKS.  The rightmost leaf is locked first, exclusively, and then its
 * parent. This is the order of nbtree's own splits, from child to parent, so
 * that no two processes can wait for each other. The new leaves are locked
 * from the moment at which their blocks are allocated; nothing points to them
 * yet. All locks are kept until all pages have changed and the record is
 * written. An insertion after the last entry has to lock the rightmost leaf
 * first. So once "all entries of the index come before ours" was found true,
 * it stays true while that leaf is locked here.
 *
 * UNIQUE INDEXES.  The scan key has no heap TID (scantid is NULL). If the last
 * key of the rightmost leaf is below our first key, no entry of the index has
 * one of our keys, whether its row is dead, committed or another
 * transaction's. If another session inserts such a key later, it finds our
 * entry, and its check (_bt_check_unique) waits for our transaction, as after
 * any insertion.
 *
 * THE RECORD.  All pages are logged together as full images in one XLOG_FPI
 * record, which any server replays without our library. WAL is flushed before
 * a page is written (each page gets the record's LSN). So recovery either
 * finds the record, and restores all pages, or no changed page is on disk. A
 * torn write does not matter, because an image does not depend on what was on
 * disk.
 *
 * A STANDBY restores the pages of the record one after the other, and queries
 * may read in between. The pages are registered in an order in which each
 * state is a valid tree: first the new leaves, which nothing points to yet;
 * then the leaf before them, whose right link leads to them; then the parent
 * with their downlinks. A query that reads before the last step moves right,
 * as after any split whose downlink is still missing.
 *
 * AN ERROR before the critical section leaves the tree as it was. Blocks that
 * were allocated by then are new pages that nothing points to, and VACUUM
 * treats them as free space. Within the critical section, the only possible
 * failure is one of the whole server.
 *
 * What is left to the access method: the split of a root or parent, and a leaf
 * that may be the fast root. In these cases the caller inserts one entry with
 * index_insert() and calls again for the rest. Entries with NULL in a unique
 * key are not taken at all. The root of an empty index is made by nbtree's own
 * search.
 *
 * SERIALIZABLE transactions that have read the end of the index hold a
 * predicate lock on the rightmost leaf. The conflict check comes before any
 * change. The lock is copied to the new leaves (PredicateLockPageSplit), as
 * for a split.
 */
#include "index/build.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"

/*
 * The most new leaves for one record, which also has the existing leaf and the
 * parent.
 */
#define MAX_LEAVES (XLR_MAX_BLOCK_ID - 1)

/* The largest tuple with a posting list, as in nbtsort.c. */
#define MAX_POSTING (MAXALIGN_DOWN(BLCKSZ * 10 / 100) - sizeof(ItemIdData))

typedef struct Edge
{
	SluiceIndexBuild *build;
	Relation	index;
	BTScanInsert key;			/* of the first entry */
	BTDedupState posting;		/* collects equal entries; NULL: no posting lists */
	BTStack		stack;
	Buffer		leaf;			/* the rightmost one */
	Buffer		parent;			/* its parent, if it may get downlinks */
	Buffer		added[MAX_LEAVES];
	int			count;			/* of new leaves */
	int			limit;			/* the most of them */
	int			ready;			/* see sluice_btree_prepare_blocks() */
	PGAlignedBlock *images;		/* new contents of the leaf and the new leaves */
	PGAlignedBlock *above;		/* and of the parent */
} Edge;

/*
 * Locks the leaf that the first entry belongs to. Returns true only if it is
 * the rightmost leaf and all its entries come before the first one. Then this
 * holds for the whole index, and nobody can insert a later entry while the
 * lock is held. In a unique index only keys are compared: no existing key is
 * equal to one of the new entries'.
 */
static bool
find_leaf(Edge *edge, IndexTuple first)
{
	BTPageOpaque opaque;
	Page		page;
	OffsetNumber last;

	edge->key = _bt_mkscankey(edge->index, first);
	if (!edge->key->heapkeyspace)
		return false;
	if (edge->index->rd_index->indisunique)
	{
		if (edge->key->anynullkeys)
			return false;
		/* An equal key counts, whatever its heap TID is. */
		edge->key->scantid = NULL;
	}
	edge->stack = compat_bt_search(edge->index, edge->build->heap, edge->key, &edge->leaf);
	page = BufferGetPage(edge->leaf);
	opaque = BTPageGetOpaque(page);
	last = PageGetMaxOffsetNumber(page);
	Assert(P_ISLEAF(opaque) && !P_ISDELETED(opaque));
	return P_RIGHTMOST(opaque) &&
		(last < P_FIRSTDATAKEY(opaque) ||
		 _bt_compare(edge->index, edge->key, page, last) > 0);
}

/*
 * Locks the leaf's parent, if it is the rightmost page of its level and the
 * leaf is its last child. A leaf without siblings may be the fast root that
 * the metapage names, even if we did not reach it that way. Its split has to
 * change the metapage, so it is left to the access method.
 */
static void
find_parent(Edge *edge)
{
	Page		page = BufferGetPage(edge->leaf);

	if (edge->stack == NULL || P_LEFTMOST(BTPageGetOpaque(page)))
		return;
	edge->parent = compat_bt_getstackbuf(edge->index, edge->build->heap, edge->stack,
										 BufferGetBlockNumber(edge->leaf));
	if (!BufferIsValid(edge->parent))
		return;
	page = BufferGetPage(edge->parent);
	if (!P_RIGHTMOST(BTPageGetOpaque(page)) ||
		edge->stack->bts_offset != PageGetMaxOffsetNumber(page))
	{
		_bt_relbuf(edge->index, edge->parent);
		edge->parent = InvalidBuffer;
		return;
	}
	Assert(!P_ISLEAF(BTPageGetOpaque(page)) && !P_IGNORE(BTPageGetOpaque(page)));
	memcpy(edge->above->data, page, BLCKSZ);
	/* Do not pin more buffers than this process's share. */
	edge->limit = Min(MAX_LEAVES, Max(1, NBuffers / MaxBackends));
	/* Readers wait for the parent: no more leaves at a time than blocks are ready. */
	if (edge->ready > 0)
		edge->limit = Min(edge->limit, edge->ready);
}

/*
 * The most space that a high key or downlink made from this entry takes: the
 * whole key and a heap TID.
 */
static Size
size_of_pivot(IndexTuple tuple)
{
	return sluice_btree_size(tuple) + MAXALIGN(sizeof(ItemPointerData));
}

/* Prepares to combine equal entries, if the index deduplicates. */
static void
open_posting(Edge *edge)
{
	if (edge->index->rd_index->indisunique || !edge->key->allequalimage ||
		!BTGetDeduplicateItems(edge->index))
		return;
	edge->posting = palloc0(sizeof(BTDedupStateData));
	edge->posting->maxpostingsize = MAX_POSTING;
	edge->posting->htids = palloc(MAX_POSTING);
}

/*
 * Forms the tuple of the first entry, with a posting list if equal entries
 * follow. Returns how many entries the tuple is for.
 */
static int
form_posting(Edge *edge, IndexTuple *tuples, int count, IndexTuple *formed)
{
	BTDedupState posting = edge->posting;
	int			keys = IndexRelationGetNumberOfKeyAttributes(edge->index);
	int			equal = 1;

	*formed = tuples[0];
	if (posting == NULL)
		return 1;
	_bt_dedup_start_pending(posting, tuples[0], InvalidOffsetNumber);
	while (equal < count && _bt_keep_natts_fast(edge->index, tuples[0], tuples[equal]) > keys &&
		   _bt_dedup_save_htid(posting, tuples[equal]))
		equal++;
	if (equal > 1)
		*formed = _bt_form_posting(tuples[0], posting->htids, posting->nhtids);
	posting->nhtids = posting->nitems = 0;
	return equal;
}

/*
 * Whether a leaf has space for a tuple, and for a high key made from the next
 * entry, if there is one.
 */
static bool
leaf_has_room(Page page, IndexTuple tuple, IndexTuple *tuples, int next, int count)
{
	Size		high = next < count ? size_of_pivot(tuples[next]) : 0;

	return PageGetExactFreeSpace(page) >= sluice_btree_size(tuple) + high;
}

/*
 * Adds entries to the last leaf until its free space is down to what the
 * fillfactor reserves, as nbtsort.c does. Leaves space for a high key. Returns
 * how many entries are on pages now.
 */
static int
fill_leaf(Edge *edge, IndexTuple *tuples, int done, int count, Size reserve)
{
	Page		page = edge->images[edge->count].data;

	while (done < count)
	{
		OffsetNumber last = PageGetMaxOffsetNumber(page);
		IndexTuple	tuple;
		int			n;

		if (PageGetExactFreeSpace(page) < reserve + sizeof(ItemIdData) && last > FirstOffsetNumber)
			break;
		n = form_posting(edge, tuples + done, count - done, &tuple);
		if (n > 1 && !leaf_has_room(page, tuple, tuples, done + n, count))
		{
			tuple = tuples[done];
			n = 1;
		}
		if (!leaf_has_room(page, tuple, tuples, done + n, count))
			break;
		sluice_btree_add_item(page, tuple, OffsetNumberNext(last));
		done += n;
	}
	return done;
}

/*
 * Starts a new leaf for this entry. Returns false if there may be no more
 * leaves, or if there is no space for the high key or the downlink.
 */
static bool
add_leaf(Edge *edge, IndexTuple first)
{
	Page		left = edge->images[edge->count].data;
	OffsetNumber last = PageGetMaxOffsetNumber(left);
	IndexTuple	pivot;

	if (edge->count == edge->limit || last < FirstOffsetNumber)
		return false;
	pivot = _bt_truncate(edge->index, (IndexTuple) PageGetItem(left, PageGetItemId(left, last)),
						 first, edge->key);
	if (sluice_btree_size(pivot) > PageGetExactFreeSpace(left) ||
		sluice_btree_size(pivot) > PageGetExactFreeSpace(edge->above->data))
		return false;
	sluice_btree_add_item(left, pivot, P_HIKEY);
	sluice_btree_add_item(edge->above->data, pivot,
			 OffsetNumberNext(PageGetMaxOffsetNumber(edge->above->data)));
	edge->count++;
	_bt_pageinit(edge->images[edge->count].data, BLCKSZ);
	return true;
}

/*
 * Forms the new contents of the pages, except for their links. Returns how
 * many entries are on them.
 */
static int
form_pages(Edge *edge, IndexTuple *tuples, int count)
{
	Size		reserve = BTGetTargetPageFreeSpace(edge->index);
	int			done;

	memcpy(edge->images[0].data, BufferGetPage(edge->leaf), BLCKSZ);
	done = fill_leaf(edge, tuples, 0, count, reserve);
	while (done < count && add_leaf(edge, tuples[done]))
		done = fill_leaf(edge, tuples, done, count, reserve);
	/*
	 * There is no parent to use, or it is full. Fill the leaf up: the next
	 * insertion then splits the leaf and, with it, the parent.
	 */
	if (done < count && (edge->count < edge->limit || edge->limit == 0))
		done = fill_leaf(edge, tuples, done, count, 0);
	return done;
}

/* Links the leaves to each other, and sets their downlinks in the parent. */
static void
link_pages(Edge *edge)
{
	BTCycleId	cycle = _bt_vacuum_cycleid(edge->index);
	Page		above = edge->above->data;
	OffsetNumber link = PageGetMaxOffsetNumber(above) - edge->count;
	BlockNumber left = BufferGetBlockNumber(edge->leaf);
	BTPageOpaque opaque = BTPageGetOpaque((Page) edge->images[0].data);

	opaque->btpo_flags &= ~BTP_SPLIT_END;
	opaque->btpo_cycleid = cycle;
	for (int i = 0; i < edge->count; i++)
	{
		BlockNumber block = BufferGetBlockNumber(edge->added[i]);

		opaque->btpo_next = block;
		opaque = BTPageGetOpaque((Page) edge->images[i + 1].data);
		opaque->btpo_prev = left;
		opaque->btpo_next = P_NONE;
		opaque->btpo_level = 0;
		opaque->btpo_flags = BTP_LEAF;
		opaque->btpo_cycleid = cycle;
		link = OffsetNumberNext(link);
		BTreeTupleSetDownLink((IndexTuple) PageGetItem(above, PageGetItemId(above, link)), block);
		left = block;
	}
}

/*
 * Replaces the whole page, under its lock. The LSN is set when the record is
 * written.
 */
static void
replace_page(Buffer buffer, const PGAlignedBlock *image)
{
	memcpy(BufferGetPage(buffer), image->data, BLCKSZ);
	MarkBufferDirty(buffer);
}

/*
 * Logs all changed pages in one record, in the order in which they are to be
 * restored.
 */
static void
log_pages(Edge *edge)
{
	Buffer		buffers[MAX_LEAVES + 2];
	int			n = edge->count;

	memcpy(buffers, edge->added, sizeof(Buffer) * n);
	buffers[n++] = edge->leaf;
	if (edge->count > 0)
		buffers[n++] = edge->parent;
	if (RelationNeedsWAL(edge->index))
		sluice_btree_log(buffers, n);
	else
		compat_mark_changed(edge->index, buffers, n);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Checks the images before they are installed: the leaves are linked, each has
 * entries, and the parent has a downlink for each new one.
 */
static void
check_images(Edge *edge)
{
	Page		above = edge->above->data;
	OffsetNumber links = edge->count > 0 ? PageGetMaxOffsetNumber(above) : 0;

	for (int i = 0; i <= edge->count; i++)
	{
		Page		page = (Page) edge->images[i].data;
		BTPageOpaque opaque = BTPageGetOpaque(page);

		Assert(P_ISLEAF(opaque) && !P_IGNORE(opaque));
		Assert(PageGetMaxOffsetNumber(page) >= P_FIRSTDATAKEY(opaque));
		Assert(P_RIGHTMOST(opaque) == (i == edge->count));
		if (i < edge->count)
			Assert(opaque->btpo_next == BufferGetBlockNumber(edge->added[i]));
		if (i > 0)
		{
			ItemId		item = PageGetItemId(above, links - edge->count + i);

			Assert(opaque->btpo_prev == BufferGetBlockNumber(i > 1 ? edge->added[i - 2] : edge->leaf));
			Assert(BTreeTupleGetDownLink((IndexTuple) PageGetItem(above, item)) ==
				   BufferGetBlockNumber(edge->added[i - 1]));
		}
	}
}
#endif

/*
 * Changes the tree. First comes everything that can fail: reserving record
 * space and allocating blocks. Then all pages change, and their record is
 * written, in one critical section.
 */
static void
install(Edge *edge)
{
	if (RelationNeedsWAL(edge->index))
		XLogEnsureRecordSpace(edge->count + 1, 0);
	sluice_btree_allocate(edge->build, edge->added, edge->count);
	if (edge->count > 0)
		link_pages(edge);
#ifdef USE_ASSERT_CHECKING
	check_images(edge);
#endif

	START_CRIT_SECTION();
	for (int i = 0; i < edge->count; i++)
		replace_page(edge->added[i], &edge->images[i + 1]);
	replace_page(edge->leaf, &edge->images[0]);
	if (edge->count > 0)
		replace_page(edge->parent, edge->above);
	log_pages(edge);
	END_CRIT_SECTION();

	/*
	 * A transaction that has read the end of the index holds a predicate lock
	 * on the old leaf. Copy it to the leaves that are the end now.
	 */
	for (int i = 0; i < edge->count; i++)
		PredicateLockPageSplit(edge->index, BufferGetBlockNumber(edge->leaf),
							   BufferGetBlockNumber(edge->added[i]));
}

/*
 * Unlocks the parent, then the new leaves, then the leaf. The order does not
 * matter, because nothing waits for a lock here.
 */
static void
release(Edge *edge)
{
	if (BufferIsValid(edge->parent))
		_bt_relbuf(edge->index, edge->parent);
	for (int i = 0; i < edge->count; i++)
		_bt_relbuf(edge->index, edge->added[i]);
	if (BufferIsValid(edge->leaf))
		_bt_relbuf(edge->index, edge->leaf);
	pfree(edge->key);
}

/*
 * Inserts entries at the end of a B-tree. They must be in index order. For a
 * unique index, they must have no NULL in their keys, and no two keys may be
 * equal. Returns how many were inserted, from the first one on. 0: an ordinary
 * insertion has to split the tree first. -1: the first entry does not come
 * after all existing ones, or that cannot be determined.
 *
 * The caller must reset the memory context.
 */
int
sluice_btree_append(SluiceIndexBuild *build, IndexTuple *tuples, int count)
{
	Relation	index = build->index;
	Edge		edge = {.build = build,.index = index};
	int			done = -1;

	edge.ready = sluice_btree_prepare_blocks(build);
	edge.images = palloc(sizeof(PGAlignedBlock) * (MAX_LEAVES + 1));
	edge.above = palloc(sizeof(PGAlignedBlock));
	if (find_leaf(&edge, tuples[0]))
	{
		CheckForSerializableConflictIn(index, NULL, BufferGetBlockNumber(edge.leaf));
		find_parent(&edge);
		open_posting(&edge);
		done = form_pages(&edge, tuples, count);
		if (done > 0)
			install(&edge);
	}
	release(&edge);
	pfree(edge.images);
	pfree(edge.above);
	return done;
}

/* Whether the entry comes after this item of the page. */
static bool
comes_after(Relation index, IndexTuple tuple, Page page, OffsetNumber last)
{
	BTScanInsert key = _bt_mkscankey(index, tuple);
	bool		after = key->heapkeyspace && _bt_compare(index, key, page, last) > 0;

	pfree(key);
	return after;
}

/*
 * Returns the number of the first entry from which on all come after
 * everything that the index has now. The entries are in index order.
 */
int
sluice_btree_append_from(Relation index, IndexTuple *tuples, int count)
{
	PGAlignedBlock copy;
	Page		page = (Page) copy.data;
	Buffer		leaf = compat_bt_last_leaf(index);
	OffsetNumber last;
	int			low = 0;
	int			high = count;

	if (!BufferIsValid(leaf))
		return 0;
	memcpy(page, BufferGetPage(leaf), BLCKSZ);
	_bt_relbuf(index, leaf);
	last = PageGetMaxOffsetNumber(page);
	if (last < P_FIRSTDATAKEY(BTPageGetOpaque(page)))
		return 0;
	if (!comes_after(index, tuples[count - 1], page, last))
		return count;
	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (comes_after(index, tuples[middle], page, last))
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}
