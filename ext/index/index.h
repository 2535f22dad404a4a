/*
 * B-tree builds, and the indexes of a table that a COPY fills, as the other rooms see them: see README.md.
 */
#ifndef PGSLUICE_INDEX_H
#define PGSLUICE_INDEX_H

#include "base/pgsluice.h"
/* What the last build of this session was; shown by pgsluice.last_index_build. */
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

/* Reasons for an entry with each row that are the load's, not an index's. */
#define SLUICE_INDEX_PARTITIONED "the table is partitioned"

/* A row that is in the table, and where; the tuple is the copy that was formed. */
typedef struct SluicePlaced
{
	ItemPointerData tid;
	HeapTupleHeader tuple;
	uint32		len;
	uint64		line;
} SluicePlaced;

typedef struct SluiceIndexLoad SluiceIndexLoad;

/* deferred.c */
extern SluiceIndexLoad *sluice_index_load_open(ResultRelInfo *rri, EState *estate,
											   CopyFromState cstate, CommandId cid);
extern void sluice_index_load_never(SluiceIndexLoad *load, const char *because);
extern bool sluice_index_load_duplicates(SluiceIndexLoad *load,
										 struct SluiceDuplicates *duplicates);
extern bool sluice_index_load_is_live(const SluiceIndexLoad *load);
extern const char *sluice_index_load_why_rows(const SluiceIndexLoad *load);
extern bool sluice_index_load_wants(const SluiceIndexLoad *load);
extern void sluice_index_load_rows(SluiceIndexLoad *load, const SluicePlaced *rows, int count);
extern bool sluice_index_load_merge(SluiceIndexLoad *load, List *ascending);

/* What the last COPY did with the indexes of its table. */
typedef struct SluiceIndexesTaken
{
	MemoryContext context;		/* of all that is known of them; NULL: there was none yet */
	List	   *list;			/* of each one, in build.h's form */
	Oid			small;			/* whose they are, if the COPY was a small one */
	uint64		small_news;		/* sluice_relation_changes of when they were listed */
} SluiceIndexesTaken;

/* index/sorted_insert.c */
typedef struct SluiceIndexExtend SluiceIndexExtend;

extern SluiceIndexExtend *sluice_index_extend_open(ResultRelInfo *rri);
extern void sluice_index_extend_rows(SluiceIndexExtend *extend, const SluicePlaced *rows,
									 int count, uint64 *line);
extern bool sluice_index_extend_waits(const SluiceIndexExtend *extend);
extern void sluice_index_extend_row(SluiceIndexExtend *extend, TupleTableSlot *slot);
extern List *sluice_index_extend_ascending(SluiceIndexExtend *extend);
extern void sluice_index_extend_close(SluiceIndexExtend *extend);

/* deferred_finish.c */
extern void sluice_index_load_close(SluiceIndexLoad *load, int workers);

/* index_report.c */
extern SluiceIndexesTaken sluice_indexes_taken;
extern void sluice_index_taken_reset(void);
extern void sluice_index_taken_rows(Relation rel, uint64 rows);
extern void sluice_index_taken_close(ResultRelInfo *rri, uint64 rows, const char *because);
extern Datum sluice_index_taken_json(void);

/* merge.c */
extern bool sluice_index_load_outgrows(const SluiceIndexLoad *load, const ItemPointerData *last);

/* dedupe.c */
extern SluiceSpiInsert *sluice_lost_rows_open(const char *name, Relation target);
extern void sluice_keep_lost_row(const SluiceDuplicates *duplicates, ResultRelInfo *rri,
								 EState *estate, Relation arbiter, IndexInfo *info,
								 TupleTableSlot *lost, uint64 line);

#endif							/* PGSLUICE_INDEX_H */
