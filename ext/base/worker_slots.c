/*
 * The limit on workers of the whole server. Each worker has one of
 * pgsluice.max_workers places, which are heavyweight locks. No two processes
 * have the same place. The lock manager releases a place when its owner ends,
 * however it ends: it survives errors and the end of a process alike. A
 * counter in shared memory would need a library in shared_preload_libraries,
 * and code to correct it after a crash.
 *
 * A worker of a COPY takes its place itself, so that it can leave while its
 * leader waits for data. The workers of an index build are PostgreSQL's own
 * parallel workers, and their leader takes the places. In pg_locks, places
 * have the type userlock.
 *
 * sluice_slots_free() tells a leader how many workers are worth starting.
 * Before they start, others may take the places. A worker that finds none
 * leaves.
 */
#include "base/pgsluice.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"

/* classid of the locks. */
#define PLACES 0x736c7500

/*
 * The lock of a place. Advisory locks have another type (LOCKTAG_ADVISORY), so
 * they cannot conflict with it.
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

/* Takes a free place and returns its number; -1: there is none. */
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
		/* This session already has the place. */
		if (result == LOCKACQUIRE_ALREADY_HELD)
			LockRelease(&tag, ExclusiveLock, session);
	}
	return -1;
}

/*
 * Takes at most `count` places for the rest of the transaction; returns how
 * many it took.
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

/* Releases places until `count` are left. */
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

/* How many places are free at this moment, at most `count`. */
int
sluice_slots_free(int count)
{
	SluiceSlots slots;

	count = sluice_slots_take(&slots, count);
	sluice_slots_keep(&slots, 0);
	return count;
}

/*
 * Called when the worker exits. The end of a transaction does not release
 * session locks, and a worker may have no transaction.
 */
static void
give_back(int code, Datum arg)
{
	LockReleaseAll(USER_LOCKMETHOD, true);
}

/*
 * Takes a place for this process, a worker, until it ends. The worker must not
 * be in its leader's lock group yet: members of a group could take the same
 * place.
 */
bool
sluice_slots_take_one(void)
{
	before_shmem_exit(give_back, (Datum) 0);
	return take(true) >= 0;
}
