/*
 * Reports what the last COPY did with each index of its table: a column of the
 * view pgsluice.last_copy.
 *
 * The report is kept in a memory context of the session, because the view is
 * read after the COPY's own memory is gone. A COPY that runs inside another
 * one (in a function that the outer one calls) gets a separate list, and the
 * outer list is restored afterwards (pgsluice.c). If many small COPYs go into
 * one table, the names are listed only once: as long as nothing was
 * invalidated in the relation cache, the indexes are the same.
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

struct IndexUses
{
	MemoryContext context;		/* of this struct and all that it points to */
	List	   *list;			/* an IndexUse for each index */
	Oid			small;			/* the table, if the COPY was a small one */
	uint64		small_changes;		/* sluice_relation_changes when the indexes were listed */
};

/*
 * The uses of the last COPY; NULL if there was none yet. They outlive the
 * statement, because a view shows them. No decision depends on them.
 */
static IndexUses *uses = NULL;

/* Starts an empty list for a new COPY, or forgets the last COPY. */
void
sluice_index_uses_reset(void)
{
	MemoryContext context = uses ? uses->context : AllocSetContextCreate(TopMemoryContext, "pgsluice last COPY's indexes",
																		 ALLOCSET_SMALL_SIZES);

	uses = NULL;
	MemoryContextReset(context);
	uses = MemoryContextAllocZero(context, sizeof(IndexUses));
	uses->context = context;
}

/*
 * A COPY begins within another one. Sets the outer uses aside; the next
 * function restores them, also after an error.
 */
IndexUses *
sluice_index_uses_begin_nested(void)
{
	IndexUses  *outer = uses;

	uses = NULL;
	return outer;
}

void
sluice_index_uses_end_nested(IndexUses *outer)
{
	if (uses)
		MemoryContextDelete(uses->context);
	uses = outer;
}

/*
 * Returns the entry of an index, or NULL if it has none yet. Tables have few
 * indexes.
 */
static IndexUse *
find(Oid index)
{
	ListCell   *lc;

	foreach(lc, uses->list)
	{
		IndexUse   *use = lfirst(lc);

		if (use->index == index)
			return use;
	}
	return NULL;
}

/*
 * Notes the way of an index in the session's memory. The name is copied,
 * because the index may be dropped before the view is read.
 */
static IndexUse *
take(Oid index, const char *name, IndexStrategy way, const char *because)
{
	MemoryContext old = MemoryContextSwitchTo(uses->context);
	IndexUse   *use = find(index);

	if (use == NULL)
	{
		use = palloc0(sizeof(IndexUse));
		use->index = index;
		strlcpy(NameStr(use->name), name, NAMEDATALEN);
		uses->list = lappend(uses->list, use);
	}
	use->way = way;
	/* This is noted again for each batch of a partition. */
	if (use->because == NULL || because == NULL || strcmp(use->because, because) != 0)
		use->because = because ? pstrdup(because) : NULL;
	MemoryContextSwitchTo(old);
	return use;
}

/*
 * Notes the way that the COPY uses for an index from now on. `because`: why it
 * uses no faster one, or NULL.
 */
IndexUse *
sluice_index_take(Relation index, IndexStrategy way, const char *because)
{
	return take(RelationGetRelid(index), RelationGetRelationName(index), way, because);
}

/*
 * The same for the index of a partition. It counts for the index of the
 * partitioned table. An index that belongs to the partition alone is not
 * shown.
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

/*
 * Notes for all indexes of the relation that the load is small; counts no rows
 * yet.
 */
static void
take_small(Relation rel)
{
	uint64		news = sluice_relation_changes;
	ListCell   *lc;

	sluice_index_uses_reset();
	foreach(lc, RelationGetIndexList(rel))
	{
		char	   *name = get_rel_name(lfirst_oid(lc));

		if (name != NULL)
			take(lfirst_oid(lc), name, SLUICE_INDEX_ROWS, "the load is small");
	}
	uses->small = RelationGetRelid(rel);
	uses->small_changes = news;
}

/*
 * Notes a small COPY, whose rows stock COPY's own loop has inserted. If such a
 * COPY follows another one into the same table, its indexes are the same.
 */
void
sluice_index_uses_small(Relation rel, uint64 rows)
{
	ListCell   *lc;

	if (uses == NULL || uses->small != RelationGetRelid(rel) || uses->small_changes != sluice_relation_changes)
		take_small(rel);
	foreach(lc, uses->list)
		((IndexUse *) lfirst(lc))->rows[SLUICE_INDEX_ROWS] = rows;
}

/*
 * All rows are in. An index without an entry so far got an index entry with
 * each row. Rows that no way has counted so far count as `build` if that is
 * the way of the index, else as `row`.
 */
void
sluice_index_uses_close(ResultRelInfo *rri, uint64 rows, const char *because)
{
	ListCell   *lc;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		if (find(RelationGetRelid(rri->ri_IndexRelationDescs[i])) == NULL)
			sluice_index_take(rri->ri_IndexRelationDescs[i], SLUICE_INDEX_ROWS, because);
	}
	foreach(lc, uses->list)
	{
		IndexUse   *use = lfirst(lc);
		uint64		left = rows;

		for (int way = 0; way < SLUICE_INDEX_WAYS; way++)
			left -= use->rows[way];
		use->rows[use->way == SLUICE_INDEX_BUILD ? SLUICE_INDEX_BUILD : SLUICE_INDEX_ROWS] += left;
	}
}

/* Appends one index as a JSON object. */
static void
show(StringInfo json, const IndexUse *use)
{
	const char *comma = "";

	appendStringInfoString(json, "{\"index\": ");
	escape_json(json, NameStr(use->name));
	appendStringInfo(json, ", \"way\": \"%s\", \"rows\": {", sluice_index_way_names[use->way]);
	for (int way = 0; way < SLUICE_INDEX_WAYS; way++)
	{
		if (use->rows[way] == 0)
			continue;
		appendStringInfo(json, "%s\"%s\": " UINT64_FORMAT, comma, sluice_index_way_names[way],
						 use->rows[way]);
		comma = ", ";
	}
	appendStringInfoString(json, "}, \"because\": ");
	if (use->because)
		escape_json(json, use->because);
	else
		appendStringInfoString(json, "null");
	appendStringInfoChar(json, '}');
}

/* Returns the value of the column: a JSON array of objects. */
Datum
sluice_index_uses_json(void)
{
	StringInfoData json;
	ListCell   *lc;

	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	foreach(lc, uses ? uses->list : NIL)
	{
		if (lc != list_head(uses->list))
			appendStringInfoString(&json, ", ");
		show(&json, lfirst(lc));
	}
	appendStringInfoChar(&json, ']');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}
