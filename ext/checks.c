/*
 * What CHECK constraints allow: those of domains, to be checked in a worker, and
 * NULLs; all of them, that rows go in otherwise than by stock COPY's batches.
 */
#include "pgsluice.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/nodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* The constraints of a domain and of the domains below it. */
static List *
constraints_of(Oid domain)
{
	/* It is registered with the memory context that it lies in. */
	DomainConstraintRef *ref = palloc0(sizeof(DomainConstraintRef));

	InitDomainConstraintRef(domain, ref, CurrentMemoryContext, false);
	return ref->constraints;
}

/*
 * Code of the server or of a library that says it is safe. Other languages may
 * look at tables, which the leader is changing.
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

static bool
has_unsafe_function(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* Another domain's constraints are not looked at here. */
	if (IsA(node, CoerceToDomain) ||
		check_functions_in_node(node, sluice_function_is_unsafe, context))
		return true;
	return expression_tree_walker(node, has_unsafe_function, context);
}

/* Why its constraints cannot be checked in a worker, or NULL. */
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

static bool
has_node(Node *node, void *tag)
{
	if (node == NULL)
		return false;
	return nodeTag(node) == *(NodeTag *) tag || expression_tree_walker(node, has_node, tag);
}

/* Whether an expression of nothing but strict functions of the value is NULL where that is. */
static bool
is_null_of_null(Node *check)
{
	NodeTag		value = T_CoerceToDomainValue;
	NodeTag		coercion = T_CoerceToDomain;

	if (IsA(check, BoolExpr))
	{
		ListCell   *lc;

		/* AND and OR of NULLs, and NOT, are NULL. */
		foreach(lc, ((BoolExpr *) check)->args)
		{
			if (!is_null_of_null(lfirst(lc)))
				return false;
		}
		return true;
	}
	/* A coercion may have something against a NULL itself. */
	return has_node(check, &value) && !has_node(check, &coercion) &&
		!contain_nonstrict_functions(check);
}

/* Whether it is certain that no constraint has anything against a NULL. */
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

/* A coercion runs its domain's constraints, which the server's own walkers pass over. */
static bool
has_volatile_domain(Node *expr, void *context)
{
	if (expr == NULL)
		return false;
	if (IsA(expr, CoerceToDomain) && sluice_type_is_volatile(((CoerceToDomain *) expr)->resulttype))
		return true;
	return expression_tree_walker(expr, has_volatile_domain, context);
}

static bool
is_volatile(Node *expr)
{
	return contain_volatile_functions(expr) || has_volatile_domain(expr, NULL);
}

static bool
composite_is_volatile(Oid type)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	bool		found = false;

	for (int i = 0; i < desc->natts && !found; i++)
		found = !TupleDescAttr(desc, i)->attisdropped &&
			sluice_type_is_volatile(TupleDescAttr(desc, i)->atttypid);
	ReleaseTupleDesc(desc);
	return found;
}

/* Whether a value of the type is checked by something volatile when it is read. */
bool
sluice_type_is_volatile(Oid type)
{
	ListCell   *lc;

	check_stack_depth();
	/* The server's own have no such constraints. */
	if (type < FirstNormalObjectId)
		return false;
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			foreach(lc, constraints_of(type))
			{
				if (is_volatile((Node *) ((DomainConstraintState *) lfirst(lc))->check_expr))
					return true;
			}
			return sluice_type_is_volatile(getBaseType(type));
		case TYPTYPE_COMPOSITE:
			return composite_is_volatile(type);
		case TYPTYPE_RANGE:
			return sluice_type_is_volatile(get_range_subtype(type));
		case TYPTYPE_MULTIRANGE:
			return sluice_type_is_volatile(get_multirange_range(type));
		default:
			return sluice_type_is_volatile(get_element_type(type));
	}
}

/* Whether a table, which nobody need have opened, has a CHECK constraint that is volatile. */
static bool
catalog_has_volatile_check(Oid relid)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_constraint_conrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(constraints, ConstraintRelidTypidNameIndexId, true, NULL, 1, &key);
	while (!found && (tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;
		Datum		check = heap_getattr(tuple, Anum_pg_constraint_conbin,
										 RelationGetDescr(constraints), &isnull);

		found = !isnull && is_volatile(stringToNode(TextDatumGetCString(check)));
	}
	systable_endscan(scan);
	table_close(constraints, AccessShareLock);
	return found;
}

/* Whether a partition has a volatile CHECK constraint of its own. */
static bool
partitions_have_volatile_check(Relation rel)
{
	ListCell   *lc;

	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return false;
	foreach(lc, find_all_inheritors(RelationGetRelid(rel), NoLock, NULL))
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(lfirst_oid(lc)));
		bool		more;

		if (!HeapTupleIsValid(tuple))
			continue;			/* dropped meanwhile */
		more = ((Form_pg_class) GETSTRUCT(tuple))->relchecks > rel->rd_rel->relchecks;
		ReleaseSysCache(tuple);
		if (more && catalog_has_volatile_check(lfirst_oid(lc)))
			return true;
	}
	return false;
}

/*
 * Whether a CHECK constraint that the table's rows meet, be it the table's, a partition's
 * or a domain's, may do something, or look at the rows before.
 */
bool
sluice_has_volatile_check(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; desc->constr != NULL && i < desc->constr->num_check; i++)
	{
		if (is_volatile(stringToNode(desc->constr->check[i].ccbin)))
			return true;
	}
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped &&
			sluice_type_is_volatile(TupleDescAttr(desc, i)->atttypid))
			return true;
	}
	return partitions_have_volatile_check(rel);
}
