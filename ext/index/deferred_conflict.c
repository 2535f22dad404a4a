/*
 * A key that is there twice, found when the indexes of a COPY are built at its
 * end: the row that stock COPY would have refused.
 */
#include "index/build.h"

#include "access/genam.h"

/* Stock COPY's error for the row that has a key again. */
void
sluice_index_raise_conflict(SluiceIndexLoad *load, const SluiceIndexBuilt *built)
{
	Relation	index = index_open(built->index, AccessShareLock);
	IndexTuple	tuple = (IndexTuple) built->tuple;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		line = sluice_index_line_of(load, &tuple->t_tid);
	uint64		earlier = sluice_index_line_of(load, (ItemPointer) &built->earlier);
	char	   *key;

	load->cstate->line_buf_valid = false;
	load->cstate->cur_lineno = line;
	index_deform_tuple(tuple, RelationGetDescr(index), values, isnull);
	key = BuildIndexValueDescription(index, values, isnull);
	/* The words are those of _bt_check_unique(). */
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					RelationGetRelationName(index)),
			 key ? errdetail("Key %s already exists.", key) : 0,
			 line && earlier ? errhint("The key is first in line " UINT64_FORMAT " and again in line " UINT64_FORMAT ".",
									   earlier, line) : 0,
			 errtableconstraint(load->rri->ri_RelationDesc,
								RelationGetRelationName(index))));
}

/*
 * The one that has the first row with a key again, or NULL; of several that have
 * the same row, the one that stock COPY would have come to first.
 */
SluiceIndexBuilt *
sluice_index_first_conflict(SluiceIndexBuilt *built, int count)
{
	SluiceIndexBuilt *first = NULL;

	for (int i = 0; i < count; i++)
	{
		int			order = 0;

		if (!built[i].conflict)
			continue;
		if (first)
			order = ItemPointerCompare(&((IndexTuple) built[i].tuple)->t_tid,
									   &((IndexTuple) first->tuple)->t_tid);
		if (first == NULL || order < 0 || (order == 0 && built[i].index < first->index))
			first = &built[i];
	}
	return first;
}
