//! `--create`: which records the types come from, and which names the columns get.

use crate::common::{each_major, World};

const SHAPE: &str = "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0";

/// The types are those of the records that are loaded: not of those passed over, not of the
/// first file alone, not of a first record that is too short.
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
    let short = world.file("short.csv", b"a,b,c\n1,2\n3,4,x\n");
    let rejects = world.path("short.rejects");
    let reject = ["--header", "--on-error", "reject", "--reject-file", &rejects];
    let summary = create(world, &[&short], &reject);
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&1.into(), &1.into()));
    assert_eq!(world.sql(SHAPE), "a integer, b integer, c text");
    std::fs::remove_file(&rejects).unwrap();
    std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    let arguments = ["load", "-", &small, "--table", "made", "--create=text-on-doubt"];
    world.sql("DROP TABLE made");
    let output = world.run_with(&arguments, b"1\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot be read twice"), "{said}");
}

/// Names that no column can have are told, long ones are cut as the server cuts them, odd
/// ones are taken as they are.
fn names(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let create = ["--table", "made", "--header", "--create"];
    for (bytes, what) in
        [(&b"a,a\n1,2\n"[..], "named twice"), (b"a,\n1,2\n", "field 2 of the header has no name")]
    {
        let file = world.file("names.csv", bytes);
        let said = world.load(&[&[file.as_str()], &create[..]].concat()).unwrap_err();
        assert!(said.contains(what) && said.contains("names.csv, line 1: "), "{said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    }
    let long = format!("{}é", "n".repeat(62));
    let names = format!("\"select\",\"A \"\"b\"\"\",{long}\nx,y,z\n");
    let file = world.file("names.csv", names.as_bytes());
    let summary = world.load(&[&[file.as_str()], &create[..]].concat()).unwrap();
    assert!(summary["notes"].to_string().contains("is cut to"), "{summary}");
    let cut = "n".repeat(62);
    assert_eq!(world.sql(SHAPE), format!("select text, A \"b\" text, {cut} text"));
    // The same file again says the same names.
    let again = world.load(&[&file, "--table", "made", "--header"]).unwrap();
    assert_eq!(again["loaded"], 1);
}

/// A value that an inferred type would alter, far behind what the type was inferred from, ends
/// a check as it ends a load.
fn altered_later(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let rows = (0..200_000).flat_map(|i| format!("{i},x{i}\n").into_bytes());
    let file = world.file("long.csv", &rows.chain(*b"007,z\n").collect::<Vec<u8>>());
    let arguments = [&file, "--table", "made", "--create"];
    let place = "line 200001, record 200001, ";
    let said = world.load(&arguments).unwrap_err();
    assert!(said.contains(place) && said.contains("(value \"007\")"), "{said}");
    let output = world.run(&[&["check"], &arguments[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    assert_eq!(world.sql("SELECT to_regclass('made')"), "");
}

#[test]
fn tables_are_made_from_what_is_loaded() {
    let mut world = World::new(each_major().last().unwrap());
    what_is_loaded(&mut world);
    altered_later(&mut world);
    names(&mut world);
}
