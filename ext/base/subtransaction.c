/*
 * Work that may fail without ending the statement: in an internal
 * subtransaction, as a block with an EXCEPTION clause in PL/pgSQL.
 *
 * A subtransaction that is begun must be ended, whatever the error. One that
 * is left open makes the next rollback take the wrong one: rows survive that
 * were to be undone, and the session never commits what it acknowledges later.
 * So no other file begins one (scripts/tidy checks that), and the work's error
 * is a result here: the caller keeps it, or raises it again with
 * ReThrowError().
 *
 * The two hard points. After the work is done, releasing the subtransaction
 * can itself fail; it is the last thing within PG_TRY, since after it the
 * subtransaction to roll back would be the caller's. And after a failure
 * nothing may fail before the rollback: copying the error can run out of
 * memory, so that is caught by itself, and reported after the rollback.
 *
 * A FATAL error does not come by here. The process ends, and its exit aborts
 * all open subtransactions.
 */
#include "base/pgsluice.h"

#include "access/xact.h"
#include "pgstat.h"
#include "utils/backend_status.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/*
 * The error that was just caught, in the current memory context; NULL if there
 * is no memory for it.
 */
static ErrorData *
copy_error(void)
{
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		error = CopyErrorData();
	}
	PG_CATCH();
	{
		/*
		 * Nothing is wanted of this second error: all of them are cleared by
		 * the caller.
		 */
	}
	PG_END_TRY();
	return error;
}

/*
 * What pg_stat_progress_copy and its like show of this session: a rollback
 * ends that.
 */
typedef struct Progress
{
	ProgressCommandType command;
	Oid			target;
	int64		params[PGSTAT_NUM_PROGRESS_PARAM];
} Progress;

/* Notes what the view shows, while the subtransaction has not begun. */
static void
save_progress(Progress *progress)
{
	progress->command = PROGRESS_COMMAND_INVALID;
	if (MyBEEntry == NULL || !pgstat_track_activities)
		return;
	progress->command = MyBEEntry->st_progress_command;
	progress->target = MyBEEntry->st_progress_command_target;
	memcpy(progress->params, MyBEEntry->st_progress_param, sizeof(progress->params));
}

/*
 * Shows it again. A rollback has ended the command's report
 * (pgstat_progress_end_command).
 */
static void
restore_progress(const Progress *progress)
{
	int			index[PGSTAT_NUM_PROGRESS_PARAM];

	if (progress->command == PROGRESS_COMMAND_INVALID)
		return;
	for (int i = 0; i < PGSTAT_NUM_PROGRESS_PARAM; i++)
		index[i] = i;
	pgstat_progress_start_command(progress->command, progress->target);
	pgstat_progress_update_multi_param(PGSTAT_NUM_PROGRESS_PARAM, index, progress->params);
}

/*
 * Runs the work in a subtransaction, and in the current memory context. NULL:
 * it is done, and the subtransaction is part of the one around it. Otherwise
 * everything that it did in the database is undone, and this is its error, in
 * the current memory context. A fault at the end, when there is no memory for
 * that error, is raised at once.
 */
ErrorData *
sluice_in_subtransaction(SluiceWork work, void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *error = NULL;
	bool		failed = false;
	int			code = 0;
	Progress	progress;

	/*
	 * An error ends all holds on interrupts, and critical sections: the caller
	 * must have none.
	 */
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	save_progress(&progress);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		/*
		 * Last: after this, the subtransaction to roll back would be the
		 * caller's.
		 */
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		failed = true;
		code = geterrcode();
		MemoryContextSwitchTo(context);
		error = copy_error();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (failed)
		restore_progress(&progress);
	if (failed && error == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while copying an error with SQLSTATE %s.", unpack_sql_state(code))));
	return error;
}
