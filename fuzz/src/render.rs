//! From the wire form back to text, as the server writes it under
//! `DateStyle = ISO`, `TimeZone = UTC` and `IntervalStyle = postgres`.

use std::net::{Ipv4Addr, Ipv6Addr};

use pgsluice_core::shape::Type;

/// The text of a value; `None` for the types that are not written here.
pub fn render(ty: &Type, wire: &[u8]) -> Option<Vec<u8>> {
    let text = match ty {
        Type::Bool => (if wire[0] == 1 { "t" } else { "f" }).into(),
        Type::Int2 => i16::from_be_bytes(number(wire)).to_string(),
        Type::Int4 => i32::from_be_bytes(number(wire)).to_string(),
        Type::Int8 => i64::from_be_bytes(number(wire)).to_string(),
        Type::Oid => u32::from_be_bytes(number(wire)).to_string(),
        Type::Float4 => float(&f32::from_be_bytes(number(wire)).to_string()),
        Type::Float8 => float(&format!("{:e}", f64::from_be_bytes(number(wire)))),
        Type::Numeric(_) => numeric(wire),
        Type::Date => date(i32::from_be_bytes(number(wire)))?,
        Type::Time(_) => clock(i64::from_be_bytes(number(wire))),
        Type::TimeTz(_) => {
            let zone = zone(-i32::from_be_bytes(number(&wire[8..])));
            clock(i64::from_be_bytes(number(&wire[..8]))) + &zone
        }
        Type::Timestamp(_) => timestamp(i64::from_be_bytes(number(wire)), "")?,
        Type::TimestampTz(_) => timestamp(i64::from_be_bytes(number(wire)), "+00")?,
        Type::Uuid => {
            let hex = hex(wire);
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            parts.join("-")
        }
        Type::Macaddr | Type::Macaddr8 => {
            wire.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
        }
        Type::Inet | Type::Cidr => network(wire),
        Type::Bytea => format!("\\x{}", hex(wire)),
        Type::Bit(_) | Type::Varbit(_) => {
            let bits = u32::from_be_bytes(number(&wire[..4])) as usize;
            (0..bits).map(|i| char::from(b'0' + (wire[4 + i / 8] >> (7 - i % 8) & 1))).collect()
        }
        Type::Jsonb => return Some(wire[1..].to_vec()),
        Type::Json | Type::Text | Type::Varchar(_) | Type::Bpchar(_) | Type::Name => {
            return Some(wire.to_vec());
        }
        Type::Enum(_) => return Some(wire.to_vec()),
        _ => return None,
    };
    Some(text.into_bytes())
}

fn number<const N: usize>(wire: &[u8]) -> [u8; N] {
    wire.try_into().expect("as many bytes as the type has")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Rust's words for what is not finite, in the server's spelling.
fn float(text: &str) -> String {
    text.replace("inf", "Infinity")
}

/// `numeric_out`.
fn numeric(wire: &[u8]) -> String {
    let word = |i: usize| u16::from_be_bytes(number(&wire[2 * i..2 * i + 2]));
    let (count, weight, sign, scale) =
        (i32::from(word(0)), i32::from(word(1) as i16), word(2), word(3));
    let digits = |from: i32, to: i32| -> String {
        let digit = |i| if (0..count).contains(&i) { word(4 + i as usize) } else { 0 };
        (from..to).map(|i| format!("{:04}", digit(i))).collect()
    };
    let sign = match sign {
        0xC000 => return "NaN".into(),
        0xD000 => return "Infinity".into(),
        0xF000 => return "-Infinity".into(),
        0x4000 => "-",
        _ => "",
    };
    let whole = digits(0, weight + 1);
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let scale = usize::from(scale);
    if scale == 0 {
        return format!("{sign}{whole}");
    }
    let fraction = digits(weight + 1, weight + 1 + scale.div_ceil(4) as i32);
    format!("{sign}{whole}.{}", &fraction[..scale])
}

/// Days since 2000-01-01 (`date_out`).
fn date(days: i32) -> Option<String> {
    match days {
        i32::MAX => return Some("infinity".into()),
        i32::MIN => return Some("-infinity".into()),
        _ => {}
    }
    let (year, month, day) = civil(i64::from(days));
    let (year, era) = if year <= 0 { (1 - year, " BC") } else { (year, "") };
    Some(format!("{year:04}-{month:02}-{day:02}{era}"))
}

/// The proleptic Gregorian date of a day, by counting in 400-year cycles that
/// begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let day = days + 730_425; // from 0000-03-01
    let (cycle, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * cycle + year + next, month, day)
}

/// Microseconds of a day.
fn clock(micros: i64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match fraction {
        0 => time,
        _ => format!("{time}.{fraction:06}").trim_end_matches('0').into(),
    }
}

/// Seconds east of UTC.
fn zone(east: i32) -> String {
    let (sign, s) = (if east < 0 { '-' } else { '+' }, east.abs());
    match (s / 60 % 60, s % 60) {
        (0, 0) => format!("{sign}{:02}", s / 3600),
        (minutes, 0) => format!("{sign}{:02}:{minutes:02}", s / 3600),
        (minutes, seconds) => format!("{sign}{:02}:{minutes:02}:{seconds:02}", s / 3600),
    }
}

/// Microseconds since 2000-01-01 (`timestamp_out`).
fn timestamp(micros: i64, zone: &str) -> Option<String> {
    const DAY: i64 = 86_400_000_000;
    match micros {
        i64::MAX => return Some("infinity".into()),
        i64::MIN => return Some("-infinity".into()),
        _ => {}
    }
    let day = date(i32::try_from(micros.div_euclid(DAY)).ok()?)?;
    let time = clock(micros.rem_euclid(DAY));
    Some(match day.strip_suffix(" BC") {
        Some(day) => format!("{day} {time}{zone} BC"),
        None => format!("{day} {time}{zone}"),
    })
}

/// `network_out`: the netmask is left out of an address of its full length.
fn network(wire: &[u8]) -> String {
    let (bits, is_cidr, address) = (wire[1], wire[2] == 1, &wire[4..]);
    let shown = match <[u8; 4]>::try_from(address) {
        Ok(v4) => Ipv4Addr::from(v4).to_string(),
        Err(_) => Ipv6Addr::from(number::<16>(address)).to_string(),
    };
    if usize::from(bits) == 8 * address.len() && !is_cidr {
        return shown;
    }
    format!("{shown}/{bits}")
}
