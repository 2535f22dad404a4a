/*
 * The routes into the table: see README.md.
 *
 * A row takes one of four ways: into a batch, and then by heap_multi_insert
 * (insert_route.c); with a whole page (page_routes.c; of a partition,
 * leaf_pages.c); by speculative insertion, for on_duplicate
 * (speculative_insert.c); or alone, into a leaf that takes its rows one by one
 * (batches.c). sluice_flush() inserts all rows that wait in batches. After
 * that the arena of the core's tuples may be reused.
 *
 * In the first two ways, rows that are in the table are passed to their
 * indexes by sluice_index_rows(). The other two need the index entries of each
 * row at once, so they use the executor's insertion of entries directly.
 */
#ifndef PGSLUICE_HEAP_H
#define PGSLUICE_HEAP_H

#include "base/load.h"
#include "index/index.h"
/* insert_route.c */
extern void sluice_install_init(void);
extern void sluice_batch_open(SluiceBatch *batch, ResultRelInfo *rri, EState *estate,
							  CopyFromState cstate, CommandId cid, int options);
extern TupleTableSlot *sluice_make_slot(Relation rel, EState *estate);
extern TupleTableSlot *sluice_batch_slot(SluiceBatch *batch);
extern void sluice_slot_store(TupleTableSlot *slot, char *tuple, uint32 len);
extern void sluice_slot_place(TupleTableSlot *slot, const ItemPointerData *tid);

/*
 * Stores a row that is in the table in a slot: the `store` of NewRows, for rows that went in with
 * pages.
 */
static inline TupleTableSlot *
sluice_store_placed(TupleTableSlot *slot, const PlacedRow *row)
{
	sluice_slot_store(slot, (char *) row->tuple, row->len);
	sluice_slot_place(slot, &row->tid);
	return slot;
}

extern bool sluice_batch_has_room(SluiceBatch *batch);
extern void sluice_set_target_block(SluiceBatch *batch, BlockNumber block);
extern void sluice_keep_order(SluiceBatch *batch);
extern void sluice_batch_add(SluiceBatch *batch, uint64 line);
extern int	sluice_insert_options(SluiceBatch *batch);
extern void sluice_batch_flush(SluiceBatch *batch);
extern void sluice_batch_close(SluiceBatch *batch);

/* speculative_insert.c */
extern void sluice_insert_or_settle(SluiceDuplicates *duplicates, SluiceBatch *batch);

/* batches.c */
extern void sluice_open_batches(SluiceLoad *load);
extern SluiceBatch *sluice_route(SluiceLoad *load, TupleTableSlot **slot);
extern void sluice_count_rows(SluiceLoad *load, uint64 count);
extern void sluice_show_record(SluiceLoad *load, const SluiceSlice *slice, size_t n);
extern void sluice_flush(SluiceLoad *load, SluiceBatch *only);
extern void sluice_finish_indexes(SluiceLoad *load);
extern void sluice_close_batches(SluiceLoad *load);

/* executor.c */
extern void sluice_open_executor(SluiceLoad *load);
extern void sluice_close_executor(SluiceLoad *load);

/* Pages of rows that C has formed, and the places of these rows in them. */
typedef struct SluicePacker
{
	char	   *pages;
	Size		bytes;			/* size of `pages` */
	SluiceRow  *rows;
	size_t		used;			/* rows that were added */
	size_t		npages;
	size_t		open_from;		/* the first row of the last page */
	bool		begun;
} SluicePacker;

/* Empties the packer. */
static inline void
sluice_packer_clear(SluicePacker *packer)
{
	packer->used = packer->npages = packer->open_from = 0;
	packer->begun = false;
}

/* pack.c */
extern SluicePacker *sluice_packer_make(Size bytes, size_t rows);
extern bool sluice_packer_add(SluicePacker *packer, const SluiceSlice *slice, HeapTupleHeader tuple, uint32 len);
extern bool sluice_packer_add_until(SluicePacker *packer, const SluiceSlice *slice, size_t end);
extern void sluice_packer_take(const SluicePacker *packer, SluiceSlice *slice);
extern void sluice_packer_become(SluicePacker *packer, SluiceSlice *slice);
/* leaf_pages.c */
extern void sluice_leaves_open(SluiceLoad *load);
extern TupleTableSlot *sluice_leaf_slot(SluiceLoad *load, SluiceBatch *batch);
extern TupleTableSlot *sluice_leaf_take(SluiceLoad *load, SluiceBatch *batch,
										TupleTableSlot *slot, uint64 line);
extern void sluice_leaves_flush(SluiceLoad *load);
extern void sluice_leaves_close(SluiceLoad *load);

/* page_routes.c */
/*
 * Loads of less input than this use the insert route: about 100 pages of rows.
 */
#define SLUICE_PAGES_BYTES (SLUICE_SLICE * 3 / 4)
extern void sluice_append_pages(SluiceLoad *load, SluiceBatch *batch, char **pages, uint32 n,
								size_t rows, BlockNumber *blocks);
extern void sluice_choose_route(SluiceLoad *load);
extern bool sluice_pages_wanted(SluiceLoad *load);
extern size_t sluice_install_pages(SluiceLoad *load, const SluiceSlice *slice);

#endif							/* PGSLUICE_HEAP_H */
