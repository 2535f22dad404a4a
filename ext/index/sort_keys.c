/*
 * Determines how the core can sort an index. The core sorts types whose order
 * is known, and text in collations that order it by its bytes. All other
 * values are sorted by ranks, which the server assigns to the different
 * values.
 *
 * A mistake here corrupts an index: amcheck rejects it, and searches miss
 * rows. So an order counts as known only under three conditions. The operator
 * family is one of the server's own (by number, not by name). The operator
 * class's input type is the one listed. For text, the collation is proved to
 * be the order of the bytes: it is "C", or a locale for which the C library
 * itself reports that it has no rules. Everything else is ranked by the
 * operator class's own comparison.
 *
 * The list has only types whose bytes decide the order. Types in which one
 * value has several forms (numeric, interval, jsonb) are not in it. The zeros
 * and NaNs of float are the exception: the core treats them as the operator
 * class does.
 */
#include "index/build.h"

#include <langinfo.h>
#include <locale.h>
#include <string.h>

#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_collation_d.h"
#include "catalog/pg_opfamily_d.h"
#include "catalog/pg_type_d.h"
#include "utils/lsyscache.h"

/*
 * Operator families for which the catalog headers have no name, by number. The
 * numbers of built-in objects never change.
 */
#define CHAR_FAMILY 429
#define DATETIME_FAMILY 434
#define FLOAT_FAMILY 1970
#define MACADDR_FAMILY 1984
#define MACADDR8_FAMILY 3371
#define MONEY_FAMILY 2099
#define PG_LSN_FAMILY 3253
#define TIME_FAMILY 1996
#define UUID_FAMILY 2968
#define XID8_FAMILY 5067

typedef struct KnownOrder
{
	Oid			family;
	Oid			type;			/* the operator class's input type */
	int16		len;
	uint8		order;
} KnownOrder;

static const KnownOrder known_orders[] = {
	{INTEGER_BTREE_FAM_OID, INT2OID, 2, SLUICE_ORDER_SIGNED},
	{INTEGER_BTREE_FAM_OID, INT4OID, 4, SLUICE_ORDER_SIGNED},
	{INTEGER_BTREE_FAM_OID, INT8OID, 8, SLUICE_ORDER_SIGNED},
	{DATETIME_FAMILY, DATEOID, 4, SLUICE_ORDER_SIGNED},
	{DATETIME_FAMILY, TIMESTAMPOID, 8, SLUICE_ORDER_SIGNED},
	{DATETIME_FAMILY, TIMESTAMPTZOID, 8, SLUICE_ORDER_SIGNED},
	{TIME_FAMILY, TIMEOID, 8, SLUICE_ORDER_SIGNED},
	{MONEY_FAMILY, MONEYOID, 8, SLUICE_ORDER_SIGNED},
	{BOOL_BTREE_FAM_OID, BOOLOID, 1, SLUICE_ORDER_UNSIGNED},
	{CHAR_FAMILY, CHAROID, 1, SLUICE_ORDER_UNSIGNED},
	{OID_BTREE_FAM_OID, OIDOID, 4, SLUICE_ORDER_UNSIGNED},
	{PG_LSN_FAMILY, PG_LSNOID, 8, SLUICE_ORDER_UNSIGNED},
	{XID8_FAMILY, XID8OID, 8, SLUICE_ORDER_UNSIGNED},
	{FLOAT_FAMILY, FLOAT4OID, 4, SLUICE_ORDER_FLOAT},
	{FLOAT_FAMILY, FLOAT8OID, 8, SLUICE_ORDER_FLOAT},
	{UUID_FAMILY, UUIDOID, 16, SLUICE_ORDER_FIXED},
	{MACADDR_FAMILY, MACADDROID, 6, SLUICE_ORDER_FIXED},
	{MACADDR8_FAMILY, MACADDR8OID, 8, SLUICE_ORDER_FIXED},
	{TEXT_BTREE_FAM_OID, TEXTOID, -1, SLUICE_ORDER_TEXT},
	{TEXT_PATTERN_BTREE_FAM_OID, TEXTOID, -1, SLUICE_ORDER_TEXT},
	{BYTEA_BTREE_FAM_OID, BYTEAOID, -1, SLUICE_ORDER_BYTEA},
};

/*
 * Returns what is known about the order of this type in this operator family,
 * or NULL. Another operator class for the same type is in another family.
 */
static const KnownOrder *
find_order(Oid family, Oid type)
{
	for (int i = 0; i < lengthof(known_orders); i++)
	{
		if (known_orders[i].family == family && known_orders[i].type == type)
			return &known_orders[i];
	}
	return NULL;
}

#if defined(__GLIBC__) && defined(LC_GLOBAL_LOCALE)
/*
 * glibc's strcoll() is strcmp() exactly if the locale has no collation rules:
 * it tests the same number that we read here. The locale's name proves nothing
 * (in some distributions C.UTF-8 had its own rules before glibc 2.35). As a
 * second check, a few strings are compared that languages sort in another
 * order, in case a later glibc counts its rules in another way.
 */
static bool
strcoll_is_strcmp(locale_t lt)
{
	static const char *const probes[] = {
		"", " ", "-", "10", "9", "A", "Z", "a", "a b", "ab", "z", "z-z", "zz",
		"\xc3\xa4", "\xc3\xb6", "\xe2\x82\xac", "\xf0\x9f\x98\x80"
	};
	uintptr_t	rules;

	rules = (uintptr_t) nl_langinfo_l(_NL_COLLATE_NRULES, lt);
	if ((uint32) rules != 0)
		return false;
	for (int i = 0; i < lengthof(probes); i++)
	{
		for (int j = 0; j < lengthof(probes); j++)
		{
			int			bytes = strcmp(probes[i], probes[j]);
			int			collated = strcoll_l(probes[i], probes[j], lt);

			if ((bytes < 0) != (collated < 0) || (bytes > 0) != (collated > 0))
				return false;
		}
	}
	return true;
}

/*
 * The same for the locale in which the process runs, which 15 uses for the
 * database's own.
 */
static bool
process_strcoll_is_strcmp(void)
{
	locale_t	lt = newlocale(LC_COLLATE_MASK, setlocale(LC_COLLATE, NULL), (locale_t) 0);
	bool		is;

	if (lt == (locale_t) 0)
		return false;
	is = strcoll_is_strcmp(lt);
	freelocale(lt);
	return is;
}
#else
#define strcoll_is_strcmp(lt) false
#define process_strcoll_is_strcmp() false
#endif

/* Whether the collation orders text as memcmp() orders its bytes. */
static bool
is_byte_order(Oid collation)
{
	locale_t	lt;

	switch (compat_collation(collation, &lt))
	{
		case COMPAT_COLLATION_BYTES:
			return true;
		case COMPAT_COLLATION_PROCESS:
			return process_strcoll_is_strcmp();
		case COMPAT_COLLATION_LIBC:
			return strcoll_is_strcmp(lt);
		default:
			return false;
	}
}

/*
 * Whether values that are equal for the operator class have the same bytes.
 * The support function of bpchar says so too, but disregards trailing blanks.
 */
static bool
equal_is_same(Relation index, int i)
{
	Oid			function = get_opfamily_proc(index->rd_opfamily[i], index->rd_opcintype[i],
											 index->rd_opcintype[i], BTEQUALIMAGE_PROC);

	return index->rd_opcintype[i] != BPCHAROID && OidIsValid(function) &&
		DatumGetBool(OidFunctionCall1Coll(function, index->rd_indcollation[i],
										  ObjectIdGetDatum(index->rd_opcintype[i])));
}

/*
 * Describes one attribute of the index for the core. Returns why that cannot
 * be, or NULL.
 */
static const char *
attribute_shape(Relation index, int i, bool rank_all, SluiceIndexAttribute *attribute)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index), i);
	const KnownOrder *known;

	memset(attribute, 0, sizeof(*attribute));
	attribute->len = att->attlen;
	attribute->align = sluice_align_bytes(att->attalign);
	attribute->by_value = att->attbyval;
	if (att->attlen < -1)
		return "a column's type is cstring";
	if (att->attlen >= (int) COMPAT_BT_MAX_ITEM)
		return "a column's type is too long for an index entry";
	if (att->attlen == -1 && att->attstorage == TYPSTORAGE_PLAIN)
		return "a column of variable length has storage plain";
	if (i >= IndexRelationGetNumberOfKeyAttributes(index))
	{
		attribute->order = SLUICE_ORDER_CARRIED;
		return NULL;
	}
	if (OidIsValid(index->rd_indcollation[i]) &&
		!get_collation_isdeterministic(index->rd_indcollation[i]))
		return psprintf("the collation of column \"%s\" is not deterministic",
						NameStr(att->attname));
	attribute->order = SLUICE_ORDER_RANKED;
	known = find_order(index->rd_opfamily[i], index->rd_opcintype[i]);
	if (known && known->len == att->attlen && !(rank_all && att->attlen == -1) &&
		(known->family != TEXT_BTREE_FAM_OID || is_byte_order(index->rd_indcollation[i])))
		attribute->order = known->order;
	attribute->exact = equal_is_same(index, i);
	attribute->descending = (index->rd_indoption[i] & INDOPTION_DESC) != 0;
	attribute->nulls_first = (index->rd_indoption[i] & INDOPTION_NULLS_FIRST) != 0;
	return NULL;
}

/*
 * Describes the index for the core. With rank_all, every key that could hold
 * compressed values is ranked. Returns why the core cannot sort the index, or
 * NULL. These reasons, and those that sluice_index_build() finds in the rows,
 * are the only ones for the stock build.
 */
const char *
sluice_index_shape(Relation heap, Relation index, bool rank_all,
				   SluiceIndexAttribute *attributes)
{
	int			natts = IndexRelationGetNumberOfAttributes(index);

	if (index->rd_rel->relam != BTREE_AM_OID)
		return "the access method is not btree";
	for (int i = 0; i < natts; i++)
	{
		const char *reason = attribute_shape(index, i, rank_all, &attributes[i]);

		if (reason)
			return reason;
	}
	return NULL;
}
