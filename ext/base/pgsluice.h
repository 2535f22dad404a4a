/*
 * Declarations that all rooms of the extension share. Nothing here refers to
 * the contents of another room.
 */
#ifndef PGSLUICE_H
#define PGSLUICE_H

#include "compat/compat.h"
#include "ffi/pgsluice_core.h"

#include "access/transam.h"
#include "catalog/pg_trigger.h"

/* The core forms tuples and pages for such servers only. */
#if BLCKSZ != 8192 || SIZEOF_VOID_P != 8 || defined(WORDS_BIGENDIAN)
#error "pgsluice is built for servers of 64 bits, little-endian, with pages of 8 kB"
#endif

/* What the last COPY of this session did; shown by pgsluice.last_copy. */
typedef struct SluiceReport
{
	bool		valid;			/* the COPY has succeeded */
	Oid			relid;
	const char *route;
	uint64		rows;
	uint64		rows_by_server; /* of these, read by the server's own parser */
	uint64		values_by_server;	/* single values read by the server's input functions */
	uint64		values_by_workers;	/* the same, read in workers */
	uint64		values_compressed;	/* by workers, before their rows were inserted */
	const char *leader_reads;	/* why workers may not read values, or NULL */
	const char *expressions;	/* who computes generated columns and checks constraints before the insertion, or NULL */
	uint64		bytes;
	int			workers;
	instr_time	total;
	instr_time	reading;
	instr_time	forming;
	instr_time	heap;
	instr_time	after;			/* indexes and AFTER triggers */
	uint64		wal_bytes;
	uint64		rejected;		/* records that went to the table of rejects_to */
	uint64		skipped;		/* duplicates that were not inserted */
	uint64		replaced;		/* rows that a duplicate has replaced */
	uint64		index_memory;	/* the most bytes of waiting index entries; 0: none waited */
	uint32		switched_off;	/* switches that are off: see sluice_switched_off() */
	Oid			user;			/* the user who ran it; InvalidOid: there was no COPY */
	char		reason[256];	/* why stock COPY did it, or empty */
} SluiceReport;

extern SluiceReport sluice_report;

/*
 * The number of this build (see the Makefile). A worker loads the library from
 * its file, which may have been replaced since the leader loaded it. So this
 * number comes first in everything that leader and workers share.
 */
#define SLUICE_BUILD_LEN 64
extern const char sluice_build[];

#define SLUICE_REPLACED "the library pgsluice has been replaced since this session loaded it"
#define SLUICE_REPLACED_HINT "A new session has the new library, and workers again."

/* require_build.c */
extern bool sluice_require_build(const char *build, int level);

/* report.c */
extern ReturnSetInfo *sluice_begin_rows(FunctionCallInfo fcinfo, int columns);
extern bool sluice_may_see(Oid user);
extern void sluice_explain_nothing(bool hidden, const char *what, const char *setting);
extern void sluice_note_loading(void);

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
	bool		workers_asked;	/* given in the statement: they start at once */
	int			index_workers;	/* how many may help with the indexes at the end */
	bool		exclusive;		/* lock 'exclusive' */
	char	   *rejects_to;		/* a table's name; NULL: an error ends the statement */
	int64		max_rejects;	/* or SLUICE_NO_LIMIT */
	bool		max_rejects_asked;	/* given in the statement */
	SluiceOnDuplicate on_duplicate;
	char	   *on_duplicate_index; /* its name; NULL: the primary key */
	char	   *duplicates_to;	/* a table's name; NULL: they are only counted */
} SluiceOptions;

/*
 * pgsluice.debug_force_routes, for tests: small data takes the routes of large
 * data. Code that decides by a size compares with sluice_threshold() of it.
 */
typedef enum SluiceForce
{
	SLUICE_FORCE_OFF,
	SLUICE_FORCE_ON,
	SLUICE_FORCE_WORKERS		/* and workers form all rows that they can */
} SluiceForce;

extern int	sluice_force;

static inline uint32
sluice_threshold(uint32 size)
{
	return sluice_force == SLUICE_FORCE_OFF ? size : 0;
}

/* options.c */
extern bool sluice_enabled;		/* pgsluice.copy */
extern void sluice_options_init(void);
extern int	sluice_workers_allowed(void);
extern bool sluice_has_own_options(const CopyStmt *stmt);
extern void sluice_find_options(CopyStmt *stmt, bool has_own, SluiceOptions *own);
extern const char *sluice_option_that_needs_us(const SluiceOptions *own);
extern void sluice_refuse_combination(const char *option, const char *what);

/*
 * What the administrator allows: the paths that are not stock code, most of
 * which write pages or WAL themselves. Each has a switch.
 */
typedef struct SluiceAllowed
{
	bool		anything;
	bool		whole_pages;
	bool		index_append;
	bool		index_leaf_merge;
	bool		gin_merge;
	bool		hash_merge;
	bool		unique_leaf_merge;
	bool		sequence_blocks;
	bool		index_build;
	bool		foreign_keys;
	bool		expressions;
	bool		compression;
	bool		partition_pages;
} SluiceAllowed;

#define SLUICE_NO_INDEX_APPEND "pgsluice.allow_index_append is off"
#define SLUICE_NO_INDEX_LEAF_MERGE "pgsluice.allow_index_leaf_merge is off"
#define SLUICE_NO_GIN_MERGE "pgsluice.allow_gin_merge is off"
#define SLUICE_NO_HASH_MERGE "pgsluice.allow_hash_merge is off"
#define SLUICE_NO_UNIQUE_LEAF_MERGE "pgsluice.allow_unique_leaf_merge is off"
#define SLUICE_NO_INDEX_BUILD "pgsluice.allow_index_build is off"

/* admin.c */
extern SluiceAllowed sluice_allowed;
extern Size sluice_live_index_memory(void);
extern void sluice_admin_init(void);
extern int	sluice_max_workers_per_copy(void);
extern int	sluice_max_workers(void);
extern const char *sluice_admin_why_not(void);
extern const char *sluice_admin_why_no_builds(void);
extern uint32 sluice_switched_off(void);
extern char *sluice_switches(uint32 off);

/* Places for workers that a session has taken: see worker_slots.c. */
#define SLUICE_MAX_SLOTS 1024

typedef struct SluiceSlots
{
	int			count;
	int			place[SLUICE_MAX_WORKERS];
	ResourceOwner owner;
} SluiceSlots;

/* worker_slots.c */
extern int	sluice_slots_take(SluiceSlots *slots, int count);
extern void sluice_slots_keep(SluiceSlots *slots, int count);
extern int	sluice_slots_free(int count);
extern bool sluice_slots_take_one(void);

/* hooks.c */
extern bool sluice_hooks_came_first;
extern void sluice_hooks_init(void);
extern const char *sluice_hooks_why_not(void);

/* One COPY FROM as the hook received it, without our own options. */
typedef struct SluiceStatement
{
	CopyStmt   *stmt;
	ParseState *pstate;
	Relation	rel;			/* opened and locked by sluice_why_not() */
	bool		volatile_checks;	/* a CHECK constraint or a condition is volatile */
	List	   *attnums;
	Node	   *where;
	QueryCompletion *completion;
	SluiceOptions options;
	Oid			arbiter;		/* the unique index of on_duplicate */
} SluiceStatement;

/* subtransaction.c */
typedef void (*SluiceWork) (void *arg);

extern ErrorData *sluice_in_subtransaction(SluiceWork work, void *arg);

/* core_memory.c */
extern void sluice_core_memory_init(void);

/* An attalign in bytes. */
static inline uint8
sluice_align_bytes(char attalign)
{
	switch (attalign)
	{
		case TYPALIGN_CHAR:
			return 1;
		case TYPALIGN_SHORT:
			return ALIGNOF_SHORT;
		case TYPALIGN_INT:
			return ALIGNOF_INT;
		default:
			return ALIGNOF_DOUBLE;
	}
}

/* blocks.c */
extern void sluice_write_blocks(Relation rel, BlockNumber first, uint32 n, char *pages,
								bool skip_sync);

/* checks.c */
extern bool sluice_function_is_unsafe(Oid function, void *context);

/*
 * Whether a function, although it is volatile, reads no table. These are common
 * in defaults.
 */
static inline bool
sluice_reads_no_table(Oid function)
{
	return function == F_NEXTVAL || function == F_CLOCK_TIMESTAMP || function == F_TIMEOFDAY ||
		function == F_GEN_RANDOM_UUID || compat_is_random(function);
}

extern bool sluice_is_plain_expression(Node *expr);
extern const char *sluice_domain_why_not(Oid domain);
extern bool sluice_domain_takes_null(Oid domain);
extern bool sluice_type_is_volatile(Oid type, char least);
extern bool sluice_has_volatile_checks(Relation rel, Node *where, char least);
extern bool sluice_catalog_has_volatile_checks(Oid relid, bool checks, bool triggers);

/* Whether one row of a catalog is what the caller looks for. */
typedef bool (*SluiceIsSought) (HeapTuple tuple, TupleDesc desc, const void *context);

extern bool sluice_any_trigger(Oid relid, SluiceIsSought is_sought, const void *context);
extern bool sluice_any_constraint(Oid relid, SluiceIsSought is_sought, const void *context);

/*
 * Whether a trigger runs code of a user after each row that is inserted. The
 * server's own functions, such as the checks of foreign keys, do not count.
 */
static inline bool
sluice_is_after_trigger(int16 type, Oid function)
{
	return TRIGGER_FOR_ROW(type) && TRIGGER_FOR_AFTER(type) && TRIGGER_FOR_INSERT(type) &&
		function >= FirstNormalObjectId;
}

/* What is known of a relation. Entries are reused. */
typedef struct SluiceRelationCache
{
	Oid			relid;			/* InvalidOid: nothing is known */
	Bitmapset  *judged;			/* columns whose defaults have been examined */
	Bitmapset  *one_by_one;		/* of these, columns that need rows to be inserted one by one */
	bool		partitions_judged;
	const char *partitions_why_not; /* if so: why its partitions cannot be loaded here, or NULL */
	bool		partitions_volatile; /* if so: whether a partition has something volatile that may see the load */
} SluiceRelationCache;

/* relation_cache.c */
extern uint64 sluice_relation_changes; /* counts invalidations of any relation */
extern SluiceRelationCache *sluice_relation_cache(Oid relid);

/*
 * Whether an error is caused by the data. Errors of the server, the session,
 * the user's rights or the table's own functions would occur for any record.
 * `reading`: the error was raised while a value was read.
 */
static inline bool
sluice_is_about_the_data(int sqlerrcode, bool reading)
{
	switch (ERRCODE_TO_CATEGORY(sqlerrcode))
	{
		case ERRCODE_DATA_EXCEPTION:
			return sqlerrcode != ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED;
		case ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION:
		case ERRCODE_CARDINALITY_VIOLATION:
		case ERRCODE_WITH_CHECK_OPTION_VIOLATION:
		case ERRCODE_PROGRAM_LIMIT_EXCEEDED:
		case ERRCODE_FEATURE_NOT_SUPPORTED:
			return true;
		case ERRCODE_PLPGSQL_ERROR:
			return sqlerrcode != ERRCODE_ASSERT_FAILURE;
		case ERRCODE_TO_CATEGORY(ERRCODE_SYNTAX_ERROR):
			/*
			 * Values of some types are names of objects or queries. Otherwise
			 * the error comes from a trigger or a default.
			 */
			return reading && sqlerrcode != ERRCODE_INSUFFICIENT_PRIVILEGE;
		default:
			return false;
	}
}

typedef struct SluiceSpiInsert SluiceSpiInsert;

/* spi_insert.c */
extern SluiceSpiInsert *sluice_spi_insert_open(const char *name, const char *option, Relation target,
									const char *const *columns, const Oid *types, int ncolumns);
extern void sluice_spi_insert_row(SluiceSpiInsert *kept, Datum *values, const bool *isnull);
extern bool sluice_spi_insert_runs_code(const SluiceSpiInsert *kept);
extern const char *sluice_spi_insert_name(const SluiceSpiInsert *kept);

/* COPY's option on_duplicate. */
typedef struct SluiceDuplicates
{
	SluiceOnDuplicate mode;
	Oid			arbiter;		/* the unique index of the table that the statement names */
	SluiceSpiInsert *lost_rows;		/* the table for the rows that lose, or NULL */
	bool		at_end;			/* they are found after all rows are inserted */
	bool		keeping;		/* such a row is being inserted there, or has failed */
	uint64		skipped;
	uint64		replaced;
} SluiceDuplicates;

/* A default that draws a value from a sequence for every row. */
typedef struct SluiceSequence
{
	Oid			sequence;		/* InvalidOid if there is none */
	bool		check;			/* permissions are checked, as nextval() does */
	AttrNumber	attnum;			/* the column */
	int			len;			/* its length in bytes: 2, 4 or 8 */
	bool		blocks;			/* values for many rows may be reserved at once */
	int64		step;
	int64		min;
	int64		max;
	int64		expected;		/* rows that are going to need a value */
	int64		next;			/* the first of the reserved values */
	int64		left;			/* how many values are reserved */
} SluiceSequence;

/* sequence.c */
extern void sluice_sequence_open(SluiceSequence *serial, bool blocks);
extern void sluice_sequence_expect(SluiceSequence *serial, int64 count);
extern void sluice_sequence_fill(SluiceSequence *serial, char *place);
extern bool sluice_sequence_fill_reserved(SluiceSequence *serial, char *place);

struct dsm_segment;
struct ParallelContext;

/* shared_memory.c */
extern struct dsm_segment *sluice_share_create(Size size, ResourceOwner *owner);
extern void sluice_share_end(struct dsm_segment *segment, ResourceOwner owner);
extern bool sluice_share_parallel(struct ParallelContext *parallel);

#endif							/* PGSLUICE_H */
