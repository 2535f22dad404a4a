//! Tests each property and each ambiguity on small inputs.

use super::*;
use pgsluice_core::scan::StrayQuotes;

mod random;

fn look(text: &str) -> Detected {
    sniff(text.as_bytes(), true, &Given::default())
}

fn doubts(found: &Detected) -> Vec<&'static str> {
    found.doubts.iter().map(|doubt| doubt.what).collect()
}

fn options(found: &Detected) -> Vec<String> {
    found.doubts[0].candidates.iter().map(|c| c.text().into()).collect()
}

/// `n` numbered records of a form.
fn rows(n: usize, row: impl Fn(usize) -> String) -> String {
    (1..=n).map(row).collect()
}

#[test]
fn delimiters_are_found_by_even_records() {
    for (delimiter, byte) in [
        (",", b','),
        (";", b';'),
        ("\t", b'\t'),
        ("|", b'|'),
        ("\x01", 1),
        (" ", b' '),
        (":", b':'),
    ] {
        let head = ["id", "name", "score"].join(delimiter) + "\n";
        let body = rows(9, |i| format!("{i}{delimiter}n{i}{delimiter}{}.5\n", i * 7));
        let found = look(&(head + &body));
        assert_eq!(found.delimiter, byte, "{delimiter:?}: {:?}", found.doubts);
        assert_eq!(found.doubts, [], "{delimiter:?}");
        assert_eq!(found.head, Head::Names);
    }
    // A delimiter with which each record has one field is no evidence.
    let found = look("1,a\n2,b\n3,c d\n4,d\n");
    assert_eq!(found.why("delimiter"), Some("4 of 4 records have 2 fields"));
    // Spaces and colons within values are not delimiters.
    let found = look(&rows(9, |i| format!("2024-01-0{i} 10:00:0{i},a b c d,{i}\n")));
    assert_eq!((found.delimiter, doubts(&found)), (b',', vec![]));
    // A decimal comma makes values with one delimiter, and pieces with the other.
    let found = look(&rows(9, |i| format!("{i},5;{i},25;x\n")));
    assert_eq!((found.delimiter, doubts(&found)), (b';', vec![]));
    // The same applies in one column of three.
    let sold = "id;name;price\n".to_owned() + &rows(9, |i| format!("{i};n{i};{i},5\n"));
    let found = look(&sold);
    assert_eq!((found.delimiter, found.head, doubts(&found)), (b';', Head::Names, vec![]));
    assert_eq!(doubts(&look(&sold.replace(";name;", ";name,first;")))[0], "delimiter");
    assert_eq!(doubts(&look(&(sold + "10;n,m;7,5\n")))[0], "delimiter");
    let pieces = rows(9, |i| format!("{i},5\ta\tb{i}\tc\n"));
    let found = look(&pieces);
    assert!(found.delimiter == b'\t' || doubts(&found)[0] == "delimiter", "{found:?}");
    // Delimiters within quotes do not count.
    let found = look(&rows(9, |i| format!("\"a;b;c\",{i},\"d;{i}\"\n")));
    assert_eq!((found.delimiter, doubts(&found)), (b',', vec![]));
}

#[test]
fn what_two_delimiters_would_split_is_a_doubt() {
    let found = look("a;b,c\nd;e,f\ng;h,i\n");
    assert_eq!(doubts(&found)[0], "delimiter");
    assert_eq!(options(&found), ["delimiter ','", "delimiter ';'"]);
    let found = look("key: one\nother: two\nthird: three\n");
    assert_eq!(doubts(&found)[0], "delimiter", "{found:?}");
    let found = look("10:00\n11:30\n12:15\n");
    assert_eq!(doubts(&found)[0], "delimiter");
    assert!(found.doubts[0].why.contains("one value"), "{found:?}");
    let found = look("so it goes, on\nwithout, any, form\nat all\nhere, there, and, everywhere\n");
    assert!(doubts(&found).contains(&"delimiter"), "{found:?}");
}

#[test]
fn a_single_column_needs_no_delimiter() {
    let found = look(&("id\n".to_owned() + &rows(9, |i| format!("{i}\n"))));
    assert_eq!((doubts(&found), found.head), (vec![], Head::Names));
}

#[test]
fn numbers_are_two_columns_if_the_header_has_two_names() {
    let body = rows(9, |i| format!("{i},{}\n", i * 7));
    assert_eq!(doubts(&look(&body)), ["delimiter"]);
    let found = look(&("x,y\n".to_owned() + &body));
    assert_eq!((found.head, doubts(&found)), (Head::Names, vec![]));
    for header in ["price, EUR\n", "2,5\n"] {
        assert_eq!(doubts(&look(&(header.to_owned() + &body)))[0], "delimiter", "{header}");
    }
}

#[test]
fn columns_of_a_fixed_width_are_no_single_value() {
    let found =
        look(&rows(30, |i| format!("{i:>6}{:>9}  n{i}\n", if i % 2 == 0 { i } else { i * 1000 })));
    assert_eq!(doubts(&found)[0], "delimiter");
    assert!(found.doubts[0].why.contains("fixed width"), "{found:?}");
    let text = look(&rows(9, |i| format!("so it goes{}on {i}\n", if i < 3 { "  " } else { " " })));
    assert!(!text.doubts.iter().any(|doubt| doubt.why.contains("fixed width")), "{text:?}");
}

#[test]
fn quotes_are_those_that_keep_records_even() {
    let single = rows(9, |i| format!("{i},'a, b {i}','x'\n"));
    let found = look(&("id,'name','z'\n".to_owned() + &single));
    assert_eq!((found.quote, doubts(&found)), (b'\'', vec![]));
    let double = rows(9, |i| format!("{i},\"a, b {i}\",Men's\n"));
    let found = look(&("id,name,z\n".to_owned() + &double));
    assert_eq!((found.quote, doubts(&found)), (b'"', vec![]));
    // Apostrophes around a few values may be part of them.
    let mut part = "id,name\n".to_owned() + &rows(9, |i| format!("{i},n\n"));
    part += "10,'abc'\n";
    assert_eq!(doubts(&look(&part)), ["quote"]);
    // Whole columns are quoted.
    let found = look(&("id,'name'\n".to_owned() + &rows(9, |i| format!("{i},'n{i}'\n"))));
    assert_eq!((found.quote, doubts(&found)), (b'\'', vec![]));
}

#[test]
fn an_escape_is_what_makes_quotes_close() {
    let head = "id,name,z\n".to_owned();
    let found = look(&(head.clone() + &rows(9, |i| format!("{i},\"a \\\"b\\\", {i}\",\"x\"\n"))));
    assert_eq!((found.escape, doubts(&found)), (b'\\', vec![]));
    assert!(found.why("escape").unwrap().contains("line 2"));
    let found = look(&(head.clone() + &rows(9, |i| format!("{i},\"a \"\"b\"\", {i}\",\"x\"\n"))));
    assert_eq!((found.escape, doubts(&found)), (b'"', vec![]));
    // COPY keeps a backslash before another character; other programs drop it.
    let other = rows(9, |i| format!("{i},\"8\\'9\\\" {i}, x\",\"x\"\n"));
    let found = look(&(head.clone() + &other));
    assert_eq!((found.escape, doubts(&found)), (b'\\', vec!["escape"]));
    assert!(found.doubts[0].why.contains("line 2"), "{found:?}");
    // A backslash before a quote may also be the last character of a value.
    let found = look(&(head.clone() + &rows(9, |i| format!("{i},\"C:\\dir{i}\\\",\"x\"\n"))));
    assert_eq!((found.escape, doubts(&found)), (b'"', vec![]));
    let found = look(&(head + &rows(9, |i| format!("{i},\"\\\\\\\\host{i}\\\\x\",\"x\"\n"))));
    assert_eq!(doubts(&found), ["escape"]);
}

#[test]
fn a_header_is_text_over_values_of_other_types() {
    let ints = |head: &str| look(&(head.to_owned() + &rows(5, |i| format!("x{i}y,{i}\n"))));
    assert_eq!(ints("name,score\n").head, Head::Names);
    assert_eq!(ints("x0y,7\n").head, Head::None);
    assert_eq!(
        (doubts(&ints("country,2019\n")), ints("country,2019\n").head),
        (vec!["header"], Head::Unknown)
    );
    let missing = look(&("n/a,x\n".to_owned() + &rows(5, |i| format!("{i},y{i}\n"))));
    assert_eq!(missing.head, Head::Unknown);
    let texts = look("name,city\nBob,Rome\nAnn,Oslo\n");
    assert_eq!(doubts(&texts), ["header"]);
    assert_eq!(options(&texts), ["header", "no-header"]);
    let again = look("Bob,Rome\nAnn,Oslo\nBob,Oslo\nEve,Rome\n");
    assert_eq!((again.head, doubts(&again)), (Head::None, vec![]));
    assert!(again.why("header").unwrap().contains("line 3"), "{again:?}");
    // A single one is a coincidence.
    assert_eq!(doubts(&look("name,ID\nIndonesia,ID\nIndia,IN\n")), ["header"]);
    let years = look("country,code,2019,2020\nItaly,1,5,6\nPeru,2,7,8\nChad,3,9,9\n");
    assert_eq!((years.head, doubts(&years)), (Head::Names, vec![]));
    assert_eq!(doubts(&look("a,b\n")), ["header"]);
    // Numbers in quotes above numbers without quotes, as R writes names.
    let cuts = look("\"\",\"16.5\",\"17.25\"\n\"a\",1,2\n\"b\",3,4\n");
    assert_eq!((cuts.head, doubts(&cuts)), (Head::Names, vec![]));
    // The column of row names has no name, as in pandas.
    assert_eq!(doubts(&look(",16.5,17.25\n7,1,2\n8,3,4\n")), ["header"]);
    let given = Given { header: Some(false), ..Given::default() };
    assert_eq!(sniff(b"name,city\nBob,Rome\n", true, &given).doubts, []);
}

#[test]
fn titles_before_the_table_are_passed_over_and_damaged_headers_are_not() {
    let table = "id,name,day\n".to_owned() + &rows(5, |i| format!("{i},n{i},2024-01-0{i}\n"));
    let found = look(&format!("A report\n\nof today\n{table}"));
    assert_eq!((found.skip_lines, found.head, doubts(&found)), (3, Head::Names, vec![]));
    assert!(found.why("skip-lines").unwrap().contains("A report"));
    let found = look(&format!("A report,,\n,,\n{table}"));
    assert_eq!((found.skip_lines, found.head, doubts(&found)), (2, Head::Names, vec![]));
    let short = "id,name\n".to_owned() + &rows(5, |i| format!("{i},n{i},2024-01-0{i}\n"));
    let found = look(&short);
    assert_eq!((found.skip_lines, found.head, doubts(&found)), (0, Head::Unfit, vec!["header"]));
    // A header with other delimiters is not a title.
    let other = "id;name;day\n".to_owned() + &rows(5, |i| format!("{i},n{i},2024-01-0{i}\n"));
    assert_eq!(doubts(&look(&other)), ["preamble"]);
    let trailing = "id,name,\n".to_owned() + &rows(5, |i| format!("{i},n{i}\n"));
    assert_eq!((look(&trailing).head, doubts(&look(&trailing))), (Head::Names, vec![]));
}

#[test]
fn spaces_side_by_side_may_be_one_delimiter() {
    let one = |i: usize| format!("{i} 1.5 x{i}y\n");
    assert_eq!(doubts(&look(&("id score name\n".to_owned() + &rows(9, one)))), [""; 0]);
    let two = |i: usize| format!("{i}  1.5  x{i}y\n");
    assert_eq!(doubts(&look(&("id  score  name\n".to_owned() + &rows(9, two)))), ["delimiter"]);
    // It is only one doubt, with any of this evidence: one value in each line, spaces, a fixed
    // width.
    let comma = |i: usize| if i.is_multiple_of(3) { ", x" } else { "" };
    let fixed = |i: usize| format!("{i:>6}{:>9}  n{i}{}\n", i * 1000, comma(i));
    for text in [rows(4, |i| format!("{i}  {}\n", i * 2)), rows(29, fixed)] {
        let found = look(&text);
        assert_eq!(doubts(&found), ["delimiter", "header"], "{text}");
        assert!(found.doubts[0].why.contains("; "), "{found:?}");
    }
}

#[test]
fn quotes_may_open_after_spaces_as_copy_reads_them() {
    let row = |i: usize| format!("{i}, \"x, y{i}\", 1.5\n");
    let text = "id, \"name\", score\n".to_owned() + &rows(9, row);
    let found = look(&text);
    assert_eq!(
        (doubts(&found), found.delimiter, found.head),
        (vec!["stray-quotes"], b',', Head::Names)
    );
    assert_eq!(options(&found), ["stray-quotes copy"]);
    let given = Given { stray_quotes: Some(StrayQuotes::Copy), ..Given::default() };
    assert_eq!(sniff(text.as_bytes(), true, &given).doubts, []);
    let given = Given { stray_quotes: Some(StrayQuotes::Literal), ..Given::default() };
    assert_ne!(sniff(text.as_bytes(), true, &given).doubts, []);
    // Text precedes the quote.
    let inch = text + "10, x 5\" pipe, 1.5\n";
    assert!(!doubts(&look(&inch)).contains(&"stray-quotes"));
}

#[test]
fn records_of_very_many_fields() {
    let wide = |value: &str| vec![value; 2500].join(",") + "\n";
    let found = look(&(wide("x") + &wide("1") + &wide("2")));
    assert_eq!((found.head, found.columns.len()), (Head::Names, 2500));
}

#[test]
fn a_footer_is_text_that_no_record_begins_with() {
    // All records are read if the sample is the whole file.
    let long = "id;v\n".to_owned() + &rows(6000, |i| format!("{i};{i}\n")) + "Rows: 6000\n";
    let found = look(&long);
    assert_eq!((found.skip_footer, found.records, found.whole), (1, 6000, true));
    let part = sniff(long.as_bytes(), false, &Given::default());
    assert_eq!((part.skip_footer, part.whole), (0, false));
    let table = "id,name,day\n".to_owned() + &rows(5, |i| format!("{i},n{i},2024-01-0{i}\n"));
    let found = look(&format!("{table}\n(5 rows)\n"));
    assert_eq!((found.skip_footer, doubts(&found)), (2, vec![]));
    // An incomplete record is not a footer.
    assert_eq!(look(&format!("{table}6")).skip_footer, 0);
    assert_eq!(look(&format!("{table}6\n")).skip_footer, 0);
    assert_eq!(look(&format!("{table}6,x\n")).skip_footer, 0);
    assert_eq!(look(&format!("{table},x\n")).skip_footer, 0);
    assert_eq!(look(&format!("{table}\n\n")).skip_footer, 0);
}

#[test]
fn comments_are_lines_that_begin_as_no_record_does() {
    let table = "id,name,day\n".to_owned() + &rows(5, |i| format!("{i},n{i},2024-01-0{i}\n"));
    let found = look(&(table.replace("\n3,", "\n# a, comment\n3,") + "6,x,2024-01-06\n"));
    assert!(found.comments && found.doubts.is_empty(), "{found:?}");
    assert!(found.why("comment").unwrap().ends_with("the first is line 4"), "{found:?}");
    assert!(!look(&table.replace("\n3,", "\n# a comment\n#3,")).comments);
    assert!(!look(&table).comments);
}

#[test]
fn bytes_that_are_not_utf8_have_candidates() {
    let found = sniff(b"id,name\n1,caf\xe9\n2,x\n3,y\n", true, &Given::default());
    assert!(!found.utf8 && doubts(&found) == ["encoding"], "{found:?}");
    assert!(found.why("encoding").unwrap().contains("line 2 has byte 0xe9"));
    let given = Given { encoding: true, ..Given::default() };
    assert_eq!(sniff(b"id,name\n1,caf\xe9\n2,x\n3,y\n", true, &given).doubts, []);
    // A sample may end within a character.
    let mut cut = rows(500, |i| format!("{i},é{i}\n")).into_bytes();
    cut.extend_from_slice(b"501,\xc3");
    assert!(sniff(&cut, false, &Given::default()).utf8);
}

#[test]
fn columns_say_what_their_values_are() {
    let head = "id,price,day,when,note\n".to_owned();
    let found = look(
        &(head
            + "1;2\n".repeat(0).as_str()
            + &rows(20, |i| {
                let note = if i == 7 { "NA".into() } else { format!("{i}") };
                format!("{i},\"{i},5\",{i}/01/2024,2024-01-02 10:00:00,{note}\n")
            })),
    );
    assert_eq!(doubts(&found), Vec::<&str>::new());
    let sql: Vec<&str> = found.columns.iter().map(|c| c.sql).collect();
    assert_eq!(sql, ["integer", "text", "text", "timestamp", "text"]);
    assert!(found.columns[1].why.contains("decimal comma"), "{:?}", found.columns);
    assert_eq!(found.columns[2].also, Some("date"));
    assert_eq!(found.date_style, Some("DMY"));
    assert!(found.why("date-style").unwrap().contains("line 14"), "{:?}", found.evidence);
    assert_eq!(found.null.as_deref(), Some("NA"));
    // In a column of text it may be a value, and with empty values there are two spellings.
    let text = look("id,code\n1,NA\n2,DE\n3,FR\n4,DE\n");
    assert_eq!(text.null, None);
    assert!(text.why("nulls").unwrap().contains("text as well"), "{text:?}");
    let mixed = look("id,d\n1,13/01/2024\n2,01/13/2024\n");
    assert_eq!(mixed.date_style, None);
    assert!(mixed.why("dates").unwrap().contains("month in line 3"), "{mixed:?}");
}

/// The setting replaces COPY's marker in all columns and records, so later values could be altered.
#[test]
fn null_is_set_only_if_it_alters_no_value() {
    let table = |null: &str| {
        let value = |i: usize| if i == 7 { null.to_owned() } else { format!("{i}.5") };
        "id,name,x\n".to_owned() + &rows(20, |i| format!("{i},n{i},{}\n", value(i)))
    };
    let whole = look(&table("NA"));
    assert_eq!(whole.null.as_deref(), Some("NA"), "{:?}", whole.evidence);
    let part = sniff(table("NA").as_bytes(), false, &Given::default());
    assert_eq!(part.null, None, "{:?}", part.evidence);
    assert!(part.why("nulls").unwrap().starts_with("\"NA\" from line 8"), "{:?}", part.evidence);
    for number in ["NaN", "nan"] {
        let found = look(&table(number));
        assert_eq!(found.null, None, "{:?}", found.evidence);
        assert!(found.why("nulls").unwrap().contains(number), "{:?}", found.evidence);
    }
}

#[test]
fn records_of_other_widths_are_left_to_the_load() {
    let mut table = "id,name,day\n".to_owned() + &rows(30, |i| format!("{i},n{i},2024-01-02\n"));
    table += "31,n31\n";
    table += &rows(5, |i| format!("{i},n{i},2024-01-02\n"));
    let found = look(&table);
    assert_eq!(doubts(&found), Vec::<&str>::new());
    assert!(found.why("delimiter").unwrap().contains("line 32 has 2"), "{:?}", found.evidence);
}
