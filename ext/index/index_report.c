/*
 * What the last COPY did with each index of its table: a column of the view
 * pgsluice.last_copy.
 *
 * It is kept in a memory context of the session, for it is looked at after the
 * COPY's own memory is gone. A COPY that runs inside of another one (a
 * function that the first one calls) gets a separate list, and the outer one's
 * is put back afterwards (pgsluice.c). Of many small COPYs into one table the
 * names are listed once: as long as nothing was invalidated in the relation
 * cache, the indexes are the same.
 */
#include "index/build.h"

#include "catalog/partition.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

const char *const sluice_index_way_names[SLUICE_INDEX_WAYS] = {
	[SLUICE_INDEX_ROWS] = "row",
	[SLUICE_INDEX_SORTED] = "sorted",
	[SLUICE_INDEX_LEAF_MERGE] = "leaf_merge",
	[SLUICE_INDEX_LEAVES] = "leaves",
	[SLUICE_INDEX_MERGE] = "merge",
	[SLUICE_INDEX_BUILD] = "build",
};

SluiceIndexesTaken sluice_indexes_taken;

/* Another COPY begins. */
void
sluice_index_taken_reset(void)
{
	SluiceIndexesTaken *taken = &sluice_indexes_taken;

	if (taken->context == NULL)
		taken->context = AllocSetContextCreate(TopMemoryContext, "pgsluice last COPY's indexes",
											   ALLOCSET_SMALL_SIZES);
	MemoryContextReset(taken->context);
	taken->list = NIL;
	taken->small = InvalidOid;
}

/* What was said of an index so far, or NULL. Tables have few indexes. */
static IndexUse *
find(Oid index)
{
	ListCell   *lc;

	foreach(lc, sluice_indexes_taken.list)
	{
		IndexUse *taken = lfirst(lc);

		if (taken->index == index)
			return taken;
	}
	return NULL;
}

/*
 * Notes it in the session's memory: the names too, since the index may be
 * dropped before the view is read.
 */
static IndexUse *
take(Oid index, const char *name, IndexStrategy way, const char *because)
{
	MemoryContext old = MemoryContextSwitchTo(sluice_indexes_taken.context);
	IndexUse *taken = find(index);

	if (taken == NULL)
	{
		taken = palloc0(sizeof(IndexUse));
		taken->index = index;
		strlcpy(NameStr(taken->name), name, NAMEDATALEN);
		sluice_indexes_taken.list = lappend(sluice_indexes_taken.list, taken);
	}
	taken->way = way;
	taken->because = because ? pstrdup(because) : NULL;
	MemoryContextSwitchTo(old);
	return taken;
}

/*
 * The way that the COPY takes with an index from now on, and why not a faster
 * one, or NULL.
 */
IndexUse *
sluice_index_take(Relation index, IndexStrategy way, const char *because)
{
	return take(RelationGetRelid(index), RelationGetRelationName(index), way, because);
}

/*
 * The same for the index of a partition. It counts for the index of the
 * partitioned table; one that belongs to the partition alone is not shown.
 */
IndexUse *
sluice_index_take_of_leaf(Relation index, IndexStrategy way, const char *because)
{
	Oid			root = InvalidOid;
	char	   *name = NULL;

	if (index->rd_rel->relispartition)
	{
		root = llast_oid(get_partition_ancestors(RelationGetRelid(index)));
		name = get_rel_name(root);
	}
	return name != NULL ? take(root, name, way, because) : palloc0(sizeof(IndexUse));
}

/* Gives all indexes of the relation the same entry, without rows yet. */
static void
take_small(Relation rel)
{
	SluiceIndexesTaken *taken = &sluice_indexes_taken;
	uint64		news = sluice_relation_changes;
	ListCell   *lc;

	sluice_index_taken_reset();
	foreach(lc, RelationGetIndexList(rel))
	{
		char	   *name = get_rel_name(lfirst_oid(lc));

		if (name != NULL)
			take(lfirst_oid(lc), name, SLUICE_INDEX_ROWS, "the load is small");
	}
	taken->small = RelationGetRelid(rel);
	taken->small_news = news;
}

/*
 * Stock COPY's loop was enough for the rows. Where one such COPY follows
 * another, the indexes are the same.
 */
void
sluice_index_taken_rows(Relation rel, uint64 rows)
{
	SluiceIndexesTaken *taken = &sluice_indexes_taken;
	ListCell   *lc;

	if (taken->small != RelationGetRelid(rel) || taken->small_news != sluice_relation_changes)
		take_small(rel);
	foreach(lc, taken->list)
		((IndexUse *) lfirst(lc))->rows[SLUICE_INDEX_ROWS] = rows;
}

/*
 * All rows are in. Indexes of which nothing was said got an entry with each
 * row, and so did the rows of which nothing was said.
 */
void
sluice_index_taken_close(ResultRelInfo *rri, uint64 rows, const char *because)
{
	ListCell   *lc;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		if (find(RelationGetRelid(rri->ri_IndexRelationDescs[i])) == NULL)
			sluice_index_take(rri->ri_IndexRelationDescs[i], SLUICE_INDEX_ROWS, because);
	}
	foreach(lc, sluice_indexes_taken.list)
	{
		IndexUse *taken = lfirst(lc);
		uint64		left = rows;

		for (int way = 0; way < SLUICE_INDEX_WAYS; way++)
			left -= taken->rows[way];
		taken->rows[taken->way == SLUICE_INDEX_BUILD ? SLUICE_INDEX_BUILD : SLUICE_INDEX_ROWS] += left;
	}
}

/* One index, as a JSON object. */
static void
show(StringInfo json, const IndexUse *taken)
{
	const char *comma = "";

	appendStringInfoString(json, "{\"index\": ");
	escape_json(json, NameStr(taken->name));
	appendStringInfo(json, ", \"way\": \"%s\", \"rows\": {", sluice_index_way_names[taken->way]);
	for (int way = 0; way < SLUICE_INDEX_WAYS; way++)
	{
		if (taken->rows[way] == 0)
			continue;
		appendStringInfo(json, "%s\"%s\": " UINT64_FORMAT, comma, sluice_index_way_names[way],
						 taken->rows[way]);
		comma = ", ";
	}
	appendStringInfoString(json, "}, \"because\": ");
	if (taken->because)
		escape_json(json, taken->because);
	else
		appendStringInfoString(json, "null");
	appendStringInfoChar(json, '}');
}

/* The column's value: a JSON array of objects. */
Datum
sluice_index_taken_json(void)
{
	StringInfoData json;
	ListCell   *lc;

	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	foreach(lc, sluice_indexes_taken.list)
	{
		if (lc != list_head(sluice_indexes_taken.list))
			appendStringInfoString(&json, ", ");
		show(&json, lfirst(lc));
	}
	appendStringInfoChar(&json, ']');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}
