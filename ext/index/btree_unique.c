/*
 * Checks whether a unique B-tree already has a key. Does what
 * _bt_check_unique() of nbtinsert.c does, for entries that are inserted many
 * at a time.
 *
 * A row with an equal key is a rival of the new row if a dirty snapshot sees
 * it as live: a committed transaction or this one has inserted it, and neither
 * has deleted it. If another transaction that is still in progress has
 * inserted or deleted the row, nothing is decided yet: `wait` names that
 * transaction, like the result of _bt_check_unique(). HOT chains, TOAST and
 * speculative insertions are up to the table access method: the same function
 * reads the row (table_index_fetch_tuple_check).
 *
 * WHICH LOCK.  Every insertion of a key locks the first leaf that may have the
 * key, and keeps it locked from the check to the insertion. A search without a
 * heap TID (scantid is NULL) finds that leaf. So a backend that holds its lock
 * and finds no equal key may insert: see btree_merge.c. sluice_btree_look()
 * only reads, for a load that will be rejected, and may lock one leaf after
 * another.
 *
 * DEAD ROWS.  If no transaction can see the rows of an item any more, a merge
 * marks the item dead, as _bt_check_unique() does. When the leaf is full, the
 * access method removes these items before it splits the leaf. So a leaf does
 * not grow if the keys of deleted rows are loaded again.
 *
 * SERIALIZABLE.  Before a key is rejected, the leaf is checked for conflicts,
 * as _bt_check_unique() does. If there is one, the user should see a
 * serialization failure instead.
 */
#include "index/build.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/snapmgr.h"

/*
 * Whether entries with this key can have rivals. A key with a NULL cannot,
 * unless the index treats NULLs as equal.
 */
bool
sluice_btree_may_have_rival(Relation index, IndexTuple tuple)
{
	if (!index->rd_index->indisunique)
		return false;
	if (!IndexTupleHasNulls(tuple) || index->rd_index->indnullsnotdistinct)
		return true;
	for (int i = 1; i <= IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		bool		isnull;

		(void) index_getattr(tuple, i, RelationGetDescr(index), &isnull);
		if (isnull)
			return false;
	}
	return true;
}

/*
 * Whether the row with this TID is a rival. If not, `dead` tells whether no
 * transaction can see it any more.
 */
static bool
is_rival(Relation heap, ItemPointerData tid, SluiceRival *rival, bool *dead)
{
	ItemPointerData found = tid;	/* may move along the row's HOT chain */
	SnapshotData dirty;

	*dead = false;
	InitDirtySnapshot(dirty);
	if (!table_index_fetch_tuple_check(heap, &found, &dirty, dead))
		return false;
	rival->tid = tid;
	rival->wait = TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax;
	rival->speculative = dirty.speculativeToken;
	return true;
}

/*
 * Marks an item dead. This is a hint, which is not logged as a change. The
 * leaf must be locked exclusively: PostgreSQL 19 allows it under no weaker
 * lock without asking first.
 */
static void
mark_dead(Buffer leaf, ItemId item)
{
	ItemIdMarkDead(item);
	BTPageGetOpaque(BufferGetPage(leaf))->btpo_flags |= BTP_HAS_GARBAGE;
	MarkBufferDirtyHint(leaf, true);
}

/*
 * Looks for a rival among the items of a leaf that have the key, from `at` on.
 * Skips the entry's own row. With `marks` the leaf is locked exclusively, and
 * items of dead rows are marked.
 */
bool
sluice_btree_rival_on_leaf(Relation heap, Relation index, BTScanInsert key, Buffer leaf,
						   OffsetNumber at, ItemPointer own, bool marks, SluiceRival *rival)
{
	Page		page = BufferGetPage(leaf);
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	Assert(key->scantid == NULL);
	for (; at <= last && _bt_compare(index, key, page, at) == 0; at++)
	{
		ItemId		item = PageGetItemId(page, at);
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);
		ItemPointer tids = &tuple->t_tid;
		int			count = 1;
		bool		all_dead = true;

		if (ItemIdIsDead(item))
			continue;
		if (BTreeTupleIsPosting(tuple))
		{
			tids = BTreeTupleGetPosting(tuple);
			count = BTreeTupleGetNPosting(tuple);
		}
		for (int i = 0; i < count; i++)
		{
			bool		dead = false;

			if ((own && ItemPointerEquals(own, &tids[i])) || !is_rival(heap, tids[i], rival, &dead))
			{
				all_dead &= dead;
				continue;
			}
			if (!TransactionIdIsValid(rival->wait))
				CheckForSerializableConflictIn(index, NULL, BufferGetBlockNumber(leaf));
			return true;
		}
		if (marks && all_dead)
			mark_dead(leaf, item);
	}
	return false;
}

/* The first item of a leaf that is not below the key. */
static OffsetNumber
first_not_below(Relation index, BTScanInsert key, Page page)
{
	OffsetNumber low = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	OffsetNumber high = OffsetNumberNext(PageGetMaxOffsetNumber(page));

	while (low < high)
	{
		OffsetNumber middle = low + (high - low) / 2;

		if (_bt_compare(index, key, page, middle) > 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Moves to the next leaf if items with the key may continue there. If not,
 * releases the leaf and returns InvalidBuffer.
 */
static Buffer
next_leaf(Relation index, BTScanInsert key, Buffer leaf)
{
	BTPageOpaque opaque = BTPageGetOpaque(BufferGetPage(leaf));

	if (P_RIGHTMOST(opaque) || _bt_compare(index, key, BufferGetPage(leaf), P_HIKEY) != 0)
	{
		_bt_relbuf(index, leaf);
		return InvalidBuffer;
	}
	do
	{
		if (P_RIGHTMOST(opaque))
			elog(ERROR, "fell off the end of index \"%s\"", RelationGetRelationName(index));
		leaf = _bt_relandgetbuf(index, leaf, opaque->btpo_next, BT_READ);
		opaque = BTPageGetOpaque(BufferGetPage(leaf));
	} while (P_IGNORE(opaque));
	return leaf;
}

/* Whether the entry has a rival now. */
static bool
has_rival(Relation heap, Relation index, IndexTuple tuple, SluiceRival *rival)
{
	BTScanInsert key = _bt_mkscankey(index, tuple);
	bool		found = false;
	Buffer		leaf;

	key->scantid = NULL;
	(void) compat_bt_search(index, heap, key, &leaf);
	while (BufferIsValid(leaf))
	{
		OffsetNumber at = first_not_below(index, key, BufferGetPage(leaf));

		found = sluice_btree_rival_on_leaf(heap, index, key, leaf, at, &tuple->t_tid, false, rival);
		if (found)
		{
			_bt_relbuf(index, leaf);
			break;
		}
		leaf = next_leaf(index, key, leaf);
	}
	return found;
}

/*
 * Waits for the end of the transaction that decides about the rival of a new
 * row. The error of a wait that fails names that new row, which is in `own`. No
 * page may be locked.
 */
void
sluice_btree_wait(Relation index, const SluiceRival *rival, ItemPointer own)
{
	if (rival->speculative)
		SpeculativeInsertionWait(rival->wait, rival->speculative);
	else
		XactLockTableWait(rival->wait, index, own, XLTW_InsertIndex);
}

/*
 * Whether another row has the entry's key. Waits for transactions that decide
 * it. With `at_once` it does not wait: a row that is not decided yet counts as
 * no conflict. The caller must reset the memory context.
 */
bool
sluice_btree_look(Relation heap, Relation index, IndexTuple tuple, bool at_once,
				  SluiceRival *rival)
{
	if (!sluice_btree_may_have_rival(index, tuple))
		return false;
	while (has_rival(heap, index, tuple, rival))
	{
		if (!TransactionIdIsValid(rival->wait))
			return true;
		if (at_once)
			return false;
		CHECK_FOR_INTERRUPTS();
		sluice_btree_wait(index, rival, &tuple->t_tid);
	}
	return false;
}
