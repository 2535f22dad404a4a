/*
 * The library's entry: the hook, and the view of what the last COPY did.
 *
 * The hook sees every utility statement. A COPY FROM that pgsluice can do is
 * done here. It does not reach the hooks that were set before, except as a
 * CALL of pgsluice.inside() (see `inside` below). Every other statement is
 * passed along the chain unchanged.
 *
 * THE DECISION is made before anything is done that would have another result
 * when stock COPY does it again (copy/decide.c). Up to then, the statement is
 * a copy, the table may be open with the lock that stock COPY takes next, and
 * no byte of the data has been read. So falling back is always possible, and
 * leaves no trace but the reason. After the decision there is no way back. An
 * error is then the statement's error, and stock COPY never continues, because
 * a part of the input would be missing.
 *
 * OPTIONS of ours are taken out of a copy of the statement, so that stock COPY
 * and other hooks never see them. If stock COPY cannot honour one of them, the
 * statement is rejected, and not executed without it.
 *
 * NESTED COPYs.  A COPY of ours may call a function that runs another COPY.
 * `running` counts them. What the session keeps of the outer one (the report,
 * the list of its indexes) is saved meanwhile and restored, also after an
 * error.
 *
 * AFTER AN ERROR.  `running` and `inside` are the only variables here that an
 * error could leave wrong. Each is reset in a PG_FINALLY block. Everything
 * else of a statement is in its memory contexts and resource owners. The
 * report is marked valid as the last step, so a COPY that failed shows no row.
 * That is so for a COPY that stock COPY does, too.
 */
#include "copy/copy.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(pgsluice_last_copy);
PG_FUNCTION_INFO_V1(pgsluice_inside);

void		_PG_init(void);

static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static int	running;			/* our COPYs in progress, each called by the one before */

/*
 * The session's last COPY is this one from now on, whatever becomes of it. A
 * COPY that another one of ours has called never is: the outer one ends later.
 */
static void
begin_report(void)
{
	if (running > 0)
		return;
	memset(&sluice_report, 0, sizeof(sluice_report));
	sluice_report.user = GetUserId();
}

/*
 * Records why stock COPY does the work; `stock` gets the report, which is
 * valid when stock COPY has done it. Raises an error if the statement does not
 * allow that.
 */
static void
fall_back(SluiceStatement *s, const char *reason, SluiceReport *stock)
{
	const char *needs = sluice_option_that_needs_us(&s->options);

	if (needs != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pgsluice cannot take over this COPY: %s", reason),
				 errdetail("Stock COPY has no option \"%s\".", needs)));
	if (s->options.asked == SLUICE_ASKED_REQUIRE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pgsluice cannot take over this COPY: %s", reason),
				 errhint("Without the option pgsluice 'require', stock COPY does it.")));
	ereport(DEBUG1, (errmsg_internal("pgsluice: stock COPY: %s", reason)));
	/* The last COPY is going to be the one that has called this one. */
	if (running > 0)
		return;
	sluice_report.route = "stock";
	sluice_report.relid = s->rel ? RelationGetRelid(s->rel) : InvalidOid;
	strlcpy(sluice_report.reason, reason, sizeof(sluice_report.reason));
	*stock = sluice_report;
}

/*
 * Does the work. A function that another COPY of ours calls may have issued
 * it: what the outer one keeps for the session is saved meanwhile.
 */
static uint64
copy_apart(SluiceStatement *s)
{
	SluiceReport report;
	IndexUses  *indexes = NULL;
	uint64		rows = 0;

	/* A COPY that is not nested, maybe of one row, has nothing to save. */
	if (running > 0)
	{
		report = sluice_report;
		indexes = sluice_index_uses_begin_nested();
	}
	running++;
	PG_TRY();
	{
		rows = sluice_copy(s);
	}
	PG_FINALLY();
	{
		running--;
		if (running > 0)
		{
			sluice_index_uses_end_nested(indexes);
			sluice_report = report;
		}
	}
	PG_END_TRY();
	return rows;
}

/*
 * A hook that was set before ours, by a library that is listed as harmless,
 * sees a statement only if ours passes it on. Then the statement does not
 * return to us: standard_ProcessUtility follows. So that pg_stat_statements
 * counts the COPY, that hook gets the same statement as a CALL of our function
 * pgsluice.inside(), with the text, query identifier and completion tag of the
 * COPY, and the function does the work.
 */
static struct
{
	SluiceStatement *statement; /* NULL unless one is about to be executed inside */
	uint64		rows;
}			inside;

/* The function, if the extension's objects exist and it is ours. */
static Oid
find_inside(void)
{
	Oid			schema = get_namespace_oid("pgsluice", true);
	oidvector  *no_arguments = buildoidvector(NULL, 0);
	Oid			function = InvalidOid;
	HeapTuple	tuple;

	if (!OidIsValid(schema))
		return InvalidOid;
	tuple = SearchSysCache3(PROCNAMEARGSNSP, CStringGetDatum("inside"),
							PointerGetDatum(no_arguments), ObjectIdGetDatum(schema));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	/* Only a superuser can have created a function in C. */
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId &&
		((Form_pg_proc) GETSTRUCT(tuple))->prorettype == VOIDOID)
		function = ((Form_pg_proc) GETSTRUCT(tuple))->oid;
	ReleaseSysCache(tuple);
	return function;
}

/*
 * Why the work cannot be done inside the hooks that were set before; or NULL,
 * and the function that does it.
 */
static const char *
inside_why_not(Oid *function)
{
	*function = find_inside();
	if (!OidIsValid(*function))
		return "a library that was loaded before would not see it (CREATE EXTENSION pgsluice is missing)";
	if (!compat_may_execute(*function))
		return "a library that was loaded before would not see it (the role may not execute pgsluice.inside())";
	return NULL;
}

/*
 * The SQL function pgsluice.inside(). It has no argument: `inside` says which
 * COPY it has to execute.
 */
Datum
pgsluice_inside(PG_FUNCTION_ARGS)
{
	SluiceStatement *s = inside.statement;

	if (s == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgsluice.inside() is for COPY only")));
	inside.statement = NULL;
	inside.rows = copy_apart(s);
	if (s->completion)
		SetQueryCompletion(s->completion, CMDTAG_COPY, inside.rows);
	PG_RETURN_VOID();
}

/* Does the COPY as a CALL, which the hooks loaded before ours see. */
static void
copy_inside(SluiceStatement *s, PlannedStmt *pstmt, const char *query,
			ProcessUtilityContext context, QueryEnvironment *env,
			DestReceiver *dest, Oid function)
{
	CallStmt   *call = makeNode(CallStmt);
	PlannedStmt *stand_in = makeNode(PlannedStmt);

	call->funccall = makeFuncCall(list_make2(makeString("pgsluice"), makeString("inside")),
								  NIL, COERCE_EXPLICIT_CALL, -1);
	call->funcexpr = makeFuncExpr(function, VOIDOID, NIL, InvalidOid, InvalidOid,
								  COERCE_EXPLICIT_CALL);
	*stand_in = *pstmt;
	stand_in->utilityStmt = (Node *) call;
	inside.statement = s;
	PG_TRY();
	{
		prev_ProcessUtility(stand_in, query, false, context, NULL, env, dest, s->completion);
		if (inside.statement != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a library that was loaded before pgsluice has not executed the COPY"),
					 errdetail("No row was loaded."),
					 errhint("Take the library out of pgsluice.harmless_hooks, or load pgsluice before it.")));
	}
	PG_FINALLY();
	{
		inside.statement = NULL;
	}
	PG_END_TRY();
}

/*
 * Does the COPY if that can be done exactly as stock COPY would do it, and
 * returns whether it did. If not, `stock` gets the report: see fall_back().
 */
static bool
take_over(PlannedStmt *pstmt, const char *query, ProcessUtilityContext context,
		  QueryEnvironment *env, const SluiceOptions *own, DestReceiver *dest,
		  QueryCompletion *qc, SluiceReport *stock)
{
	SluiceStatement s = {0};
	const char *reason = NULL;
	Oid			function = InvalidOid;

	begin_report();
	s.options = *own;
	s.completion = qc;
	s.stmt = castNode(CopyStmt, pstmt->utilityStmt);
	/* Parse analysis changes what stock COPY may still need. */
	if (s.stmt->whereClause)
		s.stmt = copyObject(s.stmt);
	s.pstate = make_parsestate(NULL);
	s.pstate->p_sourcetext = query;
	s.pstate->p_queryEnv = env;

	reason = sluice_admin_why_not();
	if (reason == NULL)
		reason = sluice_hooks_why_not();
	if (reason == NULL && sluice_hooks_came_first)
		reason = inside_why_not(&function);
	if (reason == NULL)
		reason = sluice_why_not(&s);
	if (reason != NULL)
		fall_back(&s, reason, stock);
	else if (sluice_hooks_came_first)
		copy_inside(&s, pstmt, query, context, env, dest, function);
	else
	{
		uint64		rows = copy_apart(&s);

		if (qc)
			SetQueryCompletion(qc, CMDTAG_COPY, rows);
		/*
		 * As standard_ProcessUtility() does, so that triggers at the commit
		 * see the rows.
		 */
		CommandCounterIncrement();
	}
	if (s.rel)
		table_close(s.rel, NoLock);
	free_parsestate(s.pstate);
	return reason == NULL;
}

/*
 * The hook. Statements that are not ours are passed along the chain unchanged.
 */
static void
sluice_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
					  bool readOnlyTree, ProcessUtilityContext context,
					  ParamListInfo params, QueryEnvironment *queryEnv,
					  DestReceiver *dest, QueryCompletion *qc)
{
	CopyStmt   *stmt = (CopyStmt *) pstmt->utilityStmt;
	bool		loads = IsA(stmt, CopyStmt) && stmt->is_from && stmt->relation != NULL;
	bool		has_own = loads && sluice_has_own_options(stmt);
	bool		discards = IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) pstmt->utilityStmt)->target == DISCARD_ALL;
	SluiceReport stock = {0};	/* of a COPY that stock COPY does; without a route: of none */
	Oid			previous;

	if (loads && (sluice_enabled || has_own))
	{
		SluiceOptions own;

		/* Our options are taken out of a copy. */
		if (readOnlyTree || has_own)
			pstmt = copyObject(pstmt);
		readOnlyTree = false;
		sluice_find_options((CopyStmt *) pstmt->utilityStmt, has_own, &own);
		if (own.asked != SLUICE_ASKED_OFF &&
			take_over(pstmt, queryString, context, queryEnv, &own, dest, qc, &stock))
			return;
	}
	previous = sluice_index_before_utility(pstmt->utilityStmt);
	PG_TRY();
	{
		if (prev_ProcessUtility)
			prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
									queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		sluice_index_after_utility(previous);
		/* A COPY that this one has called may have left its own. */
		if (stock.route != NULL)
			sluice_report = stock;
	}
	PG_END_TRY();
	if (stock.route != NULL)
		sluice_report.valid = true;
	/* The statement itself may have been freed by now. */
	if (discards)
	{
		memset(&sluice_report, 0, sizeof(sluice_report));
		sluice_index_forget();
	}
}

/*
 * Says that the last COPY has no row because it did not succeed, or not yet: a
 * trigger may look. `reason`: why stock COPY does it, or empty.
 */
static void
explain_failure(const char *reason)
{
	ereport(NOTICE,
			(errmsg("the last COPY FROM of this session failed, or is still running"),
			 reason[0] ? errdetail("It was left to stock COPY: %s.", reason) : 0,
			 errhint("It is shown once it has succeeded.")));
}

/* The row of the view pgsluice.last_copy. */
Datum
pgsluice_last_copy(PG_FUNCTION_ARGS)
{
	const SluiceReport *r = &sluice_report;
	Datum		values[24];
	bool		nulls[24] = {0};
	char		wal[32];
	ReturnSetInfo *rsinfo = sluice_begin_rows(fcinfo, lengthof(values));
	bool		began = OidIsValid(r->user);

	if (!began || !sluice_may_see(r->user))
	{
		sluice_explain_nothing(began, "COPY FROM", "pgsluice.copy");
		return (Datum) 0;
	}
	if (!r->valid)
	{
		explain_failure(r->reason);
		return (Datum) 0;
	}
	values[0] = ObjectIdGetDatum(r->relid);
	nulls[0] = !OidIsValid(r->relid);
	values[1] = CStringGetTextDatum(r->route);
	values[2] = Int64GetDatum((int64) r->rows);
	values[3] = Int64GetDatum((int64) r->rows_by_server);
	values[4] = Int64GetDatum((int64) r->values_by_server);
	values[5] = Int64GetDatum((int64) r->values_by_workers);
	values[6] = Int64GetDatum((int64) r->bytes);
	values[7] = Int32GetDatum(r->workers);
	values[8] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->total));
	values[9] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->reading));
	values[10] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->forming));
	values[11] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->heap));
	values[12] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->after));
	snprintf(wal, sizeof(wal), UINT64_FORMAT, r->wal_bytes);
	values[13] = DirectFunctionCall3(numeric_in, CStringGetDatum(wal),
									 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
	values[14] = Int64GetDatum((int64) r->rejected);
	values[15] = Int64GetDatum((int64) r->skipped);
	values[16] = Int64GetDatum((int64) r->replaced);
	values[17] = r->leader_reads ? CStringGetTextDatum(r->leader_reads) : (Datum) 0;
	nulls[17] = r->leader_reads == NULL;
	values[18] = r->expressions ? CStringGetTextDatum(r->expressions) : (Datum) 0;
	nulls[18] = r->expressions == NULL;
	values[19] = Int64GetDatum((int64) r->values_compressed);
	values[20] = Int64GetDatum((int64) r->index_memory);
	values[21] = CStringGetTextDatum(sluice_switches(r->switched_off));
	nulls[21] = r->switched_off == 0;
	values[22] = r->reason[0] ? (Datum) 0 : sluice_index_uses_json();
	values[23] = r->reason[0] ? CStringGetTextDatum(r->reason) : (Datum) 0;
	nulls[23] = r->reason[0] == '\0';
	if (r->reason[0])
		memset(&nulls[2], true, 21 * sizeof(bool));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * Called when the library is loaded: by session_preload_libraries,
 * shared_preload_libraries, or the first statement that needs it. The core's
 * memory comes first, because the others may call the core.
 */
void
_PG_init(void)
{
	sluice_core_memory_init();
	sluice_hooks_init();
	sluice_admin_init();
	sluice_options_init();
	sluice_index_init();
	MarkGUCPrefixReserved("pgsluice");
	sluice_install_init();
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = sluice_ProcessUtility;
	sluice_note_loading();
}
