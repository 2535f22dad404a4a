/*
 * The C interface of the core: the other half of src/lib.rs, where each part
 * is explained. tests/header.rs checks that the two are in step.
 */
#ifndef PGSLUICE_CORE_H
#define PGSLUICE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct SluicePlan SluicePlan;

typedef struct SluiceLabel
{
	const uint8_t *label;
	size_t		len;
	uint32_t	oid;
} SluiceLabel;

typedef struct SluiceColumn
{
	uint32_t	type_oid;
	int32_t		typmod;
	int32_t		source;
	const SluiceLabel *labels;
	size_t		nlabels;
	const uint8_t *given;
	size_t		given_len;
	int16_t		len;
	uint8_t		align;
	uint8_t		element_align;
	bool		packable;
	bool		not_null;
	bool		force_null;
	bool		force_not_null;
} SluiceColumn;

#define SLUICE_FROM_NULL (-1)
#define SLUICE_FROM_GIVEN (-2)
#define SLUICE_FROM_BLANK (-3)

/* the longest slice of input that may be given to pgsluice_form */
#define SLUICE_MAX_SLICE ((size_t) 8 << 20)

typedef struct SluiceDialect
{
	const uint8_t *null;
	size_t		null_len;
	const uint8_t *default_marker;
	size_t		default_len;
	bool		binary;
	bool		csv;
	bool		dot_ends;
	uint8_t		delimiter;
	uint8_t		quote;
	uint8_t		escape;
} SluiceDialect;

typedef struct SluiceEnv
{
	bool		utc;
	uint8_t		date_order;
	bool		money_c;
	bool		single_byte;
} SluiceEnv;

typedef enum SluiceStatus
{
	SLUICE_MORE = 0,
	SLUICE_FULL = 1,
	SLUICE_ASK = 2,
	SLUICE_ENDED = 3,
	SLUICE_PANIC = 4,
	SLUICE_MEMORY = 5
} SluiceStatus;

typedef struct SluiceRow
{
	uint32_t	offset;
	uint32_t	len;
	uint32_t	blank;
	uint32_t	record;
	uint32_t	line;
	uint32_t	asks;
} SluiceRow;

typedef struct SluiceAsk
{
	uint32_t	offset;
	uint32_t	len;
	uint32_t	column;
	uint32_t	row;
} SluiceAsk;

typedef struct SluiceSlice
{
	const uint8_t *input;
	size_t		input_len;
	uint8_t    *arena;
	size_t		arena_len;
	size_t		arena_used;
	SluiceRow  *rows;
	size_t		rows_len;
	SluiceAsk  *asks;
	size_t		asks_len;
	size_t		rows_used;
	size_t		consumed;
	uint64_t	lines;
	uint8_t		eol;
	bool		last;
	bool		pack;
	uint32_t	page_longest;
	uint32_t	page_reserve;
	uint32_t	page_limit;
	size_t		pages;
	size_t		paged;
} SluiceSlice;

/*
 * Functions for the core's large buffers, as malloc() and its like. They raise no error. They are set
 * once, before any other function of the core is called.
 */
typedef struct SluiceLargePieces
{
	void	   *(*alloc) (size_t size);
	void	   *(*realloc) (void *piece, size_t size);
	void		(*free) (void *piece);
} SluiceLargePieces;

extern void pgsluice_large_pieces(const SluiceLargePieces *functions);

extern SluicePlan *pgsluice_plan(const SluiceColumn *columns, size_t ncolumns,
								 size_t fields, const SluiceDialect *dialect,
								 const SluiceEnv *env);
extern void pgsluice_plan_free(SluicePlan *plan);
extern bool pgsluice_reads(uint32_t oid);
extern size_t pgsluice_valid_utf8(const uint8_t *data, size_t len);
extern SluiceStatus pgsluice_form(SluicePlan *plan, SluiceSlice *slice);

/* src/index.rs and src/rank.rs */
typedef struct SluiceIndex SluiceIndex;
typedef struct SluiceIndexSource SluiceIndexSource;

#define SLUICE_ORDER_SIGNED 0
#define SLUICE_ORDER_UNSIGNED 1
#define SLUICE_ORDER_FLOAT 2
#define SLUICE_ORDER_FIXED 3
#define SLUICE_ORDER_TEXT 4
#define SLUICE_ORDER_BYTEA 5
#define SLUICE_ORDER_CARRIED 6
#define SLUICE_ORDER_RANKED 7

typedef struct SluiceIndexAttribute
{
	int16_t		len;
	uint8_t		align;
	bool		by_value;
	uint8_t		order;
	bool		descending;
	bool		nulls_first;
	bool		exact;
} SluiceIndexAttribute;

typedef struct SluiceIndexValues
{
	const uint8_t *images;
	const uint32_t *starts;
	size_t		count;
} SluiceIndexValues;

typedef struct SluiceIndexColumn
{
	int16_t		len;
	int16_t		attribute;
	uint8_t		align;
} SluiceIndexColumn;

typedef struct SluiceIndexTuple
{
	const uint8_t *tuple;
	size_t		len;
	uint64_t	tid;
} SluiceIndexTuple;

typedef struct SluiceIndexRules
{
	size_t		keys;
	size_t		memory;
	uint16_t	leaf_free;
	bool		unique;
	bool		nulls_not_distinct;
	bool		first_in_table;
	bool		tells_twins;
	bool		deduplicate;
	bool		mixed;
	bool		(*interrupted) (void);
} SluiceIndexRules;

typedef enum SluiceIndexStatus
{
	SLUICE_INDEX_GO = 0,
	SLUICE_INDEX_FULL = 1,
	SLUICE_INDEX_UNFIT = 2,
	SLUICE_INDEX_WRITE = 3,
	SLUICE_INDEX_READ = 4,
	SLUICE_INDEX_PAGES = 5,
	SLUICE_INDEX_ADD = 6,
	SLUICE_INDEX_DONE = 7,
	SLUICE_INDEX_DUPLICATE = 8,
	SLUICE_INDEX_NO_MEMORY = 9,
	SLUICE_INDEX_CORRUPT = 10,
	SLUICE_INDEX_PANIC = 11,
	SLUICE_INDEX_CROWDED = 12,
	SLUICE_INDEX_INTERRUPTED = 13
} SluiceIndexStatus;

typedef struct SluiceIndexStep
{
	const uint8_t *bytes;
	size_t		len;
	uint64_t	start;
	uint64_t	end;
	uint64_t	rows;
	uint32_t	root;
	uint32_t	level;
} SluiceIndexStep;

typedef struct SluiceIndexSpread
{
	uint64_t	rows;
	uint64_t	prefix[2];
	uint64_t	place;
	uint64_t	varying_prefix[2];
	uint64_t	varying_place;
} SluiceIndexSpread;

extern SluiceIndex *pgsluice_index_new(const SluiceIndexAttribute *attributes,
									   size_t count, const SluiceIndexRules *rules);
extern void pgsluice_index_free(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_add(SluiceIndex *build, uint64_t tid, bool dead,
											bool stored, const uintptr_t *values,
											const bool *nulls);
extern SluiceIndexStatus pgsluice_index_values(const SluiceIndex *build, size_t attribute,
											   SluiceIndexValues *values);
extern SluiceIndexStatus pgsluice_index_settle(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_rank(SluiceIndex *build, size_t attribute,
											 const uint32_t *order, const bool *equal,
											 size_t count);
extern SluiceIndexSource *pgsluice_index_source_new(const SluiceIndexColumn *columns,
													size_t count);
extern void pgsluice_index_source_free(SluiceIndexSource *source);
extern SluiceIndexStatus pgsluice_index_add_page(SluiceIndex *build,
												 const SluiceIndexSource *source,
												 const uint8_t *page, uint32_t block,
												 const uint16_t *offsets, size_t count,
												 size_t *next);
extern SluiceIndexStatus pgsluice_index_add_tuples(SluiceIndex *build,
												   const SluiceIndexSource *source,
												   const SluiceIndexTuple *tuples,
												   size_t count, size_t *next);
extern SluiceIndexStatus pgsluice_index_sort(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_sorted(SluiceIndex *build, size_t from,
											   SluiceIndexStep *step);
extern SluiceIndexStatus pgsluice_index_flush(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_finish(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_step(SluiceIndex *build, SluiceIndexStep *step);
extern size_t pgsluice_index_twins(const SluiceIndex *build, const uint64_t (**twins)[2]);
extern SluiceIndexStatus pgsluice_index_supply(SluiceIndex *build, const uint8_t *bytes,
											   size_t len);
extern SluiceIndexStatus pgsluice_index_page(SluiceIndex *build, uint8_t *page,
											 uint32_t *block);
extern bool pgsluice_index_spread(const SluiceIndex *build, SluiceIndexSpread *spread);
extern void pgsluice_index_spread_with(SluiceIndexSpread *spread,
									   const SluiceIndexSpread *other);
extern SluiceIndexStatus pgsluice_index_sort_as(SluiceIndex *build,
												const SluiceIndexSpread *spread,
												SluiceIndexStep *step);
extern SluiceIndexStatus pgsluice_index_join(SluiceIndex *build,
											 const uint8_t *bytes, size_t len);
extern void pgsluice_index_limit(SluiceIndex *build, size_t bytes);
extern SluiceIndexStatus pgsluice_index_spill(SluiceIndex *build);
extern SluiceIndexStatus pgsluice_index_runs(SluiceIndex *build, SluiceIndexStep *step);
extern SluiceIndexStatus pgsluice_index_adopt(SluiceIndex *build, uint64_t start,
											  uint64_t end);

#endif							/* PGSLUICE_CORE_H */
