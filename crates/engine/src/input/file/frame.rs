//! Skips the lines of a file that are not records; see [`crate::frame`].

use super::{Cutter, Footer, InputFile, CHUNK};
use crate::error::{Error, Place};
use crate::frame::{candidate, end_of_skipped, excel_delimiter, Frame};
use crate::options;
use pgsluice_core::scan::{Dialect, Eol, Format};

/// Formats a delimiter for messages.
fn shown(delimiter: u8) -> String {
    format!("'{}'", delimiter.escape_ascii())
}

impl InputFile {
    /// Skips the lines before the header: Excel's line, the lines of `--skip-lines`, and comments.
    /// Returns Excel's line. The delimiter that it names becomes that of `dialect`, unless an
    /// option or an earlier file has named one.
    pub(in crate::input) fn pass_head(
        &mut self,
        dialect: &mut Dialect,
        frame: &Frame,
    ) -> Result<Option<Vec<u8>>, Error> {
        let named = excel_delimiter(&self.held).filter(|_| dialect.format == Format::Csv);
        let mut line = None;
        if let Some((delimiter, length)) = named {
            let own = self.held[..length].to_vec();
            let counted = frame.skip_lines > 0;
            self.take_delimiter(delimiter, dialect, frame)?;
            line = (dialect.delimiter == delimiter).then_some(own);
            if !counted {
                self.drop_held(length);
                self.passed.lines += 1;
            }
        }
        let head = self.pass_lines(frame.skip_lines, dialect)?;
        self.passed_over.head += head;
        self.comment = frame.comment;
        self.pass_comments(dialect)?;
        Ok(line)
    }

    /// Uses the delimiter that Excel's line names.
    fn take_delimiter(
        &self,
        delimiter: u8,
        dialect: &mut Dialect,
        frame: &Frame,
    ) -> Result<(), Error> {
        // `--skip-lines` skips the line, whatever it contains.
        let ignored = frame.delimiter_named && frame.skip_lines > 0;
        if delimiter == dialect.delimiter || ignored {
            return Ok(());
        }
        let refused = |message: String| {
            let place = Place { file: self.name.clone(), line: Some(1), ..Place::default() };
            Error::data(message).at(place)
        };
        if frame.delimiter_named {
            let message = format!(
                "the line names the delimiter {}, and the load has {}",
                shown(delimiter),
                shown(dialect.delimiter)
            );
            return Err(refused(message).with_hint(
                "leave `delimiter` out if the line is right; `skip-lines` 1 skips the line",
            ));
        }
        dialect.delimiter = delimiter;
        options::check(dialect).map_err(|e| refused(e.message().to_string()))
    }

    /// Checks the length of the footer, which is known once the file has ended.
    pub(super) fn check_footer(&self) -> Result<(), Error> {
        if !self.footer.as_ref().is_some_and(Footer::is_too_long) {
            return Ok(());
        }
        let message = format!("the last lines of {} have more than 4 MB", self.name);
        Err(Error::data(message).with_hint("`skip-footer` takes lines of a few words"))
    }

    fn drop_held(&mut self, length: usize) {
        self.held.pass(length);
        self.offset += length as u64;
    }

    /// Skips the next lines, whatever they contain. Returns how many there were.
    fn pass_lines(&mut self, number: u64, dialect: &Dialect) -> Result<u64, Error> {
        let end = end_of_skipped(&self.held, self.eol, dialect);
        let (mut at, mut passed, mut within) = (0, 0, false);
        while passed < number {
            match memchr::memchr(end, &self.held[at..]) {
                Some(length) => {
                    at += length + 1;
                    passed += 1;
                    within = false;
                }
                None => {
                    within |= at < self.held.len();
                    self.drop_held(self.held.len());
                    at = 0;
                    if self.ended {
                        passed += u64::from(within);
                        break;
                    }
                    self.fill(CHUNK)?;
                }
            }
        }
        self.drop_held(at);
        self.fill(CHUNK)?;
        self.passed.lines += passed;
        Ok(passed)
    }

    /// Skips the comments at the start of the held bytes, where a record may begin.
    pub(in crate::input) fn pass_comments(&mut self, dialect: &Dialect) -> Result<(), Error> {
        let Some(comment) = self.comment else { return Ok(()) };
        let end = end_of_skipped(&self.held, self.eol, dialect);
        let mut at = 0;
        while self.held.get(at) == Some(&comment) {
            match memchr::memchr(end, &self.held[at..]) {
                Some(length) => {
                    at += length + 1;
                    self.passed.lines += 1;
                    self.passed_over.comments += 1;
                }
                None => {
                    self.drop_held(at);
                    at = 0;
                    self.passed_over.comments += self.pass_lines(1, dialect)?;
                }
            }
            if at == self.held.len() {
                self.drop_held(at);
                at = 0;
                self.fill(CHUNK)?;
            }
        }
        self.drop_held(at);
        // Cut the bytes that follow from their start.
        (self.cutter, self.seen, self.cut, self.comment_at) = (None, 0, 0, None);
        (self.lost, self.stray_to) = (false, 0);
        Ok(())
    }

    /// Returns up to where the held bytes can be cut into records, and whether a line that may be a
    /// comment begins there. Otherwise it is the end of the held bytes. Looks from `from` on.
    pub(super) fn up_to(&self, from: usize) -> (usize, bool) {
        let at_start = self.giant.is_none();
        let next = self.comment.and_then(|c| candidate(&self.held, from, c, at_start));
        (next.unwrap_or(self.held.len()), next.is_some())
    }

    /// Whether the byte before `at` is a CR that may end the first line.
    pub(super) fn may_end_first_line(&self, at: usize, cutter: &Cutter) -> bool {
        let unknown = matches!(cutter, Cutter::Lines(s) if s.eol() == Eol::Unknown);
        unknown && at > 0 && self.held[at - 1] == b'\r'
    }
}
