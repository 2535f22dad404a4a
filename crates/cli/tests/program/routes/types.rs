//! Generated keys of every type by which the loader routes, for hash, range and list partitions.

use super::{load, twins};
use crate::common::{on_each_major, World};

/// The number of keys of each type; more with `PGSLUICE_SOAK`.
fn keys() -> u64 {
    if std::env::var_os("PGSLUICE_SOAK").is_some() {
        1_000_000
    } else {
        3_000
    }
}

/// Random numbers that are the same in each run.
struct Any(u64);

impl Any {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 29
    }

    /// A number of up to `bits` bits; short ones are as frequent as long ones.
    fn number(&mut self, bits: u32) -> i64 {
        let shift = 64 - bits + (self.next() % u64::from(bits)) as u32;
        (self.next() as i64) >> shift
    }

    fn text(&mut self) -> String {
        const PARTS: [&str; 8] = ["a", "Z", "9", " ", "é", "語", "🐘", "%"];
        (0..self.next() % 40).map(|_| PARTS[self.next() as usize % PARTS.len()]).collect()
    }

    fn timestamp(&mut self) -> String {
        let n = self.next();
        let (year, month, day) = (1600 + n % 800, 1 + n / 7 % 12, 1 + n / 11 % 28);
        let (hour, minute, micros) = (n / 13 % 24, n / 17 % 60, n / 19 % 1_000_000);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:07.{micros:06}")
    }
}

type Generator = fn(&mut Any) -> String;

/// Types, each with its values and three bounds of ranges.
const TYPES: [(&str, Generator, [&str; 3]); 12] = [
    ("smallint", |any| any.number(16).to_string(), ["-300", "0", "77"]),
    ("integer", |any| any.number(32).to_string(), ["-70000", "0", "77"]),
    ("bigint", |any| any.number(64).to_string(), ["-5000000000", "0", "5000000000"]),
    ("oid", |any| (any.number(33) as u32).to_string(), ["100", "70000", "3000000000"]),
    ("boolean", |any| (any.next() % 2 == 0).to_string(), ["", "", ""]),
    ("date", |any| any.timestamp()[..10].to_owned(), ["1700-01-01", "2000-01-01", "2100-01-01"]),
    ("time", |any| any.timestamp()[11..].to_owned(), ["05:00", "12:00:00.5", "23:00"]),
    ("timestamp", Any::timestamp, ["1700-01-01", "2000-01-01 12:00", "2100-01-01"]),
    (
        "timestamptz",
        |any| any.timestamp() + "+02",
        ["1700-01-01", "2000-01-01 12:00", "2100-01-01"],
    ),
    (
        "uuid",
        |any| format!("{:016x}{:016x}", any.next(), any.next()),
        [
            "20000000-0000-0000-0000-000000000000",
            "80000000-0000-0000-0000-000000000000",
            "f0000000-0000-0000-0000-000000000000",
        ],
    ),
    ("text", Any::text, ["9a", "a", "é"]),
    ("varchar(60)", Any::text, ["9a", "a", "é"]),
];

fn file(generator: Generator, null: bool) -> Vec<u8> {
    let mut any = Any(42);
    let mut rows = String::new();
    for i in 0..keys() {
        let key = generator(&mut any);
        let key = if null && i % 50 == 0 { String::new() } else { format!("\"{key}\"") };
        rows.push_str(&format!("{key},{i}\n"));
    }
    rows.into_bytes()
}

/// Checks that all rows went straight to a partition, and that the server accepted all of them.
fn straight(world: &mut World, bytes: &[u8], what: &str) {
    let summary = load(world, bytes, &["--time-zone", "UTC"]);
    assert_eq!(summary["to_partitions"], keys(), "{what}: {summary}");
    assert!(!summary["notes"].to_string().contains("refused a row"), "{what}: {summary}");
}

fn by_hash(world: &mut World, ty: &str, generator: Generator) {
    let parts: [(u32, u32); 5] = [(2, 0), (4, 1), (8, 3), (16, 7), (16, 15)];
    let mut ddl = format!("CREATE TABLE @ (k {ty}, n bigint) PARTITION BY HASH (k);");
    for (i, (modulus, remainder)) in parts.iter().enumerate() {
        ddl += &format!(
            "CREATE TABLE @_{i} PARTITION OF @ FOR VALUES WITH (MODULUS {modulus}, REMAINDER {remainder});"
        );
    }
    twins(world, &ddl);
    straight(world, &file(generator, true), &format!("hash of {ty}"));
    for (i, (modulus, remainder)) in parts.iter().enumerate() {
        let wrong = world.sql(&format!(
            "SELECT count(*) FROM t_{i} \
             WHERE NOT satisfies_hash_partition('t'::regclass, {modulus}, {remainder}, k)"
        ));
        assert_eq!(wrong, "0", "{ty}");
    }
}

fn by_range(world: &mut World, ty: &str, generator: Generator, [a, b, c]: [&str; 3]) {
    let collation =
        if ty.starts_with(['t', 'v']) && !ty.starts_with("time") { "COLLATE \"C\"" } else { "" };
    twins(
        world,
        &format!(
            "CREATE TABLE @ (k {ty} {collation}, n bigint) PARTITION BY RANGE (k);
             CREATE TABLE @_1 PARTITION OF @ FOR VALUES FROM ('{b}') TO ('{c}');
             CREATE TABLE @_2 PARTITION OF @ FOR VALUES FROM (MINVALUE) TO ('{a}');
             CREATE TABLE @_3 PARTITION OF @ DEFAULT"
        ),
    );
    let mut rows = file(generator, true);
    // The bounds themselves, in place of the first keys.
    let text = String::from_utf8(rows).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (line, end) in lines.iter_mut().zip([a, b, c]) {
        *line = format!("{end},0");
    }
    rows = (lines.join("\n") + "\n").into_bytes();
    straight(world, &rows, &format!("range of {ty}"));
}

fn by_list(world: &mut World, ty: &str, generator: Generator) {
    let mut any = Any(42);
    // The first is NULL in the file.
    let listed: Vec<String> = (0..40).map(|_| generator(&mut any)).skip(1).collect();
    let listed: std::collections::BTreeSet<&String> = listed.iter().collect();
    let mut literals = listed.iter().map(|value| format!("'{value}'"));
    let first = literals.by_ref().take(listed.len() / 2).collect::<Vec<_>>().join(", ");
    let second = literals.collect::<Vec<_>>().join(", ");
    twins(
        world,
        &format!(
            "CREATE TABLE @ (k {ty}, n bigint) PARTITION BY LIST (k);
             CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN ({first});
             CREATE TABLE @_2 PARTITION OF @ FOR VALUES IN (NULL, {second});
             CREATE TABLE @_3 PARTITION OF @ DEFAULT"
        ),
    );
    straight(world, &file(generator, true), &format!("list of {ty}"));
}

/// A hash of several columns, some of which are NULL.
fn by_columns(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a bigint, b text, c uuid, n int) PARTITION BY HASH (c, a, b);
         CREATE TABLE @_0 PARTITION OF @ FOR VALUES WITH (MODULUS 3, REMAINDER 0);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES WITH (MODULUS 3, REMAINDER 1);
         CREATE TABLE @_2 PARTITION OF @ FOR VALUES WITH (MODULUS 3, REMAINDER 2)",
    );
    let mut any = Any(7);
    let mut rows = String::new();
    for i in 0..keys() {
        let mut value =
            |value: String| if any.next().is_multiple_of(5) { String::new() } else { value };
        let (a, b) = (value((i * i).to_string()), value(format!("b{i}")));
        rows.push_str(&format!("{a},{b},{},{i}\n", value(format!("{:032x}", i * 77))));
    }
    straight(world, rows.as_bytes(), "hash of three columns");
}

fn every_type(world: &mut World) {
    world.sql("SET timezone = 'UTC'");
    for (ty, generator, ends) in TYPES {
        by_hash(world, ty, generator);
        if ty != "boolean" {
            by_range(world, ty, generator, ends);
            by_list(world, ty, generator);
        }
    }
    by_columns(world);
    twins(
        world,
        "CREATE TABLE @ (k boolean, n bigint) PARTITION BY LIST (k);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN (true);
         CREATE TABLE @_2 PARTITION OF @ FOR VALUES IN (false, NULL)",
    );
    straight(world, &file(|any| (any.next() % 2 == 0).to_string(), true), "list of boolean");
    world.sql("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')");
    twins(
        world,
        "CREATE TABLE @ (k mood, n bigint) PARTITION BY LIST (k);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN ('happy', 'sad');
         CREATE TABLE @_2 PARTITION OF @ DEFAULT",
    );
    let moods: Generator = |any| ["sad", "ok", "happy"][any.next() as usize % 3].to_owned();
    straight(world, &file(moods, true), "list of an enum");
}

/// The loader routes keys of every type, and NULL, to the same hash, range or list partition as the
/// server.
#[test]
fn every_key_is_routed_as_the_server_does() {
    on_each_major(|installation| every_type(&mut World::new(installation)));
}
