/*
 * What is known of a relation from one COPY of a session to the next, so that
 * many small ones do not ask the catalogs the same again.
 *
 * It is a cache of answers, not of catalog rows, and it follows the rules of
 * every such cache: an invalidation of the relation, of any function or of any
 * type forgets what may depend on it. An answer is only kept if no
 * invalidation came while it was looked for (sluice_relation_changes is
 * compared before and after).
 */
#include "base/pgsluice.h"

#include "utils/inval.h"
#include "utils/syscache.h"

/* Two relations with the same place take turns. */
#define KNOWN_RELATIONS 64
static SluiceRelationCache known_relations[KNOWN_RELATIONS];

uint64		sluice_relation_changes;

/* Frees what a place holds; the place itself stays for the next relation. */
static void
forget(SluiceRelationCache *known)
{
	bms_free(known->judged);
	bms_free(known->one_by_one);
	memset(known, 0, sizeof(*known));
}

/*
 * Called for each invalidation, in the middle of whatever the session does: no
 * catalog may be read here. InvalidOid stands for all relations.
 */
static void
forget_relation(Datum arg, Oid relid)
{
	sluice_relation_changes++;
	for (int i = 0; i < KNOWN_RELATIONS; i++)
	{
		/* It may be a partition of this one, or become one. */
		known_relations[i].partitions_judged = false;
		if (!OidIsValid(relid) || known_relations[i].relid == relid)
			forget(&known_relations[i]);
	}
}

/* A function may have become volatile, a domain may have another default. */
static void
forget_all(Datum arg, int cacheid, uint32 hashvalue)
{
	forget_relation(arg, InvalidOid);
}

/* What is known of the relation, to be added to. */
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
