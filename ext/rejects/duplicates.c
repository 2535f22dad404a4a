/*
 * COPY's options on_duplicate, on_duplicate_index and duplicates_to, as the
 * statement gives them: which index detects duplicates, which rights are
 * needed, and what cannot be combined. Rows are inserted elsewhere:
 * heap/speculative_insert.c if other sessions may write, index/dedupe.c if
 * only this transaction can reach the table.
 *
 * The rights are those of INSERT … ON CONFLICT: SELECT on the columns of the
 * index, and with 'replace' UPDATE on the table.
 */
#include "rejects/rejects.h"

#include "access/genam.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/partition.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

/* Returns the unique index by which the statement detects duplicates. */
Oid
sluice_duplicates_arbiter(const SluiceStatement *s)
{
	const char *name = s->options.on_duplicate_index;
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(s->rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (name ? strcmp(name, RelationGetRelationName(index)) == 0 : form->indisprimary)
		{
			found = RelationGetRelid(index);
			if (!form->indisunique || !form->indimmediate || !form->indisvalid)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("COPY option \"on_duplicate\" needs an index that is unique, valid and not deferrable: \"%s\"",
								RelationGetRelationName(index))));
			/*
			 * The existing row may have another key, and there may be several
			 * such rows.
			 */
			if (form->indisexclusion && s->options.on_duplicate == SLUICE_DUPLICATE_REPLACE)
				sluice_refuse_combination("on_duplicate", "'replace' and a key WITHOUT OVERLAPS");
		}
		index_close(index, NoLock);
	}
	if (OidIsValid(found))
		return found;
	if (name)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" has no index \"%s\" for COPY option \"on_duplicate_index\"",
						RelationGetRelationName(s->rel), name)));
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("COPY option \"on_duplicate\" needs a primary key, which table \"%s\" does not have",
					RelationGetRelationName(s->rel)),
			 errhint("Name a unique index by the option on_duplicate_index.")));
}

/*
 * Returns the columns that the user must be allowed to read, as for ON
 * CONFLICT. If rows of the table are kept in another one, these are all
 * columns. Their numbers are offset as in range tables.
 */
Bitmapset *
sluice_duplicates_read_columns(const SluiceStatement *s)
{
	const int	offset = -FirstLowInvalidHeapAttributeNumber;
	Bitmapset  *columns = NULL;
	Relation	index;

	if (s->options.duplicates_to && s->options.on_duplicate == SLUICE_DUPLICATE_REPLACE)
	{
		TupleDesc	desc = RelationGetDescr(s->rel);

		for (int i = 0; i < desc->natts; i++)
		{
			if (!TupleDescAttr(desc, i)->attisdropped)
				columns = bms_add_member(columns, i + 1 + offset);
		}
	}
	index = index_open(s->arbiter, AccessShareLock);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		if (index->rd_index->indkey.values[i] != 0)
			columns = bms_add_member(columns, index->rd_index->indkey.values[i] + offset);
	}
	pull_varattnos((Node *) RelationGetIndexExpressions(index), 1, &columns);
	pull_varattnos((Node *) RelationGetIndexPredicate(index), 1, &columns);
	index_close(index, NoLock);
	return columns;
}

/*
 * Called when the COPY begins. What cannot be combined is rejected before any
 * data is read.
 */
void
sluice_duplicates_open(SluiceDuplicates *duplicates, const SluiceStatement *s)
{
	TriggerDesc *triggers = s->rel->trigdesc;

	duplicates->mode = s->options.on_duplicate;
	duplicates->arbiter = s->arbiter;
	if (duplicates->mode == SLUICE_DUPLICATE_REPLACE && triggers &&
		(triggers->trig_update_new_table || triggers->trig_update_old_table))
		sluice_refuse_combination("on_duplicate", "a trigger that has a transition table of updated rows");
	if (s->options.duplicates_to)
		duplicates->lost_rows = sluice_lost_rows_open(s->options.duplicates_to, s->rel);
}
