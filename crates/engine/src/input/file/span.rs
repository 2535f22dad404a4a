//! Reads a range of a file that several machines share.

use super::InputFile;
use crate::error::Error;
use crate::input::Counts;
use crate::source::Span;

impl InputFile {
    /// Continues with this range of the file. The head of the file has been skipped.
    ///
    /// # Errors
    ///
    /// The head has another length than when the range was determined.
    pub(in crate::input) fn go_to(&mut self, span: &Span) -> Result<(), Error> {
        if self.offset != span.head {
            let changed = format!("{} has changed: its first record is elsewhere", self.name);
            return Err(Error::new(changed).with_hint("load it again when nothing writes to it"));
        }
        self.offset = span.start;
        self.eol = span.eol;
        self.passed = Counts::default();
        self.before = Counts { records: span.records, lines: span.lines };
        Ok(())
    }
}
