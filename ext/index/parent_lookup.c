/*
 * The parents of a foreign key's values, found by their index and locked FOR
 * KEY SHARE, without the query that the server's trigger runs for each.
 *
 * This only ever proves that a value has its parent. Whatever cannot be proven
 * here at once is left to the trigger, which then finds, waits, or refuses as
 * in stock COPY: a parent that is not there or not yet visible, one that
 * somebody has updated, deleted or locked meanwhile.
 *
 * Why a value that was proven needs no trigger:
 *
 *   - The row that was found is visible to a snapshot that the trigger could
 *     have had: the transaction's from REPEATABLE READ on, else one that was
 *     taken while the COPY runs. It is found by the operator and in the index
 *     of the constraint.
 *   - It is locked as the trigger locks it (heap_lock_tuple(), FOR KEY SHARE),
 *     and table_tuple_lock() said TM_Ok: this version is the latest one, or all
 *     that came after it have the same key and are locked too. Nobody can delete
 *     it or change its key before this transaction has ended.
 *   - This transaction does not do so either: foreign_keys.c says why nothing
 *     runs between that changes rows.
 *   - What the trigger would have refused first is looked at with the first
 *     row: rights of the parent's owner, as whom it runs; row-level security
 *     and partitioned parents are left to it.
 *
 * NOBODY WAITS HERE: locks on the parent and its index are taken if they are
 * free, and so are those on rows. The trigger comes at the end of the
 * statement; what it would wait for then, it waits for.
 *
 * Predicate locks of a SERIALIZABLE transaction are taken by the index scan, as
 * by that of the trigger.
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

/* So many values are looked up by one snapshot of READ COMMITTED. */
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
	int			looked;			/* values, by this snapshot */
	TupleTableSlot *slot;
	uint64		locked;			/* parents */
	uint64		left;			/* values, to the trigger */
};

/* Whether the trigger's query would be allowed to run, as the parent's owner. */
static bool
owner_may_look(Relation parent)
{
	Oid			owner = parent->rd_rel->relowner;

	return compat_may_use_schema(RelationGetNamespace(parent), owner) &&
		pg_class_aclcheck(RelationGetRelid(parent), owner, ACL_SELECT) == ACLCHECK_OK &&
		pg_class_aclcheck(RelationGetRelid(parent), owner, ACL_UPDATE) == ACLCHECK_OK;
}

/* Whether it is an ordinary table with an index that can be looked into. */
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
 * Prepares the search by the index's column i, which is column n of the
 * constraint. False: its operator is none of the index, or takes the value only
 * after it was converted; or the index has another collation than the column,
 * by which the trigger's query compares.
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

/* The same for all columns, each of which is in the constraint once. */
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

/* The constraint's index, and how it takes NULLs. InvalidOid: the constraint is gone. */
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
 * The parent and its index, locked if that can be had without waiting; or NULL.
 *
 * The parent's lock comes first: REINDEX CONCURRENTLY drops an index only when
 * nobody has such a lock who may have read its name before.
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
 * For a foreign key of the table that `desc` describes, or NULL: then the
 * trigger looks up its values.
 */
ParentLookup *
sluice_parent_lookup_open(const ForeignKeyCacheInfo *info, TupleDesc desc)
{
	ParentLookup *lookup;

	/* Rows of this COPY are no parents yet. */
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

/* Another scan, with a snapshot that sees what is committed by now. */
static void
renew(ParentLookup *lookup)
{
	if (lookup->scan)
	{
		index_endscan(lookup->scan);
		UnregisterSnapshot(lookup->snapshot);
	}
	lookup->snapshot = RegisterSnapshot(IsolationUsesXactSnapshot() ? GetTransactionSnapshot() : GetLatestSnapshot());
	lookup->scan = compat_index_beginscan(lookup->parent, lookup->index, lookup->snapshot, lookup->natts);
	lookup->looked = 0;
}

/* Whether the row in the slot is the parent for as long as this transaction runs. */
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
 * Whether the row of the child has its parent, which is locked now, or needs
 * none. False: the trigger is to look.
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

/* The locks stay to the end of the transaction. */
void
sluice_parent_lookup_close(ParentLookup *lookup)
{
	if (lookup->scan)
	{
		index_endscan(lookup->scan);
		UnregisterSnapshot(lookup->snapshot);
	}
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
