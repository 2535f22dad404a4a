/*
 * What the last COPY of this session did, and what all functions that show
 * such a thing share: who may see it, and what is said when there is nothing
 * to see.
 *
 * The report is filled while the COPY runs and becomes valid at its end. After
 * an error it is not valid: a statement that failed did nothing. It is shown
 * to the user who ran the COPY and to members of pg_read_all_stats, as
 * pg_stat_activity shows a query: within one session SET ROLE may change who
 * asks.
 */
#include "base/pgsluice.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/varlena.h"

SluiceReport sluice_report;

/* When the statement began that has loaded the library; 0: none has. */
static TimestampTz loaded_at;

/*
 * Begins the answer of one of our functions, which may have been declared for
 * another version.
 */
ReturnSetInfo *
sluice_begin_rows(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *rsinfo;

	InitMaterializedSRF(fcinfo, 0);
	rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	if (rsinfo->setDesc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the extension's objects and its library have different versions"),
				 errhint("Run ALTER EXTENSION pgsluice UPDATE.")));
	return rsinfo;
}

/*
 * Whether the current user may see what this one did: as pg_stat_activity has
 * it.
 */
bool
sluice_may_see(Oid user)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), user);
}

/*
 * The command that has later sessions of this database load the library, first
 * of all that they load.
 */
static char *
how_to_load(void)
{
	char	   *libraries = pstrdup(session_preload_libraries_string);
	StringInfoData command;
	List	   *names;
	ListCell   *lc;

	initStringInfo(&command);
	appendStringInfo(&command, "ALTER DATABASE %s SET session_preload_libraries = 'pgsluice'",
					 quote_identifier(get_database_name(MyDatabaseId)));
	if (SplitDirectoriesString(libraries, ',', &names))
	{
		foreach(lc, names)
			appendStringInfo(&command, ", %s", quote_literal_cstr(lfirst(lc)));
	}
	return command.data;
}

/*
 * Says why a view of what was done last is empty. `hidden`: something was
 * done, by another user.
 */
void
sluice_explain_nothing(bool hidden, const char *what, const char *setting)
{
	if (loaded_at != 0 && loaded_at == GetCurrentStatementStartTimestamp())
		ereport(NOTICE,
				(errmsg("pgsluice was not loaded in this session before this query"),
				 errdetail("So far pgsluice.copy and pgsluice.index_build had no effect in this session."),
				 errhint("It is loaded now. For later sessions of this database: %s", how_to_load())));
	else if (hidden)
		ereport(NOTICE,
				(errmsg("the last %s of this session was run by another user", what),
				 errhint("It is shown to that user and to members of pg_read_all_stats.")));
	else
		ereport(NOTICE,
				(errmsg("no %s has run in this session with pgsluice on", what),
				 errhint("Use SET %s = on.", setting)));
}

/*
 * The library is being loaded; by a statement of this session unless the
 * server loads it for all.
 */
void
sluice_note_loading(void)
{
	if (IsUnderPostmaster && !process_shared_preload_libraries_in_progress)
		loaded_at = GetCurrentStatementStartTimestamp();
	/* CREATE EXTENSION silences NOTICE. */
	if (creating_extension)
		ereport(INFO,
				(errmsg("pgsluice is loaded in this session only"),
				 errhint("For later sessions of this database: %s", how_to_load())));
}
