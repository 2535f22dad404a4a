/*
 * Workers compress values before the leader inserts their rows: most of the
 * time of a COPY of wide rows is spent on that.
 *
 * The leader's toaster (heap_toast_insert_or_update) then finds a value that
 * is compressed, does not try it again, and stores it in the row or out of
 * line.
 *
 * WHY THE TABLE IS AS STOCK COPY LEAVES IT, TO THE BYTE.  A worker takes the
 * first of the toaster's four steps, by the server's own functions. While the
 * row is too large, it compresses the largest value that is not done yet. A
 * value that is still larger than a whole row may be goes out of line. The
 * worker moves nothing out of line; it continues as if it had. Then the
 * toaster does the following to the row that the worker has formed:
 *
 *    first step    It skips compressed values, and tries those again that
 *                  cannot be compressed. If the row is still too large, it
 *                  goes on to values that its first step would not have
 *                  reached without the worker. The worker tries these too,
 *                  and if one can be compressed, the row stays as it was
 *                  (would_compress_more).
 *    second step   The largest values go out of line until the row fits, first
 *                  those that were to go in the first step. Each of these is
 *                  larger than a whole row may be, and all others are smaller.
 *                  So all of them go, and no other one before them.
 *    the others    As without the worker.
 *
 * A row that is no longer too large is left as it is by both. If the toaster
 * has more to do, but the row is now shorter than the threshold, the toaster
 * would not look at it: such a row stays as it was.
 *
 * WHICH TABLES.  The row of the chunk must be the one that is inserted: no
 * partitions (they have their own settings), generated columns or volatile
 * defaults. Indexes get their entries from the row too, and would store the
 * compressed value. So no index may have a column that can be compressed, an
 * expression or a predicate. A transition table would hold the compressed value too.
 */
#include "workers/workers.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/toast_helper.h"
#include "access/toast_internals.h"
#include "catalog/pg_proc.h"
#include "utils/rel.h"
#include "utils/relcache.h"

/* Compression by workers pays for rows of this many bytes of data. */
#define WIDE_ROW 4096

/* Whether values of the column may be compressed. */
static bool
is_compressible(Form_pg_attribute att)
{
	return !att->attisdropped && att->attlen == -1 &&
		(att->attstorage == TYPSTORAGE_EXTENDED || att->attstorage == TYPSTORAGE_MAIN);
}

/*
 * Whether an index may store a value of such a column, or look at it. The
 * executor's list of indexes lacks those whose entries wait (index/writer.c),
 * so this asks the table.
 */
static bool
indexes_get_values(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;
	bool		found = false;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		found = found || RelationGetIndexExpressions(index) != NIL ||
			RelationGetIndexPredicate(index) != NIL;
		for (int n = 0; n < index->rd_index->indnatts; n++)
		{
			AttrNumber	attnum = index->rd_index->indkey.values[n];

			found = found ||
				(attnum > 0 && is_compressible(TupleDescAttr(desc, attnum - 1)));
		}
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return found;
}

/*
 * Returns the size that the toaster aims at, for workers that compress; 0:
 * they do not. Called when workers start, after the first rows.
 */
uint32
sluice_compression_target(const SluiceLoad *load)
{
	Relation	rel = load->cstate->rel;
	TupleDesc	desc = RelationGetDescr(rel);
	uint64		bytes = load->source.bytes - (load->source.end - load->source.start);

	if (!sluice_allowed.compression || !OidIsValid(rel->rd_rel->reltoastrelid) ||
		load->proute != NULL || load->rejects != NULL || load->nvolatile > 0 ||
		load->duplicates.mode != SLUICE_DUPLICATE_ERROR ||
		(rel->trigdesc && rel->trigdesc->trig_insert_new_table) ||
		(desc->constr && desc->constr->has_generated_stored) ||
		(bytes < load->lines * WIDE_ROW && !sluice_force) || indexes_get_values(rel) ||
		sluice_has_volatile_checks(rel, load->cstate->whereClause, PROVOLATILE_STABLE))
		return 0;
	for (int i = 0; i < desc->natts; i++)
	{
		if (is_compressible(TupleDescAttr(desc, i)))
			return RelationGetToastTupleTarget(rel, TOAST_TUPLE_TARGET);
	}
	return 0;
}

/*
 * Whether the toaster would compress a value that the worker's first step has
 * not reached.
 */
static bool
would_compress_more(ToastTupleContext *toast)
{
	int			n;

	while ((n = toast_tuple_find_biggest_attribute(toast, true, false)) >= 0)
	{
		ToastAttrInfo *info = &toast->ttc_attr[n];

		if (TupleDescAttr(toast->ttc_rel->rd_att, n)->attstorage == TYPSTORAGE_EXTENDED &&
			DatumGetPointer(toast_compress_datum(toast->ttc_values[n], info->tai_compression)) != NULL)
			return true;
		info->tai_colflags |= TOASTCOL_INCOMPRESSIBLE;
	}
	return false;
}

/* Returns how many bytes of values a row of the target's size has room for. */
static Size
room_for_values(const ToastTupleContext *toast, uint32 target)
{
	int			hoff = SizeofHeapTupleHeader;

	if (toast->ttc_flags & TOAST_HAS_NULLS)
		hoff += BITMAPLEN(toast->ttc_rel->rd_att->natts);
	return target - MAXALIGN(hoff);
}

/*
 * Takes the toaster's first step on a row's values. Sets `values` to those
 * with which the row goes to the leader. Returns false if the row must go as
 * it was. *values_done counts the values that were compressed.
 */
static bool
compress_values(ToastTupleContext *toast, Datum *values, uint32 target, uint64 *values_done)
{
	TupleDesc	desc = toast->ttc_rel->rd_att;
	Size		room = room_for_values(toast, target);
	char	   *elsewhere = palloc0(TOAST_POINTER_SIZE);
	bool		fits;
	bool		moves = false;

	SET_VARTAG_EXTERNAL(elsewhere, VARTAG_ONDISK);
	while (!(fits = heap_compute_data_size(desc, toast->ttc_values, toast->ttc_isnull) <= room))
	{
		int			n = toast_tuple_find_biggest_attribute(toast, true, false);
		ToastAttrInfo *info;

		if (n < 0)
			break;
		info = &toast->ttc_attr[n];
		if (TupleDescAttr(desc, n)->attstorage == TYPSTORAGE_EXTENDED)
			toast_tuple_try_compression(toast, n);
		else
			info->tai_colflags |= TOASTCOL_INCOMPRESSIBLE;
		if (toast->ttc_values[n] != values[n])
		{
			values[n] = toast->ttc_values[n];
			(*values_done)++;
		}
		if (info->tai_size > room)
		{
			toast->ttc_values[n] = PointerGetDatum(elsewhere);
			info->tai_colflags |= TOASTCOL_IGNORE;
			moves = true;
		}
	}
	if (*values_done == 0)
		return false;
	if (fits && !moves)
		return true;
	/* The toaster has more to do: see the head of the file. */
	return MAXALIGN(SizeofHeapTupleHeader) + heap_compute_data_size(desc, values, toast->ttc_isnull) > TOAST_TUPLE_THRESHOLD &&
		!would_compress_more(toast);
}

/*
 * Compresses the values of a row as the toaster would. Returns the new row, in
 * the current memory context, or NULL if the row stays as it is.
 */
HeapTuple
sluice_compress_row(TupleDesc desc, HeapTuple tuple, uint32 target, uint64 *values_done)
{
	RelationData rel = {.rd_att = desc};
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	ToastTupleContext toast = {.ttc_rel = &rel};

	toast.ttc_values = palloc(sizeof(Datum) * desc->natts);
	toast.ttc_isnull = palloc(sizeof(bool) * desc->natts);
	toast.ttc_attr = palloc0(sizeof(ToastAttrInfo) * desc->natts);
	heap_deform_tuple(tuple, desc, toast.ttc_values, toast.ttc_isnull);
	memcpy(values, toast.ttc_values, sizeof(Datum) * desc->natts);
	toast_tuple_init(&toast);
	*values_done = 0;
	if (!compress_values(&toast, values, target, values_done))
		return NULL;
	return heap_form_tuple(desc, values, toast.ttc_isnull);
}
