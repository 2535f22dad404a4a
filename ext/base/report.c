/*
 * The report of the session's last COPY, and what all functions that show such
 * a report share: who may see it, and the message if there is nothing to show.
 *
 * The report is filled while the COPY runs and becomes valid at its end, also
 * if stock COPY does it. After an error it is not valid, because a failed
 * statement did nothing; it then only says that there was one. It is
 * shown to the user who ran the COPY and to members of pg_read_all_stats, as
 * pg_stat_activity shows a query: SET ROLE may change the current user within
 * a session.
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

/* The start of the statement that has loaded the library; 0: none has. */
static TimestampTz loaded_at;

/*
 * Begins the result of one of our functions, which may have been declared for
 * another version of the library.
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
 * Whether the current user may see what this user did. The rule is that of
 * pg_stat_activity.
 */
bool
sluice_may_see(Oid user)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), user);
}

/*
 * How later sessions of this database come to load the library, before any
 * other library. Only roles that may read session_preload_libraries get the
 * command, since it names the other libraries.
 */
static char *
how_to_load(void)
{
	char	   *libraries;
	StringInfoData command;
	List	   *names;
	ListCell   *lc;

	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_SETTINGS))
		return "put pgsluice first in session_preload_libraries.";
	libraries = pstrdup(session_preload_libraries_string);
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
 * Says why a view of the last command is empty. `hidden`: a command was
 * executed, by another user.
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
 * Called when the library is loaded. A statement of this session loads it,
 * unless the server loads it for all sessions.
 */
void
sluice_note_loading(void)
{
	if (IsUnderPostmaster && !process_shared_preload_libraries_in_progress)
		loaded_at = GetCurrentStatementStartTimestamp();
	/* CREATE EXTENSION suppresses NOTICE. */
	if (creating_extension)
		ereport(INFO,
				(errmsg("pgsluice is loaded in this session only"),
				 errhint("For later sessions of this database: %s", how_to_load())));
}
