/*
 * Writing blocks beyond the end of a relation that no other session can reach.
 *
 * A separate write for each block costs about three microseconds in the operating system, a third
 * of a fresh load. The storage manager of 17 and later takes many blocks in one call. That of 15
 * and 16 does not. There the blocks are written directly into the relation's file, but only if a
 * block that the storage manager has just written is found unchanged in that file. A storage
 * manager that encrypts, compresses or relocates its blocks does not pass this test. A server that
 * records which blocks were written does not qualify either. In both cases each block is one call.
 *
 * Every state after a crash is valid. The last block of a run is written first, so that the file
 * has its final length; the blocks before it may still be zeros. Nobody reads them: this
 * transaction created the relation, or its file, and if the transaction does not commit, the file
 * is removed. The transaction commits only after everything is written. A relation that must
 * survive a crash is synced before that.
 *
 * An unlogged relation must survive a shutdown. The checkpointer syncs its files if a sync was
 * requested, and then forgets the request. So the request is made after the run is written, not
 * before. For that, the last block is written a second time, which registers a request in every
 * version and storage manager.
 */
#include "base/pgsluice.h"

#include "compat/compat.h"
#include "storage/smgr.h"

/*
 * Writes n pages, which already contain their checksums, from block `first`
 * on; `first` is the end of the relation. The next checkpoint syncs each
 * segment file that was written to, unless the caller does so (skip_sync).
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
