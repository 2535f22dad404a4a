//! Rows may wait until their values get numbers, or get them at once. The index must be the same.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use pgsluice_core::index_sort::build::{IndexBuild, PageAdded, Step};
use pgsluice_core::index_sort::heap_reader::{HeapSource, StoredColumn};
use pgsluice_core::index_sort::shape::{Attribute, IndexShape, Order};
use pgsluice_core::index_sort::tuple::{Field, Tid};

/// The value of each row.
type Content = Box<dyn Fn(usize) -> Option<Vec<u8>>>;

fn shape(descending: bool) -> IndexShape {
    let attribute = Attribute {
        len: -1,
        align: 4,
        by_value: false,
        order: Order::Ranked,
        descending,
        nulls_first: descending,
        exact: true,
    };
    IndexShape::new(vec![attribute], 1).unwrap()
}

/// A heap tuple with one text column.
fn heap_tuple(value: Option<&[u8]>) -> Vec<u8> {
    let mut tuple = vec![0; 24];
    tuple[22] = 24;
    match value {
        Some(bytes) => {
            tuple.push((bytes.len() as u8 + 1) << 1 | 1);
            tuple.extend_from_slice(bytes);
        }
        None => tuple[20] = 1,
    }
    tuple
}

/// Ranks the values as a server might: by length, then from the last byte to the first.
fn rank(build: &mut IndexBuild) {
    assert!(build.settle().unwrap());
    let dictionary = build.shape_mut().dictionary_mut(0).unwrap();
    let key = |id: u32| match dictionary.field(id) {
        Field::Bytes(bytes) => (bytes.len(), bytes.iter().rev().copied().collect::<Vec<u8>>()),
        other => panic!("{other:?}"),
    };
    let mut order: Vec<u32> = (0..dictionary.len() as u32).collect();
    order.sort_by_key(|&id| key(id));
    dictionary.rank(&order, &vec![false; order.len()]).unwrap();
}

fn drive(build: &mut IndexBuild, file: &mut Vec<u8>, pages: &mut Vec<(u32, Vec<u8>)>) {
    loop {
        match build.step().unwrap() {
            Step::Go => {}
            Step::Write => file.extend_from_slice(build.output()),
            Step::Read(extent) => {
                build.supply(&file[extent.start as usize..extent.end as usize]).unwrap();
            }
            Step::Pages => {
                while let Some((block, page)) = build.take_page() {
                    pages.push((block, page.bytes().to_vec()));
                }
            }
            Step::Add | Step::Done(_) => return,
        }
    }
}

fn pages(descending: bool, rows: &[Vec<u8>], memory: usize, waits: bool) -> Vec<(u32, Vec<u8>)> {
    let mut build = IndexBuild::new(shape(descending), memory).unwrap();
    let column = StoredColumn { len: -1, align: 4, attribute: Some(0) };
    let source = HeapSource::new(vec![column]).unwrap();
    let (mut file, mut pages, mut next) = (Vec::new(), Vec::new(), 0);
    if !waits {
        assert!(build.settle().unwrap());
    }
    let tuple =
        |index: usize| (((index / 100) << 16 | (index % 100 + 1)) as Tid, Some(&rows[index][..]));
    loop {
        match build.add_tuples(&source, rows.len(), tuple, &mut next).unwrap() {
            PageAdded::All => break,
            PageAdded::Full => {
                rank(&mut build);
                build.flush().unwrap();
                drive(&mut build, &mut file, &mut pages);
            }
            other => panic!("{other:?}"),
        }
    }
    rank(&mut build);
    build.finish().unwrap();
    drive(&mut build, &mut file, &mut pages);
    pages.sort();
    pages
}

/// With little memory or much, ascending or descending, rows that wait for the numbers of their
/// values give the same pages as rows that do not.
#[test]
fn rows_that_wait_give_the_same_index() {
    let short = |n: usize| Some(format!("{:x}", n * 7919 % 5003).into_bytes());
    let contents: [(&str, Content); 5] = [
        ("short", Box::new(short)),
        ("nulls", Box::new(move |n| if n % 7 == 3 { None } else { short(n) })),
        ("groups", Box::new(|n| Some(format!("user {}", n / 60 * 31 % 97).into_bytes()))),
        (
            "long ones late",
            Box::new(
                move |n| {
                    if n % 9000 == 8999 {
                        Some(vec![b'x'; 15 + n % 60])
                    } else {
                        short(n)
                    }
                },
            ),
        ),
        (
            "with a zero",
            Box::new(move |n| if n == 12_000 { Some(vec![b'a', 0, b'b']) } else { short(n) }),
        ),
    ];
    for (name, content) in contents {
        let rows: Vec<Vec<u8>> = (0..20_000).map(|n| heap_tuple(content(n).as_deref())).collect();
        for descending in [false, true] {
            let expected = pages(descending, &rows, 1 << 30, false);
            assert!(expected.len() > 10);
            for memory in [1 << 30, 1 << 20] {
                let ours = pages(descending, &rows, memory, true);
                assert!(ours == expected, "{name}, descending {descending}, {memory}");
            }
        }
    }
}

/// The pages of an index whose rows are added one by one, every fifth as a dead one; and whether
/// the rows could be handed over at the end.
fn one_by_one(values: &[Option<Vec<u8>>], waits: bool) -> (Vec<(u32, Vec<u8>)>, bool) {
    let mut build = IndexBuild::new(shape(false), 1 << 30).unwrap();
    if !waits {
        assert!(build.settle().unwrap());
    }
    for (n, value) in values.iter().enumerate() {
        let (tid, dead) = (((n / 100) << 16 | (n % 100 + 1)) as Tid, n % 5 == 0);
        let field = value.as_deref().map(Field::Bytes);
        if build.add_waiting(tid, dead, field).unwrap().is_some() {
            continue;
        }
        assert!(build.settle().unwrap());
        let field = field.map(|field| build.shape_mut().intern(0, field).unwrap().unwrap());
        build.add(tid, dead, |_| field).unwrap();
    }
    let handed = build.spread().is_some();
    rank(&mut build);
    build.finish().unwrap();
    let mut pages = Vec::new();
    drive(&mut build, &mut Vec::new(), &mut pages);
    pages.sort();
    (pages, handed)
}

/// Rows that are added one by one, dead ones too, wait like those of whole pages, and give the same
/// index as rows that do not wait. They can be handed over unless a value was too long.
#[test]
fn rows_added_one_by_one_wait_too() {
    let short = |n: usize| (n % 7 != 3).then(|| format!("{:x}", n * 7919 % 5003).into_bytes());
    let all_short: Vec<_> = (0..20_000).map(short).collect();
    let mut one_long = all_short.clone();
    one_long[15_000] = Some(vec![b'x'; 40]);
    for (values, handed) in [(all_short, true), (one_long, false)] {
        let (expected, _) = one_by_one(&values, false);
        assert!(expected.len() > 10);
        assert!(one_by_one(&values, true) == (expected, handed));
    }
}
