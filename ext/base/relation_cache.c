/*
 * What is known of a relation, kept from one COPY of a session to the next, so
 * that many small COPYs do not read the same catalogs again.
 *
 * It is a cache of answers, not of catalog rows, and it follows the rules of
 * every such cache: an invalidation of the relation, of any function or of any
 * type discards the answers that may depend on it. An answer is kept only if
 * no invalidation arrived while it was determined (sluice_relation_changes is
 * compared before and after).
 */
#include "base/pgsluice.h"

#include "utils/inval.h"
#include "utils/syscache.h"

/* Relations that map to the same entry replace each other. */
#define KNOWN_RELATIONS 64
static SluiceRelationCache known_relations[KNOWN_RELATIONS];

uint64		sluice_relation_changes;

/* Frees what an entry holds; the entry itself is kept for reuse. */
static void
forget(SluiceRelationCache *known)
{
	bms_free(known->judged);
	bms_free(known->one_by_one);
	memset(known, 0, sizeof(*known));
}

/*
 * Called for each invalidation, at any point of the session's work, so it must
 * not read a catalog. InvalidOid stands for all relations.
 */
static void
forget_relation(Datum arg, Oid relid)
{
	sluice_relation_changes++;
	for (int i = 0; i < KNOWN_RELATIONS; i++)
	{
		/* The changed relation may be, or become, a partition of this one. */
		known_relations[i].partitions_judged = false;
		if (!OidIsValid(relid) || known_relations[i].relid == relid)
			forget(&known_relations[i]);
	}
}

/* A function may have become volatile, or a domain may have a new default. */
static void
forget_all(Datum arg, int cacheid, uint32 hashvalue)
{
	forget_relation(arg, InvalidOid);
}

/* The entry of the relation, which the caller may add to. */
SluiceRelationCache *
sluice_relation_cache(Oid relid)
{
	static bool registered = false;
	SluiceRelationCache *known = &known_relations[relid % KNOWN_RELATIONS];

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, forget_all, (Datum) 0);
		CacheRegisterSyscacheCallback(TYPEOID, forget_all, (Datum) 0);
		registered = true;
	}
	if (known->relid != relid)
	{
		forget(known);
		known->relid = relid;
	}
	return known;
}
