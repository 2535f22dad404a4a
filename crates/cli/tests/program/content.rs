//! Files that do not match the options: the load refuses them before the first row, prints a note,
//! or explains the error by a hint.

use crate::common::{each_major, World};

/// A file that does not match the options is refused, and the message or its hint says which option
/// would load it. With `--create`, no table is created.
fn other_content(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made, one, two; CREATE TABLE one (line text)");
    world.sql("CREATE TABLE two (id int, name text)");
    let semicolons = b"id;name\n1;a\n2;b\n";
    for (bytes, options, what) in [
        (&b"PAR1\x15\x04\x15\x10"[..], &["--create", "--header"][..], "is Parquet"),
        (b"PK\x03\x04\x14\0", &["--create"], "convert it to CSV first"),
        (b"[\n {\"a\": 1},\n {\"a\": 2}\n]\n", &["--create", "--header"], "is JSON"),
        (b"PGCOPY\n\xff\r\n\0\0\0", &["--create"], "--format binary"),
        (semicolons, &["--create", "--header"], "--delimiter ';'"),
        (b"id\tname\n1\ta\n2\tb\n", &["--create"], "--delimiter '\\t'"),
        (b"id,name\n1,a\n2,b\n", &["--create"], "--header takes the names"),
        (b"", &["--create"], "odd.csv is empty"),
        (
            b"Report\n\nid,v\n1,a\n2,b\n",
            &["--create", "--header"],
            "--skip-lines passes over lines",
        ),
    ] {
        let file = world.file("odd.csv", bytes);
        let said = world.load(&[&[&file, "--table", "made"], options].concat()).unwrap_err();
        assert!(said.contains(what) && said.contains("odd.csv"), "{said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    }
    for (bytes, options, what) in [
        (&semicolons[..], &["--header"][..], "--delimiter ';'"),
        (b"1;a\n2;b\n", &["--header=ignore"], "--delimiter ';'"),
        (b"1,5;a\n2,7;b\n3,5;c\n4;d\n", &[], "is the delimiter ';'?"),
        (b"id,name\n1,a\n2,b\n", &[], "is the first line a header? --header"),
        (b"1,a\n2,caf\xe9\n", &[], "--encoding WIN1252"),
        (b"1,a\n2,caf\0\n", &[], "tr -d '\\000'"),
        (b"1,a\n", &["--encoding", "ebcdic"], "names such as UTF8"),
        (b"Name,id\na,1\n", &[], "is the first line a header? --header"),
        (
            b"1,a,x\n2,b,y\n",
            &[],
            "each record has 3 fields, and the table takes 2: --columns A,-,B",
        ),
        (b"x\ny\n", &[], "each record has 1 field, and the table takes 2"),
        (b"1,a\r\n2,b\n", &[], "the lines before end in another way"),
    ] {
        let file = world.file("odd.csv", bytes);
        let said = world.load(&[&[&file, "--table", "two"], options].concat()).unwrap_err();
        assert!(said.contains(what), "{said}");
    }
    let cafe = world.file("cafe.csv", b"1,caf\xe9\n2,\x80\n");
    for encoding in ["cp1252", "windows-1252", "CP-1252"] {
        world.load(&[&cafe, "--table", "two", "--truncate", "--encoding", encoding]).unwrap();
        let euro = "\u{20ac}";
        assert_eq!(world.sql("SELECT string_agg(name, ' ') FROM two"), format!("caf\u{e9} {euro}"));
    }
}

/// If a file loads but may be meant otherwise, a note says so.
fn noted(world: &mut World) {
    let semicolons = b"id;name\n1;a\n2;b\n";
    let noted = |world: &World, bytes: &[u8], options: &[&str], what: &str| {
        let file = world.file("odd.csv", bytes);
        let summary = world.load(&[&[file.as_str()], options].concat()).unwrap();
        assert!(summary["notes"].to_string().contains(what), "{summary}");
    };
    noted(world, semicolons, &["--table", "one"], "would have 2 with --delimiter ';'");
    // A table whose other columns are generated also takes one field.
    world.sql("CREATE TABLE parted (line text, k text GENERATED ALWAYS AS (left(line, 2)) STORED)");
    noted(world, semicolons, &["--table", "parted"], "would have 2 with --delimiter ';'");
    // Spaces are frequent within values, so they only cause a note.
    let spaces = b"id kind size\n1 5 1.5\n2 5 2.5\n3 7 3.5\n4 7 4.5\n5 7 4.25\n";
    noted(world, spaces, &["--table", "made", "--create", "--header"], "with --delimiter ' '");
    world.sql("DROP TABLE made");
    let some = b"id,v\n1,NA\n2,5\n3,2.5\n";
    let create = ["--table", "made", "--create", "--header"];
    noted(world, some, &create, "column v is text, since some values are NA");
    world.sql("DROP TABLE made");
    let file = world.file("odd.csv", some);
    let summary = world.load(&[&[file.as_str(), "--null", "v=NA"], &create[..]].concat()).unwrap();
    assert!(!summary["notes"].to_string().contains("column v is text"), "{summary}");
    world.sql("DROP TABLE made");
    let fixed = b"    1     1  a\n   10   100  b\n  100 10000  c\n";
    noted(world, fixed, &["--table", "made", "--create", "--no-header"], "of a fixed width");
    world.sql("DROP TABLE made");
    let text = "CREATE TABLE IF NOT EXISTS texts (id text, name text)";
    world.sql(text);
    noted(world, b"id,name\nx,a\n", &["--table", "texts"], "looks like a header");
    noted(world, b"k,v\n1,a\n2,b\n", &["--table", "texts"], "looks like a header");
    let may_be = "if it has the names of the columns, add --header";
    for (bytes, more, expected) in [
        (&b"name,town\nAnn,Oslo\n"[..], &[][..], true),
        (b"id,name\n1,a\n", &[], true),
        (b"name,town\nAnn,Oslo\n", &["--no-header"], false),
        (b"name,town\nAnn,Oslo\n", &["--columns", "a,b"], false),
        (b"1,Ann\n2,Bob\n", &[], false),
    ] {
        let file = world.file("odd.csv", bytes);
        let load = [&[file.as_str(), "--table", "made", "--create"], more].concat();
        let notes = world.load(&load).unwrap()["notes"].to_string();
        assert_eq!(notes.contains(may_be), expected, "{notes}");
        world.sql("DROP TABLE made");
    }
    let create = ["--table", "made", "--create", "--no-header"];
    noted(world, b"k,v\n1,a\n2,b\n", &create, "looks like a header");
    world.sql("DROP TABLE made");
    let create = ["--table", "made", "--create", "--columns", "line"];
    noted(world, semicolons, &create, "--delimiter ';'");
    assert_eq!(world.sql("SELECT count(*) FROM made"), "3");
    world.sql("DROP TABLE made");
    let create = ["--table", "made", "--create", "--header"];
    noted(world, b"5.1,setosa\n4.9,setosa\n4.7,x\n", &create, "is the first line data?");
    world.sql("DROP TABLE made");
    let shape = "SELECT attname || ' ' || atttypid::regtype FROM pg_attribute \
        WHERE attrelid = 'made'::regclass AND attnum > 0";
    // If neither commas nor quotes have a meaning, lines of JSON load as values.
    let lines = world.file("lines.json", b"{\"a\": 1}\n{\"a\": 2}\n");
    let whole = ["--delimiter", "\\x01", "--quote", "\\x02"];
    world.load(&[&[&lines, "--table", "made", "--create"], &whole[..]].concat()).unwrap();
    assert_eq!(world.sql(shape), "c1 json");
}

/// Values that the server accepts but that may be meant otherwise cause a note.
fn what_no_error_would_show(world: &mut World) {
    world.sql("CREATE TABLE IF NOT EXISTS seen (at timestamp, name text, note text)");
    let zones = "2024-01-02T10:00:00+02:00, Ann,x\n2024-01-03T10:00:00+02:00, Bob,y\n";
    for (bytes, more, note) in [
        (
            zones,
            &[][..],
            "times with a zone, such as 2024-01-02T10:00:00+02:00, and its type drops",
        ),
        (zones, &[], "each value of column name begins with a space"),
        (zones, &["--expr", "name=ltrim(?)"], ""),
        ("2024-01-02,Ann,\\N\n", &[], "column note has \\N, which is text in CSV: --null '*=\\N'"),
        ("2024-01-02,Ann,\\N\n", &["--null", "*=\\N"], ""),
        ("2024-01-02,Ann,\"\\N\"\n2024-01-02 10:00:00, Bob,x\n", &[], ""),
    ] {
        let file = world.file("seen.csv", bytes.as_bytes());
        let summary = world.load(&[&[file.as_str(), "--table", "seen"], more].concat()).unwrap();
        let notes: Vec<&str> =
            summary["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        if note.is_empty() {
            let said = notes.iter().any(|n| n.contains("column name") || n.contains("column note"));
            assert!(!said, "{bytes}: {notes:?}");
        } else {
            assert!(notes.iter().any(|n| n.contains(note)), "{bytes}: {notes:?}");
        }
    }
}

/// A file that does not match the options is refused, and the hint names the right option. If the
/// server accepts values that may be meant otherwise, a note says so.
#[test]
fn files_are_what_the_options_say() {
    let mut world = World::new(each_major().last().unwrap());
    other_content(&mut world);
    noted(&mut world);
    what_no_error_would_show(&mut world);
}
