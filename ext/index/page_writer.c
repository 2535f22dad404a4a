/*
 * Writes the pages of a new index past the buffer cache, as PostgreSQL's own
 * build does. Where the relation needs WAL, the pages are logged as full
 * images.
 *
 * No other session can read the file. It is a new one (relfilenumber) that
 * only the catalogs' uncommitted row names, and the table is locked against
 * changes of its indexes. So pages need no locks, and their order does not
 * matter: readers come after the commit, when all pages are there. If the
 * transaction does not commit, the file is removed with it.
 *
 * CRASHES.  Where the index needs WAL, each page is logged as a full image
 * before it is written, and the commit record comes after all of them. If the
 * server crashes before the commit, no catalog row names the file. After the
 * commit, recovery restores each page from its image, whether the page was
 * written, not written or torn. Recovery does not restore pages whose records
 * are older than its starting point. A checkpoint that begins after we started
 * to write may move that point past some of our records. It does not sync our
 * writes, because they did not go through the buffer cache. In that case the
 * file must be on disk when the build ends. In 17 and later bulk_write.c does
 * that, before 17 make_durable().
 *
 * Where the index needs no WAL (UNLOGGED, or new at wal_level minimal), the
 * file becomes durable as in the stock build: at the next checkpoint, which
 * gets a request to sync it, or by smgrDoPendingSyncs() at the commit.
 *
 * A checksum is set when a page is written. An image in WAL needs none:
 * recovery sets it when it writes the page.
 *
 * The metapage comes last. It is the only page that is found by its block
 * number. Until it is there, no reader of the file could find a root.
 */
#include "index/build.h"

#include "access/xloginsert.h"
#include "storage/bufpage.h"
#include "storage/smgr.h"
#if COMPAT_HAS_BULK_WRITE
#include "storage/bulk_write.h"
#else
#include "access/xlog.h"
#include "storage/proc.h"
#include "storage/sync.h"
#endif

/*
 * Copies the next page that the core has ready; returns false if there is
 * none.
 */
bool
sluice_index_next_page(void *core, char *page, BlockNumber *block)
{
	SluiceIndexStatus status = pgsluice_index_page(core, (uint8_t *) page, block);

	if (status == SLUICE_INDEX_PANIC)
		elog(ERROR, "pgsluice: the core failed to give a page of the index");
	return status == SLUICE_INDEX_PAGES;
}

/*
 * Checks a page of the core before it is logged and written. The core never
 * forms the metapage.
 */
static inline void
check_page(const char *page, BlockNumber block)
{
	Assert(block != BTREE_METAPAGE);
	Assert(PageGetPageSize((Page) page) == BLCKSZ);
	Assert(PageGetSpecialSize((Page) page) == MAXALIGN(sizeof(BTPageOpaqueData)));
	Assert(PageGetMaxOffsetNumber((Page) page) >= FirstOffsetNumber);
	Assert(!P_IGNORE(BTPageGetOpaque((Page) page)));
}

#if COMPAT_HAS_BULK_WRITE

struct SluicePageWriter
{
	BulkWriteState *bulk;
	BlockNumber pages;
};

SluicePageWriter *
sluice_page_writer_open(Relation index)
{
	SluicePageWriter *writer = palloc0(sizeof(SluicePageWriter));

	writer->bulk = smgr_bulk_start_rel(index, MAIN_FORKNUM);
	return writer;
}

/* Writes all pages that the source has. */
void
sluice_page_writer_write(SluicePageWriter *writer, SluiceIndexNextPage next, void *source)
{
	char		page[BLCKSZ];
	BlockNumber block;

	while (next(source, page, &block))
	{
		BulkWriteBuffer buffer = smgr_bulk_get_buf(writer->bulk);

		check_page(page, block);
		memcpy(buffer, page, BLCKSZ);
		smgr_bulk_write(writer->bulk, block, buffer, true);
		writer->pages++;
	}
}

/*
 * Writes the metapage and makes the file durable; returns the number of pages.
 */
BlockNumber
sluice_page_writer_close(SluicePageWriter *writer, BlockNumber root,
						  uint32 level, bool allequalimage)
{
	BulkWriteBuffer buffer = smgr_bulk_get_buf(writer->bulk);

	_bt_initmetapage((Page) buffer, root, level, allequalimage);
	smgr_bulk_write(writer->bulk, BTREE_METAPAGE, buffer, true);
	smgr_bulk_finish(writer->bulk);
	return writer->pages + 1;
}

#else							/* before 17 */

/* As many pages as one WAL record can hold. */
#define BATCH XLR_MAX_BLOCK_ID

struct SluicePageWriter
{
	Relation	index;
	bool		use_wal;
	bool		skip_fsync;
	XLogRecPtr	redo;			/* the redo pointer when writing began */
	char	   *zeros;
	BlockNumber pages;			/* blocks that the file has */
	int			used;
	BlockNumber blocks[BATCH];
	char	   *batch[BATCH];
};

SluicePageWriter *
sluice_page_writer_open(Relation index)
{
	SluicePageWriter *writer = palloc0(sizeof(SluicePageWriter));
	char	   *memory = palloc(BATCH * BLCKSZ + COMPAT_IO_ALIGN);

	memory = (char *) TYPEALIGN(COMPAT_IO_ALIGN, memory);
	writer->index = index;
	writer->use_wal = RelationNeedsWAL(index);
	writer->redo = GetRedoRecPtr();

	/*
	 * A logged index is made durable when it is complete, and one that is new
	 * at wal_level minimal at the end of the transaction. Only the
	 * checkpointer syncs an unlogged index, so it must get a request.
	 */
	writer->skip_fsync = index->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED;
	for (int i = 0; i < BATCH; i++)
		writer->batch[i] = memory + (Size) i * BLCKSZ;
	return writer;
}

/*
 * Writes pages of the batch from number `first` on; returns how many.
 * Consecutive blocks at the end of the file are written at once. Missing
 * blocks before them are filled with zeros, as in the stock build.
 */
static int
write_some(SluicePageWriter *writer, int first)
{
	SMgrRelation smgr = RelationGetSmgr(writer->index);
	BlockNumber block = writer->blocks[first];
	int			n = 0;

	if (writer->zeros == NULL && block > writer->pages)
		writer->zeros = (char *) TYPEALIGN(COMPAT_IO_ALIGN, palloc0(BLCKSZ + COMPAT_IO_ALIGN));
	while (block > writer->pages)
		smgrextend(smgr, MAIN_FORKNUM, writer->pages++, writer->zeros, writer->skip_fsync);
	if (block < writer->pages)
	{
		compat_set_checksum((Page) writer->batch[first], block);
		smgrwrite(smgr, MAIN_FORKNUM, block, writer->batch[first], writer->skip_fsync);
		return 1;
	}
	for (; first + n < writer->used && writer->blocks[first + n] == block + n; n++)
		compat_set_checksum((Page) writer->batch[first + n], block + n);
	sluice_write_blocks(writer->index, block, n, writer->batch[first], writer->skip_fsync);
	writer->pages += n;
	return n;
}

/* Writes the batch: first its WAL, then the pages. */
static void
write_batch(SluicePageWriter *writer)
{
	int			done = 0;

	if (writer->used == 0)
		return;
	if (writer->use_wal)
		compat_log_newpages(writer->index, writer->used, writer->blocks, writer->batch);
	while (done < writer->used)
		done += write_some(writer, done);
	writer->used = 0;
}

/*
 * Writes all pages that the source has; some may wait for their record to
 * fill.
 */
void
sluice_page_writer_write(SluicePageWriter *writer, SluiceIndexNextPage next, void *source)
{
	while (next(source, writer->batch[writer->used], &writer->blocks[writer->used]))
	{
		check_page(writer->batch[writer->used], writer->blocks[writer->used]);
		if (++writer->used == BATCH)
			write_batch(writer);
	}
}

/*
 * Requests that the next checkpoint sync the index's files. Returns false if
 * there is no room for the requests.
 */
static bool
register_syncs(SluicePageWriter *writer)
{
	FileTag		tag;

	for (uint32 segment = 0; segment <= (writer->pages - 1) / ((BlockNumber) RELSEG_SIZE); segment++)
	{
		memset(&tag, 0, sizeof(tag));
		tag.handler = SYNC_HANDLER_MD;
		tag.forknum = MAIN_FORKNUM;
		compat_set_tag_locator(&tag, writer->index);
		tag.segno = segment;
		if (!RegisterSyncRequest(&tag, SYNC_REQUEST, false))
			return false;
	}
	return true;
}

/*
 * Recovery restores all pages from their records, unless a checkpoint has
 * moved its starting point past some of them. So the next checkpoint gets
 * requests to sync the file, or the file is synced now. bulk_write.c of 17
 * does the same.
 */
static void
make_durable(SluicePageWriter *writer)
{
	bool		registered;

	/*
	 * No checkpoint may begin between the check of the redo pointer and the
	 * requests.
	 */
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	registered = writer->redo == GetRedoRecPtr() && register_syncs(writer);
	MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
	if (!registered)
		smgrimmedsync(RelationGetSmgr(writer->index), MAIN_FORKNUM);
}

/*
 * Writes the metapage, last, and makes the file durable. Returns the number of
 * pages.
 */
BlockNumber
sluice_page_writer_close(SluicePageWriter *writer, BlockNumber root,
						  uint32 level, bool allequalimage)
{
	write_batch(writer);
	_bt_initmetapage((Page) writer->batch[0], root, level, allequalimage);
	writer->blocks[0] = BTREE_METAPAGE;
	writer->used = 1;
	write_batch(writer);
	if (writer->use_wal)
		make_durable(writer);
	return writer->pages;
}

#endif
