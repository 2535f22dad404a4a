/*
 * Merges the entries of many rows into a hash index that other sessions can
 * use.
 *
 * The access method's own insertion finds the bucket, locks its page and the
 * metapage, and writes a WAL record for each entry. Here the entries of many
 * rows wait in memory, in the order of the buckets. All entries of a bucket
 * that fit on one of its pages are added under one lock and with one record.
 *
 * THE ORDER is that of the hash values read from their lowest bit on. The
 * lowest bits of a hash value select its bucket, and the number of these bits
 * grows with the index. In this order the entries of a bucket are adjacent,
 * however often the index grows in the meantime.
 *
 * WHAT IS DONE WITH A BUCKET is what _hash_doinsert() does, in the same order
 * and with the same locks, but for several entries at once:
 *   - The bucket's primary page is locked, and stays pinned until the entries
 *     are in. A split needs a cleanup lock on that page, so none can begin,
 *     and the bucket of an entry stays what it was found to be.
 *   - If an earlier split of the bucket is unfinished, it is finished first,
 *     provided that no other process has the page pinned.
 *   - Pages without room are skipped. At the end of the chain the access
 *     method adds a page.
 *   - The entries go into the page, and their number is added to the
 *     metapage's count, with one record of generic_xlog.c, which any server
 *     replays without our library.
 *   - The access method splits buckets until there are as many as the count
 *     requires.
 * A full page with entries that scans have marked as dead is left to the
 * access method: its insertion of one entry cleans up the page.
 *
 * THE INVARIANT.  At any time at which another process can look, the index is
 * one that the access method could have made: the entries of each page are
 * sorted by hash value, and the metapage's count is the number of entries.
 * Both change in one record and one critical section. A split moves half of a
 * bucket into a new one and does not depend on this file.
 *
 * LOCKS.  First a page of the bucket, then the metapage, as in
 * _hash_doinsert(). A page of the chain is unlocked before the next one is
 * locked.
 *
 * WHY DELTAS ARE SAFE.  generic_xlog.c logs the bytes that differ from the old
 * page. A page of a hash index has the same bytes on a standby, except for the
 * marks of dead entries, which are not logged. A page with such marks is
 * logged as a full image. generic_xlog.c treats the bytes between pd_lower and
 * pd_upper as empty. The access method has kept pd_lower past the metapage's
 * data since hash indexes are logged (version 10).
 *
 * SERIALIZABLE.  Readers hold a predicate lock on the bucket's primary page.
 * The conflict check is at the same place as in _hash_doinsert(). A split
 * transfers the locks.
 *
 * AN ERROR between two buckets leaves entries of rows that no transaction
 * sees. VACUUM removes the rows and the entries. Hash values are computed when
 * the row is inserted, so a function that fails does so on its row's line.
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

/*
 * The most memory for waiting entries: far fewer rows than 32 bits can number.
 */
#define MOST_MEMORY ((uint64) 16 * 1024 * 1024 * 1024)

struct HashMerge
{
	Relation	heap;
	Relation	index;
	Size		memory;
	MemoryContext entries;		/* of all waiting entries */
	MemoryContext row;			/* for computing one hash value */
	RowPlaces	places;
	RowPairs	pairs;			/* keys are hash values with their bits reversed */
	IndexTuple	entry;			/* reused for each entry that is formed */
	Buffer		metapage;		/* pinned while a bucket is filled */
};

/* Returns a value with its bits in reverse order. */
static uint32
reversed(uint32 value)
{
	value = ((value >> 1) & 0x55555555) | ((value & 0x55555555) << 1);
	value = ((value >> 2) & 0x33333333) | ((value & 0x33333333) << 2);
	value = ((value >> 4) & 0x0f0f0f0f) | ((value & 0x0f0f0f0f) << 4);
	return __builtin_bswap32(value);
}

/* Resets the state: no entry waits. */
static void
begin(HashMerge *merge)
{
	MemoryContextReset(merge->entries);
	memset(&merge->places, 0, sizeof(merge->places));
	memset(&merge->pairs, 0, sizeof(merge->pairs));
	merge->places.context = merge->entries;
	merge->pairs.context = merge->entries;
}

/* Prepares an index whose entries wait, in up to `memory` bytes. */
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

/*
 * Adds the entry of a row that has just been inserted into the table. A NULL
 * has no entry.
 */
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

/* Returns the hash value of waiting entry i. */
static uint32
hash_of(const HashMerge *merge, Size i)
{
	return reversed((uint32) (merge->pairs.pairs[i] >> 32));
}

/* Forms waiting entry i. The result is valid until the next call. */
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
 * Adds entries to a locked page that has room for them. Returns how many
 * bucket splits are due now, at most `count`.
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

/*
 * Locks the next page of the chain; adds a page if the chain ends here. The
 * primary page, `bucket`, stays pinned.
 */
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
 * Adds entries to their bucket, whose primary page is locked, and releases the
 * page. Returns how many were added: fewer than `count` if only the access
 * method can make room. Sets *splits to the number of splits that are due.
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

/*
 * Returns how many entries, from number `first` on, belong to the same bucket.
 */
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

/*
 * Adds the entries of one bucket, from number `first` on; returns how many. 0:
 * a split was finished instead, call again.
 */
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

/* Inserts all waiting entries. */
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
