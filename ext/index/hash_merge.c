/*
 * Merges the entries of many rows into a hash index that other sessions can
 * use.
 *
 * The access method's own insertion finds the bucket, locks its page and the
 * metapage, and writes a WAL record for each entry. Here the entries of many rows
 * wait in memory, in the order of the buckets. All of a bucket's that find room on
 * one of its pages go there under one lock and with one record.
 *
 * THE ORDER is that of the hash values read from their lowest bit on. Which
 * bucket an entry belongs to is said by the lowest bits, and how many of them
 * grows with the index. In this order the entries of a bucket are next to each
 * other however often the index grows meanwhile.
 *
 * WHAT IS DONE WITH A BUCKET is what _hash_doinsert() does, in the same order
 * and with the same locks, but for more than one entry:
 *   - the bucket's first page is locked and stays pinned to the end. A split needs
 *     that page without another pin (a cleanup lock), so none begins, and the
 *     bucket of an entry stays what it was found to be;
 *   - a split that has not been finished is finished first, if nobody else has the
 *     page pinned;
 *   - pages without room are passed over; at the end of the chain the access
 *     method adds a page;
 *   - entries go into the page, and their number to the metapage's count, with one
 *     record of generic_xlog.c, which any server replays without our library;
 *   - the access method splits buckets until it has as many as the count asks for.
 * A full page with entries that scans have marked as dead is cleaned up by the
 * access method's own insertion of one entry.
 *
 * THE INVARIANT.  At any time at which another process can look, the index is one
 * that the access method could have made: each page's entries are sorted by their
 * hash value, and the metapage's count is that of the entries. Both change in one
 * record and one critical section. A split moves half of a bucket into a new one
 * and needs nothing of what is here.
 *
 * LOCKS.  First a page of the bucket, then the metapage, as in
 * _hash_doinsert(). A page of the chain is unlocked before the next one is locked.
 *
 * WHY DELTAS ARE SAFE.  generic_xlog.c logs the bytes that differ from the old
 * page. A page of a hash index has the same bytes on a standby, except for dead
 * entries, whose marks are not logged. A page with any is logged whole. It
 * takes what lies between pd_lower and pd_upper for empty: the access method has
 * kept pd_lower behind the metapage's data since its changes are logged (10).
 *
 * SERIALIZABLE.  Readers have a predicate lock on the first page of the bucket. The
 * check is where _hash_doinsert() has it. A split transfers the locks.
 *
 * AN ERROR between two buckets leaves entries of rows that nobody sees, until
 * VACUUM removes both. Hash values are computed when the row is inserted: a
 * function that fails does so on its row's line.
 */
#include "index/build.h"

#include "access/generic_xlog.h"
#include "access/hash.h"
#include "access/itup.h"
#include "compat/gin_hash.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
#include "utils/memutils.h"

/* The most memory: far from as many rows as a number of 32 bits can count. */
#define MOST_MEMORY ((uint64) 16 * 1024 * 1024 * 1024)

struct HashMerge
{
	Relation	heap;
	Relation	index;
	Size		memory;
	MemoryContext entries;		/* of all that waits */
	MemoryContext row;			/* of what computing a hash value leaves */
	RowPlaces	places;
	RowPairs	pairs;			/* keys are hash values from their lowest bit on */
	IndexTuple	entry;			/* the last one that was formed */
	Buffer		metapage;		/* pinned while a bucket is filled */
};

/* The bits of a value from the lowest to the highest. */
static uint32
reversed(uint32 value)
{
	value = ((value >> 1) & 0x55555555) | ((value & 0x55555555) << 1);
	value = ((value >> 2) & 0x33333333) | ((value & 0x33333333) << 2);
	value = ((value >> 4) & 0x0f0f0f0f) | ((value & 0x0f0f0f0f) << 4);
	return __builtin_bswap32(value);
}

/* Nothing waits. */
static void
begin(HashMerge *merge)
{
	MemoryContextReset(merge->entries);
	memset(&merge->places, 0, sizeof(merge->places));
	memset(&merge->pairs, 0, sizeof(merge->pairs));
	merge->places.context = merge->entries;
	merge->pairs.context = merge->entries;
}

/* Lets the entries of an index wait, in so many bytes. */
HashMerge *
sluice_hash_merge_open(Relation heap, Relation index, Size memory)
{
	HashMerge  *merge = palloc0(sizeof(HashMerge));
	Datum		value = UInt32GetDatum(0);
	bool		isnull = false;

	merge->entry = index_form_tuple(RelationGetDescr(index), &value, &isnull);
	merge->heap = heap;
	merge->index = index;
	merge->memory = Min(memory, MOST_MEMORY);
	merge->entries = AllocSetContextCreate(CurrentMemoryContext, "pgsluice hash entries", ALLOCSET_DEFAULT_SIZES);
	merge->row = AllocSetContextCreate(CurrentMemoryContext, "pgsluice hash row", ALLOCSET_DEFAULT_SIZES);
	begin(merge);
	return merge;
}

/* The row has just been inserted into the table; its entry waits. There is none for NULL. */
void
sluice_hash_merge_add(HashMerge *merge, const ItemPointerData *tid, Datum value, bool isnull)
{
	MemoryContext old;
	uint32		hash;

	if (isnull)
		return;
	old = MemoryContextSwitchTo(merge->row);
	hash = _hash_datum2hashkey(merge->index, value);
	MemoryContextSwitchTo(old);
	MemoryContextReset(merge->row);
	sluice_row_pairs_add(&merge->pairs, reversed(hash), sluice_row_places_add(&merge->places, tid));
	if (sluice_row_pairs_bytes(&merge->pairs) + merge->places.allocated * sizeof(ItemPointerData) >=
		merge->memory)
		sluice_hash_merge_flush(merge);
}

/* The hash value of an entry that waits. */
static uint32
hash_of(const HashMerge *merge, Size i)
{
	return reversed((uint32) (merge->pairs.pairs[i] >> 32));
}

/* An entry that waits, up to the next call. */
static IndexTuple
form_entry(const HashMerge *merge, Size i)
{
	IndexTuple	entry = merge->entry;
	uint32		hash = hash_of(merge, i);

	memcpy((char *) entry + IndexInfoFindDataOffset(entry->t_info), &hash, sizeof(hash));
	entry->t_tid = merge->places.tids[(uint32) merge->pairs.pairs[i]];
	return entry;
}

/* Whether a page has entries that scans have marked as dead. */
static bool
has_dead(Page page)
{
	if (H_HAS_DEAD_TUPLES(HashPageGetOpaque(page)))
		return true;
	for (OffsetNumber at = FirstOffsetNumber; at <= PageGetMaxOffsetNumber(page); at++)
	{
		if (ItemIdIsDead(PageGetItemId(page, at)))
			return true;
	}
	return false;
}

/*
 * Adds entries to a locked page that has room for them. Gives how many splits
 * the index is short of.
 */
static uint32
fill_page(HashMerge *merge, Buffer buffer, Size first, int count)
{
	GenericXLogState *xlog;
	Page		page;
	HashMetaPage meta;
	double		more;

	LockBuffer(merge->metapage, BUFFER_LOCK_EXCLUSIVE);
	xlog = GenericXLogStart(merge->index);
	page = GenericXLogRegisterBuffer(xlog, buffer,
									 has_dead(BufferGetPage(buffer)) ? GENERIC_XLOG_FULL_IMAGE : 0);
	for (int i = 0; i < count; i++)
	{
		IndexTuple	entry = form_entry(merge, first + i);

		if (PageAddItem(page, (char *) entry, IndexTupleSize(entry),
						_hash_binsearch(page, hash_of(merge, first + i)), false, false) == InvalidOffsetNumber)
			elog(ERROR, "pgsluice: failed to add an entry to index \"%s\"",
				 RelationGetRelationName(merge->index));
	}
	meta = HashPageGetMeta(GenericXLogRegisterBuffer(xlog, merge->metapage, 0));
	meta->hashm_ntuples += count;
	more = meta->hashm_ntuples - (double) meta->hashm_ffactor * (meta->hashm_maxbucket + 1.0);
	more = more > 0 ? more / meta->hashm_ffactor + 1 : 0;
	GenericXLogFinish(xlog);
	LockBuffer(merge->metapage, BUFFER_LOCK_UNLOCK);
	return (uint32) Min(more, count);
}

/* Locks the page of the chain that follows, adding one to its end. The first one, `bucket`, stays pinned. */
static Buffer
next_page(HashMerge *merge, Buffer bucket, Buffer buffer)
{
	BlockNumber next = HashPageGetOpaque(BufferGetPage(buffer))->hasho_nextblkno;

	if (!BlockNumberIsValid(next))
	{
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		return _hash_addovflpage(merge->index, merge->metapage, buffer, buffer == bucket);
	}
	if (buffer == bucket)
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	else
		_hash_relbuf(merge->index, buffer);
	return _hash_getbuf(merge->index, next, HASH_WRITE, LH_OVERFLOW_PAGE);
}

/*
 * Adds entries to their bucket, whose first page is locked, and unlocks it.
 * Gives how many are in: fewer if only the access method can make room.
 * *splits: how many the index is short of.
 */
static int
fill_bucket(HashMerge *merge, Buffer bucket, Size first, int count, uint32 *splits)
{
	const int	size = MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)) + sizeof(ItemIdData);
	Buffer		buffer = bucket;
	int			done = 0;

	while (done < count)
	{
		Page		page = BufferGetPage(buffer);
		int			fitting = (int) (PageGetExactFreeSpace(page) / size);

		if (fitting > 0)
		{
			fitting = Min(fitting, count - done);
			*splits = fill_page(merge, buffer, first + done, fitting);
			done += fitting;
		}
		else if (H_HAS_DEAD_TUPLES(HashPageGetOpaque(page)) && IsBufferCleanupOK(buffer))
			break;
		else
			buffer = next_page(merge, bucket, buffer);
	}
	_hash_relbuf(merge->index, buffer);
	if (buffer != bucket)
		_hash_dropbuf(merge->index, bucket);
	return done;
}

/* How many entries from the first one on belong to the same bucket. */
static int
count_entries(const HashMerge *merge, HashMetaPage meta, Size first)
{
	Bucket		bucket = _hash_hashkey2bucket(hash_of(merge, first), meta->hashm_maxbucket,
											  meta->hashm_highmask, meta->hashm_lowmask);
	Size		end = first + 1;

	while (end < merge->pairs.count && end - first < INT_MAX &&
		   bucket == _hash_hashkey2bucket(hash_of(merge, end), meta->hashm_maxbucket,
										  meta->hashm_highmask, meta->hashm_lowmask))
		end++;
	return (int) (end - first);
}

/* Adds the entries of the bucket that the first one belongs to; gives how many. */
static int
merge_bucket(HashMerge *merge, Size first)
{
	Relation	index = merge->index;
	HashMetaPage meta = NULL;
	Buffer		bucket;
	HashPageOpaque opaque;
	uint32		splits = 0;
	int			count;
	int			done;

	merge->metapage = _hash_getbuf(index, HASH_METAPAGE, HASH_NOLOCK, LH_META_PAGE);
	bucket = _hash_getbucketbuf_from_hashkey(index, hash_of(merge, first), HASH_WRITE, &meta);
	CheckForSerializableConflictIn(index, NULL, BufferGetBlockNumber(bucket));
	opaque = HashPageGetOpaque(BufferGetPage(bucket));
	if (H_BUCKET_BEING_SPLIT(opaque) && IsBufferCleanupOK(bucket))
	{
		Bucket		number = opaque->hasho_bucket;

		LockBuffer(bucket, BUFFER_LOCK_UNLOCK);
		_hash_finish_split(index, merge->metapage, bucket, number, meta->hashm_maxbucket,
						   meta->hashm_highmask, meta->hashm_lowmask);
		_hash_dropbuf(index, bucket);
		_hash_dropbuf(index, merge->metapage);
		return 0;
	}
	count = count_entries(merge, meta, first);
	done = fill_bucket(merge, bucket, first, count, &splits);
	for (; splits > 0; splits--)
		_hash_expandtable(index, merge->metapage);
	_hash_dropbuf(index, merge->metapage);
	if (done < count)
		compat_hash_insert(index, form_entry(merge, first + done++), merge->heap);
	return done;
}

/* Inserts all that waits. */
void
sluice_hash_merge_flush(HashMerge *merge)
{
	MemoryContext old = MemoryContextSwitchTo(merge->row);

	sluice_row_pairs_sort(&merge->pairs);
	for (Size done = 0; done < merge->pairs.count;)
	{
		CHECK_FOR_INTERRUPTS();
		done += merge_bucket(merge, done);
		MemoryContextReset(merge->row);
	}
	MemoryContextSwitchTo(old);
	begin(merge);
}
