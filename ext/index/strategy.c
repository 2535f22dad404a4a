/*
 * Decides how the entries of a COPY's rows get into each of the table's
 * indexes: in which way, and why not in a faster one. Only this file decides
 * that; other files carry it out. sluice_index_way() is pure: it looks at the
 * catalogs and the administrator's switches, not at the data. So the function
 * pgsluice.index_ways() can show its answer before a load.
 *
 *    build    only this transaction can reach the table: the index is built
 *             from all rows at the end (deferred.c)
 *    merge    the same for a table that had rows, once it has grown enough
 *             (merge.c)
 *    leaves   unique, keys above all others: whole leaves after the last one
 *             (unique_append.c); other entries as `sorted`. Also where only
 *             this transaction can reach the table, instead of the only
 *             `build`; other keys then make it one (deferred.c)
 *    sorted   many entries at a time, in the index's order (sorted_insert.c):
 *             those of a leaf together (btree_merge.c); those of a page of a
 *             GIN or hash index together (gin_merge.c, hash_merge.c)
 *    row      with each row, by the executor, as in stock COPY
 *
 * Every reason is a sentence that a user can act on. The view last_copy shows
 * it next to the way.
 *
 * Only the server's own functions compare keys here. Workers could not call
 * those of users safely, and these may fail. Functions of extensions count as
 * users'.
 */
#include "index/build.h"

#include "access/relation.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_type_d.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(pgsluice_index_ways);

/*
 * Whether the operator class compares values of its type by the operator
 * classes of their parts.
 */
static bool
compares_by_parts(Oid type)
{
	return type == RECORDOID || type == ANYARRAYOID || type == ANYRANGEOID || type == ANYMULTIRANGEOID;
}

/*
 * Whether only the server's own functions compare keys: workers may call
 * those, and they do not fail. A type that is not the server's own may have
 * parts that other functions compare.
 */
static bool
server_compares(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		Oid			type = TupleDescAttr(RelationGetDescr(index), i)->atttypid;

		if (index_getprocid(index, i + 1, BTORDER_PROC) >= FirstNormalObjectId ||
			(compares_by_parts(index->rd_opcintype[i]) && getBaseType(type) >= FirstNormalObjectId))
			return false;
	}
	return true;
}

/*
 * Returns why the core cannot sort the entries in the order of the index, or
 * NULL.
 */
static const char *
why_not_sorted(Relation heap, Relation index, IndexInfo *info,
			   SluiceIndexAttribute *attributes)
{
	if (index->rd_index->indisexclusion)
		return "it belongs to an exclusion constraint";
	if (!index->rd_index->indisready)
		return "the index is not ready";
	if (info->ii_Expressions != NIL)
		return "it has expressions";
	if (info->ii_Predicate != NIL)
		return "it is partial";
	if (!server_compares(index))
		return "functions that are not PostgreSQL's own may compare its keys";
	return sluice_index_shape(heap, index, false, attributes);
}

/*
 * Returns why the index cannot be built when all rows are in, or NULL. The
 * table is one that only this transaction can reach.
 */
static const char *
why_not_built(Relation heap, Relation index, IndexInfo *info)
{
	if (!sluice_allowed.index_build)
		return SLUICE_NO_INDEX_BUILD;
	if (!index->rd_index->indisvalid || index->rd_index->indcheckxmin)
		return "the index is not valid for every snapshot";
	if (!index->rd_index->indimmediate)
		return "its constraint is deferrable";
	if (!sluice_index_scans_pages(heap, info))
		return "a column is in it twice";
	if (index->rd_refcnt != 1)
		return "a cursor or another command has it open";
	return NULL;
}

/*
 * Returns why entries of a unique index cannot wait to be merged into its
 * leaves, or NULL. Their keys are checked when they are merged.
 */
static const char *
why_not_waiting(Relation index)
{
	if (!sluice_allowed.index_leaf_merge)
		return SLUICE_NO_INDEX_LEAF_MERGE;
	if (!sluice_allowed.unique_leaf_merge)
		return SLUICE_NO_UNIQUE_LEAF_MERGE;
	if (!index->rd_index->indisvalid)
		return "the index is not valid";
	if (!index->rd_index->indimmediate)
		return "its constraint is deferrable";
	if (!RelationNeedsWAL(index))
		return "the index is not logged";
	return NULL;
}

/* Whether entries of a unique index that the core can sort may wait. */
bool
sluice_index_unique_waits(Relation index)
{
	return why_not_waiting(index) == NULL;
}

/* Returns why no leaves can be appended after its last one, or NULL. */
static const char *
why_not_leaves(Relation index, const SluiceIndexAttribute *attributes)
{
	if (!sluice_allowed.index_append)
		return SLUICE_NO_INDEX_APPEND;
	if (!index->rd_index->indisunique && !sluice_allowed.index_leaf_merge)
		return SLUICE_NO_INDEX_LEAF_MERGE;
	if (!index->rd_index->indisunique)
		return "whole leaves are only added after its last key";
	if (!index->rd_index->indisvalid)
		return "the index is not valid";
	if (!index->rd_index->indimmediate)
		return "its constraint is deferrable";
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		if (attributes[i].order == SLUICE_ORDER_RANKED)
			return "the order of a column is not that of bytes";
	}
	return NULL;
}

/*
 * Returns why the entries of an index of another access method go in with
 * their rows, or NULL.
 */
static const char *
why_not_other_method(Relation index, bool is_private)
{
	Oid			method = index->rd_rel->relam;

	if (index->rd_index->indisexclusion)
		return "it belongs to an exclusion constraint";
	if (is_private || (method != GIN_AM_OID && method != HASH_AM_OID))
		return "the access method is not btree";
	if (method == GIN_AM_OID && !sluice_allowed.gin_merge)
		return SLUICE_NO_GIN_MERGE;
	if (method == HASH_AM_OID && !sluice_allowed.hash_merge)
		return SLUICE_NO_HASH_MERGE;
	if (!index->rd_index->indisready)
		return "the index is not ready";
	if (method == GIN_AM_OID && !sluice_gin_compares(index))
		return "functions that are not PostgreSQL's own may compare its keys";
	return NULL;
}

/*
 * Returns the fastest way for the index, and describes its attributes for the
 * core. Sets *because to the reason why a faster way is not possible, or to
 * NULL. This is the rule: it holds for a load that is long enough for the way.
 * In a private table, see also sluice_index_way_beside().
 */
IndexStrategy
sluice_index_way(Relation heap, Relation index, IndexInfo *info, bool is_private,
				 SluiceIndexAttribute *attributes, const char **because)
{
	if (index->rd_rel->relam != BTREE_AM_OID)
	{
		*because = why_not_other_method(index, is_private);
		return *because ? SLUICE_INDEX_ROWS : SLUICE_INDEX_SORTED;
	}
	*because = why_not_sorted(heap, index, info, attributes);
	if (*because)
		return SLUICE_INDEX_ROWS;
	if (is_private)
	{
		*because = why_not_built(heap, index, info);
		if (*because)
			return SLUICE_INDEX_ROWS;
		/* A long key might not fit, and then the row is rejected when all are in. */
		return why_not_leaves(index, attributes) == NULL && !sluice_index_has_long_keys(index) ?
			SLUICE_INDEX_LEAVES : SLUICE_INDEX_BUILD;
	}
	*because = why_not_leaves(index, attributes);
	if (*because == NULL)
		return SLUICE_INDEX_LEAVES;
	return index->rd_index->indisunique && !sluice_index_unique_waits(index) ?
		SLUICE_INDEX_ROWS : SLUICE_INDEX_SORTED;
}

/* Returns how many indexes of a private table can wait for the end. */
static int
count_waiting(Relation heap, List *indexes)
{
	int			waiting = 0;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
		const char *because;

		waiting += sluice_index_way(heap, index, BuildIndexInfo(index), true, attributes,
									&because) != SLUICE_INDEX_ROWS;
		index_close(index, AccessShareLock);
	}
	return waiting;
}

/*
 * Shows the rule for each index of a table, for a COPY that has the table for
 * itself or for one that does not. Indexes of a partitioned table always count
 * as indexes that other sessions can reach.
 */
Datum
pgsluice_index_ways(PG_FUNCTION_ARGS)
{
	Relation	heap = relation_open(PG_GETARG_OID(0), AccessShareLock);
	bool		is_private = PG_GETARG_BOOL(1) && heap->rd_rel->relkind != RELKIND_PARTITIONED_TABLE;
	ReturnSetInfo *rsinfo = sluice_begin_rows(fcinfo, 3);
	List	   *indexes = RelationGetIndexList(heap);
	int			waiting = is_private ? count_waiting(heap, indexes) : 0;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
		IndexStrategy way;
		const char *because;
		Datum		values[3];
		bool		nulls[3] = {0};

		way = sluice_index_way(heap, index, BuildIndexInfo(index), is_private, attributes,
							   &because);
		way = sluice_index_way_beside(way, waiting);
		values[0] = ObjectIdGetDatum(RelationGetRelid(index));
		values[1] = CStringGetTextDatum(sluice_index_way_names[way]);
		values[2] = because ? CStringGetTextDatum(because) : (Datum) 0;
		nulls[2] = because == NULL;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		index_close(index, AccessShareLock);
	}
	relation_close(heap, AccessShareLock);
	return (Datum) 0;
}
