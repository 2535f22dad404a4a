//! Detecting the dialect of a file: `sniff`, the plan that it writes, and `--dialect auto`.

use crate::common::{on_last_major, World};
use std::fs;
use std::io::Write;
use std::process::{Command, Output};
use std::thread;

/// Runs `pgsluice sniff`, which needs no server.
fn sniff(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice")).arg("sniff").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SEMICOLONS: &[u8] =
    b"id;name;day\n1;'a; b';28/01/2018\n2;'c''d';29/01/2018\n3;'e';30/01/2018\n";

const ROWS: &str = "SELECT string_agg(t::text, ' ' ORDER BY id) FROM made t";

/// The plan that `sniff` writes loads the file as the options would.
fn a_plan_loads_what_it_was_made_of(world: &mut World) {
    let file = world.file("semicolons.csv", SEMICOLONS);
    let output = sniff(&[&file]);
    assert!(output.status.success(), "{output:?}");
    let plan = text(&output.stdout);
    for line in [
        "delimiter = \";\"",
        "quote = \"'\"",
        "header = \"names\"",
        "date-style = \"DMY\"",
        "# day: the day is first in line 2",
        "# 3 fields are in quotes, the first in line 2",
    ] {
        assert!(plan.lines().any(|l| l == line), "{line}\n{plan}");
    }
    let path = world.file("plan.toml", plan.as_bytes());
    world.sql("DROP TABLE IF EXISTS made");
    world.load(&[&file, "--plan", &path, "--table", "made", "--create"]).unwrap();
    let by_plan = world.sql(ROWS);
    assert_eq!(by_plan, "(1,\"a; b\",28/01/2018) (2,c'd,29/01/2018) (3,e,30/01/2018)");
    // With the plan's order of dates, a date is read as such.
    world.sql("DROP TABLE made; CREATE TABLE made (id int, name text, day date)");
    world.load(&[&file, "--plan", &path, "--table", "made"]).unwrap();
    assert_eq!(world.sql("SELECT max(day) FROM made"), "2018-01-30");
    for command in ["check", "plan"] {
        let output = world.run(&[command, &file, "--plan", &path, "--table", "made"]);
        assert!(output.status.success(), "{output:?}");
    }
    let output = world.run(&["convert", &file, "--plan", &path, "--table", "made"]);
    let said = text(&output.stderr);
    assert!(said.contains("date-style") && output.status.code() == Some(2), "{said}");
    let text_plan = plan.replace("date-style", "time-zone = \"UTC\"\n# date-style");
    let path = world.file("plan.toml", text_plan.as_bytes());
    world.sql("ALTER TABLE made ALTER day TYPE text USING ''");
    let output = world.run(&["convert", &file, "--plan", &path, "--table", "made"]);
    assert!(output.status.success(), "{output:?}");
    let json = sniff(&[&file, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["delimiter"], &json["records"]), (&";".into(), &3.into()));
    assert_eq!(json["columns"][2]["or"], "date");
}

/// If the delimiter is undecided, so is every setting that would differ with another delimiter.
fn what_depends_on_the_delimiter_is_undecided_with_it(world: &mut World) {
    let file = world.file("odd.csv", b"name;place\nx,1;a\ny,2;b\nz,3;c\n");
    let plan = text(&sniff(&[&file]).stdout);
    for line in [
        "undecided = [\"delimiter\", \"header\", \"skip-lines\"]",
        "# skip-lines: depends on the delimiter: 1 with ',', 0 with ';'",
        "# skip-lines = 0",
    ] {
        assert!(plan.lines().any(|l| l == line), "{line}\n{plan}");
    }
    assert!(!plan.contains("\nskip-lines ="), "{plan}");
}

/// The plan says how much was read: a file of 512 kB whole, of a larger one 2,000 records.
fn what_was_read_is_said(world: &mut World) {
    let rows = |n: usize| (0..n).map(|i| format!("{i};{}\n", i * 7)).collect::<String>();
    for (bytes, said, footer) in [
        (format!("id;v\n{}Rows: 6000\n", rows(6_000)), "6000 records in the whole file", true),
        (format!("id;v\n{}", rows(60_000)), "the first 1999 records", false),
        ("id;v\n1;2\n".to_owned(), "1 record in the whole file", false),
    ] {
        let file = world.file("long.csv", bytes.as_bytes());
        let plan = text(&sniff(&[&file]).stdout);
        assert!(plan.lines().next().unwrap().ends_with(said), "{plan}");
        assert_eq!(plan.contains("\nskip-footer = 1\n"), footer, "{plan}");
    }
}

/// A plan is checked, and errors in it are reported with its line.
fn plans_are_checked(world: &mut World) {
    let file = world.file("semicolons.csv", SEMICOLONS);
    world.sql("DROP TABLE IF EXISTS made");
    for (plan, said) in [
        ("quote = \"'\"\ndelimeter = \";\"\n", "plan.toml, line 2: \"delimeter\" is no option of load that a plan may have\nhint: did you mean \"delimiter\"?"),
        ("to = \"dbname=x\"\n", "line 1: a plan cannot name the database"),
        ("header = 5.5\n", "line 1: header cannot be a value of type float"),
        ("delimiter = \";\n", "line 1: "),
        ("undecided = [\"header\"]\n", "line 1: header is undecided\nhint: choose one of the lines"),
        ("delimiter = \"ab\"\n", "delimiter must be a single one-byte character"),
    ] {
        let path = world.file("plan.toml", plan.as_bytes());
        let output = world.run(&["load", &file, "--plan", &path, "--table", "made", "--create"]);
        assert_eq!(output.status.code(), Some(2), "{plan}: {output:?}");
        assert!(text(&output.stderr).contains(said), "{plan}: {}", text(&output.stderr));
    }
    // An option on the command line wins over the plan, in any order, and may decide what is
    // undecided.
    let plan = "undecided = ['header']\ndelimiter = ','\nquote = \"'\"\ncolumns = ['a \"1\"', 'b,c', 'id']\n\
                header = false\ncreate = true\nlimit = 2\ntable = 'made'\n";
    let path = world.file("plan.toml", plan.as_bytes());
    let typed = ["--delimiter", ";", "--plan", &path, "--header=ignore"];
    let summary = world.load(&[&[file.as_str()], &typed[..]].concat()).unwrap();
    assert_eq!(summary["loaded"], 2);
    assert_eq!(world.sql("SELECT max(\"b,c\") || max(\"a \"\"1\"\"\") FROM made"), "c'd2");
    let missing = world.run(&["load", &file, "--plan", "nothing.toml", "--table", "made"]);
    assert!(text(&missing.stderr).contains("cannot read the plan nothing.toml"), "{missing:?}");
    let blank = sniff(&[&world.file("blank.csv", b"\n\n\n")]);
    assert_eq!(blank.status.code(), Some(4), "{blank:?}");
    assert!(text(&blank.stderr).contains("blank.csv has no record"), "{blank:?}");
}

/// `--dialect auto` takes what the file decides, also from standard input. If something is
/// undecided, it stops.
fn auto_takes_what_is_decided(world: &mut World) {
    let file = world.file("semicolons.csv", SEMICOLONS);
    let auto = ["--dialect", "auto", "--table", "made"];
    let create = [&auto[..], &["--create"]].concat();
    let expected = "(1,\"a; b\",28/01/2018) (2,c'd,29/01/2018) (3,e,30/01/2018)";
    for from in [file.as_str(), "-"] {
        world.sql("DROP TABLE IF EXISTS made");
        let output = world.run_with(&[&["load", from][..], &create].concat(), SEMICOLONS);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(": detected delimiter ';', quote ', a header"), "{said}");
        assert_eq!(world.sql(ROWS), expected, "{from}");
    }
    for command in [&["check", &file][..], &["plan", &file], &["convert", &file]] {
        let output = world.run(&[command, &auto[..]].concat());
        assert!(output.status.success(), "{output:?}");
    }
    // More than the sample, from a pipe, compressed.
    let mut long = b"id;name\n".to_vec();
    for i in 0..200_000 {
        long.extend_from_slice(format!("{i};name {i}\n").as_bytes());
    }
    for bytes in [long.clone(), zstd::encode_all(&long[..], 1).unwrap()] {
        world.sql("DROP TABLE IF EXISTS made");
        let output = world.run_with(&[&["load", "-"][..], &create].concat(), &bytes);
        assert!(output.status.success(), "{output:?}");
        let sums = "SELECT count(*) || ' ' || sum(id) || ' ' || max(name) FROM made";
        assert_eq!(world.sql(sums), "200000 19999900000 name 99999");
    }
    // If something is undecided, the load stops before anything is touched. An option decides it.
    let file = world.file("texts.csv", b"name,city\nBob,Rome\nAnn,Oslo\n");
    world.sql("DROP TABLE IF EXISTS made");
    let output = world.run(&[&["load", &file][..], &create].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        said.contains("does not decide its dialect: header: line 1 may be names or values"),
        "{said}"
    );
    assert!(said.contains("hint: --header or --no-header"), "{said}");
    assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    let summary = world.load(&[&[file.as_str(), "--header"][..], &create].concat()).unwrap();
    assert_eq!(summary["loaded"], 2);
    // A header that does not fit is skipped only if records that do not fit are rejected.
    let file = world.file("unfit.csv", b"id,name\n1,a,2.5\n2,b,3.5\n3,c,4.5\n4\n");
    world.sql("DROP TABLE IF EXISTS made");
    let said = world.load(&[&[file.as_str()][..], &create].concat()).unwrap_err();
    assert!(said.contains("line 1 has 2 fields, and the records have 3"), "{said}");
    let rejects = world.path("unfit.rejects");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let summary = world.load(&[&[file.as_str()][..], &create, &reject].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&3.into(), &1.into()));
    let output = world.run(&[&["load", "-", "--format", "text"][..], &auto].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// `--dialect auto` also takes a pipe by its path, such as `/dev/stdin`, a named pipe or the shell's
/// `<(…)`. The records at which it looks are loaded, too.
fn auto_looks_into_pipes(world: &mut World) {
    let pipe = world.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for rows in [3, 200_000_u64] {
        let lines: String = (0..rows).map(|i| format!("{i};name {i}\n")).collect();
        let bytes = format!("id;name\n{lines}").into_bytes();
        for from in ["/dev/stdin", "/dev/fd/0", pipe.as_str()] {
            world.sql("DROP TABLE IF EXISTS made");
            let (to, all) = (pipe.clone(), bytes.clone());
            let writer = (from == pipe).then(|| thread::spawn(move || fs::write(to, all)));
            let input: &[u8] = if from == pipe { b"" } else { &bytes };
            let load = ["load", from, "--dialect", "auto", "--table", "made", "--create"];
            let output = world.run_with(&load, input);
            assert!(output.status.success(), "{from}: {output:?}");
            writer.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
            let sums = world.sql("SELECT count(*) || ' ' || sum(id) FROM made");
            assert_eq!(sums, format!("{rows} {}", rows * (rows - 1) / 2), "{from}");
        }
    }
}

/// The first block of a compressed stream may be longer than the part that is looked at first. Such
/// a stream is not taken for an empty one, whose end has no lines after the table.
fn long_blocks_are_not_empty(world: &mut World) {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut seed = 1_u64;
    let mut letter = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(LETTERS[(seed >> 33) as usize % LETTERS.len()])
    };
    let mut bytes = b"id;name\n".to_vec();
    for i in 0..40_000 {
        let name: String = (0..60).map(|_| letter()).collect();
        bytes.extend_from_slice(format!("{i};{name}\n").as_bytes());
    }
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(&bytes).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    bzip2.write_all(&bytes).unwrap();
    let first = world.file("first.csv", b"id;amount\n1;10\n2;20\n3;30\nTotal\n");
    for (name, packed) in [("lz4", lz4.finish().unwrap()), ("bzip2", bzip2.finish().unwrap())] {
        assert!(packed.len() > 1 << 20, "{name}: {}", packed.len());
        let auto = ["--dialect", "auto", "--table", "made", "--create"];
        world.sql("DROP TABLE IF EXISTS made");
        let output = world.run_with(&[&["load", "-"][..], &auto].concat(), &packed);
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(world.sql("SELECT count(*) || ' ' || sum(id) FROM made"), "40000 799980000");
        // The lines after the table of the first file would be skipped in the stream, too.
        world.sql("DROP TABLE made");
        let output = world.run_with(&[&["load", &first, "-"][..], &auto].concat(), &packed);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{name}: {said}");
        assert!(said.contains("is too long for lines after the last record"), "{name}: {said}");
    }
}

/// A compressed file that is cut off is bad data, also if its dialect is detected.
fn a_file_that_is_cut_off(world: &mut World) {
    let packed = zstd::encode_all(SEMICOLONS, 1).unwrap();
    let cut = &packed[..packed.len() - 9];
    let file = world.file("cut.csv.zst", cut);
    let auto = ["--dialect", "auto", "--table", "made"];
    for output in [
        sniff(&[&file]),
        world.run(&[&["load", &file][..], &auto].concat()),
        world.run(&[&["check", &file][..], &auto].concat()),
        world.run_with(&[&["load", "-"][..], &auto].concat(), cut),
    ] {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("hint: the file is zstd; is it whole?"), "{said}");
    }
}

/// Lines around the table are skipped, by the plan and by `--dialect auto`, in each file of a list.
fn lines_around_the_table(world: &mut World) {
    let table = "Stock of the day\n\nid;name;weight\n1;a;1.5\n2;b;2.5\n3;c;3.5\n4;d;4.5\nrows: 4\n";
    let file = world.file("report.csv", table.as_bytes());
    let plan = text(&sniff(&[&file]).stdout);
    assert!(plan.contains("\nskip-lines = 2\n") && plan.contains("\nskip-footer = 1\n"), "{plan}");
    let path = world.file("plan.toml", plan.as_bytes());
    let list = world.file("list", format!("{file}\n{file}\n").as_bytes());
    for (arguments, copies) in [
        (&[file.as_str(), "--plan", &path][..], 1),
        (&[&file, "--dialect", "auto"], 1),
        (&["--files-from", &list, "--dialect", "auto"], 2),
    ] {
        world.sql("DROP TABLE IF EXISTS made");
        let summary = world.load(&[arguments, &["--table", "made", "--create"]].concat()).unwrap();
        assert_eq!(summary["loaded"], 4 * copies, "{arguments:?}");
        let sums = "SELECT count(*) || ' ' || sum(weight) || ' ' || max(name) FROM made";
        assert_eq!(world.sql(sums), format!("{} {}.0 d", 4 * copies, 12 * copies));
    }
    // A list on standard input is read only once.
    world.sql("DROP TABLE made");
    let from = ["load", "--files-from", "-", "--dialect", "auto", "--table", "made", "--create"];
    let output = world.run_with(&from, format!("{file}\n").as_bytes());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM made"), "4");
}

/// Lines around the table of the first file are skipped in each file only if each file has them.
/// Otherwise the load fails with a hint.
fn lines_around_the_table_differ(world: &mut World) {
    let report = "id;amount\n1;10\n2;20\n3;30\nTotal\n";
    let blank = "\n\n1;10\n2;20\n3;30\n";
    let unfit = "id;amount\n1;10;x\n2;20;y\n3;30;z\n";
    let long: String = (0..60_000).map(|i| format!("{i};{i}\n")).collect();
    for (first, other, said, hint) in [
        (
            report,
            "id;amount\n4;40\n5;50\n",
            "other.csv has 0 lines after the last record, and ",
            "--skip-footer N",
        ),
        (
            blank,
            "4;40\n5;50\n6;60\n",
            "other.csv has 0 lines before the table, and ",
            "--skip-lines N",
        ),
        (
            report,
            &format!("id;amount\n{long}"),
            "other.csv is too long for lines",
            "--skip-footer N",
        ),
        (unfit, "4;40;x\n5;50;y\n", "other.csv has no header, and ", "--header=ignore"),
    ] {
        let files =
            [world.file("first.csv", first.as_bytes()), world.file("other.csv", other.as_bytes())];
        world.sql("DROP TABLE IF EXISTS made");
        let rejects = world.path("around.rejects");
        let load = ["--dialect", "auto", "--table", "made", "--create"];
        let reject = ["--on-error", "reject", "--reject-file", &rejects];
        let failed = world.load(&[&[files[0].as_str(), &files[1]], &load[..], &reject].concat());
        let failed = failed.unwrap_err();
        assert!(failed.contains(said) && failed.contains(hint), "{failed}");
        // An empty file has no such lines, and a copy of the file has the same ones.
        let empty = world.file("empty.csv", b"");
        world.load(&[&[empty.as_str(), &files[0]], &load[..], &reject].concat()).unwrap();
        let again = world.file("again.csv", first.as_bytes());
        world.sql("DROP TABLE made");
        let both =
            world.load(&[&[files[0].as_str(), &again], &load[..], &reject].concat()).unwrap();
        assert_eq!(both["loaded"], 6, "{both}");
    }
    // What an option says is skipped in each file, whatever the file has.
    let (a, b) =
        (world.file("first.csv", blank.as_bytes()), world.file("other.csv", b"x\ny\n4;40\n"));
    world.sql("DROP TABLE IF EXISTS made");
    let load = ["--dialect", "auto", "--skip-lines", "2", "--table", "made", "--create"];
    let summary = world.load(&[&[a.as_str(), &b], &load[..]].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["skipped"]), (&4.into(), &4.into()));
}

/// If another dialect would explain an error, the hint names it.
fn errors_have_the_dialect_as_their_hint(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made; CREATE TABLE made (id int, name text, day date)");
    let rows = "1,'a, b',2024-01-02\n2,'c',2024-01-03\n3,'d',2024-01-04\n";
    let days = "1,a,28/01/2018\n2,b,29/01/2018\n";
    let comment = "1,a,2024-01-02\n# none\n2,b,2024-01-03\n";
    let footer = "1,a,2024-01-02\n2,b,2024-01-03\n(2 rows)\n";
    for (bytes, hint) in [
        (rows, "--quote \"'\""),
        (days, "--date-style DMY"),
        (comment, "--comment '#'"),
        (footer, "--skip-footer 1"),
    ] {
        let file = world.file("hinted.csv", bytes.as_bytes());
        let said = world.load(&[&file, "--table", "made"]).unwrap_err();
        assert!(said.contains(&format!("looks as if it needs {hint}")), "{bytes}: {said}");
    }
    // If the dialect is right, the value may show which option it needs.
    world.sql("DROP TABLE made; CREATE TABLE made (id int, \"the price\" numeric)");
    for (value, option, argument, why) in [
        ("NA", "--null", "the price=NA", "if NA stands for NULL"),
        ("\"1,5\"", "--expr", "the price=replace(?, ',', '.')", "is the decimal mark"),
        (
            "\"1.234,5\"",
            "--expr",
            "the price=replace(replace(?, '.', ''), ',', '.')",
            "decimal mark",
        ),
        ("\"1,234.5\"", "--expr", "the price=replace(?, ',', '')", "separate thousands"),
        ("\"1,234\"", "--expr", "the price=replace(?, ',', '')", "; if it separates thousands"),
        ("\"\"", "--force-null", "the price", "makes \"\" NULL"),
    ] {
        let file = world.file("hinted.csv", format!("1,25\n2,{value}\n").as_bytes());
        let load = [file.as_str(), "--table", "made", "--truncate"];
        let said = world.load(&load).unwrap_err();
        let named = ["'", "\""].map(|quote| format!("{option} {quote}{argument}{quote}"));
        assert!(named.iter().any(|named| said.contains(named)) && said.contains(why), "{said}");
        world.load(&[&load[..], &[option, argument]].concat()).unwrap();
    }
    world.sql("DROP TABLE made; CREATE TABLE made (id int, name text, day date)");
    // No other dialect explains a date that does not exist.
    let file = world.file("hinted.csv", b"1,a,2024-01-02\n2,b,2024-02-31\n");
    let said = world.load(&[&file, "--table", "made"]).unwrap_err();
    assert!(!said.contains("looks as if"), "{said}");
}

/// `NaN` is a number, and stays one in a load by the plan.
fn nan_is_no_marker(world: &mut World) {
    let file = world.file("nan.csv", b"id,name,x\n1,a,1.5\n2,b,NaN\n3,c,2.5\n");
    let plan = text(&sniff(&[&file]).stdout);
    let path = world.file("plan.toml", plan.as_bytes());
    world.sql("DROP TABLE IF EXISTS made; CREATE TABLE made (id int, name text, x float8)");
    world.load(&[&file, "--plan", &path, "--table", "made"]).unwrap();
    assert_eq!(world.sql("SELECT x FROM made WHERE id = 2"), "NaN", "{plan}");
}

/// The expression in the hint for DuckDB's option keeps a time that the session's zone skips.
fn the_hint_on_times_keeps_them(world: &mut World) {
    let file = world.file("times.csv", b"10.03.2024 02:30\n");
    let said = text(&world.run(&["load", &file, "--timestampformat", "x"]).stderr);
    let hinted = said.split("--expr \"COLUMN=").nth(1).and_then(|rest| rest.split('"').next());
    let expression = format!("moment={}", hinted.unwrap());
    world.sql("DROP TABLE IF EXISTS made; CREATE TABLE made (moment timestamp)");
    let zone = ["--time-zone", "America/New_York"];
    let load = [file.as_str(), "--table", "made", "--expr", &expression];
    world.load(&[&load[..], &zone].concat()).unwrap();
    assert_eq!(world.sql("SELECT moment FROM made"), "2024-03-10 02:30:00", "{said}");
}

/// A file loads by the plan that `sniff` writes, or by `--dialect auto`. If something is undecided,
/// the load stops; if another dialect would explain an error, the hint names it.
#[test]
fn files_say_what_they_are() {
    on_last_major(|installation| {
        let mut world = World::new(installation);
        a_plan_loads_what_it_was_made_of(&mut world);
        what_depends_on_the_delimiter_is_undecided_with_it(&mut world);
        what_was_read_is_said(&mut world);
        plans_are_checked(&mut world);
        auto_takes_what_is_decided(&mut world);
        auto_looks_into_pipes(&mut world);
        long_blocks_are_not_empty(&mut world);
        a_file_that_is_cut_off(&mut world);
        lines_around_the_table(&mut world);
        lines_around_the_table_differ(&mut world);
        errors_have_the_dialect_as_their_hint(&mut world);
        nan_is_no_marker(&mut world);
        the_hint_on_times_keeps_them(&mut world);
    });
}
