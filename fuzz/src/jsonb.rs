//! `jsonb` in its stored form, read back by the layout of `src/include/utils/jsonb.h`
//! alone and held against what `serde_json` reads in the text.

use pgsluice_core::error::Refusal;
use pgsluice_core::types::jsonb::JsonbBuilder;
use serde_json::{Map, Number, Value};

/// The stored form is made of what the validator takes, and says the same as the text.
pub fn check(text: &[u8], validated: Result<(), Refusal>) {
    let mut builder = JsonbBuilder::default();
    // Dirt of another value must not show.
    let _ = builder.build(b"{\"\\u0061\":[1,\"x\\ny\"],\"b\":{}");
    let built = builder.build(text);
    assert_eq!(built.map(|_| ()), validated);
    let (Ok(stored), Ok(value)) = (built, serde_json::from_slice::<Value>(text)) else { return };
    let (read, scalar) = container(stored);
    let read = match (scalar, read) {
        (true, Value::Array(mut one)) => one.remove(0),
        (_, read) => read,
    };
    assert!(same(&read, &value), "{} is stored as {read}", String::from_utf8_lossy(text));
}

/// Equal, but for the rounding of numbers.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= a.abs().max(b.abs()) * 1e-12 + 1e-300
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && same(a, b))
        }
        _ => a == b,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A JsonbContainer's value, and whether it stands for a scalar.
fn container(bytes: &[u8]) -> (Value, bool) {
    let head = word(bytes, 0);
    let (count, is_object) = ((head & 0x0fff_ffff) as usize, head & 0x2000_0000 != 0);
    let entries = if is_object { 2 * count } else { count };
    let first = 4 + 4 * entries;
    let mut end = first;
    let mut parts = Vec::new();
    for i in 0..entries {
        let entry = word(bytes, 4 + 4 * i);
        let length = (entry & 0x0fff_ffff) as usize;
        assert_eq!(entry & 0x8000_0000 != 0, i % 32 == 0, "an offset for each stride");
        let next = if i % 32 == 0 { first + length } else { end + length };
        parts.push(part(bytes, entry & 0x7000_0000, end, next));
        end = next;
    }
    assert_eq!(end, bytes.len(), "nothing behind the last value");
    if !is_object {
        return (Value::Array(parts), head & 0x1000_0000 != 0);
    }
    let values = parts.split_off(count);
    let keys: Vec<String> = parts.iter().map(|k| k.as_str().expect("a key").to_owned()).collect();
    let ascend =
        |pair: &[String]| (pair[0].len(), pair[0].as_bytes()) < (pair[1].len(), pair[1].as_bytes());
    assert!(keys.windows(2).all(ascend), "keys ascend: {keys:?}");
    (Value::Object(keys.into_iter().zip(values).collect::<Map<_, _>>()), false)
}

/// The value of a JEntry's type in `start..end`.
fn part(bytes: &[u8], kind: u32, start: usize, end: usize) -> Value {
    let aligned = start.next_multiple_of(4);
    let padded = || {
        assert!(bytes[start..aligned].iter().all(|b| *b == 0), "padding is zero");
        &bytes[aligned..end]
    };
    match kind {
        0x0000_0000 => Value::String(String::from_utf8(bytes[start..end].to_vec()).expect("UTF-8")),
        0x1000_0000 => Value::Number(number(padded())),
        0x5000_0000 => container(padded()).0,
        scalar => {
            assert_eq!(start, end, "no bytes for {scalar:x}");
            match scalar {
                0x2000_0000 => Value::Bool(false),
                0x3000_0000 => Value::Bool(true),
                0x4000_0000 => Value::Null,
                _ => panic!("no type {scalar:x}"),
            }
        }
    }
}

/// A `numeric` with a header of four bytes.
fn number(bytes: &[u8]) -> Number {
    assert_eq!(word(bytes, 0), (bytes.len() as u32) << 2, "the varlena's length");
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let head = half(4);
    let (negative, weight, digits) = if head & 0x8000 != 0 {
        // Seven bits with a sign.
        (head & 0x2000 != 0, i32::from(((head & 0x7f) as i16) << 9 >> 9), 6)
    } else {
        (head & 0x4000 != 0, i32::from(half(6) as i16), 8)
    };
    let mut text = String::from(if negative { "-0." } else { "0." });
    for at in (digits..bytes.len()).step_by(2) {
        text += &format!("{:04}", half(at));
    }
    let exponent = 4 * (weight + 1);
    let value: f64 = format!("{text}0e{exponent}").parse().expect("a number");
    Number::from_f64(value).expect("finite, since serde_json read it")
}
