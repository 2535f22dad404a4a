/*
 * Indexes of other access methods than btree whose entries wait: GIN
 * (gin_merge.c) and hash (hash_merge.c).
 *
 * A row's predicate and expressions are evaluated, and its entries extracted,
 * at the point at which stock COPY does it: after the entries of the indexes
 * before this one, and before those of the indexes after it. So an error is
 * the one that stock COPY raises, for the same row. Only the insertion of the
 * entries comes later, and that cannot fail because of the data of a row: see
 * sorted_insert.c, which also says why no one can miss an entry.
 *
 * An error of a predicate or of an expression does not name its index, and
 * first_refusal.c must know it. So if an index of the table has one, the
 * executor inserts each row into one index at a time.
 */
#include "index/build.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "compat/gin_hash.h"
#include "executor/executor.h"

/*
 * In a GIN index with a list of pending entries, the entries of this many rows
 * go to the list first: for a small load that is cheapest.
 */
#define FIRST_ROWS 10000

/* An index whose entries wait. */
typedef struct OtherMethod
{
	Relation	index;
	IndexInfo  *info;
	IndexUse   *taken;
	uint64		pending;		/* rows whose entries still go to the list of pending entries */
	GinMerge   *gin;			/* this one or the next is set */
	HashMerge  *hash;
} OtherMethod;

struct OtherMethods
{
	int			count;
	OtherMethod *methods;		/* in the order in which stock COPY inserts into them */
	const ResultRelInfo *all;	/* the table's indexes, before some were taken out */
	Oid		   *current;		/* a row is being inserted into this index; InvalidOid: into none */
};

/*
 * Takes the indexes whose entries wait by the rule, each with `memory` bytes.
 * Returns NULL if there are none, and no index of the table has a predicate or
 * an expression. `current` shows into which index a row is being inserted.
 */
OtherMethods *
sluice_other_methods_open(ResultRelInfo *all, const IndexStrategy *ways, IndexUse **taken, Size memory,
						  Oid *current)
{
	OtherMethods *others = palloc0(sizeof(OtherMethods));
	bool		may_fail = false;

	others->all = all;
	others->current = current;
	others->methods = palloc0(sizeof(OtherMethod) * all->ri_NumIndices);
	for (int i = 0; i < all->ri_NumIndices; i++)
	{
		OtherMethod *method = &others->methods[others->count];
		Relation	index = all->ri_IndexRelationDescs[i];

		may_fail |= all->ri_IndexRelationInfo[i]->ii_Expressions != NIL ||
			all->ri_IndexRelationInfo[i]->ii_Predicate != NIL;
		if (ways[i] != SLUICE_INDEX_SORTED || index->rd_rel->relam == BTREE_AM_OID)
			continue;
		others->count++;
		method->index = index;
		method->info = all->ri_IndexRelationInfo[i];
		method->taken = taken[i];
		if (index->rd_rel->relam == GIN_AM_OID)
		{
			method->gin = sluice_gin_merge_open(index, memory);
			method->pending = GinGetUseFastUpdate(index) ? sluice_threshold(FIRST_ROWS) : 0;
		}
		else
			method->hash = sluice_hash_merge_open(all->ri_RelationDesc, index, memory);
	}
	return others->count > 0 || may_fail ? others : NULL;
}

/* Makes the row's entries wait, if it is to have any in the index. */
static void
add_row(OtherMethod *method, Relation heap, TupleTableSlot *slot, EState *estate)
{
	IndexInfo  *info = method->info;
	ExprContext *context = GetPerTupleExprContext(estate);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	context->ecxt_scantuple = slot;
	method->taken->rows[method->pending > 0 ? SLUICE_INDEX_ROWS : SLUICE_INDEX_SORTED]++;
	if (info->ii_Predicate != NIL)
	{
		/*
		 * The executor does the same, and keeps the state in the same place.
		 */
		if (info->ii_PredicateState == NULL)
			info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, estate);
		if (!ExecQual(info->ii_PredicateState, context))
			return;
	}
	FormIndexDatum(info, slot, estate, values, isnull);
	if (method->pending > 0)
	{
		method->pending--;
		index_insert(method->index, values, isnull, &slot->tts_tid, heap, UNIQUE_CHECK_NO, false, info);
	}
	else if (method->gin)
		sluice_gin_merge_add(method->gin, &slot->tts_tid, values, isnull);
	else
		sluice_hash_merge_add(method->hash, &slot->tts_tid, values[0], isnull[0]);
}

/* Inserts a row, by the executor, into one index of its list. */
static List *
insert_into(ResultRelInfo *rri, int at, TupleTableSlot *slot, EState *estate)
{
	Relation   *relations = rri->ri_IndexRelationDescs;
	IndexInfo **infos = rri->ri_IndexRelationInfo;
	int			count = rri->ri_NumIndices;
	List	   *recheck;

	rri->ri_IndexRelationDescs += at;
	rri->ri_IndexRelationInfo += at;
	rri->ri_NumIndices = 1;
	recheck = compat_insert_index_tuples(rri, slot, estate);
	rri->ri_IndexRelationDescs = relations;
	rri->ri_IndexRelationInfo = infos;
	rri->ri_NumIndices = count;
	return recheck;
}

/*
 * The row has just been inserted into the table. Its entries go to all indexes
 * that are left in `rri` and to ours, in the table's order of indexes. Returns
 * the indexes that must be checked again at the end.
 */
List *
sluice_other_methods_row(OtherMethods *others, ResultRelInfo *rri, TupleTableSlot *slot, EState *estate)
{
	List	   *recheck = NIL;
	int			next = 0;		/* the first index of rri that has no entry yet */
	int			ours = 0;

	for (int i = 0; i < others->all->ri_NumIndices; i++)
	{
		Relation	index = others->all->ri_IndexRelationDescs[i];

		*others->current = RelationGetRelid(index);
		if (next < rri->ri_NumIndices && rri->ri_IndexRelationDescs[next] == index)
			recheck = list_concat(recheck, insert_into(rri, next++, slot, estate));
		else if (ours < others->count && others->methods[ours].index == index)
			add_row(&others->methods[ours++], rri->ri_RelationDesc, slot, estate);
	}
	*others->current = InvalidOid;
	return recheck;
}

/* Inserts all waiting entries. */
void
sluice_other_methods_flush(OtherMethods *others)
{
	for (int i = 0; i < others->count; i++)
	{
		if (others->methods[i].gin)
			sluice_gin_merge_flush(others->methods[i].gin);
		else
			sluice_hash_merge_flush(others->methods[i].hash);
	}
}
