/*
 * Blocks behind the end of a relation that nobody else can reach.
 *
 * A write for each block takes the system about three microseconds, a third of a fresh load. The
 * storage manager of 17 and later takes many blocks at once. That of 15 and 16 does not: there
 * the blocks are written into the relation's file directly, but only where a write of the storage
 * manager has just been seen to arrive in that file as it was given. A storage manager that
 * encrypts, compresses or keeps its blocks elsewhere does not pass, and neither does a server that
 * notes which blocks were written: there each block is one call.
 *
 * Every crash state is valid. The last block of a run is written first, so that the file has its
 * length; what lies before may still be zeros. Nobody reads it: the relation, or its file, is this
 * transaction's own, and goes with it. The transaction commits when all is written, and a relation
 * that must outlast a crash is synced before.
 *
 * An unlogged relation must outlast a shutdown. The checkpointer syncs its files if it was asked to,
 * and forgets the request then: so it is asked when the run is written, not before. The last block
 * is written a second time for that, which is a request in each version and storage manager.
 */
#include "base/pgsluice.h"

#include "compat/compat.h"
#include "storage/smgr.h"

/*
 * Writes n pages, their checksums in them, from block `first` on, which is the
 * relation's end. The next checkpoint syncs each segment file that got some,
 * unless the caller does (skip_sync).
 */
void
sluice_write_blocks(Relation rel, BlockNumber first, uint32 n, char *pages, bool skip_sync)
{
	while (n > 0)
	{
		uint32		run = Min(n, RELSEG_SIZE - first % RELSEG_SIZE);
		BlockNumber last = first + run - 1;

		char	   *last_page = pages + (size_t) (run - 1) * BLCKSZ;

		smgrextend(RelationGetSmgr(rel), MAIN_FORKNUM, last, last_page, true);
		compat_write_blocks(rel, first, run - 1, pages);
		if (!skip_sync)
			smgrwrite(RelationGetSmgr(rel), MAIN_FORKNUM, last, last_page, false);
		first += run;
		n -= run;
		pages += (size_t) run * BLCKSZ;
	}
}
