/*
 * Pages of partitions: routed rows are copied into pages of their partitions, and full pages are
 * installed by the append route.
 *
 * A row that has passed every check that can reject it is copied into the last page of its
 * partition (leaf). The leaf keeps its pages, up to SLUICE_LEAF_PAGES of them, until there is no
 * room for the next row. Then all full pages are installed together (sluice_append_pages), and
 * their rows are passed to the indexes, like those of an ordinary table. page_routes.c says why
 * that is safe. A page that is not full when the load ends is not installed: heap_multi_insert()
 * puts its rows where there is room, as stock COPY does. So many small loads do not leave many
 * half-empty pages.
 *
 * WHICH LEAVES.  Rows must be allowed to wait (`by_partition` of batches.c): no AFTER ROW triggers,
 * no logical decoding, no rejects. A leaf gets pages only while no row waits in its batch, so its
 * rows keep their order. A row does not fit into a page if it is long enough for TOAST or has a
 * value out of line. Then the leaf's pages go in first, and its rows go to its batch until that is
 * flushed. If a leaf's table has room in its pages, the leaf's rows go there, by its batch.
 *
 * WHAT A PAGE HOLDS.  Tuples as heap_form_tuple() and the core form them. The header fields that
 * depend on the transaction and the place are set when the page is installed. Until then xmin, xmax
 * and cid are unused, and the row's line number is kept there, for the CONTEXT of an error of its
 * index entries.
 *
 * THE INVARIANT.  Each row of a leaf is in exactly one place: in the slot that is being filled, in
 * a page here, in the batch, or in the table. If the leaf has pages, all but the last one are
 * closed: complete, except for what depends on their place in the table. The room of the last one
 * is in `lower` and `upper`; close_page() sets its header. A leaf that has a page has a row in it.
 * A page of the pool belongs to one leaf, or is in `free`, or was never used.
 *
 * LOCKS.  None while rows wait: the pages are memory of this backend, and no other process can
 * reach them. The executor locked the partition when it opened it. page_routes.c and
 * heap_multi_insert() lock the blocks that they fill.
 *
 * AFTER AN ERROR OR A CRASH the pages are gone, with rows that were never in the table. Some of the
 * load's rows are in the table, of some partitions; they belong to a transaction that has not
 * committed. It cannot commit without the others. Waiting rows are inserted before the indexes are
 * finished (copy.c). Code that inserts a row alone inserts the waiting rows first (batches.c),
 * because a trigger or a foreign server may look at the table.
 *
 * ERRORS OF WAITING ROWS.  A waiting row can only be rejected by a unique index, a foreign key or a
 * function in an index. Such an error names the line of its row, and does not show the record that
 * is being read (without_record).
 *
 * MEMORY.  The pool has POOL_PAGES pages, or two for each leaf if that is more. It never has more
 * than pgsluice.live_index_memory, but at least one segment. It is allocated by segments, as pages
 * are needed. A leaf that has pages also keeps its batch, which takes 9 kB without rows: most of it
 * is the ring of buffers of its BulkInsertState. If the pool is used up, the full pages of another
 * leaf are installed. At most three leaves for every four pages have any. With indexes it is fewer,
 * since waiting entries need memory for each leaf. A further leaf takes the place of one that has
 * received no row for a while, or else uses its batch. Where thousands of leaves get rows in no
 * order, batches insert rows by ones and twos, and each time the leaf's file may have to be opened
 * again. That is the cost that pages save most.
 */
#include "heap/heap.h"

#include "access/heaptoast.h"
#include "storage/bufpage.h"

/*
 * Pages of a pool that few leaves share: they fit into the processor's cache.
 */
#define POOL_PAGES 2048
#define SEGMENT_PAGES 256
#define MAX_POOL_PAGES (1 << 17)
#define MAX_LEAVES_WITH_INDEXES 32

/*
 * Pages of 8 kB have gaps between them, so that their headers are not all in one set of the
 * processor's cache.
 */
#define PAGE_STRIDE (BLCKSZ + 192)

/*
 * A leaf that got none of this many rows gives up its pages for another one.
 */
#define IDLE_ROWS 16384

typedef struct SluiceLeafPool
{
	int			most;			/* the most pages that it may have */
	int			made;			/* pages that were used at least once */
	int			nfree;
	char	  **free;			/* has space for all pages */
	char	  **segments;		/* of SEGMENT_PAGES pages each, as far as they were needed */
	int			leaves;			/* leaves that have pages */
	int			indexed;		/* of these, leaves with indexes */
	int			hand;			/* position in the list of the batch that gave up pages last */
	uint64		rows;			/* rows that were taken so far */
	uint64		searched;		/* `rows` at the last search for idle leaves */
	TupleTableSlot *slots[MaxHeapTuplesPerPage];	/* for the rows of one page */
	int			nslots;
} SluiceLeafPool;

/*
 * Creates the pool, before the first row of a partitioned table whose rows may
 * wait.
 */
void
sluice_leaves_open(SluiceLoad *load)
{
	SluiceLeafPool *pool;
	MemoryContext old;

	if (!sluice_allowed.whole_pages || !sluice_allowed.partition_pages)
		return;
	/* The pages are allocated when they are needed: most loads of partitioned tables are small. */
	old = MemoryContextSwitchTo(load->estate->es_query_cxt);
	pool = palloc0(sizeof(SluiceLeafPool));
	pool->most = (int) Min(sluice_live_index_memory() / PAGE_STRIDE, MAX_POOL_PAGES);
	pool->most = Max(pool->most, SEGMENT_PAGES);
	pool->free = palloc(sizeof(char *) * pool->most);
	pool->segments = palloc(sizeof(char *) * (pool->most / SEGMENT_PAGES + 1));
	load->leaf_pool = pool;
	MemoryContextSwitchTo(old);
}

/*
 * How many leaves may have pages: fewer than there are pages, so that one of them has a second
 * page.
 */
static int
max_leaves(const SluiceLeafPool *pool)
{
	return pool->most / 4 * 3;
}

/* How many pages this many leaves may use. */
static int
pool_limit(const SluiceLeafPool *pool)
{
	return Min(pool->most, Max(POOL_PAGES, 2 * pool->leaves));
}

/*
 * Whether the leaf's next row may go into a page. Then the slot for it is not
 * the batch's.
 */
static bool
may_have_pages(SluiceLoad *load, SluiceBatch *batch)
{
	Relation	rel = batch->rri->ri_RelationDesc;

	if (load->leaf_pool == NULL || !load->by_partition)
		return false;
	if (batch->leaf.used > 0)
		return true;
	/*
	 * Rows that wait in the batch came first. Defaults that differ for every
	 * row (`nvolatile`) are evaluated in the order of the rows. A small load
	 * gains nothing.
	 */
	if (batch->used > 0 || batch->leaf.refused || load->nvolatile > 0 ||
		load->source.bytes < sluice_threshold(SLUICE_PAGES_BYTES))
		return false;
	/*
	 * The append route needs shared buffers. Free room in the table is used first, as stock COPY
	 * does.
	 */
	batch->leaf.refused = RelationUsesLocalBuffers(rel) || sluice_batch_has_room(batch);
	return !batch->leaf.refused;
}

/* The slot for the leaf's next row, empty. */
TupleTableSlot *
sluice_leaf_slot(SluiceLoad *load, SluiceBatch *batch)
{
	if (!may_have_pages(load, batch))
		return sluice_batch_slot(batch);
	if (batch->leaf.slot == NULL)
	{
		batch->leaf.slot = sluice_make_slot(batch->rri->ri_RelationDesc, load->estate);
		batch->leaf.reserve = RelationGetTargetPageFreeSpace(batch->rri->ri_RelationDesc,
															 HEAP_DEFAULT_FILLFACTOR);
	}
	return batch->leaf.slot;
}

/*
 * Closes the last page. It is then a page as the server expects one, except
 * for what stamp_page() of page_routes.c sets.
 */
static void
close_page(SluiceLeafPages *leaf)
{
	PageHeader	page = (PageHeader) leaf->pages[leaf->used - 1];

	Assert(leaf->lower > SizeOfPageHeaderData && leaf->lower <= leaf->upper);
	Assert(leaf->upper <= page->pd_special);
	page->pd_lower = (LocationIndex) leaf->lower;
	page->pd_upper = (LocationIndex) leaf->upper;
}

/*
 * Lists the rows of the page, without their places in the table. Removes the
 * lines from their headers: the server expects zeros there, as
 * heap_prepare_insert() leaves them before the fields are set.
 */
static PlacedRow *
take_rows(Page page, PlacedRow *at)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber n = FirstOffsetNumber; n <= last; n++, at++)
	{
		ItemId		item = PageGetItemId(page, n);

		at->tuple = (HeapTupleHeader) PageGetItem(page, item);
		at->len = ItemIdGetLength(item);
		memcpy(&at->line, &at->tuple->t_choice, sizeof(at->line));
		memset(&at->tuple->t_choice, 0, sizeof(at->tuple->t_choice));
	}
	return at;
}

/* Passes rows that are in the table to its indexes. */
static void
hand_to_indexes(SluiceLoad *load, SluiceBatch *batch, PlacedRow *placed, int count)
{
	NewRows		rows = {.placed = placed,.count = count,.store = sluice_store_placed};

	batch->inserted += count;
	sluice_count_rows(load, count);
	if (sluice_index_needs(batch->indexes) == SLUICE_INDEX_NEEDS_NOTHING)
		return;
	/*
	 * A separate slot for this call: the leaf's own may hold the next row. The
	 * rows are in the table here, so an error of an index ends the
	 * transaction.
	 */
	rows.slot = sluice_make_slot(batch->rri->ri_RelationDesc, load->estate);
	rows.many = batch->inserted >= sluice_threshold(SLUICE_BATCH_ROWS);
	sluice_index_rows(batch->indexes, &rows);
	ExecDropSingleTupleTableSlot(rows.slot);
}

/*
 * Appends the first n pages to the leaf's table; afterwards they can be
 * reused. The lines are read before the pages are installed, because xmin,
 * xmax and cid are written to the same bytes. The indexes read the rows from
 * these pages, not from the buffers, which are unlocked by then and may have
 * been evicted.
 */
static void
append_full_pages(SluiceLoad *load, SluiceBatch *batch, int n)
{
	SluiceLeafPages *leaf = &batch->leaf;
	PlacedRow  *placed = palloc(sizeof(PlacedRow) * n * MaxHeapTuplesPerPage);
	PlacedRow  *end = placed;
	BlockNumber blocks[SLUICE_LEAF_PAGES];
	PlacedRow  *at = placed;
	instr_time	before,
				after;

	INSTR_TIME_SET_CURRENT(before);
	for (int i = 0; i < n; i++)
		end = take_rows((Page) leaf->pages[i], end);
	Assert(n > 0 && n < leaf->used && end > placed);
	sluice_append_pages(load, batch, leaf->pages, n, end - placed, blocks);
	for (int i = 0; i < n; i++)
	{
		OffsetNumber last = PageGetMaxOffsetNumber((Page) leaf->pages[i]);

		for (OffsetNumber k = FirstOffsetNumber; k <= last; k++, at++)
			ItemPointerSet(&at->tid, blocks[i], k);
	}
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.heap, after, before);
	before = after;
	hand_to_indexes(load, batch, placed, (int) (end - placed));
	INSTR_TIME_SET_CURRENT(after);
	INSTR_TIME_ACCUM_DIFF(sluice_report.after, after, before);
	pfree(placed);
}

/* Inserts the rows of the leaf's last page where its table has room. */
static void
insert_last_page(SluiceLoad *load, SluiceBatch *batch)
{
	SluiceLeafPool *pool = load->leaf_pool;
	Relation	rel = batch->rri->ri_RelationDesc;
	PlacedRow	placed[MaxHeapTuplesPerPage];
	int			count;
	MemoryContext old;

	count = (int) (take_rows((Page) batch->leaf.pages[batch->leaf.used - 1], placed) - placed);
	Assert(count > 0);
	/*
	 * heap_multi_insert() uses no descriptor, so slots of any relation serve.
	 */
	while (pool->nslots < count)
		pool->slots[pool->nslots++] = sluice_make_slot(load->rri->ri_RelationDesc, load->estate);
	for (int i = 0; i < count; i++)
	{
		pool->slots[i]->tts_tableOid = RelationGetRelid(rel);
		sluice_slot_store(pool->slots[i], (char *) placed[i].tuple, placed[i].len);
	}
	/* Before each heap_multi_insert(), so that it adds no more blocks than these rows need. */
	(void) sluice_batch_has_room(batch);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(load->estate));
	heap_multi_insert(rel, pool->slots, count, batch->cid, batch->options, batch->bistate);
	MemoryContextSwitchTo(old);
	/* Releases the pin: there may be thousands of leaves, and the batch lives until the end of the statement. */
	sluice_set_target_block(batch, RelationGetTargetBlock(rel));
	for (int i = 0; i < count; i++)
	{
		placed[i].tid = pool->slots[i]->tts_tid;
		ExecClearTuple(pool->slots[i]);
	}
	hand_to_indexes(load, batch, placed, count);
}

/*
 * Calls one of these two functions. An error in it belongs to an earlier row:
 * it names that row's line, and must not show the record that is being read.
 * The state is restored afterwards, for errors of the current record.
 */
static void
without_record(SluiceLoad *load, SluiceBatch *batch, int pages)
{
	CopyFromState cstate = load->cstate;
	bool		line_buf_valid = cstate->line_buf_valid;
	uint64		line = cstate->cur_lineno;
	const char *record = load->record;

	cstate->line_buf_valid = false;
	load->record = NULL;
	if (pages > 0)
		append_full_pages(load, batch, pages);
	else
		insert_last_page(load, batch);
	cstate->line_buf_valid = line_buf_valid;
	cstate->cur_lineno = line;
	load->record = record;
}

/*
 * Installs the leaf's full pages: all but the last one. The last one becomes
 * the first and stays open, with its room in `lower` and `upper`.
 */
static void
install_full_pages(SluiceLoad *load, SluiceBatch *batch)
{
	SluiceLeafPages *leaf = &batch->leaf;
	SluiceLeafPool *pool = load->leaf_pool;

	if (leaf->used < 2)
		return;
	without_record(load, batch, leaf->used - 1);
	for (int i = 0; i < leaf->used - 1; i++)
		pool->free[pool->nfree++] = leaf->pages[i];
	leaf->pages[0] = leaf->pages[leaf->used - 1];
	leaf->used = 1;
}

/* Inserts all rows of the leaf. It has no pages afterwards. */
static void
flush_leaf(SluiceLoad *load, SluiceBatch *batch)
{
	SluiceLeafPages *leaf = &batch->leaf;
	SluiceLeafPool *pool = load->leaf_pool;

	if (leaf->used == 0)
		return;
	/* In this order, so that rows of a leaf keep theirs. */
	install_full_pages(load, batch);
	close_page(leaf);
	without_record(load, batch, 0);
	pool->free[pool->nfree++] = leaf->pages[0];
	leaf->used = 0;
	pool->leaves--;
	if (leaf->indexed)
		pool->indexed--;
	ResetPerTupleExprContext(load->estate);
}

/* Inserts all rows that wait in pages. */
void
sluice_leaves_flush(SluiceLoad *load)
{
	ListCell   *lc;

	if (load->leaf_pool == NULL)
		return;
	foreach(lc, load->batches)
		flush_leaf(load, lfirst(lc));
}

/* Closes the pool. No row waits any more. */
void
sluice_leaves_close(SluiceLoad *load)
{
	SluiceLeafPool *pool = load->leaf_pool;

	for (int i = 0; pool && i < pool->nslots; i++)
		ExecDropSingleTupleTableSlot(pool->slots[i]);
	load->leaf_pool = NULL;
}

/*
 * Makes leaves that get no more rows give up their pages. The list of batches
 * is searched only once for every IDLE_ROWS / 16 rows: with thousands of
 * partitions in no order no leaf is idle, and a search for each row would cost
 * more than it gains.
 */
static void
flush_idle_leaves(SluiceLoad *load)
{
	SluiceLeafPool *pool = load->leaf_pool;
	ListCell   *lc;

	if (pool->rows - pool->searched < IDLE_ROWS / 16)
		return;
	pool->searched = pool->rows;
	foreach(lc, load->batches)
	{
		SluiceBatch *batch = lfirst(lc);

		if (batch->leaf.used > 0 && pool->rows - batch->leaf.touched > IDLE_ROWS)
			flush_leaf(load, batch);
	}
}

/* Returns an unused page of the pool. */
static char *
free_page(SluiceLoad *load)
{
	SluiceLeafPool *pool = load->leaf_pool;
	char	   *segment;

	/*
	 * This loop ends. If no page is free, the leaves have at least pool_limit()
	 * pages together, and there are fewer leaves than that. So some leaf has more
	 * than one page, and gives up its full ones. Leaves are taken in turn, so that
	 * none gives up a page each time.
	 */
	Assert(pool->leaves < pool_limit(pool));
	while (pool->nfree == 0 && pool->made >= pool_limit(pool))
	{
		pool->hand = (pool->hand + 1) % list_length(load->batches);
		install_full_pages(load, list_nth(load->batches, pool->hand));
	}
	if (pool->nfree > 0)
		return pool->free[--pool->nfree];
	if (pool->made % SEGMENT_PAGES == 0)
		pool->segments[pool->made / SEGMENT_PAGES] =
			MemoryContextAlloc(load->estate->es_query_cxt, (Size) SEGMENT_PAGES * PAGE_STRIDE);
	segment = pool->segments[pool->made / SEGMENT_PAGES];
	return segment + (Size) PAGE_STRIDE * (pool->made++ % SEGMENT_PAGES);
}

/* Gives the leaf another page. */
static void
add_page(SluiceLoad *load, SluiceLeafPages *leaf)
{
	Page		page = (Page) free_page(load);

	Assert(leaf->used < SLUICE_LEAF_PAGES);
	/* A reused page has rows of another partition: all of it is cleared. */
	PageInit(page, BLCKSZ, 0);
	leaf->pages[leaf->used++] = (char *) page;
	leaf->lower = SizeOfPageHeaderData;
	leaf->upper = ((PageHeader) page)->pd_upper;
}

/*
 * Whether the leaf may have its first page; it gets the page then. If not,
 * nothing has changed, and its rows wait in its batch.
 */
static bool
admit_leaf(SluiceLoad *load, SluiceBatch *batch)
{
	SluiceLeafPool *pool = load->leaf_pool;
	bool		indexed = sluice_index_needs(batch->indexes) != SLUICE_INDEX_NEEDS_NOTHING;

	if (pool->leaves == max_leaves(pool) || (indexed && pool->indexed == MAX_LEAVES_WITH_INDEXES))
		flush_idle_leaves(load);
	if (pool->leaves == max_leaves(pool) || (indexed && pool->indexed == MAX_LEAVES_WITH_INDEXES))
		return false;
	pool->leaves++;
	pool->indexed += indexed;
	batch->leaf.indexed = indexed;
	/* A batch with pages is not closed after a flush, so it must not keep the pin on its last block. */
	sluice_set_target_block(batch, RelationGetTargetBlock(batch->rri->ri_RelationDesc));
	add_page(load, &batch->leaf);
	return true;
}

/*
 * Whether the last page has no room for a tuple of this length. The rule is
 * that of heap_multi_insert(): there must be room for a line pointer and the
 * fillfactor's reserve, and no more rows than a page may have. The caller puts
 * any tuple into an empty page.
 */
static bool
is_full(const SluiceLeafPages *leaf, Size aligned)
{
	return leaf->lower + sizeof(ItemIdData) + aligned + leaf->reserve > leaf->upper ||
		leaf->lower >= SizeOfPageHeaderData + sizeof(ItemIdData) * MaxHeapTuplesPerPage;
}

/*
 * Copies the tuple into the leaf's last page. PageAddItem() would search for a
 * free line pointer and set the page header's fields for each row.
 */
static void
put_tuple(SluiceLeafPages *leaf, HeapTuple tuple, uint64 line)
{
	char	   *page = leaf->pages[leaf->used - 1];
	HeapTupleHeader header;

	Assert(leaf->lower + sizeof(ItemIdData) + MAXALIGN(tuple->t_len) <= leaf->upper);
	Assert(!HeapTupleHasExternal(tuple));
	leaf->upper -= MAXALIGN(tuple->t_len);
	ItemIdSetNormal((ItemId) (page + leaf->lower), leaf->upper, tuple->t_len);
	leaf->lower += sizeof(ItemIdData);
	header = (HeapTupleHeader) (page + leaf->upper);
	memcpy(header, tuple->t_data, tuple->t_len);
	/* As heap_prepare_insert() leaves it; stamp_page() sets the rest. */
	StaticAssertStmt(sizeof(line) <= sizeof(header->t_choice), "no room for a line");
	memset(&header->t_choice, 0, sizeof(header->t_choice));
	memcpy(&header->t_choice, &line, sizeof(line));
	header->t_infomask &= ~HEAP_XACT_MASK;
	header->t_infomask2 &= ~HEAP2_XACT_MASK;
}

/* Moves the row to the batch's next slot. */
static TupleTableSlot *
move_to_batch(SluiceBatch *batch, TupleTableSlot *slot)
{
	TupleTableSlot *to = sluice_batch_slot(batch);
	HeapTuple	tuple = ((HeapTupleTableSlot *) slot)->tuple;

	/*
	 * A tuple that the slot owns is freed with the slot, so its values are copied. The core's
	 * tuple stays.
	 */
	if (TTS_SHOULDFREE(slot))
	{
		slot_getallattrs(slot);
		memcpy(to->tts_values, slot->tts_values, sizeof(Datum) * slot->tts_nvalid);
		memcpy(to->tts_isnull, slot->tts_isnull, sizeof(bool) * slot->tts_nvalid);
		ExecMaterializeSlot(ExecStoreVirtualTuple(to));
	}
	else
		sluice_slot_store(to, (char *) tuple->t_data, tuple->t_len);
	to->tts_tableOid = slot->tts_tableOid;
	ExecClearTuple(slot);
	return to;
}

/*
 * Takes the row in sluice_leaf_slot()'s slot, which no check of the row can
 * reject any more. Copies it into a page and returns NULL, or moves it to the
 * batch's next slot and returns that.
 */
TupleTableSlot *
sluice_leaf_take(SluiceLoad *load, SluiceBatch *batch, TupleTableSlot *slot, uint64 line)
{
	SluiceLeafPages *leaf = &batch->leaf;
	HeapTuple	tuple;

	/*
	 * The row is in the batch's slot: the leaf had no pages when it arrived.
	 */
	if (slot != leaf->slot)
		return slot;
	Assert(batch->used == 0);
	/* Values of the row may be in memory that an insertion resets. */
	ExecMaterializeSlot(slot);
	tuple = ((HeapTupleTableSlot *) slot)->tuple;
	if (tuple->t_len > TOAST_TUPLE_THRESHOLD || HeapTupleHasExternal(tuple) ||
		(leaf->used == 0 && !admit_leaf(load, batch)))
	{
		/* The rows that came before it go in before it. */
		flush_leaf(load, batch);
		leaf->refused = true;
		return move_to_batch(batch, slot);
	}
	if (is_full(leaf, MAXALIGN(tuple->t_len)) && leaf->lower > SizeOfPageHeaderData)
	{
		/*
		 * The page is closed before `lower` and `upper` are set for the next
		 * one.
		 */
		close_page(leaf);
		add_page(load, leaf);
		if (leaf->used == SLUICE_LEAF_PAGES)
			install_full_pages(load, batch);
	}
	put_tuple(leaf, tuple, line);
	leaf->touched = ++load->leaf_pool->rows;
	ExecClearTuple(slot);
	return NULL;
}
