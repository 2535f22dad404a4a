/*
 * Sorted runs of an index build on their way to a temporary file, and back when
 * they are merged: those of the process's own, and those that workers have left.
 */
#include "index/build.h"

#include "commands/tablespace.h"
#include "miscadmin.h"
#include "storage/buffile.h"

/* Most bytes that a step asks for at once. */
#define READ_BUFFER (64 * 1024)

void
sluice_index_write_run(SluiceIndexBuild *build, const SluiceIndexStep *step)
{
	if (build->file == NULL && build->shared)
		build->file = BufFileCreateFileSet(build->shared, build->shared_name);
	else if (build->file == NULL)
	{
		PrepareTempTablespaces();
		build->file = BufFileCreateTemp(false);
	}
	/* Merges read and write in turns. */
	if (BufFileSeek(build->file, 0, (off_t) build->spilled, SEEK_SET) != 0)
		elog(ERROR, "could not seek in a temporary file");
	BufFileWrite(build->file, unconstify(uint8 *, step->bytes), step->len);
	build->spilled += step->len;
}

/* Reads so many bytes of a temporary file, from there on. */
void
sluice_index_read_file(BufFile *file, uint64 from, void *bytes, Size len)
{
	if (BufFileSeek(file, 0, (off_t) from, SEEK_SET) != 0 ||
		BufFileRead(file, bytes, len) != len)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read a temporary file: %m")));
}

void
sluice_index_read_run(SluiceIndexBuild *build, const SluiceIndexStep *step)
{
	int			worker = (int) (step->start >> SLUICE_INDEX_PLACE_BITS) - 1;
	uint64		from = step->start & ((UINT64CONST(1) << SLUICE_INDEX_PLACE_BITS) - 1);
	BufFile    *file = worker < 0 ? build->file : sluice_index_team_file(build, worker);
	size_t		len = step->end - step->start;

	if (file == NULL || len > READ_BUFFER)
		elog(ERROR, "pgsluice: the core asks for what it never wrote");
	if (build->buffer == NULL)
		build->buffer = palloc(READ_BUFFER);
	sluice_index_read_file(file, from, build->buffer, len);
	sluice_index_checked(build, pgsluice_index_supply(build->core, build->buffer, len));
}

/* Writes the run that has been sorted. */
void
sluice_index_write_sorted(SluiceIndexBuild *build)
{
	SluiceIndexStatus status;
	SluiceIndexStep step = {0};

	do
	{
		CHECK_FOR_INTERRUPTS();
		status = pgsluice_index_step(build->core, &step);
		sluice_index_checked(build, status);
		if (status == SLUICE_INDEX_WRITE)
			sluice_index_write_run(build, &step);
	} while (status != SLUICE_INDEX_ADD);
}

/* Sorts the rows that fill the memory and writes them to the temporary file. */
void
sluice_index_flush(SluiceIndexBuild *build)
{
	if (!sluice_index_rank(build))
		return;
	sluice_index_checked(build, pgsluice_index_flush(build->core));
	sluice_index_write_sorted(build);
}
