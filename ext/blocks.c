/*
 * Blocks behind the end of a relation that nobody else can reach, many with one
 * write: one for each block, as smgrextend() makes, takes the system twice as long.
 */
#include "load.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/relpath.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/wait_event.h"

/* Writes n blocks of one segment file. False if the system did not take them all. */
static bool
write_at_once(Relation rel, BlockNumber first, uint32 n, const char *pages)
{
	char		path[MAXPGPATH];
	size_t		len = (size_t) n * BLCKSZ;
	ssize_t		done;
	int			fd;

	if (n < 2 || compat_direct_io())
		return false;
	/* As _mdfd_segpath() of md.c. */
	if (first < RELSEG_SIZE)
		strlcpy(path, compat_main_path(rel), sizeof(path));
	else
		snprintf(path, sizeof(path), "%s.%u", compat_main_path(rel), first / RELSEG_SIZE);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return false;
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_EXTEND);
	done = pg_pwrite(fd, pages, len, (off_t) BLCKSZ * (first % RELSEG_SIZE));
	pgstat_report_wait_end();
	CloseTransientFile(fd);
	return done == (ssize_t) len;
}

/*
 * Writes n pages, their checksums in them, from block `first` on, which is the
 * relation's end. The storage manager writes the first block of a segment file, since it makes
 * the file, and the last of those that went at once, since it asks the next
 * checkpoint to sync the file, unless that is the caller's to do. It writes all
 * of them where they do not go at once, so that the error is the server's own.
 */
void
sluice_write_blocks(Relation rel, BlockNumber first, uint32 n, char *pages, bool skip_sync)
{
	while (n > 0)
	{
		uint32		before = first % RELSEG_SIZE;
		uint32		run = before == 0 ? 1 : Min(n, RELSEG_SIZE - before);
		uint32		i = write_at_once(rel, first, run - 1, pages) ? run - 1 : 0;

		for (; i < run; i++)
			smgrextend(RelationGetSmgr(rel), MAIN_FORKNUM, first + i,
					   pages + (size_t) i * BLCKSZ, skip_sync || i + 1 < run);
		first += run;
		n -= run;
		pages += (size_t) run * BLCKSZ;
	}
}
