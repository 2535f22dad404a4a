/*
 * What constraints of domains allow: to be checked in a worker, and NULLs.
 */
#include "pgsluice.h"

#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
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
