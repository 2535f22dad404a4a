/*
 * Decides whether workers may read the values that the core does not read. For
 * every type of such values there must be a function that is safe in a worker
 * and that sees there what it would see in the leader.
 *
 * A function is safe if it is marked PARALLEL SAFE, not volatile, and in the
 * server's own language or C. A function in PL/pgSQL may look at the table
 * that the leader is filling, whatever its mark says. All parts of a type are
 * checked: the elements of an array, the fields of a composite type, the base
 * type of a domain, the subtype of a range. A domain's own input function is
 * not parallel safe; its constraints are checked instead.
 *
 * The statement must not change what functions see, either: no serializable
 * transaction (workers would have to share its predicate locks), no replaced
 * rows, no volatile constraints, no conversion of text in binary data. And
 * while workers are in the session, no code of a user may run in the leader,
 * which could change catalogs (session.c).
 *
 * Whatever is not certain is left to the leader, and the report says why.
 */
#include "workers/workers.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

static const char *type_why_not(Oid type, bool binary);

/* Checks each field of a composite type. */
static const char *
composite_why_not(Oid type, bool binary)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	const char *reason = NULL;

	for (int i = 0; i < desc->natts && reason == NULL; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped)
			reason = type_why_not(TupleDescAttr(desc, i)->atttypid, binary);
	}
	ReleaseTupleDesc(desc);
	return reason;
}

/*
 * Returns why workers may not read values of a type, or NULL. Also checks the
 * types of which its values consist.
 */
static const char *
type_why_not(Oid type, bool binary)
{
	HeapTuple	tuple;
	Form_pg_type form;
	Oid			function;
	Oid			part;
	char		kind;

	check_stack_depth();
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	form = (Form_pg_type) GETSTRUCT(tuple);
	function = binary ? form->typreceive : form->typinput;
	kind = form->typtype;
	part = kind == TYPTYPE_DOMAIN ? form->typbasetype :
		kind == TYPTYPE_RANGE ? get_range_subtype(type) :
		kind == TYPTYPE_MULTIRANGE ? get_multirange_range(type) :
		IsTrueArrayType(form) ? form->typelem : InvalidOid;
	ReleaseSysCache(tuple);

	if (kind == TYPTYPE_DOMAIN)
	{
		/*
		 * domain_in() is not marked safe because of possible constraints:
		 * check them.
		 */
		const char *reason = sluice_domain_why_not(type);

		if (reason)
			return reason;
	}
	else if (!OidIsValid(function) || sluice_function_is_unsafe(function, NULL))
		return "the input function of a type is not parallel safe";
	if (kind == TYPTYPE_COMPOSITE)
		return composite_why_not(type, binary);
	return OidIsValid(part) ? type_why_not(part, binary) : NULL;
}

/* Whether a row of pg_trigger runs code of a user after each row. */
static bool
is_after_trigger(HeapTuple tuple, TupleDesc desc, const void *context)
{
	Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);

	return sluice_is_after_trigger(trigger->tgtype, trigger->tgfoid);
}

/* Whether the table or one of its partitions has such a trigger. */
static bool
has_after_triggers(Relation rel)
{
	List	   *tables = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(RelationGetRelid(rel), NoLock, NULL) :
		list_make1_oid(RelationGetRelid(rel));
	ListCell   *lc;

	foreach(lc, tables)
	{
		if (sluice_any_trigger(lfirst_oid(lc), is_after_trigger, NULL))
			return true;
	}
	return false;
}

/*
 * Whether code of a user may run while rows are loaded. AFTER ROW triggers wait
 * until all rows are in, but with rejects_to they run after each group of rows.
 */
static bool
runs_code(const SluiceLoad *load)
{
	if (load->rejects && (load->rejects_run_code || has_after_triggers(load->cstate->rel)))
		return true;
	return load->duplicates.lost_rows && sluice_spi_insert_runs_code(load->duplicates.lost_rows);
}

/*
 * Returns a reason in the statement or its transaction, or NULL: see the head
 * of the file.
 */
static const char *
statement_why_not(const SluiceLoad *load)
{
	if (IsolationIsSerializable())
		return "the transaction is serializable";
	if (!ActiveSnapshotSet())
		return "there is no snapshot";
	if (load->duplicates.mode == SLUICE_DUPLICATE_REPLACE)
		return "rows of this transaction may be replaced";
	/* Input functions in a worker would not see what it does in the leader. */
	if (load->volatile_checks)
		return "a CHECK constraint or a condition is volatile";
	if (load->source.binary && pg_get_client_encoding() != GetDatabaseEncoding())
		return "text in binary data is converted";
	return runs_code(load) ? SLUICE_RUNS_CODE : NULL;
}

/*
 * Sets for each column how workers read it. Returns whether workers are to
 * join the leader's session, for that or for other work (`work`). If they
 * would have to and may not, the report says why.
 */
bool
sluice_workers_may_join(const SluiceLoad *load, SluiceReadColumn *columns, bool work)
{
	CopyFromState cstate = load->cstate;
	bool		binary = load->source.binary;
	bool		wanted = work;
	const char *reason = NULL;

	for (size_t i = 0; i < load->args.ncolumns; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(cstate->rel), i);
		const SluiceColumn *column = &load->args.columns[i];
		bool		asked = column->type_oid == InvalidOid && column->nlabels == 0;
		const char *why;

		memcpy(&columns[i].att, att, ATTRIBUTE_FIXED_PART_SIZE);
		columns[i].function = InvalidOid;
		if (column->source < 0)
			continue;			/* not in the data */
		why = type_why_not(att->atttypid, binary);
		if (why == NULL)
		{
			columns[i].function = cstate->in_functions[i].fn_oid;
			columns[i].ioparam = cstate->typioparams[i];
		}
		else if (asked && reason == NULL)
			reason = why;
		wanted |= asked;
	}
	if (!wanted || load->slice.asks_len == 0)
		return false;
	if (reason == NULL)
		reason = statement_why_not(load);
	sluice_report.leader_reads = reason;
	return reason == NULL;
}
