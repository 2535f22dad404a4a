//! The type families: nothing panics, a value has the length it says, a refusal
//! leaves no trace, and what was read reads the same once it is written out in
//! the form that the server itself writes.

use pgsluice_core::error::Refusal;
use pgsluice_core::scan::valid_utf8;
use pgsluice_core::shape::{ArrayOf, EnumLabels, Env, Type};
use pgsluice_core::sink::{PgCopySink, RowSink};
use pgsluice_core::types;

use crate::render::render;

/// The types of each family, by the name of its target.
pub fn family(name: &str) -> Vec<Type> {
    let numeric = |precision: i32, scale: i32| Type::Numeric(((precision << 16) | scale) + 4);
    let array = |element, element_oid| {
        Type::Array(Box::new(ArrayOf { element, element_oid, delimiter: b',' }))
    };
    match name {
        "array" => vec![array(Type::Int4, 23), array(Type::Text, 25), array(Type::Bool, 16)],
        "bits" => vec![Type::Bit(Some(8)), Type::Varbit(None), Type::Varbit(Some(9)), Type::Bytea],
        "datetime" => vec![
            Type::Date,
            Type::Timestamp(-1),
            Type::TimestampTz(-1),
            Type::Time(-1),
            Type::TimeTz(-1),
            Type::Timestamp(3),
        ],
        "integer" => vec![Type::Int2, Type::Int4, Type::Int8, Type::Oid, Type::Bool, Type::Money],
        "interval" => vec![Type::Interval(-1)],
        "json" => vec![Type::Json, Type::Jsonb],
        "network" => vec![Type::Inet, Type::Cidr, Type::Macaddr, Type::Macaddr8, Type::Uuid],
        "numeric" => vec![Type::Numeric(-1), numeric(10, 2), numeric(5, 0), Type::Numeric(-1)],
        "float" => vec![Type::Float8, Type::Float4],
        "text" => vec![
            Type::Varchar(Some(5)),
            Type::Bpchar(Some(5)),
            Type::Bpchar(None),
            Type::Name,
            Type::Enum(EnumLabels::new(vec![(b"happy".to_vec(), 1), ("träge".into(), 2)])),
        ],
        _ => panic!("no family is called {name}"),
    }
}

/// UTC and C: the settings under which the core reads most.
fn env() -> Env {
    Env { utc: true, money_c: true, ..Env::default() }
}

/// The value's wire form, its length taken off and checked.
pub fn encode(ty: &Type, text: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut sink = PgCopySink::new(1);
    sink.begin();
    sink.null();
    sink.end();
    let before = sink.bytes().to_vec();
    sink.begin();
    if let Err(refusal) = types::put(ty, text, &env(), &mut sink) {
        sink.undo();
        assert_eq!(sink.bytes(), before, "a refusal leaves no trace");
        return Err(refusal);
    }
    sink.end();
    let row = &sink.bytes()[before.len()..];
    let length = i32::from_be_bytes(row[2..6].try_into().expect("a length"));
    assert_eq!(length as usize, row.len() - 6, "a value has the length it says");
    Ok(row[6..].to_vec())
}

/// Checks every rule on one value.
pub fn check(ty: &Type, text: &[u8]) {
    let wire = encode(ty, text);
    if let (Ok(wire), Some(written)) = (&wire, wire.as_ref().ok().and_then(|w| render(ty, w))) {
        let again = encode(ty, &written);
        let (text, written) = (String::from_utf8_lossy(text), String::from_utf8_lossy(&written));
        assert_eq!(again.as_ref(), Ok(wire), "{ty:?}: {text:?} is written {written:?}");
    }
    match ty {
        Type::Int2 | Type::Int4 | Type::Int8 => as_rust_reads(ty, text, &wire),
        Type::Json => as_serde_judges(ty, text, &wire),
        Type::Jsonb => {
            as_serde_judges(ty, text, &wire);
            crate::jsonb::check(text, wire.map(|_| ()));
        }
        _ => {}
    }
}

/// Plain digits are what `str::parse` takes them for.
fn as_rust_reads(ty: &Type, text: &[u8], wire: &Result<Vec<u8>, Refusal>) {
    let Some(value) = std::str::from_utf8(text).ok().and_then(|t| t.parse::<i64>().ok()) else {
        return;
    };
    let bytes = match ty {
        Type::Int2 => i16::try_from(value).map(|v| v.to_be_bytes().to_vec()),
        Type::Int4 => i32::try_from(value).map(|v| v.to_be_bytes().to_vec()),
        _ => Ok(value.to_be_bytes().to_vec()),
    };
    assert_eq!(*wire, bytes.map_err(|_| Refusal::Range), "{ty:?}: {value}");
}

/// What is accepted is JSON, and JSON is not called bad syntax.
fn as_serde_judges(ty: &Type, text: &[u8], wire: &Result<Vec<u8>, Refusal>) {
    // serde_json has a limit of 128 levels.
    if text.iter().filter(|c| matches!(c, b'[' | b'{')).count() > 100 {
        return;
    }
    let json = serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
    let shown = String::from_utf8_lossy(text);
    match wire {
        Ok(_) => assert!(json, "{ty:?} accepts {shown:?}"),
        // jsonb refuses some escapes that the grammar allows.
        Err(Refusal::Syntax) if *ty == Type::Json => assert!(!json, "{ty:?} refuses {shown:?}"),
        Err(_) => {}
    }
}

/// The fuzz target of a family: one byte chooses the type, the rest is the value.
pub fn target(name: &str, bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else { return };
    let types = family(name);
    let valid = valid_utf8(text).map_or_else(|bad| bad.offset, |()| text.len());
    check(&types[usize::from(*choice) % types.len()], &text[..valid]);
}
