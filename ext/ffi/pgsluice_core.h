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
} SluiceEnv;

typedef enum SluiceStatus
{
	SLUICE_MORE = 0,
	SLUICE_FULL = 1,
	SLUICE_ASK = 2,
	SLUICE_ENDED = 3,
	SLUICE_PANIC = 4
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
} SluiceSlice;

extern SluicePlan *pgsluice_plan(const SluiceColumn *columns, size_t ncolumns,
								 size_t fields, const SluiceDialect *dialect,
								 const SluiceEnv *env);
extern void pgsluice_plan_free(SluicePlan *plan);
extern bool pgsluice_reads(uint32_t oid);
extern size_t pgsluice_valid_utf8(const uint8_t *data, size_t len);
extern SluiceStatus pgsluice_form(SluicePlan *plan, SluiceSlice *slice);

#endif							/* PGSLUICE_CORE_H */
