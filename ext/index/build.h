/*
 * Declarations for the files of this room: builds of B-tree indexes, and the
 * ways in which entries get into indexes. Other rooms must not include it.
 */
#ifndef PGSLUICE_INDEX_BUILD_H
#define PGSLUICE_INDEX_BUILD_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/nbtree.h"
#include "nodes/execnodes.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "utils/rel.h"

#include "compat/nbtree.h"
#include "index/index.h"

/*
 * A report of one build. pgsluice.last_index_build shows the last one.
 */
typedef struct SluiceIndexReport
{
	bool		valid;			/* a build was recorded */
	bool		unseen;			/* built by the stock code alone: rows and time are not known */
	Oid			relid;			/* of the index */
	const char *method;			/* sorted or stock */
	const char *scan;			/* pages or rows; merged: old entries too */
	int			workers;
	uint64		rows;
	uint64		spilled;		/* bytes written to temporary files */
	BlockNumber pages;
	instr_time	total;
	instr_time	scanning;		/* reading the table and sorting full runs */
	char		reason[256];	/* why the stock build was used, or empty */
	Oid			user;			/* who ran it */
} SluiceIndexReport;

/*
 * The first row with a duplicate key. A COPY that builds indexes at its end
 * needs it, whichever index finds it, and raises the error itself.
 */
typedef struct SluiceIndexConflict
{
	Oid			index;			/* InvalidOid: no conflict */
	IndexTuple	tuple;			/* of the row with the duplicate key */
	ItemPointerData earlier;	/* the first row with that key */
	MemoryContext context;		/* of the tuple */
} SluiceIndexConflict;

/*
 * An index's old file, before the COPY gives it a new one, and which rows have
 * no entries in it.
 */
typedef struct SluiceIndexOld
{
	CompatLocator locator;
	bool		permanent;
	BlockNumber blocks;			/* 0: the old file is not used */
	ItemPointerData first;		/* this row and all after it have no entries */
} SluiceIndexOld;

/*
 * An index that such a COPY builds, and the result of the build. It is in
 * memory that processes share, so it must have no pointers.
 */
typedef struct SluiceIndexBuilt
{
	Oid			index;
	bool		long_keys;		/* of variable length */
	SluiceIndexOld old;
	bool		fit;			/* the core has built it; if not, only the stock build can */
	IndexBuildResult result;
	SluiceIndexReport report;	/* without its pointers to strings */
	bool		conflict;		/* there is a duplicate key */
	ItemPointerData earlier;	/* the first row with that key */
	char		tuple[BLCKSZ / 2] pg_attribute_aligned(MAXIMUM_ALIGNOF);	/* the first row with a duplicate key */
} SluiceIndexBuilt;

/* ambuild.c */
extern void sluice_index_complete(Relation heap, Relation index, const SluiceIndexBuilt *built);
extern void sluice_index_note_stock_build(const SluiceIndexReport *report);

/* Rows that were inserted together, and the lines they came from. */
typedef struct InsertedRows
{
	ItemPointerData first;
	ItemPointerData last;
	int			count;
	uint64		line;			/* of the first one; 0: no line is known */
	uint32	   *further;		/* of each row, relative to `line`; NULL: lines are consecutive */
} InsertedRows;

/* How far the rows of a batch were counted. */
typedef struct CountedRows
{
	const InsertedRows *rows;	/* NULL: no batch yet */
	bool		whole;			/* the table has no others between them */
	BlockNumber block;			/* one of their blocks */
	int			before;			/* rows of the batch before this block, less the first one's place in its block */
} CountedRows;

/* The indexes of a table that a COPY fills. */
struct IndexWriter
{
	ResultRelInfo *rri;
	EState	   *estate;
	CopyFromState cstate;
	CommandId	cid;			/* of the rows */
	MemoryContext context;
	bool		is_private;
	bool		disturbed;		/* other commands ran in the meantime */
	struct SluiceDuplicates *duplicates;	/* to be resolved at the end, or NULL */
	const char *never;			/* why entries are inserted with each row, or NULL */
	bool		decided;
	bool		merges;			/* the new files get the entries of the old ones */
	bool		has_long_rows;
	BlockNumber had_blocks;		/* size of a private table that had rows; otherwise 0 */
	List	   *ascending;		/* indexes whose new entries come after all others */
	struct SortedInsert *sorted;	/* NULL unless entries wait to be sorted */
	struct ForeignKeys *foreign_keys;	/* checks each value once; NULL: each row is checked */
	List	   *deferred;		/* indexes to be built at the end */
	List	   *late;			/* indexes that get their entries at the end */
	struct AppendedIndex *appended;	/* the one that began with its keys in order, or NULL (deferred.c) */
	int			ahead;			/* so many of the next rows have their entries in it, or it waits */
	List	   *kept_open;		/* all of these as Relations, except while they are completed */
	InsertedRows *batches;		/* in table order */
	Size		line_bytes;		/* of lines that are not consecutive */
	CountedRows counted;		/* the batch that was searched last */
	uint64		waited;			/* rows handed over so far */
	int			first_waiting;	/* the first batch whose rows wait for the end */
	int			apart;			/* the first batch without entries in some index: it does not continue the one before it */
	int			used;
	int			allocated;
};

/* parent_lookup.c */
typedef struct ParentLookup ParentLookup;

extern ParentLookup *sluice_parent_lookup_open(const ForeignKeyCacheInfo *info, TupleDesc desc);
extern bool sluice_parent_lookup_lock(ParentLookup *lookup, const TupleTableSlot *child);
extern void sluice_parent_lookup_rest(ParentLookup *lookup);
extern void sluice_parent_lookup_close(ParentLookup *lookup);

/* foreign_keys.c */
typedef struct ForeignKeys ForeignKeys;

extern ForeignKeys *sluice_foreign_keys_open(const ResultRelInfo *rri, Size limit);
extern bool sluice_foreign_keys_need_check(ForeignKeys *keys, TupleTableSlot *slot);
extern void sluice_foreign_keys_rest(ForeignKeys *keys);
extern void sluice_foreign_keys_close(ForeignKeys *keys, bool for_good);

/* deferred.c */
extern void sluice_index_finish_deferred(IndexWriter *load, int workers, int most);
extern void sluice_index_empty_tree(IndexWriter *load, Oid indexid);

/* row_lines.c */
extern void sluice_index_note_rows(IndexWriter *load, const PlacedRow *placed, int count);
extern uint64 sluice_index_line_of(IndexWriter *load, ItemPointer tid);

/* Returns the line of a row of the batch, from 0; 0: the line is unknown. */
static inline uint64
sluice_index_line_in(const InsertedRows *rows, int row)
{
	if (rows->line == 0)
		return 0;
	return rows->line + (rows->further ? rows->further[row] : row);
}

/* sort_keys.c */
extern const char *sluice_index_shape(Relation heap, Relation index,
									  bool rank_all,
									  SluiceIndexAttribute *attributes);

typedef struct DuplicatePairs DuplicatePairs;

/* The parameters of the build of one index, and where its results go. */
typedef struct BuildRequest
{
	const SluiceIndexOld *old;	/* it has the entries of the rows before old->first; or NULL */
	int			memory;			/* kB for the rows of a run */
	SluiceIndexConflict *conflict;	/* gets the first duplicate; NULL: the build raises an error */
	DuplicatePairs *pairs;		/* gets rows with equal keys, which are no error then; or NULL */
	SluiceIndexReport *report;
} BuildRequest;

typedef struct SluiceIndexRanks SluiceIndexRanks;

/*
 * Blocks that were added to an index in advance, before there are pages for
 * them: see btree_pages.c.
 */
typedef struct SluiceNewBlocks
{
	BlockNumber next;			/* the next unused one; `end` is the first after them */
	BlockNumber end;
	uint32		used;			/* new leaves so far, from here or from the access method */
	bool		none_free;		/* the last block from the access method was a newly added one */
	bool		recycled;		/* it was one that VACUUM has freed */
} SluiceNewBlocks;

typedef struct SluiceIndexBuild
{
	Relation	heap;
	Relation	index;
	IndexInfo  *info;
	const SluiceIndexOld *old;	/* from the request: the scan skips the rows in it */
	const BuildRequest *request;	/* NULL in a worker */
	SluiceIndex *core;
	SluiceIndexAttribute attributes[INDEX_MAX_KEYS];
	SluiceIndexRanks *ranks[INDEX_MAX_KEYS];	/* of the columns that are ranked */
	MemoryContext scratch;		/* for values that have to be formed */
	struct BufFile *file;		/* spilled runs, once there are any */
	struct FileSet *shared;		/* the file set, if another process is to read the file */
	const char *shared_name;
	uint8	   *buffer;			/* for reading runs */
	const char *unfit;			/* why only the stock build can do it, once known */
	bool		rank_all;		/* the core could do it if all columns were ranked */
	double		rows;
	double		reltuples;
	uint64		spilled;		/* bytes in the file */
	bool		allequalimage;
	bool		deduplicates;	/* rows with equal keys share posting lists */
	bool		mixed;			/* equal values may be stored in different ways: each row keeps its own form */
	bool		wants_pairs;	/* rows with equal keys go to request->pairs */
	bool		for_copy;		/* a COPY needs the first row with a duplicate key */
	int			memory;			/* kB for the rows of a run */
	int			workers;		/* the most workers that may help to read and sort */
	struct ParallelBuild *team;	/* the workers, while there are any */
	pg_atomic_uint32 *blocks_done;	/* blocks that all processes have read; NULL: this one reads alone */
	uint64		team_spilled;	/* bytes that workers spilled */
	bool		parted;			/* the workers' results could not be combined */
	SluiceNewBlocks blocks;		/* for new leaves of an index that others can reach */
} SluiceIndexBuild;

/* build.c */
extern IndexBuildResult *sluice_index_build(Relation heap, Relation index, IndexInfo *info,
											const BuildRequest *request);
extern void sluice_index_add(SluiceIndexBuild *build, ItemPointer tid,
							 bool alive, Datum *values, bool *isnull);
extern bool sluice_index_add_page(SluiceIndexBuild *build,
								  SluiceIndexSource *source, const char *page,
								  BlockNumber block, const OffsetNumber *offsets,
								  size_t count, size_t *next);

extern void sluice_index_own_core(SluiceIndexBuild *build, MemoryContextCallback *callback);
extern void sluice_index_open_sorter(SluiceIndexBuild *build, Size memory);
extern void sluice_index_open_core(SluiceIndexBuild *build, bool rank_all, int memory);
extern void sluice_index_checked(SluiceIndexBuild *build, SluiceIndexStatus status);

/* How the entries of a COPY's rows get into an index. */
typedef enum IndexStrategy
{
	SLUICE_INDEX_ROWS,			/* with each row, as in stock COPY */
	SLUICE_INDEX_SORTED,		/* entries of many rows, in index order */
	SLUICE_INDEX_LEAF_MERGE,	/* the same, many at once into the leaf that they belong to */
	SLUICE_INDEX_LEAVES,		/* in whole new leaves after the last one */
	SLUICE_INDEX_MERGE,			/* merged with the entries of the old file into a new file */
	SLUICE_INDEX_BUILD,			/* the index is rebuilt after all rows are in */
	SLUICE_INDEX_WAYS
} IndexStrategy;

/* strategy.c */
extern IndexStrategy sluice_index_way(Relation heap, Relation index, IndexInfo *info,
									   bool is_private, SluiceIndexAttribute *attributes,
									   const char **because);
extern bool sluice_index_unique_waits(Relation index);

/*
 * The way of an index of a private table with so many indexes that can wait
 * for the end. Workers build several at once, in less time than the leader
 * alone takes to append to one of them while the rows come in.
 */
static inline IndexStrategy
sluice_index_way_beside(IndexStrategy way, int waiting)
{
	return way == SLUICE_INDEX_LEAVES && waiting > 1 ? SLUICE_INDEX_BUILD : way;
}

/* Whether some columns of the index have values of variable length. */
static inline bool
sluice_index_has_long_keys(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfAttributes(index); i++)
	{
		if (TupleDescAttr(RelationGetDescr(index), i)->attlen == -1)
			return true;
	}
	return false;
}

/* What the last COPY did with an index of its table. */
typedef struct IndexUse
{
	Oid			index;
	NameData	name;
	IndexStrategy way;
	const char *because;		/* why not a faster one, or NULL */
	uint64		rows[SLUICE_INDEX_WAYS];	/* rows whose entries went in, by way */
} IndexUse;

/* index_report.c */
extern void sluice_index_uses_close(ResultRelInfo *rri, uint64 rows, const char *because);
extern const char *const sluice_index_way_names[SLUICE_INDEX_WAYS];
extern IndexUse *sluice_index_take(Relation index, IndexStrategy way,
										   const char *because);
extern IndexUse *sluice_index_take_of_leaf(Relation index, IndexStrategy way,
										   const char *because);

/* merge.c */
extern bool sluice_index_outgrows(const IndexWriter *load, const ItemPointerData *last);
extern bool sluice_index_can_merge(const IndexWriter *load, Relation index);
extern void sluice_index_old_file(const IndexWriter *load, Relation index,
								  SluiceIndexOld *old);
extern void sluice_index_add_old(SluiceIndexBuild *build, const SluiceIndexOld *old);

/* row_pairs.c */

/* Heap TIDs of rows, by row number. */
typedef struct RowPlaces
{
	MemoryContext context;
	ItemPointerData *tids;
	Size		count;
	Size		allocated;
	bool		ascending;		/* the TIDs are in table order */
} RowPlaces;

/* Each pair is a 32-bit key and the number of a row. */
typedef struct RowPairs
{
	MemoryContext context;
	uint64	   *pairs;
	Size		count;
	Size		allocated;
} RowPairs;

/* Bytes that the pairs take, including what the sort will need. */
static inline Size
sluice_row_pairs_bytes(const RowPairs *pairs)
{
	return sizeof(uint64) * (pairs->allocated + pairs->count);
}

extern uint32 sluice_row_places_add(RowPlaces *places, const ItemPointerData *tid);
extern void sluice_row_pairs_add(RowPairs *pairs, uint32 key, uint32 row);
extern void sluice_row_pairs_sort(RowPairs *pairs);

/* gin_merge.c */
typedef struct GinMerge GinMerge;

extern bool sluice_gin_compares(Relation index);
extern GinMerge *sluice_gin_merge_open(Relation index, Size memory);
extern void sluice_gin_merge_add(GinMerge *merge, const ItemPointerData *tid, const Datum *values,
								 const bool *isnull);
extern void sluice_gin_merge_flush(GinMerge *merge);

/* hash_merge.c */
typedef struct HashMerge HashMerge;

extern HashMerge *sluice_hash_merge_open(Relation heap, Relation index, Size memory);
extern void sluice_hash_merge_add(HashMerge *merge, const ItemPointerData *tid, Datum value, bool isnull);
extern void sluice_hash_merge_flush(HashMerge *merge);

/* other_methods.c */
typedef struct OtherMethods OtherMethods;

extern OtherMethods *sluice_other_methods_open(ResultRelInfo *all, const IndexStrategy *ways,
											   IndexUse **taken, Size memory, Oid *current);
extern List *sluice_other_methods_row(OtherMethods *others, ResultRelInfo *rri, TupleTableSlot *slot,
									  EState *estate);
extern void sluice_other_methods_flush(OtherMethods *others);
/*
 * A row with the same key as a new entry, which conflicts with it or may do so.
 */
typedef struct SluiceRival
{
	bool		found;			/* the first of the entries to be merged has a rival */
	TransactionId wait;			/* the transaction that decides; invalid: the rival is certain */
	uint32		speculative;	/* that transaction's token, if its insertion is speculative */
	ItemPointerData tid;
} SluiceRival;

/* first_refusal.c */
typedef struct RowLines RowLines;

/* The first row with a conflict, among those checked so far. */
typedef struct FirstRefusal
{
	uint64		line;			/* only rows before it still matter */
	Oid			oid;			/* of the index */
	Relation	heap;
	Relation	index;
	IndexTuple	tuple;			/* its entry; NULL: no conflict */
	bool		at_once;		/* do not wait for other transactions */
} FirstRefusal;

extern RowLines *sluice_row_lines_open(void);
extern Size sluice_row_lines_size(const RowLines *lines);
extern void sluice_row_lines_note(RowLines *lines, const PlacedRow *rows, int count);
extern void sluice_row_lines_forget(RowLines *lines);
extern uint64 sluice_row_lines_find(RowLines *lines, const ItemPointerData *tid);
extern void sluice_first_refusal_look(FirstRefusal *first, RowLines *lines, CopyFromState cstate,
									  Relation heap, Relation index, IndexTuple *before,
									  IndexTuple *tuples, int count);
extern void sluice_first_refusal_add(FirstRefusal *first, RowLines *lines, Relation heap,
									 Relation index, IndexTuple tuple, const SluiceRival *rival);
extern void sluice_first_refusal_raise(const FirstRefusal *first, CopyFromState cstate);

/* sorted_insert.c */
typedef struct SortedInsert SortedInsert;

extern SortedInsert *sluice_sorted_insert_open(ResultRelInfo *rri, CopyFromState cstate, Size memory);
extern void sluice_sorted_insert_look(SortedInsert *inserts, FirstRefusal *first);
extern SortedInsert *sluice_sorted_insert_next(CopyFromState cstate, SortedInsert *last);
extern bool sluice_sorted_insert_checks(CopyFromState cstate);
extern const ResultRelInfo *sluice_sorted_insert_indexes(const SortedInsert *inserts, Oid *current);
extern void sluice_sorted_insert_rows(SortedInsert *inserts, const PlacedRow *rows, int count,
									  uint64 *line);
extern bool sluice_sorted_insert_waits(const SortedInsert *inserts);
extern OtherMethods *sluice_sorted_insert_row(SortedInsert *inserts, TupleTableSlot *slot);
extern List *sluice_sorted_insert_ascending(SortedInsert *inserts);
extern void sluice_sorted_insert_close(SortedInsert *inserts);

/* deferred.c */
extern void sluice_index_defer_rows(IndexWriter *load, const PlacedRow *rows, int count, int left);
extern bool sluice_index_start_merge(IndexWriter *load, List *ascending);
extern bool sluice_index_can_wait(Relation heap, Relation index, IndexInfo *info,
								  const char **because);

/* unique_append.c */
typedef struct UniqueAppend UniqueAppend;

extern UniqueAppend *sluice_unique_append_open(Relation heap, Relation index,
												   IndexInfo *info,
												   const SluiceIndexAttribute *attributes,
												   Size memory, bool whole, IndexUse *taken);
extern bool sluice_unique_append_rows(UniqueAppend *append, const PlacedRow *rows,
									 int count, uint64 *line);
extern bool sluice_unique_append_goes_on(const UniqueAppend *append);
extern void sluice_unique_append_close(UniqueAppend *append);

/* btree_pages.c */
/* Bytes that a tuple takes on a page, including its line pointer. */
static inline Size
sluice_btree_size(IndexTuple tuple)
{
	return MAXALIGN(IndexTupleSize(tuple)) + sizeof(ItemIdData);
}

extern void sluice_btree_add_item(Page page, IndexTuple tuple, OffsetNumber offset);
extern int	sluice_btree_prepare_blocks(SluiceIndexBuild *build);
extern void sluice_btree_allocate(SluiceIndexBuild *build, Buffer *added, int count);
extern void sluice_btree_give_back(SluiceIndexBuild *build);
extern void sluice_btree_log(const Buffer *buffers, int count);

/* btree_unique.c */
extern bool sluice_btree_may_have_rival(Relation index, IndexTuple tuple);
extern bool sluice_btree_rival_on_leaf(Relation heap, Relation index, BTScanInsert key, Buffer leaf,
									   OffsetNumber at, ItemPointer own, bool marks, SluiceRival *rival);
extern void sluice_btree_wait(Relation index, const SluiceRival *rival, ItemPointer own);
extern bool sluice_btree_look(Relation heap, Relation index, IndexTuple tuple, bool at_once,
							  SluiceRival *rival);

/* btree_compare.c */
extern bool sluice_btree_order(const SluiceIndexAttribute *attributes, int keys, IndexTuple a, IndexTuple b,
							   int *order);

/* btree_merge.c */
extern int	sluice_btree_merge(SluiceIndexBuild *build, IndexTuple *tuples, int count,
							   SluiceRival *rival);

/* btree_append.c */

/* With fewer entries, logging each takes less WAL than logging their page. */
#define SLUICE_INDEX_FEWEST 128

extern int	sluice_btree_append(SluiceIndexBuild *build, IndexTuple *tuples, int count);
extern int	sluice_btree_append_from(Relation index, IndexTuple *tuples, int count);

/* value_ranks.c */
#define SLUICE_INDEX_TOO_MANY "too many different values of a kind that the server has to compare"

extern bool sluice_index_rank(SluiceIndexBuild *build);
extern void sluice_index_forget_ranks(SluiceIndexBuild *build);
extern void sluice_index_store_values(SluiceIndexBuild *build, const Datum *values,
									  const bool *isnull, Datum *stored);

/* heap_scan.c */
extern bool sluice_index_scans_pages(Relation heap, IndexInfo *info);
extern void sluice_index_scan_pages(SluiceIndexBuild *build);
extern void sluice_index_scan_rows(SluiceIndexBuild *build);

typedef struct SluiceIndexScan SluiceIndexScan;

extern SluiceIndexScan *sluice_index_scan_open(SluiceIndexBuild *build);
extern void sluice_index_scan_range(SluiceIndexScan *scan, BlockNumber block, BlockNumber end);
extern void sluice_index_scan_close(SluiceIndexScan *scan);

/* page_queue.c */
typedef struct PageQueueShared PageQueueShared;
typedef struct PageQueue PageQueue;

extern Size sluice_page_queue_size(void);
extern PageQueueShared *sluice_page_queue_init(void *memory);
extern PageQueue *sluice_page_queue_open(PageQueueShared *shared);
extern void sluice_page_queue_send(PageQueue *pipe, SluiceIndex *core);
extern BlockNumber sluice_page_queue_close(PageQueue *pipe, BlockNumber root,
										   uint32 level, bool allequalimage);
extern void sluice_page_queue_abandon(PageQueue *pipe);
extern void sluice_page_queue_write(PageQueueShared *shared, Relation index);

/* parallel_build.c */
extern PageQueue *sluice_parallel_build_pipe(const SluiceIndexBuild *build);
extern BlockNumber sluice_parallel_build_scan(SluiceIndexBuild *build, SluiceIndexScan *scan,
										  BlockNumber blocks);
extern struct BufFile *sluice_parallel_build_file(SluiceIndexBuild *build, int worker);
extern void sluice_parallel_build_end(SluiceIndexBuild *build);

/* build.c: runs in temporary files */

/*
 * The low bits of an offset that the core requests are a position in a file.
 * The bits above them are the number of the worker that wrote the file, plus
 * one; 0 is this process's own file.
 */
#define SLUICE_INDEX_PLACE_BITS 48

extern void sluice_index_write_run(SluiceIndexBuild *build, const SluiceIndexStep *step);
extern void sluice_index_read_file(struct BufFile *file, uint64 from, void *bytes, Size len);
extern void sluice_index_write_sorted(SluiceIndexBuild *build);

/* parallel_indexes.c */
extern int	sluice_index_build_all(Relation heap, SluiceIndexBuilt *built,
								   int count, int workers, DuplicatePairs *pairs);

/* dedupe.c */
extern bool sluice_index_can_dedupe(IndexWriter *load, SluiceDuplicates *duplicates);
extern Oid	sluice_index_arbiter(const IndexWriter *load);
extern void sluice_dedupe_take_pairs(SluiceIndexBuild *build);
extern void sluice_dedupe(IndexWriter *load, SluiceIndexBuilt *arbiter);

/* dedupe.c */
extern bool sluice_index_equal_keys(Relation index, bool nulls_not_distinct, IndexTuple a, IndexTuple b);

/* page_writer.c */
typedef struct SluicePageWriter SluicePageWriter;

/* Gets the next page. Returns false if there is none, or none yet. */
typedef bool (*SluiceIndexNextPage) (void *source, char *page, BlockNumber *block);

extern SluicePageWriter *sluice_page_writer_open(Relation index);
extern bool sluice_index_next_page(void *core, char *page, BlockNumber *block);
extern void sluice_page_writer_write(SluicePageWriter *writer, SluiceIndexNextPage next,
									 void *source);
extern BlockNumber sluice_page_writer_close(SluicePageWriter *writer,
											 BlockNumber root, uint32 level,
											 bool allequalimage);

#endif							/* PGSLUICE_INDEX_BUILD_H */
