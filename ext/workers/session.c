/*
 * Lets a worker join the leader's session and transaction: database and role,
 * settings, temporary schema, snapshot, the transaction's own identifiers, and
 * what it has not yet committed. These are the parts that ParallelWorkerMain
 * of src/backend/access/transam/parallel.c restores, in the same order, except
 * those that only queries need (record types, serializable transactions).
 *
 * A ParallelContext would do all of it, but it would put the leader into
 * parallel mode. Then the leader could not draw a sequence's values or reject
 * a record.
 *
 * WHY THIS IS SAFE although the leader goes on writing. The dangers of a
 * worker beside a leader that is not in parallel mode are:
 *
 *    command counter   the leader's may advance. The worker keeps the
 *                      snapshot and the command identifier of the start, so it
 *                      sees what the statement saw when it began
 *    new xids          for the worker, a subtransaction that the leader begins
 *                      later is another transaction in progress: what it
 *                      writes is not visible, and what it deletes still is
 *    combo CIDs        the worker has a copy from the moment it joins. If the
 *                      leader then changes a row that its transaction has
 *                      written before, the row gets a new combo CID. A worker
 *                      that reads such a row of a catalog would look beyond
 *                      its own array. So while workers are in the session,
 *                      the leader runs no code of a user: see runs_code() in
 *                      parallel_safety.c, and dismiss_readers() in pipeline.c
 *                      for a partition that another session changes meanwhile
 *    locks             the worker joins the leader's lock group before it
 *                      takes any lock, so it never waits for the leader
 *    tables            the functions that are called are parallel safe, not
 *                      volatile, and internal or in C (parallel_safety.c). If
 *                      they read anything, it is system catalogs
 *
 * The leader keeps its transaction open until all such workers have ended:
 * end_readers() in pipeline.c waits for them before the transaction's
 * resources are released.
 *
 * A worker's part of the transaction always ends with an abort. That undoes
 * nothing, because a worker changes nothing. After an error of an input
 * function it aborts and begins again with the same state.
 */
#include "workers/workers.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_enum.h"
#include "catalog/storage.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/proc.h"
#include "utils/combocid.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"

/* What the server itself can serialize and restore. */
enum
{
	LIBRARIES,
	SETTINGS,
	TRANSACTION,
	COMBO_CIDS,
	ACTIVE_SNAPSHOT,
	TRANSACTION_SNAPSHOT,
	PENDING_SYNCS,
	RELATION_MAP,
	ENUMS,
	PARTS
};

struct SluiceSession
{
	Oid			database;
	Oid			authenticated_user;
	Oid			current_user;
	int			security_context;
	Oid			temp_namespace;
	Oid			temp_toast_namespace;
	TimestampTz transaction_start;
	TimestampTz statement_start;
	PGPROC	   *leader;
	pid_t		leader_pid;
	int			leader_number;
	bool		transaction_snapshot;	/* one snapshot is for all of its statements */
	Size		part[PARTS];	/* where each of them is, from the start of the struct */
};

/* Returns the size of the snapshot of the statement. */
static Size
active_snapshot_size(void)
{
	return EstimateSnapshotSpace(GetActiveSnapshot());
}

/* SerializeSnapshot() does not need the estimated size. */
static void
save_active_snapshot(Size size, char *place)
{
	SerializeSnapshot(GetActiveSnapshot(), place);
}

/* In READ COMMITTED there is no other snapshot than the statement's. */
static Size
transaction_snapshot_size(void)
{
	return IsolationUsesXactSnapshot() ? EstimateSnapshotSpace(GetTransactionSnapshot()) : 0;
}

/* Only in REPEATABLE READ: otherwise the size is 0. */
static void
save_transaction_snapshot(Size size, char *place)
{
	if (size > 0)
		SerializeSnapshot(GetTransactionSnapshot(), place);
}

/* SerializeUncommittedEnums() takes the same arguments in the other order. */
static void
save_enums(Size size, char *place)
{
	SerializeUncommittedEnums(place, size);
}

static const struct
{
	Size		(*size) (void);
	void		(*save) (Size size, char *place);
}			parts[PARTS] =
{
	[LIBRARIES] = {EstimateLibraryStateSpace, SerializeLibraryState},
	[SETTINGS] = {EstimateGUCStateSpace, SerializeGUCState},
	[TRANSACTION] = {EstimateTransactionStateSpace, SerializeTransactionState},
	[COMBO_CIDS] = {EstimateComboCIDStateSpace, SerializeComboCIDState},
	[ACTIVE_SNAPSHOT] = {active_snapshot_size, save_active_snapshot},
	[TRANSACTION_SNAPSHOT] = {transaction_snapshot_size, save_transaction_snapshot},
	[PENDING_SYNCS] = {EstimatePendingSyncsSpace, SerializePendingSyncs},
	[RELATION_MAP] = {EstimateRelationMapSpace, SerializeRelationMap},
	[ENUMS] = {EstimateUncommittedEnumsSpace, save_enums},
};

/*
 * Returns the bytes of shared memory for the leader's state as it is now. The
 * state must be saved before it changes.
 */
Size
sluice_session_size(void)
{
	Size		size = MAXALIGN(sizeof(SluiceSession));

	for (int i = 0; i < PARTS; i++)
		size += MAXALIGN(parts[i].size());
	return size;
}

/* Saves the leader's state in memory of the size that was returned. */
void
sluice_session_save(SluiceSession *session)
{
	Size		at = MAXALIGN(sizeof(SluiceSession));

	session->database = MyDatabaseId;
	session->authenticated_user = GetAuthenticatedUserId();
	GetUserIdAndSecContext(&session->current_user, &session->security_context);
	GetTempNamespaceState(&session->temp_namespace, &session->temp_toast_namespace);
	session->transaction_start = GetCurrentTransactionStartTimestamp();
	session->statement_start = GetCurrentStatementStartTimestamp();
	session->leader = MyProc;
	session->leader_pid = MyProcPid;
	session->leader_number = MyProcNumber;
	session->transaction_snapshot = IsolationUsesXactSnapshot();
	for (int i = 0; i < PARTS; i++)
	{
		Size		size = parts[i].size();

		session->part[i] = at;
		parts[i].save(size, (char *) session + at);
		at += MAXALIGN(size);
	}
}

/* Returns where a part is in this process. */
static char *
part(SluiceSession *session, int which)
{
	return (char *) session + session->part[which];
}

/*
 * Connects a worker that needs no database, so that pg_stat_activity shows it
 * with its leader. Returns false if the leader has finished already.
 */
bool
sluice_session_show(const SluiceShared *shared)
{
	if (!BecomeLockGroupMember(shared->leader_proc, shared->leader_pid))
		return false;
	BackgroundWorkerInitializeConnectionByOid(InvalidOid, shared->leader_user, COMPAT_BYPASS_LOGIN);
	return true;
}

/*
 * Connects a worker to the leader's database with the leader's settings. It
 * joins the leader's lock group before it takes any lock. Returns false if the
 * leader is gone.
 */
bool
sluice_session_join(SluiceSession *session, int number)
{
	if (!BecomeLockGroupMember(session->leader, session->leader_pid))
		return false;
	/*
	 * Connect like any background worker. A worker of a parallel query has its
	 * user set before that, by another function in each major.
	 */
	BackgroundWorkerInitializeConnectionByOid(session->database, session->authenticated_user,
											  COMPAT_BYPASS_LOGIN);
	InitializingParallelWorker = true;
	ParallelWorkerNumber = number;
	ParallelLeaderProcNumber = session->leader_number;
	SetParallelStartTimestamps(session->transaction_start, session->statement_start);
	SetClientEncoding(GetDatabaseEncoding());
	StartTransactionCommand();
	RestoreLibraryState(part(session, LIBRARIES));
	RestoreGUCState(part(session, SETTINGS));
	CommitTransactionCommand();
	SetTempNamespaceState(session->temp_namespace, session->temp_toast_namespace);
	InitializingParallelWorker = false;
	return true;
}

/*
 * Begins the worker's part of the leader's transaction. It ends with an abort,
 * which undoes nothing, because a worker changes nothing.
 */
void
sluice_session_begin(SluiceSession *session)
{
	Snapshot	active;

	StartParallelWorkerTransaction(part(session, TRANSACTION));
	RestoreComboCIDState(part(session, COMBO_CIDS));
	active = RestoreSnapshot(part(session, ACTIVE_SNAPSHOT));
	RestoreTransactionSnapshot(session->transaction_snapshot ?
							   RestoreSnapshot(part(session, TRANSACTION_SNAPSHOT)) : active,
							   session->leader);
	PushActiveSnapshot(active);
	/*
	 * With this snapshot other tuples are visible than when the caches were
	 * filled.
	 */
	InvalidateSystemCaches();
	SetUserIdAndSecContext(session->current_user, session->security_context);
	RestorePendingSyncs(part(session, PENDING_SYNCS));
	RestoreRelationMap(part(session, RELATION_MAP));
	RestoreUncommittedEnums(part(session, ENUMS));
	EnterParallelMode();
}
