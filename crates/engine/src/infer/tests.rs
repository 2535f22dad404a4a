//! Tests the types of whole columns.

use super::*;
use pgsluice_core::scan::{Dialect, Eol, Next, Scanner};

fn infer(csv: &str, whole: bool) -> Vec<Guess> {
    let dialect = Dialect::csv();
    let mut scanner = Scanner::new(csv.as_bytes(), true, &dialect, Eol::Unknown);
    let mut record = Record::default();
    let mut inference = None;
    while scanner.next(&mut record) == Ok(Next::Record) {
        let inference = inference.get_or_insert_with(|| {
            let names = vec![String::new(); record.len()];
            Inference::new(&names, &TargetOptions::new("", "t"))
        });
        inference.see(csv.as_bytes(), &record);
    }
    let inference = inference.expect("a record");
    let names = vec![String::new(); inference.columns.len()];
    inference.columns(&names, whole).iter().map(|c| c.guess).collect()
}

#[test]
fn values_that_a_number_would_alter_stay_text() {
    assert_eq!(infer("007,+1,-0,1,\n12,2,3,2,\n", true), {
        use Guess::*;
        [Text, Text, Text, Int4, Text]
    });
}

#[test]
fn a_sample_is_not_trusted_to_show_the_largest_integer() {
    assert_eq!(infer("1\n2\n", false), [Guess::Int8]);
    assert_eq!(infer("1\n3000000000\n", true), [Guess::Int8]);
}

#[test]
fn letters_are_booleans_only_as_the_server_writes_them() {
    use Guess::*;
    let csv = "t,T,F,true,TRUE,t\nf,F,F,False,FALSE,F\n";
    assert_eq!(infer(csv, true), [Bool, Text, Text, Bool, Bool, Text]);
}

#[test]
fn dates_zones_uuids_and_json_are_told_apart() {
    use Guess::*;
    let csv = "2024-02-29,2024-02-29 12:00:00,2024-02-29T12:00:00Z,\
        7f3b1c1e-0d5a-4c1b-9d5e-0123456789ab,\"{\"\"a\"\":1}\",1e-3,0.10,2024-02-29\n\
        1999-12-31,1999-12-31,1999-12-31 00:00:00+02,\
        7f3b1c1e-0d5a-4c1b-9d5e-0123456789AB,[],2.5,12.5,1999-12-31 00:00:00+02\n";
    let expected = [Date, Timestamp, TimestampTz, Uuid, Json, Float8, Numeric, Text];
    assert_eq!(infer(csv, true), expected);
    assert_eq!(infer("2023-02-29\n", true), [Text]);
}

#[test]
fn what_a_type_would_round_or_respell_stays_text() {
    use Guess::*;
    for (value, guess) in [
        ("2024-01-01 00:00:00.123456", Timestamp),
        ("2024-01-01 00:00:00.1234567", Text),
        ("2024-01-01T00:00:00.123456Z", TimestampTz),
        ("2024-01-01T00:00:00.123456789Z", Text),
        ("2016-12-31 23:59:60", Text),
        ("2016-12-31T24:00:00+00", Text),
        ("-0.0", Text),
        ("-0.5", Numeric),
        ("1e-300", Text),
        ("-0e1", Text),
        ("NaN", Float8),
        ("Nan", Text),
        ("inf", Text),
        ("infinity", Date),
        // A year of more than four digits loses its leading zeros.
        ("01234-05-06", Text),
        ("00012-01-01", Text),
        ("01234-05-06T10:00:00Z", Text),
        ("01234-05-06\n2024-01-01 00:00:00", Text),
        ("0123-05-06", Date),
        ("0123/05/06 10:00:00-02", TimestampTz),
        ("12024-05-06", Date),
        // A UUID gets its hyphens after 8, 12, 16 and 20 digits.
        ("0123-4567-89ab-cdef-0123456789abcdef", Text),
        ("{01234567-89ab-cdef0123456789abcdef}", Text),
        ("01234567-89AB-cdef-0123-456789abcdef", Uuid),
    ] {
        assert_eq!(infer(&format!("{value}\n"), true), [guess], "{value}");
    }
}

#[test]
fn what_the_server_would_take_otherwise_does_not_fit() {
    use Guess::*;
    let csv = "7,1.5,t,2024-01-01,x\n\
        007,1.5,t,2024-01-01,x\n+1,1.50,f,2024-01-01,\n1,1e5,t,2024-01-01,x\n\
        x,y,maybe,2024-13-01,z\n1,.5,t,,x\n,,yes,2024-01-01,x\n1,1,,20240101,x\n\
        1,1,t,n/a,x\n1,1,t,\"\",x\n1,1,t,Now,x\n1,1,t, today allballs,x\n1,1,t,01234-05-06,x\n";
    let column = |guess| NewColumn {
        name: String::new(),
        guess,
        measures: false,
        empty: false,
        mean_length: 1,
    };
    let mut fit = Fit::new([Int8, Numeric, Bool, Date, Text].map(column).to_vec());
    let dialect = Dialect::csv();
    let mut scanner = Scanner::new(csv.as_bytes(), true, &dialect, Eol::Unknown);
    let (mut record, mut found) = (Record::default(), Vec::new());
    while scanner.next(&mut record) == Ok(Next::Record) {
        found.push(fit.altered(csv.as_bytes(), &record));
    }
    let expected = [None, Some(0), Some(0), Some(1), None, None, Some(2), Some(3)];
    assert_eq!(found[..8], expected);
    // What can be no date is the server's to reject.
    assert_eq!(found[8..], [None, None, Some(3), Some(3), Some(3)]);
}

#[test]
fn one_odd_value_widens_the_column() {
    assert_eq!(infer("true,1\nx,y\n", true), [Guess::Text, Guess::Text]);
}

#[test]
fn wide_alignment_comes_first_and_saves_its_padding() {
    let column = |guess, mean_length| NewColumn {
        name: String::new(),
        guess,
        measures: false,
        empty: false,
        mean_length,
    };
    let columns = [
        column(Guess::Bool, 1),
        column(Guess::Int8, 8),
        column(Guess::Text, 5),
        column(Guess::Int4, 4),
        column(Guess::Int8, 8),
    ];
    let order = by_alignment(&columns);
    assert_eq!(order, [1, 4, 3, 0, 2]);
    assert_eq!(row_bytes(&columns, &[0, 1, 2, 3, 4]), 40);
    assert_eq!(row_bytes(&columns, &order), 32);
}

#[test]
fn codes_and_money_stay_as_they_are_written() {
    use Guess::*;
    for (csv, guess) in [
        ("1E5\n2E3\n", Text),
        ("1E5\n12\n", Text),
        ("5.\n6.\n", Text),
        ("5.\n5.25\n", Text),
        ("1.50\n2.25\n1e3\n", Text),
        ("1.50\n2.25\n3\n", Numeric),
        ("1.10\n1.9\n", Numeric),
        ("12:30\n", Text),
        ("25:00:00\n", Text),
        ("23:59:60\n", Text),
        ("24:00:00\n", Text),
        ("00:05:30.25\n", Time),
        ("31-12-1987\n", Text),
        ("31/12/1987\n", Text),
        ("2012/13/01\n", Text),
        ("2012/1/1\n", Text),
        ("2012/01/31\n1999-12-31\n", Date),
        ("2012/01/31 10:00:00\n", Timestamp),
        ("epoch\n", Text),
        ("today\n", Text),
        ("inf\n", Text),
        ("NaN\n1\n", Float8),
        ("NaN\n1.50\n", Numeric),
    ] {
        assert_eq!(infer(csv, true), [guess], "{csv:?}");
    }
}

#[test]
fn columns_of_measurements_become_doubles_if_these_give_every_value_back() {
    use Guess::*;
    for (csv, guess) in [
        ("0.0811466840860277\n9.03999971342273e-05\n", Float8),
        ("1\n.4\n-.5\n", Numeric),
        ("0.5\n-0\ninf\n", Float8),
        ("1e-05\n2.5e-07\n3\n", Float8),
        // More digits than a double has.
        ("0.08114668408602771234\n9.03999971342273e-05\n", Numeric),
        ("1.500\n2.5e-07\n", Numeric),
        ("1.500\n-0\n", Text),
        ("0.5\n1e-400\n", Numeric),
        ("0.5\n1e-401\n", Text),
    ] {
        assert_eq!(infer(csv, true), [guess], "{csv:?}");
    }
}

#[test]
fn later_exponents_fit_columns_of_measurements_alone() {
    let value = "1e3\n";
    let dialect = Dialect::csv();
    for (measures, altered) in [(true, None), (false, Some(0))] {
        let column = NewColumn {
            name: String::new(),
            guess: Guess::Numeric,
            measures,
            empty: false,
            mean_length: 1,
        };
        let mut scanner = Scanner::new(value.as_bytes(), true, &dialect, Eol::Unknown);
        let mut record = Record::default();
        assert_eq!(scanner.next(&mut record), Ok(Next::Record));
        assert_eq!(Fit::new(vec![column]).altered(value.as_bytes(), &record), altered);
    }
}

#[test]
fn long_records_are_held_to_the_types_piece_by_piece() {
    use Guess::*;
    let column = |guess| NewColumn {
        name: String::new(),
        guess,
        measures: false,
        empty: false,
        mean_length: 1,
    };
    let columns = [Int8, Text, Int8].map(column).to_vec();
    let spaced = " ".repeat(300 << 10) + "7";
    let escaped = Dialect { escape: b'\\', ..Dialect::csv() };
    for (dialect, record, found) in [
        (Dialect::csv(), "7,\"a,\"\"07\n,\",8\n", None),
        (Dialect::csv(), "007,\"a,\"\"07\n,\",8\n", Some(0)),
        (Dialect::csv(), "7,\"a,\"\"07\n,\",08\r\n", Some(2)),
        (Dialect::csv(), "\"7\",,\"08\"", Some(2)),
        (Dialect::csv(), ",07,,08", None),
        (Dialect::csv(), &format!("7,{spaced},8"), None),
        (Dialect::csv(), &format!("{spaced},7,8"), Some(0)),
        (escaped, "7,\"\\\",08,\",8\n", None),
        (Dialect::text(), "7\ta\\\t08\t8\n", None),
        (Dialect::text(), "7\ta\\\\\t08\n", Some(2)),
        (Dialect::text(), "\\N\t\\N\t\\x30\\x38\n", Some(2)),
        (Dialect { delimiter: b'|', ..Dialect::csv() }.in_encoding("SJIS"), "7|x|8", None),
    ] {
        for length in [1, 3, record.len()] {
            let mut fit = LongRecordFit::new(columns.clone(), &dialect);
            let last = record.len().div_ceil(length) - 1;
            let mut pieces = record.as_bytes().chunks(length).enumerate();
            let altered = pieces.find_map(|(i, piece)| fit.altered(piece, i == last));
            assert_eq!(altered, found, "{record:.40?} by {length}");
        }
    }
}
