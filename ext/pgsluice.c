/*
 * The library's entry: settings, the hook, COPY's own extra options, and the
 * view of what the last COPY did.
 */
#include "pgsluice.h"

#include <unistd.h>

#include "catalog/namespace.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/cost.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/syscache.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(pgsluice_last_copy);
PG_FUNCTION_INFO_V1(pgsluice_inside);

void		_PG_init(void);

SluiceReport sluice_report;

static bool sluice_enabled = false;
static int	sluice_workers = -1;
static int	processors;			/* of this machine; asking takes a while */
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static bool others_came_first;	/* another library's hook was there before ours */

typedef enum
{
	ASKED_BY_SETTING,			/* the statement does not say */
	ASKED_ON,
	ASKED_OFF,
	ASKED_REQUIRE
} SluiceAsked;

/* pgsluice's own options of COPY. */
typedef struct SluiceOptions
{
	SluiceAsked asked;
	int			workers;		/* -1 where the statement does not say */
	bool		workers_asked;
} SluiceOptions;

/* None has a name that any major of PostgreSQL uses. */
static bool
is_own_option(const DefElem *option)
{
	return strcmp(option->defname, "pgsluice") == 0 ||
		strcmp(option->defname, "workers") == 0;
}

static SluiceAsked
parse_asked(const char *value)
{
	if (pg_strcasecmp(value, "require") == 0)
		return ASKED_REQUIRE;
	if (pg_strcasecmp(value, "off") == 0)
		return ASKED_OFF;
	if (pg_strcasecmp(value, "on") == 0)
		return ASKED_ON;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("COPY option \"pgsluice\" must be \"on\", \"off\" or \"require\"")));
}

/* Takes pgsluice's own options out of the statement's list. */
static SluiceOptions
take_options(CopyStmt *stmt)
{
	SluiceOptions own = {ASKED_BY_SETTING, -1, false};
	List	   *rest = NIL;
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		bool		twice = false;

		if (!is_own_option(option))
			rest = lappend(rest, option);
		else if (strcmp(option->defname, "workers") == 0)
		{
			twice = own.workers >= 0;
			own.workers = defGetInt32(option);
			if (own.workers < 0 || own.workers > SLUICE_MAX_WORKERS)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("COPY option \"workers\" must be between 0 and %d",
								SLUICE_MAX_WORKERS)));
		}
		else
		{
			twice = own.asked != ASKED_BY_SETTING;
			own.asked = parse_asked(defGetString(option));
		}
		if (twice)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options")));
	}
	stmt->options = rest;
	if (own.asked == ASKED_BY_SETTING)
		own.asked = sluice_enabled ? ASKED_ON : ASKED_OFF;
	own.workers_asked = own.workers >= 0;
	if (own.workers < 0)
		own.workers = sluice_workers;
	if (own.workers < 0)
		own.workers = processors - 1;
	own.workers = Min(Min(own.workers, max_parallel_workers), SLUICE_MAX_WORKERS);
	return own;
}

static bool
has_own_options(const CopyStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		if (is_own_option(lfirst_node(DefElem, lc)))
			return true;
	}
	return false;
}

/* Says why stock COPY does the work, or refuses if the statement forbids that. */
static void
fall_back(SluiceStatement *s, const char *reason, SluiceAsked asked)
{
	if (asked == ASKED_REQUIRE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pgsluice cannot take over this COPY: %s", reason),
				 errhint("Without the option pgsluice 'require', stock COPY does it.")));
	memset(&sluice_report, 0, sizeof(sluice_report));
	sluice_report.valid = true;
	sluice_report.route = "stock";
	sluice_report.relid = s->rel ? RelationGetRelid(s->rel) : InvalidOid;
	strlcpy(sluice_report.reason, reason, sizeof(sluice_report.reason));
	ereport(DEBUG1, (errmsg_internal("pgsluice: stock COPY: %s", reason)));
}

/*
 * A library whose hook was there before ours sees a statement only if ours
 * passes it on, and then nothing comes back to us: standard_ProcessUtility
 * follows. So it is given the same statement as a CALL of our function
 * pgsluice.inside(), with text, query identifier and completion tag of the COPY,
 * and the work is done in there.
 */
static struct
{
	SluiceStatement *statement; /* NULL unless one is on its way inside */
	uint64		rows;
}			inside;

/* The function, if the extension's objects are there and it is ours. */
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
	/* Only a superuser can have made a function in C. */
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId &&
		((Form_pg_proc) GETSTRUCT(tuple))->prorettype == VOIDOID)
		function = ((Form_pg_proc) GETSTRUCT(tuple))->oid;
	ReleaseSysCache(tuple);
	return function;
}

Datum
pgsluice_inside(PG_FUNCTION_ARGS)
{
	SluiceStatement *s = inside.statement;

	if (s == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgsluice.inside() is for COPY only")));
	inside.statement = NULL;
	inside.rows = sluice_copy(s);
	if (s->completion)
		SetQueryCompletion(s->completion, CMDTAG_COPY, inside.rows);
	PG_RETURN_VOID();
}

static void
copy_inside(SluiceStatement *s, PlannedStmt *pstmt, const char *query,
			ProcessUtilityContext context, QueryEnvironment *env,
			DestReceiver *dest, Oid function)
{
	CallStmt   *call = makeNode(CallStmt);
	PlannedStmt *stand_in = makeNode(PlannedStmt);

	call->funcexpr = makeFuncExpr(function, VOIDOID, NIL, InvalidOid, InvalidOid,
								  COERCE_EXPLICIT_CALL);
	*stand_in = *pstmt;
	stand_in->utilityStmt = (Node *) call;
	inside.statement = s;
	PG_TRY();
	{
		prev_ProcessUtility(stand_in, query, false, context, NULL, env, dest, s->completion);
	}
	PG_FINALLY();
	{
		inside.statement = NULL;
	}
	PG_END_TRY();
}

/*
 * Does the COPY if that can be done exactly as stock COPY would do it, and
 * returns whether it did.
 */
static bool
take_over(PlannedStmt *pstmt, const char *query, ProcessUtilityContext context,
		  QueryEnvironment *env, SluiceOptions own, DestReceiver *dest,
		  QueryCompletion *qc)
{
	SluiceStatement s = {0};
	const char *reason = NULL;
	Oid			function = InvalidOid;

	s.workers = own.workers;
	s.workers_asked = own.workers_asked;
	s.completion = qc;
	s.stmt = castNode(CopyStmt, pstmt->utilityStmt);
	/* Parse analysis scribbles on what stock COPY may still need. */
	if (s.stmt->whereClause)
		s.stmt = copyObject(s.stmt);
	s.pstate = make_parsestate(NULL);
	s.pstate->p_sourcetext = query;
	s.pstate->p_queryEnv = env;

	if (others_came_first && !OidIsValid(function = find_inside()))
		reason = "a library that was loaded before would not see it (CREATE EXTENSION pgsluice is missing)";
	if (reason == NULL)
		reason = sluice_why_not(&s);
	if (reason != NULL)
		fall_back(&s, reason, own.asked);
	else if (others_came_first)
		copy_inside(&s, pstmt, query, context, env, dest, function);
	else
	{
		uint64		rows = sluice_copy(&s);

		if (qc)
			SetQueryCompletion(qc, CMDTAG_COPY, rows);
	}
	if (s.rel)
		table_close(s.rel, NoLock);
	free_parsestate(s.pstate);
	return reason == NULL;
}

static void
sluice_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
					  bool readOnlyTree, ProcessUtilityContext context,
					  ParamListInfo params, QueryEnvironment *queryEnv,
					  DestReceiver *dest, QueryCompletion *qc)
{
	CopyStmt   *stmt = (CopyStmt *) pstmt->utilityStmt;

	if (IsA(stmt, CopyStmt) && stmt->is_from && stmt->relation != NULL &&
		(sluice_enabled || has_own_options(stmt)))
	{
		SluiceOptions own;

		/* Options are taken out of a copy. */
		if (readOnlyTree || has_own_options(stmt))
			pstmt = copyObject(pstmt);
		readOnlyTree = false;
		own = take_options((CopyStmt *) pstmt->utilityStmt);
		if (own.asked != ASKED_OFF &&
			take_over(pstmt, queryString, context, queryEnv, own, dest, qc))
			return;
	}
	if (prev_ProcessUtility)
		prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
							queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);
}

/* The row of the view pgsluice.last_copy. */
Datum
pgsluice_last_copy(PG_FUNCTION_ARGS)
{
	const SluiceReport *r = &sluice_report;
	Datum		values[14];
	bool		nulls[14] = {0};
	char		wal[32];
	ReturnSetInfo *rsinfo;

	InitMaterializedSRF(fcinfo, 0);
	rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	if (rsinfo->setDesc->natts != lengthof(values))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the extension's objects are of another version than its library"),
				 errhint("Run ALTER EXTENSION pgsluice UPDATE.")));
	if (!r->valid)
		return (Datum) 0;
	values[0] = ObjectIdGetDatum(r->relid);
	nulls[0] = !OidIsValid(r->relid);
	values[1] = CStringGetTextDatum(r->route);
	values[2] = Int64GetDatum((int64) r->rows);
	values[3] = Int64GetDatum((int64) r->rows_by_server);
	values[4] = Int64GetDatum((int64) r->values_by_server);
	values[5] = Int64GetDatum((int64) r->bytes);
	values[6] = Int32GetDatum(r->workers);
	values[7] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->total));
	values[8] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->reading));
	values[9] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->forming));
	values[10] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->heap));
	values[11] = Float8GetDatum(INSTR_TIME_GET_DOUBLE(r->after));
	snprintf(wal, sizeof(wal), UINT64_FORMAT, r->wal_bytes);
	values[12] = DirectFunctionCall3(numeric_in, CStringGetDatum(wal),
									 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
	values[13] = r->reason[0] ? CStringGetTextDatum(r->reason) : (Datum) 0;
	nulls[13] = r->reason[0] == '\0';
	if (r->reason[0])
		memset(&nulls[2], true, 11 * sizeof(bool));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

void
_PG_init(void)
{
	others_came_first = ProcessUtility_hook != NULL;
	DefineCustomBoolVariable("pgsluice.copy",
							 "Lets pgsluice do COPY FROM where it can do it exactly as stock COPY would.",
							 NULL,
							 &sluice_enabled,
							 false,
							 PGC_USERSET,
							 0, NULL, NULL, NULL);
	DefineCustomIntVariable("pgsluice.workers",
							"How many workers may help one COPY FROM; -1 is one less than there are processors.",
							NULL,
							&sluice_workers,
							-1, -1, SLUICE_MAX_WORKERS,
							PGC_USERSET,
							0, NULL, NULL, NULL);
	sluice_index_init();
	MarkGUCPrefixReserved("pgsluice");
	processors = Max((int) sysconf(_SC_NPROCESSORS_ONLN), 1);
	sluice_install_init();
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = sluice_ProcessUtility;
}
