//! Reads the first record of a file as its header.

use super::{InputFile, CHUNK, MAX_HELD};
use crate::causes::{instead, is_it};
use crate::error::{Error, Place};
use crate::input::lines_of_first;
use crate::stray;
use pgsluice_core::scan::{Dialect, FieldKind, Format, Next, Record, Scanner};

/// The header of a file that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// the file, as the user named it
    pub file: String,
    /// the line in which it begins, from 1
    pub line: u64,
    /// its bytes in the file, including the line end
    pub bytes: Vec<u8>,
    /// its fields; `None` for NULL
    pub fields: Vec<Option<Vec<u8>>>,
}

impl HeaderLine {
    /// Where it is.
    pub fn place(&self) -> Place {
        Place { file: self.file.clone(), line: Some(self.line), ..Place::default() }
    }
}

impl InputFile {
    /// Removes the first record, and returns it as the header.
    pub(in crate::input) fn take_header(
        &mut self,
        dialect: &Dialect,
    ) -> Result<Option<HeaderLine>, Error> {
        let mut record = Record::default();
        let mut target = CHUNK;
        let line = self.passed.lines + 1;
        loop {
            let mut scanner = Scanner::new(&self.held, self.ended, dialect, self.eol);
            match scanner.next(&mut record) {
                Ok(Next::Record) => {
                    let field = |i| match record.field(&self.held, i) {
                        (FieldKind::Null, _) => None,
                        (_, value) => Some(value.to_vec()),
                    };
                    let fields = (0..record.len()).map(field).collect();
                    self.eol = scanner.eol();
                    // The line ends within its quotes are counted once the line end is known.
                    self.passed.lines +=
                        lines_of_first(&self.held[..record.end], dialect, self.eol);
                    let bytes = self.held[..record.end].to_vec();
                    self.held.pass(bytes.len());
                    self.offset += bytes.len() as u64;
                    return Ok(Some(HeaderLine { file: self.name.clone(), line, bytes, fields }));
                }
                Ok(Next::End) => return Ok(None),
                Ok(Next::Partial) if target < MAX_HELD => target *= 2,
                Ok(Next::Partial) => {
                    return Err(Error::new(format!("{}: the header line has no end", self.name))
                        .with_hint("is a quote left open in the first line?"))
                }
                Err(fault) => {
                    let csv = dialect.format == Format::Csv;
                    let message = fault.message(csv, "");
                    let place =
                        Place { file: self.name.clone(), line: Some(line), ..Place::default() };
                    let (start, end) = scanner.skip_record().unwrap_or_default();
                    let error = Error::data(message).at(place);
                    let error = stray::explained(error, fault, &self.held[start..end], dialect);
                    return Err(match instead(&self.held, self.ended, dialect) {
                        Some(delimiter) => error.with_hint(is_it(&delimiter)),
                        None => error,
                    });
                }
            }
            self.fill(target)?;
        }
    }
}
