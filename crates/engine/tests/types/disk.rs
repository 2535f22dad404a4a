//! Values in their form on disk, compared with the bytes in servers' pages.

use crate::cases::CASES;
use crate::hostile::{mutate, Random};
use crate::oracle::{escaped, on_each_major, Column, Oracle, Settings};
use pgsluice_core::shape::Env;
use pgsluice_core::sink::{Ask, HeapColumn, HeapSink, RowSink, Scratch};
use pgsluice_core::types;
use pgsluice_core::types::jsonb::JsonbBuilder;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A random JSON document with at most `budget` values.
fn document(random: &mut Random, budget: &mut usize, depth: usize) -> String {
    *budget = budget.saturating_sub(1);
    let scalars = [
        "1",
        "0",
        "-12.50",
        "1e5",
        "1e-70",
        "123456789012345678901234567890",
        "0.00",
        "true",
        "false",
        "null",
        "\"\"",
        "\"x\"",
        "\"äö😀\"",
        "\"\\n\\u00e4\\ud83d\\ude00\\\\\"",
        "[]",
        "{}",
        "9999.00010",
        "-1E+20",
        "12e-3",
    ];
    if depth > 5 || *budget == 0 || random.below(3) == 0 {
        return scalars[random.below(scalars.len())].to_owned();
    }
    let wide = [3, 5, 40, 100][random.below(4)];
    let count = random.below(wide).min(*budget);
    let is_object = random.below(2) == 0;
    let parts: Vec<String> = (0..count)
        .map(|_| {
            let value = document(random, budget, depth + 1);
            if is_object {
                format!("\"{}\" :{value}", key(random))
            } else {
                value
            }
        })
        .collect();
    let parts = parts.join([",", " , "][random.below(2)]);
    if is_object {
        format!("{{{parts}}}")
    } else {
        format!("[{parts}]")
    }
}

/// Keys of many lengths, some equal, some that differ only after eight bytes.
fn key(random: &mut Random) -> String {
    let stems = [
        "",
        "a",
        "b",
        "ab",
        "id",
        "created_at",
        "created_by",
        "\\u0061",
        "ä",
        "\\n",
        "abcdefgh",
        "abcdefghi",
    ];
    let stem = stems[random.below(stems.len())];
    if random.below(2) == 0 {
        stem.to_owned()
    } else {
        format!("{stem}{}", random.below(200))
    }
}

fn documents() -> Vec<String> {
    let case = CASES.iter().find(|c| c.sql == "jsonb").expect("jsonb among the cases");
    let seeds: Vec<&str> = case.plain.iter().chain(case.seeds).copied().collect();
    let mut random = Random::new("documents");
    let mut documents: Vec<String> = seeds.iter().map(|s| (*s).to_owned()).collect();
    documents.extend((0..1000).map(|_| mutate(&seeds, &mut random)));
    documents.extend((0..1000).map(|_| document(&mut random, &mut 150, 0)));
    documents
}

/// The bytes in the pages for each value, from its varlena header on.
fn stored(oracle: &Oracle, documents: &BTreeMap<usize, &str>) -> BTreeMap<usize, String> {
    let rows = documents.iter().fold(String::new(), |mut rows, (id, text)| {
        let _ = writeln!(rows, "{id}\t{}", escaped(text));
        rows
    });
    let file = oracle.write("documents", rows.as_bytes());
    let said = oracle.psql(&format!(
        r"CREATE EXTENSION pageinspect;
        CREATE TABLE d (id int, v jsonb);
        ALTER TABLE d ALTER v SET STORAGE PLAIN;
        \copy d FROM '{}'
        SELECT get_byte(t_data, 0) + 256 * get_byte(t_data, 1), encode(substr(t_data, 5), 'hex')
        FROM generate_series(0, pg_relation_size('d') / 8192 - 1) AS page,
             heap_page_items(get_raw_page('d', page::int));",
        file.display()
    ));
    let lines = said.lines().map(|line| {
        let (id, hex) = line.split_once('|').unwrap_or_else(|| panic!("{line}"));
        (id.parse().unwrap_or_else(|_| panic!("{line}")), hex.to_owned())
    });
    lines.collect()
}

/// The core forms `jsonb` documents with the same bytes as in the pages of each server.
#[test]
fn jsonb_is_formed_as_it_lies_in_the_servers_pages() {
    let documents = documents();
    let mut builder = JsonbBuilder::default();
    let mut formed = BTreeMap::new();
    for (id, text) in documents.iter().enumerate() {
        let Ok(value) = builder.build(text.as_bytes()) else { continue };
        // A value that does not fit into a page cannot be stored plain.
        if value.len() < 8000 {
            let size = (4 + value.len() as u32) << 2;
            let bytes = [&size.to_le_bytes(), value].concat();
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            formed.insert(id, hex);
        }
    }
    assert!(formed.len() > 1000, "only {} documents were formed", formed.len());
    let texts = formed.keys().map(|id| (*id, documents[*id].as_str())).collect();
    on_each_major(|oracle| {
        if !oracle.shows_pages() {
            return;
        }
        let stored = stored(oracle, &texts);
        assert_eq!(stored.len(), formed.len(), "{}: rows", oracle.name());
        for (id, hex) in &formed {
            assert_eq!(hex, &stored[id], "{}: {}", oracle.name(), documents[*id]);
        }
    });
}

/// The data of the tuple `(id, value)` as the core forms it, in hex; `None` if the core does not
/// form the value.
fn tuple(
    columns: &[HeapColumn],
    column: &Column,
    env: &Env,
    id: i32,
    text: &str,
) -> Option<String> {
    const HEADER: usize = 24;
    let (mut out, mut asks) = (vec![0xee; 1 << 16], [Ask::default(); 1]);
    let mut scratch = Scratch { array: Vec::with_capacity(1 << 16), ..Scratch::default() };
    let mut sink = HeapSink::new(columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    sink.put_i32(id);
    types::put(&column.ty, text.as_bytes(), env, &mut sink).ok()?;
    sink.end();
    let len = sink.formed()?.len;
    Some(out[HEADER..len].iter().map(|b| format!("{b:02x}")).collect())
}

/// A copy of this column, without its value.
fn same(column: &HeapColumn) -> HeapColumn {
    HeapColumn { given: None, ..*column }
}

/// All tuples that the core forms from the cases' values, by case and number.
fn tuples(columns: &[Column], settings: &Settings) -> BTreeMap<(usize, usize), (String, String)> {
    let id = HeapColumn { len: 4, align: 4, packable: false, element_align: 1, given: None };
    let mut tuples = BTreeMap::new();
    for (i, (case, column)) in CASES.iter().zip(columns).enumerate() {
        let heap = [same(&id), same(&column.heap)];
        for (n, text) in crate::values(case).into_iter().enumerate() {
            // Longer values might be stored out of line.
            let formed = tuple(&heap, column, &settings.env, n as i32, &text);
            if let Some(formed) = formed.filter(|f| f.len() < 3000) {
                tuples.insert((i, n), (text, formed));
            }
        }
    }
    tuples
}

/// The core forms values of every type with the same bytes as in the pages of each server.
#[test]
fn every_type_is_formed_as_it_lies_in_the_servers_pages() {
    let settings = Settings::plain();
    on_each_major(|oracle| {
        if !oracle.shows_pages() {
            return;
        }
        let columns = oracle.columns(&CASES.iter().map(|c| c.sql).collect::<Vec<_>>());
        let tuples = tuples(&columns, &settings);
        assert!(tuples.len() > 5000, "only {} tuples were formed", tuples.len());
        let mut script = format!("CREATE EXTENSION pageinspect; {}", settings.sql);
        for (i, (case, column)) in CASES.iter().zip(&columns).enumerate() {
            let rows = tuples.range((i, 0)..(i + 1, 0)).fold(
                String::new(),
                |mut rows, ((_, n), (text, _))| {
                    let _ = writeln!(rows, "{n}\t{}", escaped(text));
                    rows
                },
            );
            let file = oracle.write(&format!("heap{i}"), rows.as_bytes());
            let external = if column.heap.len == -1 {
                "ALTER TABLE d ALTER v SET STORAGE EXTERNAL;"
            } else {
                ""
            };
            let _ = write!(
                script,
                r"
                CREATE TABLE d (id int, v {}); {external}
                \copy d FROM '{}'
                SELECT {i}, get_byte(t_data, 0) + 256 * get_byte(t_data, 1), encode(t_data, 'hex')
                FROM generate_series(0, pg_relation_size('d') / 8192 - 1) AS page,
                     heap_page_items(get_raw_page('d', page::int));
                DROP TABLE d;",
                case.sql,
                file.display()
            );
        }
        let said = oracle.psql(&script);
        let mut seen = 0;
        for line in said.lines() {
            let mut parts = line.splitn(3, '|');
            let mut number =
                || parts.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
            let key = (number(), number());
            let (text, formed) = &tuples[&key];
            assert_eq!(
                parts.next(),
                Some(formed.as_str()),
                "{}: {}: {text:?}",
                oracle.name(),
                CASES[key.0].sql
            );
            seen += 1;
        }
        assert_eq!(seen, tuples.len(), "{}: tuples", oracle.name());
    });
}
