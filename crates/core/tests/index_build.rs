//! The index build, compared with a simple model: rows sorted by value, pages read one by one.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use pgsluice_core::index_sort::build::{IndexBuild, Step};
use pgsluice_core::index_sort::run::Added;
use pgsluice_core::index_sort::shape::{Attribute, IndexShape, Order};
use pgsluice_core::index_sort::tuple::{self, Field, TupleFields};
use pgsluice_core::index_sort::BuildFailure;
use pgsluice_core::page::btree;
use std::cmp::Ordering;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Int(i64),
    Uint(u64),
    Float(f64),
    Bytes(Vec<u8>),
}

type Row = (Vec<Option<Value>>, u64, bool);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn attribute(&mut self, carried: bool) -> Attribute {
        let order = self.pick(&[
            Order::Signed,
            Order::Unsigned,
            Order::Float,
            Order::Fixed,
            Order::Text,
            Order::Text,
            Order::Bytea,
            Order::Ranked,
        ]);
        let len = match order {
            Order::Signed => self.pick(&[2, 4, 8]),
            Order::Unsigned => self.pick(&[1, 4]),
            Order::Float => self.pick(&[4, 8]),
            Order::Fixed => self.pick(&[16, 6]),
            _ => -1,
        };
        Attribute {
            len,
            align: match (order, len) {
                (Order::Fixed, 6) => 4,
                (Order::Fixed, _) => 1,
                (_, -1) => 4,
                _ => len as u8,
            },
            by_value: !matches!(order, Order::Fixed | Order::Text | Order::Bytea | Order::Ranked),
            order: if carried { Order::Carried } else { order },
            descending: !carried && self.below(2) == 0,
            nulls_first: self.below(2) == 0,
            exact: self.below(2) == 0,
        }
    }

    fn value(&mut self, attribute: &Attribute, wide: u64) -> Value {
        let small = self.below(wide);
        match (attribute.order, attribute.len) {
            (Order::Float, 4) => {
                let value =
                    self.pick(&[small as f32 - 3.5, -0.0, 0.0, f32::NAN, f32::NEG_INFINITY]);
                Value::Float(value.into())
            }
            (Order::Float, _) => {
                Value::Float(self.pick(&[small as f64 * -1.5e200, -0.0, 0.0, -f64::NAN, 1e-300]))
            }
            (_, -1) => {
                let len = self.pick(&[0, 1, 2, 7, 14, 15, 16, 17, 126, 127, 300]);
                let len = if wide > 100 { len } else { len.min(20) };
                let zero = attribute.order != Order::Text && self.below(4) == 0;
                let mut bytes: Vec<u8> = (0..len).map(|at| b'a' + (at % 3) as u8).collect();
                if let Some(last) = bytes.last_mut() {
                    *last = if zero { 0 } else { 0x80 ^ small as u8 }.max(u8::from(!zero));
                }
                Value::Bytes(bytes)
            }
            (_, len) if !attribute.by_value => {
                let mut bytes = vec![0x7F; len as usize];
                bytes[len as usize - 1] = small as u8;
                bytes[0] = small.reverse_bits() as u8;
                Value::Bytes(bytes)
            }
            (Order::Signed | Order::Carried, 2) => {
                Value::Int((small as i16).wrapping_mul(37).into())
            }
            (Order::Signed | Order::Carried, 4) => {
                Value::Int((small as i32).wrapping_mul(100_003).into())
            }
            (Order::Signed | Order::Carried, _) => {
                Value::Int((small as i64).wrapping_mul(0x0009_9999_9999_9999))
            }
            (_, 1) => Value::Uint(small & 0xFF),
            _ => Value::Uint((small * 0x0010_0001) & 0xFFFF_FFFF),
        }
    }
}

fn field<'a>(attribute: &Attribute, value: &'a Option<Value>) -> Option<Field<'a>> {
    Some(match value.as_ref()? {
        Value::Int(value) => Field::Word(*value as u64),
        Value::Uint(value) => Field::Word(*value),
        Value::Float(value) if attribute.len == 4 => Field::Word((*value as f32).to_bits().into()),
        Value::Float(value) => Field::Word(value.to_bits()),
        Value::Bytes(value) => Field::Bytes(value),
    })
}

/// The order that a server may give to ranked values: here by length, then by bytes, or by length
/// alone if equal values may differ.
fn ranked(attribute: &Attribute, a: &[u8], b: &[u8]) -> Ordering {
    let ties = if attribute.exact { a.cmp(b) } else { Ordering::Equal };
    a.len().cmp(&b.len()).then(ties)
}

/// Ranks the values that have been added.
fn rank(build: &mut IndexBuild) -> Result<(), BuildFailure> {
    for index in 0..build.shape().key().len() {
        let attribute = build.shape().attributes()[index];
        let Some(dictionary) = build.shape_mut().dictionary_mut(index) else { continue };
        let value = |&id: &u32| match dictionary.field(id) {
            Field::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        let mut order: Vec<u32> = (0..dictionary.len() as u32).collect();
        order.sort_by(|a, b| ranked(&attribute, value(a), value(b)));
        let equal: Vec<bool> = std::iter::once(false)
            .chain(order.windows(2).map(|p| ranked(&attribute, value(&p[0]), value(&p[1])).is_eq()))
            .take(order.len())
            .collect();
        dictionary.rank(&order, &equal)?;
    }
    Ok(())
}

/// Compares one attribute of tuples as the index orders it.
fn compare_field(attribute: &Attribute, a: Option<Field>, b: Option<Field>) -> Ordering {
    match (attribute.order, a, b) {
        (Order::Ranked, Some(Field::Bytes(a)), Some(Field::Bytes(b))) => {
            let order = ranked(attribute, a, b);
            if attribute.descending {
                order.reverse()
            } else {
                order
            }
        }
        _ => tuple::compare_field(attribute, a, b),
    }
}

fn compare(shape: &IndexShape, a: &Row, b: &Row) -> Ordering {
    for (index, attribute) in shape.key().iter().enumerate() {
        let order = match (&a.0[index], &b.0[index]) {
            (None, None) => Ordering::Equal,
            (None, _) if attribute.nulls_first => Ordering::Less,
            (None, _) => Ordering::Greater,
            (_, None) if attribute.nulls_first => Ordering::Greater,
            (_, None) => Ordering::Less,
            (Some(a), Some(b)) => {
                let order = match (a, b) {
                    (Value::Int(a), Value::Int(b)) => a.cmp(b),
                    (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
                    (Value::Bytes(a), Value::Bytes(b)) if attribute.order == Order::Ranked => {
                        ranked(attribute, a, b)
                    }
                    (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
                    (Value::Float(a), Value::Float(b)) if a.is_nan() || b.is_nan() => {
                        a.is_nan().cmp(&b.is_nan())
                    }
                    (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).unwrap(),
                    _ => unreachable!(),
                };
                if attribute.descending {
                    order.reverse()
                } else {
                    order
                }
            }
        };
        if order.is_ne() {
            return order;
        }
    }
    a.1.cmp(&b.1)
}

struct Built {
    pages: BTreeMap<u32, Vec<u8>>,
    root: Option<(u32, u32)>,
    file: usize,
}

/// Builds the index; returns `None` if there are too many different values to be ranked.
fn build(shape: &IndexShape, rows: &[Row], memory: usize) -> Result<Option<Built>, BuildFailure> {
    let mut build = IndexBuild::new(shape.clone(), memory).unwrap();
    assert!(build.settle()?);
    let mut built = Built { pages: BTreeMap::new(), root: None, file: 0 };
    let mut file: Vec<u8> = Vec::new();
    let mut drive = |build: &mut IndexBuild| loop {
        match build.step()? {
            Step::Go => {}
            Step::Write => file.extend_from_slice(build.output()),
            Step::Read(extent) => {
                let bytes = &file[extent.start as usize..extent.end as usize];
                build.supply(bytes)?;
            }
            Step::Pages => {
                while let Some((block, page)) = build.take_page() {
                    assert!(built.pages.insert(block, page.bytes().to_vec()).is_none());
                    build.reuse(page);
                }
            }
            Step::Add => return Ok::<(), BuildFailure>(()),
            Step::Done(root) => {
                built.root = root;
                built.file = file.len();
                return Ok(());
            }
        }
    };
    for (values, tid, dead) in rows {
        let attributes = shape.attributes();
        let mut fields = [None; 8];
        for (index, value) in values.iter().enumerate() {
            if let Some(value) = field(&attributes[index], value) {
                let Some(value) = build.shape_mut().intern(index, value)? else { return Ok(None) };
                fields[index] = Some(value);
            }
        }
        match build.add(*tid, *dead, |index| fields[index])? {
            Added::Stored => {}
            Added::Full => {
                rank(&mut build)?;
                build.flush()?;
                drive(&mut build)?;
            }
            Added::TooLarge => panic!("too large: {values:?}"),
        }
    }
    rank(&mut build)?;
    build.finish()?;
    drive(&mut build)?;
    Ok(Some(built))
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

fn tuples(page: &[u8]) -> Vec<&[u8]> {
    let count = (u16_at(page, 12) as usize - 24) / 4;
    (0..count)
        .map(|index| {
            let pointer = u32_at(page, 24 + 4 * index);
            let (at, len) = ((pointer & 0x7FFF) as usize, (pointer >> 17) as usize);
            assert!(at >= u16_at(page, 14) as usize && at + len <= 8176);
            assert_eq!(tuple::size(&page[at..]), len);
            &page[at..at + len]
        })
        .collect()
}

/// The blocks of a level from left to right. Checks their links, level and flags.
fn level(built: &Built, first: u32, level: u32) -> Vec<u32> {
    let (mut block, mut previous, mut blocks) = (first, 0, Vec::new());
    while block != 0 {
        let page = &built.pages[&block];
        assert_eq!(u32_at(page, 8176), previous);
        assert_eq!(u32_at(page, 8184), level);
        let root = built.root.unwrap().0 == block;
        let flags = u16::from(level == 0) | u16::from(root) << 1;
        assert_eq!(u16_at(page, 8188), flags);
        blocks.push(block);
        previous = block;
        block = u32_at(page, 8180);
    }
    blocks
}

fn leaves(built: &Built) -> Vec<u32> {
    let Some((mut first, top)) = built.root else { return Vec::new() };
    let mut seen = 0;
    let mut below: Vec<u32> = vec![first];
    for depth in (0..=top).rev() {
        let blocks = level(built, first, depth);
        assert_eq!(blocks, below, "downlinks of level {depth}");
        seen += blocks.len();
        if depth > 0 {
            below = blocks
                .iter()
                .flat_map(|block| {
                    let page = &built.pages[block];
                    let rightmost = u32_at(page, 8180) == 0;
                    let data = tuples(page).split_off(usize::from(!rightmost));
                    assert_eq!(tuple::size(data[0]), 8, "minus infinity comes first");
                    data.iter()
                        .map(|t| u32::from(u16_at(t, 0)) << 16 | u32::from(u16_at(t, 2)))
                        .collect::<Vec<_>>()
                })
                .collect();
            first = below[0];
        }
    }
    assert_eq!(seen, built.pages.len());
    below
}

/// Reads the rows of the leaves and compares them with `expected`, which is sorted.
fn check(shape: &IndexShape, built: &Built, expected: &[Row]) {
    let mut rows = expected.iter();
    for block in leaves(built) {
        let page = &built.pages[&block];
        let rightmost = u32_at(page, 8180) == 0;
        let mut tuples = tuples(page);
        let high_key = (!rightmost).then(|| tuples.remove(0));
        assert!(!tuples.is_empty());
        for tuple in &tuples {
            let single = [tuple::tid_of(tuple)];
            let tids: Vec<u64> = match btree::posting(tuple) {
                None => single.to_vec(),
                Some((at, count)) => {
                    assert!(count > 1 && shape.deduplicate && !shape.unique);
                    tuple[at..at + 6 * count].chunks(6).map(tuple::tid_of).collect()
                }
            };
            for tid in tids {
                let row = rows.next().expect("no row too many");
                assert_eq!(row.1, tid);
                for (index, found) in TupleFields::new(shape, tuple).enumerate() {
                    let attribute = &shape.attributes()[index];
                    let wanted = field(attribute, &row.0[index]);
                    let cut = |field: Option<Field>| match field {
                        Some(Field::Word(word)) => {
                            Some(word.to_le_bytes()[..attribute.len as usize].to_vec())
                        }
                        Some(Field::Bytes(bytes)) => Some(bytes.to_vec()),
                        None => None,
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(cut(found), cut(wanted));
                }
            }
        }
        if let Some(high) = high_key {
            check_high_key(shape, tuples[tuples.len() - 1], high, rows.clone().next().unwrap());
        }
    }
    assert!(rows.next().is_none(), "no row too few");
}

/// Checks that the high key is above the page's last tuple, and not above the next page's first.
fn check_high_key(shape: &IndexShape, last: &[u8], high: &[u8], next: &Row) {
    let offset = u16_at(high, 4);
    let (count, has_tid) = ((offset & 0xFFF) as usize, offset & 0x1000 != 0);
    assert!((1..=shape.key().len()).contains(&count));
    let pairs = TupleFields::new(shape, high).zip(TupleFields::new(shape, last)).take(count);
    let mut order = Ordering::Equal;
    for ((index, attribute), (high, last)) in shape.key().iter().enumerate().zip(pairs) {
        let above = compare_field(attribute, high, field(attribute, &next.0[index]));
        assert!(above.is_eq(), "a high key has the values of the first tuple on its right");
        assert!(order.is_eq(), "a high key has no attribute too many");
        order = compare_field(attribute, high, last);
    }
    if has_tid {
        assert!(order.is_eq() && count == shape.key().len());
        let tid = tuple::tid_of(&high[high.len() - 6..]);
        assert!(tid == tuple::tid_of(&btree::last_tid(last)) && tid < next.1);
    } else {
        assert!(order.is_gt());
    }
}

fn shape(random: &mut Random) -> IndexShape {
    loop {
        let keys = 1 + random.below(3) as usize;
        let carried = if random.below(4) == 0 { random.below(3) as usize } else { 0 };
        let attributes = (0..keys + carried).map(|index| random.attribute(index >= keys)).collect();
        if let Some(mut shape) = IndexShape::new(attributes, keys) {
            shape.deduplicate &= random.below(3) > 0
                && shape.key().iter().all(|attribute| match attribute.order {
                    Order::Float => false,
                    Order::Ranked => attribute.exact,
                    _ => true,
                });
            shape.leaf_free = random.pick(&[819, 0, 4096]);
            return shape;
        }
    }
}

fn rows(random: &mut Random, shape: &IndexShape, count: usize, wide: u64) -> Vec<Row> {
    let mut tid = 1;
    (0..count)
        .map(|_| {
            tid += 1 + random.below(3) * 0x1_0000;
            let values = shape
                .attributes()
                .iter()
                .map(|attribute| {
                    (random.below(20) > 0).then(|| {
                        let mut like = *attribute;
                        if like.order == Order::Carried && like.len == 1 {
                            like.order = Order::Unsigned;
                        }
                        random.value(&like, wide)
                    })
                })
                .collect();
            (values, tid, random.below(50) == 0)
        })
        .collect()
}

/// Indexes of random shapes have exactly the sorted rows, and correct links and high keys.
#[test]
fn an_index_has_the_rows_of_its_naive_twin() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut merged, mut tall, mut ranks, mut crowded) = (0, 0, 0, 0);
    for case in 0..400 {
        let shape = shape(&mut random);
        let wide = random.pick(&[2, 30, 1000, 100_000]);
        let count = random.pick(&[0, 1, 2, 50, 1000, 6000]);
        let mut rows = rows(&mut random, &shape, count, wide);
        if random.below(2) == 0 {
            // tids in any order, as when pages are installed by several processes
            for at in (1..rows.len()).rev() {
                let other = random.below(at as u64 + 1) as usize;
                rows.swap(at, other);
            }
        }
        let memory = random.pick(&[1 << 30, 100_000, 3_000]);
        let built = build(&shape, &rows, memory);
        let Some(built) = built.unwrap_or_else(|error| panic!("{case}: {error:?}")) else {
            crowded += 1;
            continue;
        };
        ranks += usize::from(shape.ranked() > 0 && built.file > 0);
        rows.sort_by(|a, b| compare(&shape, a, b));
        check(&shape, &built, &rows);
        merged += usize::from(built.file > 0);
        tall += usize::from(built.root.is_some_and(|(_, level)| level > 1));
    }
    assert!(merged > 50 && tall > 5, "{merged} builds spilled, {tall} had three levels");
    assert!(ranks > 5 && crowded > 5, "{ranks} with ranks spilled, {crowded} had too many values");
}

/// Dead rows are no duplicates. NULLs are duplicates only if they are not distinct.
#[test]
fn a_duplicate_is_found_among_live_rows_only() {
    let int = Attribute {
        len: 4,
        align: 4,
        by_value: true,
        order: Order::Signed,
        descending: false,
        nulls_first: false,
        exact: true,
    };
    let mut shape = IndexShape::new(vec![int, int], 2).unwrap();
    shape.unique = true;
    let row = |a: i64, b: Option<i64>, tid, dead| {
        (vec![Some(Value::Int(a)), b.map(Value::Int)], tid, dead)
    };
    let both = [row(1, Some(2), 9, false), row(0, None, 8, false), row(1, Some(2), 7, false)];
    assert_eq!(build(&shape, &both, 1000).err(), Some(BuildFailure::Duplicate));
    let dead = [row(1, Some(2), 9, false), row(1, Some(2), 8, true), row(1, Some(2), 7, true)];
    assert!(build(&shape, &dead, 1000).is_ok());
    shape.first_in_table = true;
    assert_eq!(build(&shape, &both, 1000).err(), Some(BuildFailure::Duplicate));
    assert!(build(&shape, &dead, 1000).is_ok());
    let parted = [row(1, Some(2), 9, false), row(1, Some(2), 8, true), row(1, Some(2), 7, false)];
    assert_eq!(build(&shape, &parted, 1000).err(), Some(BuildFailure::Duplicate));
    let nulls = [row(1, None, 9, false), row(1, None, 8, false)];
    assert!(build(&shape, &nulls, 1000).is_ok());
    shape.nulls_not_distinct = true;
    assert_eq!(build(&shape, &nulls, 1000).err(), Some(BuildFailure::Duplicate));
}
