/*
 * Merges sorted entries into the leaves of a B-tree that other sessions can
 * use, anywhere in the tree.
 *
 * The access method's own insertion descends the tree, locks a leaf, makes room
 * and writes a WAL record for each entry, and it splits a leaf that gets many
 * entries again and again. Here one descent, one lock and one record serve all
 * entries of a leaf, and a leaf that overflows becomes as many leaves as it
 * needs at once.
 *
 * WHICH ENTRIES.  The first entry is searched for as nbtree searches before an
 * insertion, and the leaf is locked exclusively. Entries up to the leaf's high
 * key belong to it, because they are sorted. No other process can change that
 * while the lock is held.
 *
 * WHAT IS DONE WITH A LEAF.
 *   - The entries fit: they are put between the items. WAL has nbtree's own
 *     record for each entry, or one record of generic_xlog.c for all, whichever
 *     is smaller.
 *   - They do not fit: items and entries are put in order. If the index
 *     deduplicates, equal keys share posting lists, as after nbtree's own
 *     deduplication, which comes before a split. If all fits now, the leaf gets
 *     new contents.
 *   - Else up to MAX_ADDED new leaves to its right take a share each.
 * The access method does everything else: a leaf that is alone on its level, a
 * parent without room, items that are marked dead on a leaf without room. Then
 * as many entries as fit are put in place. If none fits, the caller
 * inserts one by index_insert(), which cleans up or splits, and calls again.
 *
 * THE INVARIANT.  At any time at which another process can look, the tree is
 * one that nbtree itself could have made: each level is sorted, each page but
 * the rightmost one of its level has a high key, siblings point to each other,
 * and each page has a downlink in its parent. No split is left incomplete.
 *
 * LOCKS.  First the leaf, then its right sibling, then the parent: from left
 * to right and from child to parent, the order of nbtree's own splits and page
 * deletions, so that there is no deadlock. New leaves are locked from the
 * moment at which their blocks are allocated. All locks are kept until all
 * pages have changed and the record is written.
 *
 * THE RECORD.  All pages that change are in one record, which any server
 * replays without our library. After a crash, either all of the change is there
 * or nothing. If a leaf becomes two, the record is one of generic_xlog.c: a
 * standby locks all its pages, changes them, and then unlocks them. If it
 * becomes more, the record is one of full images (XLOG_FPI). Replay restores
 * these one after the other, and queries on a standby may read in between. In
 * the order in which they are registered, each state is a valid tree:
 *   1. the new leaves, which nothing points to yet;
 *   2. the old leaf: its right link leads to the new ones, and its high key
 *      sends searches there;
 *   3. the left link of the right sibling;
 *   4. the parent with the new downlinks.
 * Between 2 and 3 a backward scan comes from the right sibling to the old
 * leaf. From there it moves right until it reaches the page before the
 * sibling, as after any split (_bt_walk_left). It looks at no more than five
 * pages before it reports corruption. So there are at most four new leaves.
 *
 * WHY DELTAS ARE SAFE.  generic_xlog.c logs the bytes that differ from the old
 * page. A page of nbtree has the same bytes on a standby, except for hints that
 * are not logged: dead items, and marks for VACUUM. A page with any of these is
 * logged whole. So is a leaf that is formed again, because most of its items
 * move.
 *
 * VACUUM may run at the same time. The old leaf and the new ones get its cycle
 * number, as after a split (_bt_vacuum_cycleid). By that number it finds
 * entries that have moved to a block that it has already passed.
 *
 * UNIQUE INDEXES.  The search is without a place in the table, so the leaf is the
 * first one that may have the key, and it stays locked from the check to the
 * insertion: every other insertion of the key has to lock it first. Of the
 * entries that follow, those belong to the leaf whose key is below its high
 * key; they are greater than the first one, so no leaf before this one has
 * their keys either. If the key is equal to the high key, equal ones may go on
 * to the next leaf, and the access method takes the entry. Items with the key
 * of an entry are checked as _bt_check_unique() does (btree_unique.c). If one of
 * them is a rival, or is another transaction's that is not finished, the
 * entries before this one are inserted; when it is the first, nothing is done,
 * and the caller gets the rival: it waits, with no lock held, and calls again,
 * or refuses the row. No two entries of a call have the same key (NULLs
 * apart): the caller compares neighbours. An index entry without NULLs and its
 * check are thus under one lock, as in _bt_doinsert().
 *
 * SERIALIZABLE transactions that have read a part of the leaf hold a predicate
 * lock on it. The conflict check comes before any change. The lock is
 * transferred to the new leaves, as for a split.
 *
 * AN ERROR before the critical section leaves the tree unchanged. All memory is
 * taken before blocks are; after an error between two of these, the new blocks
 * are zeros again, which VACUUM takes for free.
 */
#include "index/build.h"

#include "access/generic_xlog.h"
#include "access/nbtxlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"

/* New leaves at once: see above. */
#define MAX_ADDED 4

/* Bytes of a page for items and their line pointers. */
#define ROOM ((Size) (BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(BTPageOpaqueData))))

/*
 * The most bytes of new entries for one leaf: with what it has, they fit into
 * one and MAX_ADDED leaves.
 */
#define MOST (ROOM * 5 / 2)

/* The largest tuple with a posting list: that of nbtree's deduplication. */
#define MAX_POSTING Min(COMPAT_BT_MAX_ITEM / 2, INDEX_SIZE_MASK)

/* What a record of nbtree has beside the entry; and what one of deltas has. */
#define INSERT_RECORD 52
#define DELTA_RECORD 64

/* Equal keys that are put together. */
typedef struct EqualKeys
{
	IndexTuple	base;			/* the first of them; NULL: there is none yet */
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
	int			count;			/* that are merged now */
	BTScanInsert key;			/* of one of them after the other, once it is asked for */
	IndexTuple	tuple;			/* of which it is to be */
	bool		keyed;			/* and is */
	BTStack		stack;
	Buffer		leaf;
	Buffer		right;			/* its sibling, once it is to change */
	Buffer		parent;
	Buffer		added[MAX_ADDED];
	int			splits;			/* how many of these */
	bool		unique;			/* the first entry's key must not be there yet */
	bool		joins;			/* equal keys are put into lists */
	SluiceRival *rival;			/* of the first entry, if it has one */
	OffsetNumber *places;		/* of each entry, the item that it comes before */
	bool	   *within;			/* and whether its place in the table lies within the list before that */
	bool		equal;			/* that of the last entry looked at does */
	IndexTuple *items;			/* what the leaf and the new ones are to have */
	int			used;
	int			ends[MAX_ADDED + 1];	/* items of each of these leaves end before */
	IndexTuple	pivots[MAX_ADDED];	/* high keys of all but the last of them */
	PGAlignedBlock *images;
	GenericXLogState *record;	/* of a split into two */
	PGAlignedBlock *above;		/* the parent's image, of a split into more */
} Merge;

/*
 * The scan key is that of this entry from now on; without its place in the
 * table, if its key must not be there yet.
 */
static void
set_key(Merge *merge, IndexTuple tuple)
{
	bool		checked = sluice_btree_may_have_rival(merge->index, tuple);

	merge->tuple = tuple;
	merge->keyed = false;
	merge->key->scantid = checked ? NULL : &tuple->t_tid;
}

/* The scan key with its values. */
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

/* What _bt_compare() says of the key and an item of a leaf, by the rules of btree_compare.c where they will do. */
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

/* Whether items are marked as dead. */
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
 * Locks the leaf that the first entry belongs to. False where entries are in
 * the order of PostgreSQL 11.
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
	/* Equal keys of a unique index are few: of rows that are dead, or NULLs. */
	merge->joins = !merge->unique && merge->key->allequalimage &&
		BTGetDeduplicateItems(merge->index);
	return true;
}

/*
 * Whether an entry is not beyond the leaf's high key; of one whose key must not
 * be there yet, whether no other leaf may have that.
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
 * How many of the entries belong to the leaf, up to what is taken at once. Of a
 * unique index, it may be none.
 */
static int
count_entries(Merge *merge, int count)
{
	Page		page = BufferGetPage(merge->leaf);
	int			low = 0;		/* so many do */
	int			step = 1;
	Size		bytes = 0;

	if (!P_RIGHTMOST(BTPageGetOpaque(page)))
	{
		while (low < count && belongs(merge, page, Min(low + step, count) - 1))
		{
			low = Min(low + step, count);
			step *= 2;
		}
		/* The one at low + step - 1 does not, or there is none. */
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

/* Whether the key's entry comes behind an item; the key alone, before those that are equal. */
static bool
is_behind(Merge *merge, Page page, OffsetNumber at)
{
	int32		order = compare_item(merge, page, at);

	if (order == 0)
		merge->equal = true;
	return order > 0 || (order == 0 && merge->key->scantid != NULL);
}

/* The first item from `at` on that the key's entry comes before. */
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
 * The place of entry i, which must be the only row with its key: `at` is that
 * of the first item that is not below the key. Invalid: it has a rival, or
 * another transaction's row may become one.
 */
static OffsetNumber
place_alone(Merge *merge, Page page, int i, OffsetNumber at)
{
	ItemPointer own = &merge->tuples[i]->t_tid;

	if (!merge->equal)
		return at;
	if (sluice_btree_rival_on_leaf(merge->build->heap, merge->index, full_key(merge), merge->leaf, at, own,
								   merge->rival))
	{
		merge->rival->found = i == 0;
		return InvalidOffsetNumber;
	}
	/* All of them are dead: it goes between these by its place in the table. */
	merge->key->scantid = own;
	merge->equal = false;
	return find_place(merge, page, at);
}

/* Finds the places of the entries, up to one that is not to be taken. */
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
		/* The next one may lie within the same list. */
		if (i > 0 && merge->within[i - 1])
			at--;
		at = find_place(merge, page, at);
		if (merge->key->scantid == NULL)
			at = place_alone(merge, page, i, at);
		/* What is marked dead is not put into lists. */
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

/* How many of the entries, from the first one on, find room on the leaf as it is. */
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
 * How generic_xlog.c is to log a page: whole, if it has hints that a standby
 * does not have, or is to be in WAL whole anyway, as each page is once after a
 * checkpoint: then what differs is not worth looking for.
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

/* Whether single records for so many entries are less than one for the page. */
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
	/* The line pointers behind the first place move. */
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

/* Puts the first entries, for which there is room, between the leaf's items. */
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

/* Adds the places of a tuple to the group. */
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
 * The group is complete: its places go into as few lists as there can be. False
 * if a place is there twice.
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
 * Whether two tuples can share a posting list. nbtree asks for keys with the
 * same bytes. Lists are formed only in indexes where equal keys have the same
 * bytes (allequalimage), so btree_compare.c gives the same answer, much faster.
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
 * The next tuple in order. False if it lies within a list that it cannot join,
 * or is there twice: to the operator class its key is equal to the list's, but
 * it is not the same.
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
 * Puts what the leaf has and what comes in order, equal keys together where
 * the index has that. False: only the access method can.
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
	/* Lists that are put together are no more than they were, but for their ends. */
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
 * What a high key or downlink takes that is made of this tuple, at most: all
 * of its key, and a place in the table.
 */
static Size
pivot_size(IndexTuple tuple)
{
	return MAXALIGN(key_bytes(tuple)) + MAXALIGN(sizeof(ItemPointerData)) + sizeof(ItemIdData);
}

/*
 * Ends a leaf a few items earlier where the next leaf's first key then differs
 * from the one before it in an earlier column: that makes a shorter high key,
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
 * Deals the items out to leaves, each about as full as the others, and none
 * so full that the next entry splits it. The index's fillfactor is for its
 * right-hand end, to nbtree too. False: too many leaves.
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

/* Forms the image of one of the leaves, but for its links. */
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

/* The leaf gets new contents. */
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
 * Locks the right sibling and the parent. False if the leaf cannot be split
 * here. A leaf that is alone may be what the metapage names as the fast root:
 * its split, which is to change that, is the access method's.
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
		/* If not, nbtree's own split is to say so. */
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

/* Chains the leaves. */
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

/* Gives the parent's page the places of the new leaves. */
static void
add_downlinks(Merge *merge, Page above)
{
	for (int i = 0; i < merge->splits; i++)
	{
		/* The leaves have their copies of it. */
		IndexTuple	link = merge->pivots[i];

		BTreeTupleSetDownLink(link, BufferGetBlockNumber(merge->added[i]));
		sluice_btree_add_item(above, link, merge->stack->bts_offset + 1 + i);
	}
}

/* The block that the right sibling is to follow. */
static BlockNumber
last_block(const Merge *merge)
{
	return BufferGetBlockNumber(merge->added[merge->splits - 1]);
}

/*
 * Memory for the installation. It is taken before the new blocks are: an error
 * after these would leave pages in the index that nothing points to and VACUUM
 * does not take for free.
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

/* One new leaf: a record of what differs on the pages that were there. */
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

/* More new leaves: one record of images, in the order of the file's head. */
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
/* Before they are installed, the images are linked, and none is empty. */
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

/* The leaf becomes several. False, and nothing done: it cannot here. */
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
	/* A transaction that has read the old leaf has read all of these. */
	for (int i = 0; i < merge->splits; i++)
	{
		PredicateLockPageSplit(merge->index, BufferGetBlockNumber(merge->leaf),
							   BufferGetBlockNumber(merge->added[i]));
		_bt_relbuf(merge->index, merge->added[i]);
	}
	return true;
}

/* Merges all entries into one leaf or several; false if that cannot be. */
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
 * Inserts entries, which are in the order of the index, into the leaf that the
 * first one belongs to. Gives how many, from the first one on; 0: the first one
 * is the access method's, unless it has a rival.
 *
 * -1: none of the index's entries can be merged. The index is logged; `rival`
 * is not NULL if it is unique, and no two entries have the same key then. The
 * memory context is one that the caller resets.
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
