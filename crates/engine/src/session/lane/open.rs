//! The COPY statement that is open, and which chunks can go on in it.

use super::Form;
use crate::encode::Prepared;
use crate::input::{Chunk, Counts};
use std::collections::VecDeque;
use std::sync::Arc;

/// A chunk that was sent.
pub(super) struct SentChunk {
    pub chunk: Arc<Chunk>,
    /// records and lines of the file before the chunk
    pub before: Counts,
    /// rows (binary form) or lines (else) of the statement before the chunk
    pub preceding: u64,
}

/// The COPY that is open.
pub(super) struct OpenCopy {
    pub form: Form,
    /// the file that was sent last
    pub file: usize,
    pub sent: VecDeque<SentChunk>,
    pub bytes: usize,
    /// rows or lines so far
    pub units: u64,
    /// how many more lines the first record has than the server counts, which
    /// does not know yet what ends a line when it sees those within quotes
    pub uncounted: i64,
    /// what ends the first line
    line_end: Option<LineEnd>,
    /// the last line that was sent has its end
    line_ended: bool,
}

/// What ends a line of text that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Nl,
    CrNl,
}

impl LineEnd {
    /// That of the first line, if it ends with a newline.
    fn of(bytes: &[u8]) -> Option<LineEnd> {
        let line = &bytes[..memchr::memchr(b'\n', bytes)?];
        Some(if line.ends_with(b"\r") { LineEnd::CrNl } else { LineEnd::Nl })
    }
}

impl OpenCopy {
    /// A COPY that begins with this chunk.
    pub fn begin(form: Form, prepared: &Prepared) -> OpenCopy {
        OpenCopy {
            form,
            file: prepared.chunk.file,
            sent: VecDeque::new(),
            bytes: 0,
            units: 0,
            uncounted: 0,
            line_end: LineEnd::of(prepared.bytes()),
            line_ended: prepared.bytes().ends_with(b"\n"),
        }
    }

    /// Whether a chunk goes on in this COPY. That of another file does if there need not be a COPY for each
    /// file, and it is rows, or lines of COPY's text format which end as those before it, the last one
    /// included.
    pub fn takes(&mut self, form: Form, prepared: &Prepared, one_copy: bool) -> bool {
        let lines = self.line_ended && self.line_end == LineEnd::of(prepared.bytes());
        let other_file = match form {
            Form::Binary => !one_copy,
            Form::Plain | Form::Text => !one_copy && lines && self.line_end.is_some(),
            // Without its end a line of CSV may also lack a quote, and `\.` may end the data.
            Form::AsIs | Form::Csv => false,
        };
        let takes = self.form == form && (self.file == prepared.chunk.file || other_file);
        if takes {
            self.file = prepared.chunk.file;
            self.line_ended = prepared.bytes().ends_with(b"\n");
        }
        takes
    }
}
