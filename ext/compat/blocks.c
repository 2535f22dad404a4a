/*
 * Many blocks with one write, as the major version can: see base/blocks.c.
 */
#include "compat/compat.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/relpath.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000

/* Of a longer run the storage manager would make several writes. */
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

/* Where a server is patched to note which blocks are written, these are its hooks. */
extern PGDLLIMPORT void *mdextend_hook __attribute__((weak));
extern PGDLLIMPORT void *mdwrite_hook __attribute__((weak));

/* Whether the server must know of each block that is written, or writes around the system's cache. */
static bool
each_block_counts(void)
{
#if PG_VERSION_NUM >= 160000
	if (io_direct_flags & IO_DIRECT_DATA)
		return true;
#endif
	return &mdextend_hook != NULL || &mdwrite_hook != NULL;
}

/* The file of a block, as _mdfd_segpath() of md.c names it; -1 if it cannot be opened. */
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

/* Whether the file holds this page as it is at this block's place. */
static bool
holds_page(int fd, BlockNumber block, const char *page)
{
	PGAlignedBlock there;
	off_t		at = (off_t) BLCKSZ * (block % RELSEG_SIZE);

	return pg_pread(fd, there.data, BLCKSZ, at) == BLCKSZ && memcmp(there.data, page, BLCKSZ) == 0;
}

/*
 * Writes n blocks of one segment file, of which the storage manager has just written the one behind
 * them. False if that is not what the file has, or if the system does not take them all.
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
