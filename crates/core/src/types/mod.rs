//! One file for each family of PostgreSQL types: parse, check the range, put.

mod integer;

use crate::error::Refusal;
use crate::shape::{Env, Type};
use crate::sink::RowSink;

/// Reads `text` as a value of `ty` and puts it into the sink.
///
/// `text` is valid UTF-8 without NUL bytes; the caller checks whole chunks.
///
/// # Errors
///
/// A [`Refusal`]; nothing was put, or the row must be undone.
#[inline]
pub fn put<S: RowSink>(ty: &Type, text: &[u8], _env: &Env, sink: &mut S) -> Result<(), Refusal> {
    match ty {
        Type::Text => sink.put_bytes(text),
        Type::Int4 => sink.put_i32(integer::int4(text)?),
        Type::Int8 => sink.put_i64(integer::int8(text)?),
        Type::Int2 => sink.put_i16(integer::int2(text)?),
        _ => return Err(Refusal::Ask),
    }
    Ok(())
}
