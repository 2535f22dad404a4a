/*
 * Finds the parents of a foreign key's values by their index, and locks them
 * FOR KEY SHARE, without the query that the server's trigger runs for each
 * value.
 *
 * This code only ever proves that a value has its parent. If that cannot be
 * proven at once, the value is left to the trigger, which then finds the
 * parent, waits for it, or rejects the row as in stock COPY. Examples are a
 * parent that does not exist, one that is not visible yet, and one that
 * another session has updated, deleted or locked in the meantime.
 *
 * Why a value that was proven needs no trigger:
 *
 *   - The row that was found is visible to a snapshot that the trigger could
 *     have had: the transaction's from REPEATABLE READ on, else one that was
 *     taken while the COPY runs. It is found by the operator and in the index
 *     of the constraint.
 *   - It is locked as the trigger locks it (heap_lock_tuple(), FOR KEY SHARE),
 *     and table_tuple_lock() returned TM_Ok: this version is the latest one,
 *     or all later versions have the same key and are locked too. No other
 *     session can delete the row or change its key before this transaction has
 *     ended.
 *   - This transaction does not do so either: foreign_keys.c says why nothing
 *     that changes rows runs in between.
 *   - What the trigger would have checked before that is checked with the
 *     first row: the rights of the parent's owner, as whom the trigger's query
 *     runs. Parents that are partitioned or have row-level security are left
 *     to the trigger.
 *
 * WAITING: locks on the parent, its index and its rows are taken only if they
 * are free. The trigger runs at the end of the statement, and waits then if it
 * must. There is one exception: if another transaction has updated the parent
 * and then deleted it or changed its key, heap_lock_tuple() waits for that
 * transaction.
 *
 * In a SERIALIZABLE transaction the index scan takes predicate locks, as the
 * trigger's scan does.
 */
#include "index/build.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "nodes/parsenodes.h"
#include "parser/parse_coerce.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* In READ COMMITTED this many values are looked up by one snapshot. */
#define VALUES_BY_SNAPSHOT 1000

struct ParentLookup
{
	Relation	parent;
	Relation	index;
	int			natts;
	bool		match_full;
	AttrNumber	columns[INDEX_MAX_KEYS];	/* of the child, in the index's order */
	ScanKeyData keys[INDEX_MAX_KEYS];
	Snapshot	snapshot;
	IndexScanDesc scan;			/* NULL before the first value */
	int			looked;			/* values looked up by this snapshot */
	TupleTableSlot *slot;
	uint64		locked;			/* parents that were locked */
	uint64		left;			/* values left to the trigger */
};

/* Whether the parent's owner, as whom the trigger's query runs, may run it. */
static bool
owner_may_look(Relation parent)
{
	Oid			owner = parent->rd_rel->relowner;

	return compat_may_use_schema(RelationGetNamespace(parent), owner) &&
		pg_class_aclcheck(RelationGetRelid(parent), owner, ACL_SELECT) == ACLCHECK_OK &&
		pg_class_aclcheck(RelationGetRelid(parent), owner, ACL_UPDATE) == ACLCHECK_OK;
}

/*
 * Whether the parent is an ordinary table without row-level security, and its
 * index a valid B-tree over plain columns.
 */
static bool
is_plain(Relation parent, Relation index, int natts)
{
	const FormData_pg_index *form = index->rd_index;

	return parent->rd_rel->relkind == RELKIND_RELATION && !parent->rd_rel->relrowsecurity &&
		index->rd_rel->relam == BTREE_AM_OID && form->indisvalid && form->indimmediate &&
		!form->indcheckxmin && form->indnkeyatts == natts &&
		RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL;
}

/*
 * Prepares the scan key for the index's column i, which is column n of the
 * constraint. Returns false if the constraint's operator is not the equality
 * of the index's operator family, or takes the value only after a conversion;
 * or if the collation of the index differs from the column's, which the
 * trigger's query uses.
 */
static bool
prepare_key(ParentLookup *lookup, const ForeignKeyCacheInfo *info, TupleDesc desc, int i, int n)
{
	Oid			type = getBaseType(TupleDescAttr(desc, info->conkey[n] - 1)->atttypid);
	Oid			family = lookup->index->rd_opfamily[i];
	int			strategy;
	Oid			left;
	Oid			right;

	if (!op_in_opfamily(info->conpfeqop[n], family) ||
		lookup->index->rd_indcollation[i] !=
		TupleDescAttr(RelationGetDescr(lookup->parent), info->confkey[n] - 1)->attcollation)
		return false;
	get_op_opfamily_properties(info->conpfeqop[n], family, false, &strategy, &left, &right);
	if (strategy != BTEqualStrategyNumber || !IsBinaryCoercible(type, right))
		return false;
	lookup->columns[i] = info->conkey[n];
	ScanKeyEntryInitialize(&lookup->keys[i], 0, i + 1, BTEqualStrategyNumber, right,
						   lookup->index->rd_indcollation[i], get_opcode(info->conpfeqop[n]), (Datum) 0);
	return true;
}

/*
 * Prepares the scan keys for all columns, each of which is in the constraint
 * once.
 */
static bool
prepare_keys(ParentLookup *lookup, const ForeignKeyCacheInfo *info, TupleDesc desc)
{
	for (int i = 0; i < info->nkeys; i++)
	{
		int			n = 0;

		while (n < info->nkeys && info->confkey[n] != lookup->index->rd_index->indkey.values[i])
			n++;
		if (n == info->nkeys || !prepare_key(lookup, info, desc, i, n))
			return false;
	}
	return true;
}

/*
 * Returns the constraint's index, and sets how the constraint takes NULLs.
 * InvalidOid: the constraint is gone.
 */
static Oid
constraint_index(Oid constraint, bool *match_full)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
	Oid			index;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	index = ((Form_pg_constraint) GETSTRUCT(tuple))->conindid;
	*match_full = ((Form_pg_constraint) GETSTRUCT(tuple))->confmatchtype == FKCONSTR_MATCH_FULL;
	ReleaseSysCache(tuple);
	return index;
}

/*
 * Opens the parent and its index, if both locks are free; returns NULL
 * otherwise.
 *
 * The parent is locked first. REINDEX CONCURRENTLY drops an index only when no
 * session holds such a lock that may have read the index's name before.
 */
static ParentLookup *
open_relations(const ForeignKeyCacheInfo *info)
{
	ParentLookup *lookup;
	bool		match_full;
	Oid			index;

	if (!ConditionalLockRelationOid(info->confrelid, RowShareLock))
		return NULL;
	index = constraint_index(info->conoid, &match_full);
	if (!OidIsValid(index) || !ConditionalLockRelationOid(index, RowShareLock))
	{
		UnlockRelationOid(info->confrelid, RowShareLock);
		return NULL;
	}
	lookup = palloc0(sizeof(ParentLookup));
	lookup->parent = table_open(info->confrelid, NoLock);
	lookup->index = index_open(index, NoLock);
	lookup->natts = info->nkeys;
	lookup->match_full = match_full;
	return lookup;
}

/*
 * Prepares the lookup for a foreign key of the table that `desc` describes.
 * Returns NULL if only the trigger can look up its values.
 */
ParentLookup *
sluice_parent_lookup_open(const ForeignKeyCacheInfo *info, TupleDesc desc)
{
	ParentLookup *lookup;

	/*
	 * A key of the table to itself: rows of this COPY are not visible here
	 * yet.
	 */
	if (info->conrelid == info->confrelid)
		return NULL;
	lookup = open_relations(info);
	if (lookup == NULL)
		return NULL;
	if (!is_plain(lookup->parent, lookup->index, info->nkeys) || !owner_may_look(lookup->parent) ||
		!prepare_keys(lookup, info, desc))
	{
		sluice_parent_lookup_close(lookup);
		return NULL;
	}
	lookup->slot = table_slot_create(lookup->parent, NULL);
	return lookup;
}

/*
 * Ends the scan, if there is one. It pins a block of the parent, for which VACUUM would wait, and
 * holds back a snapshot. So neither may last while the COPY waits for its client.
 */
void
sluice_parent_lookup_rest(ParentLookup *lookup)
{
	if (lookup->scan == NULL)
		return;
	index_endscan(lookup->scan);
	UnregisterSnapshot(lookup->snapshot);
	lookup->scan = NULL;
}

/* Begins another scan, with a snapshot that sees what is committed by now. */
static void
renew(ParentLookup *lookup)
{
	sluice_parent_lookup_rest(lookup);
	lookup->snapshot = RegisterSnapshot(IsolationUsesXactSnapshot() ? GetTransactionSnapshot() : GetLatestSnapshot());
	lookup->scan = compat_index_beginscan(lookup->parent, lookup->index, lookup->snapshot, lookup->natts);
	lookup->looked = 0;
}

/*
 * Locks the row in the slot. Returns whether it stays the parent until this
 * transaction ends.
 */
static bool
lock_parent(ParentLookup *lookup)
{
	ItemPointerData tid = lookup->slot->tts_tid;
	TM_FailureData failure;

	return table_tuple_lock(lookup->parent, &tid, lookup->snapshot, lookup->slot,
							GetCurrentCommandId(false), LockTupleKeyShare, LockWaitSkip,
							TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS, &failure) == TM_Ok;
}

/*
 * Returns true if the row of the child has its parent, which is locked now, or
 * needs none. False: the trigger must look.
 */
bool
sluice_parent_lookup_lock(ParentLookup *lookup, const TupleTableSlot *child)
{
	int			nulls = 0;
	bool		locked;

	for (int i = 0; i < lookup->natts; i++)
	{
		nulls += child->tts_isnull[lookup->columns[i] - 1];
		lookup->keys[i].sk_argument = child->tts_values[lookup->columns[i] - 1];
	}
	if (nulls > 0)
		return nulls == lookup->natts || !lookup->match_full;
	if (lookup->scan == NULL || lookup->looked == VALUES_BY_SNAPSHOT)
		renew(lookup);
	lookup->looked++;
	index_rescan(lookup->scan, lookup->keys, lookup->natts, NULL, 0);
	locked = index_getnext_slot(lookup->scan, ForwardScanDirection, lookup->slot) && lock_parent(lookup);
	ExecClearTuple(lookup->slot);
	lookup->locked += locked;
	lookup->left += !locked;
	return locked;
}

/* Ends the lookup. The locks are kept until the end of the transaction. */
void
sluice_parent_lookup_close(ParentLookup *lookup)
{
	sluice_parent_lookup_rest(lookup);
	if (lookup->slot)
	{
		elog(DEBUG1, "pgsluice: parents in \"%s\": " UINT64_FORMAT " locked, " UINT64_FORMAT " left to the trigger",
			 RelationGetRelationName(lookup->parent), lookup->locked, lookup->left);
		ExecDropSingleTupleTableSlot(lookup->slot);
	}
	index_close(lookup->index, NoLock);
	table_close(lookup->parent, NoLock);
	pfree(lookup);
}
