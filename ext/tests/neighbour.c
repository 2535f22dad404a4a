/*
 * Another library's hooks, for the tests: it knows which statements are under way and
 * expects to, as pgaudit does, and it has something against programs, as set_user does.
 */
#include "pgsluice.h"

#include "tcop/utility.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static ProcessUtility_hook_type prev_ProcessUtility;
static ExecutorStart_hook_type prev_ExecutorStart;
static int	under_way;

static void
neighbour_ProcessUtility(PlannedStmt *pstmt, const char *query, bool readOnlyTree,
						 ProcessUtilityContext context, ParamListInfo params,
						 QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	CopyStmt   *copy = (CopyStmt *) pstmt->utilityStmt;

	if (IsA(copy, CopyStmt) && copy->is_program)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("the neighbour forbids programs")));
	under_way++;
	PG_TRY();
	{
		(prev_ProcessUtility ? prev_ProcessUtility : standard_ProcessUtility)
			(pstmt, query, readOnlyTree, context, params, env, dest, qc);
	}
	PG_FINALLY();
	{
		under_way--;
	}
	PG_END_TRY();
}

static void
neighbour_ExecutorStart(QueryDesc *query, int flags)
{
	under_way++;
	PG_TRY();
	{
		(prev_ExecutorStart ? prev_ExecutorStart : standard_ExecutorStart) (query, flags);
	}
	PG_FINALLY();
	{
		under_way--;
	}
	PG_END_TRY();
}

static bool
neighbour_permissions(COMPAT_PERMISSIONS_HOOK_ARGS)
{
	if (under_way == 0)
		ereport(ERROR, (errmsg("the neighbour is asked about a statement that it has not seen")));
	ereport(DEBUG1, (errmsg_internal("the neighbour is asked")));
	return true;
}

void
_PG_init(void)
{
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = neighbour_ProcessUtility;
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = neighbour_ExecutorStart;
	ExecutorCheckPerms_hook = neighbour_permissions;
}
