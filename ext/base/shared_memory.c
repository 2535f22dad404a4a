/*
 * Shared memory that may not be available.
 *
 * The server reserves all memory of a segment when it creates the segment, and
 * raises an error if there is too little: containers often have 64 MB of
 * /dev/shm. The work can be done without workers. So an error here means that
 * there are no workers; it does not end the statement.
 *
 * The error is caught without a subtransaction, because the end of one would
 * begin another command in the middle of a COPY. That is safe because
 * dsm_create() takes nothing that belongs to the transaction: it raises errors
 * with no lock held and no file open, and the entry that it leaves belongs to
 * a resource owner. So each call has a separate resource owner.
 */
#include "base/pgsluice.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/resowner.h"

/*
 * Releases a segment, or the rest of one that could not be created, and its
 * resource owner.
 */
void
sluice_share_end(dsm_segment *segment, ResourceOwner owner)
{
	if (segment)
		dsm_detach(segment);
	for (int phase = RESOURCE_RELEASE_BEFORE_LOCKS; phase <= RESOURCE_RELEASE_AFTER_LOCKS; phase++)
		ResourceOwnerRelease(owner, (ResourceReleasePhase) phase, false, false);
	ResourceOwnerDelete(owner);
}

/*
 * Discards the error that was just caught, unless it is a request to end the
 * statement (a cancel, a shutdown).
 */
static void
forget_error(MemoryContext context)
{
	MemoryContextSwitchTo(context);
	if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
		PG_RE_THROW();
	FlushErrorState();
}

/*
 * Creates a segment with a separate resource owner. NULL: there is not enough
 * memory, or the server has too many segments.
 */
dsm_segment *
sluice_share_create(Size size, ResourceOwner *owner)
{
	ResourceOwner outer = CurrentResourceOwner;
	MemoryContext context = CurrentMemoryContext;
	dsm_segment *volatile segment = NULL;

	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	*owner = ResourceOwnerCreate(outer, "pgsluice segment");
	CurrentResourceOwner = *owner;
	PG_TRY();
	{
		segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		forget_error(context);
	}
	PG_END_TRY();
	CurrentResourceOwner = outer;
	if (segment == NULL)
		sluice_share_end(NULL, *owner);
	return segment;
}

/*
 * Calls InitializeParallelDSM(). False: there is no segment, because memory is
 * lacking or the server has too many of them; the caller then destroys the
 * context.
 */
bool
sluice_share_parallel(ParallelContext *parallel)
{
	ResourceOwner outer = CurrentResourceOwner;
	ResourceOwner owner = ResourceOwnerCreate(outer, "pgsluice segment");
	MemoryContext context = CurrentMemoryContext;

	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	CurrentResourceOwner = owner;
	PG_TRY();
	{
		InitializeParallelDSM(parallel);
	}
	PG_CATCH();
	{
		/*
		 * If the segment exists, the error is not about a lack of shared
		 * memory.
		 */
		if (parallel->seg != NULL)
			PG_RE_THROW();
		forget_error(context);
	}
	PG_END_TRY();
	CurrentResourceOwner = outer;
	if (parallel->seg != NULL)
	{
		/* The outer resource owner takes it over. */
		dsm_pin_mapping(parallel->seg);
		dsm_unpin_mapping(parallel->seg);
	}
	sluice_share_end(NULL, owner);
	return parallel->seg != NULL;
}
