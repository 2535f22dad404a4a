/*
 * Shared memory that may not be there.
 *
 * The server reserves all of a segment when it creates it, and raises an error
 * if there is too little: containers often have 64 MB of /dev/shm. Workers are
 * a help that the work can do without, so that here the error ends the help
 * and not the statement.
 *
 * The error is caught without a subtransaction, whose end would begin another
 * command in the middle of a COPY. That is safe because dsm_create() takes
 * nothing of the transaction's: it raises errors with no lock held and no file
 * open, and the entry that it leaves is its resource owner's. So each call has
 * a separate owner.
 */
#include "base/pgsluice.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/resowner.h"

/*
 * Ends a segment, or what is left of one that could not be created, and its
 * owner.
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
 * The error that was just caught is forgotten, unless somebody wants the
 * statement to end.
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
 * Creates a segment with a separate owner. NULL: there is not enough memory.
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
 * InitializeParallelDSM(). False: there is no segment, for want of memory or
 * because the server has too many of them, and the caller destroys the
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
		 * Once there is a segment, what fails is not for want of shared
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
		/* It becomes the outer owner's. */
		dsm_pin_mapping(parallel->seg);
		dsm_unpin_mapping(parallel->seg);
	}
	sluice_share_end(NULL, owner);
	return parallel->seg != NULL;
}
