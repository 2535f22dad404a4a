/*
 * Pages of partitions: rows that are routed are copied into pages of their
 * partitions, and full pages are installed by the append route.
 *
 * A row that has passed everything that can refuse it is copied into the last
 * page of its partition (leaf). The leaf keeps its pages, up to
 * SLUICE_LEAF_PAGES of them, until there is no room for the next row. Then all
 * full pages are installed together (sluice_append_pages), and their rows go
 * to the indexes, as those of an ordinary table do. Why that is safe is said
 * in page_routes.c. A page that is not full when the load ends is not
 * installed: heap_multi_insert() puts its rows where there is room, as stock
 * COPY does. So many small loads do not leave many half empty pages.
 *
 * WHICH LEAVES.  Rows must be allowed to wait (`by_partition` of batches.c):
 * no AFTER ROW triggers, no logical decoding, no rejects. A leaf gets pages
 * only while no row waits in its batch, so its rows keep their order. A row
 * that does not fit (long enough for TOAST, or with a value out of line) sends
 * the leaf's rows to its batch until that is inserted; the pages go in first.
 * A leaf whose table has room in its pages gets its rows there, by its batch.
 *
 * WHAT A PAGE HOLDS.  Tuples as heap_form_tuple() and the core make them. The
 * fields of the header that depend on the transaction and the place are set
 * when the page is installed. Until then xmin, xmax and cid are of no use, and
 * the row's line number is there, for the CONTEXT of an error of its index
 * entries.
 *
 * THE INVARIANT.  Each row of a leaf is in exactly one place: in the slot that is
 * being filled, in a page here, in the batch, or in the table. If the leaf has
 * pages, all but the last one are closed: complete, but for what depends on their
 * place in the table. The last one's room is in `lower` and `upper`, and its header is
 * set by close_page(). A leaf that has a page has a row in it. A page of the pool
 * is one leaf's, or in `free`, or was never used.
 *
 * LOCKS.  None while rows wait: the pages are memory of this backend, and no one
 * else knows of them. The partition was locked by the executor when it was
 * opened. page_routes.c and heap_multi_insert() lock the blocks that they fill.
 *
 * AFTER AN ERROR OR A CRASH the pages are gone, with rows that were never in the
 * table. Some of the load's rows are in, of some partitions, and they are those of
 * a transaction that has not committed. It cannot commit without the others: rows
 * that wait go in before the indexes are finished (copy.c), and whatever takes
 * a row one by one has them go in first (batches.c), since a trigger or a foreign
 * server may look at the table.
 *
 * ERRORS OF WAITING ROWS.  Nothing about a row can be refused while it waits, but
 * by a unique index, a foreign key or a function in an index. Such an error
 * names the line of its row, and the record that is being read is not shown with
 * it (without_record).
 *
 * MEMORY.  The pool has POOL_PAGES pages, or two for each leaf if that is more,
 * and never more than pgsluice.live_index_memory, but at least a segment. It is
 * allocated by segments, as pages are needed. If it is used up, another leaf's full pages are installed.
 * Three leaves for four pages have some at most; with indexes fewer, since
 * entries that wait need memory for each. A further leaf takes the place of one
 * that has got no row for a while, or else uses its batch. Rows of a batch go in
 * by ones and twos where thousands of leaves get rows in no order, and each time
 * the leaf's file may have to be opened again: that is what pages save most.
 */
#include "heap/heap.h"

#include "access/heaptoast.h"
#include "storage/bufpage.h"

/* Pages of a pool that few leaves share: they stay in the processor's cache. */
#define POOL_PAGES 2048
#define SEGMENT_PAGES 256
#define MAX_POOL_PAGES (1 << 17)
#define MAX_LEAVES_WITH_INDEXES 32

/* Pages of 8 kB lie a little apart, so that all their headers are not in one set of the processor's cache. */
#define PAGE_STRIDE (BLCKSZ + 192)

/* A leaf that got none of so many rows gives its pages up for another one. */
#define IDLE_ROWS 16384

typedef struct SluiceLeafPool
{
	int			most;			/* pages that it may ever have */
	int			made;			/* pages that were used once */
	int			nfree;
	char	  **free;			/* room for all of them */
	char	  **segments;		/* of SEGMENT_PAGES pages; those that were needed */
	int			leaves;			/* that have pages */
	int			indexed;		/* of these, with indexes */
	int			hand;			/* the batch that gave pages last, by its place in the list */
	uint64		rows;			/* that came so far */
	uint64		searched;		/* `rows` when no leaf was idle */
	TupleTableSlot *slots[MaxHeapTuplesPerPage];	/* for the rows of one page */
	int			nslots;
} SluiceLeafPool;

/* Before the first row of a partitioned table whose rows may wait. */
void
sluice_leaves_open(SluiceLoad *load)
{
	SluiceLeafPool *pool;
	MemoryContext old;

	if (!sluice_allowed.whole_pages || !sluice_allowed.partition_pages)
		return;
	/* The pages themselves are allocated when they are needed: most partitioned loads are small. */
	old = MemoryContextSwitchTo(load->estate->es_query_cxt);
	pool = palloc0(sizeof(SluiceLeafPool));
	pool->most = (int) Min(sluice_live_index_memory() / PAGE_STRIDE, MAX_POOL_PAGES);
	pool->most = Max(pool->most, SEGMENT_PAGES);
	pool->free = palloc(sizeof(char *) * pool->most);
	pool->segments = palloc(sizeof(char *) * (pool->most / SEGMENT_PAGES + 1));
	load->leaf_pool = pool;
	MemoryContextSwitchTo(old);
}

/* How many leaves may have pages: fewer than there are, so that one of them has a second page. */
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
 * Whether the leaf's next row may be put into a page. Then the slot for it is
 * not the batch's.
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
	 * Rows that wait in the batch came first. Defaults that differ for every row
	 * (`nvolatile`) are evaluated in the order of rows; a small load gains nothing.
	 */
	if (batch->used > 0 || batch->leaf.refused || load->nvolatile > 0 ||
		load->source.bytes < sluice_threshold(SLUICE_PAGES_BYTES))
		return false;
	/* The append route is for shared buffers. Free room is to be used first, as stock COPY does. */
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
 * Closes the last page: from here on it is a page as the server expects one, but
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
 * The rows of the page, but for their places in the table. Their headers no
 * longer have the lines: what the server finds there must be zero, as
 * heap_prepare_insert() would have it before the fields are set.
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

/* Hands rows that are in the table to its indexes. */
static void
hand_to_indexes(SluiceLoad *load, SluiceBatch *batch, PlacedRow *placed, int count)
{
	NewRows		rows = {.placed = placed,.count = count,.store = sluice_store_placed};

	batch->inserted += count;
	sluice_count_rows(load, count);
	if (sluice_index_needs(batch->indexes) == SLUICE_INDEX_NEEDS_NOTHING)
		return;
	/*
	 * A slot for this call: the leaf's own may have the row that comes next. Rows
	 * are in the table here: an error of an index ends the transaction.
	 */
	rows.slot = sluice_make_slot(batch->rri->ri_RelationDesc, load->estate);
	rows.many = batch->inserted >= sluice_threshold(SLUICE_BATCH_ROWS);
	sluice_index_rows(batch->indexes, &rows);
	ExecDropSingleTupleTableSlot(rows.slot);
}

/*
 * Puts the first n pages into the leaf's table; they can be used again then. The
 * lines are read before the pages are installed: then the same bytes are xmin, xmax
 * and cid. The indexes read the rows from these pages, not from the buffers, which
 * are unlocked by then and may be evicted.
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
	/* heap_multi_insert() looks at no descriptor: any relation's slots serve. */
	while (pool->nslots < count)
		pool->slots[pool->nslots++] = sluice_make_slot(load->rri->ri_RelationDesc, load->estate);
	for (int i = 0; i < count; i++)
	{
		pool->slots[i]->tts_tableOid = RelationGetRelid(rel);
		sluice_slot_store(pool->slots[i], (char *) placed[i].tuple, placed[i].len);
	}
	/* Before each heap_multi_insert(): it adds no more blocks than these rows need. */
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
 * Runs one of these two functions. An error of it is of a row that came earlier:
 * it names that one's line, and must not show the record that is read now.
 * Afterwards all is as it was, for errors of the current record.
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
 * Installs the leaf's full pages: all but the last one. That becomes the first,
 * and stays open, with its room in `lower` and `upper`.
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

/* Inserts all rows of the leaf, which has no pages then. */
static void
flush_leaf(SluiceLoad *load, SluiceBatch *batch)
{
	SluiceLeafPages *leaf = &batch->leaf;
	SluiceLeafPool *pool = load->leaf_pool;

	if (leaf->used == 0)
		return;
	/* In this order: rows of a leaf go in as they came. */
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

/* No row waits any more. */
void
sluice_leaves_close(SluiceLoad *load)
{
	SluiceLeafPool *pool = load->leaf_pool;

	for (int i = 0; pool && i < pool->nslots; i++)
		ExecDropSingleTupleTableSlot(pool->slots[i]);
	load->leaf_pool = NULL;
}

/*
 * Has leaves that get no rows any more give up their pages. The list of batches
 * is searched once in so many rows: with thousands of partitions in no order none
 * is idle, and a search for each row would cost more than it gives.
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

/* An empty page of the pool. */
static char *
free_page(SluiceLoad *load)
{
	SluiceLeafPool *pool = load->leaf_pool;
	char	   *segment;

	/*
	 * This ends: if no page is free, leaves share at least pool_limit() of them, and
	 * they are fewer. So some leaf has more than one, and gives up those that
	 * are full. Leaves are taken in turn, so that none gives up a page each time.
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

/* Gives the leaf a further page. */
static void
add_page(SluiceLoad *load, SluiceLeafPages *leaf)
{
	Page		page = (Page) free_page(load);

	Assert(leaf->used < SLUICE_LEAF_PAGES);
	/* A page that was used before has rows of another partition: all of it is cleared. */
	PageInit(page, BLCKSZ, 0);
	leaf->pages[leaf->used++] = (char *) page;
	leaf->lower = SizeOfPageHeaderData;
	leaf->upper = ((PageHeader) page)->pd_upper;
}

/*
 * Whether the leaf may have its first page, which it gets then. If not, nothing
 * has changed, and its rows wait in its batch.
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
	add_page(load, &batch->leaf);
	return true;
}

/*
 * Whether the last page has no room for a tuple of this length, as
 * heap_multi_insert() decides: room for a line pointer, the fillfactor's reserve,
 * and no more rows than a page may have. An empty page takes any tuple.
 */
static bool
is_full(const SluiceLeafPages *leaf, Size aligned)
{
	return leaf->lower + sizeof(ItemIdData) + aligned + leaf->reserve > leaf->upper ||
		leaf->lower >= SizeOfPageHeaderData + sizeof(ItemIdData) * MaxHeapTuplesPerPage;
}

/*
 * Copies the tuple into the leaf's last page. PageAddItem() would search for a
 * free line pointer and set the header's fields for each row.
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
	/* As heap_prepare_insert() leaves it; the rest is stamped. */
	StaticAssertStmt(sizeof(line) <= sizeof(header->t_choice), "no room for a line");
	memset(&header->t_choice, 0, sizeof(header->t_choice));
	memcpy(&header->t_choice, &line, sizeof(line));
	header->t_infomask &= ~HEAP_XACT_MASK;
	header->t_infomask2 &= ~HEAP2_XACT_MASK;
}

/* The row is for the batch: it goes to the batch's next slot. */
static TupleTableSlot *
move_to_batch(SluiceBatch *batch, TupleTableSlot *slot)
{
	TupleTableSlot *to = sluice_batch_slot(batch);
	HeapTuple	tuple = ((HeapTupleTableSlot *) slot)->tuple;

	/* A tuple of the slot's own goes with the slot: its values are copied. The core's stays. */
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
 * The row in sluice_leaf_slot's slot, which nothing refuses any more. Either it
 * is copied into a page (NULL), or it is in the batch's next slot (which is
 * returned).
 */
TupleTableSlot *
sluice_leaf_take(SluiceLoad *load, SluiceBatch *batch, TupleTableSlot *slot, uint64 line)
{
	SluiceLeafPages *leaf = &batch->leaf;
	HeapTuple	tuple;

	/* It has the batch's slot: the leaf had no pages when the row came. */
	if (slot != leaf->slot)
		return slot;
	Assert(batch->used == 0);
	/* Values of the row may lie in memory that is reset with an insertion. */
	ExecMaterializeSlot(slot);
	tuple = ((HeapTupleTableSlot *) slot)->tuple;
	if (tuple->t_len > TOAST_TUPLE_THRESHOLD || HeapTupleHasExternal(tuple) ||
		(leaf->used == 0 && !admit_leaf(load, batch)))
	{
		/* What came before it goes in before it. */
		flush_leaf(load, batch);
		leaf->refused = true;
		return move_to_batch(batch, slot);
	}
	if (is_full(leaf, MAXALIGN(tuple->t_len)) && leaf->lower > SizeOfPageHeaderData)
	{
		/* Closed before `lower` and `upper` become those of the next page. */
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
