/*
 * What index builds need of the major version: nbtree's functions and formats,
 * which are not an interface and change with each major. When a major is
 * added, changes that do not show in a prototype (the meaning of a flag, the
 * order of locks) have to be looked for in nbtree's history.
 */
#ifndef PGSLUICE_COMPAT_INDEX_H
#define PGSLUICE_COMPAT_INDEX_H

#include "access/nbtree.h"
#include "access/stratnum.h"
#include "access/xloginsert.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/sortsupport.h"

/*
 * 17 has a writer for the pages of new relations, which we use. For earlier
 * majors see index/page_writer.c.
 */
#define COMPAT_HAS_BULK_WRITE (PG_VERSION_NUM >= 170000)

/*
 * Marks changed pages of an index that is not logged. Since 19, nbtree gives
 * such pages an LSN too: a scan that has released a leaf detects by it whether
 * the leaf has changed. Called within a critical section.
 */
static inline void
compat_mark_changed(Relation index, const Buffer *buffers, int count)
{
#if PG_VERSION_NUM >= 190000
	XLogRecPtr	at = XLogGetFakeLSN(index);

	for (int i = 0; i < count; i++)
		PageSetLSN(BufferGetPage(buffers[i]), at);
#endif
}

/* Gives the relation a new and empty file. */
static inline void
compat_set_new_file(Relation rel, char persistence)
{
#if PG_VERSION_NUM >= 160000
	RelationSetNewRelfilenumber(rel, persistence);
#else
	RelationSetNewRelfilenode(rel, persistence);
#endif
}

/* The largest entry of a B-tree, in bytes. */
#if PG_VERSION_NUM >= 180000
#define COMPAT_BT_MAX_ITEM ((uint32) BTMaxItemSize)
#else
#define COMPAT_BT_MAX_ITEM \
	((uint32) MAXALIGN_DOWN((BLCKSZ - MAXALIGN(sizeof(BTPageOpaqueData)) - \
		MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData) + 3 * sizeof(ItemPointerData))) / 3))
#endif

/*
 * nbtree's functions: they take the table since 16, and no snapshot since 17.
 */
#if PG_VERSION_NUM >= 190000
#define compat_bt_search(index, heap, key, leaf) _bt_search(index, heap, key, leaf, BT_WRITE, true)
#elif PG_VERSION_NUM >= 170000
#define compat_bt_search(index, heap, key, leaf) _bt_search(index, heap, key, leaf, BT_WRITE)
#elif PG_VERSION_NUM >= 160000
#define compat_bt_search(index, heap, key, leaf) _bt_search(index, heap, key, leaf, BT_WRITE, NULL)
#else
#define compat_bt_search(index, heap, key, leaf) _bt_search(index, key, leaf, BT_WRITE, NULL)
#endif
/*
 * Returns the last leaf, pinned and locked for reading; none of an empty
 * index.
 */
#if PG_VERSION_NUM >= 170000
#define compat_bt_last_leaf(index) _bt_get_endpoint(index, 0, true)
#else
#define compat_bt_last_leaf(index) _bt_get_endpoint(index, 0, true, NULL)
#endif
#if PG_VERSION_NUM >= 160000
#define compat_bt_getstackbuf(index, heap, stack, child) _bt_getstackbuf(index, heap, stack, child)
#define compat_bt_allocbuf(index, heap) _bt_allocbuf(index, heap)
#else
#define compat_bt_getstackbuf(index, heap, stack, child) _bt_getstackbuf(index, stack, child)
#define compat_bt_allocbuf(index, heap) _bt_getbuf(index, P_NEW, BT_WRITE)
#endif

/*
 * Since 17, an access method may keep something from one entry to the next,
 * for example a pin.
 */
#if PG_VERSION_NUM >= 170000
#define compat_index_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define compat_index_cleanup(index, info) ((void) (info))
#endif

/*
 * Whether the transaction has exceeded transaction_timeout, which 17 has
 * added.
 */
static inline bool
compat_transaction_timed_out(void)
{
#if PG_VERSION_NUM >= 170000
	return TransactionTimeoutPending && TransactionTimeout > 0;
#else
	return false;
#endif
}

/*
 * Since 19, a descriptor that was made column by column has to be finalized;
 * otherwise slots read no column with it.
 */
#if PG_VERSION_NUM >= 190000
#define compat_finish_descriptor(desc) TupleDescFinalize(desc)
#else
#define compat_finish_descriptor(desc) ((void) (desc))
#endif

/* Undoes the counting of a scan of the table. */
static inline void
compat_uncount_scan(Relation rel)
{
	if (!pgstat_should_count_relation(rel))
		return;
#if PG_VERSION_NUM >= 160000
	rel->pgstat_info->counts.numscans--;
#else
	rel->pgstat_info->t_counts.t_numscans--;
#endif
}

/*
 * Makes another function build a B-tree, and restores the server's own. Up to
 * 18, each index's relcache entry has its own copy of the access method's
 * functions. Since 19 all entries point to the same constant ones.
 */
#if PG_VERSION_NUM >= 190000
static const IndexAmRoutine *compat_stock_btree;
static IndexAmRoutine compat_our_btree;

static inline void
compat_take_build(Relation index, ambuild_function build)
{
	compat_stock_btree = index->rd_indam;
	compat_our_btree = *index->rd_indam;
	compat_our_btree.ambuild = build;
	index->rd_indam = &compat_our_btree;
}

static inline void
compat_give_back_build(Relation index)
{
	index->rd_indam = compat_stock_btree;
}

#define compat_index_build(heap, index) index_build(heap, index, BuildIndexInfo(index), true, false, true)
#else
static inline void
compat_take_build(Relation index, ambuild_function build)
{
	index->rd_indam->ambuild = build;
}

static inline void
compat_give_back_build(Relation index)
{
	index->rd_indam->ambuild = btbuild;
}

#define compat_index_build(heap, index) index_build(heap, index, BuildIndexInfo(index), true, false)
#endif

/* Finds the ascending order of an index's column; 18 has another argument. */
static inline void
compat_prepare_sort(Relation index, SortSupport sort)
{
#if PG_VERSION_NUM >= 180000
	PrepareSortSupportFromIndexRel(index, false, sort);
#else
	PrepareSortSupportFromIndexRel(index, BTLessStrategyNumber, sort);
#endif
}

#endif
