/*
 * Settings, and pgsluice's own options of COPY, which are taken out of the
 * statement before stock code sees it. None of them has a name that any major
 * of PostgreSQL uses.
 *
 * These options are known only where the library is loaded. If the statement
 * has one that stock COPY cannot honour (rejects_to, on_duplicate, …) and
 * something prevents pgsluice from doing the COPY, the statement is rejected:
 * to load without the option would not be what the user has written.
 *
 * A setting may only choose between ways that give the same table. No setting
 * of a user changes which rows are loaded, which are rejected, or what a crash
 * may take away. The administrator's settings are in admin.c.
 */
#include "base/pgsluice.h"

#include <unistd.h>

#include "commands/defrem.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "utils/builtins.h"
#include "utils/guc.h"

/*
 * A file with more bad records than this is most often not the file that was
 * meant.
 */
#define DEFAULT_MAX_REJECTS 1000

bool		sluice_enabled = false;
static int	sluice_workers = -1;
int			sluice_force = SLUICE_FORCE_OFF;
static int	processors;			/* of this machine; determining it takes a while */

static const struct config_enum_entry force_values[] = {
	{"off", SLUICE_FORCE_OFF, false},
	{"on", SLUICE_FORCE_ON, false},
	{"workers", SLUICE_FORCE_WORKERS, false},
	{NULL, 0, false}
};

static const char *const own_options[] = {
	"pgsluice", "workers", "lock", "rejects_to", "max_rejects",
	"on_duplicate", "on_duplicate_index", "duplicates_to",
};

/*
 * Defines the settings that users may change. Those of the administrator are
 * in admin.c.
 */
void
sluice_options_init(void)
{
	processors = Max((int) sysconf(_SC_NPROCESSORS_ONLN), 1);
	DefineCustomBoolVariable("pgsluice.copy",
							 "Lets pgsluice do COPY FROM where it can do it exactly as stock COPY would.",
							 NULL,
							 &sluice_enabled,
							 false,
							 PGC_USERSET,
							 0, NULL, NULL, NULL);
	DefineCustomIntVariable("pgsluice.workers",
							"How many workers may help one COPY FROM or index build; -1 is one less than there are processors.",
							NULL,
							&sluice_workers,
							-1, -1, SLUICE_MAX_WORKERS,
							PGC_USERSET,
							0, NULL, NULL, NULL);
	DefineCustomEnumVariable("pgsluice.debug_force_routes",
							 "Sets every size below which pgsluice does less to nothing, so that tests with little data reach all of it.",
							 "The value workers also has workers form all rows that they can form.",
							 &sluice_force,
							 SLUICE_FORCE_OFF,
							 force_values,
							 PGC_SUSET,
							 GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
}

/* How many workers the settings allow for one COPY or one index. */
int
sluice_workers_allowed(void)
{
	return Min(sluice_workers < 0 ? processors - 1 : sluice_workers, sluice_max_workers_per_copy());
}

/* Which of our options it is; -1: one of stock COPY's. */
static int
own_option(const DefElem *option)
{
	for (int i = 0; i < lengthof(own_options); i++)
	{
		/*
		 * Nearly every name differs in its first letter, and the call of
		 * strcmp() is most of the cost of a comparison.
		 */
		if (option->defname[0] == own_options[i][0] && strcmp(option->defname, own_options[i]) == 0)
			return i;
	}
	return -1;
}

/*
 * Whether the statement has an option of ours. Called for each COPY, even if
 * pgsluice is off.
 */
bool
sluice_has_own_options(const CopyStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		if (own_option(lfirst_node(DefElem, lc)) >= 0)
			return true;
	}
	return false;
}

/* Reports a wrong value as stock COPY does for its own options. */
static void
refuse_value(const char *option, const char *allowed)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("COPY option \"%s\" must be %s", option, allowed)));
}

/* Rejects a combination of two options, or of an option and a table. */
void
sluice_refuse_combination(const char *option, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("COPY option \"%s\" cannot be used with %s", option, what)));
}

/*
 * The option pgsluice: whether the statement allows, forbids or requires it.
 */
static SluiceAsked
parse_asked(const char *value)
{
	if (pg_strcasecmp(value, "require") == 0)
		return SLUICE_ASKED_REQUIRE;
	if (pg_strcasecmp(value, "off") == 0)
		return SLUICE_ASKED_OFF;
	if (pg_strcasecmp(value, "on") != 0)
		refuse_value("pgsluice", "\"on\", \"off\" or \"require\"");
	return SLUICE_ASKED_ON;
}

/* The option on_duplicate. */
static SluiceOnDuplicate
parse_on_duplicate(const char *value)
{
	if (pg_strcasecmp(value, "skip") == 0)
		return SLUICE_DUPLICATE_SKIP;
	if (pg_strcasecmp(value, "replace") == 0)
		return SLUICE_DUPLICATE_REPLACE;
	if (pg_strcasecmp(value, "error") != 0)
		refuse_value("on_duplicate", "\"error\", \"skip\" or \"replace\"");
	return SLUICE_DUPLICATE_ERROR;
}

/* The option max_rejects: a number, or 'none'. */
static int64
parse_max_rejects(DefElem *option)
{
	int64		limit;

	if (option->arg && IsA(option->arg, String) && pg_strcasecmp(strVal(option->arg), "none") == 0)
		return SLUICE_NO_LIMIT;
	limit = defGetInt64(option);
	if (limit < 0)
		refuse_value(option->defname, "zero or more, or \"none\"");
	return limit;
}

/*
 * Parses one of our options. A name that is given twice was rejected before.
 */
static void
parse_option(DefElem *option, SluiceOptions *own)
{
	const char *name = option->defname;

	if (strcmp(name, "pgsluice") == 0)
		own->asked = parse_asked(defGetString(option));
	else if (strcmp(name, "workers") == 0)
	{
		own->workers = defGetInt32(option);
		own->workers_asked = true;
		if (own->workers < 0 || own->workers > SLUICE_MAX_WORKERS)
			refuse_value(name, psprintf("between 0 and %d", SLUICE_MAX_WORKERS));
	}
	else if (strcmp(name, "lock") == 0)
	{
		own->exclusive = true;
		if (pg_strcasecmp(defGetString(option), "exclusive") != 0)
			refuse_value(name, "\"exclusive\"");
	}
	else if (strcmp(name, "max_rejects") == 0)
	{
		own->max_rejects = parse_max_rejects(option);
		own->max_rejects_asked = true;
	}
	else if (strcmp(name, "rejects_to") == 0)
		own->rejects_to = defGetString(option);
	else if (strcmp(name, "on_duplicate") == 0)
		own->on_duplicate = parse_on_duplicate(defGetString(option));
	else if (strcmp(name, "on_duplicate_index") == 0)
		own->on_duplicate_index = defGetString(option);
	else
		own->duplicates_to = defGetString(option);
}

/* Rejects options that have no meaning, or no exact one, when combined. */
static void
check_combinations(const SluiceOptions *own, const List *stock)
{
	ListCell   *lc;

	if (own->max_rejects_asked && own->rejects_to == NULL)
		sluice_refuse_combination("max_rejects", "no option \"rejects_to\"");
	if (own->on_duplicate == SLUICE_DUPLICATE_ERROR)
	{
		if (own->on_duplicate_index != NULL)
			sluice_refuse_combination("on_duplicate_index", "on_duplicate 'error'");
		if (own->duplicates_to != NULL)
			sluice_refuse_combination("duplicates_to", "on_duplicate 'error'");
	}
	if (own->asked == SLUICE_ASKED_OFF && sluice_option_that_needs_us(own) != NULL)
		sluice_refuse_combination(sluice_option_that_needs_us(own), "pgsluice 'off'");
	foreach(lc, stock)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		/*
		 * Frozen rows are visible even if their subtransaction is rolled back.
		 */
		if (strcmp(option->defname, "freeze") == 0 && defGetBoolean(option))
		{
			if (own->rejects_to != NULL)
				sluice_refuse_combination("rejects_to", "FREEZE");
			if (own->on_duplicate != SLUICE_DUPLICATE_ERROR)
				sluice_refuse_combination("on_duplicate", "FREEZE");
		}
		if (own->rejects_to == NULL)
			continue;
		if (strcmp(option->defname, "on_error") == 0 &&
			pg_strcasecmp(defGetString(option), "stop") != 0)
			sluice_refuse_combination("rejects_to", "ON_ERROR");
		if (strcmp(option->defname, "format") == 0 &&
			strcmp(defGetString(option), "binary") == 0)
			sluice_refuse_combination("rejects_to", "FORMAT binary");
	}
}

/* Takes pgsluice's own options out of the statement's list. */
static void
take_options(CopyStmt *stmt, SluiceOptions *own)
{
	List	   *rest = NIL;
	bool		given[lengthof(own_options)] = {0};
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		int			which = own_option(option);

		if (which < 0)
		{
			rest = lappend(rest, option);
			continue;
		}
		if (given[which])
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options")));
		given[which] = true;
		parse_option(option, own);
	}
	stmt->options = rest;
	check_combinations(own, rest);
}

/*
 * Determines what the statement and the settings ask for. `has_own`: the
 * statement has options of pgsluice's own.
 */
void
sluice_find_options(CopyStmt *stmt, bool has_own, SluiceOptions *own)
{
	memset(own, 0, sizeof(*own));
	own->max_rejects = DEFAULT_MAX_REJECTS;
	if (has_own)
		take_options(stmt, own);
	if (own->asked == SLUICE_ASKED_BY_SETTING)
		own->asked = sluice_enabled || sluice_option_that_needs_us(own) != NULL ?
			SLUICE_ASKED_ON : SLUICE_ASKED_OFF;
	if (!own->workers_asked)
		own->workers = sluice_workers_allowed();
	own->workers = Min(Min(own->workers, max_parallel_workers), sluice_max_workers_per_copy());
	own->index_workers = own->workers;

	/*
	 * Indexes take different times to build. With one process more than there
	 * are processors, no processor is idle while the last index but one is
	 * built. The three indexes of a whole load on two cores were measured as
	 * 1.11 times as fast.
	 */
	if (!own->workers_asked && sluice_workers < 0 && own->workers == processors - 1 && own->workers > 0)
		own->index_workers = Min(Min(processors, max_parallel_workers), sluice_max_workers_per_copy());
}

/* An option that only pgsluice can honour; NULL: there is none. */
const char *
sluice_option_that_needs_us(const SluiceOptions *own)
{
	if (own->rejects_to != NULL)
		return "rejects_to";
	if (own->on_duplicate != SLUICE_DUPLICATE_ERROR)
		return "on_duplicate";
	if (own->exclusive)
		return "lock";
	return NULL;
}
