/*
 * The values of columns that are not in the data. Constants and stable
 * functions are evaluated once, a sequence's values are taken in blocks, and
 * the rest is evaluated for every row.
 *
 * Stock COPY evaluates a default for each row, when the row is read.
 * Evaluating it once is right where nobody can observe the difference: a
 * stable function gives the same value for the whole statement. A volatile one
 * is evaluated for each row, in its turn. If it might look at tables, it could
 * observe whether earlier rows are in the table. Stock COPY would then insert
 * each row before it reads the next one, so such a COPY is left to stock COPY
 * (needs_rows_one_by_one).
 *
 * nextval() is volatile and common. Its only effect is on the sequence, so
 * values for many rows are reserved at once (base/sequence.c).
 */
#include "rows/rows.h"

#include "access/detoast.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/*
 * Whether a function is volatile (or, with PROVOLATILE_STABLE, stable) and
 * might look at the table being loaded.
 */
static bool
may_look_at_tables(Oid function, void *volatility)
{
	if (func_volatile(function) != *(char *) volatility)
		return false;
	return *(char *) volatility == PROVOLATILE_STABLE ? sluice_function_is_unsafe(function, NULL) :
		!sluice_reads_no_table(function);
}

/*
 * Whether a default may do or observe something between two rows. Walks the
 * whole expression. With PROVOLATILE_STABLE: whether it may observe rows that
 * every snapshot sees, as those of FREEZE.
 */
static bool
needs_rows_one_by_one(Node *expr, void *volatility)
{
	if (expr == NULL)
		return false;
	if (check_functions_in_node(expr, may_look_at_tables, volatility) ||
		(IsA(expr, CoerceToDomain) &&
		 sluice_type_is_volatile(((CoerceToDomain *) expr)->resulttype, *(char *) volatility)))
		return true;
	return expression_tree_walker(expr, needs_rows_one_by_one, volatility);
}

/*
 * Whether the triggers of a partitioned table could see the order in which
 * rows go in. With such a default, stock COPY inserts them one by one, and
 * otherwise partition by partition.
 */
static bool
order_shows(Relation rel, AttrNumber attnum)
{
	Node	   *expr;

	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE || rel->trigdesc == NULL ||
		!rel->trigdesc->trig_insert_after_row)
		return false;
	expr = build_column_default(rel, attnum);
	return expr != NULL && contain_volatile_functions_not_nextval(expr);
}

/*
 * Examines a column's default. Returns whether it needs rows to be inserted
 * one by one. COPY plans it too, after it has checked its options. Planning
 * may fail, so the options are checked first here as well.
 */
static bool
judge(const SluiceStatement *s, AttrNumber attnum, SluiceRelationCache *known)
{
	uint64		changes = sluice_relation_changes;
	Node	   *expr = build_column_default(s->rel, attnum);
	MemoryContext old;
	bool		one_by_one;

	if (expr != NULL)
	{
		ProcessCopyOptions(s->pstate, NULL, true, s->stmt->options);
		expr = (Node *) expression_planner((Expr *) expr);
	}
	one_by_one = expr != NULL && needs_rows_one_by_one(expr, &(char) {PROVOLATILE_VOLATILE});
	if (changes != sluice_relation_changes)
		return one_by_one;
	old = MemoryContextSwitchTo(CacheMemoryContext);
	known->judged = bms_add_member(known->judged, attnum);
	if (one_by_one)
		known->one_by_one = bms_add_member(known->one_by_one, attnum);
	MemoryContextSwitchTo(old);
	return one_by_one;
}

/*
 * Why defaults cannot be given as stock COPY gives them, or NULL. This
 * concerns the columns outside the list, and all columns if the data may have
 * a DEFAULT marker. `freeze`: COPY with FREEZE.
 */
const char *
sluice_default_why_not(const SluiceStatement *s, bool marker, bool freeze)
{
	TupleDesc	desc = RelationGetDescr(s->rel);
	SluiceRelationCache *known = sluice_relation_cache(RelationGetRelid(s->rel));

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->atthasdef && att->atttypid < FirstNormalObjectId)
			continue;			/* NULL or an identity, and not a domain with a default */
		if (att->attisdropped || att->attgenerated ||
			(!marker && list_member_int(s->attnums, i + 1)))
			continue;
		if (bms_is_member(i + 1, known->judged) ? bms_is_member(i + 1, known->one_by_one) :
			judge(s, i + 1, known))
			return "a column has a volatile default";
		if (freeze && needs_rows_one_by_one(build_column_default(s->rel, i + 1), &(char) {PROVOLATILE_STABLE}))
			return "a column has a stable default, and every snapshot sees the rows of FREEZE";
		if (order_shows(s->rel, i + 1))
			return "a column has a volatile default, and an AFTER ROW trigger sees the order of rows";
	}
	return NULL;
}

/* Recognizes nextval('…'::regclass), plain or cast to the column's type. */
static bool
is_nextval(Node *expr, SluiceSequence *serial)
{
	if (IsA(expr, FuncExpr) &&
		(((FuncExpr *) expr)->funcid == F_INT4_INT8 ||
		 ((FuncExpr *) expr)->funcid == F_INT2_INT8))
		expr = linitial(((FuncExpr *) expr)->args);
	if (IsA(expr, NextValueExpr))
	{
		serial->sequence = ((NextValueExpr *) expr)->seqid;
		serial->check = false;
		return true;
	}
	if (IsA(expr, FuncExpr) && ((FuncExpr *) expr)->funcid == F_NEXTVAL &&
		IsA(linitial(((FuncExpr *) expr)->args), Const))
	{
		Const	   *name = linitial(((FuncExpr *) expr)->args);

		serial->sequence = DatumGetObjectId(name->constvalue);
		serial->check = true;
		return !name->constisnull;
	}
	return false;
}

/* Sets a value's bytes as they are in a tuple, without a varlena header. */
static void
give(SluiceColumn *column, Form_pg_attribute att, Datum value)
{
	if (att->attlen == -1)
	{
		struct varlena *whole = pg_detoast_datum_packed((struct varlena *) DatumGetPointer(value));

		column->given = (const uint8_t *) VARDATA_ANY(whole);
		column->given_len = VARSIZE_ANY_EXHDR(whole);
	}
	else if (att->attbyval)
	{
		char	   *bytes = palloc0(sizeof(Datum));

		store_att_byval(bytes, value, att->attlen);
		column->given = (const uint8_t *) bytes;
		column->given_len = att->attlen;
	}
	else
	{
		column->given = (const uint8_t *) DatumGetPointer(value);
		column->given_len = att->attlen;
	}
	column->source = SLUICE_FROM_GIVEN;
}

/* Plans the value of a column outside the list. */
void
sluice_plan_default(CopyFromState cstate, Form_pg_attribute att, SluiceColumn *column,
					SluicePlanArgs *args)
{
	ExprState  *state = compat_default_of(cstate, att->attnum);
	SluiceSequence serial = {0};
	Datum		value;
	bool		isnull;

	column->source = SLUICE_FROM_NULL;
	if (state == NULL)
		return;
	/*
	 * A column before this one may draw from the same sequence, and draws
	 * first.
	 */
	if (!OidIsValid(args->serial.sequence) && args->volatiles == NIL && is_nextval((Node *) state->expr, &serial) &&
		(att->attlen == 2 || att->attlen == 4 || att->attlen == 8))
	{
		args->serial = serial;
		args->serial.attnum = att->attnum;
		args->serial.len = att->attlen;
		column->source = SLUICE_FROM_BLANK;
		return;
	}
	if (contain_volatile_functions((Node *) state->expr))
	{
		/*
		 * The core leaves a NULL here. The constraint is checked after the
		 * default was evaluated.
		 */
		column->not_null = false;
		args->volatiles = lappend_int(args->volatiles, att->attnum);
		return;
	}
	if (IsA(state->expr, Const))
	{
		value = ((Const *) state->expr)->constvalue;
		isnull = ((Const *) state->expr)->constisnull;
	}
	else
	{
		ExprContext *econtext = CreateStandaloneExprContext();

		value = ExecEvalExprSwitchContext(state, econtext, &isnull);
		if (!isnull)
			value = datumCopy(value, att->attbyval, att->attlen);
		FreeExprContext(econtext, true);
	}
	if (!isnull)
		give(column, att, value);
}

/*
 * Whether a default may fail, other than by a sequence's end. Then stock COPY
 * has to read the first row: it raises the error as it should, and only if
 * there is a row. A default that does not fail for the first row does not fail
 * for others.
 */
bool
sluice_defaults_may_fail(CopyFromState cstate)
{
	TupleDesc	desc = RelationGetDescr(cstate->rel);
	SluiceSequence serial;

	for (int i = 0; i < desc->natts; i++)
	{
		ExprState  *state;

		/* COPY does not set its entry of a dropped column. */
		if (TupleDescAttr(desc, i)->attisdropped)
			continue;
		state = compat_default_of(cstate, i + 1);
		if (state != NULL && !list_member_int(cstate->attnumlist, i + 1) &&
			!IsA(state->expr, Const) && !IsA(state->expr, SQLValueFunction) &&
			!is_nextval((Node *) state->expr, &serial))
			return true;
	}
	return false;
}
