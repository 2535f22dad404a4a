/*
 * Values that only the server can compare, sorted by two processes: the leader
 * sorts those with low numbers, and the worker that is going to write the
 * index the others, which go to it by a temporary file and come back by
 * another.
 *
 * Both sort by the same operator class and collation in the same library, so
 * the merge of the two orders is an order. The leader merges (sort_values() in
 * value_ranks.c). If the worker fails, the leader's statement ends.
 */
#include "index/build.h"

#include <fcntl.h>

#include "storage/buffile.h"
#include "utils/memutils.h"

#define VALUES_FILE "values"
#define ORDER_FILE "order"

/* Fewer values are sorted before a worker could have them. */
#define FEWEST 20000

/* What is in front of the values. */
typedef struct Head
{
	uint32		first;			/* number of the first one */
	uint32		count;
	Size		bytes;			/* of the images, which come last */
} Head;

/* BufFileWrite() takes no const before 16. */
static void
write_bytes(BufFile *file, const void *bytes, Size len)
{
	BufFileWrite(file, unconstify(void *, bytes), len);
}

/*
 * Leaves some values of an index's only column, which is of variable length,
 * to a worker, if there is one: those from the returned number on.
 */
size_t
sluice_index_values_apart(const SluiceIndexBuild *build, const SluiceIndexValues *values)
{
	PageQueue *pipe = sluice_parallel_build_pipe(build);
	const size_t first = values->count / 2;
	const uint32 *starts = values->starts + first;
	const uint8 *images;
	Head		head = {.first = (uint32) first,.count = (uint32) (values->count - first)};
	BufFile    *file;

	if (pipe == NULL || values->count < Max(sluice_threshold(FEWEST), 2))
		return values->count;
	images = values->images + (Size) starts[0] * 8;
	head.bytes = (Size) (starts[head.count - 1] - starts[0]) * 8;
	head.bytes += MAXALIGN(VARSIZE(images + head.bytes));
	file = BufFileCreateFileSet(sluice_parallel_build_files(build), VALUES_FILE);
	write_bytes(file, &head, sizeof(head));
	write_bytes(file, starts, sizeof(uint32) * head.count);
	write_bytes(file, images, head.bytes);
	BufFileExportFileSet(file);
	BufFileClose(file);
	sluice_page_queue_ask(pipe);
	return first;
}

/* Those values in their order, so many. */
void
sluice_index_take_values(const SluiceIndexBuild *build, SluiceIndexRanked *values, size_t count)
{
	BufFile    *file;

	sluice_page_queue_await(sluice_parallel_build_pipe(build));
	file = BufFileOpenFileSet(sluice_parallel_build_files(build), ORDER_FILE, O_RDONLY, false);
	sluice_index_read_file(file, 0, values, count * sizeof(SluiceIndexRanked));
	BufFileClose(file);
}

/* The worker's part. */
void
sluice_index_sort_apart(struct FileSet *files, Relation index)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice values",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	BufFile    *file = BufFileOpenFileSet(files, VALUES_FILE, O_RDONLY, false);
	SluiceIndexValues values;
	Head		head;
	uint32	   *starts;
	uint32		before;
	uint8	   *images;

	sluice_index_read_file(file, 0, &head, sizeof(head));
	starts = MemoryContextAllocHuge(context, sizeof(uint32) * head.count);
	images = MemoryContextAllocHuge(context, head.bytes);
	sluice_index_read_file(file, sizeof(head), starts, sizeof(uint32) * head.count);
	sluice_index_read_file(file, sizeof(head) + sizeof(uint32) * head.count, images, head.bytes);
	BufFileClose(file);
	before = starts[0];
	for (uint32 i = 0; i < head.count; i++)
		starts[i] -= before;
	values = (SluiceIndexValues) {.images = images,.starts = starts,.count = head.count};

	file = BufFileCreateFileSet(files, ORDER_FILE);
	write_bytes(file, sluice_index_sort_values(index, &values, head.first),
				sizeof(SluiceIndexRanked) * head.count);
	BufFileExportFileSet(file);
	BufFileClose(file);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
