/*
 * Rewrites indexes of a table that has rows and that only this transaction can
 * reach. Once a COPY has made the table grow by a certain share, indexes whose
 * new entries are spread over all leaves are rewritten: the entries of the old
 * file and those of the new rows are merged into a new file.
 *
 * The old entries are read in the index's order, leaf by leaf, so they need
 * not be sorted. The state of their rows does not matter. Entries of dead rows
 * are copied as they are, because an old snapshot may still see those rows,
 * and so are entries of HOT chains. Entries that are marked dead (LP_DEAD) are
 * left out: the mark means that no transaction of this server can see the row
 * any more. On a standby, an older one may still see it by another scan, as
 * after REINDEX.
 *
 * WHY THE OLD FILE STAYS AS IT IS.  The transaction holds an
 * AccessExclusiveLock on the table, or created it, so no other process
 * inserts, vacuums or scans. The old file belongs to the relation until the
 * commit and is removed then. After a rollback, also one to a savepoint, it is
 * the index's file again, and the merge has never changed it.
 *
 * WHICH ROWS ARE NEW.  Once the merge is decided, rows go into the table after
 * all others (sluice_keep_order). `first` is the TID of the first of these
 * rows. The scan of the table begins there (heap_scan.c); all rows before it
 * have entries in the old file.
 *
 * UNIQUE INDEXES.  Two old entries may have the same key if one of the rows is
 * dead, and the file does not show which. If the merge finds a key twice, the
 * index is built again from the table (rebuild_from_table() in deferred.c),
 * whose rows show whether they are alive.
 *
 * Below that size, and for keys that are above all others, the index is
 * extended like that of any other table (index/sorted_insert.c).
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

/* The table must grow by one block for each GROWTH blocks that it had. */
#define GROWTH 8

/*
 * If the table grows by fewer blocks, entries are inserted: new files would
 * not pay.
 */
#define SMALL_GROWTH 256

/*
 * Whether the table has grown enough for new index files. All rows up to
 * `last` have their entries.
 */
bool
sluice_index_outgrows(const IndexWriter *load, const ItemPointerData *last)
{
	BlockNumber grown;

	if (load->had_blocks == 0)
		return false;
	grown = RelationGetNumberOfBlocks(load->rri->ri_RelationDesc) - load->had_blocks;
	/*
	 * Once a row is in a new block, all rows that follow are placed after it.
	 */
	return ItemPointerGetBlockNumber(last) >= load->had_blocks &&
		grown > sluice_threshold(Max(SMALL_GROWTH, load->had_blocks / GROWTH));
}

/*
 * Whether the index, which can wait, is to get a new file. For a unique index,
 * no value of the table may need the stock build, because duplicates must be
 * reported in COPY's words.
 */
bool
sluice_index_can_merge(const IndexWriter *load, Relation index)
{
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
	bool		heapkeyspace;
	bool		allequalimage;

	if (list_member_oid(load->ascending, RelationGetRelid(index)))
		return false;
	/*
	 * Files from before PostgreSQL 12 may have larger entries, and equal keys
	 * in another order.
	 */
	_bt_metaversion(index, &heapkeyspace, &allequalimage);
	if (!heapkeyspace ||
		sluice_index_shape(load->rri->ri_RelationDesc, index, false, attributes) != NULL)
		return false;
	if (index->rd_index->indisunique && sluice_index_has_long_keys(index))
		return false;
	for (int i = 0; index->rd_index->indisunique && i < IndexRelationGetNumberOfAttributes(index); i++)
	{
		if (attributes[i].order == SLUICE_ORDER_RANKED)
			return false;
	}
	return true;
}

/*
 * Notes where the entries of an index are, before the index gets another file.
 */
void
sluice_index_old_file(const IndexWriter *load, Relation index, SluiceIndexOld *old)
{
	old->locator = compat_locator(index);
	old->permanent = RelationIsPermanent(index);
	old->blocks = RelationGetNumberOfBlocks(index);
	old->first = load->batches[0].first;
}

typedef struct LeafScan
{
	const SluiceIndexOld *old;
	BufferAccessStrategy strategy;
	PGAlignedBlock page;
} LeafScan;

/* Copies a block of the old file; returns its special area. */
static BTPageOpaque
read_block(LeafScan *scan, BlockNumber block)
{
	Buffer		buffer;
	Page		page = (Page) scan->page.data;

	CHECK_FOR_INTERRUPTS();
	if (block >= scan->old->blocks)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("an index points to block %u of its %u blocks", block, scan->old->blocks)));
	buffer = ReadBufferWithoutRelcache(scan->old->locator, MAIN_FORKNUM, block, RBM_NORMAL,
									   scan->strategy, scan->old->permanent);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	if (PageIsNew(page) || PageGetSpecialSize(page) != MAXALIGN(sizeof(BTPageOpaqueData)))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("block %u of an index is not one of a B-tree", block)));
	return BTPageGetOpaque(page);
}

/* Returns the first leaf, or P_NONE if the index is empty. */
static BlockNumber
first_leaf(LeafScan *scan)
{
	BTPageOpaque opaque = read_block(scan, BTREE_METAPAGE);
	Page		page = (Page) scan->page.data;
	BlockNumber block = BTPageGetMeta(page)->btm_root;

	for (; block != P_NONE; block = BTreeTupleGetDownLink((IndexTuple)
														  PageGetItem(page, PageGetItemId(page, P_FIRSTDATAKEY(opaque)))))
	{
		opaque = read_block(scan, block);
		if (P_ISLEAF(opaque))
			break;
	}
	return block;
}

/* Adds all rows that an entry points to. */
static void
add_entry(SluiceIndexBuild *build, IndexTuple entry)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	index_deform_tuple(entry, RelationGetDescr(build->index), values, isnull);
	if (!BTreeTupleIsPosting(entry))
	{
		sluice_index_add(build, &entry->t_tid, true, values, isnull);
		return;
	}
	for (int i = 0; i < BTreeTupleGetNPosting(entry); i++)
		sluice_index_add(build, BTreeTupleGetPostingN(entry, i), true, values, isnull);
}

/* Adds the entries of the old file, except those that are marked dead. */
void
sluice_index_add_old(SluiceIndexBuild *build, const SluiceIndexOld *old)
{
	LeafScan   *scan = palloc0(sizeof(LeafScan));
	Page		page = (Page) scan->page.data;
	BTPageOpaque opaque;

	scan->old = old;
	if (old->blocks > NBuffers / 4)
		scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	for (BlockNumber block = first_leaf(scan); block != P_NONE && !build->unfit;
		 block = opaque->btpo_next)
	{
		opaque = read_block(scan, block);
		if (P_IGNORE(opaque))
			continue;
		for (OffsetNumber offset = P_FIRSTDATAKEY(opaque);
			 offset <= PageGetMaxOffsetNumber(page); offset++)
		{
			ItemId		item = PageGetItemId(page, offset);

			if (!ItemIdIsDead(item))
				add_entry(build, (IndexTuple) PageGetItem(page, item));
		}
	}
	if (scan->strategy)
		FreeAccessStrategy(scan->strategy);
	pfree(scan);
}
