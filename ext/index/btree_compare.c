/*
 * Compares two entries of a B-tree without its operator classes, if each
 * column has one of the orders that sort_keys.c defines. The core has sorted
 * the entries to be merged by the same rules. The result is that of the
 * operator classes, without the function calls, the copies that strcoll()
 * needs, and a scan key for each entry.
 *
 * Left to the operator classes: NULLs, compressed values, floats, and columns
 * that the server ranks.
 */
#include "index/build.h"

/* Where the values of a leaf's tuple begin. The tuple has no NULLs. */
static const char *
first_value(IndexTuple tuple)
{
	return (const char *) tuple + IndexInfoFindDataOffset(tuple->t_info);
}

/* The address of the column's next value. Alignment is relative to the tuple, at `base`. */
static const char *
align(const SluiceIndexAttribute *attribute, IndexTuple base, const char *at)
{
	Size		offset = at - (const char *) base;

	/* A varlena with a one-byte header is not aligned. Padding before a longer header is zero. */
	if (attribute->len == -1 && *at != 0)
		return at;
	return (const char *) base + TYPEALIGN(attribute->align, offset);
}

/* Reads an integer of `len` bytes. */
static int64
read_number(const char *at, int len, bool is_signed)
{
	switch (len)
	{
		case 1:
			return is_signed ? (int64) *(const int8 *) at : (int64) *(const uint8 *) at;
		case 2:
			return is_signed ? (int64) *(const int16 *) at : (int64) *(const uint16 *) at;
		case 4:
			return is_signed ? (int64) *(const int32 *) at : (int64) *(const uint32 *) at;
		default:
			/*
			 * Flipping the top bit of an unsigned eight-byte number gives it
			 * the order of signed ones.
			 */
			return is_signed ? *(const int64 *) at : (int64) (*(const uint64 *) at ^ (UINT64CONST(1) << 63));
	}
}

/* Compares two values of fixed length. */
static int
compare_fixed(const SluiceIndexAttribute *attribute, const char *a, const char *b)
{
	bool		is_signed = attribute->order == SLUICE_ORDER_SIGNED;
	int64		one;
	int64		other;

	if (!attribute->by_value)
		return memcmp(a, b, attribute->len);
	one = read_number(a, attribute->len, is_signed);
	other = read_number(b, attribute->len, is_signed);
	return (one > other) - (one < other);
}

/*
 * Compares two tuples of leaves by their keys. They may have posting lists.
 * Returns false if the operator classes have to compare them.
 */
bool
sluice_btree_order(const SluiceIndexAttribute *attributes, int keys, IndexTuple a, IndexTuple b, int *order)
{
	const char *at = first_value(a);
	const char *to = first_value(b);

	if (((a->t_info | b->t_info) & INDEX_NULL_MASK) != 0)
		return false;
	*order = 0;
	for (int i = 0; i < keys && *order == 0; i++)
	{
		const SluiceIndexAttribute *attribute = &attributes[i];

		if (attribute->order == SLUICE_ORDER_FLOAT || attribute->order == SLUICE_ORDER_RANKED)
			return false;
		at = align(attribute, a, at);
		to = align(attribute, b, to);
		if (attribute->len == -1)
		{
			Size		one;
			Size		other;

			if (VARATT_IS_COMPRESSED(at) || VARATT_IS_COMPRESSED(to))
				return false;
			one = VARSIZE_ANY_EXHDR(at);
			other = VARSIZE_ANY_EXHDR(to);
			*order = memcmp(VARDATA_ANY(at), VARDATA_ANY(to), Min(one, other));
			if (*order == 0)
				*order = (one > other) - (one < other);
			at += VARSIZE_ANY(at);
			to += VARSIZE_ANY(to);
		}
		else
		{
			*order = compare_fixed(attribute, at, to);
			at += attribute->len;
			to += attribute->len;
		}
		if (attribute->descending)
			*order = *order < 0 ? 1 : -(*order > 0);
	}
	return true;
}
