//! `--create`: which records the types come from, and which names the columns get.

use crate::common::{each_major, wait_until, World};
use std::io::Write;
use std::process::{Command, Stdio};

const SHAPE: &str = "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0";

/// Types are inferred from the records that are loaded, in all files. Skipped records, and records
/// with too few or too many fields, do not count.
fn what_is_loaded(world: &mut World) {
    let create = |world: &mut World, files: &[&str], more: &[&str]| {
        world.sql("DROP TABLE IF EXISTS made");
        world.load(&[files, &["--table", "made", "--create"], more].concat()).unwrap()
    };
    let titled =
        world.file("titled.csv", b"a title\nof two lines, which are no records\n1,x\n2,y\n");
    let summary = create(world, &[&titled], &["--skip", "2", "--limit", "1"]);
    assert_eq!((&summary["loaded"], &summary["skipped"]), (&1.into(), &2.into()));
    assert_eq!(world.sql(SHAPE), "c1 integer, c2 text");
    let (small, large) = (world.file("1.csv", b"1\n"), world.file("2.csv", b"3000000000\n"));
    create(world, &[&small, &large], &[]);
    assert_eq!(world.sql(SHAPE), "c1 bigint");
    // `--force-null` and `--force-not-null` decide whether a NULL marker counts as a value.
    let quoted = world.file("quoted.csv", b"\"1\",\"2\"\n\"\",\"3\"\n\"4\",\n");
    create(world, &[&quoted], &["--force-null", "c1", "--force-not-null", "c2"]);
    assert_eq!(world.sql(SHAPE), "c1 integer, c2 text");
    assert_eq!(world.sql("SELECT string_agg(made::text, ' ') FROM made"), "(1,2) (,3) (4,\"\")");
    let short = world.file("short.csv", b"a,b,c\n1,2\n3,4,x\ntotal\nx,y,z,1\n");
    let rejects = world.path("short.rejects");
    let reject = ["--header", "--on-error", "reject", "--reject-file", &rejects];
    let summary = create(world, &[&short], &reject);
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&1.into(), &3.into()));
    assert_eq!(world.sql(SHAPE), "a integer, b integer, c text");
    std::fs::remove_file(&rejects).unwrap();
    std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    let arguments = ["load", "-", &small, "--table", "made", "--create=text-on-doubt"];
    world.sql("DROP TABLE made");
    let output = world.run_with(&arguments, b"1\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot be read twice"), "{said}");
}

/// Names that no column can have are refused, long names are truncated as the server truncates
/// them, and unusual names are kept.
fn names(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let create = ["--table", "made", "--header", "--create"];
    for (bytes, what) in [
        (&b"a,b\0\n1,2\n"[..], "field 2 of the header has a NUL in its name"),
        (b"a,b\xe9\n1,2\n", "--encoding WIN1252"),
        (b"a,b\n1,2,3\n", "--header=ignore --columns"),
    ] {
        let file = world.file("names.csv", bytes);
        let said = world.load(&[&[file.as_str()], &create[..]].concat()).unwrap_err();
        assert!(said.contains(what) && said.contains("names.csv, line 1: "), "{said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    }
    // An existing table must have the columns that the header names.
    world.sql("CREATE TABLE made (id int, other int)");
    for (bytes, what) in [
        (&b"id,\n1,2\n"[..], "field 2 of the header has no name"),
        (b"id,id\n1,2\n", "is the first line data? --no-header"),
        (b"ID,other\n1,2\n", "did you mean \"id\"?"),
        (b"id, other\n1,2\n", "did you mean \"other\"?"),
        (b"id,ohter\n1,2\n", "did you mean \"other\"?"),
    ] {
        let file = world.file("names.csv", bytes);
        let said = world.load(&[&file, "--table", "made", "--header"]).unwrap_err();
        assert!(said.contains(what) && said.contains("names.csv, line 1: "), "{said}");
    }
    world.sql("DROP TABLE made");
    let long = format!("{}é", "n".repeat(62));
    let names = format!("\"select\",\"A \"\"b\"\"\",{long}\nx,y,z\n");
    let file = world.file("names.csv", names.as_bytes());
    let summary = world.load(&[&[file.as_str()], &create[..]].concat()).unwrap();
    assert!(summary["notes"].to_string().contains("is cut to"), "{summary}");
    let cut = "n".repeat(62);
    assert_eq!(world.sql(SHAPE), format!("select text, A \"b\" text, {cut} text"));
    // The header still matches the table when the file is loaded again.
    let again = world.load(&[&file, "--table", "made", "--header"]).unwrap();
    assert_eq!(again["loaded"], 1);
    // Options of fields are for the same column.
    for (option, text, kept) in
        [("--null", format!("{long}=z"), "<NULL>"), ("--expr", format!("{long}=upper(?)"), "Z")]
    {
        world.sql("TRUNCATE made");
        world.load(&[&file, "--table", "made", "--header", option, &text]).unwrap();
        assert_eq!(world.sql(&format!("SELECT coalesce({cut}, '<NULL>') FROM made")), kept);
    }
}

/// A value far after the records that were used for inference may be one that the inferred type
/// would alter. It stops a load, and a check fails with the same message.
fn altered_later(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let rows = (0..200_000).flat_map(|i| format!("{i},x{i}\n").into_bytes());
    let file = world.file("long.csv", &rows.chain(*b"007,z\n").collect::<Vec<u8>>());
    let arguments = [&file, "--table", "made", "--create"];
    let place = "line 200001, record 200001, ";
    let said = world.load(&arguments).unwrap_err();
    assert!(said.contains(place) && said.contains("(value \"007\")"), "{said}");
    let output = world.run(&[&["check"], &arguments[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    assert_eq!(world.sql("SELECT to_regclass('made')"), "");
}

/// A value that its type would alter is found even if a malformed record precedes it, or if its
/// record is very long.
fn hidden_values(world: &mut World) {
    let rejects = world.path("hidden.rejects");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let file = world.file("hidden.csv", b"1,a\n2,5\" pipe\n007,b\n");
    for create in ["--create", "--create=text-on-doubt"] {
        world.sql("DROP TABLE IF EXISTS made");
        let summary = world.load(&[&[&file, "--table", "made", create], &reject[..]].concat());
        assert_eq!(summary.unwrap()["rejected"], 1);
        assert_eq!(world.sql(SHAPE), "c1 text, c2 text");
        assert_eq!(world.sql("SELECT string_agg(c1, ' ' ORDER BY c2) FROM made"), "1 007");
        std::fs::remove_file(&rejects).unwrap();
        std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
    let long = "text, \"\" ".repeat(600_000);
    for (record, value) in
        [(format!("007,\"{long}\",1\n"), "c1"), (format!("7,\"{long}\",01\n"), "c3")]
    {
        let file = world.file("hidden.csv", format!("1,a,1\n{record}2,b,2\n").as_bytes());
        for (create, more) in
            [("--create", &[][..]), ("--create=text-on-doubt", &[]), ("--create", &reject)]
        {
            world.sql("DROP TABLE IF EXISTS made");
            let said =
                world.load(&[&[&file, "--table", "made", create], more].concat()).unwrap_err();
            let place = format!("line 2, record 2, byte offset 6, column {value}");
            assert!(said.contains(&place) && said.contains("would change the value"), "{said}");
            assert!(said.contains("create the table first"), "{said}");
            assert_eq!(world.sql("SELECT to_regclass('made')"), "");
        }
        let file = world.file("hidden.csv", format!("1,a,1\n7,\"{long}\",\n2,b,2\n").as_bytes());
        let summary = world.load(&[&file, "--table", "made", "--create"]).unwrap();
        assert!(summary["notes"].to_string().contains("was not examined for types"), "{summary}");
        assert_eq!(world.sql("SELECT count(*) || ' ' || sum(c1) FROM made"), "3 10");
    }
}

/// If a load by lanes fails, it drops the table that it created and committed, unless another
/// session has inserted rows into it.
fn rows_of_others(world: &mut World) {
    for others in [false, true] {
        world.sql("DROP TABLE IF EXISTS made");
        let url = world.server.url("postgres");
        let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args([
                "load", "-", "--table", "made", "--create", "--method", "lanes", "--lanes", "2",
                "--to", &url,
            ])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&b"1\n".repeat(1 << 20)).unwrap();
        let made = "SELECT to_regclass('made') IS NOT NULL";
        wait_until(|| "no table is made".into(), || world.sql(made) == "t");
        if others {
            world.sql("INSERT INTO made VALUES (7)");
        }
        // If the load has ended too early, the checks below show it.
        let _ = stdin.write_all(b"x\n");
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert_eq!(said.contains("is kept, because it has rows"), others, "{said}");
        if others {
            assert_eq!(world.sql("SELECT string_agg(c1::text, ' ') FROM made"), "7");
        } else {
            assert_eq!(world.sql("SELECT to_regclass('made')"), "");
        }
    }
}

/// If a load fails before other sessions can see the new table, the message does not say that the
/// table is left.
fn none_is_left(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let file = world.file("one.csv", b"a,b\n1,x\n");
    // The header differs, which is found when the table has been created.
    let there = world.file("rejects", b"c,d\n2,y\n");
    for method in ["insert", "lanes"] {
        let rejects =
            ["--on-error", "reject", "--reject-file", &there, "--reject-existing", "append"];
        let load = [&file, "--table", "made", "--create", "--header", "--method", method];
        let said = world.load(&[&load[..], &rejects[..]].concat()).unwrap_err();
        assert!(said.contains("cannot create the reject file"), "{said}");
        assert!(!said.contains("changed:"), "{said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    }
}

/// A new table has the file's order of columns, so a second file can be loaded by position. A table
/// made with `--pack-columns` refuses loads by position, unless `--columns` gives the order.
fn positions_stay(world: &mut World) {
    let first = world.file("m1.csv", b"5,5000000000,a\n");
    let second = world.file("m2.csv", b"7,8,c\n");
    let rows = "SELECT string_agg(format('%s %s %s', c1, c2, c3), '; ' ORDER BY c1) FROM made";
    world.sql("DROP TABLE IF EXISTS made");
    world.load(&[&first, "--table", "made", "--create"]).unwrap();
    world.load(&[&second, "--table", "made"]).unwrap();
    assert_eq!(world.sql(SHAPE), "c1 integer, c2 bigint, c3 text");
    assert_eq!(world.sql(rows), "5 5000000000 a; 7 8 c");

    world.sql("DROP TABLE made");
    let summary = world.load(&[&first, "--table", "made", "--create", "--pack-columns"]).unwrap();
    assert!(summary["steps"].to_string().contains("COMMENT ON TABLE"), "{summary}");
    assert_eq!(world.sql(SHAPE), "c2 bigint, c1 integer, c3 text");
    let named = world.file("m3.csv", b"c3,c1,c2\nd,9,10\n");
    for header in [&[][..], &["--header=ignore"]] {
        let said = world.load(&[&[&second, "--table", "made"], header].concat()).unwrap_err();
        assert!(said.contains("--pack-columns"), "{said}");
        assert!(said.contains(r#"--columns '"c1","c2","c3"'"#), "{said}");
    }
    world.load(&[&second, "--table", "made", "--columns", r#""c1","c2","c3""#]).unwrap();
    world.load(&[&named, "--table", "made", "--header"]).unwrap();
    assert_eq!(world.sql(rows), "5 5000000000 a; 7 8 c; 9 10 d");
    // The table's comment marks it as packed. Without the comment, it is like any other table.
    world.sql("COMMENT ON TABLE made IS NULL");
    world.load(&[&world.file("m4.csv", b"12,11,e\n"), "--table", "made"]).unwrap();
    assert_eq!(world.sql("SELECT c1 FROM made WHERE c3 = 'e'"), "11");
    // If packing does not change the order, the table is not marked.
    world.sql("DROP TABLE made");
    let narrow = world.file("m5.csv", b"1,a\n");
    world.load(&[&narrow, "--table", "made", "--create", "--pack-columns"]).unwrap();
    world.load(&[&narrow, "--table", "made"]).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM made"), "2");
}

/// A column becomes double precision only if the server prints each value as the same decimal
/// number. Tested are the shortest texts of doubles in every binade, at its ends and next to them.
fn doubles(world: &mut World) {
    let mut texts = vec!["0.5".to_string(), "1e-05".into(), "2e-07".into()];
    let mut seed = 7u64;
    for exponent in 0..2046u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for mantissa in [0, 1, (1 << 52) - 1, seed >> 12] {
            let value = f64::from_bits(exponent << 52 | mantissa);
            texts.push(format!("{value:e}"));
        }
    }
    texts.extend((0..400).map(|e| format!("1e{}", e - 200)));
    // A value in the middle between two shortest texts, as Python and R print it.
    texts.push("2.9802322387695312e-08".into());
    let rows: Vec<String> =
        texts.iter().enumerate().map(|(i, text)| format!("k{i},{text}\n")).collect();
    let file = world.file("doubles.csv", rows.concat().as_bytes());
    world.sql("DROP TABLE IF EXISTS made, kept; CREATE TABLE kept (c1 text, c2 text)");
    world.load(&[&file, "--table", "kept"]).unwrap();
    let altered = world.sql(
        "SELECT coalesce(string_agg(c2, ' '), '') FROM kept WHERE c2::float8::text::numeric <> c2::numeric",
    );
    let fits = |text: &&str| !text.is_empty();
    let altered: Vec<String> = altered.split(' ').filter(fits).map(str::to_owned).collect();
    for text in &altered {
        world.sql("DROP TABLE IF EXISTS made");
        let file = world.file("one.csv", format!("0.5\n{text}\n").as_bytes());
        world.load(&[&file, "--table", "made", "--create"]).unwrap();
        assert_ne!(world.sql(SHAPE), "c1 double precision", "{text}");
    }
    world.sql("DROP TABLE IF EXISTS made");
    let good: Vec<String> =
        texts.iter().filter(|t| !altered.contains(t)).map(|t| format!("{t}\n")).collect();
    let file = world.file("doubles.csv", good.concat().as_bytes());
    world.load(&[&file, "--table", "made", "--create"]).unwrap();
    assert_eq!(world.sql(SHAPE), "c1 double precision");
}

/// Codes stay text, money keeps its trailing zeros, and values mean the same in their inferred
/// type.
fn meanings(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let file = world.file(
        "meanings.csv",
        b"code,dot,money,odd,size,day,hour\n\
          1E5,5.,1.50,1.50,.4,2012/01/31,10:00:00\n\
          2E3,6.,2.25,1e3,-.5,2012/02/01,23:59:59.5\n",
    );
    world.load(&[&file, "--table", "made", "--header", "--create"]).unwrap();
    assert_eq!(
        world.sql(SHAPE),
        "code text, dot text, money numeric, odd text, size numeric, day date, \
         hour time without time zone"
    );
    assert_eq!(
        world.sql("SELECT string_agg(made::text, ' ') FROM made"),
        "(1E5,5.,1.50,1.50,0.4,2012-01-31,10:00:00) (2E3,6.,2.25,1e3,-0.5,2012-02-01,23:59:59.5)"
    );
    world.sql("DROP TABLE made");
    let r = b"p,n\n0.0811466840860277,1\n9.03999971342273e-05,-0\ninf,0.5\n-inf,\n";
    let file = world.file("r.csv", r);
    world.load(&[&file, "--table", "made", "--header", "--create"]).unwrap();
    assert_eq!(world.sql(SHAPE), "p double precision, n double precision");
    assert_eq!(
        world.sql("SELECT string_agg(made::text, ' ') FROM made"),
        "(0.0811466840860277,1) (9.03999971342273e-05,-0) (Infinity,0.5) (-Infinity,)"
    );
}

/// Common oddities of real files do not stop a load: headers as R and pandas write them, a
/// delimiter at the end of the header, a byte order mark, empty lines at the end.
fn first_try(world: &mut World) {
    for (bytes, shape, rows, notes) in [
        (
            &b"\"\",\"x\"\n\"1\",2.5\n\"2\",1e-05\n"[..],
            "c1 integer, x double precision",
            "(1,2.5) (2,1e-05)",
            &["are named c1"][..],
        ),
        (
            b"\xef\xbb\xbfx,x, y ,\r\n1,2,3\r\n\r\n\r\n",
            "x integer, x_2 integer, y integer",
            "(1,2,3)",
            &[
                "header ends with a delimiter",
                "are named x_2",
                "spaces around names",
                "byte order mark",
                "skipped lines that are not records: 2 empty lines at the end",
            ],
        ),
        (
            b"a,b\n1,\n2,\n",
            "a integer, b text",
            "(1,) (2,)",
            &["columns without a value in the input are text: b"],
        ),
        // With one column, an empty line is a record.
        (b"a\n1\n\n", "a integer", "(1) ()", &[]),
    ] {
        let file = world.file("real.csv", bytes);
        for method in ["auto", "lanes", "staged", "copy-csv"] {
            world.sql("DROP TABLE IF EXISTS made");
            let load = ["--table", "made", "--header", "--create", "--method", method];
            let summary = world.load(&[&[file.as_str()], &load[..]].concat()).unwrap();
            assert_eq!(world.sql(SHAPE), shape);
            assert_eq!(world.sql("SELECT string_agg(made::text, ' ') FROM made"), rows);
            let said = summary["notes"].to_string();
            assert!(notes.iter().all(|note| said.contains(note)), "{said}");
        }
    }
    // Only the last lines of a file may be empty, and only in files of several columns.
    let file = world.file("gap.csv", b"a,b\n1,2\n\n3,4\n");
    world.sql("DROP TABLE IF EXISTS made");
    let said = world.load(&[&file, "--table", "made", "--header", "--create"]).unwrap_err();
    assert!(said.contains("missing data for column \"b\""), "{said}");
}

/// Empty lines at the end are found, wherever a chunk of the file ends.
fn blank_ends(world: &mut World) {
    for lines in [1, (1 << 19) - 400_000, 700_001] {
        let mut bytes = b"1,2\n".repeat(100_000);
        bytes.extend(b"\n".repeat(lines));
        let file = world.file("blank.csv", &bytes);
        world.sql("DROP TABLE IF EXISTS made");
        let summary = world.load(&[&file, "--table", "made", "--create"]).unwrap();
        assert_eq!(summary["loaded"], 100_000);
        assert_eq!(
            (&summary["read"], &summary["skipped"]),
            (&(100_000 + lines).into(), &lines.into())
        );
        let note = format!("not records: {lines} empty lines at the end");
        assert!(summary["notes"].to_string().contains(&note), "{summary}");
    }
}

/// If a column has no value in the first records, its type is inferred from later ones, provided
/// that the input can be read twice. Otherwise the column is text.
fn late_values(world: &mut World) {
    let mut bytes = b"a,b\n".to_vec();
    bytes.extend(b"1000,\n".repeat(200_000));
    bytes.extend(b"1,2024-01-01\n");
    let file = world.file("late.csv", &bytes);
    world.sql("DROP TABLE IF EXISTS made");
    let load = ["--table", "made", "--header", "--create"];
    world.load(&[&[file.as_str()], &load[..]].concat()).unwrap();
    assert_eq!(world.sql(SHAPE), "a integer, b date");
    world.sql("DROP TABLE made");
    let output = world.run_with(&[&["load", "-"], &load[..]].concat(), &bytes);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("are text: b"), "{said}");
    assert_eq!(world.sql(SHAPE), "a bigint, b text");
    // Values that contradict a type which was inferred from earlier records.
    bytes = b"a,b\n".to_vec();
    bytes.extend(b"1000,2024-01-01\n".repeat(100_000));
    for value in ["x,2024-01-01", "9223372036854775808,2024-01-01", "1,2024-02-30", "1,31.1."] {
        let file = world.file("late.csv", &[&bytes[..], value.as_bytes(), &b"\n"[..]].concat());
        for method in ["auto", "lanes", "staged", "insert-batch"] {
            world.sql("DROP TABLE IF EXISTS made");
            let method = ["--method", method];
            let said = world.load(&[&[file.as_str()], &load[..], &method].concat()).unwrap_err();
            assert!(said.contains("text-on-doubt"), "{value} by {method:?}: {said}");
        }
    }
}

/// With `--create`, common oddities of real files do not stop a load. A column whose first value
/// comes late gets the right type, and empty lines at the end are skipped.
#[test]
fn real_files_load_at_the_first_try() {
    let mut world = World::new(each_major().last().unwrap());
    first_try(&mut world);
    late_values(&mut world);
    blank_ends(&mut world);
}

/// `--create` infers only types that keep the meaning of every value: codes stay text, money keeps
/// its zeros, and a double is printed as the same number.
#[test]
fn types_alter_no_value() {
    let mut world = World::new(each_major().last().unwrap());
    meanings(&mut world);
    doubles(&mut world);
}

/// A new table has the file's order of columns, so a second file can be loaded by position. A table
/// made with `--pack-columns` refuses that, unless `--columns` gives the order.
#[test]
fn columns_stay_where_the_file_has_them() {
    positions_stay(&mut World::new(each_major().last().unwrap()));
}

/// `--create` takes types and names from the records that are loaded. A load that fails drops its
/// table, unless another session has inserted rows into it.
#[test]
fn tables_are_made_from_what_is_loaded() {
    let mut world = World::new(each_major().last().unwrap());
    what_is_loaded(&mut world);
    altered_later(&mut world);
    hidden_values(&mut world);
    names(&mut world);
    rows_of_others(&mut world);
    none_is_left(&mut world);
}

/// A value behind the examined part of the file that the inferred type would alter ends the load, also
/// with rejects and if another record of the same chunk is malformed or has too few fields.
#[test]
fn altered_values_beside_malformed_records_end_the_load() {
    let mut world = World::new(&each_major().remove(0));
    let bytes: Vec<u8> = (0..200_000).flat_map(|i| format!("{i},x{i}\n").into_bytes()).collect();
    let rejects = world.path("rejects.csv");
    let to = ["--table", "made", "--create", "--on-error", "reject", "--reject-file", &rejects];
    for (bad, more) in [("5,5\" pipe\n", &[][..]), ("5\n", &["--set", "more=1"])] {
        let file = world.file("odd.csv", &[&bytes, bad.as_bytes(), b"007,z\n"].concat());
        let said = world.load(&[&[file.as_str()][..], &to, more].concat()).unwrap_err();
        assert!(said.contains("would change the value"), "{bad}: {said}");
        assert_eq!(world.sql("SELECT count(*) FROM pg_class WHERE relname = 'made'"), "0");
    }
}

/// A value that can be no date is rejected, as one that can be no number is, and not taken for one
/// that the type would alter.
#[test]
fn what_is_no_date_is_rejected() {
    let world = World::new(&each_major().remove(0));
    let bytes: Vec<u8> =
        (0..200_000).flat_map(|i| format!("{i},2024-01-01\n").into_bytes()).collect();
    let file = world.file("odd.csv", &[&bytes[..], b"5,n/a\nx,2024-01-01\n6,\"\"\n"].concat());
    let to = ["--table", "made", "--create", "--on-error", "reject"];
    let summary = world.load(&[&[file.as_str()][..], &to].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&200_000.into(), &3.into()));
    let said = world.load(&[&[file.as_str()][..], &to[2..3], &["--table", "new"]].concat());
    assert!(said.unwrap_err().contains("n/a"));
}
