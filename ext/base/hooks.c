/*
 * Libraries that were loaded before pgsluice.
 *
 * The hooks of ProcessUtility form a chain. The library that was loaded last
 * is called first. A library loaded after pgsluice sees each COPY before we
 * do. A library loaded before it sees only what we pass on, so a COPY that we
 * execute would bypass it: for example an auditor, or a rule that forbids COPY
 * to a role. PostgreSQL does not say which functions are in the chain. The
 * address of the first one leads to its library; the others are hidden. So if
 * there was a hook, every library that was loaded before pgsluice is taken to
 * have one. Stock COPY then does the work, unless the administrator has listed
 * all these libraries.
 */
#include "base/pgsluice.h"

#include <dlfcn.h>

#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

/*
 * Of these, pg_stat_statements and pg_wait_sampling have a hook, which counts
 * or times statements. The others have none.
 */
#define HARMLESS \
	"auth_delay, auto_explain, passwordcheck, pg_cron, pg_prewarm, pg_qualstats, " \
	"pg_stat_kcache, pg_stat_statements, pg_wait_sampling, plpgsql"

bool		sluice_hooks_came_first;

static char *harmless_hooks;
static List *libraries_before;	/* names, in TopMemoryContext; only if there was a hook */
static bool decided;			/* the next two are valid for the current value of the setting */
static const char *reason;
static char reason_text[NAMEDATALEN + 128];

/* For example "pg_stat_statements" for "/usr/lib/pg_stat_statements.so". */
static char *
library_name(const char *file)
{
	const char *slash = last_dir_separator(file);
	char	   *name = pstrdup(slash ? slash + 1 : file);
	size_t		len = strlen(name);

	if (len > strlen(DLSUFFIX) && strcmp(name + len - strlen(DLSUFFIX), DLSUFFIX) == 0)
		name[len - strlen(DLSUFFIX)] = '\0';
	return name;
}

/*
 * Compares names exactly: they come from file names, which are case-sensitive.
 */
static bool
is_in(const List *names, const char *name)
{
	ListCell   *lc;

	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/*
 * Called before a new value of the setting is assigned. Only its form is
 * checked, because a library that it names may be loaded later.
 */
static bool
check_harmless(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	List	   *names;
	bool		valid = SplitDirectoriesString(copy, ',', &names);

	if (!valid)
		GUC_check_errdetail("The value is a list of libraries' names, separated by commas.");
	list_free_deep(names);
	pfree(copy);
	return valid;
}

/* A new list needs a new decision. */
static void
assign_harmless(const char *value, void *extra)
{
	decided = false;
}

/* Records which libraries are loaded; called before our own hooks are set. */
void
sluice_hooks_init(void)
{
	sluice_hooks_came_first = ProcessUtility_hook != NULL;
	if (sluice_hooks_came_first)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		Size		size = EstimateLibraryStateSpace();
		char	   *files = palloc(size);
		Dl_info		info;

		SerializeLibraryState(size, files);
		for (const char *file = files; *file; file += strlen(file) + 1)
			libraries_before = lappend(libraries_before, library_name(file));
		/*
		 * The hook's library may be one that the server has not loaded itself.
		 */
		if (dladdr((void *) ProcessUtility_hook, &info) != 0 && info.dli_fname != NULL)
			libraries_before = lappend(libraries_before, library_name(info.dli_fname));
		else
			libraries_before = lappend(libraries_before, "unknown");
		pfree(files);
		MemoryContextSwitchTo(old);
	}
	DefineCustomStringVariable("pgsluice.harmless_hooks",
							   "Libraries loaded before pgsluice that need not see a COPY as a COPY.",
							   "If another library was loaded before pgsluice and a utility hook was there, stock COPY does the work.",
							   &harmless_hooks,
							   HARMLESS,
							   PGC_SUSET,
							   GUC_LIST_INPUT,
							   check_harmless, assign_harmless, NULL);
}

/* Why such a library leaves every COPY to stock COPY, or NULL. */
const char *
sluice_hooks_why_not(void)
{
	List	   *harmless;
	ListCell   *lc;
	char	   *value;

	if (!sluice_hooks_came_first)
		return NULL;
	if (decided)
		return reason;
	reason = NULL;
	value = pstrdup(harmless_hooks);
	(void) SplitDirectoriesString(value, ',', &harmless);
	foreach(lc, libraries_before)
	{
		const char *name = lfirst(lc);

		if (is_in(harmless, name))
			continue;
		snprintf(reason_text, sizeof(reason_text),
				 "library \"%s\" was loaded before pgsluice and is not in pgsluice.harmless_hooks", name);
		reason = reason_text;
		break;
	}
	list_free_deep(harmless);
	pfree(value);
	decided = true;
	return reason;
}
