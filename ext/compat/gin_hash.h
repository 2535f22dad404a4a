/*
 * GIN's and hash's functions, which are not an interface: what differs between
 * the majors. When a major is added, changes that do not show in a prototype
 * have to be looked for in their history.
 */
#ifndef PGSLUICE_COMPAT_GIN_HASH_H
#define PGSLUICE_COMPAT_GIN_HASH_H

#include "access/gin_private.h"
#include "access/hash.h"

/* Finds the leaf of a key, locked for a change: no snapshot since 17. */
#if PG_VERSION_NUM >= 170000
#define compat_gin_find_leaf(btree) ginFindLeafPage(btree, false, false)
#else
#define compat_gin_find_leaf(btree) ginFindLeafPage(btree, false, false, NULL)
#endif

/* The access method's own insertion of an entry that was formed. */
#if PG_VERSION_NUM >= 160000
#define compat_hash_insert(index, entry, heap) _hash_doinsert(index, entry, heap, false)
#else
#define compat_hash_insert(index, entry, heap) _hash_doinsert(index, entry, heap)
#endif

#endif							/* PGSLUICE_COMPAT_GIN_HASH_H */
