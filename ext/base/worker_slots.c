/*
 * The cap on workers of the whole server: each has one of pgsluice.max_workers
 * places, which are heavyweight locks. No two processes have the same one, and
 * it is given back when its owner ends, whatever happens: by the lock manager,
 * which survives errors and the end of a process alike. A counter in shared
 * memory would need a library in shared_preload_libraries, and somebody to
 * correct it after a crash.
 *
 * A worker of a COPY takes its place itself, so that it can leave while its
 * leader waits for data; those of an index build are PostgreSQL's own parallel
 * workers, and their leader takes the places. In pg_locks places are of type
 * userlock.
 *
 * sluice_slots_free() tells a leader how many workers are worth starting.
 * Between that and the workers' start others may take the places; then a
 * worker finds none and leaves.
 */
#include "base/pgsluice.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"

/* classid of the locks. */
#define PLACES 0x736c7500

/*
 * The lock of a place. Advisory locks are of another type
 * (LOCKTAG_ADVISORY), so that none of them can be one of these.
 */
static void
set_tag(LOCKTAG *tag, int place)
{
	tag->locktag_field1 = 0;
	tag->locktag_field2 = PLACES;
	tag->locktag_field3 = place;
	tag->locktag_field4 = 0;
	tag->locktag_type = LOCKTAG_USERLOCK;
	tag->locktag_lockmethodid = USER_LOCKMETHOD;
}

/* Takes a place that is free, and says which; -1: there is none. */
static int
take(bool session)
{
	int			places = sluice_max_workers();

	/*
	 * Processes begin at different places, so that most of them find a free
	 * one at once.
	 */
	for (int i = 0; i < places; i++)
	{
		int			place = (MyProcPid + i) % places;
		LOCKTAG		tag;
		LockAcquireResult result;

		set_tag(&tag, place);
		result = LockAcquire(&tag, ExclusiveLock, session, true);
		if (result == LOCKACQUIRE_OK)
			return place;
		/* This session has it already. */
		if (result == LOCKACQUIRE_ALREADY_HELD)
			LockRelease(&tag, ExclusiveLock, session);
	}
	return -1;
}

/*
 * Takes at most `count` places for the rest of the transaction; returns how
 * many.
 */
int
sluice_slots_take(SluiceSlots *slots, int count)
{
	slots->owner = CurrentResourceOwner;
	slots->count = 0;
	while (slots->count < Min(count, SLUICE_MAX_WORKERS))
	{
		int			place = take(false);

		if (place < 0)
			break;
		slots->place[slots->count++] = place;
	}
	return slots->count;
}

/* Gives places back until there are `count`. */
void
sluice_slots_keep(SluiceSlots *slots, int count)
{
	ResourceOwner caller = CurrentResourceOwner;

	CurrentResourceOwner = slots->owner;
	while (slots->count > count)
	{
		LOCKTAG		tag;

		set_tag(&tag, slots->place[--slots->count]);
		LockRelease(&tag, ExclusiveLock, false);
	}
	CurrentResourceOwner = caller;
}

/* How many places are free at this moment, `count` at most. */
int
sluice_slots_free(int count)
{
	SluiceSlots slots;

	count = sluice_slots_take(&slots, count);
	sluice_slots_keep(&slots, 0);
	return count;
}

/*
 * At the worker's exit. Session locks are not given back by the end of a
 * transaction, which a worker need not have.
 */
static void
give_back(int code, Datum arg)
{
	LockReleaseAll(USER_LOCKMETHOD, true);
}

/*
 * Takes a place for this process, a worker, until it ends. It is not yet of
 * its leader's lock group: members of a group would take the same one.
 */
bool
sluice_slots_take_one(void)
{
	before_shmem_exit(give_back, (Datum) 0);
	return take(true) >= 0;
}
