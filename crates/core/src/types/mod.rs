//! The types. Each family has one file, which parses a value, checks its range and writes it to the
//! sink.
//!
//! A type reads a text like the server's input function, if the result is certain in every
//! supported major version. If not, it returns [`Refusal::Ask`].

pub mod array;
pub mod bits;
pub mod boolean;
pub mod bytea;
mod calendar;
mod catalog;
pub mod datetime;
pub mod float;
pub mod integer;
pub mod interval;
pub mod json;
pub mod jsonb;
pub mod money;
pub mod network;
pub mod numeric;
pub mod receive;
pub mod text;
pub mod uuid;

use crate::error::Refusal;
use crate::shape::{Env, Type};
use crate::sink::RowSink;

/// Reads `text` as a value of `ty` and writes it into the sink.
///
/// `text` must be valid UTF-8 without NUL bytes; the caller checks whole chunks. The server's
/// encoding must be UTF-8, too, unless [`Env::single_byte`] is set.
///
/// # Errors
///
/// A [`Refusal`]; the row must be undone.
#[inline(always)]
pub fn put<S: RowSink>(ty: &Type, text: &[u8], env: &Env, sink: &mut S) -> Result<(), Refusal> {
    match ty {
        Type::Text => sink.put_bytes(text),
        Type::Int4 => sink.put_i32(integer::int4(text)?),
        Type::Int2 => sink.put_i16(integer::int2(text)?),
        Type::Bool => sink.put_bool(boolean::boolean(text)?),
        _ => return put_read(ty, text, env, sink),
    }
    Ok(())
}

/// The types whose reading costs more than a function call.
fn put_read<S: RowSink>(ty: &Type, text: &[u8], env: &Env, sink: &mut S) -> Result<(), Refusal> {
    match ty {
        Type::Int8 => sink.put_i64(integer::int8(text)?),
        Type::Float8 => sink.put_f64(float::float8(text)?),
        Type::Numeric(typmod) => numeric::numeric(text, *typmod, |n| sink.put_numeric(n))?,
        Type::Varchar(limit) if !uncounted(text, env) => {
            sink.put_bytes(text::varchar(text, *limit)?);
        }
        Type::Date => sink.put_i32(datetime::date(text)?),
        Type::Timestamp(p) => sink.put_i64(datetime::timestamp(text, *p)?),
        Type::TimestampTz(p) => sink.put_i64(datetime::timestamptz(text, *p, env)?),
        Type::Jsonb if !converted(text, env) => sink.put_jsonb(text)?,
        _ => return put_rarer(ty, text, env, sink),
    }
    Ok(())
}

/// Whether characters cannot be counted: counts assume UTF-8.
#[inline]
fn uncounted(text: &[u8], env: &Env) -> bool {
    env.single_byte && !text.is_ascii()
}

/// Whether there may be escapes such as `\u00e9`, which the server converts to its encoding.
#[inline]
fn converted(text: &[u8], env: &Env) -> bool {
    env.single_byte && text.contains(&b'\\')
}

/// The types that are too rare for the code of the hot path.
fn put_rarer<S: RowSink>(ty: &Type, text: &[u8], env: &Env, sink: &mut S) -> Result<(), Refusal> {
    match ty {
        Type::Oid => sink.put_u32(integer::oid(text)?),
        Type::Float4 => sink.put_f32(float::float4(text)?),
        Type::Money if env.money_c => sink.put_i64(money::money(text)?),
        Type::Bpchar(length) if !uncounted(text, env) => text::bpchar(text, *length, sink)?,
        Type::Name => sink.put_name(text::name(text)?),
        Type::Bytea => sink.put_bytes(&bytea::bytea(text)?),
        Type::Time(p) => sink.put_i64(datetime::time(text, *p)?),
        Type::TimeTz(p) => {
            let (micros, west) = datetime::timetz(text, *p, env)?;
            sink.put_timetz(micros, west);
        }
        Type::Interval(typmod) => {
            let i = interval::interval(text, *typmod)?;
            sink.put_interval(i.micros, i.days, i.months);
        }
        Type::Uuid => sink.put_uuid(uuid::uuid(text)?),
        Type::Json => {
            json::json(text)?;
            sink.put_bytes(text);
        }
        Type::Inet => {
            let n = network::inet(text)?;
            sink.put_inet(n.address(), n.netmask, false);
        }
        Type::Cidr => {
            let n = network::cidr(text)?;
            sink.put_inet(n.address(), n.netmask, true);
        }
        Type::Macaddr => sink.put_macaddr(network::macaddr(text)?),
        Type::Macaddr8 => sink.put_macaddr8(network::macaddr8(text)?),
        Type::Bit(length) => {
            let (bits, bytes) = bits::bit(text, *length)?;
            sink.put_bits(bits, &bytes);
        }
        Type::Varbit(limit) => {
            let (bits, bytes) = bits::varbit(text, *limit)?;
            sink.put_bits(bits, &bytes);
        }
        Type::Enum(labels) => {
            let oid = labels.oid(text).ok_or(Refusal::Syntax)?;
            sink.put_enum(text, oid);
        }
        Type::Array(of) => array::array(of, text, env, sink)?,
        _ => return Err(Refusal::Ask),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::PgCopySink;

    /// `\u00e9` is one byte in LATIN1 and two in UTF-8. Only the server can convert it.
    #[test]
    fn escapes_of_jsonb_are_the_servers_to_convert() {
        let (utf8, latin) = (Env::default(), Env { single_byte: true, ..Env::default() });
        let put = |text: &[u8], env| put(&Type::Jsonb, text, env, &mut PgCopySink::new(1));
        assert_eq!(put(b"{\"a\": \"\\u00e9\"}", &utf8), Ok(()));
        assert_eq!(put(b"{\"a\": \"\\u00e9\"}", &latin), Err(Refusal::Ask));
        assert_eq!(put(b"{\"a\": \"\xe9\"}", &latin), Ok(()));
    }
}
