/*
 * Checks each value of a foreign key once in a COPY, not once for each row that has it.
 *
 * PostgreSQL queues an event for each row. When the statement ends, its trigger RI_FKey_check_ins looks up the parent
 * and locks it FOR KEY SHARE. That takes most of the time of a COPY into a table with a foreign key. Here the event of
 * a row is left out if each of its foreign keys passes one of two tests: an earlier row of this COPY had the same
 * value, or the parent can be found and locked at once (parent_lookup.c). Everything else stays PostgreSQL's: the same
 * trigger checks the rows that are queued, as the same role, with the same snapshots and locks, in row order, with the
 * same errors.
 *
 * Why it is safe to leave out the other rows:
 *
 *   - The result of checking a value does not depend on the row. If the parent was found for the first row with the
 *     value, here or by the trigger, this transaction has locked the parent. Nobody can delete it or change its key
 *     before the transaction ends. If the check fails, the statement fails with the row that stock COPY would name:
 *     the first of all rows without a parent has a value that no earlier row had.
 *   - If the first row's check is left to the trigger, it takes place. The trigger skips a row that has been changed
 *     or deleted since it was queued. So nothing may change rows of this COPY before its events have fired: no
 *     constraint is deferrable, no other AFTER ROW trigger can run in between, and nothing that the COPY itself calls
 *     writes. With volatile defaults and constraints, stock COPY does the work, except for defaults that are known to
 *     read no table (copy/decide.c).
 *   - Another partition may get a BEFORE ROW trigger during the COPY, which can delete a parent that this transaction
 *     alone has locked, together with its children. All waiting rows are inserted before such a trigger runs
 *     (heap/batches.c), and after that no value counts as seen.
 *   - A partition cannot rely on a check at the end: another partition may have an AFTER ROW trigger, which may delete
 *     the row before its check. In a partition, a row is left out only if its parents were found and locked here.
 *   - Values are equal if their bytes are. Equal values with different bytes (1.0 and 1.00) are each checked
 *     separately. Only PostgreSQL's own types and operators count, so that equal bytes cannot mean different things.
 *
 * Values that were seen are in a hash table of limited size. When it is full, it is emptied. A value is then checked
 * again, which costs time and nothing else. For the same reason, a partition whose batch was closed may start with an
 * empty table.
 */
#include "index/build.h"

#include "access/transam.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/relcache.h"

/* Longer values of a column are not remembered. */
#define LONGEST_VALUE 1024

/* Memory for values is allocated in pieces of this many bytes. */
#define ROOM (64 * 1024)

/*
 * The bytes of a row's values of one foreign key, after the number of the key.
 */
typedef struct KeyBytes
{
	const char *data;
	uint32		len;
} KeyBytes;

typedef struct SeenKey
{
	KeyBytes	key;
	uint32		hash;
	char		status;
} SeenKey;

static inline bool
same_bytes(KeyBytes a, KeyBytes b)
{
	return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

#define SH_PREFIX seen
#define SH_ELEMENT_TYPE SeenKey
#define SH_KEY_TYPE KeyBytes
#define SH_KEY key
#define SH_HASH_KEY(table, key) hash_bytes((const unsigned char *) (key).data, (key).len)
#define SH_EQUAL(table, a, b) same_bytes(a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(table, entry) ((entry)->hash)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct ForeignKey
{
	int			natts;
	AttrNumber	attnums[INDEX_MAX_KEYS];
	const ForeignKeyCacheInfo *info;
	ParentLookup *parents;		/* NULL: only the trigger looks them up, or they are not open */
} ForeignKey;

struct ForeignKeys
{
	uint16		count;			/* may exceed the number of columns: a key can be declared twice */
	ForeignKey *keys;
	List	   *infos;			/* the constraints, of which `keys` are some */
	int			role;			/* the session's replication role: `keys` are checked in it */
	bool		opened;			/* the parents are open */
	bool		is_partition;
	AttrNumber	last_column;	/* the last column that any key needs */
	TupleDesc	desc;
	MemoryContext context;		/* of the hash table and the values in it */
	Size		limit;			/* of that context, in bytes */
	seen_hash  *seen;
	char	   *room;			/* for the next values */
	Size		room_left;
	StringInfoData bytes;
};

/*
 * Whether the only thing that happens after the insertion of a row is the
 * check of foreign keys, at the end of the statement.
 */
static bool
only_checks_keys(const TriggerDesc *triggers)
{
	for (int i = 0; i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (TRIGGER_TYPE_MATCHES(trigger->tgtype, TRIGGER_TYPE_ROW, TRIGGER_TYPE_AFTER, TRIGGER_TYPE_INSERT) &&
			trigger->tgenabled != TRIGGER_DISABLED &&
			(trigger->tgfoid != F_RI_FKEY_CHECK_INS || trigger->tgdeferrable))
			return false;
	}
	return true;
}

/* Whether the trigger fires in the session's replication role. */
static bool
fires(const Trigger *trigger)
{
	char		role = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ?
		TRIGGER_FIRES_ON_REPLICA : TRIGGER_FIRES_ON_ORIGIN;

	return trigger->tgenabled == TRIGGER_FIRES_ALWAYS || trigger->tgenabled == role;
}

/*
 * Whether the constraint has a trigger that checks inserted rows and that
 * fires.
 */
static bool
is_checked(const TriggerDesc *triggers, Oid constraint)
{
	for (int i = 0; i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (trigger->tgconstraint == constraint && trigger->tgfoid == F_RI_FKEY_CHECK_INS && fires(trigger))
			return true;
	}
	return false;
}

/* Whether equal bytes in these columns mean equal values to the check. */
static bool
bytes_tell(const ForeignKeyCacheInfo *info, TupleDesc desc)
{
	for (int i = 0; i < info->nkeys; i++)
	{
		Oid			type = getBaseType(TupleDescAttr(desc, info->conkey[i] - 1)->atttypid);

		if (type >= FirstNormalObjectId || get_typtype(type) != TYPTYPE_BASE ||
			info->conpfeqop[i] >= FirstNormalObjectId)
			return false;
	}
	return true;
}

/* Creates an empty hash table, as the first one or in place of a full one. */
static void
forget(ForeignKeys *keys)
{
	MemoryContextReset(keys->context);
	keys->seen = seen_create(keys->context, 256, NULL);
	keys->room_left = 0;
}

/* Copies a value into the memory of the hash table. */
static KeyBytes
keep(ForeignKeys *keys, KeyBytes value)
{
	KeyBytes	kept = {.len = value.len};

	if (keys->room_left < value.len)
	{
		keys->room_left = Max(ROOM, value.len);
		keys->room = MemoryContextAlloc(keys->context, keys->room_left);
	}
	kept.data = memcpy(keys->room, value.data, value.len);
	keys->room += value.len;
	keys->room_left -= value.len;
	return kept;
}

/*
 * Called with the first row. Statement triggers that fire before it may alter
 * the parents, and change who may read them, as in stock COPY.
 */
static void
open_parents(ForeignKeys *keys)
{
	MemoryContext old = MemoryContextSwitchTo(GetMemoryChunkContext(keys));

	for (uint16 n = 0; n < keys->count; n++)
		keys->keys[n].parents = sluice_parent_lookup_open(keys->keys[n].info, keys->desc);
	keys->opened = true;
	MemoryContextSwitchTo(old);
}

static void
close_parents(ForeignKeys *keys)
{
	for (uint16 n = 0; n < keys->count; n++)
	{
		if (keys->keys[n].parents)
			sluice_parent_lookup_close(keys->keys[n].parents);
		keys->keys[n].parents = NULL;
	}
	keys->opened = false;
}

/* Frees what sluice_foreign_keys_open() has allocated. A partition may be opened many times. */
static void
free_keys(ForeignKeys *keys)
{
	list_free_deep(keys->infos);
	pfree(keys->keys);
	pfree(keys);
}

/*
 * The foreign keys of a table or partition, or NULL if each row needs its own
 * check. `limit` is the most bytes for values that were seen.
 */
ForeignKeys *
sluice_foreign_keys_open(const ResultRelInfo *rri, Size limit)
{
	const TriggerDesc *triggers = rri->ri_TrigDesc;
	Relation	rel = rri->ri_RelationDesc;
	ForeignKeys *keys;
	ListCell   *lc;
	bool		told = true;

	if (triggers == NULL || !triggers->trig_insert_after_row || !only_checks_keys(triggers))
		return NULL;
	/* The relation cache may drop its own list while types are looked up. */
	keys = palloc0(sizeof(ForeignKeys));
	keys->infos = copyObject(RelationGetFKeyList(rel));
	keys->keys = palloc(sizeof(ForeignKey) * Max(list_length(keys->infos), 1));
	keys->desc = RelationGetDescr(rel);
	keys->is_partition = rri->ri_RootResultRelInfo != NULL;
	keys->role = SessionReplicationRole;
	foreach(lc, keys->infos)
	{
		const ForeignKeyCacheInfo *info = lfirst(lc);
		ForeignKey *key = &keys->keys[keys->count];

		/* A constraint that is not enforced has no trigger. */
		if (!is_checked(triggers, info->conoid))
			continue;
		told = bytes_tell(info, keys->desc);
		if (!told)
			break;
		key->info = info;
		key->parents = NULL;
		key->natts = info->nkeys;
		memcpy(key->attnums, info->conkey, sizeof(AttrNumber) * info->nkeys);
		for (int i = 0; i < info->nkeys; i++)
			keys->last_column = Max(keys->last_column, info->conkey[i]);
		keys->count++;
	}
	if (keys->count == 0 || !told)
	{
		free_keys(keys);
		return NULL;
	}
	keys->limit = limit;
	keys->context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice foreign keys", ALLOCSET_DEFAULT_SIZES);
	initStringInfo(&keys->bytes);
	forget(keys);
	return keys;
}

/* Appends a value's bytes. Returns false if they do not identify the value, or are too many. */
static bool
append_value(StringInfo bytes, Form_pg_attribute att, Datum value)
{
	uint32		len;

	if (att->attbyval)
	{
		appendBinaryStringInfo(bytes, (char *) &value, sizeof(Datum));
		return true;
	}
	if (att->attlen > 0)
	{
		appendBinaryStringInfo(bytes, DatumGetPointer(value), att->attlen);
		return true;
	}
	if (att->attlen != -1 || VARATT_IS_EXTERNAL(DatumGetPointer(value)) || VARATT_IS_COMPRESSED(DatumGetPointer(value)))
		return false;
	len = VARSIZE_ANY_EXHDR(DatumGetPointer(value));
	if (len > LONGEST_VALUE)
		return false;
	appendBinaryStringInfo(bytes, (char *) &len, sizeof(len));
	appendBinaryStringInfo(bytes, VARDATA_ANY(DatumGetPointer(value)), len);
	return true;
}

/*
 * Gets the bytes of the row's value of a foreign key, valid until the next
 * call. Returns false if they do not identify the value, or are too many.
 */
static bool
value_of(ForeignKeys *keys, uint16 n, TupleTableSlot *slot, KeyBytes *value)
{
	const ForeignKey *key = &keys->keys[n];
	StringInfo	bytes = &keys->bytes;

	resetStringInfo(bytes);
	appendBinaryStringInfo(bytes, (char *) &n, sizeof(n));
	for (int i = 0; i < key->natts; i++)
	{
		int			column = key->attnums[i] - 1;

		appendStringInfoCharMacro(bytes, slot->tts_isnull[column] ? 1 : 0);
		if (!slot->tts_isnull[column] &&
			!append_value(bytes, TupleDescAttr(keys->desc, column), slot->tts_values[column]))
			return false;
	}
	value->data = bytes->data;
	value->len = bytes->len;
	return true;
}

/* Remembers this value: later rows that have it need no check. */
static void
remember(ForeignKeys *keys, KeyBytes value)
{
	bool		found;

	if (MemoryContextMemAllocated(keys->context, false) > keys->limit)
		forget(keys);
	(void) seen_insert(keys->seen, keep(keys, value), &found);
	Assert(!found);
}

/*
 * Whether the row in the slot needs a check. It does if, for one of its keys,
 * no earlier row is known to have had the same value, and the parent was not
 * found. In another replication role, which a statement trigger may set, other
 * keys may be checked: then the server decides for each row.
 */
bool
sluice_foreign_keys_need_check(ForeignKeys *keys, TupleTableSlot *slot)
{
	bool		needed = false;

	if (SessionReplicationRole != keys->role)
		return true;
	if (!keys->opened)
		open_parents(keys);
	slot_getsomeattrs(slot, keys->last_column);
	/*
	 * Go through all keys, even if one already needs the check: each remembers
	 * its value.
	 */
	for (uint16 n = 0; n < keys->count; n++)
	{
		const ForeignKey *key = &keys->keys[n];
		KeyBytes	value;
		bool		known = value_of(keys, n, slot, &value);
		bool		locked;

		if (known && seen_lookup(keys->seen, value) != NULL)
			continue;
		locked = key->parents && sluice_parent_lookup_lock(key->parents, slot);
		if (known && (locked || !keys->is_partition))
			remember(keys, value);
		needed = needed || !locked;
	}
	return needed;
}

/* Called after some rows, since the next ones may come much later. Ends the scans of the parents. */
void
sluice_foreign_keys_rest(ForeignKeys *keys)
{
	for (uint16 n = 0; n < keys->count; n++)
	{
		if (keys->keys[n].parents)
			sluice_parent_lookup_rest(keys->keys[n].parents);
	}
}

/*
 * Called when all rows so far are checked or have their events. More may come
 * unless `for_good` is set. Parents that were found stay locked.
 *
 * If more come, a trigger of another partition may run before: it can delete a
 * parent that only this transaction has locked, together with its children.
 * So no value counts as seen any more.
 */
void
sluice_foreign_keys_close(ForeignKeys *keys, bool for_good)
{
	close_parents(keys);
	if (!for_good)
	{
		forget(keys);
		return;
	}
	MemoryContextDelete(keys->context);
	pfree(keys->bytes.data);
	free_keys(keys);
}
