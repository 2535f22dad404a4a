//! A range of a file that is shared.

use super::InputFile;
use crate::error::Error;
use crate::input::Counts;
use crate::source::Span;

impl InputFile {
    /// What follows belongs to this range of the file; its head has been passed over.
    ///
    /// # Errors
    ///
    /// The head has another length than when the range was found.
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
