/*
 * Whether a COPY FROM can be done here exactly as stock COPY would do it, and
 * if not, why. Errors that stock COPY would raise on the way are raised in the
 * same order and with the same words (DoCopy of src/backend/commands/copy.c).
 *
 * Each test either returns a reason, and stock COPY then executes the whole
 * statement from the beginning, or does what DoCopy does at this point. A
 * reason must be found before anything is done that would have another result
 * when stock COPY does it again. Opening and locking the relation may be done
 * twice; reading data may not.
 *
 * Errors in options and privileges are left to stock COPY. The answer here is
 * then a reason as well, and DoCopy raises the error with its own words.
 *
 * A reason is a sentence without a full stop, shown in pgsluice.last_copy. If
 * something cannot be determined, that is a reason, too.
 */
#include "copy/copy.h"

#include "access/sysattr.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "commands/defrem.h"
#include "commands/lockcmds.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/syscache.h"

/* Stock COPY raises the error itself: its words differ between majors. */
static const char *
privileges_why_not(const CopyStmt *stmt)
{
	if (stmt->filename != NULL &&
		!has_privs_of_role(GetUserId(), stmt->is_program ?
						   ROLE_PG_EXECUTE_SERVER_PROGRAM :
						   ROLE_PG_READ_SERVER_FILES))
		return "the role may not read files or run programs of the server";
	return NULL;
}

/*
 * Whether the statement has the option, whatever its value. Stock COPY rejects
 * a wrong value.
 */
static bool
has_option(const List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		if (strcmp(lfirst_node(DefElem, lc)->defname, name) == 0)
			return true;
	}
	return false;
}

/*
 * Reasons in the statement's options. Stock COPY rejects options that are
 * wrong.
 */
static const char *
options_why_not(const List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		if (strcmp(option->defname, "convert_selectively") == 0)
			return "CONVERT_SELECTIVELY";
	}
	return NULL;
}

/*
 * Reasons in the encodings. Special rules apply to data that is neither
 * converted nor in the server's encoding.
 */
static const char *
encoding_why_not(const List *options)
{
	int			server = GetDatabaseEncoding();
	int			data = pg_get_client_encoding();
	ListCell   *lc;

	if (server != PG_UTF8 && pg_database_encoding_max_length() > 1)
		return "the database's encoding is neither UTF8 nor one of single bytes";
	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "encoding") == 0)
			data = pg_char_to_encoding(defGetString(option));
	}
	if (data < 0)
		return "ENCODING is unknown";	/* stock COPY raises the error */
	if (data != server &&
		(data == PG_SQL_ASCII || server == PG_SQL_ASCII) &&
		(pg_encoding_max_length(data) > 1 || pg_database_encoding_max_length() > 1))
		return "the encoding of the data or of the database is SQL_ASCII, and the other has several bytes for a character";
	return NULL;
}

/* Reasons in the session or the transaction. */
static const char *
session_why_not(const List *options)
{
	/*
	 * Only temporary tables can be loaded, or none: stock COPY has the rules.
	 */
	if (XactReadOnly)
		return "the transaction is read-only";
	if (IsInParallelMode())
		return "a parallel operation is running";
	return encoding_why_not(options);
}

/*
 * If a leaf has such a trigger, its rows cannot be inserted in batches.
 * CopyFrom detects that when the first row reaches the leaf.
 */
static bool
is_before_trigger(HeapTuple tuple, TupleDesc desc, const void *context)
{
	int16		type = ((Form_pg_trigger) GETSTRUCT(tuple))->tgtype;

	return TRIGGER_FOR_ROW(type) && TRIGGER_FOR_BEFORE(type) && TRIGGER_FOR_INSERT(type);
}

/*
 * Examines all partitions of the table without locking them. If another
 * session changes one meanwhile, that is detected when the first row reaches
 * the partition (takes_single_rows() in heap/batches.c).
 */
static const char *
judge_partitions(Relation rel, bool *volatile_checks)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(RelationGetRelid(rel), NoLock, NULL))
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_class class;
		const char *reason = NULL;

		if (!HeapTupleIsValid(tuple))
			continue;			/* dropped meanwhile */
		class = (Form_pg_class) GETSTRUCT(tuple);
		if (class->relkind == RELKIND_FOREIGN_TABLE)
			reason = "a partition is foreign";
		else if (class->relkind == RELKIND_RELATION && class->relam != HEAP_TABLE_AM_OID)
			reason = "a partition's access method is not heap";
		else if (class->relhastriggers && sluice_any_trigger(class->oid, is_before_trigger, NULL))
			reason = "a partition has BEFORE row triggers";
		else if (!*volatile_checks)
			*volatile_checks = sluice_catalog_has_volatile_checks(class->oid, class->relchecks > rel->rd_rel->relchecks,
												 class->relhastriggers);
		ReleaseSysCache(tuple);
		if (reason)
			return reason;
	}
	return NULL;
}

/*
 * The same, from the cache if possible: examining many partitions takes longer
 * than a small COPY.
 */
static const char *
partitions_why_not(Relation rel, bool *volatile_checks)
{
	uint64		news = sluice_relation_changes;
	SluiceRelationCache *known = sluice_relation_cache(RelationGetRelid(rel));
	const char *reason;

	if (rel->trigdesc && rel->trigdesc->trig_insert_new_table)
		return "a partitioned table has a trigger with a transition table";
	if (known->partitions_judged)
	{
		*volatile_checks = known->partitions_volatile;
		return known->partitions_why_not;
	}
	reason = judge_partitions(rel, volatile_checks);
	if (news == sluice_relation_changes)
	{
		known->partitions_judged = true;
		known->partitions_why_not = reason;
		known->partitions_volatile = *volatile_checks;
	}
	return reason;
}

/*
 * Reasons in the relation. Partitions are examined last, because that takes
 * longest.
 */
static const char *
relation_why_not(SluiceStatement *s)
{
	Relation	rel = s->rel;
	TriggerDesc *triggers = rel->trigdesc;

	if (RELATION_IS_OTHER_TEMP(rel))
		return "the table is a temporary one of another session";
	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
			break;
		case RELKIND_PARTITIONED_TABLE:
			if (has_option(s->stmt->options, "freeze"))
				return "FREEZE of a partitioned table";
			return check_enable_rls(RelationGetRelid(rel), InvalidOid, true) == RLS_ENABLED ?
				"row-level security is in force" : partitions_why_not(rel, &s->volatile_checks);
		case RELKIND_FOREIGN_TABLE:
			return "the table is foreign";
		case RELKIND_VIEW:
			return "the target is a view";
		default:
			return "the target is not a table";
	}
	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		return "the table's access method is not heap";
	if (IsCatalogRelation(rel) || RelationIsUsedAsCatalogTable(rel))
		return "the table is a catalog";
	if (triggers && (triggers->trig_insert_before_row || triggers->trig_insert_instead_row))
		return "the table has BEFORE or INSTEAD OF row triggers";
	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, true) == RLS_ENABLED)
		return "row-level security is in force";
	return NULL;
}

/*
 * Prepares the WHERE clause as DoCopy does. Returns why stock COPY has to
 * evaluate it, or NULL.
 */
static const char *
where_why_not(SluiceStatement *s, ParseNamespaceItem *nsitem)
{
	ParseState *pstate = s->pstate;
	TupleDesc	desc = RelationGetDescr(s->rel);
	Node	   *where;
	Bitmapset  *columns = NULL;
	bool		names_system = false;
	const int	whole_row = 0 - FirstLowInvalidHeapAttributeNumber;
	int			i = -1;

	if (s->stmt->whereClause == NULL)
		return NULL;
	addNSItemToQuery(pstate, nsitem, false, true, true);
	where = transformExpr(pstate, s->stmt->whereClause, EXPR_KIND_COPY_WHERE);
	where = coerce_to_boolean(pstate, where, "WHERE");
	assign_expr_collations(pstate, where);
	pull_varattnos(where, 1, &columns);
	if (bms_is_member(whole_row, columns))
	{
		columns = bms_add_range(columns, whole_row + 1, whole_row + desc->natts);
		columns = bms_del_member(columns, whole_row);
	}
	while ((i = bms_next_member(columns, i)) >= 0)
	{
		AttrNumber	attno = i + FirstLowInvalidHeapAttributeNumber;

		/*
		 * Rows that are not in a table yet have no system columns except
		 * tableoid. Stock COPY raises the error.
		 */
		if (attno < 0 && COMPAT_REFUSES_SYSTEM_COLUMNS)
			return "the WHERE clause names a system column";
		if (attno < 0)
			names_system |= attno != TableOidAttributeNumber;
		else if (TupleDescAttr(desc, attno - 1)->attgenerated)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
					 errmsg("generated columns are not supported in COPY FROM WHERE conditions"),
					 errdetail("Column \"%s\" is a generated column.",
							   NameStr(TupleDescAttr(desc, attno - 1)->attname))));
	}
	where = eval_const_expressions(NULL, where);
	where = (Node *) canonicalize_qual((Expr *) where, false);
	s->where = (Node *) make_ands_implicit((Expr *) where);
	if (contain_volatile_functions(s->where))
		return "the WHERE clause is volatile";
	return names_system ? "the WHERE clause names a system column" : NULL;
}

/* LOCK TABLE … IN ACCESS EXCLUSIVE MODE, with its permission checks. */
static void
lock_exclusively(RangeVar *relation)
{
	LockStmt   *lock = makeNode(LockStmt);

	lock->relations = list_make1(relation);
	lock->mode = AccessExclusiveLock;
	lock->nowait = false;
	LockTableCommand(lock);
}

/*
 * The server's own check of the permissions, without the hook of other
 * libraries. That hook is called when the work begins (sluice_copy). At this
 * point a library that was loaded before pgsluice has not seen the statement,
 * and an auditor's hook looks up the statement to which the check belongs.
 */
static void
check_permissions(ParseState *pstate)
{
	ExecutorCheckPerms_hook_type hook = ExecutorCheckPerms_hook;

	if (hook == NULL)
	{
		compat_check_permissions(pstate);
		return;
	}
	ExecutorCheckPerms_hook = NULL;
	PG_TRY();
	{
		compat_check_permissions(pstate);
	}
	PG_FINALLY();
	{
		ExecutorCheckPerms_hook = hook;
	}
	PG_END_TRY();
}

/*
 * A volatile function can observe when stock COPY calls it: which rows are in
 * the table by then, and which settings apply to the next rows. With options
 * that stock COPY does not have, no such moment has to be kept.
 */
static const char *
checks_why_not(SluiceStatement *s)
{
	s->volatile_checks |= sluice_has_volatile_checks(s->rel, s->where, PROVOLATILE_VOLATILE);
	/* Every snapshot sees frozen rows, so stable functions can observe the moment, too. */
	if (has_option(s->stmt->options, "freeze"))
		s->volatile_checks |= sluice_has_volatile_checks(s->rel, s->where, PROVOLATILE_STABLE);
	if (s->volatile_checks && !s->options.rejects_to && s->options.on_duplicate == SLUICE_DUPLICATE_ERROR)
		return "a CHECK constraint or a condition is volatile";
	return NULL;
}

/*
 * Opens and locks the relation. Returns why stock COPY has to execute the
 * statement. Otherwise returns NULL, and everything has been checked that
 * DoCopy checks, except by hooks of other libraries.
 */
const char *
sluice_why_not(SluiceStatement *s)
{
	const char *reason;
	ParseNamespaceItem *nsitem;
	ListCell   *lc;

	if ((reason = privileges_why_not(s->stmt)) != NULL ||
		(reason = session_why_not(s->stmt->options)) != NULL ||
		(reason = options_why_not(s->stmt->options)) != NULL)
		return reason;
	if (s->options.exclusive)
		lock_exclusively(s->stmt->relation);
	s->rel = table_openrv(s->stmt->relation, RowExclusiveLock);
	if ((reason = relation_why_not(s)) != NULL)
		return reason;

	nsitem = addRangeTableEntryForRelation(s->pstate, s->rel, RowExclusiveLock,
										   NULL, false, false);
	compat_require_insert(nsitem);
	if ((reason = where_why_not(s, nsitem)) != NULL)
		return reason;
	s->attnums = CopyGetAttnums(RelationGetDescr(s->rel), s->rel, s->stmt->attlist);
	foreach(lc, s->attnums)
		compat_add_inserted_column(nsitem, lfirst_int(lc) - FirstLowInvalidHeapAttributeNumber);
	if (s->options.on_duplicate != SLUICE_DUPLICATE_ERROR)
	{
		s->arbiter = sluice_duplicates_arbiter(s);
		compat_require_select(nsitem, sluice_duplicates_read_columns(s));
		if (s->options.on_duplicate == SLUICE_DUPLICATE_REPLACE)
			compat_require_update(nsitem, RelationGetDescr(s->rel));
	}
	check_permissions(s->pstate);
	if ((reason = checks_why_not(s)) != NULL)
		return reason;
	return sluice_default_why_not(s, has_option(s->stmt->options, "default"),
								  has_option(s->stmt->options, "freeze"));
}
