/*
 * The arguments of a plan in one piece of memory without pointers, to hand them
 * to a worker.
 */
#include "rows/rows.h"

typedef struct Flat
{
	char	   *memory;			/* NULL to count */
	Size		used;
} Flat;

/* Copies a part and says where; without memory it only counts. */
static void *
append_bytes(Flat *flat, const void *data, Size len)
{
	Size		at = flat->used;

	flat->used = MAXALIGN(at + len);
	if (flat->memory && len > 0)
		memcpy(flat->memory + at, data, len);
	/* What is NULL has no place: offset 0 is the struct's own. */
	return data ? (void *) at : NULL;
}

/* The struct, the columns, then what they point to. */
static Size
flatten(const SluicePlanArgs *args, char *memory)
{
	Flat		flat = {memory, 0};
	SluicePlanArgs copy = *args;
	SluiceColumn *columns = palloc(sizeof(SluiceColumn) * args->ncolumns);
	Size		columns_at;

	append_bytes(&flat, args, sizeof(*args));
	columns_at = flat.used;
	copy.columns = append_bytes(&flat, args->columns, sizeof(SluiceColumn) * args->ncolumns);
	copy.dialect.null = append_bytes(&flat, args->dialect.null, args->dialect.null_len);
	copy.dialect.default_marker = append_bytes(&flat, args->dialect.default_marker, args->dialect.default_len);
	memcpy(columns, args->columns, sizeof(SluiceColumn) * args->ncolumns);
	for (size_t i = 0; i < args->ncolumns; i++)
	{
		SluiceColumn *column = &columns[i];
		SluiceLabel *labels = palloc(sizeof(SluiceLabel) * column->nlabels);

		column->given = append_bytes(&flat, column->given, column->given_len);
		for (size_t l = 0; l < column->nlabels; l++)
		{
			labels[l] = column->labels[l];
			labels[l].label = append_bytes(&flat, labels[l].label, labels[l].len);
		}
		column->labels = append_bytes(&flat, column->nlabels ? labels : NULL,
							 sizeof(SluiceLabel) * column->nlabels);
		pfree(labels);
	}
	if (memory)
	{
		memcpy(memory, &copy, sizeof(copy));
		memcpy(memory + columns_at, columns, sizeof(SluiceColumn) * args->ncolumns);
	}
	pfree(columns);
	return flat.used;
}

Size
sluice_plan_serialized_size(const SluicePlanArgs *args)
{
	return flatten(args, NULL);
}

void
sluice_plan_serialize(const SluicePlanArgs *args, char *flat)
{
	(void) flatten(args, flat);
}

/* Gives offsets their pointers back, in a copy of the columns and labels. */
void
sluice_plan_deserialize(const char *flat, SluicePlanArgs *args)
{
#define AT(p) ((p) ? (void *) (flat + (uintptr_t) (p)) : NULL)
#define AT_ALWAYS(p) ((void *) (flat + (uintptr_t) (p)))
	memcpy(args, flat, sizeof(*args));
	args->dialect.null = AT(args->dialect.null);
	args->dialect.default_marker = AT(args->dialect.default_marker);
	{
		SluiceColumn *columns = palloc(sizeof(SluiceColumn) * Max(args->ncolumns, 1));

		memcpy(columns, AT_ALWAYS(args->columns), sizeof(SluiceColumn) * args->ncolumns);
		args->columns = columns;
	}
	for (size_t i = 0; i < args->ncolumns; i++)
	{
		SluiceColumn *column = &args->columns[i];
		SluiceLabel *labels = palloc(sizeof(SluiceLabel) * Max(column->nlabels, 1));

		column->given = AT(column->given);
		if (column->nlabels)
			memcpy(labels, AT_ALWAYS(column->labels), sizeof(SluiceLabel) * column->nlabels);
		for (size_t l = 0; l < column->nlabels; l++)
			labels[l].label = AT(labels[l].label);
		column->labels = labels;
	}
#undef AT
#undef AT_ALWAYS
}
