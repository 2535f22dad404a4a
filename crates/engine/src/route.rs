//! Which leaf of a partitioned table a row belongs to, by PostgreSQL's own rules.
//!
//! Rows are routed by the bytes that are sent. So the values that are compared and hashed are those
//! that the server reads. If it is not certain how the server reads a value, the row goes to the
//! root, and the server routes it. A leaf checks its partition constraint on every row of a COPY.
//! So a wrong route is an error of the server and never a row in the wrong place.

mod bounds;
mod hash;
mod tree;

pub use tree::{router, NotRouted};

use crate::facts::Partition;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

/// The maximum number of columns in the keys of all levels.
const MOST: usize = 8;

/// Assigns the rows of a partitioned table to its leaves.
#[derive(Clone, Debug)]
pub struct Router {
    /// the leaves to which rows are sent, quoted and qualified
    pub leaves: Vec<String>,
    /// the table and its partitions at the time when this was created
    pub partitions: Vec<Partition>,
    /// the load has truncated the leaves, and freezes their rows
    pub freeze: bool,
    node: Node,
    /// the columns of the keys: their positions in the rows that are sent, ascending
    needed: Vec<usize>,
    /// non-ASCII text has other bytes on the server
    ascii_only: bool,
}

/// Rows of a chunk in the binary form, grouped by table.
#[derive(Debug)]
pub struct Split {
    /// the rows
    pub bytes: Vec<u8>,
    /// the byte range of each table: a leaf by its index, the root by the number of leaves
    pub parts: Vec<(usize, Range<usize>)>,
    /// the number of rows in each of these
    pub counts: Vec<u64>,
    /// the number of rows for the root
    pub for_root: u64,
}

impl Split {
    /// The rows of one table, if there are any.
    pub fn rows_of(&self, table: usize) -> Option<&[u8]> {
        let at = self.parts.binary_search_by_key(&table, |(of, _)| *of).ok()?;
        Some(&self.bytes[self.parts[at].1.clone()])
    }

    /// The number of rows of one table.
    pub fn count_of(&self, table: usize) -> u64 {
        self.parts.binary_search_by_key(&table, |(of, _)| *of).map_or(0, |at| self.counts[at])
    }

    /// The number of rows before those of one table.
    pub fn rows_before(&self, table: usize) -> u64 {
        let at = self.parts.partition_point(|(of, _)| *of < table);
        self.counts[..at].iter().sum()
    }

    /// Removes the rows for the root, which are the last ones.
    pub fn drop_root(&mut self) {
        if self.for_root > 0 {
            self.counts.pop();
            let rows = self.parts.pop().map_or(0..0, |(_, place)| place);
            self.bytes.truncate(rows.start);
            self.for_root = 0;
        }
    }
}

/// A partitioned table.
#[derive(Clone, Debug)]
struct Node {
    keys: Vec<Key>,
    rule: Rule,
    /// for rows that no other partition accepts
    default: Target,
}

/// One column of a key.
#[derive(Clone, Debug)]
struct Key {
    /// an index into [`Router::needed`] and the values of a row
    slot: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Target {
    /// the server must route the row
    Root,
    Leaf(usize),
    Table(Box<Node>),
}

#[derive(Clone, Debug)]
enum Rule {
    Hash {
        /// for each remainder of the greatest modulus, an index into the targets
        places: Vec<usize>,
        targets: Vec<Target>,
    },
    List {
        numbers: HashMap<i64, usize>,
        texts: HashMap<Vec<u8>, usize>,
        null: Option<usize>,
        targets: Vec<Target>,
    },
    /// in ascending order, without overlaps
    Range(Vec<Span>),
}

#[derive(Clone, Debug)]
struct Span {
    from: Vec<Edge>,
    to: Vec<Edge>,
    target: Target,
}

#[derive(Clone, Debug)]
enum Edge {
    Min,
    Value(Value<Vec<u8>>),
    Max,
}

/// How the values of a type are compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// a signed number of this many bytes, at most four
    Short(usize),
    /// a signed number of eight bytes
    Long,
    /// an unsigned number of one or four bytes
    Unsigned(usize),
    /// text; its bytes depend on the encoding
    Text,
    /// sixteen bytes
    Uuid,
    /// the label of an enum: values are equal if the bytes are; their order is not known
    Label,
}

/// A value in the form in which it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value<B> {
    Number(i64),
    Bytes(B),
}

impl Value<Vec<u8>> {
    fn as_slice(&self) -> Value<&[u8]> {
        match self {
            Value::Number(number) => Value::Number(*number),
            Value::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

impl Kind {
    /// Decodes a value in the binary form; `None` if the bytes are not of this type.
    #[inline]
    fn value(self, bytes: &[u8]) -> Option<Value<&[u8]>> {
        let number = |size: usize, signed: bool| {
            if bytes.len() != size || size > 8 {
                return None;
            }
            let negative = signed && bytes[0] >= 0x80;
            let start = if negative { -1i64 } else { 0 };
            Some(Value::Number(bytes.iter().fold(start, |n, b| n << 8 | i64::from(*b))))
        };
        match self {
            Kind::Short(size) => number(size, true),
            Kind::Long => number(8, true),
            Kind::Unsigned(size) => number(size, false),
            Kind::Uuid if bytes.len() != 16 => None,
            Kind::Text | Kind::Uuid | Kind::Label => Some(Value::Bytes(bytes)),
        }
    }

    #[inline]
    fn hash(self, value: Value<&[u8]>) -> u64 {
        match value {
            Value::Number(number) if self == Kind::Long => hash::of_i64(number),
            Value::Number(number) => hash::of_u32(number as u32),
            Value::Bytes(bytes) => hash::of_bytes(bytes),
        }
    }
}

/// The values of a row's keys; NULL is `None`.
type Values<'a> = [Option<&'a [u8]>; MOST];

impl Router {
    /// Groups rows in the binary form by the table to which they go. The order within each table is
    /// preserved. Returns `None` if the rows cannot be read, which is a defect of the loader.
    pub fn split(&self, rows: &[u8], mut out: Vec<u8>) -> Option<Split> {
        let mut ends = vec![0; self.leaves.len() + 1];
        let mut found = Vec::with_capacity(rows.len() / 32);
        let mut at = 0;
        self.each_row(rows, |table, end| {
            ends[table] += end - at;
            found.push((table as u32, (end - at) as u32));
            at = end;
        })?;
        // The position of the next row of each table.
        let mut next = ends;
        let mut parts = Vec::new();
        let mut start = 0;
        for (table, room) in next.iter_mut().enumerate().filter(|(_, room)| **room > 0) {
            parts.push((table, start..start + *room));
            start += *room;
            *room = start - *room;
        }
        out.clear();
        out.resize(rows.len(), 0);
        at = 0;
        let mut rows_of = vec![0; self.leaves.len() + 1];
        for (table, length) in found {
            rows_of[table as usize] += 1;
            let (to, length) = (&mut next[table as usize], length as usize);
            out[*to..*to + length].copy_from_slice(&rows[at..at + length]);
            *to += length;
            at += length;
        }
        let counts = parts.iter().map(|(table, _)| rows_of[*table]).collect();
        let for_root = rows_of[self.leaves.len()];
        Some(Split { bytes: out, parts, counts, for_root })
    }

    /// The columns of the keys: their positions in the rows.
    pub fn needed(&self) -> &[usize] {
        &self.needed
    }

    /// The values of the keys of the first row, in the order of [`Router::needed`].
    pub fn first_keys<'a>(&self, rows: &'a [u8]) -> Option<Vec<Option<&'a [u8]>>> {
        let mut values = [None; MOST];
        self.read(rows, 0, &mut values)?;
        Some(values[..self.needed.len()].to_vec())
    }

    /// Of rows in the order of the input, returns the indexes of those that go to a table: a leaf
    /// by its index, the root by the number of leaves.
    pub fn rows_for(&self, rows: &[u8], table: usize) -> Option<Vec<u64>> {
        let (mut row, mut found) = (0, Vec::new());
        self.each_row(rows, |of, _| {
            found.extend((of == table).then_some(row));
            row += 1;
        })?;
        Some(found)
    }

    /// Of rows in the order of the input, returns the indexes in the order of [`Router::split`].
    pub fn places(&self, rows: &[u8]) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        self.each_row(rows, |table, _| found.push((table, found.len() as u64)))?;
        found.sort_unstable();
        Some(found.into_iter().map(|(_, row)| row).collect())
    }

    /// Returns the end of each row in the binary form.
    pub fn ends(&self, rows: &[u8]) -> Option<Vec<usize>> {
        let mut ends = Vec::new();
        self.each_row(rows, |_, end| ends.push(end))?;
        Some(ends)
    }

    /// Calls `each` for each row with its table (a leaf by its index, the root by the number of
    /// leaves) and with the row's end. Returns `None` if the rows cannot be read.
    #[inline]
    fn each_row(&self, rows: &[u8], mut each: impl FnMut(usize, usize)) -> Option<()> {
        let mut values = [None; MOST];
        let mut at = 0;
        while at < rows.len() {
            at = self.read(rows, at, &mut values)?;
            each(self.leaf(&values).unwrap_or(self.leaves.len()), at);
        }
        Some(())
    }

    /// Reads the values of the keys from the row at `at`. Returns the row's end.
    #[inline]
    fn read<'a>(&self, rows: &'a [u8], mut at: usize, values: &mut Values<'a>) -> Option<usize> {
        let fields = u16::from_be_bytes(*rows.get(at..)?.first_chunk()?);
        at += 2;
        let mut slot = 0;
        for field in 0..usize::from(fields) {
            let length = i32::from_be_bytes(*rows.get(at..)?.first_chunk()?);
            at += 4;
            let value = match usize::try_from(length) {
                Ok(length) => Some(rows.get(at..at + length)?),
                Err(_) => None,
            };
            at += value.map_or(0, <[u8]>::len);
            if self.needed.get(slot) == Some(&field) {
                values[slot] = value;
                slot += 1;
            }
        }
        (slot == self.needed.len()).then_some(at)
    }

    /// Returns the leaf of a row; `None` if the server must route it.
    #[inline]
    fn leaf(&self, values: &Values<'_>) -> Option<usize> {
        let mut node = &self.node;
        loop {
            match node.target(values, self.ascii_only)? {
                Target::Root => return None,
                Target::Leaf(leaf) => return Some(*leaf),
                Target::Table(table) => node = table,
            }
        }
    }
}

impl Node {
    /// Returns the partition of a row; `None` if it is not certain how the server reads a value.
    fn target(&self, values: &Values<'_>, ascii_only: bool) -> Option<&Target> {
        let value = |key: &Key| -> Option<Option<Value<&[u8]>>> {
            let Some(bytes) = values[key.slot] else { return Some(None) };
            let converted = matches!(key.kind, Kind::Text | Kind::Label) && ascii_only;
            if converted && !bytes.is_ascii() {
                return None;
            }
            key.kind.value(bytes).map(Some)
        };
        match &self.rule {
            Rule::Hash { places, targets } => {
                let mut hash = hash::START;
                for key in &self.keys {
                    if let Some(value) = value(key)? {
                        hash = hash::combine(hash, key.kind.hash(value));
                    }
                }
                targets.get(*places.get((hash % places.len().max(1) as u64) as usize)?)
            }
            Rule::List { numbers, texts, null, targets } => {
                let found = match value(self.keys.first()?)? {
                    None => *null,
                    Some(Value::Number(number)) => numbers.get(&number).copied(),
                    Some(Value::Bytes(bytes)) => texts.get(bytes).copied(),
                };
                Some(found.map_or(&self.default, |found| &targets[found]))
            }
            Rule::Range(spans) => {
                let mut key = [Value::Number(0); MOST];
                for (part, column) in key.iter_mut().zip(&self.keys) {
                    // No range contains NULL.
                    let Some(value) = value(column)? else { return Some(&self.default) };
                    *part = value;
                }
                let key = &key[..self.keys.len()];
                let after = spans.partition_point(|s| order(key, &s.from) != Ordering::Less);
                let span = after.checked_sub(1).map(|at| &spans[at]);
                let span = span.filter(|span| order(key, &span.to) == Ordering::Less);
                Some(span.map_or(&self.default, |span| &span.target))
            }
        }
    }
}

/// Compares a key with a bound of a range, as `partition_rbound_datum_cmp` does.
fn order(key: &[Value<&[u8]>], edges: &[Edge]) -> Ordering {
    for (value, edge) in key.iter().zip(edges) {
        let order = match edge {
            Edge::Min => return Ordering::Greater,
            Edge::Max => return Ordering::Less,
            Edge::Value(bound) => value.cmp(&bound.as_slice()),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests;
