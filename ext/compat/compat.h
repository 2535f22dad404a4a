/*
 * This and the other files of compat/ are the only ones that depend on the
 * major version for which they are compiled.
 *
 * What differs between majors has one form here, that of the newest major if
 * there is a choice. Callers do not test which version they run on, and
 * nothing is decided here: a function does on each major what the server's own
 * code does there.
 *
 * When a major is added, look for three kinds of change. Names and arguments:
 * the compiler finds them. Structs that the library allocates or copies
 * (CopyFromStateData, ResultRelInfo): only the tests against stock COPY find
 * them. Rules (locks, WAL, visibility): read the release's history of
 * copyfrom.c, heapam.c, hio.c, nbtree and parallel.c.
 */
#ifndef PGSLUICE_COMPAT_H
#define PGSLUICE_COMPAT_H

#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "commands/copy.h"
#include "commands/copyfrom_internal.h"
#include "commands/progress.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
/*
 * libpq.h includes the declaration of Port, which needs Kerberos' headers if
 * the server was built with them. Port is not used here.
 */
#undef ENABLE_GSS
#include "libpq/libpq.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "portability/instr_time.h"
#include "tcop/cmdtag.h"
#include "utils/backend_progress.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "access/hio.h"
#include "access/stratnum.h"
#include "catalog/index.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#if PG_VERSION_NUM >= 190000
#include "commands/sequence_xlog.h"
#endif
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/pg_locale.h"
#include "utils/syscache.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error "pgsluice is built for PostgreSQL 15 to 19"
#endif

/*
 * The release whose headers the objects are compiled with, in the form of
 * server_version. All releases of a major up to its .0 have the same number.
 */
#define COMPAT_BUILT_FOR PG_VERSION

/* Since 19 this is in c.h. */
#if PG_VERSION_NUM < 190000
#define pg_fallthrough __attribute__((fallthrough))
#endif

/*
 * 16 has renamed RelFileNode, and everything named after it, to
 * RelFileLocator.
 */
#if PG_VERSION_NUM < 160000
#define rd_newRelfilelocatorSubid rd_newRelfilenodeSubid
#define rd_firstRelfilelocatorSubid rd_firstRelfilenodeSubid
#endif

/*
 * Whether nobody else can see the relation's file, and it is not logged: then
 * the route `fresh` may write its blocks past the buffers (heap/page_routes.c).
 */
static inline bool
compat_is_private_file(Relation rel)
{
	return !RelationNeedsWAL(rel) &&
		(RELATION_IS_LOCAL(rel) || rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId);
}

/*
 * Changes the size of a piece of the context. If there is no memory, returns
 * NULL and leaves the piece unchanged.
 */
static inline void *
compat_repalloc_or_null(MemoryContext context, void *piece, Size size)
{
#if PG_VERSION_NUM >= 160000
	return repalloc_extended(piece, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
#else
	/* What repalloc_huge() calls, without its error. */
	return context->methods->realloc(context, piece, size);
#endif
}

/*
 * The leader's login was checked. Its workers bypass these checks, as far as
 * the major allows it.
 */
#if PG_VERSION_NUM >= 170000
#define COMPAT_BYPASS_LOGIN (BGWORKER_BYPASS_ALLOWCONN | BGWORKER_BYPASS_ROLELOGINCHECK)
#else
#define COMPAT_BYPASS_LOGIN BGWORKER_BYPASS_ALLOWCONN
#endif

/* 15 and 16 have other names for the numbers of processes. */
#if PG_VERSION_NUM < 170000
#define MyProcNumber MyBackendId
#define ParallelLeaderProcNumber ParallelLeaderBackendId
#endif

/*
 * Where a statement's permissions on a relation are kept: 16 moved them out of
 * the range table.
 */
#if PG_VERSION_NUM >= 160000
#define compat_rights(nsitem) ((nsitem)->p_perminfo)
#else
#define compat_rights(nsitem) ((nsitem)->p_rte)
#endif

/*
 * Adds a column to insert into; `column` is its number in bitmaps of columns.
 */
static inline void
compat_add_inserted_column(ParseNamespaceItem *nsitem, int column)
{
	compat_rights(nsitem)->insertedCols = bms_add_member(compat_rights(nsitem)->insertedCols, column);
}

/* Requires INSERT on the columns that were added. */
static inline void
compat_require_insert(ParseNamespaceItem *nsitem)
{
	compat_rights(nsitem)->requiredPerms = ACL_INSERT;
}

/* Requires UPDATE on all columns. */
static inline void
compat_require_update(ParseNamespaceItem *nsitem, TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped)
			compat_rights(nsitem)->updatedCols =
				bms_add_member(compat_rights(nsitem)->updatedCols,
							   i + 1 - FirstLowInvalidHeapAttributeNumber);
	}
	compat_rights(nsitem)->requiredPerms |= ACL_UPDATE;
}

/* Requires SELECT on these columns. */
static inline void
compat_require_select(ParseNamespaceItem *nsitem, Bitmapset *columns)
{
	compat_rights(nsitem)->requiredPerms |= ACL_SELECT;
	compat_rights(nsitem)->selectedCols = bms_add_members(compat_rights(nsitem)->selectedCols, columns);
}

/*
 * The server's permission check, the hook that it calls, and how that hook is
 * called and declared.
 */
#if PG_VERSION_NUM >= 160000
#define compat_check_permissions(pstate) ExecCheckPermissions((pstate)->p_rtable, (pstate)->p_rteperminfos, true)
#define compat_call_permissions_hook(pstate) ExecutorCheckPerms_hook((pstate)->p_rtable, (pstate)->p_rteperminfos, true)
#define COMPAT_PERMISSIONS_HOOK_ARGS List *tables, List *permissions, bool refuse
#define compat_may_execute(function) (object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK)
#define compat_may_use_schema(schema, role) (object_aclcheck(NamespaceRelationId, schema, role, ACL_USAGE) == ACLCHECK_OK)
#else
#define compat_check_permissions(pstate) ExecCheckRTPerms((pstate)->p_rtable, true)
#define compat_call_permissions_hook(pstate) ExecutorCheckPerms_hook((pstate)->p_rtable, true)
#define COMPAT_PERMISSIONS_HOOK_ARGS List *tables, bool refuse
#define compat_may_execute(function) (pg_proc_aclcheck(function, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK)
#define compat_may_use_schema(schema, role) (pg_namespace_aclcheck(schema, role, ACL_USAGE) == ACLCHECK_OK)
#endif

/* Begins a scan for rows. Its use of the index is not counted for EXPLAIN. */
#if PG_VERSION_NUM >= 190000
#define compat_index_beginscan(heap, index, snapshot, nkeys) index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE)
#elif PG_VERSION_NUM >= 180000
#define compat_index_beginscan(heap, index, snapshot, nkeys) index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define compat_index_beginscan(heap, index, snapshot, nkeys) index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/*
 * Makes the statement's range table the executor's. 18 needs to know which entries are not pruned:
 * COPY has one entry, which is not.
 */
static inline void
compat_init_range_table(EState *estate, CopyFromState cstate)
{
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, cstate->range_table, cstate->rteperminfos,
					   bms_make_singleton(1));
#elif PG_VERSION_NUM >= 160000
	ExecInitRangeTable(estate, cstate->range_table, cstate->rteperminfos);
#else
	ExecInitRangeTable(estate, cstate->range_table);
#endif
}

/*
 * Checks that rows can be inserted at all: an error for a view without trigger, a sequence, and so
 * on.
 */
static inline void
compat_check_valid_target(ResultRelInfo *rri)
{
#if PG_VERSION_NUM >= 180000
	CheckValidResultRel(rri, CMD_INSERT, ONCONFLICT_NONE, NIL);
#elif PG_VERSION_NUM >= 170000
	CheckValidResultRel(rri, CMD_INSERT, NIL);
#else
	CheckValidResultRel(rri, CMD_INSERT);
#endif
}

/*
 * Inserts one row into all indexes, by their access methods. Returns the indexes that have to be
 * checked again at the end.
 */
static inline List *
compat_insert_index_tuples(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM >= 190000
	return ExecInsertIndexTuples(rri, estate, 0, slot, NIL, NULL);
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(rri, slot, estate, false, false, NULL, NIL, false);
#else
	return ExecInsertIndexTuples(rri, slot, estate, false, false, NULL, NIL);
#endif
}

/*
 * The same for a row that is inserted speculatively: these indexes raise no
 * error.
 */
static inline List *
compat_insert_index_tuples_unless(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate,
								  bool *conflict, List *arbiters)
{
#if PG_VERSION_NUM >= 190000
	return ExecInsertIndexTuples(rri, estate, EIIT_NO_DUPE_ERROR, slot, arbiters, conflict);
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(rri, slot, estate, false, true, conflict, arbiters, false);
#else
	return ExecInsertIndexTuples(rri, slot, estate, false, true, conflict, arbiters);
#endif
}

/*
 * Whether no existing row, except dead ones, conflicts with this one; otherwise `conflict` becomes
 * its address. Since 18 the address of the new row is an argument, too: it is not in the table yet.
 */
static inline bool
compat_check_index_constraints(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate,
							   ItemPointer conflict, List *arbiters)
{
#if PG_VERSION_NUM >= 180000
	ItemPointerData none;

	ItemPointerSetInvalid(&none);
	return ExecCheckIndexConstraints(rri, slot, estate, conflict, &none, arbiters);
#else
	return ExecCheckIndexConstraints(rri, slot, estate, conflict, arbiters);
#endif
}

/*
 * For triggers that lock a row which another transaction has changed. 16 also takes a list of the
 * relations that are changed, for its own checks: none is given.
 */
static inline void
compat_init_epq(EPQState *epq, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL);
#else
	EvalPlanQualInit(epq, estate, NULL, NIL, -1);
#endif
}

/*
 * Initializes again the defaults that stock COPY evaluates, in the current
 * memory context.
 */
static inline void
compat_renew_defaults(CopyFromState cstate)
{
#if PG_VERSION_NUM >= 160000
	int			n = RelationGetDescr(cstate->rel)->natts;
#else
	int			n = cstate->num_defaults;
#endif

	for (int i = 0; i < n; i++)
	{
#if PG_VERSION_NUM >= 160000
		/* The entries of dropped columns were never set. */
		if (TupleDescAttr(RelationGetDescr(cstate->rel), i)->attisdropped ||
			cstate->defexprs[i] == NULL)
			continue;
#endif
		cstate->defexprs[i] = ExecInitExpr(cstate->defexprs[i]->expr, NULL);
	}
}

/* Since 17, random() has variants, and another name here. */
#if PG_VERSION_NUM < 170000
#define F_RANDOM_ F_RANDOM
#endif

/* random(), and since 18 uuidv4() and uuidv7(), each with all its variants. */
static inline bool
compat_is_random(Oid function)
{
	switch (function)
	{
		case F_RANDOM_:
#if PG_VERSION_NUM >= 160000
		case F_RANDOM_NORMAL:
#endif
#if PG_VERSION_NUM >= 170000
		case F_RANDOM_INT4_INT4:
		case F_RANDOM_INT8_INT8:
		case F_RANDOM_NUMERIC_NUMERIC:
#endif
#if PG_VERSION_NUM >= 180000
		case F_UUIDV4:
		case F_UUIDV7_:
		case F_UUIDV7_INTERVAL:
#endif
#if PG_VERSION_NUM >= 190000
		case F_RANDOM_DATE_DATE:
		case F_RANDOM_TIMESTAMP_TIMESTAMP:
		case F_RANDOM_TIMESTAMPTZ_TIMESTAMPTZ:
#endif
			return true;
		default:
			return false;
	}
}

/*
 * How a row of the root is converted to one of the leaf; NULL: it need not be. 15 makes the map
 * with the leaf, later majors on demand.
 */
static inline TupleConversionMap *
compat_root_to_leaf_map(ResultRelInfo *rri, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	return ExecGetRootToChildMap(rri, estate);
#else
	return rri->ri_RootToPartitionMap;
#endif
}

/* Whether the server's buffer has unread bytes from the client. */
static inline bool
compat_client_bytes_buffered(void)
{
#if PG_VERSION_NUM >= 170000
	return pq_buffer_remaining_data() > 0;
#else
	return pq_buffer_has_data();
#endif
}

/* How many lines the header has: 19 may skip more than one. */
#if PG_VERSION_NUM >= 190000
#define compat_header_lines(cstate) \
	((cstate)->opts.header_line == COPY_HEADER_MATCH ? 1 : (uint32) (cstate)->opts.header_line)
#else
#define compat_header_lines(cstate) ((cstate)->opts.header_line == COPY_HEADER_FALSE ? 0 : 1)
#endif

/* The format of the data: 19 has an enum for it. */
#if PG_VERSION_NUM >= 190000
#define compat_is_binary(cstate) ((cstate)->opts.format == COPY_FORMAT_BINARY)
#define compat_is_csv(cstate) ((cstate)->opts.format == COPY_FORMAT_CSV)
#else
#define compat_is_binary(cstate) ((cstate)->opts.binary)
#define compat_is_csv(cstate) ((cstate)->opts.csv_mode)
#endif

/*
 * Keeps stock COPY's parser from loading more bytes while it has the whole
 * record. Since 19 it scans a vector of bytes at a time, and loads more as soon
 * as it has less than one, whether or not the record ends there.
 */
static inline void
compat_read_no_further(CopyFromState cstate)
{
#if PG_VERSION_NUM >= 190000
	cstate->simd_enabled = false;
#endif
}

/* COPY has a DEFAULT marker since 16. */
static inline const char *
compat_default_marker(CopyFromState cstate, int *len)
{
#if PG_VERSION_NUM >= 160000
	*len = cstate->opts.default_print_len;
	return cstate->opts.default_print;
#else
	*len = 0;
	return NULL;
#endif
}

/*
 * The default of a column as COPY is going to evaluate it; NULL if it has
 * none. 15 keeps only those of columns outside the list.
 */
static inline ExprState *
compat_default_of(CopyFromState cstate, AttrNumber attnum)
{
#if PG_VERSION_NUM >= 160000
	return cstate->defexprs[attnum - 1];
#else
	for (int i = 0; i < cstate->num_defaults; i++)
	{
		if (cstate->defmap[i] == attnum - 1)
			return cstate->defexprs[i];
	}
	return NULL;
#endif
}

/*
 * Since 18, \. is data in CSV, and an error in text unless alone on its line.
 */
static inline bool
compat_dot_line_ends(void)
{
	return PG_VERSION_NUM < 180000;
}

/* Since 17, ON_ERROR may skip records whose values cannot be converted. */
static inline bool
compat_skips_errors(CopyFromState cstate)
{
#if PG_VERSION_NUM >= 170000
	return cstate->opts.on_error != COPY_ON_ERROR_STOP;
#else
	return false;
#endif
}

/*
 * Whether the record that stock COPY has just read is to be skipped; counts
 * it.
 */
static inline bool
compat_skipped(CopyFromState cstate)
{
#if PG_VERSION_NUM >= 170000
	if (!compat_skips_errors(cstate) || !cstate->escontext->error_occurred)
		return false;
	cstate->escontext->error_occurred = false;
	pgstat_progress_update_param(PROGRESS_COPY_TUPLES_SKIPPED, (int64) cstate->num_errors);
#if PG_VERSION_NUM >= 180000
	if (cstate->opts.reject_limit > 0 &&
		cstate->num_errors > (uint64) cstate->opts.reject_limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("skipped more than REJECT_LIMIT (%lld) rows due to data type incompatibility",
						(long long) cstate->opts.reject_limit)));
#endif
	return true;
#else
	return false;
#endif
}

/* At the end of the COPY, reports how many records were skipped, in the words of each major. */
static inline void
compat_tell_skipped(CopyFromState cstate)
{
#if PG_VERSION_NUM >= 170000
	if (!compat_skips_errors(cstate) || cstate->num_errors == 0)
		return;
#if PG_VERSION_NUM >= 180000
	if (cstate->opts.log_verbosity < COPY_LOG_VERBOSITY_DEFAULT)
		return;
#endif
#if PG_VERSION_NUM >= 190000
	if (cstate->opts.on_error == COPY_ON_ERROR_SET_NULL)
	{
		ereport(NOTICE,
				errmsg_plural("in %llu row, columns were set to null due to data type incompatibility",
							  "in %llu rows, columns were set to null due to data type incompatibility",
							  (unsigned long long) cstate->num_errors,
							  (unsigned long long) cstate->num_errors));
		return;
	}
#endif
	ereport(NOTICE,
			errmsg_plural("%llu row was skipped due to data type incompatibility",
						  "%llu rows were skipped due to data type incompatibility",
						  (unsigned long long) cstate->num_errors,
						  (unsigned long long) cstate->num_errors));
#endif
}

/* Virtual generated columns exist since 18. */
static inline bool
compat_has_virtual_columns(TupleDesc desc)
{
#if PG_VERSION_NUM >= 180000
	return desc->constr && desc->constr->has_generated_virtual;
#else
	return false;
#endif
}

/* Since 18 a CHECK constraint may be NOT ENFORCED. */
#if PG_VERSION_NUM >= 180000
#define compat_check_is_enforced(check) ((check)->ccenforced)
#else
#define compat_check_is_enforced(check) true
#endif

/*
 * Whether a domain has constraints; 19 also says on demand whether one of them
 * is volatile.
 */
#if PG_VERSION_NUM >= 190000
#define compat_domain_has_constraints(type) DomainHasConstraints(type, NULL)
#else
#define compat_domain_has_constraints(type) DomainHasConstraints(type)
#endif

/*
 * The lowest level of messages that are logged: 19 has one for each kind of
 * process.
 */
#if PG_VERSION_NUM >= 190000
#define compat_log_min_messages log_min_messages[MyBackendType]
#else
#define compat_log_min_messages log_min_messages
#endif

/*
 * A page of new rows may be worth pruning. Since 19, pruning also marks it as
 * all-visible.
 */
#if PG_VERSION_NUM >= 190000
#define compat_set_prunable(page, xid) PageSetPrunable(page, xid)
#else
#define compat_set_prunable(page, xid) ((void) 0)
#endif

/*
 * 19 rejects system columns in COPY's WHERE clause before any other error in
 * it.
 */
#define COMPAT_REFUSES_SYSTEM_COLUMNS (PG_VERSION_NUM >= 190000)

/* Writes a page's checksum into it, if the cluster has checksums. */
#if PG_VERSION_NUM >= 190000
#define compat_set_checksum(page, block) PageSetChecksum(page, block)
#else
#define compat_set_checksum(page, block) PageSetChecksumInplace(page, block)
#endif

/* Whether a constraint is enforced: since 18 it may be NOT ENFORCED. */
#if PG_VERSION_NUM >= 180000
#define compat_is_enforced(constraint) ((constraint)->conenforced)
#else
#define compat_is_enforced(constraint) true
#endif

#if PG_VERSION_NUM < 160000
/* compat/blocks.c: adds up to n blocks, at least one; all are pinned and locked. */
extern uint32 compat_extend_locked(Relation rel, BufferAccessStrategy strategy, uint32 n, Buffer *buffers);
#endif

/*
 * Adds up to n blocks to the relation, at least one. Their buffers are pinned,
 * and the first one has been locked since before others could see it.
 *
 * Until a page is initialized, every reader treats it as empty. A crash leaves
 * zeros there, which VACUUM gives back. So blocks may be added before there
 * are rows for them. 15 adds them under the extension lock, which is taken
 * once for all: see compat/blocks.c.
 */
static inline uint32
compat_extend(Relation rel, BufferAccessStrategy strategy, uint32 n, Buffer *buffers)
{
	uint32		got;

#if PG_VERSION_NUM >= 160000
	ExtendBufferedRelBy(BMR_REL(rel), MAIN_FORKNUM, strategy, EB_LOCK_FIRST, n, buffers, &got);
#else
	got = compat_extend_locked(rel, strategy, n, buffers);
	for (uint32 i = 1; i < got; i++)
		LockBuffer(buffers[i], BUFFER_LOCK_UNLOCK);
#endif
	return got;
}

/* Since 16 heap_multi_insert() may add more blocks than it fills at once. */
static inline bool
compat_has_free_block(BulkInsertState bistate)
{
#if PG_VERSION_NUM >= 160000
	return bistate->next_free != InvalidBlockNumber;
#else
	return false;
#endif
}

/*
 * Makes the next heap_multi_insert() add only as many blocks as its rows need.
 * More blocks would appear as room in the free space map.
 */
static inline void
compat_extend_by_need(BulkInsertState bistate)
{
#if PG_VERSION_NUM >= 160000
	bistate->already_extended_by = 0;
#endif
}

/*
 * Takes one of these blocks, if there is any, as RelationGetBufferForTuple()
 * does.
 */
static inline BlockNumber
compat_take_free_block(BulkInsertState bistate)
{
#if PG_VERSION_NUM >= 160000
	BlockNumber block = bistate->next_free;

	if (block >= bistate->last_free)
		bistate->next_free = bistate->last_free = InvalidBlockNumber;
	else
		bistate->next_free++;
	return block;
#else
	return InvalidBlockNumber;
#endif
}

/*
 * compat/blocks.c: writes n blocks of one segment file. The storage manager has just written the
 * block after them, whose page is in pages after theirs. The caller is responsible for the sync.
 */
extern void compat_write_blocks(Relation rel, BlockNumber first, uint32 n, const char *pages);

/* The alignment of pages that the server writes directly, and where a relation is stored. */
#if PG_VERSION_NUM < 160000
#define COMPAT_IO_ALIGN 4096
#define compat_main_path(rel) relpath(RelationGetSmgr(rel)->smgr_rnode, MAIN_FORKNUM)
#define compat_locator(rel) ((rel)->rd_node)
#define compat_set_locator(record, rel) ((record)->node = (rel)->rd_node)
#define compat_set_tag_locator(tag, rel) ((tag)->rnode = (rel)->rd_node)
#define CompatLocator RelFileNode
#else
#define COMPAT_IO_ALIGN PG_IO_ALIGN_SIZE
#define compat_main_path(rel) relpath(RelationGetSmgr(rel)->smgr_rlocator, MAIN_FORKNUM)
#define compat_locator(rel) ((rel)->rd_locator)
#define compat_set_locator(record, rel) ((record)->locator = (rel)->rd_locator)
#define compat_set_tag_locator(tag, rel) ((tag)->rlocator = (rel)->rd_locator)
#define CompatLocator RelFileLocator
#endif

/* WAL records of whole pages, several in each record, without their holes. */
#define compat_log_newpages(rel, n, at, pages) log_newpages(&compat_locator(rel), MAIN_FORKNUM, n, at, pages, true)

typedef enum CompatCollation
{
	COMPAT_COLLATION_BYTES,		/* C, POSIX and the server's own */
	COMPAT_COLLATION_LIBC,		/* the C library's, by locale */
	COMPAT_COLLATION_PROCESS,	/* the C library's, in the locale of the process */
	COMPAT_COLLATION_OTHER
} CompatCollation;

/*
 * The provider of a collation. That of the default collation is stored with
 * the database.
 */
#if PG_VERSION_NUM >= 190000
static inline char
compat_collation_provider(Oid collation)
{
	bool		whole = collation == DEFAULT_COLLATION_OID;
	HeapTuple	tuple = whole ?
		SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId)) :
		SearchSysCache1(COLLOID, ObjectIdGetDatum(collation));
	char		provider;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for collation %u", collation);
	provider = whole ? ((Form_pg_database) GETSTRUCT(tuple))->datlocprovider :
		((Form_pg_collation) GETSTRUCT(tuple))->collprovider;
	ReleaseSysCache(tuple);
	return provider;
}
#define compat_locale_provider(locale, collation) compat_collation_provider(collation)
#define compat_libc_locale(locale) ((locale)->lt)
#else
#define compat_locale_provider(locale, collation) ((locale)->provider)
#define compat_libc_locale(locale) ((locale)->info.lt)
#endif

/*
 * Which provider orders by a collation; LIBC: by this locale. The others are only known to compare
 * by functions of the server. Up to 17 there is no pg_locale_t for C, and none for the collation of
 * the database if that is the C library's.
 */
static inline CompatCollation
compat_collation(Oid collation, locale_t *libc)
{
	pg_locale_t locale;

#if PG_VERSION_NUM >= 180000
	locale = pg_newlocale_from_collation(collation);
	if (locale->collate_is_c)
		return COMPAT_COLLATION_BYTES;
#else
	if (lc_collate_is_c(collation))
		return COMPAT_COLLATION_BYTES;
	locale = pg_newlocale_from_collation(collation);
	if (locale == NULL)
		return COMPAT_COLLATION_PROCESS;
#endif
	if (compat_locale_provider(locale, collation) != COLLPROVIDER_LIBC)
		return COMPAT_COLLATION_OTHER;
	*libc = compat_libc_locale(locale);
	return COMPAT_COLLATION_LIBC;
}

#endif							/* PGSLUICE_COMPAT_H */
