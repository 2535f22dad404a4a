//! A heap tuple's header and its varlena values.
//!
//! Sources: `src/include/access/htup_details.h` (`HeapTupleHeaderData`),
//! `src/include/varatt.h` (in PostgreSQL 15: `src/include/postgres.h`),
//! `src/include/c.h` (`MAXALIGN`). The layouts are the same from 15 to 19.

/// `SizeofHeapTupleHeader`: the fixed part, before the NULL bitmap.
pub const HEADER: usize = 23;
/// Offset of `t_infomask2`.
pub const INFOMASK2: usize = 18;
/// Offset of `t_infomask`.
pub const INFOMASK: usize = 20;
/// Offset of `t_hoff`.
pub const HOFF: usize = 22;
/// `HEAP_HASNULL`
pub const HASNULL: u16 = 0x0001;
/// `HEAP_HASVARWIDTH`
pub const HASVARWIDTH: u16 = 0x0002;
/// `MAXIMUM_ALIGNOF` of every 64-bit platform
pub const MAXALIGN: usize = 8;
/// `MaxHeapAttributeNumber`
pub const MAX_ATTRIBUTES: usize = 1600;
/// `VARATT_SHORT_MAX` less its one byte of header: the longest short payload
pub const SHORT_MAX: usize = 126;
/// Bytes of a four-byte varlena header.
pub const VARHDRSZ: usize = 4;
/// `t_hoff` of a tuple without NULLs.
pub const PLAIN_HOFF: usize = align(HEADER, MAXALIGN);

const _: () = assert!(PLAIN_HOFF == 24);
const _: () = assert!(INFOMASK2 + 2 == INFOMASK && INFOMASK + 2 == HOFF && HOFF + 1 == HEADER);

/// `TYPEALIGN`: the next multiple of `to`, a power of two.
#[inline(always)]
pub const fn align(offset: usize, to: usize) -> usize {
    (offset + to - 1) & !(to - 1)
}

/// `t_hoff` of a tuple of `natts` attributes of which some are NULL.
pub const fn null_hoff(natts: usize) -> usize {
    align(HEADER + natts.div_ceil(8), MAXALIGN)
}

/// `SET_VARSIZE`: the header of a varlena of `total` bytes, header included.
#[inline(always)]
pub const fn long_header(total: usize) -> [u8; 4] {
    if cfg!(target_endian = "big") {
        (total as u32 & 0x3fff_ffff).to_ne_bytes()
    } else {
        ((total as u32) << 2).to_ne_bytes()
    }
}

/// `SET_VARSIZE_SHORT`: the header of a short varlena of `total` bytes, header included.
#[inline(always)]
pub const fn short_header(total: usize) -> u8 {
    if cfg!(target_endian = "big") {
        total as u8 | 0x80
    } else {
        ((total as u8) << 1) | 1
    }
}

/// The tuple's NULL bitmap: one bit for each attribute that is *not* NULL.
pub fn write_bitmap(to: &mut [u8], nulls: &[u8], natts: usize) {
    let bytes = natts.div_ceil(8);
    for (to, nulls) in to[..bytes].iter_mut().zip(nulls) {
        *to = !nulls;
    }
    if !natts.is_multiple_of(8) {
        to[bytes - 1] &= (1 << (natts % 8)) - 1;
    }
    to[bytes..].fill(0);
}
