/*
 * What CHECK constraints and other expressions of a table may do: whether a
 * worker can check the constraints of a domain, whether a NULL passes them,
 * and whether any of them is volatile.
 *
 * Volatility matters because stock COPY calls such a function at a known
 * moment: after the rows of earlier batches are in the table, and before those
 * of later ones. A function that reads the table can observe this. If there is
 * a volatile one, stock COPY does the work. With rejects_to or on_duplicate,
 * which stock COPY does not have, no index entry waits (`volatile_checks` in
 * base/load.h).
 *
 * In case of doubt, a function counts as volatile and as unsafe.
 */
#include "base/pgsluice.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/nodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* The constraints of a domain and of the domains it is based on. */
static List *
constraints_of(Oid domain)
{
	/* The reference is registered with the memory context that it is in. */
	DomainConstraintRef *ref = palloc0(sizeof(DomainConstraintRef));

	InitDomainConstraintRef(domain, ref, CurrentMemoryContext, false);
	return ref->constraints;
}

/*
 * Whether a function may not be called in a worker. Safe functions are those
 * of the server or of a library in C that are marked parallel safe and are not
 * volatile. Functions in other languages may read tables, which the leader is
 * changing.
 */
bool
sluice_function_is_unsafe(Oid function, void *context)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		is_safe;

	if (!HeapTupleIsValid(tuple))
		return true;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	is_safe = form->proparallel == PROPARALLEL_SAFE && form->provolatile != PROVOLATILE_VOLATILE &&
		(form->prolang == INTERNALlanguageId || form->prolang == ClanguageId);
	ReleaseSysCache(tuple);
	return !is_safe;
}

/*
 * Whether an expression may not be evaluated in a worker. Walks the whole
 * tree.
 */
static bool
has_unsafe_function(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* The constraints of another domain are not examined here. */
	if (IsA(node, CoerceToDomain) ||
		check_functions_in_node(node, sluice_function_is_unsafe, context))
		return true;
	return expression_tree_walker(node, has_unsafe_function, context);
}

/*
 * Whether all values of a type are plain: what the server's functions do with
 * them runs no code but the server's own or that of a library. For the
 * elements of an array and the fields of a composite type, the operator class
 * may have functions in any language.
 */
static bool
is_plain_type(Oid type)
{
	if (get_typtype(type) == TYPTYPE_DOMAIN)
		type = getBaseType(type);
	if (type < FirstNormalObjectId)
		return get_typtype(type) != TYPTYPE_PSEUDO;
	return get_typtype(type) == TYPTYPE_ENUM ||
		(get_typtype(type) == TYPTYPE_BASE && !OidIsValid(get_element_type(type)));
}

/*
 * Whether an expression has a node that might behave differently in a worker.
 */
static bool
has_other_node(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_List:
		case T_CaseWhen:
			break;
		case T_Var:
			/* System columns and whole-row references are not plain. */
			if (((Var *) node)->varattno <= 0)
				return true;
			pg_fallthrough;
		case T_Const:
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
		case T_BoolExpr:
		case T_NullTest:
		case T_BooleanTest:
		case T_CaseExpr:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_MinMaxExpr:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_ArrayExpr:
		case T_ArrayCoerceExpr:
		case T_CollateExpr:
			if (!is_plain_type(exprType(node)) ||
				check_functions_in_node(node, sluice_function_is_unsafe, context))
				return true;
			break;
		default:
			return true;
	}
	return expression_tree_walker(node, has_other_node, context);
}

/*
 * Whether an expression of a table, in the form in which the catalog has it,
 * depends on nothing but the row's values and is evaluated only by code of the
 * server or of a library in C that is marked safe for a worker. Then nobody
 * can observe in which process, or how long before the insertion, it is
 * evaluated.
 */
bool
sluice_is_plain_expression(Node *expr)
{
	return !contain_mutable_functions(expr) && !has_other_node(expr, NULL);
}

/* Why a domain's constraints cannot be checked in a worker, or NULL. */
const char *
sluice_domain_why_not(Oid domain)
{
	ListCell   *lc;

	foreach(lc, constraints_of(domain))
	{
		Node	   *check = (Node *) ((DomainConstraintState *) lfirst(lc))->check_expr;

		if (contain_mutable_functions(check))
			return "a domain has a CHECK constraint that is not immutable";
		if (has_unsafe_function(check, NULL))
			return "a domain has a CHECK constraint with a function that is not parallel safe or not in C";
	}
	return NULL;
}

/* Whether a node with this tag is anywhere in the expression. */
static bool
has_node(Node *node, void *tag)
{
	if (node == NULL)
		return false;
	return nodeTag(node) == *(NodeTag *) tag || expression_tree_walker(node, has_node, tag);
}

/*
 * Whether an expression is NULL for a NULL value: it consists of nothing but
 * strict functions of the value.
 */
static bool
is_null_of_null(Node *check)
{
	NodeTag		value = T_CoerceToDomainValue;
	NodeTag		coercion = T_CoerceToDomain;

	if (IsA(check, BoolExpr))
	{
		ListCell   *lc;

		/* AND, OR and NOT of NULLs are NULL. */
		foreach(lc, ((BoolExpr *) check)->args)
		{
			if (!is_null_of_null(lfirst(lc)))
				return false;
		}
		return true;
	}
	/* A coercion to a domain may itself reject a NULL. */
	return has_node(check, &value) && !has_node(check, &coercion) &&
		!contain_nonstrict_functions(check);
}

/* Whether it is certain that no constraint rejects a NULL. */
bool
sluice_domain_takes_null(Oid domain)
{
	ListCell   *lc;

	foreach(lc, constraints_of(domain))
	{
		DomainConstraintState *constraint = lfirst(lc);

		if (constraint->constrainttype == DOM_CONSTRAINT_NOTNULL ||
			!is_null_of_null((Node *) constraint->check_expr))
			return false;
	}
	return true;
}

/*
 * Whether an expression coerces to a domain with volatile constraints, or
 * stable ones, which the server's own walkers do not look at.
 */
static bool
has_volatile_domain(Node *expr, void *least)
{
	if (expr == NULL)
		return false;
	if (IsA(expr, CoerceToDomain) &&
		sluice_type_is_volatile(((CoerceToDomain *) expr)->resulttype, *(char *) least))
		return true;
	return expression_tree_walker(expr, has_volatile_domain, least);
}

/*
 * Whether an expression is volatile, or, with PROVOLATILE_STABLE, also stable:
 * by its functions, or by the constraints of a domain that it coerces to.
 */
static bool
is_volatile(Node *expr, char least)
{
	return has_volatile_domain(expr, &least) ||
		(least == PROVOLATILE_STABLE ? contain_mutable_functions(expr) : contain_volatile_functions(expr));
}

/* Whether reading a field of a composite type runs something volatile. */
static bool
composite_is_volatile(Oid type, char least)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	bool		found = false;

	for (int i = 0; i < desc->natts && !found; i++)
		found = !TupleDescAttr(desc, i)->attisdropped &&
			sluice_type_is_volatile(TupleDescAttr(desc, i)->atttypid, least);
	ReleaseTupleDesc(desc);
	return found;
}

/*
 * Whether reading a value of the type runs something volatile, or, with
 * PROVOLATILE_STABLE, something stable.
 */
bool
sluice_type_is_volatile(Oid type, char least)
{
	ListCell   *lc;

	/* Built-in types have no such constraints. */
	if (type < FirstNormalObjectId)
		return false;
	check_stack_depth();
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			foreach(lc, constraints_of(type))
			{
				if (is_volatile((Node *) ((DomainConstraintState *) lfirst(lc))->check_expr, least))
					return true;
			}
			return sluice_type_is_volatile(getBaseType(type), least);
		case TYPTYPE_COMPOSITE:
			return composite_is_volatile(type, least);
		case TYPTYPE_RANGE:
			return sluice_type_is_volatile(get_range_subtype(type), least);
		case TYPTYPE_MULTIRANGE:
			return sluice_type_is_volatile(get_multirange_range(type), least);
		default:
			return sluice_type_is_volatile(get_element_type(type), least);
	}
}

/* Whether is_sought() accepts one of the relation's rows in a catalog. */
static bool
any_row(Oid catalog, Oid index, AttrNumber column, Oid relid, SluiceIsSought is_sought,
		const void *context)
{
	Relation	rows = table_open(catalog, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(rows, index, true, NULL, 1, &key);
	while (!found && (tuple = systable_getnext(scan)) != NULL)
		found = is_sought(tuple, RelationGetDescr(rows), context);
	systable_endscan(scan);
	table_close(rows, AccessShareLock);
	return found;
}

/*
 * Whether is_sought() accepts a trigger of the relation. It is read from the
 * catalog, because the relation need not be open: a partition is not.
 */
bool
sluice_any_trigger(Oid relid, SluiceIsSought is_sought, const void *context)
{
	return any_row(TriggerRelationId, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid, relid,
				   is_sought, context);
}

/* The same for the constraints of the relation. */
bool
sluice_any_constraint(Oid relid, SluiceIsSought is_sought, const void *context)
{
	return any_row(ConstraintRelationId, ConstraintRelidTypidNameIndexId,
				   Anum_pg_constraint_conrelid, relid, is_sought, context);
}

/* Whether the expression in the given column of the catalog is volatile. */
static bool
has_volatile_expression(HeapTuple tuple, TupleDesc desc, const void *column)
{
	bool		isnull;
	Datum		expr = heap_getattr(tuple, *(const int *) column, desc, &isnull);

	return !isnull && is_volatile(stringToNode(TextDatumGetCString(expr)), PROVOLATILE_VOLATILE);
}

/*
 * Whether a CHECK constraint of a table is volatile, or the condition of one
 * of its triggers. The table need not be open.
 */
bool
sluice_catalog_has_volatile_checks(Oid relid, bool checks, bool triggers)
{
	const int	check = Anum_pg_constraint_conbin;
	const int	condition = Anum_pg_trigger_tgqual;

	return (checks && sluice_any_constraint(relid, has_volatile_expression, &check)) ||
		(triggers && sluice_any_trigger(relid, has_volatile_expression, &condition));
}

/*
 * Whether a CHECK constraint of the table, the condition of one of its
 * triggers, or the WHERE clause is volatile, or, with PROVOLATILE_STABLE, also
 * stable.
 */
static bool
any_check(Relation rel, Node *where, char least)
{
	TupleDesc	desc = RelationGetDescr(rel);
	/*
	 * Reading the catalogs may process invalidations, after which the relation
	 * has other triggers.
	 */
	TriggerDesc *triggers = rel->trigdesc ? CopyTriggerDesc(rel->trigdesc) : NULL;

	for (int i = 0; desc->constr != NULL && i < desc->constr->num_check; i++)
	{
		if (is_volatile(stringToNode(desc->constr->check[i].ccbin), least))
			return true;
	}
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (triggers->triggers[i].tgqual &&
			is_volatile(stringToNode(triggers->triggers[i].tgqual), least))
			return true;
	}
	return where != NULL && is_volatile(where, least);
}

/*
 * Whether something that is evaluated for the table's rows is volatile, so
 * that it may have effects or read the earlier rows: a CHECK constraint of the
 * table or of a domain, the condition of a trigger, or the WHERE clause. For
 * partitions see sluice_catalog_has_volatile_checks().
 *
 * With PROVOLATILE_STABLE: whether one of them may depend on more than the
 * values of the row. An example is pg_column_size(), which depends on how they
 * are stored.
 */
bool
sluice_has_volatile_checks(Relation rel, Node *where, char least)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped &&
			sluice_type_is_volatile(TupleDescAttr(desc, i)->atttypid, least))
			return true;
	}
	return any_check(rel, where, least);
}
