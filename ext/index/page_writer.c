/*
 * Writing the pages of a new index around the buffer cache, as PostgreSQL's
 * own build does: logged as full pages where the relation needs WAL, and on
 * disk before the transaction can commit.
 *
 * Nobody else can read the file. It is a new one (relfilenumber) that only the
 * catalogs' uncommitted row names, and the table is locked against changes of
 * its indexes. So pages need no locks, and their order does not matter; a
 * reader comes after the commit, when all of them are there. If the
 * transaction does not commit, the file is removed with it.
 *
 * CRASHES.  Where the index needs WAL, each page is logged as a full image
 * before it is written, and the commit record comes after all of them. If the
 * server crashes before the commit, the file is nobody's. After the commit,
 * recovery restores each page from its image, whatever the file holds: pages
 * may have been written or not, or torn. What recovery does not bring back are
 * pages whose records are older than its start. A checkpoint that begins after
 * we started to write may move that start past some of our records, and it
 * does not know of our writes, as they did not go through the buffer cache.
 * Then the file has to be on disk when the build ends: 17 and later do it in
 * bulk_write.c, before that make_durable() does it.
 *
 * Where the index needs no WAL (UNLOGGED, or new at wal_level minimal) its
 * durability is the stock build's: at the next checkpoint, which is asked to
 * sync, or by smgrDoPendingSyncs() at the commit.
 *
 * A checksum is set when a page is written. An image in WAL needs none:
 * recovery sets it when it writes the page.
 *
 * The metapage comes last. It is the only page that is found by its block
 * number; until it is there, no reader of the file could find a root.
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

/* The next page that the core has ready. */
bool
sluice_index_next_page(void *core, char *page, BlockNumber *block)
{
	SluiceIndexStatus status = pgsluice_index_page(core, (uint8_t *) page, block);

	if (status == SLUICE_INDEX_PANIC)
		elog(ERROR, "pgsluice: the core failed to give a page of the index");
	return status == SLUICE_INDEX_PAGES;
}

/* A page of the core's, before it is logged and written. The metapage is ours. */
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

/* Writes all pages that there are. */
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
 * Writes the metapage and makes everything durable; gives the number of pages.
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

/* As many pages as one WAL record takes. */
#define BATCH XLR_MAX_BLOCK_ID

struct SluicePageWriter
{
	Relation	index;
	bool		use_wal;
	bool		skip_fsync;
	XLogRecPtr	redo;			/* where recovery would have begun when writing did */
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
	 * What is logged is seen to when the index is complete, and what is new at
	 * wal_level minimal at the end of the transaction. Only the checkpointer
	 * syncs an unlogged index, so it must get a request.
	 */
	writer->skip_fsync = index->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED;
	for (int i = 0; i < BATCH; i++)
		writer->batch[i] = memory + (Size) i * BLCKSZ;
	return writer;
}

/*
 * Writes pages of the batch from this one on, those that follow upon one
 * another at the end of the file at once; gives how many. The file is
 * lengthened with zeros up to them, as the stock build does.
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

/* Writes what waits: first the WAL, then the pages. */
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

/* Writes all pages that there are; some may wait for their record to fill. */
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
 * Asks the next checkpoint to sync the index's files. False: it has no room
 * for that.
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
 * Recovery brings back all pages from their records, unless a checkpoint has
 * moved its start past some of them: so that the next checkpoint knows of our
 * writes, or they are synced now. This is what bulk_write.c of 17 does.
 */
static void
make_durable(SluicePageWriter *writer)
{
	bool		registered;

	/* None may begin between the look at its start and the request. */
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	registered = writer->redo == GetRedoRecPtr() && register_syncs(writer);
	MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
	if (!registered)
		smgrimmedsync(RelationGetSmgr(writer->index), MAIN_FORKNUM);
}

/*
 * Writes the metapage, last, and makes everything durable. Gives the number of
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
