/*
 * The interface of this room to the others: B-tree builds, and the indexes of
 * a table that a COPY fills. See README.md.
 *
 * A COPY opens an IndexWriter for its table, or for each partition, before the
 * first row. It hands over rows as soon as they are in the table, and calls
 * sluice_index_finish() after the last one. Between two calls the writer may
 * hold entries back, but never past the end of the command.
 * sluice_index_needs() says what it needs of the following rows; that may grow
 * with each hand-over.
 *
 * After an error nothing has to be done: everything that the writer has is in
 * memory contexts and resource owners of the statement, and what it changed on
 * disk is undone with the transaction or the subtransaction.
 */
#ifndef PGSLUICE_INDEX_H
#define PGSLUICE_INDEX_H

#include "base/pgsluice.h"

/* index/ambuild.c */
extern void sluice_index_init(void);
extern void sluice_index_forget(void);
extern Oid	sluice_index_before_utility(const Node *stmt);
extern void sluice_index_after_utility(Oid previous);

/*
 * A row that is in the table, with its TID. `tuple` is the copy that was
 * formed.
 */
typedef struct PlacedRow
{
	ItemPointerData tid;
	HeapTupleHeader tuple;
	uint32		len;
	uint64		line;
} PlacedRow;

/* Rows that are in the table, but not yet in any of its indexes. */
typedef struct NewRows
{
	PlacedRow  *placed;			/* in the order of the table */
	int			count;
	TupleTableSlot **slots;		/* one for each row; or NULL: use `slot` and `store` */
	TupleTableSlot *slot;		/* holds one row at a time */
	TupleTableSlot *(*store) (TupleTableSlot *slot, const PlacedRow *row);	/* stores a row in `slot` */
	bool		many;			/* there are enough rows for sorting their entries to pay */
} NewRows;

/* The indexes of a table that a COPY fills. */
typedef struct IndexWriter IndexWriter;

/* What the writer needs of the following rows. */
typedef enum IndexNeeds
{
	SLUICE_INDEX_NEEDS_NOTHING, /* they need not be handed over */
	SLUICE_INDEX_NEEDS_ROWS,
	SLUICE_INDEX_NEEDS_ORDER	/* rows, each of them after all others in the table */
} IndexNeeds;

/* writer.c */
extern IndexWriter *sluice_index_open(ResultRelInfo *rri, EState *estate, CopyFromState cstate,
									  CommandId cid, SluiceDuplicates *duplicates,
									  const char *never);
extern IndexNeeds sluice_index_needs(const IndexWriter *writer);
extern void sluice_index_rows(IndexWriter *writer, const NewRows *rows);
extern void sluice_index_finish(IndexWriter *writer, int workers, int most);
extern void sluice_index_explain(const IndexWriter *writer, ResultRelInfo *rri, uint64 rows);
extern void sluice_index_close(IndexWriter *writer);

/* first_refusal.c */
extern void sluice_index_refuse_earlier(CopyFromState cstate);

/* What the last COPY did with the indexes of its table. */
typedef struct IndexUses IndexUses;

/* index_report.c */
extern void sluice_index_uses_reset(void);
extern IndexUses *sluice_index_uses_begin_nested(void);
extern void sluice_index_uses_end_nested(IndexUses *outer);
extern void sluice_index_uses_small(Relation rel, uint64 rows);
extern Datum sluice_index_uses_json(void);

/* dedupe.c */
extern SluiceSpiInsert *sluice_lost_rows_open(const char *name, Relation target);
extern void sluice_keep_lost_row(SluiceDuplicates *duplicates, ResultRelInfo *rri,
								 EState *estate, Relation arbiter, IndexInfo *info,
								 TupleTableSlot *lost, uint64 line);

#endif							/* PGSLUICE_INDEX_H */
