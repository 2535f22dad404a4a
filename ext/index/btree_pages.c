/*
 * Functions for the code that changes a B-tree page by page: adding tuples to
 * a page, allocating blocks, and logging pages that change together.
 */
#include "index/build.h"

#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/indexfsm.h"

/*
 * The fewest and the most blocks that are added at once. Adding fewer than
 * that saves nothing: for so few, the server does not reserve space with one
 * system call.
 */
#define FEWEST_NEW_BLOCKS 9
#define MOST_NEW_BLOCKS 64

/*
 * Adds a tuple to a page image. The caller has checked the space with
 * sluice_btree_size(), so only a bug of ours makes this fail. No page has
 * changed by then.
 */
void
sluice_btree_add_item(Page page, IndexTuple tuple, OffsetNumber offset)
{
	if (PageAddItem(page, (char *) tuple, MAXALIGN(IndexTupleSize(tuple)), offset, false,
					false) == InvalidOffsetNumber)
		elog(ERROR, "pgsluice: no room for an entry on an index page");
}

/*
 * Returns a block that was added in advance, locked, as the access method
 * returns one.
 *
 * The block is a page of zeros that nothing points to. VACUUM may have put it
 * into the free space map, and another session may have taken it from there.
 * Then the page is no longer new, and is skipped. The access method skips our
 * pages in the same way. Do not wait for the lock here: the caller holds
 * others.
 */
static Buffer
take_new_block(Relation index, SluiceNewBlocks *blocks)
{
	while (blocks->next < blocks->end)
	{
		Buffer		buffer = ReadBuffer(index, blocks->next++);

		if (!ConditionalLockBuffer(buffer))
		{
			ReleaseBuffer(buffer);
			continue;
		}
		if (PageIsNew(BufferGetPage(buffer)))
		{
			_bt_pageinit(BufferGetPage(buffer), BufferGetPageSize(buffer));
			return buffer;
		}
		_bt_relbuf(index, buffer);
	}
	return InvalidBuffer;
}

/*
 * Adds blocks for the leaves to come: an eighth of the number used so far, so that
 * few are left over. One system call for all of them costs about as much as a call
 * for a single block. Adds none if only a few leaves have been used.
 *
 * Like any block of zeros at the end of a relation, these blocks are not in WAL: a
 * standby has no such block before its page is logged.
 */
static void
add_new_blocks(Relation index, SluiceNewBlocks *blocks)
{
	Buffer		buffers[MOST_NEW_BLOCKS];
	uint32		wanted = Min(blocks->used / 8, MOST_NEW_BLOCKS);
	uint32		got;

	if (wanted < FEWEST_NEW_BLOCKS || RelationUsesLocalBuffers(index))
		return;
	got = compat_extend(index, NULL, wanted, buffers);
	blocks->next = BufferGetBlockNumber(buffers[0]);
	blocks->end = blocks->next + got;
	LockBuffer(buffers[0], BUFFER_LOCK_UNLOCK);
	for (uint32 i = 0; i < got; i++)
		ReleaseBuffer(buffers[i]);
}

/*
 * Called before any page is locked: adds blocks in advance, so that others need
 * not wait for that at the parent's lock. Returns how many leaves the caller
 * should add at most, to find them all ready. 1: the access method must be
 * asked for a block first. 0: as many as there are: few leaves have been used,
 * or VACUUM has freed blocks, and no block is added in advance.
 */
int
sluice_btree_prepare_blocks(SluiceIndexBuild *build)
{
	SluiceNewBlocks *blocks = &build->blocks;

	if (blocks->next == blocks->end && blocks->none_free)
	{
		add_new_blocks(build->index, blocks);
		blocks->none_free = false;
	}
	if (blocks->next < blocks->end)
		return (int) (blocks->end - blocks->next);
	return blocks->recycled || blocks->used / 8 < FEWEST_NEW_BLOCKS ||
		RelationUsesLocalBuffers(build->index) ? 0 : 1;
}

/*
 * Returns one block, locked: one that was added in advance, or else one from
 * the access method, which also reuses blocks that VACUUM has found free. Any
 * step may fail while the leaf, its parent and earlier new blocks are locked.
 * sluice_btree_allocate() then zeroes these new blocks.
 */
static Buffer
allocate_one(SluiceIndexBuild *build)
{
	SluiceNewBlocks *blocks = &build->blocks;
	Buffer		buffer = take_new_block(build->index, blocks);

	if (!BufferIsValid(buffer) && blocks->none_free)
	{
		add_new_blocks(build->index, blocks);
		blocks->none_free = false;
		buffer = take_new_block(build->index, blocks);
	}
	if (!BufferIsValid(buffer))
	{
		BlockNumber end = RelationGetNumberOfBlocks(build->index);

		buffer = compat_bt_allocbuf(build->index, build->heap);
		blocks->none_free = BufferGetBlockNumber(buffer) >= end;
		blocks->recycled = !blocks->none_free;
	}
	blocks->used++;
	return buffer;
}

/*
 * Allocates `count` blocks for new pages, locked. After an error, the blocks
 * look as if they had never been used, also to VACUUM.
 */
void
sluice_btree_allocate(SluiceIndexBuild *build, Buffer *added, int count)
{
	volatile int got = 0;

	PG_TRY();
	{
		while (got < count)
		{
			added[got] = allocate_one(build);
			got++;
		}
	}
	PG_CATCH();
	{
		/*
		 * In 15 and earlier, BufferGetPage() is a macro that evaluates its
		 * argument more than once.
		 */
		for (int i = 0; i < got; i++)
			memset(BufferGetPage(added[i]), 0, BLCKSZ);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Puts the blocks that were not needed into the free space map. After an
 * error, VACUUM does that.
 */
void
sluice_btree_give_back(SluiceIndexBuild *build)
{
	SluiceNewBlocks *blocks = &build->blocks;
	BlockNumber first = blocks->next;

	if (first == blocks->end)
		return;
	while (blocks->next < blocks->end)
		RecordFreeIndexPage(build->index, blocks->next++);
	/* The map of a large index is large: only the part above these blocks is brought up to date. */
	FreeSpaceMapVacuumRange(build->index, first, blocks->end);
}

/*
 * Logs changed pages as full images in one record, in the order in which they
 * are to be restored. The caller is in a critical section.
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
