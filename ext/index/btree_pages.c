/*
 * What the ways that change a B-tree by the page have in common: room on a
 * page, new blocks, and the record of pages that change together.
 */
#include "index/build.h"

#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

/* Bytes that a tuple takes of a page, with its line pointer. */
Size
sluice_btree_size(IndexTuple tuple)
{
	return MAXALIGN(IndexTupleSize(tuple)) + sizeof(ItemIdData);
}

/*
 * Adds a tuple to an image. There was room by sluice_btree_size(), so that
 * this cannot fail but by a mistake of ours; it is before any page has
 * changed.
 */
void
sluice_btree_add_item(Page page, IndexTuple tuple, OffsetNumber offset)
{
	if (PageAddItem(page, (char *) tuple, MAXALIGN(IndexTupleSize(tuple)), offset, false,
					false) == InvalidOffsetNumber)
		elog(ERROR, "pgsluice: no room for an entry on an index page");
}

/*
 * Gets so many blocks for new pages, locked. What an error leaves of them
 * looks as never used, to VACUUM too.
 */
void
sluice_btree_allocate(Relation heap, Relation index, Buffer *added, int count)
{
	volatile int got = 0;

	PG_TRY();
	{
		while (got < count)
		{
			added[got] = compat_bt_allocbuf(index, heap);
			got++;
		}
	}
	PG_CATCH();
	{
		/* Up to 15 BufferGetPage() is a macro that evaluates its argument more than once. */
		for (int i = 0; i < got; i++)
			memset(BufferGetPage(added[i]), 0, BLCKSZ);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Logs pages that have changed as whole images in one record, in the order in
 * which they are to be restored. Within a critical section.
 */
void
sluice_btree_log(const Buffer *buffers, int count)
{
	XLogRecPtr	at;

	Assert(CritSectionCount > 0);
	XLogBeginInsert();
	for (int i = 0; i < count; i++)
		XLogRegisterBuffer((uint8) i, buffers[i], REGBUF_FORCE_IMAGE | REGBUF_STANDARD);
	at = XLogInsert(RM_XLOG_ID, XLOG_FPI);
	for (int i = 0; i < count; i++)
		PageSetLSN(BufferGetPage(buffers[i]), at);
}
