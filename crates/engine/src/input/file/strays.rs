//! Where records end after a stray quote.

use super::{Cutter, InputFile, Layout, MAX_RECORD};
use crate::error::{Error, Place};
use pgsluice_core::scan::{whole_records, Dialect, Eol, Splitter};

impl InputFile {
    /// Where a stray quote does not open or close anything, the cutter is lost after it, and the
    /// records are walked through to where it can go on.
    ///
    /// `giant` is the cutter as it was before the bytes from an offset on, if they begin within a
    /// record that passes in pieces.
    pub(super) fn find_again(
        &mut self,
        dialect: &Dialect,
        stray: bool,
        giant: Option<(Splitter, usize)>,
    ) -> Result<(), Error> {
        let Some(Cutter::Lines(splitter)) = &self.cutter else { return Ok(()) };
        // The file ends within quotes.
        let open = self.ended && splitter.in_quote();
        self.stray[0] |= open;
        self.lost |= stray || open;
        if let (Some((mut splitter, from)), true) = (giant, self.lost) {
            let bytes = self.held[from..].iter().map(std::slice::from_ref);
            let first = bytes.map(|byte| splitter.feed_naive(byte));
            match first.into_iter().find(|cuts| cuts.stray || cuts.first.is_some()) {
                Some(cuts) if !cuts.stray => {}
                _ => return Err(self.stray_in_giant()),
            }
        }
        if !self.lost || self.giant.is_some() {
            return Ok(());
        }
        let (end, eol) = whole_records(&self.held, self.ended, dialect, self.eol);
        self.cut = end;
        if end > 0 {
            let mut splitter = Splitter::new(dialect, eol).watching();
            self.lost = splitter.feed(&self.held[end..]).stray;
            self.cutter = Some(Cutter::Lines(splitter));
        }
        Ok(())
    }

    fn stray_in_giant(&self) -> Error {
        let offset = Some(self.offset - self.giant.unwrap_or(0));
        let place = Place { file: self.name.clone(), offset, ..Place::default() };
        Error::new("a record that does not fit in memory has a stray quote")
            .at(place)
            .with_hint("is a quote left open there? --stray-quotes copy reads it as COPY does")
    }

    /// Whether the record that is too long to be held may pass in pieces. Not if the quotes in
    /// which it breaks off are never closed, or not at the end of a field: then its first line is
    /// the record.
    pub(super) fn passes(&mut self, layout: &Layout) -> Result<bool, Error> {
        let strict = layout.dialect().is_some_and(Dialect::strict);
        let (Some(Cutter::Lines(splitter)), true) = (&self.cutter, strict) else { return Ok(true) };
        if self.lost || !splitter.in_quote() {
            return Ok(!self.lost);
        }
        let (mut splitter, mut length, mut ends) = (splitter.clone(), self.held.len() as u64, None);
        let looked = self.source.look(|block| {
            length += block.len() as u64;
            ends = splitter.field_ends(block);
            ends.is_some() || length > MAX_RECORD
        });
        looked.map_err(|e| self.unreadable(&e))?;
        Ok(ends.unwrap_or(!splitter.in_quote()))
    }

    /// Where the first line ends of what is held, which is not as long as a record may be.
    pub(super) fn first_line(&mut self) -> Result<usize, Error> {
        let line_end = |c: &u8| match self.eol {
            Eol::Unknown => matches!(c, b'\r' | b'\n'),
            Eol::Cr => *c == b'\r',
            Eol::Nl | Eol::CrNl => *c == b'\n',
        };
        let at = self.held.iter().position(line_end).ok_or_else(|| self.stray_in_giant())?;
        let crlf = self.held[at..].starts_with(b"\r\n");
        if self.eol == Eol::Unknown {
            self.eol = match self.held[at] {
                b'\n' => Eol::Nl,
                _ if crlf => Eol::CrNl,
                _ => Eol::Cr,
            };
        }
        // What comes next is cut from its start.
        (self.cutter, self.seen, self.lost, self.stray[0]) = (None, 0, false, true);
        Ok(at + 1 + usize::from(crlf && self.eol == Eol::CrNl))
    }
}
