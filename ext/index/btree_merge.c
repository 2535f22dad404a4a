/*
 * Merges sorted entries into the leaves of a B-tree that other sessions can
 * use, anywhere in the tree.
 *
 * The access method's own insertion descends the tree, locks a leaf, makes
 * room and writes a WAL record for each entry. If a leaf gets many entries, it
 * is split again and again. Here one descent, one lock and one record serve
 * all entries of a leaf, and a leaf that overflows is split into as many
 * leaves as it needs at once.
 *
 * WHICH ENTRIES.  The first entry is searched for as nbtree searches before an
 * insertion, and the leaf is locked exclusively. The entries are sorted, so
 * those up to the leaf's high key belong to it. No other process can change
 * that while the lock is held.
 *
 * WHAT IS DONE WITH A LEAF.
 *   - The entries fit: they are added between the items. WAL gets nbtree's own
 *     record for each entry, or one record of generic_xlog.c for all,
 *     whichever is smaller.
 *   - They do not fit: items and entries are merged in order. If the index
 *     deduplicates, equal keys share posting lists, as after nbtree's own
 *     deduplication, which comes before a split. If everything fits now, the
 *     leaf gets new contents.
 *   - If it still does not fit, up to MAX_ADDED new leaves to the right take a
 *     share each.
 * The access method does everything else: a leaf without siblings, a parent
 * without space, items that are marked dead on a leaf without space. In these
 * cases, as many entries as fit are added. If none fits, the caller inserts
 * one with index_insert(), which cleans up or splits, and calls again.
 *
 * THE INVARIANT.  At any time at which another process can look, the tree is
 * one that nbtree itself could have made: each level is sorted, each page
 * except the rightmost one of its level has a high key, siblings point to each
 * other, and each page has a downlink in its parent. No split is left
 * incomplete.
 *
 * LOCKS.  First the leaf, then its right sibling, then the parent: from left
 * to right and from child to parent. This is the order of nbtree's own splits
 * and page deletions, so that there is no deadlock. New leaves are locked from
 * the moment at which their blocks are allocated. All locks are kept until all
 * pages have changed and the record is written.
 *
 * THE RECORD.  All pages that change are in one record, which any server
 * replays without our library. After a crash, either the whole change is there
 * or nothing of it. If a leaf becomes two, the record is one of
 * generic_xlog.c: a standby locks all its pages, changes them, and then
 * unlocks them. If it becomes more, the record is one of full images
 * (XLOG_FPI). Replay restores these one after the other, and queries on a
 * standby may read in between. In the order in which they are registered, each
 * state is a valid tree:
 *   1. the new leaves, which nothing points to yet;
 *   2. the old leaf: its right link leads to the new ones, and its high key
 *      sends searches there;
 *   3. the left link of the right sibling;
 *   4. the parent with the new downlinks.
 * Between 2 and 3, a backward scan steps from the right sibling to the old
 * leaf. From there it moves right until it reaches the page before the
 * sibling, as after any split (_bt_walk_left). It looks at no more than five
 * pages before it reports corruption. So there are at most four new leaves.
 *
 * WHY DELTAS ARE SAFE.  generic_xlog.c logs the bytes that differ from the old
 * page. A page of nbtree has the same bytes on a standby, except for hints
 * that are not logged: items marked dead, and marks for VACUUM. A page with
 * any of these is logged whole. So is a leaf that is formed again, because
 * most of its items move. A standby may keep a mark that VACUUM has removed
 * here: it does no harm there, but wal_consistency_checking reports it.
 *
 * VACUUM may run at the same time. The old leaf and the new ones get its cycle
 * ID, as after a split (_bt_vacuum_cycleid). It shows VACUUM that entries may
 * have moved to a block that it has already passed.
 *
 * UNIQUE INDEXES.  The search has no heap TID, so it finds the first leaf that
 * may have the key. That leaf stays locked from the check to the insertion,
 * and every other insertion of the key has to lock it first. Of the entries
 * that follow, those with a key below the high key belong to the leaf. They
 * are greater than the first one, so no leaf before this one has their keys
 * either. If a key is equal to the high key, equal keys may continue on the
 * next leaf, and the access method takes the entry. Items with the key of an
 * entry are checked as _bt_check_unique() does (btree_unique.c). If one of
 * them is a rival, or belongs to another transaction that is still in
 * progress, only the entries before this one are inserted. If there are none
 * before it, nothing is done, and the caller gets the rival. The caller waits,
 * with no lock held, and calls again, or it rejects the row. No two entries of
 * a call have the same key (NULLs apart): the caller compares adjacent ones.
 * So an index entry without NULLs is checked and inserted under one lock, as
 * in _bt_doinsert().
 *
 * SERIALIZABLE transactions that have read a part of the leaf hold a predicate
 * lock on it. The conflict check comes before any change. The lock is copied
 * to the new leaves, as for a split.
 *
 * AN ERROR before the critical section leaves the tree unchanged. All memory
 * is allocated before any block is. If the allocation of a block fails, the
 * new blocks before it are zeroed again, and VACUUM treats them as free.
 */
#include "index/build.h"

#include "access/generic_xlog.h"
#include "access/nbtxlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"

/* The most new leaves at once: see THE RECORD. */
#define MAX_ADDED 4

/* Bytes of a page for items and their line pointers. */
#define ROOM ((Size) (BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(BTPageOpaqueData))))

/*
 * The most bytes of new entries for one leaf. Together with the leaf's items,
 * they fit into 1 + MAX_ADDED leaves.
 */
#define MOST (ROOM * 5 / 2)

/* The largest tuple with a posting list, as in nbtree's deduplication. */
#define MAX_POSTING Min(COMPAT_BT_MAX_ITEM / 2, INDEX_SIZE_MASK)

/*
 * Bytes of nbtree's record for an entry without the entry, and of a generic
 * record without its deltas.
 */
#define INSERT_RECORD 52
#define DELTA_RECORD 64

/* A group of tuples with equal keys, which are combined into posting lists. */
typedef struct EqualKeys
{
	IndexTuple	base;			/* the first of them; NULL: none yet */
	int			members;
	ItemPointerData *tids;
	int			count;
	int			allocated;
	bool		in_order;
} EqualKeys;

typedef struct Merge
{
	SluiceIndexBuild *build;
	Relation	index;
	IndexTuple *tuples;			/* the new entries */
	int			count;			/* how many of them are merged now */
	BTScanInsert key;			/* for one entry after the other; its values are filled in when needed */
	IndexTuple	tuple;			/* the entry that the key is for */
	bool		keyed;			/* the key has that entry's values */
	BTStack		stack;
	Buffer		leaf;
	Buffer		right;			/* its right sibling, if it has to change */
	Buffer		parent;
	Buffer		added[MAX_ADDED];
	int			splits;			/* number of new leaves */
	bool		unique;			/* the first entry's key must not exist yet */
	bool		joins;			/* equal keys are combined into posting lists */
	SluiceRival *rival;			/* of the first entry, if it has one */
	OffsetNumber *places;		/* for each entry, the item that it goes before */
	bool	   *within;			/* whether its heap TID is within the posting list of the item before that */
	bool		equal;			/* the last search met an item that is equal, or whose list covers the TID */
	IndexTuple *items;			/* all tuples for the leaf and the new leaves */
	int			used;
	int			ends[MAX_ADDED + 1];	/* for each leaf, the end of its items */
	IndexTuple	pivots[MAX_ADDED];	/* high keys of all leaves but the last */
	PGAlignedBlock *images;
	GenericXLogState *record;	/* for a split into two */
	PGAlignedBlock *above;		/* the parent's image, for a split into more */
} Merge;

/*
 * Sets the scan key to this entry. It has no heap TID if the entry's key must
 * not exist yet.
 */
static void
set_key(Merge *merge, IndexTuple tuple)
{
	bool		checked = sluice_btree_may_have_rival(merge->index, tuple);

	merge->tuple = tuple;
	merge->keyed = false;
	merge->key->scantid = checked ? NULL : &tuple->t_tid;
}

/* The scan key, with its values filled in. */
static BTScanInsert
full_key(Merge *merge)
{
	TupleDesc	desc = RelationGetDescr(merge->index);

	for (int i = 0; i < merge->key->keysz && !merge->keyed; i++)
	{
		ScanKey		part = &merge->key->scankeys[i];
		bool		isnull;

		part->sk_argument = index_getattr(merge->tuple, i + 1, desc, &isnull);
		part->sk_flags = isnull ? part->sk_flags | SK_ISNULL : part->sk_flags & ~SK_ISNULL;
	}
	merge->keyed = true;
	return merge->key;
}

/*
 * Compares the key with an item of a leaf, as _bt_compare() does, by the rules
 * of btree_compare.c where they suffice.
 */
static int32
compare_item(Merge *merge, Page page, OffsetNumber at)
{
	IndexTuple	item = (IndexTuple) PageGetItem(page, PageGetItemId(page, at));
	ItemPointer place = merge->key->scantid;
	int32		order;

	if (!sluice_btree_order(merge->build->attributes, merge->key->keysz, merge->tuple, item, &order))
		return _bt_compare(merge->index, full_key(merge), page, at);
	if (order != 0 || place == NULL)
		return order;
	order = ItemPointerCompare(place, BTreeTupleGetHeapTID(item));
	if (order <= 0 || !BTreeTupleIsPosting(item))
		return order;
	return ItemPointerCompare(place, BTreeTupleGetMaxHeapTID(item)) > 0 ? 1 : 0;
}

/* Whether items of the page are marked dead. */
static bool
has_dead(Page page)
{
	for (OffsetNumber at = P_FIRSTDATAKEY(BTPageGetOpaque(page));
		 at <= PageGetMaxOffsetNumber(page); at++)
	{
		if (ItemIdIsDead(PageGetItemId(page, at)))
			return true;
	}
	return false;
}

/*
 * Locks the leaf that the first entry belongs to. Returns false if the index
 * has the format of PostgreSQL 11 or older, without heap TIDs in the order of
 * entries.
 */
static bool
find_leaf(Merge *merge)
{
	BTPageOpaque opaque PG_USED_FOR_ASSERTS_ONLY;

	merge->key = _bt_mkscankey(merge->index, merge->tuples[0]);
	if (!merge->key->heapkeyspace)
		return false;
	if (sluice_btree_may_have_rival(merge->index, merge->tuples[0]))
	{
		merge->unique = true;
		merge->key->scantid = NULL;
	}
	merge->stack = compat_bt_search(merge->index, merge->build->heap, merge->key, &merge->leaf);
	opaque = BTPageGetOpaque(BufferGetPage(merge->leaf));
	Assert(P_ISLEAF(opaque) && !P_IGNORE(opaque) && !P_INCOMPLETE_SPLIT(opaque));
	/* A unique index has few equal keys: those of dead rows, or NULLs. */
	merge->joins = !merge->unique && merge->key->allequalimage &&
		BTGetDeduplicateItems(merge->index);
	return true;
}

/*
 * Whether an entry belongs to the leaf: it is not above the high key. If its
 * key must not exist yet, no other leaf may have that key either.
 */
static bool
belongs(Merge *merge, Page page, int i)
{
	int32		order;

	set_key(merge, merge->tuples[i]);
	order = _bt_compare(merge->index, full_key(merge), page, P_HIKEY);
	return order < 0 || (order == 0 && merge->key->scantid != NULL);
}

/*
 * How many of the entries belong to the leaf, up to the limit for one call. In
 * a unique index, it may be none.
 */
static int
count_entries(Merge *merge, int count)
{
	Page		page = BufferGetPage(merge->leaf);
	int			low = 0;		/* this many belong to it */
	int			step = 1;
	Size		bytes = 0;

	if (!P_RIGHTMOST(BTPageGetOpaque(page)))
	{
		while (low < count && belongs(merge, page, Min(low + step, count) - 1))
		{
			low = Min(low + step, count);
			step *= 2;
		}
		/*
		 * Entry low + step - 1 does not belong to the leaf, or does not exist.
		 */
		count = Min(low + step, count);
		while (low < count)
		{
			int			middle = low + (count - low) / 2;

			if (belongs(merge, page, middle))
				low = middle + 1;
			else
				count = middle;
		}
	}
	for (low = 0; low < count && bytes <= MOST; low++)
		bytes += sluice_btree_size(merge->tuples[low]);
	return low;
}

/*
 * Whether the key's entry comes after an item. A key without a heap TID comes
 * before items with an equal key.
 */
static bool
is_behind(Merge *merge, Page page, OffsetNumber at)
{
	int32		order = compare_item(merge, page, at);

	if (order == 0)
		merge->equal = true;
	return order > 0 || (order == 0 && merge->key->scantid != NULL);
}

/* The first item, from `at` on, that the key's entry goes before. */
static OffsetNumber
find_place(Merge *merge, Page page, OffsetNumber at)
{
	OffsetNumber end = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	OffsetNumber high = at;
	int			step = 1;

	while (high < end && is_behind(merge, page, high))
	{
		at = high + 1;
		high = at + step;
		step *= 2;
	}
	high = Min(high, end);
	while (at < high)
	{
		OffsetNumber middle = at + (high - at) / 2;

		if (is_behind(merge, page, middle))
			at = middle + 1;
		else
			high = middle;
	}
	return at;
}

/*
 * Finds the place of entry i, which must be the only live row with its key.
 * `at` is the first item that is not below the key. Returns
 * InvalidOffsetNumber if the entry has a rival, or if another transaction's
 * row may become one.
 */
static OffsetNumber
place_alone(Merge *merge, Page page, int i, OffsetNumber at)
{
	ItemPointer own = &merge->tuples[i]->t_tid;

	if (!merge->equal)
		return at;
	if (sluice_btree_rival_on_leaf(merge->build->heap, merge->index, full_key(merge), merge->leaf, at, own,
								   true, merge->rival))
	{
		merge->rival->found = i == 0;
		return InvalidOffsetNumber;
	}
	/*
	 * All rows with this key are dead. The entry goes between their items, in
	 * the order of heap TIDs. Items may be marked dead now, but have not moved.
	 */
	merge->key->scantid = own;
	merge->equal = false;
	return find_place(merge, page, at);
}

/*
 * Finds the places of the entries, up to the first one that cannot be taken.
 */
static void
find_places(Merge *merge)
{
	Page		page = BufferGetPage(merge->leaf);
	OffsetNumber at = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	bool		joins = merge->joins;

	merge->places = palloc(sizeof(OffsetNumber) * merge->count);
	merge->within = palloc(sizeof(bool) * merge->count);
	for (int i = 0; i < merge->count; i++)
	{
		set_key(merge, merge->tuples[i]);
		merge->equal = false;
		/*
		 * This entry may be within the same posting list as the previous one.
		 */
		if (i > 0 && merge->within[i - 1])
			at--;
		at = find_place(merge, page, at);
		if (merge->key->scantid == NULL)
			at = place_alone(merge, page, i, at);
		/* Items that are marked dead are not combined into posting lists. */
		joins = joins && !(merge->equal && has_dead(page));
		if (at == InvalidOffsetNumber || (merge->equal && !joins))
		{
			merge->count = i;
			return;
		}
		merge->places[i] = at;
		merge->within[i] = merge->equal;
	}
}

/* How many of the entries, from the first one on, fit on the leaf as it is. */
static int
count_fitting(const Merge *merge)
{
	Size		room = PageGetExactFreeSpace(BufferGetPage(merge->leaf));
	int			n = 0;

	for (; n < merge->count; n++)
	{
		Size		size = sluice_btree_size(merge->tuples[n]);

		if (size > room || merge->within[n])
			break;
		room -= size;
	}
	return n;
}

/*
 * How generic_xlog.c is to log a page. It logs the page whole if the page has
 * hints that a standby does not have. It also does so if WAL gets the whole
 * page anyway, as happens once after each checkpoint. Then there is no point
 * in looking for differences.
 */
static int
log_flags(Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = BTPageGetOpaque(page);

	if ((opaque->btpo_flags & (BTP_HAS_GARBAGE | BTP_SPLIT_END)) != 0 ||
		opaque->btpo_cycleid != 0 || XLogCheckBufferNeedsBackup(buffer) || has_dead(page))
		return GENERIC_XLOG_FULL_IMAGE;
	return 0;
}

/*
 * Whether single records for this many entries take less WAL than one record
 * for the page.
 */
static bool
singly(const Merge *merge, int count, int flags)
{
	Page		page = BufferGetPage(merge->leaf);
	Size		records = 0;
	Size		whole = ROOM - PageGetExactFreeSpace(page);
	Size		delta = DELTA_RECORD;

	for (int i = 0; i < count; i++)
	{
		records += MAXALIGN(INSERT_RECORD + IndexTupleSize(merge->tuples[i]));
		delta += IndexTupleSize(merge->tuples[i]) + sizeof(ItemIdData);
	}
	if (XLogCheckBufferNeedsBackup(merge->leaf))
		return false;
	/* The line pointers after the first new entry move. */
	delta += (count + PageGetMaxOffsetNumber(page) - merge->places[0]) * sizeof(ItemIdData);
	return records <= ((flags & GENERIC_XLOG_FULL_IMAGE) != 0 ? whole : Min(delta, whole));
}

/* Adds an entry to the leaf, logged as nbtree logs it. */
static void
insert_singly(Merge *merge, IndexTuple tuple, OffsetNumber at)
{
	Page		page = BufferGetPage(merge->leaf);
	xl_btree_insert record = {.offnum = at};
	XLogRecPtr	lsn;

	START_CRIT_SECTION();
	if (PageAddItem(page, (char *) tuple, MAXALIGN(IndexTupleSize(tuple)), at, false,
					false) == InvalidOffsetNumber)
		elog(PANIC, "pgsluice: no room for an entry on an index page");
	MarkBufferDirty(merge->leaf);
	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfBtreeInsert);
	XLogRegisterBuffer(0, merge->leaf, REGBUF_STANDARD);
	XLogRegisterBufData(0, (char *) tuple, IndexTupleSize(tuple));
	lsn = XLogInsert(RM_BTREE_ID, XLOG_BTREE_INSERT_LEAF);
	PageSetLSN(page, lsn);
	END_CRIT_SECTION();
}

/*
 * Adds the first `count` entries, for which there is space, between the leaf's
 * items.
 */
static void
put_in_place(Merge *merge, int count)
{
	int			flags = count > 1 ? log_flags(merge->leaf) : 0;
	GenericXLogState *state;
	Page		page;

	if (count == 1 || singly(merge, count, flags))
	{
		for (int i = 0; i < count; i++)
			insert_singly(merge, merge->tuples[i], merge->places[i] + i);
		return;
	}
	state = GenericXLogStart(merge->index);
	page = GenericXLogRegisterBuffer(state, merge->leaf, flags);
	for (int i = 0; i < count; i++)
		sluice_btree_add_item(page, merge->tuples[i], merge->places[i] + i);
	GenericXLogFinish(state);
}

static int
compare_tids(const void *a, const void *b)
{
	return ItemPointerCompare((ItemPointer) a, (ItemPointer) b);
}

/* Bytes of a leaf's tuple without its posting list. */
static Size
key_bytes(IndexTuple tuple)
{
	return BTreeTupleIsPosting(tuple) ? BTreeTupleGetPostingOffset(tuple) : IndexTupleSize(tuple);
}

/* Adds the heap TIDs of a tuple to the group. */
static void
add_places(EqualKeys *group, IndexTuple tuple)
{
	ItemPointer places = &tuple->t_tid;
	int			count = 1;

	if (BTreeTupleIsPosting(tuple))
	{
		places = BTreeTupleGetPosting(tuple);
		count = BTreeTupleGetNPosting(tuple);
	}
	if (group->count + count > group->allocated)
	{
		group->allocated = Max(2 * group->allocated, MaxTIDsPerBTreePage + count);
		group->tids = group->tids == NULL ?
			palloc(sizeof(ItemPointerData) * group->allocated) :
			repalloc(group->tids, sizeof(ItemPointerData) * group->allocated);
	}
	if (group->count > 0 && ItemPointerCompare(&group->tids[group->count - 1], places) >= 0)
		group->in_order = false;
	memcpy(&group->tids[group->count], places, sizeof(ItemPointerData) * count);
	group->count += count;
	group->members++;
}

/*
 * Ends the group: its heap TIDs go into as few posting lists as possible.
 * Returns false if a TID is in it twice.
 */
static bool
end_group(Merge *merge, EqualKeys *group)
{
	Size		key = group->base ? key_bytes(group->base) : 0;
	int			most = Max(1, ((int) MAX_POSTING - (int) key) / (int) sizeof(ItemPointerData));

	if (group->members <= 1)
	{
		if (group->base)
			merge->items[merge->used++] = group->base;
		return true;
	}
	if (!group->in_order)
	{
		qsort(group->tids, group->count, sizeof(ItemPointerData), compare_tids);
		for (int i = 1; i < group->count; i++)
		{
			if (ItemPointerEquals(&group->tids[i - 1], &group->tids[i]))
				return false;
		}
	}
	for (int done = 0; done < group->count; done += most)
		merge->items[merge->used++] = _bt_form_posting(group->base, group->tids + done,
													   Min(most, group->count - done));
	return true;
}

/*
 * Whether two tuples can share a posting list. nbtree requires that their keys
 * have the same bytes. Posting lists are formed only in indexes where equal
 * keys have the same bytes (allequalimage). So btree_compare.c gives the same
 * answer, much faster.
 */
static bool
same_key(const Merge *merge, IndexTuple a, IndexTuple b)
{
	int			keys = IndexRelationGetNumberOfKeyAttributes(merge->index);
	int			order;

	if (sluice_btree_order(merge->build->attributes, keys, a, b, &order))
		return order == 0;
	return _bt_keep_natts_fast(merge->index, a, b) > keys;
}

/*
 * Adds the next tuple in order. Returns false if its TID is within a posting
 * list that it cannot join, or is there twice. It cannot join if the operator
 * class says that its key equals the list's, but same_key() does not.
 */
static bool
add_tuple(Merge *merge, EqualKeys *group, IndexTuple tuple, bool within)
{
	if (!merge->joins)
	{
		merge->items[merge->used++] = tuple;
		return true;
	}
	if (group->base == NULL || !same_key(merge, group->base, tuple))
	{
		if (within || !end_group(merge, group))
			return false;
		group->base = tuple;
		group->members = group->count = 0;
		group->in_order = true;
	}
	add_places(group, tuple);
	return true;
}

/*
 * Merges the leaf's items and the new entries in order. Combines equal keys,
 * if the index deduplicates. Returns false if only the access method can do
 * this.
 */
static bool
form_items(Merge *merge)
{
	Page		page = BufferGetPage(merge->leaf);
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	EqualKeys	group = {.in_order = true};
	bool		fine = true;
	int			next = 0;

	if (has_dead(page))
		return false;
	/*
	 * Combining does not make more lists than there were, apart from those at
	 * the ends.
	 */
	merge->items = palloc(sizeof(IndexTuple) * (last + merge->count + MaxTIDsPerBTreePage));
	for (OffsetNumber at = P_FIRSTDATAKEY(BTPageGetOpaque(page)); at <= last && fine; at++)
	{
		for (; next < merge->count && merge->places[next] <= at && fine; next++)
			fine = add_tuple(merge, &group, merge->tuples[next], merge->within[next]);
		fine = fine && add_tuple(merge, &group, (IndexTuple) PageGetItem(page, PageGetItemId(page, at)), false);
	}
	for (; next < merge->count && fine; next++)
		fine = add_tuple(merge, &group, merge->tuples[next], merge->within[next]);
	return fine && end_group(merge, &group);
}

/*
 * The most space that a high key or downlink made from this tuple takes: the
 * whole key and a heap TID.
 */
static Size
pivot_size(IndexTuple tuple)
{
	return MAXALIGN(key_bytes(tuple)) + MAXALIGN(sizeof(ItemPointerData)) + sizeof(ItemIdData);
}

/*
 * Ends a leaf a few items earlier if the next leaf's first key then differs
 * from the key before it in an earlier column. That makes a shorter high key,
 * and keeps equal keys together.
 */
static int
better_end(const Merge *merge, int first, int end)
{
	int			best = end;
	int			fewest = _bt_keep_natts_fast(merge->index, merge->items[end - 1], merge->items[end]);
	int			lowest = Max(first + 1, end - Max(1, (end - first) / 16));

	for (int i = end - 1; i >= lowest && fewest > 1; i--)
	{
		int			kept = _bt_keep_natts_fast(merge->index, merge->items[i - 1], merge->items[i]);

		if (kept < fewest)
		{
			fewest = kept;
			best = i;
		}
	}
	return best;
}

/*
 * Distributes the items among leaves. Each is about as full as the others, and
 * none is so full that the next entry splits it. The index's fillfactor
 * applies only to its right-hand end, as in nbtree. Returns false if MAX_ADDED
 * new leaves are not enough.
 */
static bool
deal_out(Merge *merge)
{
	Page		page = BufferGetPage(merge->leaf);
	Size		high = P_RIGHTMOST(BTPageGetOpaque(page)) ? 0 :
		sluice_btree_size((IndexTuple) PageGetItem(page, PageGetItemId(page, P_HIKEY)));
	Size		fill = ROOM * BTREE_DEFAULT_FILLFACTOR / 100;
	Size		left = 0;
	int			pages;
	int			n = 0;

	for (int i = 0; i < merge->used; i++)
		left += sluice_btree_size(merge->items[i]);
	pages = left + high <= ROOM ? 1 : Max(2, (left + fill - 1) / fill);
	for (merge->splits = -1; n < merge->used; pages--)
	{
		int			first = n;
		Size		used = 0;

		if (++merge->splits > MAX_ADDED)
			return false;
		if (pages <= 1 && left + high <= ROOM)
			n = merge->used;
		for (; n < merge->used; n++)
		{
			Size		size = sluice_btree_size(merge->items[n]);
			Size		after = n + 1 < merge->used ? pivot_size(merge->items[n + 1]) : high;

			if (used + size + after > ROOM ||
				(pages > 1 && n > first && used + size / 2 > left / pages))
				break;
			used += size;
		}
		if (n == first)
			return false;
		if (n < merge->used)
			n = better_end(merge, first, n);
		for (int i = first; i < n; i++)
			left -= sluice_btree_size(merge->items[i]);
		merge->ends[merge->splits] = n;
	}
	return true;
}

/* Forms the image of one of the leaves, except for its links. */
static void
form_image(Merge *merge, int i)
{
	Page		page = BufferGetPage(merge->leaf);
	Page		image = (Page) merge->images[i].data;
	BTPageOpaque old = BTPageGetOpaque(page);
	BTPageOpaque opaque;
	OffsetNumber at = P_HIKEY;

	_bt_pageinit(image, BLCKSZ);
	opaque = BTPageGetOpaque(image);
	*opaque = *old;
	opaque->btpo_flags &= ~BTP_HAS_GARBAGE;
	if (i < merge->splits)
		sluice_btree_add_item(image, merge->pivots[i], at++);
	else if (!P_RIGHTMOST(old))
		sluice_btree_add_item(image, (IndexTuple) PageGetItem(page, PageGetItemId(page, P_HIKEY)), at++);
	for (int n = i > 0 ? merge->ends[i - 1] : 0; n < merge->ends[i]; n++)
		sluice_btree_add_item(image, merge->items[n], at++);
	if (i == 0)
		PageSetLSN(image, PageGetLSN(page));
}

/* Forms high keys and images. */
static void
form_images(Merge *merge)
{
	for (int i = 0; i < merge->splits; i++)
		merge->pivots[i] = _bt_truncate(merge->index, merge->items[merge->ends[i] - 1],
										merge->items[merge->ends[i]], merge->key);
	merge->images = palloc(sizeof(PGAlignedBlock) * (merge->splits + 1));
	for (int i = 0; i <= merge->splits; i++)
		form_image(merge, i);
}

/* Replaces the contents of the leaf. */
static void
replace_leaf(Merge *merge)
{
	GenericXLogState *state = GenericXLogStart(merge->index);

	Assert(merge->splits == 0);
	memcpy(GenericXLogRegisterBuffer(state, merge->leaf, GENERIC_XLOG_FULL_IMAGE),
		   merge->images[0].data, BLCKSZ);
	GenericXLogFinish(state);
}

/*
 * Locks the right sibling and the parent. Returns false if the leaf cannot be
 * split here. A leaf without siblings may be the fast root that the metapage
 * names. Its split has to change the metapage, so it is left to the access
 * method.
 */
static bool
lock_around(Merge *merge)
{
	BTPageOpaque opaque = BTPageGetOpaque(BufferGetPage(merge->leaf));
	Size		needed = 0;

	if (merge->stack == NULL || (P_LEFTMOST(opaque) && P_RIGHTMOST(opaque)))
		return false;
	if (!P_RIGHTMOST(opaque))
	{
		merge->right = _bt_getbuf(merge->index, opaque->btpo_next, BT_WRITE);
		/* If the links disagree, let nbtree's own split report that. */
		if (BTPageGetOpaque(BufferGetPage(merge->right))->btpo_prev != BufferGetBlockNumber(merge->leaf))
			return false;
	}
	merge->parent = compat_bt_getstackbuf(merge->index, merge->build->heap, merge->stack,
										  BufferGetBlockNumber(merge->leaf));
	if (!BufferIsValid(merge->parent))
		return false;
	for (int i = 0; i < merge->splits; i++)
		needed += sluice_btree_size(merge->pivots[i]);
	return needed <= PageGetExactFreeSpace(BufferGetPage(merge->parent));
}

/* Links the leaves to each other. */
static void
link_leaves(Merge *merge)
{
	BTCycleId	cycle = _bt_vacuum_cycleid(merge->index);
	BlockNumber before = BufferGetBlockNumber(merge->leaf);
	BTPageOpaque opaque = BTPageGetOpaque((Page) merge->images[0].data);

	for (int i = 0;; i++)
	{
		opaque->btpo_flags &= ~BTP_SPLIT_END;
		opaque->btpo_cycleid = cycle;
		if (i == merge->splits)
			break;
		opaque->btpo_next = BufferGetBlockNumber(merge->added[i]);
		opaque = BTPageGetOpaque((Page) merge->images[i + 1].data);
		opaque->btpo_prev = before;
		before = BufferGetBlockNumber(merge->added[i]);
	}
	if (BufferIsValid(merge->right) &&
		BTPageGetOpaque(BufferGetPage(merge->right))->btpo_cycleid != cycle)
		opaque->btpo_flags |= BTP_SPLIT_END;
}

/* Adds the downlinks of the new leaves to the parent's page. */
static void
add_downlinks(Merge *merge, Page above)
{
	for (int i = 0; i < merge->splits; i++)
	{
		/* The images of the leaves have their own copies of it. */
		IndexTuple	link = merge->pivots[i];

		BTreeTupleSetDownLink(link, BufferGetBlockNumber(merge->added[i]));
		sluice_btree_add_item(above, link, merge->stack->bts_offset + 1 + i);
	}
}

/* The block that becomes the left sibling of the old right sibling. */
static BlockNumber
last_block(const Merge *merge)
{
	return BufferGetBlockNumber(merge->added[merge->splits - 1]);
}

/*
 * Allocates memory for the installation. This must come before the new blocks
 * are allocated: an error after that would leave pages in the index that
 * nothing points to and that VACUUM does not treat as free.
 */
static void
prepare_installation(Merge *merge)
{
	if (merge->splits == 1)
	{
		merge->record = GenericXLogStart(merge->index);
		return;
	}
	merge->above = palloc(sizeof(PGAlignedBlock));
	XLogEnsureRecordSpace(MAX_ADDED + 2, 0);
}

/*
 * Installs one new leaf. One generic record has the two leaves whole, and of
 * the right sibling and the parent only the differences, where log_flags()
 * allows that.
 */
static void
install_one(Merge *merge)
{
	GenericXLogState *state = merge->record;
	Page		page;

	memcpy(GenericXLogRegisterBuffer(state, merge->leaf, GENERIC_XLOG_FULL_IMAGE),
		   merge->images[0].data, BLCKSZ);
	memcpy(GenericXLogRegisterBuffer(state, merge->added[0], GENERIC_XLOG_FULL_IMAGE),
		   merge->images[1].data, BLCKSZ);
	if (BufferIsValid(merge->right))
	{
		page = GenericXLogRegisterBuffer(state, merge->right,
										 log_flags(merge->right));
		BTPageGetOpaque(page)->btpo_prev = last_block(merge);
	}
	page = GenericXLogRegisterBuffer(state, merge->parent,
									 log_flags(merge->parent));
	add_downlinks(merge, page);
	GenericXLogFinish(state);
}

/*
 * Installs several new leaves: one record of full images, in the order that
 * THE RECORD at the head of this file gives.
 */
static void
install_many(Merge *merge)
{
	Buffer		buffers[MAX_ADDED + 3];
	int			n = 0;
	PGAlignedBlock *above = merge->above;

	memcpy(above->data, BufferGetPage(merge->parent), BLCKSZ);
	add_downlinks(merge, (Page) above->data);

	START_CRIT_SECTION();
	for (int i = 0; i < merge->splits; i++)
	{
		memcpy(BufferGetPage(merge->added[i]), merge->images[i + 1].data, BLCKSZ);
		buffers[n++] = merge->added[i];
	}
	memcpy(BufferGetPage(merge->leaf), merge->images[0].data, BLCKSZ);
	buffers[n++] = merge->leaf;
	if (BufferIsValid(merge->right))
	{
		BTPageGetOpaque(BufferGetPage(merge->right))->btpo_prev = last_block(merge);
		buffers[n++] = merge->right;
	}
	memcpy(BufferGetPage(merge->parent), above->data, BLCKSZ);
	buffers[n++] = merge->parent;
	for (int i = 0; i < n; i++)
		MarkBufferDirty(buffers[i]);
	sluice_btree_log(buffers, n);
	END_CRIT_SECTION();
}

#ifdef USE_ASSERT_CHECKING
/*
 * Checks the images before they are installed: they are linked, and none is
 * empty.
 */
static void
check_images(Merge *merge)
{
	BTPageOpaque old = BTPageGetOpaque(BufferGetPage(merge->leaf));
	BlockNumber before = BufferGetBlockNumber(merge->leaf);

	for (int i = 0; i <= merge->splits; i++)
	{
		Page		page = (Page) merge->images[i].data;
		BTPageOpaque opaque = BTPageGetOpaque(page);

		Assert(P_ISLEAF(opaque) && !P_IGNORE(opaque) && !P_INCOMPLETE_SPLIT(opaque));
		Assert(PageGetMaxOffsetNumber(page) >= P_FIRSTDATAKEY(opaque));
		if (i == 0)
			Assert(opaque->btpo_prev == old->btpo_prev);
		else
		{
			Assert(opaque->btpo_prev == before);
			before = BufferGetBlockNumber(merge->added[i - 1]);
		}
		if (i < merge->splits)
			Assert(opaque->btpo_next == BufferGetBlockNumber(merge->added[i]));
		else
			Assert(opaque->btpo_next == old->btpo_next);
	}
}
#endif

/*
 * Splits the leaf into several. Returns false, with nothing changed, if that
 * cannot be done here.
 */
static bool
split(Merge *merge)
{
	if (!lock_around(merge))
		return false;
	prepare_installation(merge);
	sluice_btree_allocate(merge->build, merge->added, merge->splits);
	link_leaves(merge);
#ifdef USE_ASSERT_CHECKING
	check_images(merge);
#endif
	if (merge->splits == 1)
		install_one(merge);
	else
		install_many(merge);
	/*
	 * A transaction that has read the old leaf has also read what is on the
	 * new ones.
	 */
	for (int i = 0; i < merge->splits; i++)
	{
		PredicateLockPageSplit(merge->index, BufferGetBlockNumber(merge->leaf),
							   BufferGetBlockNumber(merge->added[i]));
		_bt_relbuf(merge->index, merge->added[i]);
	}
	return true;
}

/*
 * Merges all entries into one leaf or several. Returns false if that cannot be
 * done.
 */
static bool
rebuild(Merge *merge)
{
	if (!form_items(merge) || !deal_out(merge))
		return false;
	form_images(merge);
	if (merge->splits > 0)
		return split(merge);
	replace_leaf(merge);
	return true;
}

/*
 * Inserts entries, which are in index order, into the leaf that the first one
 * belongs to. Returns how many were inserted, from the first one on. 0: the
 * caller must insert the first one by the access method, unless it has a
 * rival. -1: no entry can be merged into this index.
 *
 * The index must be logged. `rival` is not NULL if the index is unique, and
 * then no two entries may have the same key. The caller must reset the memory
 * context.
 */
int
sluice_btree_merge(SluiceIndexBuild *build, IndexTuple *tuples, int count, SluiceRival *rival)
{
	Relation	index = build->index;
	Merge		merge = {
		.build = build,.index = index,.tuples = tuples,.rival = rival
	};
	int			done = 0;

	Assert(RelationNeedsWAL(index) && index->rd_index->indisunique == (rival != NULL));
	if (rival)
		rival->found = false;
	(void) sluice_btree_prepare_blocks(build);
	if (!find_leaf(&merge))
		return -1;
	merge.count = count_entries(&merge, count);
	Assert(merge.count > 0 || merge.unique);
	find_places(&merge);
	if (merge.count > 0)
	{
		CheckForSerializableConflictIn(index, NULL, BufferGetBlockNumber(merge.leaf));
		done = count_fitting(&merge);
		if (done < merge.count && rebuild(&merge))
			done = merge.count;
		else if (done > 0)
			put_in_place(&merge, done);
	}
	if (BufferIsValid(merge.parent))
		_bt_relbuf(index, merge.parent);
	if (BufferIsValid(merge.right))
		_bt_relbuf(index, merge.right);
	_bt_relbuf(index, merge.leaf);
	return done;
}
