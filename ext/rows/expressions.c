/*
 * Stored generated columns and CHECK constraints of rows that the core has
 * formed. They are evaluated where the rows are formed, by a worker for its
 * chunk or by the leader, so that the rows can go into whole pages like those
 * of any table.
 *
 * WHICH.  Only if every generated column and every CHECK constraint of the
 * table is plain (sluice_is_plain_expression in base/checks.c): a function of
 * the row's values, by code that is safe in a worker. Then only its errors and
 * messages could show where and when it is evaluated. If one is not plain, all
 * of them stay with the insert route, or with ExecConstraints().
 *
 * ERRORS.  Stock COPY computes the generated columns of a row, then checks the
 * row, then reads the next one. The leader does the same here, and an error
 * shows the record. A row that violates a constraint is left to the insert
 * route, where ExecConstraints() rejects it with its own message. A worker
 * stops at the first row that is not right (workers/reader.c), and the leader
 * evaluates again. So each error is the leader's own, at its row.
 *
 * WHERE VALUES GO.  The core leaves zeros in place of a value of fixed length,
 * and NULL in place of any other. Values of fixed length are filled in where
 * they are. Rows with a value of variable length, or a generated NULL, are
 * formed again and packed again (heap/pack.c), with all rows of their slice.
 *
 * THE INVARIANT.  A row reaches a page only if all its generated columns have
 * their values and no constraint is false, by the functions that stock COPY
 * calls. A slice is either completed as a whole or is as the core has left it,
 * except for values of fixed length. These are computed again from the same
 * columns, with the same result, so filling them in twice does no harm.
 *
 * WHO SEES IT.  Nobody: rows are memory of this process, no page or buffer is
 * locked, and nothing is logged here. An error ends the load with rows that
 * were never in the table.
 *
 * WHAT IS LEFT TO OTHERS.  The insert route computes and checks rows of
 * partitioned tables, and rows that triggers, WHERE or rejects look at between
 * the core and the table, in ExecComputeStoredGenerated() and
 * ExecConstraints(). Virtual generated columns (18) have no value in a row; a
 * table with one takes that route, too. The core checks NOT NULL of other
 * columns.
 *
 * Expression states are made when the first row arrives, as in stock COPY: an
 * error in them shows only if there is a row.
 */
#include "rows/rows.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/datum.h"
#include "utils/memutils.h"

StaticAssertDecl(SLUICE_SLICE_ROWS <= SLUICE_MOST_ROWS, "the leader's packer holds any slice");

typedef struct GeneratedColumn
{
	int			column;			/* from 0 */
	Node	   *expr;			/* as the catalog has it */
	ExprState  *state;
	Datum		value;
	bool		isnull;
} GeneratedColumn;

struct SluiceExpressions
{
	List	   *generated;		/* pairs of attribute number and expression */
	List	   *checks;			/* expressions, as the catalog has them */
	TupleDesc	desc;			/* not reference-counted */
	int			serial;			/* the column that gets its value later, from a sequence; -1: none */
	bool		forms_again;	/* a generated column is of variable length, so its row gets longer */
	int			ncolumns;
	GeneratedColumn *columns;
	/* Made for the current transaction; the slot is NULL until then. */
	MemoryContext memory;
	ExprContext *econtext;
	TupleTableSlot *slot;
	HeapTupleData tuple;		/* the tuple in the slot */
	List	   *check_states;
	SluicePacker *packer;		/* used by the leader */
};

/*
 * Fills `columns` from the pairs, in the leader and in a worker. Compiles
 * nothing.
 */
static void
add_columns(SluiceExpressions *x)
{
	ListCell   *lc;

	x->columns = palloc0(sizeof(GeneratedColumn) * Max(list_length(x->generated), 1));
	foreach(lc, x->generated)
	{
		List	   *pair = lfirst(lc);
		GeneratedColumn *column = &x->columns[x->ncolumns++];

		column->column = intVal(linitial(pair)) - 1;
		column->expr = lsecond(pair);
		x->forms_again |= TupleDescAttr(x->desc, column->column)->attlen < 0;
	}
}

/*
 * Collects what the table computes and checks; false if something is not
 * plain. All or none: if one constraint were left to ExecConstraints(), it
 * would be checked after those of later rows, and another error might come
 * first.
 */
static bool
collect(SluiceExpressions *x, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	TupleConstr *constr = desc->constr;

	for (int i = 0; i < desc->natts; i++)
	{
		Node	   *expr;

		if (!TupleDescAttr(desc, i)->attgenerated || TupleDescAttr(desc, i)->attisdropped)
			continue;
		expr = build_column_default(rel, i + 1);
		if (expr == NULL || !sluice_is_plain_expression(expr))
			return false;
		x->generated = lappend(x->generated, list_make2(makeInteger(i + 1), expr));
	}
	for (int i = 0; i < constr->num_check; i++)
	{
		Node	   *expr;

		if (!compat_check_is_enforced(&constr->check[i]))
			continue;
		expr = stringToNode(constr->check[i].ccbin);
		if (!sluice_is_plain_expression(expr))
			return false;
		x->checks = lappend(x->checks, expr);
	}
	return true;
}

static bool complete_slice(SluiceLoad *load, SluiceSlice *slice);

/* Finds the expressions that may be evaluated before the insertion, if any. */
void
sluice_expressions_find(SluiceLoad *load)
{
	Relation	rel = load->cstate->rel;
	TupleConstr *constr = RelationGetDescr(rel)->constr;
	SluiceExpressions *x;

	load->expressions = NULL;
	/* In these cases rows take the insert route anyway. */
	if (!sluice_allowed.expressions || !sluice_allowed.whole_pages || constr == NULL ||
		(constr->num_check == 0 && !constr->has_generated_stored) ||
		compat_has_virtual_columns(RelationGetDescr(rel)) || load->proute != NULL ||
		load->volatile_checks || load->rejects != NULL || load->cstate->qualexpr != NULL)
		return;
	x = palloc0(sizeof(SluiceExpressions));
	x->desc = CreateTupleDescCopyConstr(RelationGetDescr(rel));
	x->serial = -1;
	if (!collect(x, rel))
		return;
	add_columns(x);
	sluice_expressions_begin(x, load->estate->es_query_cxt);
	load->expressions = x;
	load->complete_slice = complete_slice;
}

/* Whether rows are formed again and not filled in where they are. */
bool
sluice_forms_again(const SluiceExpressions *x)
{
	return x != NULL && x->forms_again;
}

/*
 * The expressions as text, for workers. NULL: there are none, or only the
 * leader can evaluate them, because it gives the rows their values of a
 * sequence.
 */
char *
sluice_expressions_text(const SluiceLoad *load)
{
	SluiceExpressions *x = load->expressions;
	Bitmapset  *columns = NULL;
	List	   *both;

	if (x == NULL || load->route == SLUICE_INSERT)
		return NULL;
	/*
	 * An expression may read a column that gets its value from the leader's
	 * sequence, after the worker is done. A whole-row reference would count as all
	 * columns; it is not plain, so it does not occur here.
	 */
	both = list_make2(x->generated, x->checks);
	for (int i = 0; i < x->ncolumns; i++)
		pull_varattnos(x->columns[i].expr, 1, &columns);
	pull_varattnos((Node *) x->checks, 1, &columns);
	if (OidIsValid(load->args.serial.sequence) &&
		bms_is_member(load->args.serial.attnum - FirstLowInvalidHeapAttributeNumber, columns))
		return NULL;
	return nodeToString(both);
}

/* Reads that text in a worker. */
SluiceExpressions *
sluice_expressions_read(char *text, TupleDesc desc, int serial)
{
	SluiceExpressions *x = palloc0(sizeof(SluiceExpressions));
	List	   *both = stringToNode(text);

	x->generated = linitial(both);
	x->checks = lsecond(both);
	x->desc = desc;
	x->serial = serial;
	add_columns(x);
	return x;
}

/* From now on states are made in that memory. Earlier ones are gone. */
void
sluice_expressions_begin(SluiceExpressions *x, MemoryContext memory)
{
	x->memory = memory;
	x->slot = NULL;
}

/*
 * As ExecPrepareExpr(), but the node stays as it is. Planning changes its
 * argument, and the same node is planned again in the worker's next
 * transaction.
 */
static ExprState *
prepare(Node *expr)
{
	return ExecInitExpr(expression_planner((Expr *) copyObject(expr)), NULL);
}

/* Makes all states when the first row has arrived. */
static void
prepare_all(SluiceExpressions *x)
{
	MemoryContext old = MemoryContextSwitchTo(x->memory);
	ListCell   *lc;

	for (int i = 0; i < x->ncolumns; i++)
		x->columns[i].state = prepare(x->columns[i].expr);
	x->check_states = NIL;
	foreach(lc, x->checks)
		x->check_states = lappend(x->check_states, prepare(lfirst(lc)));
	x->econtext = CreateStandaloneExprContext();
	x->slot = MakeSingleTupleTableSlot(x->desc, &TTSOpsHeapTuple);
	MemoryContextSwitchTo(old);
}

/* The offset in a tuple of a column that is of fixed length and not NULL. */
static uint32
place_of(TupleDesc desc, HeapTupleHeader tuple, int column)
{
	char	   *data = (char *) tuple + tuple->t_hoff;
	bool		has_nulls = (tuple->t_infomask & HEAP_HASNULL) != 0;
	uint32		at = 0;

	for (int i = 0;; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (has_nulls && att_isnull(i, tuple->t_bits))
			continue;
		at = att_align_pointer(at, att->attalign, att->attlen, data + at);
		if (i == column)
			return tuple->t_hoff + at;
		at = att_addlength_pointer(at, att->attlen, data + at);
	}
}

/*
 * Puts values of fixed length where the core has left zeros. The length of the
 * row and the places of its columns do not change, because none of the values
 * is NULL.
 */
static void
fill_in(const SluiceExpressions *x, HeapTupleHeader tuple)
{
	for (int i = 0; i < x->ncolumns; i++)
	{
		const GeneratedColumn *column = &x->columns[i];
		Form_pg_attribute att = TupleDescAttr(x->desc, column->column);
		char	   *place = (char *) tuple + place_of(x->desc, tuple, column->column);

		Assert(!column->isnull && att->attlen > 0);
		Assert(place + att->attlen <= (char *) x->tuple.t_data + x->tuple.t_len);
		if (att->attbyval)
			store_att_byval(place, column->value, att->attlen);
		else
			memcpy(place, DatumGetPointer(column->value), att->attlen);
	}
}

/*
 * Forms the row in the slot again, with its generated values, as the core
 * would have formed it. heap_form_tuple() makes the header of a composite
 * value. The fields that the core leaves zero are cleared, as
 * heap_prepare_insert() does.
 */
static HeapTuple
form_again(const SluiceExpressions *x)
{
	HeapTuple	formed = heap_form_tuple(x->desc, x->slot->tts_values, x->slot->tts_isnull);

	memset(formed->t_data, 0, offsetof(HeapTupleHeaderData, t_infomask2));
	formed->t_data->t_infomask &= ~HEAP_XACT_MASK;
	formed->t_data->t_infomask2 &= ~HEAP2_XACT_MASK;
	return formed;
}

/*
 * Computes the generated columns of the row in the slot. If the row was not
 * filled in where it is, *formed becomes the new row. False: a NULL is not
 * allowed.
 */
static bool
compute(SluiceExpressions *x, HeapTuple *formed)
{
	TupleTableSlot *slot = x->slot;
	bool		in_place = true;

	for (int i = 0; i < x->ncolumns; i++)
	{
		GeneratedColumn *column = &x->columns[i];
		Form_pg_attribute att = TupleDescAttr(x->desc, column->column);

		/* No generated column reads another one, so the order does not matter. */
		column->value = ExecEvalExpr(column->state, x->econtext, &column->isnull);
		/* The insert route rejects the row, with ExecConstraints()' error. */
		if (column->isnull && att->attnotnull)
			return false;
		/* An expanded array gets the form in which stock COPY copies it. */
		if (!column->isnull && att->attlen == -1 &&
			VARATT_IS_EXTERNAL_EXPANDED(DatumGetPointer(column->value)))
			column->value = datumCopy(column->value, false, -1);
		in_place &= !column->isnull && att->attlen > 0;
	}
	/* Forming a new tuple needs all columns of the old one. */
	if (in_place)
		fill_in(x, x->tuple.t_data);
	else
		slot_getallattrs(slot);
	/*
	 * Constraints read the slot. It has already taken from the tuple the columns
	 * that the expressions needed; if a generated one is among them, it gets the new
	 * value. The slot reads the other columns from the tuple, which has been filled
	 * in.
	 */
	for (int i = 0; i < x->ncolumns; i++)
	{
		const GeneratedColumn *column = &x->columns[i];

		if (slot->tts_nvalid > column->column)
		{
			slot->tts_values[column->column] = column->value;
			slot->tts_isnull[column->column] = column->isnull;
		}
	}
	if (!in_place)
		*formed = form_again(x);
	return true;
}

/*
 * Whether the row in the slot violates no constraint. As in ExecRelCheck(),
 * NULL is no violation. Which of several constraints is violated does not
 * matter here: ExecConstraints() finds the first one by name again.
 */
static bool
passes_checks(const SluiceExpressions *x)
{
	ListCell   *lc;

	foreach(lc, x->check_states)
	{
		if (!ExecCheck(lfirst(lc), x->econtext))
			return false;
	}
	return true;
}

/*
 * Adds the row to the packer, and before it the rows that were filled in where
 * they are. If one row of a slice is formed again, the lengths differ from
 * those in the pages that the core has filled. So all rows of the slice are
 * packed again.
 */
static bool
pack(const SluiceExpressions *x, SluicePacker *packer, const SluiceSlice *slice, size_t n, HeapTuple formed)
{
	Assert(packer->used <= n);
	if (!sluice_packer_add_until(packer, slice, n) ||
		!sluice_packer_add(packer, slice, formed->t_data, formed->t_len))
		return false;
	/*
	 * The leader writes the sequence's value to this place, which has moved
	 * with the row.
	 */
	if (slice->rows[n].blank)
		packer->rows[n].blank = place_of(x->desc, formed->t_data, x->serial);
	return true;
}

/*
 * Completes a row of a slice, after those before it: computes its generated
 * columns and checks its constraints. If the packer has begun, or has to, the
 * row is in the packer afterwards. False: the row is not right, or cannot go
 * into a page.
 */
bool
sluice_compute_row(SluiceExpressions *x, SluicePacker *packer, const SluiceSlice *slice, size_t n)
{
	SluiceRow  *row = &slice->rows[n];
	HeapTuple	formed = NULL;
	MemoryContext old;
	bool		right;

	if (x->slot == NULL)
		prepare_all(x);
	/* The slot points into the slice, so values that are filled in there are read. */
	x->tuple.t_len = row->len;
	x->tuple.t_data = (HeapTupleHeader) (slice->arena + row->offset);
	ItemPointerSetInvalid(&x->tuple.t_self);
	ExecStoreHeapTuple(&x->tuple, x->slot, false);
	ResetExprContext(x->econtext);
	x->econtext->ecxt_scantuple = x->slot;
	old = MemoryContextSwitchTo(x->econtext->ecxt_per_tuple_memory);
	right = compute(x, &formed) && passes_checks(x);
	if (right && formed)
		right = pack(x, packer, slice, n, formed);
	else if (right && packer->begun)
		right = sluice_packer_add_until(packer, slice, n + 1);
	MemoryContextSwitchTo(old);
	return right;
}

/* Completes the rows of the slice's pages in the leader. */
static bool
complete_slice(SluiceLoad *load, SluiceSlice *slice)
{
	SluiceExpressions *x = load->expressions;
	bool		right = true;

	if (x->packer == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(load->estate->es_query_cxt);

		x->packer = sluice_packer_make(SLUICE_ARENA, SLUICE_MOST_ROWS);
		MemoryContextSwitchTo(old);
	}
	sluice_packer_clear(x->packer);
	/* Rows after `paged` are on a page that is not full, and take the insert route. */
	for (size_t i = 0; right && i < slice->paged; i++)
	{
		if (i % 1024 == 0)
			CHECK_FOR_INTERRUPTS();
		sluice_show_record(load, slice, i);
		right = sluice_compute_row(x, x->packer, slice, i);
		if (right && load->rri->ri_RelationDesc->rd_rel->relispartition)
			ExecPartitionCheck(load->rri, x->slot, load->estate, true);
		load->record = NULL;
	}
	/* The packer's rows become the slice only if all rows are right: see THE INVARIANT. */
	Assert(!right || !x->packer->begun || x->packer->used == slice->paged);
	if (right && x->packer->begun)
		sluice_packer_become(x->packer, slice);
	if (right && sluice_report.expressions == NULL)
		sluice_report.expressions = "leader";
	return right;
}
