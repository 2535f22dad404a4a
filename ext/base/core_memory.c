/*
 * Memory for the core's large buffers: the rows that it forms, and the keys
 * that it sorts or keeps. All of it is in one memory context, so that
 * pg_backend_memory_contexts and pg_log_backend_memory_contexts() show it.
 *
 * The core calls these functions from Rust, so they must not raise an error:
 * longjmp() would skip its frames. They return NULL if there is no memory, or
 * if the server would reject the size with an error.
 *
 * The core frees each buffer itself. After an error, reset callbacks of the
 * contexts that own its objects do that (see pgsluice_index_free). So this
 * context is never reset, and it is a child of TopMemoryContext: it must
 * outlive those objects. Each large buffer is a separate block of the context,
 * which is returned to the system at once.
 */
#include "base/pgsluice.h"

#include "utils/memutils.h"

static MemoryContext core_context;

/*
 * Returns NULL if there is no memory. A size beyond the server's limit is
 * checked here, because the server would raise an error for it.
 */
static void *
core_alloc(size_t size)
{
	if (!AllocHugeSizeIsValid(size))
		return NULL;
	return MemoryContextAllocExtended(core_context, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
}

/* Returns NULL if there is no memory; the old piece is then unchanged. */
static void *
core_realloc(void *piece, size_t size)
{
	if (!AllocHugeSizeIsValid(size))
		return NULL;
	return compat_repalloc_or_null(core_context, piece, size);
}

/* The core frees each piece once. pfree() raises no error for such a piece. */
static void
core_free(void *piece)
{
	pfree(piece);
}

/* Called before any other function of the core. */
void
sluice_core_memory_init(void)
{
	static const SluiceLargePieces pieces = {core_alloc, core_realloc, core_free};

	/*
	 * The context exists if an earlier attempt to load the library has failed.
	 */
	if (core_context != NULL)
		return;
	core_context = AllocSetContextCreate(TopMemoryContext, "pgsluice core", ALLOCSET_SMALL_SIZES);
	pgsluice_large_pieces(&pieces);
}
