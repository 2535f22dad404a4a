//! The first sixteen bytes of a row's encoded key. Compared as one big-endian number, they have the
//! order of the index.
//!
//! Each attribute is encoded as one byte that sorts NULL first or last, then its value:
//!
//! * integers with the sign bit flipped
//! * floats in the usual total order
//! * fixed-length bytes as they are
//! * text followed by a zero byte, which no text contains
//!
//! `DESC` complements the bytes of the value. The encoding ends after sixteen bytes, or after a
//! bytea, because no byte value could mark the end of a bytea.

use super::shape::{Attribute, IndexShape, Order, MAX_ATTRIBUTES};
use super::tuple::{self, Field};

/// Bytes of a key in an entry.
pub(super) const BYTES: usize = 16;
/// Bytes of a number or a rank.
const RANK: usize = 4;
const NULL_FIRST: u8 = 0;
const VALUE: u8 = 1;
const NULL_LAST: u8 = 2;

/// An encoded key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// the encoding, zero-padded
    pub prefix: u128,
    /// true if the prefix holds the whole row, so that [`decode`] can restore it
    pub whole: bool,
}

struct Writer {
    /// bytes to skip before the first one
    skip: usize,
    bytes: [u8; BYTES],
    at: usize,
    whole: bool,
}

impl Writer {
    #[inline]
    fn byte(&mut self, byte: u8) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.at < BYTES {
            self.bytes[self.at] = byte;
            self.at += 1;
        } else {
            self.whole = false;
        }
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8], invert: bool) {
        let skipped = self.skip.min(bytes.len());
        let bytes = &bytes[skipped..];
        self.skip -= skipped;
        let room = BYTES - self.at;
        let len = bytes.len().min(room);
        self.whole &= len == bytes.len();
        let to = &mut self.bytes[self.at..self.at + len];
        to.copy_from_slice(&bytes[..len]);
        if invert {
            to.iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.at += len;
    }

    #[inline]
    fn word(&mut self, word: u64, len: i16, invert: bool) {
        let bytes = word.to_be_bytes();
        self.bytes(&bytes[8 - len as usize..], invert);
    }
}

/// The bits of a float in the total order, and whether they give back exactly the same float.
fn float_bits(word: u64, len: i16) -> (u64, bool) {
    let value = tuple::float(word, len);
    let plain = !value.is_nan() && (value != 0.0 || value.is_sign_positive());
    let value = if value == 0.0 { 0.0 } else { value };
    let (bits, sign) = match len {
        4 if value.is_nan() => (u64::from(f32::NAN.to_bits()), 1 << 31),
        4 => (u64::from((value as f32).to_bits()), 1 << 31),
        _ if value.is_nan() => (f64::NAN.to_bits(), 1 << 63),
        _ => (value.to_bits(), 1 << 63),
    };
    (if bits & sign != 0 { !bits } else { bits | sign }, plain)
}

#[inline]
fn put(writer: &mut Writer, attribute: &Attribute, field: Field) {
    let (len, invert) = (attribute.len, attribute.descending);
    match (attribute.order, field) {
        (Order::Signed, Field::Word(word)) => {
            writer.word(word ^ 1 << (8 * len as u32 - 1), len, invert);
        }
        (Order::Float, Field::Word(word)) => {
            let (bits, plain) = float_bits(word, len);
            writer.word(bits, len, invert);
            writer.whole &= plain;
        }
        (_, Field::Word(word)) => writer.word(word, len, invert),
        (Order::Text, Field::Bytes(bytes)) => {
            writer.bytes(bytes, invert);
            writer.byte(if invert { 0xFF } else { 0 });
        }
        (Order::Bytea, Field::Bytes(bytes)) => {
            writer.bytes(bytes, invert);
            // Zero padding would sort a shorter value first. In descending order it must be last.
            while invert && writer.at < BYTES {
                writer.byte(0xFF);
            }
            writer.at = BYTES;
            writer.whole = false;
        }
        // Writes the number, which [`translate`] replaces by the rank. A part of it would be
        // useless.
        (_, Field::Ranked(id)) if writer.at + RANK <= BYTES => {
            writer.bytes(&id.to_be_bytes(), false);
            writer.whole &= attribute.exact;
        }
        (_, Field::Ranked(_)) => {
            writer.at = BYTES;
            writer.whole = false;
        }
        (_, Field::Bytes(bytes) | Field::Compressed(bytes)) => writer.bytes(bytes, invert),
    }
}

/// Up to fifteen bytes as the upper bytes of a number.
#[inline(always)]
fn upper(bytes: &[u8]) -> u128 {
    // Two pieces of `width` bytes. Where they overlap, their bits are the same.
    let both = |width: usize, first: u64, last: u64| {
        u128::from(first) << (128 - 8 * width) | u128::from(last) << (128 - 8 * bytes.len())
    };
    if let (Some(first), Some(last)) = ends::<8>(bytes) {
        both(8, u64::from_be_bytes(*first), u64::from_be_bytes(*last))
    } else if let (Some(first), Some(last)) = ends::<4>(bytes) {
        both(4, u32::from_be_bytes(*first).into(), u32::from_be_bytes(*last).into())
    } else if let (Some(first), Some(last)) = ends::<2>(bytes) {
        both(2, u16::from_be_bytes(*first).into(), u16::from_be_bytes(*last).into())
    } else {
        bytes.first().map_or(0, |&byte| u128::from(byte) << 120)
    }
}

#[inline(always)]
fn ends<const N: usize>(bytes: &[u8]) -> (Option<&[u8; N]>, Option<&[u8; N]>) {
    (bytes.first_chunk(), bytes.last_chunk())
}

/// The prefix for a row that is a single value and fits; `None` for less common kinds.
#[inline(always)]
fn of_one(attribute: &Attribute, field: Field) -> Option<u128> {
    let value = match (attribute.order, field) {
        _ if attribute.descending => return None,
        (Order::Signed, Field::Word(word)) => word ^ 1 << (8 * attribute.len as u32 - 1),
        (Order::Unsigned, Field::Word(word)) => word,
        (Order::Text, Field::Bytes(bytes)) if bytes.len() <= BYTES - 2 => {
            return Some(u128::from(VALUE) << 120 | upper(bytes) >> 8);
        }
        _ => return None,
    };
    let value = u128::from(tuple::unsigned(value, attribute.len));
    Some(u128::from(VALUE) << 120 | value << (120 - 8 * attribute.len as u32))
}

/// Encodes the key of a row.
#[inline]
pub fn encode<'a>(shape: &IndexShape, field: impl Fn(usize) -> Option<Field<'a>>) -> Key {
    if let ([attribute], false) = (shape.attributes(), shape.mixed) {
        if let Some(prefix) = field(0).and_then(|field| of_one(attribute, field)) {
            return Key { prefix, whole: true };
        }
    }
    encode_any(shape, field)
}

/// Encodes the key value by value.
fn encode_any<'a>(shape: &IndexShape, field: impl Fn(usize) -> Option<Field<'a>>) -> Key {
    let carried = shape.attributes().len() > shape.key().len();
    let writer = write(shape, 0, (0..shape.key().len()).map(field));
    let whole = writer.whole && !carried && !shape.mixed;
    Key { prefix: u128::from_be_bytes(writer.bytes), whole }
}

/// Writes the encoding of a key without its first `skip` bytes.
fn write<'a>(
    shape: &IndexShape,
    skip: usize,
    fields: impl Iterator<Item = Option<Field<'a>>>,
) -> Writer {
    let mut writer = Writer { skip, bytes: [0; BYTES], at: 0, whole: true };
    for (attribute, field) in shape.key().iter().zip(fields) {
        match field {
            None if attribute.nulls_first => writer.byte(NULL_FIRST),
            None => writer.byte(NULL_LAST),
            Some(field) => {
                writer.byte(VALUE);
                put(&mut writer, attribute, field);
            }
        }
    }
    writer
}

/// Whether the uncut encoding has exactly the order of the index: only equal keys have equal
/// encodings, and no encoding is the beginning of another.
#[must_use]
pub fn is_complete(shape: &IndexShape) -> bool {
    !shape.key().iter().any(|attribute| matches!(attribute.order, Order::Bytea | Order::Ranked))
}

/// The next bytes of a key's encoding after the first `skip`, zero-padded; `None` after its end.
/// The encoding must be complete: see [`is_complete`]. `tuple` is the row's index tuple.
#[must_use]
pub fn after(shape: &IndexShape, tuple: &[u8], skip: usize) -> Option<u128> {
    let writer = write(shape, skip, tuple::TupleFields::new(shape, tuple));
    (writer.at > 0).then(|| u128::from_be_bytes(writer.bytes))
}

/// Whether a prefix holds the whole value of a key of one attribute, in the order of its bytes.
#[must_use]
#[inline]
pub fn holds(field: Option<Field>) -> bool {
    match field {
        Some(Field::Bytes(bytes)) => bytes.len() <= BYTES - 2 && !bytes.contains(&0),
        field => field.is_none(),
    }
}

/// The bytes of a value for which [`holds`] is true, in ascending order; `None` for NULL.
#[must_use]
pub fn held(prefix: u128, bytes: &mut [u8; 16]) -> Option<&[u8]> {
    *bytes = prefix.to_be_bytes();
    let len = bytes[1..].iter().position(|&byte| byte == 0)?;
    (bytes[0] == VALUE).then_some(&bytes[1..=len])
}

/// The form of ranked values in a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// numbers, as [`encode`] writes them and as they are spilled
    Numbers,
    /// ranks, inverted for `DESC`, for comparisons
    Ranks,
}

/// Converts the ranked values in a prefix to the form `to` from the other one.
#[must_use]
pub fn translate(shape: &IndexShape, prefix: u128, to: Standing) -> u128 {
    let mut bytes = prefix.to_be_bytes();
    let mut at = 0;
    for (index, attribute) in shape.key().iter().enumerate() {
        if at >= BYTES || attribute.order == Order::Bytea && bytes[at] == VALUE {
            break;
        }
        let present = bytes[at] == VALUE;
        at += 1;
        if !present {
            continue;
        }
        let Some(dictionary) = shape.dictionary(index) else {
            at = value_end(attribute, &bytes, at).1;
            continue;
        };
        let Some(place) = bytes.get_mut(at..at + RANK) else { break };
        let invert = if attribute.descending { u32::MAX } else { 0 };
        let stands = u32::from_be_bytes([place[0], place[1], place[2], place[3]]);
        let stands = match to {
            Standing::Ranks => dictionary.rank_of(stands) ^ invert,
            Standing::Numbers => dictionary.of_rank(stands ^ invert),
        };
        place.copy_from_slice(&stands.to_be_bytes());
        at += RANK;
    }
    u128::from_be_bytes(bytes)
}

/// Appends to `out` the index tuple of a row whose whole key is in its prefix.
///
/// The caller must reserve memory for [`DECODED`] bytes, or for the largest tuple if attributes are
/// ranked.
pub fn decode(shape: &IndexShape, prefix: u128, out: &mut Vec<u8>) {
    let encoded = prefix.to_be_bytes();
    // Undo the inversion of values for DESC in this copy.
    let mut bytes = encoded;
    if let ([attribute], VALUE) = (shape.key(), bytes[0]) {
        let word =
            |flipped: u64| (prefix << 8 >> (128 - 8 * attribute.len as u32)) as u64 ^ flipped;
        match attribute.order {
            _ if attribute.descending => {}
            Order::Text => return tuple::form_short(prefix, out),
            Order::Signed => {
                let sign = 1 << (8 * attribute.len as u32 - 1);
                return tuple::form_word(attribute, word(sign), out);
            }
            Order::Unsigned => return tuple::form_word(attribute, word(0), out),
            _ => {}
        }
        let (end, _) = value_end(attribute, &bytes, 1);
        invert(attribute, &mut bytes[1..end]);
        let field = value(shape, 0, &bytes[1..end]);
        if let (Field::Word(word), false) = (field, attribute.order == Order::Ranked) {
            return tuple::form_word(attribute, word, out);
        }
        return tuple::form(shape, 1, |_| Some(field), out);
    }
    let mut fields: [Option<Field>; MAX_ATTRIBUTES] = [None; MAX_ATTRIBUTES];
    let mut spans = [(0, 0); MAX_ATTRIBUTES];
    let mut at = 0;
    for (attribute, span) in shape.key().iter().zip(&mut spans) {
        let present = bytes[at] == VALUE;
        at += 1;
        if !present {
            continue;
        }
        let (end, next) = value_end(attribute, &bytes, at);
        invert(attribute, &mut bytes[at..end]);
        *span = (at, end + 1);
        at = next;
    }
    for (index, (&(start, end), field)) in spans.iter().zip(&mut fields).enumerate() {
        if end > 0 {
            *field = Some(value(shape, index, &bytes[start..end - 1]));
        }
    }
    tuple::form(shape, shape.key().len(), |index| fields[index], out);
}

/// The end of the value that begins at `at`, and the start of the next one.
fn value_end(attribute: &Attribute, bytes: &[u8; BYTES], at: usize) -> (usize, usize) {
    if attribute.order == Order::Ranked {
        return (at + RANK, at + RANK);
    }
    if attribute.order != Order::Text {
        let end = at + attribute.len as usize;
        return (end, end);
    }
    let last = if attribute.descending { 0xFF } else { 0 };
    let len = bytes[at..].iter().position(|&byte| byte == last).unwrap_or(BYTES - at);
    (at + len, at + len + 1)
}

fn invert(attribute: &Attribute, bytes: &mut [u8]) {
    if attribute.descending {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Most bytes of a tuple that [`decode`] forms.
pub const DECODED: usize = 256;

fn value<'a>(shape: &IndexShape, index: usize, bytes: &'a [u8]) -> Field<'a> {
    let attribute = &shape.attributes()[index];
    if let Some(dictionary) = shape.dictionary(index) {
        return Field::Ranked(
            dictionary.of_rank(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        );
    }
    if !attribute.by_value {
        return Field::Bytes(bytes);
    }
    let word = bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let sign = 1 << (8 * attribute.len as u32 - 1);
    Field::Word(match attribute.order {
        Order::Signed => word ^ sign,
        Order::Float if word & sign != 0 => word ^ sign,
        Order::Float => tuple::unsigned(!word, attribute.len),
        _ => word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(len: i16, order: Order) -> IndexShape {
        let by_value = len > 0;
        let (descending, nulls_first) = (false, false);
        let align = if by_value { len as u8 } else { 4 };
        let attribute =
            Attribute { len, align, by_value, order, descending, nulls_first, exact: true };
        IndexShape::new(vec![attribute], 1).unwrap()
    }

    fn check(shape: &IndexShape, field: Field) {
        let key = encode(shape, |_| Some(field));
        assert_eq!(key, encode_any(shape, |_| Some(field)));
        if key.whole {
            let (mut formed, mut decoded) = (Vec::with_capacity(64), Vec::with_capacity(64));
            decoded.push(7);
            tuple::form(shape, 1, |_| Some(field), &mut formed);
            decode(shape, key.prefix, &mut decoded);
            assert_eq!(&decoded[1..], &formed[..]);
        }
    }

    #[test]
    fn a_value_alone_is_as_any() {
        let text = shape(-1, Order::Text);
        for len in 0..=20_u8 {
            let bytes: Vec<u8> = (0..len).map(|n| n.wrapping_mul(89) | 1).collect();
            check(&text, Field::Bytes(&bytes));
        }
        for (len, order) in [(1, Order::Unsigned), (2, Order::Signed), (4, Order::Signed)]
            .into_iter()
            .chain([(4, Order::Unsigned), (8, Order::Signed), (8, Order::Unsigned)])
        {
            let number = shape(len, order);
            for word in [0, 1, 127, 0x8000, 0x1234_5678, u64::MAX, i64::MIN as u64] {
                // Test the word as in a Datum, and with any bits above the value.
                check(&number, Field::Word(tuple::signed(word, len) as u64));
                check(&number, Field::Word(word));
            }
        }
    }
}
