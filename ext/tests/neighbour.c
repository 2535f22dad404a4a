/*
 * Another library's hooks, for the tests. It keeps a count of the statements that are under way
 * and expects to have seen each one, as pgaudit does. It forbids programs, as set_user does, and
 * COPY to a role that a setting names. Another setting lets it swallow CALL. Its SQL function
 * raises errors that seem to be the server's.
 */
#include "base/pgsluice.h"

#include <dlfcn.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(neighbour_fail);

void		_PG_init(void);

static ProcessUtility_hook_type prev_ProcessUtility;
static ExecutorStart_hook_type prev_ExecutorStart;
static int	under_way;
static char *forbidden_role;
static bool swallows_call;
static char *built_for;

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
	if (IsA(copy, CopyStmt) && strcmp(GetUserNameFromId(GetUserId(), false), forbidden_role) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("the neighbour forbids COPY to role \"%s\"", forbidden_role)));
	if (IsA(pstmt->utilityStmt, CallStmt) && swallows_call)
		return;
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

/*
 * Raises an error of SQLSTATE 54000 that seems to come from the function with
 * this name. The name outlives the error, as the compiler's own would.
 */
Datum
neighbour_fail(PG_FUNCTION_ARGS)
{
	char	   *name = MemoryContextStrdup(TopMemoryContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));

	if (errstart(ERROR, TEXTDOMAIN))
	{
		errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED);
		errmsg("a limit is reached in %s", name);
		errfinish(__FILE__, __LINE__, name);
	}
	PG_RETURN_NULL();
}

void
_PG_init(void)
{
	DefineCustomStringVariable("neighbour.forbidden_role", "May not COPY.", NULL,
							   &forbidden_role, "", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("neighbour.swallows_call", "Lets a CALL succeed and do nothing.", NULL,
							 &swallows_call, false, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("neighbour.built_for", "The release that pgsluice, which is loaded already, seems to be built for.",
							   NULL, &built_for, "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	/* A reload frees the setting's own value. */
	if (built_for[0] != '\0')
		*(const char **) dlsym(RTLD_DEFAULT, "sluice_built_for") = MemoryContextStrdup(TopMemoryContext, built_for);
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = neighbour_ProcessUtility;
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = neighbour_ExecutorStart;
	ExecutorCheckPerms_hook = neighbour_permissions;
}
