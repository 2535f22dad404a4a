//! The names in the header as UTF-8, whatever encoding the files have.

use super::conn::Conn;
use crate::error::Error;
use crate::input::{HeaderLine, Reader};
use crate::options::{Header, Options};

/// Returns the header. If names are taken from it, the server converts its fields.
///
/// # Errors
///
/// A field is not valid in the files' encoding, or the connection is lost.
pub fn read(
    conn: &mut Conn,
    reader: &Reader,
    options: &Options,
) -> Result<Option<HeaderLine>, Error> {
    let Some(mut header) = reader.header().cloned() else { return Ok(None) };
    let plain = header.fields.iter().flatten().all(|field| field.is_ascii());
    let encoding = options.input.encoding.as_deref();
    let Some(encoding) = encoding.filter(|_| !plain && options.input.header != Header::Ignore)
    else {
        return Ok(Some(header));
    };
    let hex = |field: &Vec<u8>| {
        format!("\"{}\"", field.iter().map(|b| format!("{b:02x}")).collect::<String>())
    };
    let fields: Vec<String> = header.fields.iter().flatten().map(hex).collect();
    let rows = conn
        .query(
            "SELECT pg_catalog.convert_from(pg_catalog.decode(f.hex, 'hex'), $2) \
             FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS f (hex, at) ORDER BY f.at",
            &[Some(&format!("{{{}}}", fields.join(","))), Some(encoding)],
        )
        .map_err(|e| e.at(header.place()))?;
    for (field, row) in header.fields.iter_mut().flatten().zip(rows) {
        *field = row[0].clone().unwrap_or_default().into_bytes();
    }
    Ok(Some(header))
}
