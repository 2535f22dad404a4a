//! Finds the end of a record that is too long to be held, piece by piece.

use pgsluice_core::scan::{Dialect, Eol, Format};

/// What has to be known of the bytes of a record to go on with it: the state
/// of the server's `CopyReadLineText`.
#[derive(Debug, Default)]
pub struct Giant {
    in_quote: bool,
    escaped: bool,
    after_cr: bool,
}

impl Giant {
    /// Goes on with the next bytes of the record; gives where it ends among
    /// them, after its line end, if it does.
    pub fn end(&mut self, bytes: &[u8], dialect: &Dialect, eol: Eol) -> Option<usize> {
        let csv = dialect.format == Format::Csv;
        let escape = (dialect.escape != dialect.quote).then_some(dialect.escape);
        for (i, &c) in bytes.iter().enumerate() {
            let after_cr = std::mem::take(&mut self.after_cr);
            if csv {
                if self.in_quote && Some(c) == escape {
                    self.escaped = !self.escaped;
                }
                if c == dialect.quote && !self.escaped {
                    self.in_quote = !self.in_quote;
                }
                if Some(c) != escape {
                    self.escaped = false;
                }
            } else if std::mem::take(&mut self.escaped) {
                continue;
            } else if c == b'\\' {
                self.escaped = true;
                continue;
            }
            if self.in_quote {
                continue;
            }
            match (c, eol) {
                (b'\n', Eol::Nl | Eol::Unknown) => return Some(i + 1),
                (b'\n', Eol::CrNl) if after_cr => return Some(i + 1),
                (b'\r', Eol::Cr) => return Some(i + 1),
                (b'\r', _) => self.after_cr = true,
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_the_whole_does() {
        let csv = Dialect::csv();
        let backslash = Dialect { escape: b'\\', ..Dialect::csv() };
        let text = Dialect::text();
        let cases: [(&Dialect, Eol, &[u8], usize); 4] = [
            (&csv, Eol::Nl, b"a,\"b\nc\"\"\n\",d\nnext", 13),
            (&backslash, Eol::Nl, b"\"a\\\"\nb\"\nnext", 8),
            (&text, Eol::Nl, b"a\\\nb\nnext", 5),
            (&csv, Eol::CrNl, b"a\"\r\n\"b\r\nnext", 8),
        ];
        for (dialect, eol, bytes, expected) in cases {
            for cut in 0..=expected {
                let mut giant = Giant::default();
                let first = giant.end(&bytes[..cut], dialect, eol);
                let end = first.or_else(|| Some(cut + giant.end(&bytes[cut..], dialect, eol)?));
                assert_eq!(end, Some(expected));
            }
        }
    }
}
