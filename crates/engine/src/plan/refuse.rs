//! What a method that is asked for by name cannot do.

use crate::error::Error;
use crate::options::{FileFormat, Method, Options};
use crate::session::catalog::ServerFacts;

/// What is wrong with an extension that is there.
pub(super) fn unusable(fault: &str) -> String {
    format!("the extension pgsluice is in this database and cannot be used: {fault}")
}

/// Whether the method takes such a file and such options, on this server.
pub(super) fn refuse(server: &ServerFacts, options: &Options) -> Result<(), Error> {
    let asked = options.target.method;
    let as_text =
        [Method::Insert, Method::InsertBatch, Method::CopyCsv, Method::CopyText, Method::Staged];
    if options.input.format == FileFormat::Binary && as_text.contains(&asked) {
        return Err(Error::new(format!("a binary file cannot be loaded by {asked}"))
            .with_hint("take copy-binary, or another format"));
    }
    let inserts = matches!(asked, Method::Insert | Method::InsertBatch);
    if inserts && (options.target.filter.is_some() || options.input.encoding.is_some()) {
        return Err(Error::new(format!("{asked} takes neither --where nor --encoding"))
            .with_hint("take one of the COPY methods"));
    }
    let default = matches!(&options.input.format, FileFormat::Delimited(d) if d.default.is_some());
    if asked == Method::Staged && default {
        return Err(Error::new("staged cannot take a marker of defaults"));
    }
    if default && !inserts && server.major() < 16 {
        let major = server.major();
        return Err(Error::new(format!("COPY of PostgreSQL {major} knows no marker of defaults"))
            .with_hint("insert and insert-batch do"));
    }
    if let (Method::Extension, Some(fault)) = (asked, &server.extension_fault) {
        return Err(Error::new(unusable(fault))
            .with_hint("install it for this server anew, or take another method"));
    }
    if asked == Method::Extension && server.extension.is_none() {
        return Err(Error::new("the extension pgsluice is not in this database")
            .with_hint("CREATE EXTENSION pgsluice, or take another method"));
    }
    Ok(())
}
