//! Forms `jsonb` in its on-disk form: `jsonb_in` and `convertJsonbValue` of
//! `src/backend/utils/adt/{jsonb,jsonb_util}.c`, with the layout of `src/include/utils/jsonb.h`.
//!
//! The validator reads the text once, and passes its values to a list of nodes in the order of the
//! text. Then the bytes are written from front to back. The keys of each object are sorted when it
//! is written. No memory is allocated for single values or keys: the lists are reused for the next
//! row.

use super::integer;
use super::json::{visit_jsonb, Scalar, Visitor, MOST_DEEP};
use super::numeric::numeric;
use crate::error::Refusal;
use crate::memory::Fallible;
use crate::sink::append::extend;
use crate::sink::Numeric;
use std::cmp::Ordering;

/// Longer texts are left to the server. They would need much memory here, and they are compressed
/// or stored out of line anyway.
const MOST_TEXT: usize = 1 << 20;

// The head of a JsonbContainer: a count and flags.
const SCALAR: u32 = 0x1000_0000; // JB_FSCALAR
const OBJECT: u32 = 0x2000_0000; // JB_FOBJECT
const ARRAY: u32 = 0x4000_0000; // JB_FARRAY

// A JEntry: a length, or an offset from the first value, and a type.
const HAS_OFFSET: u32 = 0x8000_0000; // JENTRY_HAS_OFF
const IS_STRING: u32 = 0x0000_0000;
const IS_NUMERIC: u32 = 0x1000_0000;
const IS_FALSE: u32 = 0x2000_0000;
const IS_TRUE: u32 = 0x3000_0000;
const IS_NULL: u32 = 0x4000_0000;
const IS_CONTAINER: u32 = 0x5000_0000;
/// One of this many entries holds an offset: `JB_OFFSET_STRIDE`.
const STRIDE: usize = 32;
/// `jsonb` is aligned to four bytes, and so are the containers and numbers in it.
const ALIGN: usize = 4;
/// Up to this many keys, an insertion sort is faster.
const FEW: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// bytes of the text
    String,
    /// bytes of the scratch, with resolved escapes
    Resolved,
    Number,
    True,
    False,
    Null,
    Array,
    Object,
}

/// One value or key, in the order of the text.
#[derive(Clone, Copy, Debug)]
struct Node {
    kind: Kind,
    start: u32,
    /// number of bytes; for an array the number of elements, for an object the number of pairs
    len: u32,
    /// the index of the node after this one and all nodes within it
    next: u32,
}

/// A key of an object that is being written.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// length, then the first eight bytes, which are enough for most comparisons
    order: (u32, u64),
    /// the key's node; the value's node is the next one
    key: u32,
}

/// Forms `jsonb` values. It is reused for the next value.
#[derive(Debug, Default)]
pub struct JsonbBuilder {
    nodes: Vec<Node>,
    scratch: Vec<u8>,
    pairs: Vec<Pair>,
    out: Vec<u8>,
}

impl JsonbBuilder {
    /// The value of `text` as the server stores it: in native byte order, without the varlena
    /// header. It must be placed at a multiple of four bytes.
    ///
    /// # Errors
    ///
    /// Those of [`super::json::jsonb`], and [`Refusal::Ask`] for texts above 1 MB.
    pub fn build(&mut self, text: &[u8]) -> Result<&[u8], Refusal> {
        if text.len() > MOST_TEXT {
            return Err(Refusal::Ask);
        }
        self.reserve(text.len())?;
        let mut visitor = Noting {
            text,
            nodes: &mut self.nodes,
            scratch: &mut self.scratch,
            open: [0; MOST_DEEP as usize],
            depth: 0,
        };
        visit_jsonb(text, &mut visitor)?;
        let mut writer = Writer {
            text,
            nodes: &self.nodes,
            scratch: &self.scratch,
            pairs: &mut self.pairs,
            out: &mut self.out,
        };
        match self.nodes[0].kind {
            Kind::Array | Kind::Object => drop(writer.value(0)),
            _ => writer.scalar_alone(),
        }
        Ok(&self.out)
    }

    /// Empties all lists and reserves the most memory that a text of `len` bytes can need, so that
    /// nothing grows later. In a server, a failed allocation must be an error value.
    fn reserve(&mut self, len: usize) -> Result<(), Refusal> {
        self.nodes.clear();
        self.scratch.clear();
        self.pairs.clear();
        self.out.clear();
        // A value takes at least two bytes of text with its comma or bracket, and one byte if it is
        // still open. A pair takes five. A number of one digit becomes twelve bytes.
        let done = self.nodes.try_reserve(len / 2 + MOST_DEEP as usize + 2);
        let done = done.and_then(|()| self.scratch.try_reserve(len));
        let done = done.and_then(|()| self.pairs.try_reserve(len / 4 + 1));
        let done = done.and_then(|()| self.out.try_reserve(8 * len + 64));
        done.map_err(|_| Refusal::OutOfMemory)
    }
}

/// Adds a node for each value of the validator.
struct Noting<'b> {
    text: &'b [u8],
    nodes: &'b mut Vec<Node>,
    scratch: &'b mut Vec<u8>,
    /// the nodes of the open containers
    open: [u32; MOST_DEEP as usize],
    depth: usize,
}

impl Noting<'_> {
    #[inline]
    fn push(&mut self, kind: Kind, start: usize, len: usize) {
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push_within(Node { kind, start: start as u32, len: len as u32, next });
        if self.depth > 0 {
            self.nodes[self.open[self.depth - 1] as usize].len += 1;
        }
    }
}

impl Visitor for Noting<'_> {
    #[inline]
    fn scalar(&mut self, scalar: Scalar, start: usize, end: usize) {
        let kind = match scalar {
            Scalar::String { escapes: false } => Kind::String,
            Scalar::String { escapes: true } => {
                let from = self.scratch.len();
                resolve(&self.text[start..end], self.scratch);
                return self.push(Kind::Resolved, from, self.scratch.len() - from);
            }
            Scalar::Number => Kind::Number,
            Scalar::True => Kind::True,
            Scalar::False => Kind::False,
            Scalar::Null => Kind::Null,
        };
        self.push(kind, start, end - start);
    }

    #[inline]
    fn open(&mut self, is_object: bool) {
        let at = self.nodes.len();
        self.push(if is_object { Kind::Object } else { Kind::Array }, 0, 0);
        self.open[self.depth] = at as u32;
        self.depth += 1;
    }

    #[inline]
    fn close(&mut self) {
        self.depth -= 1;
        let end = self.nodes.len() as u32;
        let node = &mut self.nodes[self.open[self.depth] as usize];
        node.next = end;
        if node.kind == Kind::Object {
            // Both keys and values were counted.
            node.len /= 2;
        }
    }
}

/// Appends the bytes of a string with resolved escapes, which must be valid.
fn resolve(mut text: &[u8], out: &mut Vec<u8>) {
    let unit = |text: &[u8]| {
        text[2..6]
            .iter()
            .fold(0, |v, c| v << 4 | u32::from(super::text::hex_digit(*c).unwrap_or(0)))
    };
    while let Some(at) = text.iter().position(|c| *c == b'\\') {
        out.extend_within_room(&text[..at]);
        text = &text[at..];
        let (byte, len) = match text[1] {
            b'u' => {
                let (mut code, mut len) = (unit(text), 6);
                if (0xd800..0xdc00).contains(&code) {
                    code = 0x1_0000 + ((code & 0x3ff) << 10 | unit(&text[6..]) & 0x3ff);
                    len = 12;
                }
                let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                out.extend_within_room(character.encode_utf8(&mut [0; 4]).as_bytes());
                text = &text[len..];
                continue;
            }
            b'b' => (8, 2),
            b'f' => (12, 2),
            b'n' => (b'\n', 2),
            b'r' => (b'\r', 2),
            b't' => (b'\t', 2),
            itself => (itself, 2),
        };
        out.push_within(byte);
        text = &text[len..];
    }
    out.extend_within_room(text);
}

/// Writes nodes as bytes.
struct Writer<'b> {
    text: &'b [u8],
    nodes: &'b [Node],
    scratch: &'b [u8],
    pairs: &'b mut Vec<Pair>,
    out: &'b mut Vec<u8>,
}

impl<'b> Writer<'b> {
    #[inline]
    fn string(&self, node: Node) -> &'b [u8] {
        let from = if node.kind == Kind::String { self.text } else { self.scratch };
        &from[node.start as usize..][..node.len as usize]
    }

    #[inline]
    fn prefix(&self, node: Node) -> u64 {
        let from = if node.kind == Kind::String { self.text } else { self.scratch };
        prefix(from, node.start as usize, node.len as usize)
    }

    #[inline]
    fn pad(&mut self) {
        let end = self.out.len().next_multiple_of(ALIGN);
        self.out.extend_within_room(&[0; ALIGN]);
        self.out.truncate(end);
    }

    /// Writes the value of a node and returns its JEntry type. The length of a value is that of all
    /// bytes written here, including the padding before it.
    #[inline]
    fn value(&mut self, index: u32) -> u32 {
        let node = self.nodes[index as usize];
        match node.kind {
            Kind::String | Kind::Resolved => {
                let bytes = self.string(node);
                extend(self.out, bytes);
                IS_STRING
            }
            Kind::Number => {
                self.pad();
                let text = self.text;
                self.number(&text[node.start as usize..][..node.len as usize]);
                IS_NUMERIC
            }
            Kind::True => IS_TRUE,
            Kind::False => IS_FALSE,
            Kind::Null => IS_NULL,
            Kind::Array => {
                self.array(node, index + 1, ARRAY | node.len);
                IS_CONTAINER
            }
            Kind::Object => {
                self.object(node, index + 1);
                IS_CONTAINER
            }
        }
    }

    /// Writes a scalar at the top, which is an array of one element with a special flag.
    fn scalar_alone(&mut self) {
        let array = Node { kind: Kind::Array, start: 0, len: 1, next: 1 };
        self.array(array, 0, ARRAY | SCALAR | 1);
    }

    /// Writes the head and leaves room for the entries. Returns their position.
    #[inline]
    fn head(&mut self, head: u32, entries: usize) -> usize {
        self.pad();
        self.out.extend_within_room(&head.to_ne_bytes());
        let at = self.out.len();
        self.out.resize_within(at + 4 * entries, 0);
        at
    }

    /// Writes entry `i`, for a value that was written from `before` on. `first` is the start of the
    /// container's first value.
    #[inline]
    fn entry(&mut self, entries: usize, i: usize, kind: u32, before: usize, first: usize) {
        let end = self.out.len();
        let entry = if i.is_multiple_of(STRIDE) {
            kind | HAS_OFFSET | (end - first) as u32
        } else {
            kind | (end - before) as u32
        };
        self.out[entries + 4 * i..][..4].copy_from_slice(&entry.to_ne_bytes());
    }

    fn array(&mut self, node: Node, mut index: u32, head: u32) {
        let count = node.len as usize;
        let entries = self.head(head, count);
        let first = self.out.len();
        for i in 0..count {
            let before = self.out.len();
            let kind = self.value(index);
            self.entry(entries, i, kind, before, first);
            index = self.nodes[index as usize].next;
        }
    }

    fn object(&mut self, node: Node, index: u32) {
        let base = self.pairs.len();
        let count = self.sorted_pairs(node, index);
        let entries = self.head(OBJECT | count as u32, 2 * count);
        let first = self.out.len();
        for i in 0..count {
            let before = self.out.len();
            let key = self.nodes[self.pairs[base + i].key as usize];
            let bytes = self.string(key);
            extend(self.out, bytes);
            self.entry(entries, i, IS_STRING, before, first);
        }
        for i in 0..count {
            let before = self.out.len();
            let kind = self.value(self.pairs[base + i].key + 1);
            self.entry(entries, count + i, kind, before, first);
        }
        self.pairs.truncate(base);
    }

    /// Pushes the object's pairs in the order of `lengthCompareJsonbPair`. Of pairs with equal
    /// keys, only the last one is kept. Returns the number of pairs.
    #[inline]
    fn sorted_pairs(&mut self, node: Node, mut index: u32) -> usize {
        let base = self.pairs.len();
        let mut is_sorted = true;
        for _ in 0..node.len {
            let key = self.nodes[index as usize];
            let pair = Pair { order: (key.len, self.prefix(key)), key: index };
            // Keys that differ in length or prefix are certainly in order. All others are sorted.
            is_sorted &= self.pairs[base..].last().is_none_or(|last| last.order < pair.order);
            self.pairs.push_within(pair);
            index = self.nodes[index as usize + 1].next;
        }
        if !is_sorted {
            let kept = self.sort(base);
            self.pairs.truncate(base + kept);
        }
        self.pairs.len() - base
    }

    /// Sorts the pairs from `base` on. Of pairs with equal keys, only the last one is kept; the
    /// kept pairs are moved to the front. Returns their number.
    fn sort(&mut self, base: usize) -> usize {
        let (nodes, text, scratch) = (self.nodes, self.text, self.scratch);
        let bytes = |pair: &Pair| {
            let node = nodes[pair.key as usize];
            let from = if node.kind == Kind::String { text } else { scratch };
            &from[node.start as usize..][..node.len as usize]
        };
        // The later of two equal keys comes first, and is kept.
        let order = |a: &Pair, b: &Pair| {
            let keys = a.order.cmp(&b.order).then_with(|| bytes(a).cmp(bytes(b)));
            keys.then(b.key.cmp(&a.key))
        };
        let pairs = &mut self.pairs[base..];
        if pairs.len() <= FEW {
            insertion_sort(pairs, order);
        } else {
            pairs.sort_unstable_by(order);
        }
        let mut kept = 0;
        for i in 1..pairs.len() {
            let (last, this) = (pairs[kept], pairs[i]);
            if last.order != this.order || bytes(&last) != bytes(&this) {
                kept += 1;
                pairs[kept] = this;
            }
        }
        kept + 1
    }

    /// Writes a `numeric` with a header of four bytes, as `make_result` forms it.
    #[inline]
    fn number(&mut self, text: &[u8]) {
        let out = &mut *self.out;
        if let Some(value) = integer::plain(text) {
            return small(value, |value| store(value, out));
        }
        let read = numeric(text, -1, |value| store(value, out));
        debug_assert_eq!(read, Ok(()), "the validator lets no other numbers through");
    }
}

/// Passes an integer below 10^18 as a `numeric` to `put`.
#[inline]
fn small(value: i64, put: impl FnOnce(Numeric<'_>)) {
    let mut digits = [0; 5];
    let mut rest = value.unsigned_abs();
    let mut at = digits.len();
    let mut end = at;
    while rest != 0 {
        at -= 1;
        digits[at] = (rest % 10_000) as i16;
        rest /= 10_000;
        // Trailing zeros are not stored.
        if digits[at] == 0 && end == at + 1 {
            end = at;
        }
    }
    let sign = if value < 0 { Numeric::NEGATIVE } else { Numeric::POSITIVE };
    let weight = (digits.len() - at).saturating_sub(1) as i16;
    put(Numeric { digits: &digits[at.min(end)..end], weight, sign, dscale: 0 });
}

#[inline]
fn store(value: Numeric<'_>, out: &mut Vec<u8>) {
    let (head, head_len) = value.stored_head();
    // SET_VARSIZE: the length with its own four bytes, above two bits of flags.
    let size = (4 + head_len + 2 * value.digits.len()) as u32;
    let size = if cfg!(target_endian = "little") { size << 2 } else { size };
    out.extend_within_room(&size.to_ne_bytes());
    let start = out.len();
    out.extend_within_room(&head);
    out.truncate(start + head_len);
    for digit in value.digits {
        out.extend_within_room(&digit.to_ne_bytes());
    }
}

/// Sorts the keys of an object if there are only few of them.
#[inline]
fn insertion_sort(pairs: &mut [Pair], order: impl Fn(&Pair, &Pair) -> Ordering) {
    for i in 1..pairs.len() {
        let pair = pairs[i];
        let mut at = i;
        while at > 0 && order(&pair, &pairs[at - 1]) == Ordering::Less {
            pairs[at] = pairs[at - 1];
            at -= 1;
        }
        pairs[at] = pair;
    }
}

/// The first eight of the `len` bytes at `start`, with zeros after the last, so that the numbers
/// compare like `memcmp`.
#[inline]
fn prefix(from: &[u8], start: usize, len: usize) -> u64 {
    let len = len.min(8);
    if let Some(first) = from[start..].first_chunk::<8>() {
        // A shift by all 64 bits is not defined.
        let kept = u64::MAX.checked_shl(64 - 8 * len as u32).unwrap_or(0);
        return u64::from_be_bytes(*first) & kept;
    }
    let mut first = [0; 8];
    first[..len].copy_from_slice(&from[start..start + len]);
    u64::from_be_bytes(first)
}
