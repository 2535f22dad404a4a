/*
 * The number of this build of the library, which a worker compares with its
 * leader's. Each worker loads the library from its file, so that an upgrade of
 * the package on disk gives a leader workers of another build. The layout of
 * what leader and worker share in memory is valid for one build only.
 */
#include "base/pgsluice.h"

/*
 * Raises an error, in a worker of a ParallelContext, if the leader has another
 * build of the library.
 */
void
sluice_require_build(const char *build)
{
	if (strncmp(build, sluice_build, SLUICE_BUILD_LEN) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg(SLUICE_REPLACED), errhint(SLUICE_REPLACED_HINT)));
}
