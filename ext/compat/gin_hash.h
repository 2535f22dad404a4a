/*
 * GIN's and hash's functions, which are not an interface: what differs between
 * the majors. A change that does not show in a prototype has to be looked for
 * in their history when a major is added.
 */
#ifndef PGSLUICE_COMPAT_GIN_HASH_H
#define PGSLUICE_COMPAT_GIN_HASH_H

#include "access/gin_private.h"
#include "access/hash.h"

/* The leaf of a key, locked for a change: no snapshot since 17. */
#if PG_VERSION_NUM >= 170000
#define compat_gin_find_leaf(btree) ginFindLeafPage(btree, false, false)
#else
#define compat_gin_find_leaf(btree) ginFindLeafPage(btree, false, false, NULL)
#endif

/* The access method's own insertion of an entry that is formed. */
#if PG_VERSION_NUM >= 160000
#define compat_hash_insert(index, entry, heap) _hash_doinsert(index, entry, heap, false)
#else
#define compat_hash_insert(index, entry, heap) _hash_doinsert(index, entry, heap)
#endif

#endif							/* PGSLUICE_COMPAT_GIN_HASH_H */
