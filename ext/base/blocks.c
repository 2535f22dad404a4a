/*
 * Blocks behind the end of a relation that nobody else can reach, through the storage manager: it
 * may encrypt what it writes, or keep it elsewhere than in a file.
 */
#include "base/pgsluice.h"

#include "storage/smgr.h"

/*
 * Writes n pages, their checksums in them, from block `first` on, which is the relation's end. The
 * last block of each segment file asks the next checkpoint to sync the file for all of them, unless
 * the caller syncs.
 */
void
sluice_write_blocks(Relation rel, BlockNumber first, uint32 n, char *pages, bool skip_sync)
{
	for (uint32 i = 0; i < n; i++)
	{
		BlockNumber block = first + i;
		bool		is_last = i + 1 == n || (block + 1) % RELSEG_SIZE == 0;

		smgrextend(RelationGetSmgr(rel), MAIN_FORKNUM, block, pages + (size_t) i * BLCKSZ,
				   skip_sync || !is_last);
	}
}
