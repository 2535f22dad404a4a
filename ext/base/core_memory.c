/*
 * Memory of the core's large buffers: rows that it forms and keys that it
 * sorts or keeps. It lies in one memory context, so that
 * pg_backend_memory_contexts and pg_log_backend_memory_contexts() show it.
 *
 * The core calls these functions from Rust, so they must not raise an error:
 * longjmp() would cross its frames. They return NULL if there is no memory, or
 * if the size is one that the server would refuse with an error.
 *
 * The core frees each buffer itself. Callbacks of the contexts that own its
 * objects make sure of that after an error (see pgsluice_index_free). So the
 * context is never reset, and is a child of TopMemoryContext: it must outlive
 * those objects. Each large buffer is a separate block within it, which goes
 * back to the system at once.
 */
#include "base/pgsluice.h"

#include "utils/memutils.h"

static MemoryContext core_context;

/*
 * NULL if there is no memory. A size beyond what the server allows would be an
 * error.
 */
static void *
core_alloc(size_t size)
{
	if (!AllocHugeSizeIsValid(size))
		return NULL;
	return MemoryContextAllocExtended(core_context, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
}

/* NULL if there is no memory, and then the old piece is still there. */
static void *
core_realloc(void *piece, size_t size)
{
	if (!AllocHugeSizeIsValid(size))
		return NULL;
	return compat_repalloc_or_null(core_context, piece, size);
}

/*
 * The core frees each piece once. pfree() raises no error for a piece of ours.
 */
static void
core_free(void *piece)
{
	pfree(piece);
}

/* Before any other call of the core. */
void
sluice_core_memory_init(void)
{
	static const SluiceLargePieces pieces = {core_alloc, core_realloc, core_free};

	/*
	 * After a first attempt to load the library that has failed it is there.
	 */
	if (core_context != NULL)
		return;
	core_context = AllocSetContextCreate(TopMemoryContext, "pgsluice core", ALLOCSET_SMALL_SIZES);
	pgsluice_large_pieces(&pieces);
}
