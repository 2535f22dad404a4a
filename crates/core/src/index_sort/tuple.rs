//! Index tuples: forms, reads and compares them.
//!
//! The layout is that of `index_form_tuple` and `heap_fill_tuple`: an eight-byte header (`t_tid`,
//! `t_info`), a null bitmap only if an attribute is NULL, then the values, each at its alignment.
//! Varlenas have one-byte headers if they are short enough. Padding is zero.

use super::rank::Dictionary;
use super::shape::{Attribute, IndexShape, Order};
use crate::memory::Fallible;
use crate::sink::append;
use std::cmp::Ordering;

/// Bytes of a tuple's header (`IndexTupleData`).
pub const HEADER: usize = 8;
/// `INDEX_SIZE_MASK`
pub const SIZE_MASK: u16 = 0x1FFF;
/// `INDEX_ALT_TID_MASK`: a pivot tuple or one with a posting list
pub const ALT_TID: u16 = 0x2000;
const VAR_WIDTH: u16 = 0x4000;
const HAS_NULL: u16 = 0x8000;
/// Header and null bitmap (`IndexAttributeBitMapData`), aligned.
const HEADER_WITH_NULLS: usize = 16;

/// Largest varlena, with a four-byte header, that `index_form_tuple` certainly stores unchanged
/// (`TOAST_INDEX_TARGET`). It tries to compress larger ones.
pub const MAX_VARLENA: usize = 510;
/// Longest value that gets a one-byte header (`VARATT_CAN_MAKE_SHORT`).
const MAX_SHORT: usize = 126;
/// The bit of a four-byte header that marks a compressed value (`VARATT_IS_4B_C`).
const COMPRESSED: u32 = 2;

/// A heap row's tid: block number in the upper 32 of 48 bits, offset number in the lower 16.
pub type Tid = u64;

/// The value of one attribute, not NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// passed by value: the Datum, sign or zero extended
    Word(u64),
    /// passed by reference: the bytes, for a varlena without its header
    Bytes(&'a [u8]),
    /// a compressed varlena, without its header
    Compressed(&'a [u8]),
    /// the number of a value in its attribute's dictionary
    Ranked(u32),
}

/// Rounds up to a multiple of eight (`MAXALIGN`).
#[must_use]
pub const fn maxalign(size: usize) -> usize {
    (size + 7) & !7
}

fn pad(out: &mut Vec<u8>, start: usize, align: usize) {
    let at = out.len() - start;
    out.resize_within(start + ((at + align - 1) & !(align - 1)), 0);
}

/// Appends to `out` the tuple of the first `count` attributes, with a `t_tid` of zero.
///
/// The caller must reserve memory for it: see [`size_bound`].
pub fn form<'a>(
    shape: &IndexShape,
    count: usize,
    field: impl Fn(usize) -> Option<Field<'a>>,
    out: &mut Vec<u8>,
) {
    let tuple = out.len();
    let has_null = (0..count).any(|index| field(index).is_none());
    let mut info = 0;
    out.resize_within(tuple + HEADER, 0);
    if has_null {
        info |= HAS_NULL;
        out.resize_within(tuple + HEADER_WITH_NULLS, 0);
        for index in (0..count).filter(|&index| field(index).is_some()) {
            out[tuple + HEADER + index / 8] |= 1 << (index % 8);
        }
    }
    for (index, attribute) in shape.attributes()[..count].iter().enumerate() {
        match field(index).map(|field| shape.resolve(index, field)) {
            None | Some(Field::Ranked(_)) => {}
            Some(Field::Word(word)) => {
                pad(out, tuple, attribute.align.into());
                out.extend_within_room(&word.to_le_bytes()[..attribute.len as usize]);
            }
            Some(Field::Bytes(bytes)) if attribute.len == -1 => {
                info |= VAR_WIDTH;
                if bytes.len() <= MAX_SHORT {
                    out.push_within((bytes.len() as u8 + 1) << 1 | 1);
                } else {
                    pad(out, tuple, attribute.align.into());
                    out.extend_within_room(&((bytes.len() as u32 + 4) << 2).to_le_bytes());
                }
                out.extend_within_room(bytes);
            }
            Some(Field::Compressed(bytes)) => {
                info |= VAR_WIDTH;
                pad(out, tuple, attribute.align.into());
                let header = (bytes.len() as u32 + 4) << 2 | COMPRESSED;
                out.extend_within_room(&header.to_le_bytes());
                out.extend_within_room(bytes);
            }
            Some(Field::Bytes(bytes)) => {
                pad(out, tuple, attribute.align.into());
                out.extend_within_room(bytes);
            }
        }
    }
    pad(out, tuple, 8);
    let size = out.len() - tuple;
    info |= size as u16 & SIZE_MASK;
    out[tuple + 6..tuple + 8].copy_from_slice(&info.to_le_bytes());
}

/// Bytes of the tuple that [`form_short_ones`] forms, without alignment at its end. `None` if a
/// value is NULL, long or of another type.
#[inline]
pub fn short_ones<'a>(
    attributes: &[Attribute],
    field: impl Fn(usize) -> Option<Field<'a>>,
) -> Option<usize> {
    let mut size = HEADER;
    for (index, attribute) in attributes.iter().enumerate() {
        match field(index) {
            Some(Field::Bytes(bytes)) if attribute.len == -1 && bytes.len() <= MAX_SHORT => {
                size += 1 + bytes.len();
            }
            _ => return None,
        }
    }
    Some(size)
}

/// Appends the same tuple as [`form`], for short varlenas only. `size` is that of [`short_ones`].
///
/// The caller must reserve memory for it.
#[inline]
pub fn form_short_ones<'a>(
    count: usize,
    size: usize,
    field: impl Fn(usize) -> Option<Field<'a>>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.resize_within(start + maxalign(size), 0);
    let tuple = &mut out[start..];
    tuple[6..8].copy_from_slice(&(VAR_WIDTH | maxalign(size) as u16).to_le_bytes());
    let mut at = HEADER;
    for index in 0..count {
        if let Some(Field::Bytes(bytes)) = field(index) {
            tuple[at] = (bytes.len() as u8 + 1) << 1 | 1;
            tuple[at + 1..=at + bytes.len()].copy_from_slice(bytes);
            at += 1 + bytes.len();
        }
    }
}

/// Appends the same tuple as [`form`], for a single value that is passed by value.
#[inline]
pub fn form_word(attribute: &Attribute, word: u64, out: &mut Vec<u8>) {
    let mut tuple = [0; HEADER + 8];
    tuple[6..8].copy_from_slice(&(HEADER as u16 + 8).to_le_bytes());
    tuple[HEADER..].copy_from_slice(&unsigned(word, attribute.len).to_le_bytes());
    out.extend_within_room(&tuple);
}

/// Appends the same tuple as [`form`], for a single text of up to fourteen bytes without zero
/// bytes. `padded` has one byte that is not zero, then the bytes of the text, then zeros.
#[inline]
pub fn form_short(padded: u128, out: &mut Vec<u8>) {
    let len = 15 - padded.trailing_zeros() / 8;
    let mut tuple = [0; HEADER + 16];
    let size = maxalign(HEADER + 1 + len as usize);
    tuple[6..8].copy_from_slice(&(VAR_WIDTH | size as u16).to_le_bytes());
    tuple[HEADER..].copy_from_slice(&padded.to_be_bytes());
    tuple[HEADER] = (len as u8 + 1) << 1 | 1;
    append::extend(out, &tuple[..size]);
}

/// An upper bound for the size of the tuple that [`form`] forms, in bytes.
pub fn size_bound<'a>(shape: &IndexShape, field: impl Fn(usize) -> Option<Field<'a>>) -> usize {
    let values: usize = shape
        .attributes()
        .iter()
        .enumerate()
        .map(|(index, attribute)| match field(index).map(|field| shape.resolve(index, field)) {
            None | Some(Field::Ranked(_)) => 0,
            Some(Field::Word(_)) => 16,
            Some(Field::Bytes(bytes) | Field::Compressed(bytes)) => {
                bytes.len() + 4 + usize::from(attribute.align)
            }
        })
        .sum();
    maxalign(HEADER_WITH_NULLS + values)
}

/// `t_info` of a tuple.
#[must_use]
pub fn info(tuple: &[u8]) -> u16 {
    u16::from_le_bytes([tuple[6], tuple[7]])
}

/// The size in the tuple's header, in bytes.
#[must_use]
pub fn size(tuple: &[u8]) -> usize {
    usize::from(info(tuple) & SIZE_MASK)
}

/// Sets the size of the tuple.
pub fn set_size(tuple: &mut [u8], size: usize) {
    let info = info(tuple) & !SIZE_MASK | size as u16;
    tuple[6..8].copy_from_slice(&info.to_le_bytes());
}

/// The six bytes of `ItemPointerData`.
#[must_use]
pub fn tid_bytes(tid: Tid) -> [u8; 6] {
    let b = tid.to_le_bytes();
    [b[4], b[5], b[2], b[3], b[0], b[1]]
}

/// The tid from six bytes of `ItemPointerData`.
#[must_use]
pub fn tid_of(b: &[u8]) -> Tid {
    u64::from_le_bytes([b[4], b[5], b[2], b[3], b[0], b[1], 0, 0])
}

/// Reads the values of a tuple in order.
pub struct TupleFields<'a> {
    attributes: std::slice::Iter<'a, Attribute>,
    tuple: &'a [u8],
    has_null: bool,
    index: usize,
    at: usize,
}

impl<'a> TupleFields<'a> {
    /// The values of `tuple`, which [`form`] has formed for `shape`. It may have a posting list.
    #[must_use]
    pub fn new(shape: &'a IndexShape, tuple: &'a [u8]) -> Self {
        let has_null = info(tuple) & HAS_NULL != 0;
        let at = if has_null { HEADER_WITH_NULLS } else { HEADER };
        Self { attributes: shape.attributes().iter(), tuple, has_null, index: 0, at }
    }

    fn align(&mut self, align: u8) {
        self.at = (self.at + usize::from(align) - 1) & !(usize::from(align) - 1);
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let bytes = &self.tuple[self.at..self.at + len];
        self.at += len;
        bytes
    }
}

impl<'a> Iterator for TupleFields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let attribute = self.attributes.next()?;
        let index = self.index;
        self.index += 1;
        if self.has_null && self.tuple[HEADER + index / 8] >> (index % 8) & 1 == 0 {
            return Some(None);
        }
        if attribute.len == -1 {
            // A pad byte is zero, a one-byte header is odd.
            if self.tuple[self.at] & 1 == 1 {
                let len = usize::from(self.tuple[self.at] >> 1) - 1;
                self.at += 1;
                return Some(Some(Field::Bytes(self.take(len))));
            }
            self.align(attribute.align);
            let header = self.take(4);
            let header = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let bytes = self.take((header >> 2) as usize - 4);
            let compressed = header & 3 == COMPRESSED;
            return Some(Some(if compressed {
                Field::Compressed(bytes)
            } else {
                Field::Bytes(bytes)
            }));
        }
        self.align(attribute.align);
        let bytes = self.take(attribute.len as usize);
        if !attribute.by_value {
            return Some(Some(Field::Bytes(bytes)));
        }
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(Some(Field::Word(u64::from_le_bytes(word))))
    }
}

/// The signed value of a word of `len` bytes.
pub(super) fn signed(word: u64, len: i16) -> i64 {
    let shift = 64 - 8 * u32::from(len as u16);
    (word << shift) as i64 >> shift
}

/// The value of a word of `len` bytes, with the other bytes cleared.
pub(super) fn unsigned(word: u64, len: i16) -> u64 {
    let shift = 64 - 8 * u32::from(len as u16);
    word << shift >> shift
}

/// The float of a word of four or eight bytes.
pub(super) fn float(word: u64, len: i16) -> f64 {
    if len == 4 {
        f64::from(f32::from_bits(word as u32))
    } else {
        f64::from_bits(word)
    }
}

fn compare_values(attribute: &Attribute, a: Field, b: Field) -> Ordering {
    let len = attribute.len;
    match (a, b) {
        (Field::Bytes(a), Field::Bytes(b)) => a.cmp(b),
        (Field::Word(a), Field::Word(b)) => match attribute.order {
            Order::Signed => signed(a, len).cmp(&signed(b, len)),
            Order::Float => {
                let (a, b) = (float(a, len), float(b, len));
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
            _ => unsigned(a, len).cmp(&unsigned(b, len)),
        },
        _ => unreachable!("one attribute's values are of one kind"),
    }
}

/// Compares two values of an attribute in the order of the index, including NULLs and direction.
#[must_use]
pub fn compare_field(attribute: &Attribute, a: Option<Field>, b: Option<Field>) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) if attribute.nulls_first => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) if attribute.nulls_first => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) if attribute.descending => compare_values(attribute, b, a),
        (Some(a), Some(b)) => compare_values(attribute, a, b),
    }
}

fn compare_ranked(attribute: &Attribute, values: &Dictionary, a: Field, b: Field) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    let order = values.rank_of_field(a).cmp(&values.rank_of_field(b));
    if attribute.descending {
        order.reverse()
    } else {
        order
    }
}

/// Compares the keys of two tuples. Returns the order, and the number of leading equal attributes.
#[must_use]
pub fn compare(shape: &IndexShape, a: &[u8], b: &[u8]) -> (Ordering, usize) {
    let fields = TupleFields::new(shape, a).zip(TupleFields::new(shape, b));
    for (index, (attribute, (a, b))) in shape.key().iter().zip(fields).enumerate() {
        let order = match (a, b, shape.dictionary(index)) {
            (Some(a), Some(b), Some(dictionary)) => compare_ranked(attribute, dictionary, a, b),
            _ => compare_field(attribute, a, b),
        };
        if order.is_ne() {
            return (order, index);
        }
    }
    (Ordering::Equal, shape.key().len())
}

/// Whether an attribute of the tuple's key is NULL.
#[must_use]
pub fn key_has_null(shape: &IndexShape, tuple: &[u8]) -> bool {
    info(tuple) & HAS_NULL != 0
        && TupleFields::new(shape, tuple).take(shape.key().len()).any(|field| field.is_none())
}
