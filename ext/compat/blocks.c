/*
 * Writing many blocks at once, as the major version can: see base/blocks.c.
 * And for 15, adding many new blocks in one step, as later versions do it.
 *
 * ADDING BLOCKS ON 15 (compat_extend_locked).  The storage manager of 15 takes
 * a page of zeros for each new block. ExtendBufferedRelBy() of 16 reserves the
 * space of many blocks by one system call instead, and so does this function.
 * Under the relation extension lock:
 *
 *  1. fallocate() reserves the space, without changing the file's length or any
 *     byte in it. If it fails, for example for lack of space, blocks are added
 *     one by one, with stock's errors.
 *  2. The new blocks get buffers, which are zeroed and locked; nothing is read
 *     for them. This happens before the blocks exist. So nobody can have put
 *     anything into one of them, written it and evicted it before its buffer is
 *     zeroed here. Nobody looks beyond the relation's end.
 *  3. smgrextend() writes zeros to the last new block: the file has its length
 *     now, and the next checkpoint syncs it. The blocks before it read as zeros.
 *     If the file's own bytes of the last block are not zeros, something between
 *     the storage manager and the file changes what is written. Then zeros are
 *     written to the blocks before it too.
 *
 * An error or a crash before step 3 leaves the file's length as it was. An
 * error may leave buffers of zeros beyond the end. The next extension takes
 * them over (ReadBuffer() with P_NEW expects them). The route `fresh` writes
 * blocks without looking at buffers, so where it may follow, blocks are added
 * one by one (compat_is_private_file). After step 3 the new blocks are pages of
 * zeros, as stock's are until they are filled.
 */
#include "compat/compat.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/relpath.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000

/* The storage manager would make several writes of a longer run. */
#define AT_ONCE 128

void
compat_write_blocks(Relation rel, BlockNumber first, uint32 n, const char *pages)
{
	const void *each[AT_ONCE];

	while (n > 0)
	{
		uint32		some = Min(n, AT_ONCE);

		for (uint32 i = 0; i < some; i++)
			each[i] = pages + (size_t) i * BLCKSZ;
		smgrwritev(RelationGetSmgr(rel), MAIN_FORKNUM, first, each, some, true);
		first += some;
		n -= some;
		pages += (size_t) some * BLCKSZ;
	}
}

#else

/* The hooks of a server that is patched to record which blocks are written. */
extern PGDLLIMPORT void *mdextend_hook __attribute__((weak));
extern PGDLLIMPORT void *mdwrite_hook __attribute__((weak));

/* Whether the server must see each block that is written, or writes around the system's cache. */
static bool
each_block_counts(void)
{
#if PG_VERSION_NUM >= 160000
	if (io_direct_flags & IO_DIRECT_DATA)
		return true;
#endif
	return &mdextend_hook != NULL || &mdwrite_hook != NULL;
}

/* Opens the file of a block, named as by _mdfd_segpath() of md.c; -1 if it cannot be opened. */
static int
open_segment(Relation rel, BlockNumber block)
{
	char	   *path = compat_main_path(rel);
	char		segment[MAXPGPATH];
	int			len;

	if (block < RELSEG_SIZE)
		len = strlcpy(segment, path, sizeof(segment));
	else
		len = snprintf(segment, sizeof(segment), "%s.%u", path, block / RELSEG_SIZE);
	pfree(path);
	return len < (int) sizeof(segment) ? OpenTransientFile(segment, O_RDWR | PG_BINARY) : -1;
}

/* Whether the file has exactly this page at this block's place. */
static bool
holds_page(int fd, BlockNumber block, const char *page)
{
	PGAlignedBlock there;
	off_t		at = (off_t) BLCKSZ * (block % RELSEG_SIZE);

	return pg_pread(fd, there.data, BLCKSZ, at) == BLCKSZ && memcmp(there.data, page, BLCKSZ) == 0;
}

/*
 * Writes n blocks of one segment file. The storage manager has just written the block after them.
 * False if the file does not have that block's page unchanged, or if the system does not write all
 * blocks.
 */
static bool
write_at_once(Relation rel, BlockNumber first, uint32 n, const char *pages)
{
	size_t		len = (size_t) n * BLCKSZ;
	bool		done = false;
	int			fd;

	if (n < 2 || each_block_counts())
		return false;
	fd = open_segment(rel, first);
	if (fd < 0)
		return false;
	if (holds_page(fd, first + n, pages + len))
	{
		pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_EXTEND);
		done = pg_pwrite(fd, pages, len, (off_t) BLCKSZ * (first % RELSEG_SIZE)) == (ssize_t) len;
		pgstat_report_wait_end();
	}
	CloseTransientFile(fd);
	return done;
}

void
compat_write_blocks(Relation rel, BlockNumber first, uint32 n, const char *pages)
{
	if (write_at_once(rel, first, n, pages))
		return;
	for (uint32 i = 0; i < n; i++)
		smgrwrite(RelationGetSmgr(rel), MAIN_FORKNUM, first + i, (char *) pages + (size_t) i * BLCKSZ, true);
}

#endif

#if PG_VERSION_NUM < 160000

/* Reserves the space of n blocks after the file's end. False if the system does not do that. */
static bool
reserve_blocks(int fd, BlockNumber first, uint32 n)
{
#ifdef FALLOC_FL_KEEP_SIZE
	int			failed;

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_EXTEND);
	failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t) BLCKSZ * (first % RELSEG_SIZE), (off_t) BLCKSZ * n);
	pgstat_report_wait_end();
	return failed == 0;
#else
	return false;
#endif
}

/*
 * Takes buffers for blocks beyond the relation's end, zeroed and locked. If one is in use, takes
 * none: false.
 */
static bool
take_buffers(Relation rel, BufferAccessStrategy strategy, BlockNumber first, uint32 n, Buffer *buffers)
{
	for (uint32 i = 0; i < n; i++)
	{
		buffers[i] = ReadBufferExtended(rel, MAIN_FORKNUM, first + i, RBM_ZERO_AND_LOCK, strategy);
		if (PageIsNew(BufferGetPage(buffers[i])))
			continue;
		for (uint32 k = 0; k <= i; k++)
			UnlockReleaseBuffer(buffers[k]);
		return false;
	}
	return true;
}

/* Adds n blocks of one segment file in one step. If that is not possible, adds none: false. */
static bool
extend_at_once(Relation rel, BufferAccessStrategy strategy, BlockNumber first, uint32 n, Buffer *buffers)
{
	static const PGAlignedBlock zeros;
	BlockNumber last = first + n - 1;
	int			fd;

	fd = open_segment(rel, first);
	if (fd < 0)
		return false;
	if (!reserve_blocks(fd, first, n) || !take_buffers(rel, strategy, first, n, buffers))
	{
		CloseTransientFile(fd);
		return false;
	}
	smgrextend(RelationGetSmgr(rel), MAIN_FORKNUM, last, (char *) zeros.data, false);
	if (!holds_page(fd, last, zeros.data))
	{
		for (BlockNumber block = first; block < last; block++)
			smgrwrite(RelationGetSmgr(rel), MAIN_FORKNUM, block, (char *) zeros.data, false);
	}
	CloseTransientFile(fd);
	return true;
}

/*
 * Fewer blocks than this are added one by one. 16 has the same limit, between FileZero() and
 * FileFallocate().
 */
#define EXTEND_AT_ONCE 9

uint32
compat_extend_locked(Relation rel, BufferAccessStrategy strategy, uint32 n, Buffer *buffers)
{
	bool		lock = !RELATION_IS_LOCAL(rel);
	BlockNumber first;
	uint32		at_once;

	/* No more pins than this backend's share, as LimitAdditionalPins() of 16 has it. */
	n = RelationUsesLocalBuffers(rel) ? 1 : Min(n, Max(1, NBuffers / MaxBackends));
	if (lock)
		LockRelationForExtension(rel, ExclusiveLock);
	first = RelationGetNumberOfBlocks(rel);
	at_once = Min(n, RELSEG_SIZE - first % RELSEG_SIZE);
	if (at_once >= EXTEND_AT_ONCE && !each_block_counts() && !compat_is_private_file(rel) &&
		extend_at_once(rel, strategy, first, at_once, buffers))
		n = at_once;
	else
	{
		for (uint32 i = 0; i < n; i++)
			buffers[i] = ReadBufferExtended(rel, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, strategy);
	}
	if (lock)
		UnlockRelationForExtension(rel, ExclusiveLock);
	return n;
}

#endif
