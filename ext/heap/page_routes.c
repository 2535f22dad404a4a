/*
 * The append and fresh routes: pages that the core has filled, installed as a
 * whole.
 *
 * append: into shared buffers beyond the relation's end. Each page is logged
 * as heap_multi_insert() logs a page that it has filled alone. Others can
 * reach a new block as soon as it exists: they try the last block, and VACUUM
 * records it in the free space map. So a page is locked from its extension
 * until it is logged, or it is locked later and skipped if it is no longer
 * new.
 *
 * fresh: around shared buffers, if nobody else can reach the relation and its
 * changes are not logged. Such a relation becomes durable as with stock COPY:
 * by smgrDoPendingSyncs() at the commit, or by the next checkpoint for an
 * unlogged one.
 *
 * WHY EACH CRASH STATE IS VALID (append).  The block is added first. If the
 * server crashes then, it is a page of zeros at the relation's end, which
 * every part of PostgreSQL treats as an empty one. The page is filled and
 * logged within one critical section, under its exclusive lock. The record has
 * the flag XLOG_HEAP_INIT_PAGE: recovery makes the page from the record alone.
 * So neither a torn page nor the block's earlier contents matter, and no
 * full-page image is needed. WAL before data: the page has the record's LSN.
 * The rows count only if the transaction commits, and its commit record comes
 * after all of these.
 *
 * WHY NOBODY SEES HALF A PAGE.  The image is complete before it is copied into
 * the buffer, with xmin, cmin and ctid stamped for its place. Until the lock
 * is released nobody can read the page. Afterwards its rows are those of a
 * transaction in progress.
 *
 * WHY THE ROWS ARE AS heap_multi_insert() WOULD HAVE LEFT THEM.  The core
 * leaves those fields zero that depend on the transaction and the place;
 * stamp_page() fills them in. No row has values out of line or is longer than
 * TOAST_TUPLE_THRESHOLD. So nothing has to be written to a TOAST table, and
 * logical decoding needs nothing else. Pages keep the space free that the
 * fillfactor reserves.
 *
 * sluice_choose_route() says which loads may use these routes. If rows may be
 * left out or changed between the core and the table, they take the insert
 * route; plain generated columns are the exception (rows/expressions.c). Pages
 * of partitions are filled by C: leaf_pages.c.
 *
 * When the pages are in the table, these follow in stock COPY's order: the
 * check for serializable conflicts, the statistics, the indexes and AFTER ROW
 * triggers.
 */
#include "heap/heap.h"

#include "access/heapam_xlog.h"
#include "access/heaptoast.h"
#include "access/hio.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/catalog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/predicate.h"
#include "storage/smgr.h"

/* At most this many blocks are added to a relation at once. */
#define EXTEND_BY 64

/* The state of one installation of pages. */
typedef struct Install
{
	Relation	rel;
	BulkInsertState bistate;
	TransactionId xid;
	CommandId	cid;
	char	   *scratch;		/* for a page's tuples as they are logged; NULL: nothing is logged */
	uint32		nbuffers;		/* number of entries in `buffers` */
	uint32		next;
	bool		locked;			/* the next buffer is locked already */
	Buffer		buffers[EXTEND_BY]; /* new blocks that are not filled yet */
} Install;

/*
 * Chooses the route for whole pages. If rows change or are left out between
 * the core and the table, or go to several tables, there are no such pages.
 */
void
sluice_choose_route(SluiceLoad *load)
{
	Relation	rel = load->cstate->rel;
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	load->route = SLUICE_INSERT;
	if (!sluice_allowed.whole_pages || load->volatile_checks || load->proute != NULL || load->cstate->qualexpr != NULL || load->nvolatile > 0 ||
		load->rejects != NULL || (load->duplicates.mode != SLUICE_DUPLICATE_ERROR && !load->duplicates.at_end) ||
		(load->options & TABLE_INSERT_FROZEN) ||
		(constr && constr->has_generated_stored && load->expressions == NULL))
		return;
	load->route = compat_is_private_file(rel) ? SLUICE_FRESH : SLUICE_APPEND;
	load->slice.page_longest = TOAST_TUPLE_THRESHOLD;
	load->slice.page_reserve = RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
}

/* Whether rows are to be formed in pages. Small loads do not use pages. */
bool
sluice_pages_wanted(SluiceLoad *load)
{
	return load->route != SLUICE_INSERT && load->source.bytes >= sluice_threshold(SLUICE_PAGES_BYTES);
}

/*
 * Completes the rows' headers, as heap_prepare_insert() and
 * RelationPutHeapTuple() do. The core has left these fields zero.
 */
static void
stamp_page(const Install *install, Page page, BlockNumber block)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	compat_set_prunable(page, install->xid);
	for (OffsetNumber n = FirstOffsetNumber; n <= last; n++)
	{
		HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, n));

		HeapTupleHeaderSetXmin(tuple, install->xid);
		HeapTupleHeaderSetCmin(tuple, install->cid);
		tuple->t_infomask |= HEAP_XMAX_INVALID;
		ItemPointerSet(&tuple->t_ctid, block, n);
	}
}

/*
 * Copies the page's tuples in the form in which heap_multi_insert() logs them;
 * returns the length.
 */
static int
flatten_page(Page page, char *scratch)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	char	   *at = scratch;

	for (OffsetNumber n = FirstOffsetNumber; n <= last; n++)
	{
		ItemId		item = PageGetItemId(page, n);
		HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, item);
		int			len = ItemIdGetLength(item) - SizeofHeapTupleHeader;
		xl_multi_insert_tuple *head = (xl_multi_insert_tuple *) SHORTALIGN(at);

		head->datalen = len;
		head->t_infomask2 = tuple->t_infomask2;
		head->t_infomask = tuple->t_infomask;
		head->t_hoff = tuple->t_hoff;
		at = (char *) head + SizeOfMultiInsertTuple;
		memcpy(at, (char *) tuple + SizeofHeapTupleHeader, len);
		at += len;
	}
	return at - scratch;
}

/*
 * Logs the page as heap_multi_insert() does. No row has values out of line, so
 * logical decoding need not keep any for a later record.
 */
static void
log_page(const Install *install, Buffer buffer, int len)
{
	Page		page = BufferGetPage(buffer);
	bool		logical = RelationIsLogicallyLogged(install->rel);
	xl_heap_multi_insert head = {0};
	XLogRecPtr	at;

	head.flags = XLH_INSERT_LAST_IN_MULTI | (logical ? XLH_INSERT_CONTAINS_NEW_TUPLE : 0);
	head.ntuples = PageGetMaxOffsetNumber(page);
	XLogBeginInsert();
	XLogRegisterData((char *) &head, SizeOfHeapMultiInsert);
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD | REGBUF_WILL_INIT |
					   (logical ? REGBUF_KEEP_DATA : 0));
	XLogRegisterBufData(0, install->scratch, len);
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	at = XLogInsert(RM_HEAP2_ID, XLOG_HEAP2_MULTI_INSERT | XLOG_HEAP_INIT_PAGE);
	PageSetLSN(page, at);
}

/*
 * Returns a new block, pinned and locked, into which nobody else has put
 * anything.
 */
static Buffer
next_buffer(Install *install, uint32 wanted)
{
	for (;;)
	{
		BlockNumber left;
		Buffer		buffer;

		CHECK_FOR_INTERRUPTS();
		if (install->next < install->nbuffers)
		{
			buffer = install->buffers[install->next++];
			if (!install->locked)
				LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
			install->locked = false;
		}
		else if ((left = compat_take_free_block(install->bistate)) != InvalidBlockNumber)
		{
			buffer = ReadBufferExtended(install->rel, MAIN_FORKNUM, left, RBM_NORMAL,
										install->bistate->strategy);
			LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		}
		else
		{
			install->nbuffers = compat_extend(install->rel, install->bistate->strategy,
											  Min(wanted, EXTEND_BY), install->buffers);
			install->next = 0;
			install->locked = true;
			continue;
		}
		if (PageIsNew(BufferGetPage(buffer)))
			return buffer;
		UnlockReleaseBuffer(buffer);
	}
}

/*
 * Puts one page into a new block and logs it; returns the block's number. What
 * can fail (memory, locks, the block) comes before the critical section.
 * Within it, only a failure of the server itself is possible.
 */
static BlockNumber
append_page(Install *install, Page image, uint32 wanted)
{
	Buffer		buffer = next_buffer(install, wanted);
	BlockNumber block = BufferGetBlockNumber(buffer);
	int			len = 0;

	Assert(PageIsNew(BufferGetPage(buffer)));
	Assert(PageGetMaxOffsetNumber(image) >= FirstOffsetNumber);
	stamp_page(install, image, block);
	if (install->scratch)
		len = flatten_page(image, install->scratch);
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), image, BLCKSZ);
	MarkBufferDirty(buffer);
	if (install->scratch)
		log_page(install, buffer, len);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
	return block;
}

/* Writes pages at the relation's end; sets `blocks` to their places. */
static void
write_pages(Install *install, char *images, uint32 n, BlockNumber *blocks)
{
	/* The insert route may have added blocks since the last time. */
	BlockNumber end = RelationGetNumberOfBlocks(install->rel);

	for (uint32 i = 0; i < n; i++)
	{
		Page		image = (Page) (images + (size_t) i * BLCKSZ);

		blocks[i] = end + i;
		stamp_page(install, image, blocks[i]);
		compat_set_checksum(image, blocks[i]);
	}
	sluice_write_blocks(install->rel, end, n, images, false);
}

/*
 * Makes the WAL writer write and sync what was logged so far. The WAL of a
 * page must be on disk before the ring evicts the page; otherwise the backend
 * waits for it.
 */
static void
hand_over_wal(void)
{
	XLogSetAsyncXactLSN(XactLastRecEnd);
}

/* Prepares to install pages of the batch's table. */
static void
begin_install(Install *install, const SluiceLoad *load, const SluiceBatch *batch)
{
	Relation	rel = batch->rri->ri_RelationDesc;

	memset(install, 0, offsetof(Install, buffers));
	install->rel = rel;
	install->bistate = batch->bistate;
	install->xid = GetCurrentTransactionId();
	install->cid = load->cid;
	if (RelationNeedsWAL(rel))
		install->scratch = MemoryContextAlloc(GetPerTupleMemoryContext(load->estate), BLCKSZ);
}

/* The pages are in the table, the last one in this block. */
static void
end_install(const Install *install, SluiceBatch *batch, size_t rows, BlockNumber last)
{
	Assert(install->next == install->nbuffers);
	/*
	 * After the insertion, like the last check of heap_multi_insert():
	 * transactions that read the table from now on see the rows.
	 */
	CheckForSerializableConflictIn(install->rel, NULL, InvalidBlockNumber);
	if (install->scratch)
		hand_over_wal();
	pgstat_count_heap_insert(install->rel, rows);
	/* Rows that follow must not go into an earlier page. */
	sluice_set_target_block(batch, last);
}

/* Installs the slice's pages; sets `blocks` to their places. */
static void
install_pages(SluiceLoad *load, const SluiceSlice *slice, BlockNumber *blocks)
{
	SluiceBatch *batch = load->batch;
	Install		install;
	size_t		done = 0;

	begin_install(&install, load, batch);
	while (done < slice->pages &&
		   (load->route == SLUICE_APPEND || install.next < install.nbuffers ||
			compat_has_free_block(install.bistate)))
	{
		blocks[done] = append_page(&install, (Page) (slice->arena + done * BLCKSZ),
								   slice->pages - done);
		done++;
	}
	if (done < slice->pages)
		write_pages(&install, (char *) slice->arena + done * BLCKSZ, slice->pages - done,
					blocks + done);
	end_install(&install, batch, slice->paged, blocks[slice->pages - 1]);
}

/*
 * Appends n pages with `rows` rows to a partition's table; sets `blocks` to
 * their places.
 */
void
sluice_append_pages(SluiceLoad *load, SluiceBatch *batch, char **pages, uint32 n, size_t rows,
					BlockNumber *blocks)
{
	Install		install;

	begin_install(&install, load, batch);
	for (uint32 i = 0; i < n; i++)
		blocks[i] = append_page(&install, (Page) pages[i], n - i);
	end_install(&install, batch, rows, blocks[n - 1]);
	sluice_report.route = "append";
}

/* Stores a row of the slice's pages in the load's slot. */
static TupleTableSlot *
store_row(SluiceLoad *load, const SluiceSlice *slice, size_t n)
{
	sluice_slot_store(load->page_slot, (char *) slice->arena + slice->rows[n].offset,
					  slice->rows[n].len);
	load->cstate->cur_lineno = load->lines + slice->rows[n].line;
	return load->page_slot;
}

/* Checks the rows' constraints before they are in the table. */
static void
check_rows(SluiceLoad *load, const SluiceSlice *slice)
{
	Relation	rel = load->rri->ri_RelationDesc;

	if (load->completed && !rel->rd_rel->relispartition)
		return;
	for (size_t i = 0; i < slice->paged; i++)
	{
		TupleTableSlot *slot = store_row(load, slice, i);

		sluice_show_record(load, slice, i);
		if (RelationGetDescr(rel)->constr && !load->completed)
			ExecConstraints(load->rri, slot, load->estate);
		if (rel->rd_rel->relispartition)
			ExecPartitionCheck(load->rri, slot, load->estate, true);
		load->record = NULL;
		ExecClearTuple(slot);
		ResetPerTupleExprContext(load->estate);
	}
}

/* Lists the rows with their places in the table. */
static PlacedRow *
place_rows(SluiceLoad *load, const SluiceSlice *slice, const BlockNumber *blocks)
{
	PlacedRow *placed = palloc(sizeof(PlacedRow) * slice->paged);
	PlacedRow *at = placed;
	const SluiceRow *row = slice->rows;

	for (size_t p = 0; p < slice->pages; p++)
	{
		OffsetNumber last = PageGetMaxOffsetNumber((Page) (slice->arena + p * BLCKSZ));

		for (OffsetNumber n = FirstOffsetNumber; n <= last; n++, at++, row++)
		{
			ItemPointerSet(&at->tid, blocks[p], n);
			at->tuple = (HeapTupleHeader) (slice->arena + row->offset);
			at->len = row->len;
			at->line = load->lines + row->line;
		}
	}
	return placed;
}

/* Passes the pages' rows, which are in the table, to its indexes. */
static void
hand_to_indexes(SluiceLoad *load, const SluiceSlice *slice, const BlockNumber *blocks)
{
	SluiceBatch *batch = load->batch;
	NewRows		rows = {
		.count = (int) slice->paged,.slot = load->page_slot,.store = sluice_store_placed,.many = true
	};

	if (sluice_index_needs(batch->indexes) == SLUICE_INDEX_NEEDS_NOTHING)
		return;
	rows.placed = place_rows(load, slice, blocks);
	sluice_index_rows(batch->indexes, &rows);
	sluice_keep_order(batch);
	pfree(rows.placed);
}

/*
 * Gives the rows their values of a sequence. A row gets its value only once,
 * even if its page is not installed.
 */
static void
fill_serial(SluiceLoad *load, const SluiceSlice *slice)
{
	for (size_t i = 0; i < slice->paged && slice->rows[i].blank; i++)
	{
		char	   *place = (char *) slice->arena + slice->rows[i].offset + slice->rows[i].blank;

		/*
		 * Only drawing a value, or a value that does not fit, can raise an
		 * error.
		 */
		if (!sluice_sequence_fill_reserved(&load->args.serial, place))
		{
			sluice_show_record(load, slice, i);
			sluice_sequence_fill(&load->args.serial, place);
			load->record = NULL;
		}
		slice->rows[i].blank = 0;
	}
}

/*
 * Installs the pages at the front of the slice, if that pays. Returns how many
 * rows, counted from the first, are in the table now.
 */
size_t
sluice_install_pages(SluiceLoad *load, const SluiceSlice *formed)
{
	CopyFromState cstate = load->cstate;
	uint64		line = cstate->cur_lineno;
	SluiceSlice slice = *formed;
	BlockNumber *blocks;
	instr_time	before,
				after;

	if (slice.pages == 0 || !sluice_pages_wanted(load) || sluice_batch_has_room(load->batch))
		return 0;
	sluice_flush(load, NULL);
	if (load->page_slot == NULL)
		load->page_slot = sluice_make_slot(load->rri->ri_RelationDesc, load->estate);
	fill_serial(load, &slice);
	if (load->expressions && !load->completed)
	{
		if (!load->complete_slice(load, &slice))
			return 0;
	}
	else if (load->check_rows)
		check_rows(load, &slice);

	/* An error from here on names a line but does not show it. */
	cstate->line_buf_valid = false;
	cstate->cur_lineno = load->lines + 1;
	blocks = palloc(sizeof(BlockNumber) * slice.pages);
	INSTR_TIME_SET_CURRENT(before);
	install_pages(load, &slice, blocks);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.heap, after, before);
	before = after;
	hand_to_indexes(load, &slice, blocks);
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
	pfree(blocks);
	ResetPerTupleExprContext(load->estate);
	cstate->cur_lineno = line;
	sluice_report.route = load->route == SLUICE_APPEND ? "append" : "fresh";
	sluice_count_rows(load, slice.paged);
	return slice.paged;
}
