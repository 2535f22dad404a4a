//! Finds where records end after a stray quote.

use super::{first_comment, Cutter, InputFile, Layout, CHUNK, MAX_HELD, MAX_RECORD};
use crate::error::{Error, Place};
use crate::stray;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{whole_records, Dialect, Eol, Record, Scanner, Splitter, StrayQuotes};

impl InputFile {
    /// If a stray quote does not open or close anything, the cutter is lost after it. Then this
    /// walks through the records, to find where the cutter can continue.
    ///
    /// `giant` is the state of the cutter before the bytes from an offset on, if these bytes begin
    /// within a record that is passed on in pieces.
    pub(super) fn find_again(
        &mut self,
        dialect: &Dialect,
        stray: bool,
        giant: Option<(Splitter, usize)>,
    ) -> Result<(), Error> {
        let Some(Cutter::Lines(splitter)) = &self.cutter else { return Ok(()) };
        // The file ends within quotes.
        let open = self.ended && splitter.in_quote();
        self.lost |= stray || open;
        if self.lost {
            // A cutter that is lost may take a later stray quote for one that opens or closes.
            self.stray_to = self.held.len();
        }
        if let Some((splitter, from)) = giant {
            self.check_giant_quotes(dialect, splitter, from)?;
        }
        if !self.lost || self.giant.is_some() {
            return Ok(());
        }
        let comment = self
            .comment
            .and_then(|comment| first_comment(&self.held, self.ended, dialect, self.eol, comment));
        if let Some((at, eol)) = comment {
            (self.cut, self.comment_at) = (at, Some(at));
            self.cutter = Some(Cutter::Lines(Splitter::new(dialect, eol).watching()));
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

    /// Reads on until the last held byte is not a quote. Only the byte after a quote shows whether
    /// the quote closes a field correctly.
    pub(super) fn fill_past_quote(&mut self, dialect: &Dialect) -> Result<(), Error> {
        let more = |file: &InputFile| {
            let quote = file.held.last() == Some(&dialect.quote);
            quote && !file.ended && file.held.len() < 2 * MAX_HELD
        };
        while more(self) {
            self.fill(self.held.len() + 64)?;
        }
        Ok(())
    }

    /// Looks for a stray quote in the record that is passed on in pieces. `splitter` is the state
    /// of the cutter before the bytes from `from` on.
    fn check_giant_quotes(
        &mut self,
        dialect: &Dialect,
        mut splitter: Splitter,
        from: usize,
    ) -> Result<(), Error> {
        if !self.lost && memchr::memchr(dialect.quote, &self.held[from..]).is_none() {
            return Ok(());
        }
        let mut opened = None;
        for at in from..self.held.len() {
            let within = splitter.in_quote();
            let cuts = splitter.feed_naive(&self.held[at..=at]);
            if cuts.stray && splitter.in_quote() && !within {
                // This is a quote in a field that does not begin with a quote.
                return self.find_damaged_end(dialect, at, b"x", false);
            } else if cuts.stray {
                let start = opened.ok_or_else(|| self.stray_in_giant())?;
                return self.find_damaged_end(dialect, start, b"", false);
            } else if cuts.first.is_some() {
                return Ok(());
            }
            // A doubled quote does not open anything.
            let twice = at > 0 && self.held[at - 1] == dialect.quote && opened != Some(at - 1);
            if splitter.in_quote() && !within && !twice {
                opened = Some(at);
            }
        }
        // The field that is open at the end of the held bytes may not end correctly.
        match opened.filter(|_| splitter.in_quote()) {
            Some(start) if !self.closes(splitter)? => {
                self.find_damaged_end(dialect, start, b"", true)
            }
            _ => Ok(()),
        }
    }

    /// Finds the end of a record that is passed on in pieces and has a stray quote. It applies the
    /// rules to a shorter record: `before`, and then the held bytes from `start` on, where the last
    /// field before the quote begins. If `open`, no later quote closes the quote of that field.
    fn find_damaged_end(
        &mut self,
        dialect: &Dialect,
        start: usize,
        before: &[u8],
        open: bool,
    ) -> Result<(), Error> {
        if dialect.stray_quotes != StrayQuotes::Error {
            return Err(self.stray_in_giant());
        }
        loop {
            let rest = [before, &self.held[start..]].concat();
            let mut scanner = Scanner::new(&rest, self.ended || open, dialect, self.eol);
            let fault = scanner.next(&mut Record::default()).err();
            let ends = scanner.skip_record().filter(|(_, end)| self.ended || *end < rest.len());
            if let (Some(Malformed::StrayQuote { kind, at, .. }), Some((_, end))) = (fault, ends) {
                // The number of fields that were passed on is not known.
                let fault = Malformed::StrayQuote { kind, field: usize::MAX, at };
                let end = start + end - before.len();
                // Cut the bytes that follow from their start.
                (self.cutter, self.seen, self.cut, self.lost) = (None, end, end, false);
                (self.giant_end, self.comment_at, self.eol) = (Some(end), None, scanner.eol());
                (self.damaged, self.stray_to) = (Some(fault), self.held.len());
                return Ok(());
            }
            if self.ended || rest.len() > MAX_HELD {
                return Err(self.stray_in_giant());
            }
            self.fill(self.held.len() + CHUNK)?;
        }
    }

    fn stray_in_giant(&self) -> Error {
        let offset = Some(self.offset - self.giant.unwrap_or(0));
        let place = Place { file: self.name.clone(), offset, ..Place::default() };
        stray::too_long(place)
    }

    /// Whether the record that is too long to be held may be passed on in pieces. The held bytes
    /// may end within quotes. If these are never closed, or not at the end of a field, the record
    /// may not be passed on: then only its first line is the record.
    pub(super) fn passes(&mut self, layout: &Layout) -> Result<bool, Error> {
        let strict = layout.dialect().is_some_and(Dialect::strict);
        let (Some(Cutter::Lines(splitter)), true) = (&self.cutter, strict) else { return Ok(true) };
        if self.lost || !splitter.in_quote() {
            return Ok(!self.lost);
        }
        self.closes(splitter.clone())
    }

    /// Whether the quotes that are open at the end of the held bytes are closed at the end of a
    /// field.
    fn closes(&mut self, mut splitter: Splitter) -> Result<bool, Error> {
        let (mut length, mut ends) = (self.held.len() as u64, None);
        self.source.look(&self.name, self.compression, |block| {
            length += block.len() as u64;
            ends = splitter.field_ends(block);
            ends.is_some() || length > MAX_RECORD
        })?;
        Ok(ends.unwrap_or(!splitter.in_quote()))
    }

    /// Returns where the first of the held lines ends. If it does not end within the held bytes,
    /// that is an error, although a record may be longer than these.
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
        // Cut the bytes that follow from their start.
        (self.cutter, self.seen, self.lost) = (None, 0, false);
        self.stray_to = self.held.len();
        Ok(at + 1 + usize::from(crlf && self.eol == Eol::CrNl))
    }
}
