//! Tests the rules by examples. `fuzz/tests/server.rs` compares with the server.

use super::*;

/// All records of `data`, with rendered fields: `N` for NULL, `"x"` for quoted, `x` for plain.
fn all(dialect: &Dialect, data: &[u8]) -> Result<Vec<Vec<String>>, Malformed> {
    let mut scanner = Scanner::new(data, true, dialect, Eol::Unknown);
    let mut record = Record::default();
    let mut rows = Vec::new();
    while scanner.next(&mut record)? == Next::Record {
        rows.push(
            (0..record.len())
                .map(|i| {
                    let (kind, value) = record.field(data, i);
                    let value = String::from_utf8_lossy(value).into_owned();
                    match kind {
                        FieldKind::Plain => value,
                        FieldKind::Quoted => format!("\"{value}\""),
                        FieldKind::QuotedNull => format!("\"{value}\"N"),
                        FieldKind::Null => "N".into(),
                        FieldKind::Default => "D".into(),
                    }
                })
                .collect(),
        );
    }
    Ok(rows)
}

#[test]
fn csv_tells_empty_from_quoted_empty() {
    let rows = all(&Dialect::csv(), b"1,,\"\"\n").unwrap();
    assert_eq!(rows, [["1", "N", "\"\"N"]]);
}

#[test]
fn csv_quotes_may_open_in_mid_field_and_hold_line_ends() {
    let rows = all(&Dialect::csv(), b"a\"b,\"\"c\"d,\"x\ny\"\nz,1").unwrap();
    assert_eq!(rows, [vec!["\"ab,\"cd\"", "\"x\ny\""], vec!["z", "1"]]);
}

#[test]
fn csv_holds_lines_to_the_first_ones_end() {
    assert_eq!(all(&Dialect::csv(), b"a\r\nb\n"), Err(Malformed::Newline));
    assert_eq!(all(&Dialect::csv(), b"a\nb\r\n"), Err(Malformed::CarriageReturn));
    assert_eq!(all(&Dialect::csv(), b"a\rb\r").unwrap(), [["a"], ["b"]]);
    assert_eq!(all(&Dialect::csv(), b"\"a"), Err(Malformed::UnterminatedQuote));
}

#[test]
fn text_resolves_escapes_and_null_before_them() {
    let rows = all(&Dialect::text(), b"a\\tb\t\\N\t\\\\N\t\\x41\\101\n").unwrap();
    assert_eq!(rows, [["a\tb", "N", "\\N", "AA"]]);
}

#[test]
fn a_hex_digit_of_an_escape_is_no_delimiter() {
    let capital = Dialect { delimiter: b'A', ..Dialect::text() };
    let rows = all(&capital, b"1A2\n1\\x4A2\n1\\xA\n").unwrap();
    assert_eq!(rows, [vec!["1", "2"], vec!["1J2"], vec!["1\n"]]);
}

#[test]
fn dot_line_ends_text_and_old_csv_only() {
    assert_eq!(all(&Dialect::text(), b"a\n\\.\nb\n").unwrap(), [["a"]]);
    assert_eq!(all(&Dialect::csv(), b"a\n\\.\nb\n").unwrap(), [["a"], ["\\."], ["b"]]);
    let old = Dialect { dot_line: DotLine::Ends, ..Dialect::csv() };
    assert_eq!(all(&old, b"a\n\\.\nb\n").unwrap(), [["a"]]);
}

#[test]
fn a_chunk_that_is_not_the_last_may_end_anywhere() {
    let dialect = Dialect::csv();
    let mut scanner = Scanner::new(b"a,b\nc,\"d\ne", false, &dialect, Eol::Unknown);
    let mut record = Record::default();
    assert_eq!(scanner.next(&mut record), Ok(Next::Record));
    assert_eq!(scanner.next(&mut record), Ok(Next::Partial));
    assert_eq!(scanner.position(), 4);
}

#[test]
fn escapes_are_checked_for_their_encoding_unless_the_field_is_a_marker() {
    assert_eq!(all(&Dialect::text(), b"\\xc3\\251\n").unwrap(), [["é"]]);
    for bad in [&b"\\xff\n"[..], b"a\t\\0\n", b"\\x00\n", b"\\200x\n"] {
        assert!(matches!(all(&Dialect::text(), bad), Err(Malformed::Encoding(_))), "{bad:?}");
    }
    let dialect = Dialect { null: b"\\xff".to_vec(), ..Dialect::text() };
    assert_eq!(all(&dialect, b"\\xff\n").unwrap(), [["N"]]);
}

#[test]
fn a_backslash_that_ends_the_data_is_dropped() {
    assert_eq!(all(&Dialect::text(), b"a\tb\\").unwrap(), [["a", "b"]]);
    assert_eq!(all(&Dialect::text(), b"\\N\\").unwrap(), [["N"]]);
}

#[test]
fn dot_behind_a_record_ends_old_text_and_is_refused_since_18() {
    let old = Dialect { dot_line: DotLine::Ends, ..Dialect::text() };
    assert_eq!(all(&old, b"a\nb\\.\nc\n").unwrap(), [["a"], ["b"]]);
    assert_eq!(all(&old, b"a\nb\\.c\n"), Err(Malformed::EndMarkerCorrupt));
    assert_eq!(all(&Dialect::text(), b"a\nb\\.\nc\n"), Err(Malformed::EndMarkerNotAlone));
    assert_eq!(all(&old, b"a\n\\.\r\n"), Err(Malformed::EndMarkerStyle));
}

#[test]
fn after_an_error_a_line_can_be_passed_over() {
    let (data, dialect) = (b"a\nb\rc\nd\n\"e\nf\n", Dialect::csv());
    let mut scanner = Scanner::new(data, true, &dialect, Eol::Unknown);
    let mut record = Record::default();
    assert_eq!(scanner.next(&mut record), Ok(Next::Record));
    assert_eq!(scanner.next(&mut record), Err(Malformed::CarriageReturn));
    assert_eq!((record.line, scanner.skip_record()), (2, Some((2, 6))));
    assert_eq!(scanner.next(&mut record), Ok(Next::Record));
    assert_eq!(scanner.next(&mut record), Err(Malformed::UnterminatedQuote));
    // The server reports the line in which the data end.
    assert_eq!((record.line, scanner.skip_record()), (6, Some((8, 11))));
    assert_eq!(scanner.next(&mut record), Ok(Next::Record));
    assert_eq!(record.line, 5);
}

#[test]
fn the_second_byte_of_a_character_is_none_of_its_own() {
    // In SJIS, 0x95 0x5c is one character, and 0xb1 is a character of one byte.
    let text = Dialect::text().in_encoding("Shift_JIS_2004");
    let rows = all(&text, b"\x95\\\ta\n\\\x95\\\tb\n\xb1\\t\t\x95\n").unwrap();
    assert_eq!(rows, [["\u{fffd}\\", "a"], ["\u{fffd}\\", "b"], ["\u{fffd}\t", "\u{fffd}"]]);
    let csv = Dialect { escape: b'\\', ..Dialect::csv() }.in_encoding("win936");
    let rows = all(&csv, b"\"\x95\\\",x\n\x8130\",\n\",y\n").unwrap();
    assert_eq!(rows, [["\"\u{fffd}\\\"", "x"], ["\"\u{fffd}30,\n\"", "y"]]);
    for plain in ["UTF8", "latin1", "EUC_JP", "JOHAB"] {
        assert_eq!(Characters::of(plain), Characters::Ascii, "{plain}");
    }
}
