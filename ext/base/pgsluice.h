/*
 * What the parts of the extension share.
 */
#ifndef PGSLUICE_H
#define PGSLUICE_H

#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "commands/copy.h"
#include "commands/copyfrom_internal.h"
#include "commands/progress.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
/*
 * libpq.h includes the declaration of Port, which wants Kerberos' headers where
 * the server was built with them. Port is not used here.
 */
#undef ENABLE_GSS
#include "libpq/libpq.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "portability/instr_time.h"
#include "tcop/cmdtag.h"
#include "utils/backend_progress.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "compat/compat.h"
#include "ffi/pgsluice_core.h"

/* The tuples and pages that the core makes are those of such a server. */
#if BLCKSZ != 8192 || SIZEOF_VOID_P != 8 || defined(WORDS_BIGENDIAN)
#error "pgsluice is built for servers of 64 bits, little-endian, with pages of 8 kB"
#endif

/* What the last COPY of this session did; shown by pgsluice.last_copy. */
typedef struct SluiceReport
{
	bool		valid;			/* there was one */
	Oid			relid;
	const char *route;
	uint64		rows;
	uint64		rows_by_server; /* of these, read by the server's own parser */
	uint64		values_by_server;	/* single values read by the server's input functions */
	uint64		values_by_workers;	/* the same, in workers */
	const char *leader_reads;	/* why workers may not, or NULL */
	uint64		bytes;
	int			workers;
	instr_time	total;
	instr_time	reading;
	instr_time	forming;
	instr_time	heap;
	instr_time	after;			/* indexes and AFTER triggers */
	uint64		wal_bytes;
	uint64		rejected;		/* records kept in rejects_to's table */
	uint64		skipped;		/* duplicates that were left out */
	uint64		replaced;		/* rows that gave way to a duplicate */
	uint64		index_memory;	/* the most bytes for index entries that wait; 0: none did */
	uint32		switched_off;	/* by the administrator: see sluice_switched_off() */
	Oid			user;			/* who ran it */
	char		reason[256];	/* why stock COPY did it, or empty */
} SluiceReport;

extern SluiceReport sluice_report;

/*
 * The number of this build (see the Makefile). A worker loads the library's file anew,
 * and may find another one there than its leader has: the number comes first in all that they share.
 */
#define SLUICE_BUILD_LEN 64
extern const char sluice_build[];

#define SLUICE_REPLACED "the library pgsluice has been replaced since this session loaded it"

/* workers/worker.c */
extern void sluice_require_build(const char *build);

/* pgsluice.c */
extern ReturnSetInfo *sluice_begin_rows(FunctionCallInfo fcinfo, int columns);
extern bool sluice_may_see(Oid user);
extern void sluice_explain_nothing(bool hidden, const char *what, const char *setting);

#define SLUICE_MAX_WORKERS 16

typedef enum SluiceAsked
{
	SLUICE_ASKED_BY_SETTING,	/* the statement does not say */
	SLUICE_ASKED_ON,
	SLUICE_ASKED_OFF,
	SLUICE_ASKED_REQUIRE
} SluiceAsked;

typedef enum SluiceOnDuplicate
{
	SLUICE_DUPLICATE_ERROR,
	SLUICE_DUPLICATE_SKIP,
	SLUICE_DUPLICATE_REPLACE
} SluiceOnDuplicate;

#define SLUICE_NO_LIMIT INT64CONST(-1)

/* pgsluice's own options of COPY. */
typedef struct SluiceOptions
{
	SluiceAsked asked;
	int			workers;		/* how many may help */
	bool		workers_asked;	/* the statement says so: they start at once */
	bool		exclusive;		/* lock 'exclusive' */
	char	   *rejects_to;		/* a table's name, or NULL: an error ends the statement */
	int64		max_rejects;	/* or SLUICE_NO_LIMIT */
	bool		max_rejects_asked;	/* the statement says so */
	SluiceOnDuplicate on_duplicate;
	char	   *on_duplicate_index; /* its name, or NULL: the primary key */
	char	   *duplicates_to;	/* a table's name, or NULL: they are only counted */
} SluiceOptions;

/*
 * pgsluice.debug_force_routes, for tests: small data goes where only large data would go. Where a
 * size decides, sluice_threshold() gives the size to compare with.
 */
typedef enum SluiceForce
{
	SLUICE_FORCE_OFF,
	SLUICE_FORCE_ON,
	SLUICE_FORCE_WORKERS		/* and workers do what they can do */
} SluiceForce;

extern int	sluice_force;

static inline uint32
sluice_threshold(uint32 size)
{
	return sluice_force == SLUICE_FORCE_OFF ? size : 0;
}

/* base/options.c */
extern bool sluice_enabled;		/* pgsluice.copy */
extern void sluice_options_init(void);
extern int	sluice_workers_allowed(void);
extern bool sluice_has_own_options(const CopyStmt *stmt);
extern void sluice_find_options(CopyStmt *stmt, bool has_own, SluiceOptions *own);
extern const char *sluice_option_that_needs_us(const SluiceOptions *own);
extern void sluice_refuse_combination(const char *option, const char *what);

/* Paths that write pages or WAL by themselves, each with the administrator's switch. */
typedef struct SluiceAllowed
{
	bool		anything;
	bool		whole_pages;
	bool		index_append;
	bool		sequence_blocks;
	bool		index_build;
} SluiceAllowed;

#define SLUICE_NO_INDEX_APPEND "pgsluice.allow_index_append is off"
#define SLUICE_NO_INDEX_BUILD "pgsluice.allow_index_build is off"

/* base/admin.c */
extern SluiceAllowed sluice_allowed;
extern Size sluice_live_index_memory(void);
extern void sluice_admin_init(void);
extern int	sluice_max_workers_per_copy(void);
extern int	sluice_max_workers(void);
extern const char *sluice_admin_why_not(void);
extern const char *sluice_admin_why_no_builds(void);
extern uint32 sluice_switched_off(void);
extern char *sluice_switches(uint32 off);

/* Places of the server's workers that a session has taken for its own. */
#define SLUICE_MAX_SLOTS 1024

typedef struct SluiceSlots
{
	int			count;
	int			place[SLUICE_MAX_WORKERS];
	ResourceOwner owner;
} SluiceSlots;

/* base/worker_slots.c */
extern int	sluice_slots_take(SluiceSlots *slots, int count);
extern void sluice_slots_keep(SluiceSlots *slots, int count);
extern int	sluice_slots_free(int count);
extern bool sluice_slots_take_one(void);

/* base/hooks.c */
extern bool sluice_hooks_came_first;
extern void sluice_hooks_init(void);
extern const char *sluice_hooks_why_not(void);

/* One COPY FROM as it came through the hook, our own options taken out. */
typedef struct SluiceStatement
{
	CopyStmt   *stmt;
	ParseState *pstate;
	Relation	rel;			/* open and locked once taken over */
	bool		partitions_watched; /* see SluiceKnown */
	List	   *attnums;
	Node	   *where;
	QueryCompletion *completion;
	SluiceOptions options;
	Oid			arbiter;		/* the unique index of on_duplicate */
} SluiceStatement;

/* base/subtransaction.c */
typedef void (*SluiceWork) (void *arg);

extern ErrorData *sluice_in_subtransaction(SluiceWork work, void *arg);

/* base/core_memory.c */
extern void sluice_core_memory_init(void);

/* base/blocks.c */
extern void sluice_write_blocks(Relation rel, BlockNumber first, uint32 n, char *pages,
								bool skip_sync);

/* copy/decide.c */
extern const char *sluice_why_not(SluiceStatement *s);

/*
 * Where the bytes come from. What was read and not yet formed lies in
 * buf[start, end), in the server's encoding; of that, buf[start, valid) is known
 * to be valid. FORMAT binary is bytes as they come.
 * The first SLUICE_HEADROOM bytes stay free for what stock COPY gives back.
 */
#define SLUICE_HEADROOM RAW_BUF_SIZE
#define SLUICE_SLICE ((size_t) 1 << 20)

typedef struct SluiceSource
{
	CopyFromState cstate;
	CopySource	kind;			/* what the data came by before we stepped in */
	char	   *buf;
	size_t		start;
	size_t		valid;
	size_t		end;
	bool		eof;
	char	   *failure;		/* why the client's data ends badly, or NULL */
	int			failure_code;	/* its SQLSTATE */
	bool		ended;			/* a line of \. was met */
	bool		sealed;			/* nothing is to be read on: a chunk of its own */
	const char *after;			/* what follows upon a sealed chunk */
	size_t		after_len;
	bool		overlent;		/* it was lent */
	bool		binary;			/* FORMAT binary */
	bool		single_byte;	/* the server's encoding: any byte but NUL is valid */
	/* Where the data is in another encoding than the server's: what is not yet converted. */
	char	   *raw;			/* NULL where it is not */
	size_t		raw_start;
	size_t		raw_end;
	bool		raw_eof;
	int			encoding;		/* the data's */
	bool		refilled;		/* read on while stock COPY had the bytes */
	uint64		bytes;			/* read so far */
} SluiceSource;

/* rows/source.c */
extern SluiceSource *sluice_lender;
extern void sluice_source_open(SluiceSource *src, CopyFromState cstate);
extern bool sluice_source_fill(SluiceSource *src);
extern void sluice_source_validate(SluiceSource *src);
extern size_t sluice_source_read(SluiceSource *src, char *buf, size_t len);
extern void sluice_source_refuse(SluiceSource *src);
extern void sluice_source_skip(SluiceSource *src, size_t len);
extern void sluice_source_set(SluiceSource *src, const char *data, size_t len);
extern size_t sluice_valid(bool single_byte, const char *data, size_t len);
extern void sluice_source_drain(SluiceSource *src);
extern uint64 sluice_stock_copy(SluiceSource *src);
extern void sluice_source_end(SluiceSource *src);
extern bool sluice_stock_row(SluiceSource *src, ExprContext *econtext,
							 Datum *values, bool *nulls);

/* rows/record.c */
extern bool sluice_marker_ends(const SluiceSource *src, const char *lines, size_t len);

/* A default that is drawn from a sequence for every row. */
typedef struct SluiceSerial
{
	Oid			sequence;		/* InvalidOid if there is none */
	bool		check;			/* as nextval() checks permissions */
	AttrNumber	attnum;			/* the column */
	int			len;			/* its bytes: 2, 4 or 8 */
	bool		blocks;			/* values for many rows may be reserved at once */
	int64		step;
	int64		min;
	int64		max;
	int64		expected;		/* rows that are going to ask for a value */
	int64		next;			/* of the values that are reserved */
	int64		left;			/* how many these are */
} SluiceSerial;

/* What a plan is made of. */
typedef struct SluicePlanArgs
{
	SluiceColumn *columns;
	size_t		ncolumns;
	size_t		fields;
	SluiceDialect dialect;
	SluiceEnv	env;
	SluiceSerial serial;
	List	   *volatiles;		/* columns whose defaults are another for every row */
	bool		watched;		/* functions that the load calls may change settings and types */
} SluicePlanArgs;

/* base/checks.c */
extern bool sluice_function_is_unsafe(Oid function, void *context);
extern const char *sluice_domain_why_not(Oid domain);
extern bool sluice_domain_takes_null(Oid domain);
extern bool sluice_type_is_volatile(Oid type);
extern bool sluice_is_watched(Relation rel, Node *where);
extern bool sluice_catalog_is_watched(Oid relid, bool checks, bool triggers);

/* Looks at one row of a catalog. */
typedef bool (*SluiceIsSought) (HeapTuple tuple, TupleDesc desc, const void *context);

extern bool sluice_any_trigger(Oid relid, SluiceIsSought is_sought, const void *context);
extern bool sluice_any_constraint(Oid relid, SluiceIsSought is_sought, const void *context);

/* rows/plan.c */
extern uint8 sluice_align_bytes(char attalign);
extern void sluice_plan_args(CopyFromState cstate, bool watched, SluicePlanArgs *args);
extern SluicePlan *sluice_make_plan(const SluicePlanArgs *args);
extern Size sluice_flat_size(const SluicePlanArgs *args);
extern void sluice_flatten(const SluicePlanArgs *args, char *flat);
extern void sluice_unflatten(const char *flat, SluicePlanArgs *args);

/* What is known of a relation; its places are reused. */
typedef struct SluiceKnown
{
	Oid			relid;			/* InvalidOid: nothing is known */
	Bitmapset  *judged;			/* columns whose defaults have been looked at */
	Bitmapset  *one_by_one;		/* of these, the ones for which rows go in one by one */
	bool		partitions_judged;
	const char *partitions_why_not; /* then: why its partitions cannot be loaded here, or NULL; */
	bool		partitions_watched; /* whether one of them has something that may look at the load */
} SluiceKnown;

/* base/relation_cache.c */
extern uint64 sluice_relation_news; /* so often something has changed in some relation */
extern SluiceKnown *sluice_known(Oid relid);

/* rows/defaults.c */
extern const char *sluice_default_why_not(const SluiceStatement *s, bool marker);
extern bool sluice_defaults_may_fail(CopyFromState cstate);
extern void sluice_plan_default(CopyFromState cstate, Form_pg_attribute att,
								SluiceColumn *column, SluicePlanArgs *args);

/* base/sequence.c */
extern void sluice_serial_open(SluiceSerial *serial, bool blocks);
extern void sluice_serial_expect(SluiceSerial *serial, int64 count);
extern void sluice_serial_fill(SluiceSerial *serial, char *place);
extern bool sluice_serial_fill_reserved(SluiceSerial *serial, char *place);

/* Rows that wait for the next insertion, in the order of the input. */
#define SLUICE_BATCH_ROWS 1000
#define SLUICE_BATCH_ASKS (8 * SLUICE_BATCH_ROWS)
#define SLUICE_ARENA ((size_t) 4 << 20)

typedef struct SluiceIndexLoad SluiceIndexLoad;

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

typedef struct SluiceBatch
{
	SluiceIndexLoad *index_load;
	struct SluiceIndexExtend *extend;	/* NULL unless index entries wait */
	ResultRelInfo *rri;
	EState	   *estate;
	CopyFromState cstate;
	BulkInsertState bistate;
	CommandId	cid;
	int			options;		/* TABLE_INSERT_… */
	int			used;
	uint64		inserted;		/* rows of earlier flushes */
	int			made;			/* slots that there are */
	SluicePlaced *placed;		/* room for the rows, where indexes are told of them */
	TupleTableSlot *slots[SLUICE_BATCH_ROWS];
	uint64		lines[SLUICE_BATCH_ROWS];
} SluiceBatch;

/* heap/insert_route.c */
extern void sluice_install_init(void);
extern void sluice_batch_open(SluiceBatch *batch, ResultRelInfo *rri, EState *estate,
							  CopyFromState cstate, CommandId cid, int options);
extern TupleTableSlot *sluice_make_slot(Relation rel, EState *estate);
extern TupleTableSlot *sluice_batch_slot(SluiceBatch *batch);
extern void sluice_slot_store(TupleTableSlot *slot, char *tuple, uint32 len);
extern void sluice_slot_place(TupleTableSlot *slot, const ItemPointerData *tid);
extern bool sluice_batch_has_room(SluiceBatch *batch);
extern void sluice_batch_extend(SluiceBatch *batch);
extern void sluice_batch_go_on(SluiceBatch *batch, BlockNumber block);
extern void sluice_batch_grown(SluiceBatch *batch, const ItemPointerData *last);
extern bool sluice_batch_has_more(const SluiceBatch *batch);
extern void sluice_finish_row(SluiceBatch *batch, TupleTableSlot *slot);
extern void sluice_batch_add(SluiceBatch *batch, uint64 line);
extern void sluice_batch_flush(SluiceBatch *batch);
extern void sluice_batch_indexes(SluiceBatch *batch, int workers);
extern void sluice_batch_close(SluiceBatch *batch);

/* index/ambuild.c */
extern void sluice_index_init(void);
extern void sluice_index_before_utility(const Node *stmt);

/* index/deferred.c */
extern SluiceIndexLoad *sluice_index_load_open(ResultRelInfo *rri, EState *estate,
											   CopyFromState cstate, CommandId cid);
extern void sluice_index_load_never(SluiceIndexLoad *load, const char *because);
struct SluiceDuplicates;

extern bool sluice_index_load_duplicates(SluiceIndexLoad *load,
										 struct SluiceDuplicates *duplicates);
extern bool sluice_index_load_is_live(const SluiceIndexLoad *load);
extern const char *sluice_index_load_why_rows(const SluiceIndexLoad *load);
extern bool sluice_index_load_wants(const SluiceIndexLoad *load);
extern void sluice_index_load_rows(SluiceIndexLoad *load, const SluicePlaced *rows, int count);
extern bool sluice_index_load_merge(SluiceIndexLoad *load, List *ascending);

/* index/deferred_finish.c */
extern void sluice_index_load_close(SluiceIndexLoad *load, int workers);

/* What the last COPY did with the indexes of its table. */
typedef struct SluiceIndexesTaken
{
	MemoryContext context;		/* of all that is known of them; NULL: there was none yet */
	List	   *list;			/* of each one, in index.h's form */
	Oid			small;			/* whose they are, if the COPY was a small one */
	uint64		small_news;		/* sluice_relation_news of when they were listed */
} SluiceIndexesTaken;

/* index/index_report.c */
extern SluiceIndexesTaken sluice_indexes_taken;
extern void sluice_index_taken_reset(void);
extern void sluice_index_taken_rows(Relation rel, uint64 rows);
extern void sluice_index_taken_close(ResultRelInfo *rri, uint64 rows, const char *because);
extern Datum sluice_index_taken_json(void);

/* index/merge.c */
extern bool sluice_index_load_outgrows(const SluiceIndexLoad *load, const ItemPointerData *last);

/* index/sorted_insert.c */
typedef struct SluiceIndexExtend SluiceIndexExtend;

extern SluiceIndexExtend *sluice_index_extend_open(ResultRelInfo *rri);
extern void sluice_index_extend_rows(SluiceIndexExtend *extend, const SluicePlaced *rows,
									 int count, uint64 *line);
extern bool sluice_index_extend_waits(const SluiceIndexExtend *extend);
extern void sluice_index_extend_row(SluiceIndexExtend *extend, TupleTableSlot *slot);
extern List *sluice_index_extend_ascending(SluiceIndexExtend *extend);
extern void sluice_index_extend_close(SluiceIndexExtend *extend);

struct dsm_segment;
struct ParallelContext;

/* base/shared_memory.c */
extern struct dsm_segment *sluice_share_create(Size size, ResourceOwner *owner);
extern void sluice_share_end(struct dsm_segment *segment, ResourceOwner owner);
extern bool sluice_share_parallel(struct ParallelContext *parallel);

/* copy/copy.c */
extern uint64 sluice_copy(SluiceStatement *s);

#endif							/* PGSLUICE_H */
