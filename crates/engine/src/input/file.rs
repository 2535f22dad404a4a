//! One source: opened, decompressed, cut at record ends.

use super::ahead::Ahead;
use super::chunk::{Chunk, Counts, Part};
use super::content;
use super::decompress::{self, Compression};
use super::records::{fields, Cutter, Layout};
use crate::error::{Error, Place};
use crate::options::Source;
use crate::stray;
use pgsluice_core::scan::binary::{self, Corrupt, TupleSplitter, HEADER_LEN};
use pgsluice_core::scan::{Dialect, Eol, Format, Kind, Next, Record, Scanner, Splitter};
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::SystemTime;

mod strays;

/// How many bytes a chunk has, unless a record is longer.
const CHUNK: usize = 512 << 10;

/// The longest record that is held as a whole; a longer one passes in pieces.
const MAX_HELD: usize = 4 << 20;

/// The longest record: the server's own limit for a line.
const MAX_RECORD: u64 = pgsluice_core::scan::MAX_RECORD as u64;

/// The first line of a file that has a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// the file, as the user named it
    pub file: String,
    /// as it is in the file, line end included
    pub bytes: Vec<u8>,
    /// its fields; `None` for NULL
    pub fields: Vec<Option<Vec<u8>>>,
}

impl HeaderLine {
    /// Where it is.
    pub fn place(&self) -> Place {
        Place { file: self.file.clone(), line: Some(1), ..Place::default() }
    }
}

/// Counts the bytes that come from the disk.
struct Counted {
    source: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// One source that is being read.
pub(super) struct InputFile {
    pub(super) name: String,
    index: usize,
    source: Ahead,
    /// bytes that came from the disk
    pub(super) raw_read: Arc<AtomicU64>,
    /// those of them that were decompressed, if they were compressed
    taken: Arc<AtomicU64>,
    /// the file itself, how long it was when it was opened, and when it was last written
    file: Option<(File, u64, Option<SystemTime>)>,
    /// what the first bytes say
    pub compression: Option<Compression>,
    /// read and not yet given on
    pub(super) held: Vec<u8>,
    pub(super) ended: bool,
    pub(super) offset: u64,
    eol: Eol,
    cutter: Option<Cutter>,
    /// what the cutter has found behind the last record, which is given on first
    fault: Option<Corrupt>,
    /// how many of the held bytes the cutter has seen
    seen: usize,
    /// where the last record that is held whole ends, in the held bytes
    cut: usize,
    /// there may be stray quotes in what was read since the last chunk, and in what was left
    stray: [bool; 2],
    /// the cutter has met a stray quote that is not what it is to COPY: it is lost
    lost: bool,
    /// bytes so far of a record that passes in pieces
    giant: Option<u64>,
    /// where it ends, in the held bytes
    giant_end: Option<usize>,
    passed: Counts,
    done: bool,
}

impl InputFile {
    /// Opens a source. The header of PGCOPY is passed over, and a byte order mark where the
    /// file is said to be `utf8`: in other encodings these bytes are data.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is in an encoding that no server knows, or is no
    /// PGCOPY.
    pub fn open(
        index: usize,
        source: &Source,
        dialect: Option<&Dialect>,
        utf8: bool,
    ) -> Result<InputFile, Error> {
        let name = source.name();
        let failed = |e: &io::Error| Error::io("open", &name, e);
        let (raw, file): (Box<dyn Read + Send>, _) = match source {
            Source::Stdin => (Box::new(io::stdin()), None),
            Source::File(path) => {
                let file = File::open(path).map_err(|e| failed(&e))?;
                let facts = file.metadata().map_err(|e| failed(&e))?;
                if facts.is_dir() {
                    return Err(Error::new(format!("cannot open {name}: it is a folder")));
                }
                let own = file.try_clone().map_err(|e| failed(&e))?;
                let as_opened = (own, facts.len(), facts.modified().ok());
                (Box::new(file), facts.is_file().then_some(as_opened))
            }
        };
        let raw_read = Arc::new(AtomicU64::new(0));
        let counted = Counted { source: raw, count: raw_read.clone() };
        let taken = Arc::new(AtomicU64::new(0));
        let (compression, source) =
            decompress::open(counted, &taken).map_err(|e| Error::io("read", &name, &e))?;
        let mut file = InputFile {
            name,
            index,
            source: Ahead::new(source),
            raw_read,
            taken,
            file,
            compression,
            held: Vec::new(),
            ended: false,
            offset: 0,
            eol: Eol::Unknown,
            cutter: None,
            fault: None,
            seen: 0,
            cut: 0,
            stray: [false; 2],
            lost: false,
            giant: None,
            giant_end: None,
            passed: Counts::default(),
            done: false,
        };
        file.fill(CHUNK)?;
        match dialect {
            Some(dialect) => file.begin(dialect, utf8)?,
            None => file.pass_signature()?,
        }
        Ok(file)
    }

    /// Bytes on the disk that what is held was made from, before anything was given on.
    pub(super) fn sampled(&self) -> u64 {
        let bytes = if self.compression.is_some() { &self.taken } else { &self.raw_read };
        bytes.load(Ordering::Relaxed)
    }

    fn pass_signature(&mut self) -> Result<(), Error> {
        let head = &self.held[..self.held.len().min(HEADER_LEN)];
        let extension = binary::header(head).map_err(|corrupt| {
            let place = Place { file: self.name.clone(), ..Place::default() };
            let error = Error::new(corrupt.to_string()).at(place);
            match corrupt {
                Corrupt::Signature => error
                    .with_hint("the file is not COPY's binary format: is it --format csv or text?"),
                _ => error,
            }
        })?;
        let mut left = HEADER_LEN + extension as usize;
        while left > 0 {
            if self.held.is_empty() {
                let place = Place { file: self.name.clone(), ..Place::default() };
                return Err(Error::new(Corrupt::WrongLength.to_string()).at(place));
            }
            let passed = left.min(self.held.len());
            self.held.drain(..passed);
            self.offset += passed as u64;
            left -= passed;
            self.fill(CHUNK)?;
        }
        Ok(())
    }

    /// Looks whether the content may be CSV or text.
    fn begin(&mut self, dialect: &Dialect, utf8: bool) -> Result<(), Error> {
        if let Some(other) = content::other(&self.held, dialect, utf8) {
            let message = format!(
                "{} {}, and not {}",
                self.name,
                other.what,
                match dialect.format {
                    Format::Csv => "CSV",
                    Format::Text => "COPY's text format",
                }
            );
            return Err(Error::new(message).with_hint(other.hint));
        }
        if !utf8 {
            return Ok(());
        }
        if self.held.starts_with(b"\xff\xfe") || self.held.starts_with(b"\xfe\xff") {
            return Err(Error::new(format!(
                "{} is UTF-16, which PostgreSQL does not support",
                self.name
            ))
            .with_hint(content::UTF16));
        }
        if self.held.starts_with(b"\xef\xbb\xbf") {
            self.held.drain(..3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Reads until `target` bytes are held or the file ends.
    fn fill(&mut self, target: usize) -> Result<(), Error> {
        let mut filled = self.held.len();
        if filled < target {
            self.held.reserve_exact(target - filled);
            self.held.resize(target, 0);
        }
        while filled < target && !self.ended {
            match self.source.read(&mut self.held[filled..]) {
                Ok(0) => self.ended = true,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unreadable(&e)),
            }
        }
        self.held.truncate(filled);
        if self.ended {
            self.check_unchanged()?;
        }
        Ok(())
    }

    fn unreadable(&self, e: &io::Error) -> Error {
        Error::io("read", &self.name, e).with_hint(match self.compression {
            Some(c) => format!("the file is {}; is it whole?", c.name()),
            None => "nothing was loaded".into(),
        })
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let Some((file, length, written)) = &self.file else { return Ok(()) };
        let facts = file.metadata().map_err(|e| Error::io("read", &self.name, &e))?;
        let (now, read) = (facts.len(), self.raw_read.load(Ordering::Relaxed));
        let what = if now != *length || (read != *length && self.compression.is_none()) {
            format!("it had {length} bytes, has {now}, and {read} were read")
        } else if facts.modified().ok() != *written {
            "it was written to".into()
        } else {
            return Ok(());
        };
        Err(Error::new(format!("{} changed while it was read: {what}", self.name))
            .with_hint("load it again when nothing writes to it"))
    }

    /// Takes the first record off as the header.
    pub(super) fn take_header(&mut self, dialect: &Dialect) -> Result<Option<HeaderLine>, Error> {
        let mut record = Record::default();
        let mut target = CHUNK;
        loop {
            let mut scanner = Scanner::new(&self.held, self.ended, dialect, self.eol);
            match scanner.next(&mut record) {
                Ok(Next::Record) => {
                    let field = |i| match record.field(&self.held, i) {
                        (Kind::Null, _) => None,
                        (_, value) => Some(value.to_vec()),
                    };
                    let fields = (0..record.len()).map(field).collect();
                    self.eol = scanner.eol();
                    self.passed.lines += scanner.lines();
                    let bytes = self.held.drain(..record.end).collect::<Vec<u8>>();
                    self.offset += bytes.len() as u64;
                    return Ok(Some(HeaderLine { file: self.name.clone(), bytes, fields }));
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
                        Place { file: self.name.clone(), line: Some(1), ..Place::default() };
                    let (start, end) = scanner.skip_record().unwrap_or_default();
                    let error = Error::new(message).at(place);
                    return Err(stray::explained(error, fault, &self.held[start..end], dialect));
                }
            }
            self.fill(target)?;
        }
    }

    /// Reads until `target` bytes are held and looks where records end in them.
    fn split(&mut self, layout: &Layout, target: usize) -> Result<(), Error> {
        self.fill(target)?;
        let eol = self.eol;
        let cutter = self.cutter.get_or_insert_with(|| match layout {
            Layout::Lines(dialect) => Cutter::Lines(Splitter::new(dialect, eol).watching()),
            Layout::Tuples(columns) => Cutter::Tuples(TupleSplitter::new(fields(columns))),
        });
        let in_giant = match &cutter {
            Cutter::Lines(splitter) if self.giant.is_some() => Some((splitter.clone(), self.seen)),
            _ => None,
        };
        let cuts = cutter.feed(&self.held[self.seen..]);
        self.stray[0] |= cuts.stray;
        if let Some(last) = cuts.last {
            self.cut = self.seen + last;
        }
        if self.giant.is_some() && self.giant_end.is_none() {
            self.giant_end = cuts.first.map(|first| self.seen + first);
        }
        self.seen = self.held.len();
        self.fault = cuts.fault;
        if let (Cutter::Tuples(splitter), true) = (cutter, self.ended) {
            self.fault = self.fault.or(splitter.finish().err());
        }
        match layout.dialect() {
            Some(dialect) if dialect.strict() => self.find_again(dialect, cuts.stray, in_giant),
            _ => Ok(()),
        }
    }

    /// The next bytes: whole records where a record can be held. `None` at the end.
    /// Empty lines that end the file are passed over if they are counted in `blank`.
    pub(super) fn next(
        &mut self,
        layout: &Layout,
        blank: Option<&AtomicU64>,
        free: Vec<u8>,
    ) -> Result<Option<Chunk>, Error> {
        if self.done {
            return Ok(None);
        }
        let mut target = CHUNK;
        let (end, part) = loop {
            if self.fault.is_none() {
                self.split(layout, target)?;
            }
            match (self.giant, self.giant_end) {
                (Some(_), Some(end)) => break (end, Part::LastPiece),
                _ if self.fault.is_some() && self.cut == 0 => return Err(self.corrupt(layout)),
                (Some(_), None) if self.ended => break (self.held.len(), Part::LastPiece),
                (Some(_), None) => break (self.held.len(), Part::Piece),
                _ if self.fault.is_some() => break (self.cut, Part::Whole),
                _ if self.ended => break (self.end_of_records(layout), Part::Whole),
                // Empty lines at the end of what is held may be the file's last ones.
                _ if self.cut > 0 && blank.is_some() => match blank_end(&self.held[..self.cut]).0 {
                    0 if target < MAX_HELD => target *= 2,
                    0 => break (self.cut, Part::Whole),
                    end => break (end, Part::Whole),
                },
                _ if self.cut > 0 => break (self.cut, Part::Whole),
                _ if target < MAX_HELD => target *= 2,
                _ if self.giant.is_some() || self.passes(layout)? => {
                    break (self.held.len(), Part::Piece)
                }
                _ => break (self.first_line()?, Part::Whole),
            }
        };
        let start = self.offset - self.giant.unwrap_or(0);
        if part != Part::Whole {
            let length = self.giant.unwrap_or(0) + end as u64;
            if layout.dialect().is_some() {
                self.check_giant(length, end)?;
            }
            self.giant = (part == Part::Piece).then_some(length);
            self.giant_end = None;
        }
        let mut chunk = Chunk { start, ..self.give(end, part, layout, free) };
        if let (Some(number), true, Part::Whole) = (blank, chunk.last, part) {
            let (end, lines) = blank_end(&chunk.bytes);
            chunk.bytes.truncate(end);
            number.fetch_add(lines, Ordering::Relaxed);
        }
        Ok(Some(chunk))
    }

    /// Where the last record of the file ends: behind it, PGCOPY has a trailer.
    fn end_of_records(&mut self, layout: &Layout) -> usize {
        if layout.dialect().is_none() {
            self.held.truncate(self.cut);
        }
        self.held.len()
    }

    /// The fault of the tuple that comes next, at its place.
    fn corrupt(&self, layout: &Layout) -> Error {
        let (Some(fault), Some(Cutter::Tuples(splitter))) = (self.fault, &self.cutter) else {
            return Error::new(format!("{} cannot be read", self.name));
        };
        let number = Some(splitter.line());
        let column = match (layout, splitter.column()) {
            (Layout::Tuples(columns), Some(column)) => columns.get(column).cloned(),
            _ => None,
        };
        let place = Place {
            file: self.name.clone(),
            record: number,
            line: number,
            offset: Some(self.offset - self.giant.unwrap_or(0)),
            column,
            ..Place::default()
        };
        Error::new(fault.to_string()).at(place).with_hint(
            "the rest cannot be read either: the file is damaged, or belongs to another table",
        )
    }

    fn check_giant(&self, length: u64, end: usize) -> Result<(), Error> {
        if length <= MAX_RECORD {
            return Ok(());
        }
        let start = self.offset + end as u64 - length;
        Err(Error::new(format!(
            "{}, byte offset {start}: a record is longer than the server's limit of 1 GB",
            self.name
        ))
        .with_hint("a quote may be left open there"))
    }

    /// Makes a chunk of the first `end` bytes held.
    fn give(&mut self, end: usize, part: Part, layout: &Layout, mut free: Vec<u8>) -> Chunk {
        free.clear();
        free.extend_from_slice(&self.held[end..]);
        let mut bytes = std::mem::replace(&mut self.held, free);
        bytes.truncate(end);
        let mut last = self.ended && self.held.is_empty();
        let text = layout.dialect().filter(|d| d.format == Format::Text);
        let text = text.filter(|_| part == Part::Whole);
        last |= text.is_some_and(|d| ends_data(&bytes, d, self.eol));
        let chunk = Chunk {
            sequence: 0,
            file: self.index,
            offset: self.offset,
            start: self.offset,
            eol: self.eol,
            part,
            stray: self.stray[0] || self.stray[1],
            last,
            line: 0,
            passed: std::mem::take(&mut self.passed),
            bytes,
        };
        self.offset += end as u64;
        self.stray = [false, self.stray[0] && !self.held.is_empty()];
        self.seen -= end.min(self.seen);
        self.cut = self.cut.saturating_sub(end);
        self.done = last;
        if let Some(Cutter::Lines(splitter)) = &self.cutter {
            self.eol = splitter.eol();
        }
        chunk
    }
}

/// Where the empty lines begin that end these whole records, and how many they are.
fn blank_end(bytes: &[u8]) -> (usize, u64) {
    let (mut end, mut lines) = (bytes.len(), 0);
    loop {
        let start = match &bytes[..end] {
            [.., b'\r', b'\n'] => end - 2,
            [.., b'\r' | b'\n'] => end - 1,
            _ => return (end, lines),
        };
        if !matches!(&bytes[..start], [] | [.., b'\r' | b'\n']) {
            return (end, lines);
        }
        end = start;
        lines += 1;
    }
}

/// Text: whether a `\.` ends the data in this chunk.
fn ends_data(bytes: &[u8], dialect: &Dialect, eol: Eol) -> bool {
    if memchr::memmem::find(bytes, b"\\.").is_none() {
        return false;
    }
    let mut scanner = Scanner::new(bytes, true, dialect, eol);
    let mut record = Record::default();
    while scanner.next(&mut record) == Ok(Next::Record) {}
    scanner.ended()
}
