/*
 * The state of one COPY FROM while it runs.
 */
#ifndef PGSLUICE_LOAD_H
#define PGSLUICE_LOAD_H

#include "pgsluice.h"

typedef struct SluicePipeline SluicePipeline;

typedef struct SluiceVolatile
{
	AttrNumber	attnum;
	ExprState  *state;
} SluiceVolatile;

typedef struct SluiceLoad
{
	CopyFromState cstate;
	EState	   *estate;
	ModifyTableState *mtstate;
	ResultRelInfo *rri;
	ExprContext *econtext;
	SluiceSource source;
	SluicePlanArgs args;
	SluicePlan *plan;
	SluiceSlice slice;
	SluiceBatch *batch;			/* of a plain table */
	List	   *batches;
	struct PartitionTupleRouting *proute;	/* of a partitioned table */
	TupleTableSlot *root_slot;
	CommandId	cid;
	int			options;		/* TABLE_INSERT_… */
	int			waiting;		/* rows in all batches */
	Size		materialized;	/* memory of theirs outside of the arena */
	int			nvolatile;
	SluiceVolatile *volatiles;	/* defaults that are another for every row */
	SluiceRow  *rows;
	uint64		lines;			/* lines before source.start */
	uint64		processed;
	uint64		excluded;
	bool		check_rows;		/* rows need more than to be inserted */
	/* the record that is being checked, for an error's CONTEXT */
	const char *record;
	size_t		record_len;
	int			workers;		/* how many may be started */
	uint64		alone_limit;	/* bytes that are loaded alone before they are */
	uint64		alone;			/* bytes read when that was last thought of */
	SluicePipeline *pipeline;	/* NULL before they are */
} SluiceLoad;

/* route.c */
extern void sluice_open_batches(SluiceLoad *load);
extern SluiceBatch *sluice_route(SluiceLoad *load, TupleTableSlot **slot);
extern void sluice_flush_batches(SluiceLoad *load);
extern void sluice_close_batches(SluiceLoad *load);

/* rows.c */
extern void sluice_accept_rows(SluiceLoad *load, const SluiceSlice *slice);
extern void sluice_flush(SluiceLoad *load);
extern bool sluice_finish_source(SluiceLoad *load);
extern void sluice_load_rows(SluiceLoad *load);
extern void sluice_core_failed(void);

/* pipeline.c */
extern bool sluice_pipeline(SluiceLoad *load);
extern void sluice_pipeline_close(SluiceLoad *load);

#endif							/* PGSLUICE_LOAD_H */
