/*
 * The C interface of the core. Its other half is src/lib.rs, where each part
 * is explained. tests/header.rs checks that the two agree.
 */
#ifndef PGSLUICE_CORE_H
#define PGSLUICE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * RULES OF THIS BORDER.  The core never calls PostgreSQL, so no longjmp() can
 * skip its frames. The few C functions that it calls raise no error. It never
 * reads a catalog: everything it needs is in its arguments. It allocates a
 * bounded amount. Each allocation can fail; the failure is returned as a
 * status or NULL, and the caller raises the error. A panic of Rust becomes the
 * status …_PANIC, or NULL: it is a bug, and the statement has to fail. What a
 * function returns by pointer belongs to the core, and lives until the next
 * call for the same object unless its comment says otherwise.
 */

/* How the records of one statement become tuples of one relation. */
typedef struct SluicePlan SluicePlan;

/* A label of an enum type. */
typedef struct SluiceLabel
{
	const uint8_t *label;				/* not terminated by a zero */
	size_t		len;
	uint32_t	oid;					/* pg_enum.oid */
} SluiceLabel;

/* An attribute of the relation. Dropped ones are included. */
typedef struct SluiceColumn
{
	uint32_t	type_oid;				/* of the base type; 0: only the server can read it */
	int32_t		typmod;					/* atttypmod */
	int32_t		source;					/* field of the record, from 0, or SLUICE_FROM_… */
	const SluiceLabel *labels;			/* for an enum type */
	size_t		nlabels;
	const uint8_t *given;				/* SLUICE_FROM_GIVEN: the value, without varlena header */
	size_t		given_len;
	int16_t		len;					/* attlen */
	uint8_t		align;					/* attalign in bytes */
	uint8_t		element_align;			/* for an array type: that of its elements */
	bool		packable;				/* attstorage is not plain: a varlena may have a short header */
	bool		not_null;				/* a NULL is left to the server, which rejects it */
	bool		force_null;				/* named by FORCE_NULL */
	bool		force_not_null;			/* named by FORCE_NOT_NULL */
} SluiceColumn;

/* SluiceColumn.source: a NULL, the same value in each row, or a value that C fills in later. */
#define SLUICE_FROM_NULL (-1)
#define SLUICE_FROM_GIVEN (-2)
#define SLUICE_FROM_BLANK (-3)

/* the longest slice of input that pgsluice_form() accepts */
#define SLUICE_MAX_SLICE ((size_t) 8 << 20)

/* COPY's options for the format of the data. */
typedef struct SluiceDialect
{
	const uint8_t *null;				/* the NULL marker */
	size_t		null_len;
	const uint8_t *default_marker;		/* NULL: the statement has none */
	size_t		default_len;
	bool		binary;					/* FORMAT binary; the other fields are then ignored */
	bool		csv;					/* FORMAT csv; otherwise text */
	bool		dot_ends;				/* a line of \. ends the data of a file, as up to 17 */
	uint8_t		delimiter;
	uint8_t		quote;
	uint8_t		escape;
} SluiceDialect;

/*
 * Settings of the session that determine the meaning of a text. They must not change while the plan
 * is used.
 */
typedef struct SluiceEnv
{
	bool		utc;					/* TimeZone is UTC */
	uint8_t		date_order;				/* DATEORDER_… of miscadmin.h */
	bool		money_c;				/* lc_monetary is C */
	bool		single_byte;			/* the database's encoding is single-byte */
} SluiceEnv;

/* Why pgsluice_form() has returned. */
typedef enum SluiceStatus
{
	SLUICE_MORE = 0,					/* the slice has no further complete record */
	SLUICE_FULL = 1,					/* no room for another tuple or row: empty them and call again */
	SLUICE_ASK = 2,						/* the server has to read the record at `consumed` */
	SLUICE_ENDED = 3,					/* a line of \. has ended the data */
	SLUICE_PANIC = 4,					/* a bug: the statement has to fail */
	SLUICE_MEMORY = 5					/* out of memory: the statement has to fail */
} SluiceStatus;

/* A tuple that was formed, and the record it was formed from. */
typedef struct SluiceRow
{
	uint32_t	offset;					/* of the tuple in the arena */
	uint32_t	len;					/* t_len */
	uint32_t	blank;					/* offset in the tuple of the value to fill in; 0: there is none */
	uint32_t	record;					/* where the record begins in the slice */
	uint32_t	line;					/* the last line of the record, from 1 in the slice */
	uint32_t	asks;					/* how many of its values are in `asks`: the next ones */
} SluiceRow;

/* A value that the server's input function has to read. Its text is in the arena. */
typedef struct SluiceAsk
{
	uint32_t	offset;
	uint32_t	len;
	uint32_t	column;
	uint32_t	row;
} SluiceAsk;

/*
 * Input, memory for the results, and how far forming has got. The caller sets the fields without
 * "out".
 */
typedef struct SluiceSlice
{
	const uint8_t *input;				/* begins at the start of a record; valid UTF-8 */
	size_t		input_len;
	uint8_t    *arena;					/* for tuples; aligned to 8 bytes */
	size_t		arena_len;
	size_t		arena_used;				/* in and out; a multiple of 8 */
	SluiceRow  *rows;
	size_t		rows_len;
	SluiceAsk  *asks;
	size_t		asks_len;
	size_t		rows_used;				/* out */
	size_t		consumed;				/* out: bytes of the records that were formed */
	uint64_t	lines;					/* out: number of their lines */
	uint8_t		eol;					/* in and out: EolType of the lines so far */
	bool		last;					/* no bytes follow these */
	bool		pack;					/* form pages at the start of the arena, which is unused */
	uint32_t	page_longest;			/* a longer tuple does not go into a page */
	uint32_t	page_reserve;			/* bytes that stay free in each page */
	uint32_t	page_limit;				/* the most pages, 0: no limit; with one, rows of a page that is not full are left for the next call */
	size_t		pages;					/* out */
	size_t		paged;					/* out: how many of the rows are in pages */
} SluiceSlice;

/*
 * Functions for the core's large buffers, with the meaning of malloc() and so on. They raise no
 * error. They are set once, before any other function of the core is called.
 */
typedef struct SluiceLargePieces
{
	void	   *(*alloc) (size_t size);
	void	   *(*realloc) (void *piece, size_t size);
	void		(*free) (void *piece);
} SluiceLargePieces;

/* Called in the only thread of the process. */
extern void pgsluice_large_pieces(const SluiceLargePieces *functions);

/*
 * Makes a plan from copies of its arguments. `fields`: the fields of a record. NULL: out of memory,
 * or an invalid column.
 */
extern SluicePlan *pgsluice_plan(const SluiceColumn *columns, size_t ncolumns,
								 size_t fields, const SluiceDialect *dialect,
								 const SluiceEnv *env);
extern void pgsluice_plan_free(SluicePlan *plan);
/*
 * Whether the core reads the text of a base type as the type's input function
 * does.
 */
extern bool pgsluice_reads(uint32_t oid);
/* How many bytes from the start are valid UTF-8 without a zero byte. */
extern size_t pgsluice_valid_utf8(const uint8_t *data, size_t len);
/* Forms tuples from the records at the start of the slice. One call at a time for each plan. */
extern SluiceStatus pgsluice_form(SluicePlan *plan, SluiceSlice *slice);

/*
 * Sorting for indexes (src/index.rs, rank.rs, index_page.rs, team.rs). The
 * core sorts, merges and forms the pages of a B-tree. C has the temporary
 * files: a status of the core says which bytes have to be written or read, and
 * the core continues when it is called again. A build is used as follows.
 *
 *   new
 *   add or add_page, for all rows; after …_FULL: settle, values and
 *       rank for each attribute that is ranked, flush, and step until …_ADD
 *   settle, values and rank again, finish
 *   step until …_DONE
 *   free
 *
 * An attribute is ranked (SLUICE_ORDER_RANKED) if only the server can compare
 * its values, as for text with a collation. C sorts the distinct values by the
 * operator class, and the core sorts the rows by the numbers of these values.
 *
 * Builds in several processes are joined either whole (spread, spread_with,
 * sort_as, join: all words in one layout) or by their runs (spill, runs,
 * adopt).
 */
typedef struct SluiceIndex SluiceIndex;
typedef struct SluiceIndexSource SluiceIndexSource;

/* SluiceIndexAttribute.order: enum Order of crates/core/src/index_sort. */
#define SLUICE_ORDER_SIGNED 0
#define SLUICE_ORDER_UNSIGNED 1
#define SLUICE_ORDER_FLOAT 2
#define SLUICE_ORDER_FIXED 3
#define SLUICE_ORDER_TEXT 4
#define SLUICE_ORDER_BYTEA 5
#define SLUICE_ORDER_CARRIED 6
#define SLUICE_ORDER_RANKED 7

/* An attribute of an index, key columns first. */
typedef struct SluiceIndexAttribute
{
	int16_t		len;					/* attlen */
	uint8_t		align;					/* attalign in bytes */
	bool		by_value;				/* attbyval */
	uint8_t		order;					/* SLUICE_ORDER_… */
	bool		descending;
	bool		nulls_first;
	bool		exact;					/* for ranked values: equal values have equal bytes */
} SluiceIndexAttribute;

/* The distinct values of a ranked attribute, numbered from 0. */
typedef struct SluiceIndexValues
{
	const uint8_t *images;				/* each as a Datum points to it, or a Datum; aligned to 8 bytes */
	const uint32_t *starts;				/* where each begins, in units of 8 bytes */
	size_t		count;
} SluiceIndexValues;

/* A column of the table, if the core itself reads the rows. */
typedef struct SluiceIndexColumn
{
	int16_t		len;					/* attlen */
	int16_t		attribute;				/* its attribute of the index, from 0; -1: it has none */
	uint8_t		align;					/* attalign in bytes */
} SluiceIndexColumn;

/* The properties of an index as a whole. */
typedef struct SluiceIndexRules
{
	size_t		keys;					/* how many attributes are the key; the others are INCLUDEd */
	size_t		memory;					/* bytes for rows; beyond that they have to be flushed */
	uint16_t	leaf_free;				/* bytes to leave free on a leaf */
	bool		unique;					/* equal keys return …_DUPLICATE */
	bool		nulls_not_distinct;		/* for that, a NULL equals a NULL */
	bool		first_in_table;			/* report the first row of the table that repeats a key, not the first such key */
	bool		reports_pairs;			/* report equal keys and reject none */
	bool		deduplicate;			/* form posting lists */
	bool		mixed;					/* a ranked value may be compressed in one row and not in another */

	/* called while rows are sorted: whether to stop; NULL: never */
	bool		(*interrupted) (void);
} SluiceIndexRules;

/* The result of a call, and what to do next. */
typedef enum SluiceIndexStatus
{
	SLUICE_INDEX_GO = 0,				/* done; after a step: call it again */
	SLUICE_INDEX_FULL = 1,				/* added; flush before the next row */
	SLUICE_INDEX_UNFIT = 2,				/* not added: only the server's own build accepts this value */
	SLUICE_INDEX_WRITE = 3,				/* append the bytes to the temporary file */
	SLUICE_INDEX_READ = 4,				/* supply the bytes from start to end of the temporary file */
	SLUICE_INDEX_PAGES = 5,				/* take the pages */
	SLUICE_INDEX_ADD = 6,				/* the run is written: more rows may be added */
	SLUICE_INDEX_DONE = 7,				/* the tree is complete */
	SLUICE_INDEX_DUPLICATE = 8,			/* two rows have the same key */
	SLUICE_INDEX_NO_MEMORY = 9,			/* the statement has to fail */
	SLUICE_INDEX_CORRUPT = 10,			/* the temporary file does not hold what was written */
	SLUICE_INDEX_PANIC = 11,			/* a bug: the statement has to fail */
	SLUICE_INDEX_CROWDED = 12,			/* not added: ranked attributes have too many distinct values */
	SLUICE_INDEX_INTERRUPTED = 13		/* `interrupted` has returned true */
} SluiceIndexStatus;

/* What a step returns or requests, by its status. */
typedef struct SluiceIndexStep
{
	const uint8_t *bytes;				/* WRITE: to be written; DUPLICATE: an index tuple with the key */
	size_t		len;
	uint64_t	start;					/* READ: the first byte; DUPLICATE: the first row with the key */
	uint64_t	end;					/* READ: the byte after the last one */
	uint64_t	rows;					/* rows in the tree */
	uint32_t	root;					/* DONE: block number of the root; 0: there is none */
	uint32_t	level;					/* DONE: of the root */
} SluiceIndexStep;

/*
 * In which bits the rows of one or more builds differ. With it, all builds
 * sort in one layout of as few bits as possible, so that their words can be
 * merged.
 */
typedef struct SluiceIndexSpread
{
	uint64_t	rows;					/* 0: nothing else is set */
	uint64_t	prefix[2];
	uint64_t	place;					/* a row address */
	uint64_t	varying_prefix[2];
	uint64_t	varying_place;
} SluiceIndexSpread;

/* NULL: out of memory, or an invalid attribute. */
extern SluiceIndex *pgsluice_index_new(const SluiceIndexAttribute *attributes,
									   size_t count, const SluiceIndexRules *rules);
extern void pgsluice_index_free(SluiceIndex *build);
/*
 * `stored`: the values are as index_form_tuple() stores them. If not, one that may be stored
 * otherwise is …_UNFIT.
 */
extern SluiceIndexStatus pgsluice_index_add(SluiceIndex *build, uint64_t tid, bool dead,
											bool stored, const uintptr_t *values,
											const bool *nulls);
/* The values of a ranked attribute; valid until a row is added. …_CORRUPT: it is not ranked. */
extern SluiceIndexStatus pgsluice_index_values(const SluiceIndex *build, size_t attribute,
											   SluiceIndexValues *values);
/*
 * Before the first pgsluice_index_values(): numbers the values of all rows. Returns GO or
 * …_CROWDED.
 */
extern SluiceIndexStatus pgsluice_index_settle(SluiceIndex *build);
/* The numbers of the values in ascending order, and whether each value equals the one before it. */
extern SluiceIndexStatus pgsluice_index_rank(SluiceIndex *build, size_t attribute,
											 const uint32_t *order, const bool *equal,
											 size_t count);
/* How tuples of the table are read, up to its last column that the index has; NULL as above. */
extern SluiceIndexSource *pgsluice_index_source_new(const SluiceIndexColumn *columns,
													size_t count);
extern void pgsluice_index_source_free(SluiceIndexSource *source);
/* Adds rows of a heap page from offsets[*next] on. FULL and UNFIT refer to the row at *next. */
extern SluiceIndexStatus pgsluice_index_add_page(SluiceIndex *build,
												 const SluiceIndexSource *source,
												 const uint8_t *page, uint32_t block,
												 const uint16_t *offsets, size_t count,
												 size_t *next);
/*
 * Only sorts: pgsluice_index_sorted() then returns index tuples from row `from` on; DONE: no more,
 * and the rows are removed.
 */
extern SluiceIndexStatus pgsluice_index_sort(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_sorted(SluiceIndex *build, size_t from,
											   SluiceIndexStep *step);
/* Sorts the rows that were added. The next steps write them. */
extern SluiceIndexStatus pgsluice_index_flush(SluiceIndex *build);
/* No more rows follow. The next steps return the pages. */
extern SluiceIndexStatus pgsluice_index_finish(SluiceIndex *build);
/* Continues for some thousand rows at most, so that the caller can check for interrupts. */
extern SluiceIndexStatus pgsluice_index_step(SluiceIndex *build, SluiceIndexStep *step);
/*
 * Returns the pairs of adjacent rows with equal keys since the last step, and
 * their number.
 */
extern size_t pgsluice_index_pairs(const SluiceIndex *build, const uint64_t (**pairs)[2]);
/* Supplies the bytes that a step has requested. */
extern SluiceIndexStatus pgsluice_index_supply(SluiceIndex *build, const uint8_t *bytes,
											   size_t len);
/* PAGES: a finished page was copied to `page`, and its number to `block`. GO: there is none. */
extern SluiceIndexStatus pgsluice_index_page(SluiceIndex *build, uint8_t *page,
											 uint32_t *block);
/* False: the rows cannot be passed to another build. */
extern bool pgsluice_index_spread(const SluiceIndex *build, SluiceIndexSpread *spread);
extern void pgsluice_index_spread_with(SluiceIndexSpread *spread,
									   const SluiceIndexSpread *other);
/* step->bytes is what another process passes to pgsluice_index_join(). */
extern SluiceIndexStatus pgsluice_index_sort_as(SluiceIndex *build,
												const SluiceIndexSpread *spread,
												SluiceIndexStep *step);
extern SluiceIndexStatus pgsluice_index_join(SluiceIndex *build,
											 const uint8_t *bytes, size_t len);
/* From now on rows may take up to `bytes` bytes. */
extern void pgsluice_index_limit(SluiceIndex *build, size_t bytes);
/*
 * Sorts the rows that were added, and the next steps write them; DONE: there
 * are none.
 */
extern SluiceIndexStatus pgsluice_index_spill(SluiceIndex *build);
/* Where the runs are in the file: for each, its first byte and the byte after its last one. */
extern SluiceIndexStatus pgsluice_index_runs(SluiceIndex *build, SluiceIndexStep *step);
/* Takes over a run of another file; `start` and `end` say which, see SLUICE_INDEX_PLACE_BITS. */
extern SluiceIndexStatus pgsluice_index_adopt(SluiceIndex *build, uint64_t start,
											  uint64_t end);

#endif							/* PGSLUICE_CORE_H */
