//! Real files, collected by `scripts/real-files`. `--create --header` loads nearly all at the first
//! try and alters no value. If it refuses a file, it names the option that loads it. `--dialect
//! auto` alters no value either.

use crate::common::{each_major, left_out, World};
use pgsluice_engine::internals::decompress;
use pgsluice_engine::sniff::{peek, sniff, Given, Head};
use pgsluice_engine::FileSource;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// At least this percentage of the files must load at the first try.
const FIRST_TRY: usize = 97;

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/real-files/files");
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let folders = inside(&root).into_iter().filter(|f| f.extension() != Some("part".as_ref()));
    let mut all: Vec<PathBuf> = folders.flat_map(|folder| inside(&folder)).collect();
    all.sort();
    all
}

/// The options that a hint names, as they are typed.
fn named_options(said: &str) -> Option<Vec<String>> {
    let hint = said.split("hint: ").nth(1)?;
    let after = |option: &str| {
        let rest = hint.split(option).nth(1)?;
        let quoted = rest.strip_prefix('\'').and_then(|r| r.split('\'').next());
        quoted.or(rest.split([',', ';', ' ', '\n']).next()).map(str::to_owned)
    };
    let options = if let Some(columns) = after("--header=ignore --columns ") {
        vec!["--header=ignore".into(), "--columns".into(), columns]
    } else if let Some(delimiter) = after("--delimiter ").filter(|_| hint.contains("--delimiter '"))
    {
        vec!["--delimiter".into(), delimiter]
    } else if let Some(encoding) = after("--encoding ") {
        vec!["--encoding".into(), encoding]
    } else if let Some(stray) = after("--stray-quotes ") {
        vec!["--stray-quotes".into(), stray]
    } else if hint.contains("--header=ignore") {
        vec!["--header=ignore".into()]
    } else if hint.contains("--on-error reject") {
        vec!["--on-error".into(), "reject".into()]
    } else if hint.contains("--allow-empty") {
        vec!["--allow-empty".into()]
    } else if hint.contains("--create=text-on-doubt") {
        vec!["--create=text-on-doubt".into()]
    } else {
        return None;
    };
    Some(options)
}

/// Whether stock COPY's message says that the file is damaged.
fn malformed(said: &str) -> bool {
    said.contains("unquoted newline found in data") || said.contains("unquoted carriage return")
}

/// COPY's options for the same file.
fn copy_options(options: &[String]) -> Option<String> {
    match options {
        [option, value] if option == "--delimiter" => Some(format!("HEADER, DELIMITER E'{value}'")),
        [option, value] if option == "--encoding" => Some(format!("HEADER, ENCODING '{value}'")),
        [option, ..] if option == "--stray-quotes" || option == "--on-error" => None,
        _ => Some("HEADER".into()),
    }
}

/// An SQL condition that is true if the value of a column means the same as its text.
fn same(name: &str, ty: &str, text: &str) -> String {
    let value = format!("a.{name}");
    match ty {
        "text" => format!("{value} = {text}"),
        "integer" | "bigint" => format!("{value}::text = {text}"),
        // All digits and trailing zeros are the same; only a zero before the point may be missing.
        "numeric" => format!(
            "({value}::text = {text} OR {text} ~ '^-?\\.' AND {value}::text = regexp_replace({text}, '\\.', '0.') \
             OR {text} ~ '[eE]|[fn]' AND {value} = {text}::numeric)"
        ),
        "double precision" => format!(
            "({value} IN ('NaN', 'Infinity', '-Infinity') AND {value} = {text}::float8 \
             OR {value}::text::numeric = {text}::numeric AND ({value}::text ~ '^-') = ({text} ~ '^-'))"
        ),
        ty => format!("{value} = {text}::{ty}"),
    }
}

/// Compares the loader's table with stock COPY of the same bytes into text columns. An error says
/// what was altered.
fn altered(world: &mut World, bytes: &[u8], options: &str) -> Result<(), String> {
    let columns = world
        .conn
        .exec(
            "SELECT quote_ident(attname), atttypid::regtype FROM pg_attribute \
             WHERE attrelid = 'made'::regclass AND attnum > 0 ORDER BY attnum",
        )
        .unwrap();
    let list: Vec<String> = (1..=columns.len()).map(|i| format!("t{i} text")).collect();
    world.sql(&format!("DROP TABLE IF EXISTS stock; CREATE TABLE stock ({})", list.join(", ")));
    // Leave out empty lines at the end, which stock COPY refuses.
    let mut end = bytes.len();
    while columns.len() > 1 && end > 1 && bytes[..end].ends_with(b"\n") {
        let line = bytes[..end - 1].strip_suffix(b"\r").unwrap_or(&bytes[..end - 1]);
        if !line.ends_with(b"\n") {
            break;
        }
        end = line.len();
    }
    let copy = format!("COPY stock FROM STDIN WITH (FORMAT csv, {options})");
    world.stock(&copy, &bytes[..end]).map_err(|(said, context)| format!("{said} {context}"))?;
    let same: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let (name, ty) = (column[0].as_deref().unwrap(), column[1].as_deref().unwrap());
            let text = format!("b.t{}", i + 1);
            let same = same(name, ty, &text);
            format!("(a.{name} IS NULL) = ({text} IS NULL) AND ({text} IS NULL OR {same})")
        })
        .collect();
    // The server may store rows in another order than they came in, so both sides are sorted by the
    // meaning of their values, and rows with the same meaning by their texts.
    let (mut values, mut texts) = (Vec::new(), Vec::new());
    let (mut value_texts, mut text_texts) = (Vec::new(), Vec::new());
    for (i, column) in columns.iter().enumerate() {
        let (name, ty) = (column[0].as_deref().unwrap(), column[1].as_deref().unwrap());
        let ty = if ty == "json" { "text" } else { ty };
        let collate = if ty == "text" { " COLLATE \"C\"" } else { "" };
        values.push(format!("{name}::{ty}{collate}"));
        texts.push(format!("t{}::{ty}{collate}", i + 1));
        value_texts.push(format!("{name}::text COLLATE \"C\""));
        text_texts.push(format!("t{} COLLATE \"C\"", i + 1));
    }
    let sorted = |table: &str, by: &[String], then: &[String]| {
        let (by, then) = (by.join(", "), then.join(", "));
        format!(
            "(SELECT row_number() OVER (ORDER BY ROW({by}), ROW({then})) AS pgsluice_n, * FROM {table})"
        )
    };
    let differs = world.sql(&format!(
        "SELECT count(*) FROM {} a FULL JOIN {} b USING (pgsluice_n) WHERE ({}) IS NOT TRUE",
        sorted("made", &values, &value_texts),
        sorted("stock", &texts, &text_texts),
        same.join(" AND ")
    ));
    match differs.as_str() {
        "0" => Ok(()),
        rows => Err(format!("{rows} rows differ")),
    }
}

fn content(file: &Path) -> Vec<u8> {
    let (_, mut source) = decompress::open(File::open(file).unwrap(), &Default::default()).unwrap();
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Whether a first line is data rather than names: it has a number that is not in quotes, and its
/// first field is not empty.
fn is_data(line: &[u8], delimiter: u8) -> bool {
    let mut fields = line.split(|c| *c == delimiter).map(<[u8]>::trim_ascii);
    let number = |field: &[u8]| std::str::from_utf8(field).is_ok_and(|f| f.parse::<f64>().is_ok());
    !line.starts_with(&[delimiter]) && fields.any(number)
}

/// Finds the lines of the table without the loader's detection: each has the delimiter equally
/// often, the first at most one time more, and the lines around the table never have it. Empty
/// lines at the end do not belong to the table.
fn table(bytes: &[u8], delimiter: u8, (before, after): (u64, u64)) -> Option<&[u8]> {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|c| *c == b'\n').collect();
    while after == 0 && lines.last().is_some_and(|line| line.trim_ascii().is_empty()) {
        lines.pop();
    }
    let end = lines.len().checked_sub(usize::try_from(after).unwrap())?;
    let (above, rest) = lines.split_at_checked(usize::try_from(before).unwrap())?;
    let (records, below) = rest.split_at_checked(end.checked_sub(above.len())?)?;
    let count = |line: &&[u8]| line.iter().filter(|c| **c == delimiter).count();
    let each = records.last().map(count).filter(|each| *each > 0)?;
    let first = count(&records[0]);
    let around = above.iter().chain(below).all(|line| count(line) == 0);
    let even = records[1..].iter().all(|line| count(line) == each);
    let start: usize = above.iter().map(|line| line.len()).sum();
    let length: usize = records.iter().map(|line| line.len()).sum();
    (around && even && (first == each || first == each + 1)).then(|| &bytes[start..start + length])
}

/// Loads a file by `--dialect auto`; returns the outcome, or what is wrong. `plain`: COPY's own
/// dialect with a header loads it, perhaps as a single column.
fn auto(world: &mut World, file: &Path, plain: bool) -> Result<&'static str, String> {
    let sample = peek(&FileSource::new(file)).unwrap();
    let found = sniff(&sample.bytes, sample.whole, &Given::default());
    let dialect = (found.delimiter, found.quote, found.escape);
    let around = (found.skip_lines, found.skip_footer);
    world.sql("DROP TABLE IF EXISTS made");
    let load = [file.to_str().unwrap(), "--table", "made", "--dialect", "auto", "--create"];
    if let Err(said) = world.load(&load) {
        return Ok(if said.contains("does not decide its dialect") {
            "undecided"
        } else {
            "refused"
        });
    }
    if !found.doubts.is_empty() {
        return Err(format!("it loads in spite of {:?}", found.doubts));
    }
    let bytes = content(file);
    let bytes = if around != (0, 0) || plain && dialect != (b',', b'"', b'"') {
        // A file of one column to COPY has no comma, and no quote that could hide a delimiter.
        let simple = !bytes.contains(&b'"') && (!plain || !bytes.contains(&b','));
        let table = table(&bytes, found.delimiter, around).filter(|_| simple);
        table.ok_or_else(|| {
            format!("it is detected as {dialect:?} with {around:?} lines around it")
        })?
    } else {
        &bytes
    };
    let first = bytes.split(|c| matches!(c, b'\n' | b'\r')).next().unwrap_or_default();
    if found.head != Head::Names && !is_data(first, found.delimiter) {
        return Err("its header is taken for data".into());
    }
    let text = |byte: u8| String::from_utf8(vec![byte]).unwrap().replace('\'', "''");
    let (delimiter, quote, escape) = (text(dialect.0), text(dialect.1), text(dialect.2));
    let options = format!(
        "HEADER {}, DELIMITER '{delimiter}', QUOTE '{quote}', ESCAPE '{escape}'",
        found.head == Head::Names
    );
    altered(world, bytes, &options).map(|()| "loaded")
}

/// `--create --header` loads at least 97 % of the real files at the first try. For any other, it
/// names an option that loads the file, unless stock COPY refuses the file, too. No value is
/// altered.
#[test]
#[ignore = "minutes; needs scripts/real-files"]
fn real_files_load_and_nothing_is_altered() {
    let files = files();
    if files.len() < 500 {
        return left_out("real files: run scripts/real-files");
    }
    let mut world = World::new(each_major().last().unwrap());
    let (mut first, mut by_option, mut wrong) = (0, 0, Vec::new());
    for file in &files {
        let name = file.to_str().unwrap();
        world.sql("DROP TABLE IF EXISTS made");
        let load = [name, "--table", "made", "--header", "--create"];
        let mut options = Vec::new();
        if let Err(said) = world.load(&load) {
            println!("refused: {}", said.trim_end());
            if said.contains("a table at most 1600 columns") {
                continue;
            }
            let Some(named) = named_options(&said) else {
                wrong.push(format!("no option is named: {said}"));
                continue;
            };
            let mut more: Vec<&str> = named.iter().map(String::as_str).collect();
            let rejects = world.path(&format!("{by_option}.rejects"));
            if more[0] == "--on-error" {
                more.extend(["--reject-file", &rejects, "--reject-limit", "100%"]);
            }
            let load = match more[0] {
                "--create=text-on-doubt" => [&load[..4], &more].concat(),
                "--header=ignore" => [&load[..3], &["--create"], &more].concat(),
                _ => [&load[..], &more].concat(),
            };
            if let Err(said) = world.load(&load) {
                if malformed(&said) {
                    println!("stock COPY refuses it too: {}", said.trim_end());
                    continue;
                }
                wrong.push(format!("{named:?} does not load it: {said}"));
                continue;
            }
            by_option += 1;
            options = named;
        } else {
            first += 1;
        }
        let Some(copy) = copy_options(&options) else { continue };
        if let Err(how) = altered(&mut world, &content(file), &copy) {
            wrong.push(format!("{name} is altered: {how}"));
        }
    }
    let all = files.len();
    println!(
        "real files: {all}, at the first try {first}, by the option that is named {by_option}"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(first * 100 >= all * FIRST_TRY, "{first} of {all} load at the first try");
}

/// `--dialect auto` loads a real file only if nothing about its dialect is in doubt, and alters no
/// value.
#[test]
#[ignore = "minutes; needs scripts/real-files"]
fn a_detected_dialect_alters_no_real_file() {
    let files = files();
    if files.len() < 500 {
        return left_out("real files: run scripts/real-files");
    }
    let mut world = World::new(each_major().last().unwrap());
    let (mut wrong, mut counts) = (Vec::new(), BTreeMap::new());
    for file in &files {
        world.sql("DROP TABLE IF EXISTS made");
        let name = file.to_str().unwrap();
        let plain = world.load(&[name, "--table", "made", "--header", "--create"]).is_ok();
        match auto(&mut world, file, plain) {
            Ok(outcome) => *counts.entry(outcome).or_insert(0) += 1,
            Err(how) => wrong.push(format!("{name}: {how}")),
        }
    }
    println!("real files by --dialect auto: {} in all, {counts:?}", files.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
