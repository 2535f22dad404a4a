/*
 * Builds of B-tree indexes: what index*.c share.
 */
#ifndef PGSLUICE_INDEX_H
#define PGSLUICE_INDEX_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/nbtree.h"
#include "nodes/execnodes.h"
#include "portability/instr_time.h"
#include "utils/rel.h"

#include "pgsluice.h"

/* What the last build of this session was; shown by pgsluice.last_index_build. */
typedef struct SluiceIndexReport
{
	bool		valid;			/* there was one */
	Oid			relid;			/* of the index */
	const char *method;			/* sorted or stock */
	const char *scan;			/* pages or rows */
	int			workers;
	uint64		rows;
	uint64		spilled;		/* bytes written to temporary files */
	BlockNumber pages;
	instr_time	total;
	instr_time	scanning;		/* reading the table and sorting full runs */
	char		reason[256];	/* why the stock build did it, or empty */
} SluiceIndexReport;

extern SluiceIndexReport sluice_index_report;

/* index.c */
extern bool sluice_index_enabled;
extern void sluice_index_arm(Oid indexid);

/*
 * A COPY that builds indexes at its end wants to know of the first row that has
 * a key again, whichever index says so, and raises the error itself.
 */
typedef struct SluiceIndexConflict
{
	Oid			index;			/* InvalidOid: there is none */
	IndexTuple	tuple;			/* of that row */
	MemoryContext context;		/* of the tuple */
} SluiceIndexConflict;

/* That COPY's, or NULL: a duplicate is an error of the build. */
extern SluiceIndexConflict *sluice_index_conflict;

/* index_shape.c */
extern const char *sluice_index_shape(Relation heap, Relation index,
									  IndexInfo *info,
									  SluiceIndexAttribute *attributes);

/* One build. */
typedef struct SluiceIndexBuild
{
	Relation	heap;
	Relation	index;
	IndexInfo  *info;
	SluiceIndex *core;
	struct BufFile *file;		/* spilled runs, once there are any */
	uint8	   *buffer;			/* for reading them */
	bool		unfit;			/* met a value that only the stock build takes */
	double		rows;
	double		reltuples;
	bool		allequalimage;
} SluiceIndexBuild;

/* index_build.c */
extern IndexBuildResult *sluice_index_build(Relation heap, Relation index,
											IndexInfo *info);
extern void sluice_index_add(SluiceIndexBuild *build, ItemPointer tid,
							 bool alive, Datum *values, bool *isnull);

/* index_scan.c */
extern bool sluice_index_scans_pages(Relation heap, IndexInfo *info);
extern void sluice_index_scan_pages(SluiceIndexBuild *build);
extern void sluice_index_scan_rows(SluiceIndexBuild *build);

/* index_write.c */
typedef struct SluiceIndexWriter SluiceIndexWriter;

extern SluiceIndexWriter *sluice_index_writer_open(Relation index);
extern void sluice_index_write_pages(SluiceIndexWriter *writer, SluiceIndex *core);
extern BlockNumber sluice_index_writer_close(SluiceIndexWriter *writer,
											 BlockNumber root, uint32 level,
											 bool allequalimage);

#endif							/* PGSLUICE_INDEX_H */
