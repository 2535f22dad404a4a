//! Each generated file is loaded by the next method in turn and by stock COPY. Either the tables
//! are equal, or both refuse the file.

#[path = "../../../engine/tests/types/cases.rs"]
#[rustfmt::skip] // many values on a line
mod cases;
use crate::common::{on_each_major, World};
use cases::CASES;
use pgsluice_core::scan::Format;
use pgsluice_fuzz::hostile;
use pgsluice_fuzz::rng::Random;

/// The number of files for each server and generator, or `PGSLUICE_CASES`. Each seed gives one
/// file, so a failure can be reproduced.
fn files() -> u64 {
    std::env::var("PGSLUICE_CASES").map_or(60, |n| n.parse().expect("PGSLUICE_CASES is a number"))
}

/// The methods, and a text that the server's log must have for each.
const METHODS: &[(&str, &str)] = &[
    ("copy-binary", "COPY \"public\".\"p\""),
    ("insert", "INSERT INTO \"public\".\"p\""),
    ("copy-csv", "COPY \"public\".\"p\""),
    ("lanes", "PREPARE TRANSACTION"),
    ("copy-text", "COPY \"public\".\"p\""),
    ("staged", "CREATE UNLOGGED TABLE"),
    ("insert-batch", "INSERT INTO \"public\".\"p\""),
    ("copy-fresh", "FREEZE"),
    ("unlogged", "SET UNLOGGED"),
    ("unlogged-logged", "SET LOGGED"),
];

/// A table's columns, a file for it, and the options for its format on both sides.
struct Given {
    columns: String,
    bytes: Vec<u8>,
    copy: String,
    arguments: Vec<String>,
}

/// Columns of type text, with the oddest options that the server accepts.
fn texts(rng: &mut Random, major: u32, method: &str) -> Option<Given> {
    let case = hostile::ReadCase::new(rng, major);
    let d = &case.dialect;
    // Before PostgreSQL 18, stock COPY takes such a line as the end of the data; the loader never
    // does.
    let dots = case.data.windows(2).any(|two| two == b"\\.");
    if d.format == Format::Csv && dots && major < 18 {
        return None;
    }
    // Only the server can compute a default, and the landing table has none.
    if d.default.is_some() && method == "staged" {
        return None;
    }
    let byte = |b: u8| format!("\\x{b:02x}");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("markers are UTF-8");
    let mut arguments =
        vec!["--delimiter".into(), byte(d.delimiter), "--null".into(), text(&d.null)];
    if let Some(default) = &d.default {
        arguments.extend(["--default".into(), text(default)]);
    }
    if d.format == Format::Text {
        arguments.extend(["--format".into(), "text".into()]);
    } else {
        arguments.extend(["--quote".into(), byte(d.quote), "--escape".into(), byte(d.escape)]);
        arguments.extend(["--stray-quotes".into(), "copy".into()]);
        for (option, bits) in
            [("--force-null", case.force_null), ("--force-not-null", case.force_not_null)]
        {
            let forced = case.forced(bits);
            if !forced.is_empty() {
                arguments.extend([option.into(), forced]);
            }
        }
    }
    let columns: Vec<_> =
        (0..case.columns).map(|i| format!("c{i} text DEFAULT 'dflt{i}'")).collect();
    Some(Given { columns: columns.join(", "), copy: case.options(), bytes: case.data, arguments })
}

/// Columns of every type, with values at their limits, and sometimes one beyond.
fn types(rng: &mut Random) -> Given {
    let columns: Vec<_> = (0..1 + rng.below(5)).map(|_| &CASES[rng.below(CASES.len())]).collect();
    let odd = if rng.once_in(2) { 4 } else { 40 };
    let mut out = String::new();
    for _ in 0..1 + rng.below(5) {
        for (i, column) in columns.iter().enumerate() {
            let from = if column.plain.is_empty() || rng.once_in(odd) {
                column.seeds
            } else {
                column.plain
            };
            out.push_str(if i > 0 { "," } else { "" });
            let value = rng.pick(from);
            // Some values are NULL, and so is `now`, which differs between transactions.
            if value != "now" && !rng.once_in(10) {
                out.push_str(&format!("\"{}\"", value.replace('"', "\"\"")));
            }
        }
        out.push('\n');
    }
    let columns: Vec<_> =
        columns.iter().enumerate().map(|(i, c)| format!("c{i} {}", c.sql)).collect();
    let copy = "(FORMAT csv)".into();
    Given { columns: columns.join(", "), bytes: out.into_bytes(), copy, arguments: Vec::new() }
}

/// Loads the file both ways. Returns true if both accepted it, false if both refused it.
fn agree(world: &mut World, given: &Given, (method, seen): (&str, &str), label: &str) -> bool {
    world.sql(&format!(
        "DROP TABLE IF EXISTS s, p; CREATE TABLE s ({}); CREATE TABLE p (LIKE s INCLUDING ALL)",
        given.columns
    ));
    let expected = world.stock(&format!("COPY s FROM STDIN {}", given.copy), &given.bytes);
    let file = world.file("hostile", &given.bytes);
    let mut arguments = vec![file.as_str(), "--table", "p", "--method", method, "--lanes", "2"];
    if method != "lanes" {
        arguments.truncate(5);
    }
    arguments.extend(given.arguments.iter().map(String::as_str));
    let mut log = 0;
    world.log(&mut log);
    let got = world.load(&arguments);
    match (&expected, &got) {
        (Ok(rows), Ok(summary)) => {
            assert_eq!(world.difference("s", "p"), "", "{label}");
            assert_eq!(summary["loaded"], *rows, "{label}");
            assert_eq!(summary["method"], method, "{label}");
            let log = world.log(&mut log);
            let inserted = log.contains("INSERT INTO \"public\".\"p\"");
            assert!(*rows == 0 || log.contains(seen), "{label}: the server saw\n{log}");
            assert!(
                !inserted || method.starts_with("insert") || method == "staged",
                "{label}: {log}"
            );
        }
        // Rows that `insert` has committed one by one stay, and the message says how many.
        (Err((message, _)), Err(said)) => {
            // A method that sends records in order reports the error of the first bad one.
            let in_order = method.starts_with("copy-") || method.starts_with("unlogged");
            assert!(!in_order || said.contains(message), "{label}: {message}\n{said}");
            let stayed = world.sql("SELECT count(*) FROM p");
            let named = method == "insert" && said.contains(&format!("{stayed} row"));
            assert!(stayed == "0" || named, "{label}: {stayed} rows; {said}");
        }
        _ => panic!("{label}: stock says {expected:?}, the program {got:?}"),
    }
    expected.is_ok()
}

/// Every method loads the same rows from a generated file as stock COPY, or refuses the file like
/// stock COPY.
#[test]
fn every_method_agrees_on_generated_files() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'NULL', 'Happy \"x\"')");
        let major = world.major();
        let (mut taken, mut refused) = (0, 0);
        for seed in 0..files() {
            let route = METHODS[seed as usize % METHODS.len()];
            let mut rng = Random::new(seed);
            for given in texts(&mut rng, major, route.0).into_iter().chain([types(&mut rng)]) {
                let data = String::from_utf8_lossy(&given.bytes).into_owned();
                let label = format!(
                    "{major}, seed {seed}, {} into ({}) with {}: {data:?}",
                    route.0, given.columns, given.copy
                );
                if agree(&mut world, &given, route, &label) {
                    taken += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(taken > files() / 3 && refused > files() / 10, "{taken} taken, {refused} refused");
    });
}
