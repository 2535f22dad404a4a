/*
 * Foreign keys: each value is checked once in a COPY, not once for each row that has it.
 *
 * PostgreSQL queues an event for each row, and when the statement ends its trigger RI_FKey_check_ins looks the
 * parent up and locks it FOR KEY SHARE. That is most of the time of a COPY into a table with a foreign key. Here
 * the event of a row is left out if each of its foreign keys has a value that a row before it, of this COPY, has had, or
 * whose parent can be found and locked at once (parent_lookup.c). All the rest is PostgreSQL's own: the same trigger
 * checks the rows that are queued, as the same role, with the same snapshots and locks, in the order of the rows, with
 * the same errors.
 *
 * Why the rows that are left out are checked all the same:
 *
 *   - What the check of a value finds does not depend on the row. If the parent was found for the first row with it,
 *     here or by the trigger's check, this
 *     transaction has locked the parent, and nobody can delete it or change its key before the transaction ends. If it
 *     fails, the statement fails, with the row that stock COPY would name: the first of all rows that have no parent
 *     has a value that no row before it had.
 *   - The check of the first row takes place, if it is the trigger's. The trigger passes a row over that has been changed or deleted since
 *     it was queued. So nothing may change rows of this COPY before its events have fired: no constraint is
 *     deferrable, no other AFTER ROW trigger is there to run between, and nothing that the COPY itself calls
 *     writes: with volatile defaults and constraints stock COPY does the work, but for defaults that are known to
 *     look at no table (copy/decide.c).
 *   - A partition cannot rely on that: another partition may have an AFTER ROW trigger, which may delete the row that
 *     waits for its check. There a row is left out only if its parents were found and locked here.
 *   - Values are equal if their bytes are. Equal values of other bytes (1.0 and 1.00) are checked each by itself. Only
 *     types and operators of PostgreSQL's own count, so that equal bytes cannot mean different things.
 *
 * The values that were seen are in a hash table of bounded size. When it is full it is emptied: a value is then
 * checked again, which costs time and nothing else. For the same reason it does no harm that a partition whose batch
 * was closed begins with an empty one.
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

/* A longer value of a column is not remembered. */
#define LONGEST_VALUE 1024

/* Memory for values is taken by so many bytes. */
#define ROOM (64 * 1024)

/* The values of one foreign key in a row, as bytes behind its number. */
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
	uint16		count;			/* a table has fewer columns, but may have a key twice: see open */
	ForeignKey *keys;
	bool		opened;			/* the parents are */
	bool		is_partition;
	AttrNumber	last_column;	/* the last one that any of them needs */
	TupleDesc	desc;
	MemoryContext context;		/* of the table and the values in it */
	Size		limit;			/* of that context, in bytes */
	seen_hash  *seen;
	char	   *room;			/* for the next value */
	Size		room_left;
	StringInfoData bytes;
};

/*
 * Whether the only thing that happens behind an inserted row is the check of
 * foreign keys, at the end of the statement.
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

/* Whether the session's role lets it fire. */
static bool
fires(const Trigger *trigger)
{
	char		role = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ?
		TRIGGER_FIRES_ON_REPLICA : TRIGGER_FIRES_ON_ORIGIN;

	return trigger->tgenabled == TRIGGER_FIRES_ALWAYS || trigger->tgenabled == role;
}

/* Whether the constraint has a trigger of that kind that fires. */
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

/* Whether equal bytes of these columns mean the same to the check. */
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

/* An empty table, for the first values or in place of a full one. */
static void
forget(ForeignKeys *keys)
{
	MemoryContextReset(keys->context);
	keys->seen = seen_create(keys->context, 256, NULL);
	keys->room_left = 0;
}

/* Keeps a value for as long as the table. */
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
 * With the first row, so that statement triggers that fire before it may alter
 * the parents, and change who may read them, as with stock COPY.
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

/*
 * The foreign keys of a table or partition, or NULL where each row needs its
 * own check. `limit`: the most bytes for the values that were seen.
 */
ForeignKeys *
sluice_foreign_keys_open(const ResultRelInfo *rri, Size limit)
{
	const TriggerDesc *triggers = rri->ri_TrigDesc;
	Relation	rel = rri->ri_RelationDesc;
	ForeignKeys *keys;
	List	   *infos;
	ListCell   *lc;

	if (triggers == NULL || !triggers->trig_insert_after_row || !only_checks_keys(triggers))
		return NULL;
	/* The relation cache may drop its list while types are looked up. */
	infos = copyObject(RelationGetFKeyList(rel));
	keys = palloc0(sizeof(ForeignKeys));
	keys->keys = palloc(sizeof(ForeignKey) * Max(list_length(infos), 1));
	keys->desc = RelationGetDescr(rel);
	keys->is_partition = rri->ri_RootResultRelInfo != NULL;
	foreach(lc, infos)
	{
		const ForeignKeyCacheInfo *info = lfirst(lc);
		ForeignKey *key = &keys->keys[keys->count];

		/* One that is not enforced has no trigger. */
		if (!is_checked(triggers, info->conoid))
			continue;
		if (!bytes_tell(info, keys->desc))
			return NULL;
		key->info = info;
		key->parents = NULL;
		key->natts = info->nkeys;
		memcpy(key->attnums, info->conkey, sizeof(AttrNumber) * info->nkeys);
		for (int i = 0; i < info->nkeys; i++)
			keys->last_column = Max(keys->last_column, info->conkey[i]);
		keys->count++;
	}
	if (keys->count == 0)
		return NULL;
	keys->limit = limit;
	keys->context = AllocSetContextCreate(CurrentMemoryContext, "pgsluice foreign keys", ALLOCSET_DEFAULT_SIZES);
	initStringInfo(&keys->bytes);
	forget(keys);
	return keys;
}

/* Appends a value's bytes. False: they do not tell which value it is, or are too many. */
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
 * The bytes of the row's value of a foreign key, up to the next call. False:
 * they do not tell which value it is, or are too many.
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

/* Rows that follow with this value need no check. */
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
 * Whether the row in the slot needs a check: for one of its keys, no row before
 * it is known to have had the same value, and the parent was not found.
 */
bool
sluice_foreign_keys_need_check(ForeignKeys *keys, TupleTableSlot *slot)
{
	bool		needed = false;

	if (!keys->opened)
		open_parents(keys);
	slot_getsomeattrs(slot, keys->last_column);
	/* Each key remembers its value, whatever the others say. */
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

/*
 * The rows so far are checked, or have their events. More may come unless
 * `for_good`. The parents that were found stay locked.
 */
void
sluice_foreign_keys_close(ForeignKeys *keys, bool for_good)
{
	close_parents(keys);
	if (!for_good)
		return;
	MemoryContextDelete(keys->context);
	pfree(keys->bytes.data);
	pfree(keys->keys);
	pfree(keys);
}
