/*
 * Settings that the administrator makes for the whole server.
 *
 * These settings are read from the configuration files and from ALTER SYSTEM
 * only (PGC_SIGHUP). No user, role, database, function or statement can
 * override them, and a reload reaches every session before its next statement.
 * A COPY in progress keeps the values it began with, because a session reads
 * its configuration only between two statements.
 */
#include "base/pgsluice.h"

#include "miscadmin.h"
#include "utils/guc.h"

SluiceAllowed sluice_allowed;
static int	live_index_memory;	/* kB */
static int	max_workers_per_copy;
static int	max_workers;
static int	accepted_version;

/*
 * The release whose headers the objects are compiled with. A test changes it.
 */
extern PGDLLEXPORT const char *sluice_built_for;
const char *sluice_built_for = COMPAT_BUILT_FOR;

/* The switches, one for each path that is not stock code. */
static const struct
{
	const char *name;
	bool	   *value;
	const char *what;
}			switches[] =
{
	{"pgsluice.allow_whole_pages", &sluice_allowed.whole_pages,
	"Lets COPY write whole pages of a table."},
	{"pgsluice.allow_index_append", &sluice_allowed.index_append,
	"Lets COPY add whole leaf pages to indexes of tables that other sessions can reach."},
	{"pgsluice.allow_index_leaf_merge", &sluice_allowed.index_leaf_merge,
	"Lets COPY merge many entries at once into the leaf pages of indexes of tables that other sessions can reach."},
	{"pgsluice.allow_unique_leaf_merge", &sluice_allowed.unique_leaf_merge,
	"Lets COPY do so for unique indexes, whose keys it then checks many at once."},
	{"pgsluice.allow_sequence_blocks", &sluice_allowed.sequence_blocks,
	"Lets COPY reserve values of a sequence for many rows at once."},
	{"pgsluice.allow_index_build", &sluice_allowed.index_build,
	"Lets pgsluice build B-tree indexes, also at the end of a COPY."},
	{"pgsluice.allow_foreign_keys", &sluice_allowed.foreign_keys,
	"Lets COPY check each value of a foreign key once, not once for each row."},
	{"pgsluice.allow_expressions", &sluice_allowed.expressions,
	"Lets COPY compute stored generated columns and check constraints where rows are formed, also in workers."},
	{"pgsluice.allow_gin_merge", &sluice_allowed.gin_merge,
	"Lets COPY merge the entries of many rows at once into GIN indexes of tables that other sessions can reach."},
	{"pgsluice.allow_hash_merge", &sluice_allowed.hash_merge,
	"Lets COPY merge the entries of many rows at once into hash indexes of tables that other sessions can reach."},
	{"pgsluice.allow_compression", &sluice_allowed.compression,
	"Lets workers of a COPY compress values before their rows are inserted."},
	{"pgsluice.allow_partition_pages", &sluice_allowed.partition_pages,
	"Lets COPY into a partitioned table write whole pages of partitions."},
};

/* Defines an integer setting. For PGC_SIGHUP see the head of the file. */
static void
define_number(const char *name, const char *what, int *value, int by_default, int min, int max, int flags)
{
	DefineCustomIntVariable(name, what, NULL, value, by_default, min, max, PGC_SIGHUP, flags,
							NULL, NULL, NULL);
}

/*
 * Called once, when the library is loaded. If the configuration file was read
 * earlier, its values are checked and assigned here.
 */
void
sluice_admin_init(void)
{
	DefineCustomBoolVariable("pgsluice.allow",
							 "Lets pgsluice execute COPY FROM and build indexes at all.",
							 "If it is off, the stock code does everything, whatever users and statements ask for.",
							 &sluice_allowed.anything,
							 true,
							 PGC_SIGHUP,
							 0, NULL, NULL, NULL);
	for (int i = 0; i < lengthof(switches); i++)
		DefineCustomBoolVariable(switches[i].name, switches[i].what, NULL, switches[i].value, true,
								 PGC_SIGHUP, 0, NULL, NULL, NULL);
	define_number("pgsluice.max_workers_per_copy",
				  "The most workers that one COPY FROM or index build may have.",
				  &max_workers_per_copy, SLUICE_MAX_WORKERS, 0, SLUICE_MAX_WORKERS, 0);
	define_number("pgsluice.max_workers",
				  "The most workers that pgsluice may have on the whole server; -1 is half of max_worker_processes.",
				  &max_workers, -1, -1, SLUICE_MAX_SLOTS, 0);
	define_number("pgsluice.live_index_memory",
				  "The most memory for index entries that wait during a COPY into a table that other sessions can reach.",
				  &live_index_memory, 64 * 1024, 64, MAX_KILOBYTES, GUC_UNIT_KB);
	define_number("pgsluice.accept_server_version",
				  "A server_version_num for which the library may be used although it was built for another release.",
				  &accepted_version, 0, 0, INT_MAX, 0);
}

/* The administrator's limit for one COPY or one index build. */
int
sluice_max_workers_per_copy(void)
{
	return max_workers_per_copy;
}

/* The administrator's limit for the whole server. */
int
sluice_max_workers(void)
{
	return max_workers < 0 ? Max(max_worker_processes / 2, 1) : max_workers;
}

/*
 * The most bytes that index entries may use while they wait during one COPY.
 */
Size
sluice_live_index_memory(void)
{
	return (Size) Min(live_index_memory, maintenance_work_mem) * 1024;
}

/* The length of a release's name, without what a packager has added. */
static int
release_length(const char *version)
{
	return (int) strspn(version, "0123456789.abcdefghijklmnopqrstuvwxyz");
}

/*
 * A minor release may change structs that the library allocates and copies.
 * The library is therefore safe only with the release whose headers it was
 * compiled with. Returns NULL if that release is running, or if the
 * administrator has accepted the difference. Names are compared, because
 * betas, release candidates and the first release of a major have one number.
 */
static const char *
version_why_not(void)
{
	static char reason[128];
	static bool warned;
	const char *built = sluice_built_for;
	const char *running = GetConfigOption("server_version", false, false);
	const int	number = atoi(GetConfigOption("server_version_num", false, false));
	const int	built_len = release_length(built);
	const int	running_len = release_length(running);

	if ((running_len == built_len && strncmp(running, built, running_len) == 0) ||
		number == accepted_version)
		return NULL;
	snprintf(reason, sizeof(reason), "the library was built for PostgreSQL %.*s, and the server is %.*s",
			 built_len, built, running_len, running);
	if (!warned)
		ereport(WARNING,
				(errmsg("pgsluice is not used: %s", reason),
				 errdetail("COPY and index builds are left to PostgreSQL."),
				 errhint("Build and install pgsluice again after each minor release (make -C ext install). To use it as it is, set pgsluice.accept_server_version = %d.",
						 number)));
	warned = true;
	return reason;
}

/* Why everything is left to the stock code, or NULL. */
const char *
sluice_admin_why_not(void)
{
	if (!sluice_allowed.anything)
		return "pgsluice.allow is off";
	return version_why_not();
}

/* Why all index builds are left to the stock code, or NULL. */
const char *
sluice_admin_why_no_builds(void)
{
	return sluice_allowed.index_build ? sluice_admin_why_not() : SLUICE_NO_INDEX_BUILD;
}

/* The switches that are off, as a set of bits. */
uint32
sluice_switched_off(void)
{
	uint32		off = 0;

	for (int i = 0; i < lengthof(switches); i++)
	{
		if (!*switches[i].value)
			off |= 1u << i;
	}
	return off;
}

/* The names of the switches in that set. */
char *
sluice_switches(uint32 off)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < lengthof(switches); i++)
	{
		if (off & (1u << i))
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", switches[i].name);
	}
	return names.data;
}
