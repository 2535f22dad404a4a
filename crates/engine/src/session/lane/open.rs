//! The open COPY statement, and which chunks it can continue with.

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
    /// rows (binary form) or lines (other forms) of the statement before the chunk
    pub preceding: u64,
}

/// The open COPY.
pub(super) struct OpenCopy {
    pub form: Form,
    /// the file of the last chunk that was sent
    pub file: usize,
    pub sent: VecDeque<SentChunk>,
    pub bytes: usize,
    /// number of rows or lines so far
    pub units: u64,
    /// how many lines of the first record the server does not count: within quotes, it counts line
    /// ends only after it has detected which characters end a line
    pub uncounted: i64,
    /// the end of the first line
    line_end: Option<LineEnd>,
    /// whether the last line that was sent has its end
    line_ended: bool,
}

/// The end of a line of text that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Nl,
    CrNl,
}

impl LineEnd {
    /// The end of the first line, if that is a newline.
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

    /// Whether this COPY can continue with a chunk. A chunk of another file can follow if not each
    /// file needs its own COPY. It must consist of rows, or of lines of COPY's text format that end
    /// like those before it, and the last line before it must have its end.
    pub fn takes(&mut self, form: Form, prepared: &Prepared, one_copy: bool) -> bool {
        let lines = self.line_ended && self.line_end == LineEnd::of(prepared.bytes());
        let other_file = match form {
            Form::Binary => !one_copy,
            Form::Plain | Form::Text => !one_copy && lines && self.line_end.is_some(),
            // If the last line of CSV has no end, it may also lack a quote, and `\.` may end the
            // data.
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
