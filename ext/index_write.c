/*
 * Writing the pages of a new index around the buffer cache, as PostgreSQL's own
 * build does: logged as full pages where the relation needs WAL, and on disk
 * before the transaction can commit.
 */
#include "index.h"

#include "access/xloginsert.h"
#include "storage/bufpage.h"
#include "storage/smgr.h"
#if COMPAT_HAS_BULK_WRITE
#include "storage/bulk_write.h"
#endif

static bool
take_page(SluiceIndex *core, char *page, BlockNumber *block)
{
	SluiceIndexStatus status = pgsluice_index_page(core, (uint8_t *) page, block);

	if (status == SLUICE_INDEX_PANIC)
		elog(ERROR, "pgsluice: the core failed to give a page of the index");
	return status == SLUICE_INDEX_PAGES;
}

#if COMPAT_HAS_BULK_WRITE

struct SluiceIndexWriter
{
	BulkWriteState *bulk;
	BlockNumber pages;
};

SluiceIndexWriter *
sluice_index_writer_open(Relation index)
{
	SluiceIndexWriter *writer = palloc0(sizeof(SluiceIndexWriter));

	writer->bulk = smgr_bulk_start_rel(index, MAIN_FORKNUM);
	return writer;
}

/* Writes all pages that the core has ready. */
void
sluice_index_write_pages(SluiceIndexWriter *writer, SluiceIndex *core)
{
	char		page[BLCKSZ];
	BlockNumber block;

	while (take_page(core, page, &block))
	{
		BulkWriteBuffer buffer = smgr_bulk_get_buf(writer->bulk);

		memcpy(buffer, page, BLCKSZ);
		smgr_bulk_write(writer->bulk, block, buffer, true);
		writer->pages++;
	}
}

/* Writes the metapage and makes everything durable; gives the number of pages. */
BlockNumber
sluice_index_writer_close(SluiceIndexWriter *writer, BlockNumber root,
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

struct SluiceIndexWriter
{
	Relation	index;
	bool		use_wal;
	bool		skip_fsync;
	char	   *zeros;
	BlockNumber pages;			/* blocks that the file has */
	int			used;
	BlockNumber blocks[BATCH];
	char	   *batch[BATCH];
};

SluiceIndexWriter *
sluice_index_writer_open(Relation index)
{
	SluiceIndexWriter *writer = palloc0(sizeof(SluiceIndexWriter));
	char	   *memory = palloc(BATCH * BLCKSZ + COMPAT_IO_ALIGN);

	memory = (char *) TYPEALIGN(COMPAT_IO_ALIGN, memory);
	writer->index = index;
	writer->use_wal = RelationNeedsWAL(index);

	/*
	 * What is logged is synced when the index is complete, and what is new at
	 * wal_level minimal at the end of the transaction. An unlogged index is
	 * nobody's to sync but the checkpointer's, which must be told.
	 */
	writer->skip_fsync = index->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED;
	for (int i = 0; i < BATCH; i++)
		writer->batch[i] = memory + (Size) i * BLCKSZ;
	return writer;
}

/* Writes one page; the file is lengthened with zeros up to it, as the stock build does. */
static void
write_page(SluiceIndexWriter *writer, BlockNumber block, char *page)
{
	SMgrRelation smgr = RelationGetSmgr(writer->index);

	if (writer->zeros == NULL && block > writer->pages)
		writer->zeros = (char *) TYPEALIGN(COMPAT_IO_ALIGN, palloc0(BLCKSZ + COMPAT_IO_ALIGN));
	while (block > writer->pages)
		smgrextend(smgr, MAIN_FORKNUM, writer->pages++, writer->zeros, writer->skip_fsync);
	PageSetChecksumInplace((Page) page, block);
	if (block == writer->pages)
	{
		smgrextend(smgr, MAIN_FORKNUM, block, page, writer->skip_fsync);
		writer->pages++;
	}
	else
		smgrwrite(smgr, MAIN_FORKNUM, block, page, writer->skip_fsync);
}

static void
write_batch(SluiceIndexWriter *writer)
{
	if (writer->used == 0)
		return;
	if (writer->use_wal)
		compat_log_newpages(writer->index, writer->used, writer->blocks, writer->batch);
	for (int i = 0; i < writer->used; i++)
		write_page(writer, writer->blocks[i], writer->batch[i]);
	writer->used = 0;
}

/* Writes all pages that the core has ready; some may wait for their record to fill. */
void
sluice_index_write_pages(SluiceIndexWriter *writer, SluiceIndex *core)
{
	while (take_page(core, writer->batch[writer->used], &writer->blocks[writer->used]))
	{
		if (++writer->used == BATCH)
			write_batch(writer);
	}
}

/*
 * Writes the metapage, last, and makes everything durable: a checkpoint that
 * came in between moved the start of recovery past our records and knew
 * nothing of our writes. Gives the number of pages.
 */
BlockNumber
sluice_index_writer_close(SluiceIndexWriter *writer, BlockNumber root,
						  uint32 level, bool allequalimage)
{
	write_batch(writer);
	_bt_initmetapage((Page) writer->batch[0], root, level, allequalimage);
	writer->blocks[0] = BTREE_METAPAGE;
	writer->used = 1;
	write_batch(writer);
	if (writer->use_wal)
		smgrimmedsync(RelationGetSmgr(writer->index), MAIN_FORKNUM);
	return writer->pages;
}

#endif
