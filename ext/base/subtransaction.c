/*
 * Work that may fail without ending the statement. It runs in an internal
 * subtransaction, like a block with an EXCEPTION clause in PL/pgSQL.
 *
 * A subtransaction that was begun must be ended, whatever the error. If one is
 * left open, the next rollback ends the wrong one: rows survive that should
 * have been undone, and the session acknowledges later commits that never
 * happen. So no other file begins one (scripts/tidy checks that). The error of
 * the work is a result here: the caller keeps it, or raises it again with
 * ReThrowError().
 *
 * Two points are difficult. First, releasing the subtransaction after the work
 * is done can itself fail. So the release is the last step within PG_TRY:
 * after it, the subtransaction to roll back would be the caller's. Second,
 * after a failure nothing may fail before the rollback. Copying the error can
 * run out of memory, so that failure is caught separately, and reported after
 * the rollback.
 *
 * A FATAL error does not pass through here. The process ends, and its exit
 * aborts all open subtransactions.
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
		/* This second error is ignored. The caller clears all of them. */
	}
	PG_END_TRY();
	return error;
}

/*
 * What pg_stat_progress_copy and similar views show of this session. A
 * rollback clears it.
 */
typedef struct Progress
{
	ProgressCommandType command;
	Oid			target;
	int64		params[PGSTAT_NUM_PROGRESS_PARAM];
} Progress;

/* Saves what the view shows, before the subtransaction begins. */
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
 * Restores it. A rollback has ended the command's report
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
 * Runs the work in a subtransaction, and in the current memory context.
 * Returns NULL if the work is done; it then belongs to the enclosing
 * subtransaction or transaction. Otherwise everything that it did in the
 * database is undone, and its error is returned in the current memory context.
 * If there is no memory for that error, an error is raised after the rollback.
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
	 * An error resets all holds on interrupts, and critical sections: the
	 * caller must have none.
	 */
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);
	save_progress(&progress);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		/*
		 * Must be last: after this, the subtransaction to roll back would be
		 * the caller's.
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
