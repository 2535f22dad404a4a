//! Rows: every family of types, in every format, packed into pages or not.

use super::{every_allocation, Gate, Refused};
use crate::plan::{ColumnDef, DialectDef, EnvDef, LabelDef, FROM_GIVEN};
use crate::{
    pgsluice_form, pgsluice_plan, pgsluice_plan_free, AskDef, FormPlan, Row, Slice, Status,
};

/// A type: its `pg_type.oid`, that of its array, typmod, length, alignment, values.
struct IndexCase {
    oid: u32,
    array: u32,
    typmod: i32,
    len: i16,
    align: u8,
    values: Vec<String>,
}

fn case(oid: u32, array: u32, typmod: i32, len: i16, align: u8, values: &[&str]) -> IndexCase {
    let values = values.iter().map(|value| value.to_string()).collect();
    IndexCase { oid, array, typmod, len, align, values }
}

/// Every type that the core reads, with values for which it needs memory, and some that the server
/// reads.
fn cases() -> Vec<IndexCase> {
    let mut cases = vec![
        case(16, 1000, -1, 1, 1, &["t", "false", "perhaps"]),
        case(17, 1001, -1, -1, 4, &["\\x00ff", "a\\\\b\\001", "plain", "\\x0"]),
        case(19, 1003, -1, 64, 1, &["name", "a \"name\""]),
        case(20, 1016, -1, 8, 8, &["-9223372036854775808", " 7"]),
        case(21, 1005, -1, 2, 2, &["7", "-32768"]),
        case(23, 1007, -1, 4, 4, &["7", "x"]),
        case(25, 1009, -1, -1, 4, &["text", "with \"quotes\", \\ and\nlines", ""]),
        case(26, 1028, -1, 4, 4, &["4294967295"]),
        case(114, 199, -1, -1, 4, &["{\"a\": [1, \"\\n\"]}", "{"]),
        case(650, 651, -1, -1, 4, &["10.0.0.0/8", "::/0"]),
        case(700, 1021, -1, 4, 4, &["1.5", "NaN"]),
        case(701, 1022, -1, 8, 8, &["1e300", "-inf"]),
        case(774, 775, -1, 8, 4, &["08:00:2b:01:02:03:04:05"]),
        case(790, 791, -1, 8, 8, &["12.34"]),
        case(829, 1040, -1, 6, 4, &["08:00:2b:01:02:03"]),
        case(869, 1041, -1, -1, 4, &["127.0.0.1", "fe80::1/64"]),
        case(1042, 1014, 404, -1, 4, &["padded", "ä"]),
        case(1043, 1015, 12, -1, 4, &["12345678", "more than that"]),
        case(1082, 1182, -1, 4, 4, &["2024-02-29", "yesterday"]),
        case(1083, 1183, -1, 8, 8, &["12:34:56.789"]),
        case(1114, 1115, -1, 8, 8, &["2024-02-29 12:00:00"]),
        case(1184, 1185, -1, 8, 8, &["2024-02-29 12:00:00+02"]),
        case(1186, 1187, -1, 16, 8, &["1 day 02:03:04"]),
        case(1266, 1270, -1, 12, 8, &["12:34:56+02"]),
        case(1560, 1561, 3, -1, 4, &["101", "11"]),
        case(1562, 1563, -1, -1, 4, &["xA5F", "1010101010"]),
        case(1700, 1231, -1, -1, 4, &["12.50", "NaN", "-0.0001"]),
        case(2950, 2951, -1, 16, 1, &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        case(3802, 0, -1, -1, 4, &["{\"b\": 1.5, \"a\": [null, \"\\u00e9\"]}", "7", "{"]),
        // Only the server reads these.
        case(600, 1017, -1, 16, 8, &["(1,2)"]),
    ];
    cases[25].values.push("10".repeat(300));
    cases[26].values.push("1234567890".repeat(200) + "." + &"9".repeat(700));
    let keys =
        (0..50).map(|n| format!("\"key{}\": {n}", n * 7 % 50)).collect::<Vec<_>>().join(", ");
    cases[28].values.push(format!("{{{keys}}}"));
    cases
}

impl IndexCase {
    /// Two-dimensional arrays of each value, with backslashes before quotes and backslashes.
    fn arrays(&self) -> IndexCase {
        let quoted = |value: &String| value.replace('\\', "\\\\").replace('"', "\\\"");
        let array =
            |value| format!("[2:3][1:2]={{{{\"{0}\",NULL}},{{\"{0}\",\"{0}\"}}}}", quoted(value));
        let values = self.values.iter().map(array).chain(["{}".into()]).collect();
        IndexCase { oid: self.array, array: 0, len: -1, align: self.align.max(4), values, ..*self }
    }
}

fn column(case: &IndexCase, source: i32, element_align: u8) -> ColumnDef {
    ColumnDef {
        type_oid: case.oid,
        typmod: case.typmod,
        source,
        labels: std::ptr::null(),
        nlabels: 0,
        given: std::ptr::null(),
        given_len: 0,
        len: case.len,
        align: case.align,
        element_align,
        packable: case.len < 0,
        not_null: false,
        force_null: false,
        force_not_null: false,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Csv,
    Text,
    Binary,
}

/// The data: one row for each value, between a number and the last column, and a row with NULL.
fn data(form: Form, values: &[String], last: &str) -> Vec<u8> {
    let mut data = Vec::new();
    let values = values.iter().map(Some).chain([None]).cycle().take(2 * values.len() + 2);
    for (n, value) in values.enumerate() {
        let n = n.to_string();
        match form {
            Form::Csv => {
                let quoted = value.map(|v| format!("\"{}\"", v.replace('"', "\"\"")));
                let line = format!("{n},{},{last}\n", quoted.unwrap_or_default());
                data.extend_from_slice(line.as_bytes());
            }
            Form::Text => {
                let escaped = value.map(|v| v.replace('\\', "\\\\").replace('\n', "\\n"));
                let line = format!("{n}\t{}\t{last}\n", escaped.unwrap_or("\\N".into()));
                data.extend_from_slice(line.as_bytes());
            }
            Form::Binary => {
                data.extend_from_slice(&3i16.to_be_bytes());
                for field in [Some(n.as_str()), value.map(String::as_str), Some(last)] {
                    let len = field.map_or(-1, |field| field.len() as i32);
                    data.extend_from_slice(&len.to_be_bytes());
                    data.extend_from_slice(field.unwrap_or_default().as_bytes());
                }
            }
        }
    }
    data
}

/// A plan for a text column, a value of the case's type, an enum, and a default.
fn plan(gate: &mut Gate, case: &IndexCase, element_align: u8, form: Form) -> *mut FormPlan {
    let labels = [("sad", 7), ("happy", 8)].map(|(label, oid)| LabelDef {
        label: label.as_ptr(),
        len: label.len(),
        oid,
    });
    let text = IndexCase { oid: 25, typmod: -1, len: -1, align: 4, values: Vec::new(), ..*case };
    let mut columns = [
        column(&text, 0, 0),
        column(case, 1, element_align),
        column(&IndexCase { oid: 0, len: 4, ..text }, 2, 0),
        column(&IndexCase { oid: 25, values: Vec::new(), ..*case }, FROM_GIVEN, 0),
    ];
    (columns[2].labels, columns[2].nlabels) = (labels.as_ptr(), labels.len());
    (columns[3].len, columns[3].packable) = (-1, true);
    (columns[3].given, columns[3].given_len) = (b"default".as_ptr(), 7);
    let null = if form == Form::Text { "\\N" } else { "" };
    let dialect = DialectDef {
        null: null.as_ptr(),
        null_len: null.len(),
        default: b"default".as_ptr(),
        default_len: 7,
        binary: form == Form::Binary,
        csv: form == Form::Csv,
        dot_ends: true,
        delimiter: if form == Form::Csv { b',' } else { b'\t' },
        quote: b'"',
        escape: b'"',
    };
    let env = EnvDef { utc: true, date_order: 0, money_c: true, single_byte: false };
    // SAFETY: all pointers are valid for the call.
    gate.call(|| unsafe { pgsluice_plan(columns.as_ptr(), columns.len(), 3, &dialect, &env) })
}

/// The result: each row's tuple and the texts of its asks; empty for a record that the server has
/// to read.
type Formed = Vec<(Vec<u8>, Vec<(u32, Vec<u8>)>)>;

/// How many rows and asks a slice has room for.
const ROOM: usize = 64;

/// A slice of the last data, before any of it is formed. `rows` must have that room.
fn slice_of(data: &[u8], arena: &mut [u64], rows: &mut Vec<Row>, asks: &mut [AskDef]) -> Slice {
    Slice {
        input: data.as_ptr(),
        input_len: data.len(),
        arena: arena.as_mut_ptr().cast(),
        arena_len: std::mem::size_of_val(arena),
        arena_used: 0,
        rows: rows.as_mut_ptr(),
        rows_len: ROOM,
        asks: asks.as_mut_ptr(),
        asks_len: asks.len(),
        rows_used: 0,
        consumed: 0,
        lines: 0,
        eol: 0,
        last: true,
        pack: false,
        page_longest: 2000,
        page_reserve: 0,
        page_limit: 0,
        pages: 0,
        paged: 0,
    }
}

/// Forms all of the data. A record that the server has to read is skipped, up to its line's or the
/// data's end.
fn form(gate: &mut Gate, plan: *mut FormPlan, data: &[u8], pack: bool) -> Result<Formed, Refused> {
    const ARENA: usize = 64 << 10;
    let mut formed = Vec::new();
    let mut arena = vec![0u64; ARENA / 8];
    let mut rows: Vec<Row> = Vec::with_capacity(ROOM);
    let mut asks: Vec<AskDef> = vec![AskDef::default(); ROOM];
    let (mut at, mut eol) = (0, 0);
    while at < data.len() {
        let bare = slice_of(&data[at..], &mut arena, &mut rows, &mut asks);
        let mut slice = Slice { eol, pack, ..bare };
        // SAFETY: the plan is live, and the slice's pointers are valid for the lengths beside them.
        let status = gate.call(|| unsafe { pgsluice_form(plan, &mut slice) });
        match status {
            Status::Memory => return Err(Refused),
            Status::Panic => panic!("the core panicked"),
            Status::Full | Status::More | Status::Ended | Status::Ask => {}
        }
        // SAFETY: that many rows were formed; both the arena and the rows still exist.
        let (rows, bytes) = unsafe {
            let bytes = std::slice::from_raw_parts(arena.as_ptr().cast::<u8>(), ARENA);
            (std::slice::from_raw_parts(slice.rows, slice.rows_used), bytes)
        };
        let part = |offset: u32, len: u32| bytes[offset as usize..][..len as usize].to_vec();
        let mut asks = asks.iter();
        for row in rows {
            let asks = asks.by_ref().take(row.asks as usize);
            let asks = asks.map(|ask| (ask.column, part(ask.offset, ask.len))).collect();
            formed.push((part(row.offset, row.len), asks));
        }
        eol = slice.eol;
        at += slice.consumed;
        let done = status == Status::Ended || slice.rows_used == 0 && status != Status::Ask;
        if done {
            break;
        }
        if status == Status::Ask {
            let line = data[at..].iter().position(|byte| *byte == b'\n');
            at += line.map_or(data.len() - at, |line| line + 1);
            formed.push(Default::default());
        }
    }
    Ok(formed)
}

/// Fails every allocation of a plan for the case and of its rows; returns how many there are.
fn exhaust(case: &IndexCase, element_align: u8, formats: Form, pack: bool) -> usize {
    let data = data(formats, &case.values, "happy");
    let what = format!("type {} as {formats:?}, pages: {pack}", case.oid);
    every_allocation(&what, |gate| {
        let plan = plan(gate, case, element_align, formats);
        if plan.is_null() {
            return Err(Refused);
        }
        let formed = form(gate, plan, &data, pack);
        // SAFETY: made above, not used again.
        gate.call(|| unsafe { pgsluice_plan_free(plan) });
        formed
    })
}

#[test]
fn rows_of_every_type_in_every_format() {
    for (n, case) in cases().iter().enumerate() {
        for form in [Form::Csv, Form::Text, Form::Binary] {
            let allocations = exhaust(case, 0, form, n % 2 == 0);
            assert!(allocations > 8, "{} {form:?}: {allocations}", case.oid);
            if case.array > 0 && form != Form::Binary {
                exhaust(&case.arrays(), case.align, form, n % 2 == 1);
            }
        }
    }
}

/// Stray and open quotes, line ends within quotes, more fields than columns: the scanner goes byte
/// by byte.
#[test]
fn records_out_of_the_ordinary() {
    let text = case(25, 0, -1, -1, 4, &[]);
    let fields = ",".repeat(3000);
    for data in [
        "1,a\"b\"c,sad\n2,\"x\"y\"z\",sad\r\n3,\"\"\"\",sad\n",
        "1,\"never closed,sad\n",
        "1,\"a\nb\",happy\n2,\"c\"\"d\",happy",
        "1,2\n\\.\n",
        &format!("1,a,sad\n{fields}\n2,b,sad\n"),
    ] {
        every_allocation(data, |gate| {
            let plan = plan(gate, &text, 0, Form::Csv);
            if plan.is_null() {
                return Err(Refused);
            }
            let formed = form(gate, plan, data.as_bytes(), false);
            // SAFETY: made above, not used again.
            gate.call(|| unsafe { pgsluice_plan_free(plan) });
            formed
        });
    }
}

/// Records that are left to the next call, because their page is not full, are scanned as at first:
/// as long as no line end is known, none within quotes is counted.
#[test]
fn records_that_are_left_are_scanned_as_at_first() {
    const ARENA: usize = 64 << 10;
    let data = b"1,\"a\nb\",sad\n2,\"c\nd\",happy\n3";
    let mut gate = Gate::new(None, false);
    let text = case(25, 0, -1, -1, 4, &[]);
    let plan = plan(&mut gate, &text, 0, Form::Csv);
    let mut arena = vec![0u64; ARENA / 8];
    let mut rows: Vec<Row> = Vec::with_capacity(ROOM);
    let mut asks: Vec<AskDef> = vec![AskDef::default(); ROOM];
    let bare = slice_of(data, &mut arena, &mut rows, &mut asks);
    let mut slice = Slice { last: false, pack: true, page_limit: 1, ..bare };
    // SAFETY: the plan is live, and the slice's pointers are valid for the lengths beside them.
    let status = gate.call(|| unsafe { pgsluice_form(plan, &mut slice) });
    assert_eq!((status, slice.rows_used, slice.consumed), (Status::More, 0, 0));
    assert_eq!((slice.lines, slice.eol), (0, 0));
    (slice.input_len, slice.last, slice.arena_used) = (data.len() - 1, true, 0);
    // SAFETY: as above.
    let status = gate.call(|| unsafe { pgsluice_form(plan, &mut slice) });
    assert_eq!((status, slice.rows_used, slice.consumed), (Status::More, 2, data.len() - 1));
    // The first record counts as one line, the second one as two.
    assert_eq!((slice.lines, slice.eol), (3, 1));
    // SAFETY: made above, not used again.
    gate.call(|| unsafe { pgsluice_plan_free(plan) });
}

/// For random bytes, nothing beyond their end is read, which a memory checker can verify.
#[test]
fn random_bytes() {
    const GOOD: &[u8] = b"1,\"a \"\"b\"\"\",happy\n2,\"{1,NULL,3}\",sad\n3,,sad\n";
    let mut gate = Gate::new(None, false);
    let array = case(1007, 0, -1, -1, 4, &[]);
    let plan = plan(&mut gate, &array, 4, Form::Csv);
    let mut seed = 12345u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    for _ in 0..2000 {
        let mut data = GOOD.repeat(1 + random(3));
        for _ in 0..random(6) {
            let at = random(data.len());
            match random(3) {
                0 => data[at] = b"\",\n\r{}x0-."[random(10)],
                1 => data.truncate(at),
                _ => drop(data.remove(at)),
            }
            if data.is_empty() {
                data.push(b',');
            }
        }
        // The memory ends where the data ends.
        form(&mut gate, plan, &data.into_boxed_slice(), false).unwrap();
    }
    // SAFETY: made above, not used again.
    gate.call(|| unsafe { pgsluice_plan_free(plan) });
}
