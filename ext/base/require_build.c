/*
 * The number of this build of the library, which a worker compares with its
 * leader's. Each worker loads the library from its file, so that an upgrade of
 * the package on disk gives a leader workers of another build. The layout of
 * what leader and worker share in memory is valid for one build only.
 */
#include "base/pgsluice.h"

/*
 * Whether this worker's leader has the same build of the library. If not,
 * reports that at `level`: an error, or a message of a worker that leaves.
 */
bool
sluice_require_build(const char *build, int level)
{
	if (strncmp(build, sluice_build, SLUICE_BUILD_LEN) == 0)
		return true;
	ereport(level,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s%s", level < ERROR ? "pgsluice worker ends: " : "", SLUICE_REPLACED),
			 errhint(SLUICE_REPLACED_HINT)));
	return false;
}
