/*
 * B-tree builds, and the indexes of a table that a COPY fills, as the other
 * rooms see them: see README.md.
 *
 * A COPY opens an IndexWriter for its table, or for each partition, before the
 * first row; hands over rows as soon as they are in the table; and calls
 * sluice_index_finish() when all are. Between two calls the writer may hold
 * entries back, but never past the end of the command. If it says that it
 * needs order, rows must go behind one another to the table's end from then
 * on.
 *
 * After an error nothing has to be done: everything that the writer has is in
 * memory contexts and resource owners of the statement, and what it changed on
 * disk is undone with the transaction or the subtransaction.
 */
#ifndef PGSLUICE_INDEX_H
#define PGSLUICE_INDEX_H

#include "base/pgsluice.h"
/*
 * What the last build of this session was; shown by pgsluice.last_index_build.
 */
typedef struct SluiceIndexReport
{
	bool		valid;			/* there was one */
	bool		unseen;			/* it was the stock code's alone: rows and time are not known */
	Oid			relid;			/* of the index */
	const char *method;			/* sorted or stock */
	const char *scan;			/* pages or rows; kept: there was none; merged: old entries */
	int			workers;
	uint64		rows;
	uint64		spilled;		/* bytes written to temporary files */
	BlockNumber pages;
	instr_time	total;
	instr_time	scanning;		/* reading the table and sorting full runs */
	char		reason[256];	/* why the stock build did it, or empty */
	Oid			user;			/* who ran it */
} SluiceIndexReport;

extern SluiceIndexReport sluice_index_report;

/* index/ambuild.c */
extern void sluice_index_init(void);
extern void sluice_index_before_utility(const Node *stmt);

/*
 * A row that is in the table, and where; the tuple is the copy that was
 * formed.
 */
typedef struct PlacedRow
{
	ItemPointerData tid;
	HeapTupleHeader tuple;
	uint32		len;
	uint64		line;
} PlacedRow;

/* Rows that are in the table, and in none of its indexes yet. */
typedef struct NewRows
{
	PlacedRow  *placed;			/* in the order of the table */
	int			count;
	TupleTableSlot **slots;		/* of each row; or NULL, and then */
	TupleTableSlot *slot;		/* this one holds a row after the other, */
	TupleTableSlot *(*store) (TupleTableSlot *slot, const PlacedRow *row);	/* put there by this */
	bool		many;			/* so many have come that sorting their entries pays */
} NewRows;

/* The indexes of a table that a COPY fills. */
typedef struct IndexWriter IndexWriter;

/* writer.c */
extern IndexWriter *sluice_index_open(ResultRelInfo *rri, EState *estate, CopyFromState cstate,
									  CommandId cid, SluiceDuplicates *duplicates,
									  const char *never);
extern bool sluice_index_needs_order(const IndexWriter *writer);
extern bool sluice_index_wants_rows(const IndexWriter *writer);
extern void sluice_index_rows(IndexWriter *writer, const NewRows *rows);
extern void sluice_index_finish(IndexWriter *writer, int workers, int most);
extern void sluice_index_explain(const IndexWriter *writer, ResultRelInfo *rri, uint64 rows);
extern void sluice_index_close(IndexWriter *writer);

/* What the last COPY did with the indexes of its table. */
typedef struct SluiceIndexesTaken
{
	MemoryContext context;		/* of all that is known of them; NULL: there was none yet */
	List	   *list;			/* of each one, in build.h's form */
	Oid			small;			/* whose they are, if the COPY was a small one */
	uint64		small_news;		/* sluice_relation_changes of when they were listed */
} SluiceIndexesTaken;

/* index_report.c */
extern SluiceIndexesTaken sluice_indexes_taken;
extern void sluice_index_taken_reset(void);
extern void sluice_index_taken_rows(Relation rel, uint64 rows);
extern Datum sluice_index_taken_json(void);

/* dedupe.c */
extern SluiceSpiInsert *sluice_lost_rows_open(const char *name, Relation target);
extern void sluice_keep_lost_row(const SluiceDuplicates *duplicates, ResultRelInfo *rri,
								 EState *estate, Relation arbiter, IndexInfo *info,
								 TupleTableSlot *lost, uint64 line);

#endif							/* PGSLUICE_INDEX_H */
