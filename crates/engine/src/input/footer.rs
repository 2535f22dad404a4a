//! Reads a source without its last lines, which are held back until the source has ended.

use crate::frame::{first_end, first_end_of_skipped, line_end, Frame};
use pgsluice_core::scan::{Dialect, Eol};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Number of bytes in each read.
const BLOCK: usize = 256 << 10;

/// The most bytes that are held back.
const LIMIT: usize = 4 << 20;

/// Facts about the footer, which are known at the end of the source.
#[derive(Clone, Default)]
pub(super) struct Footer {
    lines: Arc<AtomicU64>,
    too_long: Arc<AtomicBool>,
}

impl Footer {
    /// The number of lines of the footer.
    pub fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Whether a part of the footer was passed on, because the footer was too long to be held back.
    pub fn is_too_long(&self) -> bool {
        self.too_long.load(Ordering::Relaxed)
    }
}

/// Reads a source up to its footer. Holds at most [`LIMIT`] bytes and one block.
pub(super) struct WithoutFooter {
    source: Box<dyn Read + Send>,
    frame: Frame,
    dialect: Dialect,
    /// the byte that ends lines, as in the first line of the source
    end: Option<u8>,
    held: Vec<u8>,
    /// how many of the held bytes were passed on
    given: usize,
    /// how many of the held bytes precede the footer, whatever follows
    free: usize,
    /// the last byte that was passed on
    before: Option<u8>,
    ended: bool,
    footer: Footer,
}

impl WithoutFooter {
    pub fn new(
        source: Box<dyn Read + Send>,
        frame: Frame,
        dialect: &Dialect,
    ) -> (WithoutFooter, Footer) {
        let footer = Footer::default();
        let without = WithoutFooter {
            source,
            frame,
            dialect: dialect.clone(),
            end: None,
            held: Vec::new(),
            given: 0,
            free: 0,
            before: None,
            ended: false,
            footer: footer.clone(),
        };
        (without, footer)
    }

    /// Reads a block, and finds the bytes before the footer.
    fn more(&mut self) -> io::Result<()> {
        if self.given > 0 {
            self.before = Some(self.held[self.given - 1]);
            self.held.drain(..self.given);
            self.given = 0;
        }
        let at = self.held.len();
        self.held.resize(at + BLOCK, 0);
        let read = self.source.read(&mut self.held[at..]);
        self.held.truncate(at + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        let end = match self.end {
            Some(end) => end,
            None => {
                let eol = match self.frame.skips_first(&self.held) {
                    true => first_end_of_skipped(&self.held, &self.dialect),
                    false => first_end(&self.held, &self.dialect),
                };
                if eol == Eol::Unknown && !self.ended && self.held.len() < BLOCK {
                    return Ok(());
                }
                *self.end.insert(line_end(&self.held, eol))
            }
        };
        let (start, lines) = last_lines(&self.held, end, self.frame.skip_footer);
        // The footer is not whole if it begins before the held bytes.
        let most = lines == u64::from(self.frame.skip_footer);
        let whole = start > 0 || self.before.is_none_or(|before| before == end && most);
        self.free = start;
        if self.ended {
            self.footer.lines.store(lines, Ordering::Relaxed);
            self.footer.too_long.store(!whole, Ordering::Relaxed);
        } else if self.held.len() - start > LIMIT {
            self.free = self.held.len() - LIMIT;
        }
        Ok(())
    }
}

impl Read for WithoutFooter {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.free && !self.ended {
            self.more()?;
        }
        let n = buffer.len().min(self.free - self.given);
        buffer[..n].copy_from_slice(&self.held[self.given..self.given + n]);
        self.given += n;
        Ok(n)
    }
}

/// Finds the last lines, up to `most`. Returns where they begin and how many there are. Bytes after
/// the last line end are a line, too.
fn last_lines(bytes: &[u8], end: u8, most: u32) -> (usize, u64) {
    let (mut start, mut lines) = (bytes.len(), 0);
    while start > 0 && lines < u64::from(most) {
        start = memchr::memrchr(end, &bytes[..start - 1]).map_or(0, |at| at + 1);
        lines += 1;
    }
    (start, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgsluice_core::scan::StrayQuotes;

    /// Returns a few bytes at a time.
    struct Slow(io::Cursor<Vec<u8>>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = buffer.len().min(self.1);
            self.0.read(&mut buffer[..n])
        }
    }

    fn read(bytes: &[u8], lines: u32, step: usize) -> (Vec<u8>, u64, bool) {
        let source = Box::new(Slow(io::Cursor::new(bytes.to_vec()), step));
        let csv = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        let frame = Frame { skip_footer: lines, ..Frame::default() };
        let (mut without, footer) = WithoutFooter::new(source, frame, &csv);
        let mut read = Vec::new();
        without.read_to_end(&mut read).unwrap();
        assert!(without.held.capacity() <= 2 * (LIMIT + BLOCK));
        (read, footer.lines(), footer.is_too_long())
    }

    #[test]
    fn the_last_lines_are_left_out() {
        for (bytes, lines, left, number) in [
            ("a\nb\nc\n", 1, "a\nb\n", 1),
            ("a\nb\nc", 1, "a\nb\n", 1),
            ("a\r\nb\r\n\r\n", 2, "a\r\n", 2),
            ("a\rb\rc\r", 2, "a\r", 2),
            ("1,\"x\ny\"\r2,z\rTotal\r", 1, "1,\"x\ny\"\r2,z\r", 1),
            ("a\nb\n", 2, "", 2),
            ("a\nb\n", 7, "", 2),
            ("", 1, "", 0),
        ] {
            for step in [1, 2, 3, BLOCK] {
                let found = read(bytes.as_bytes(), lines, step);
                assert_eq!(found, (left.into(), number, false), "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn long_lines_pass_and_a_long_footer_is_noticed() {
        let long = vec![b'x'; 2 * LIMIT];
        let before = [&long[..], b"\n", &long[..], b"\nfooter\n"].concat();
        let (read_before, lines, too_long) = read(&before, 1, BLOCK);
        assert!(read_before == before[..before.len() - 7] && lines == 1 && !too_long);
        assert!(read(&[&b"a\n"[..], &long[..]].concat(), 1, BLOCK).2);
    }
}
