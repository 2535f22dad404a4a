//! Reads the sources one after another and cuts them at record ends.

use super::chunk::{Chunk, Counts, Part};
use super::decompress::{self, Compression};
use super::giant::Giant;
use crate::error::Error;
use crate::options::{FileFormat, Header, InputOptions, Source};
use pgsluice_core::scan::{Dialect, Eol, Format, Kind, Next, Record, Scanner};
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// How many bytes a chunk has, unless a record is longer.
const CHUNK: usize = 512 << 10;

/// The longest record that is held as a whole; a longer one passes in pieces.
const MAX_HELD: usize = 4 << 20;

/// The longest record: the server's own limit for a line.
const MAX_RECORD: u64 = pgsluice_core::scan::MAX_RECORD as u64;

/// The first line of a file that has a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// as it is in the file, line end included
    pub bytes: Vec<u8>,
    /// its fields; `None` for NULL
    pub fields: Vec<Option<Vec<u8>>>,
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
pub struct InputFile {
    name: String,
    index: usize,
    source: Box<dyn Read + Send>,
    /// bytes that came from the disk
    raw_read: Arc<AtomicU64>,
    /// the file itself, and how long it was when it was opened
    file: Option<(File, u64)>,
    /// what the first bytes say
    pub compression: Option<Compression>,
    /// read and not yet given on
    held: Vec<u8>,
    ended: bool,
    offset: u64,
    eol: Eol,
    giant: Option<(Giant, u64)>,
    passed: Counts,
    done: bool,
}

impl InputFile {
    /// Opens a source; a byte order mark of UTF-8 is passed over.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is in an encoding that no server knows.
    pub fn open(index: usize, source: &Source, delimited: bool) -> Result<InputFile, Error> {
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
                (Box::new(file), facts.is_file().then_some((own, facts.len())))
            }
        };
        let raw_read = Arc::new(AtomicU64::new(0));
        let counted = Counted { source: raw, count: raw_read.clone() };
        let (compression, source) =
            decompress::open(counted).map_err(|e| Error::io("read", &name, &e))?;
        let mut file = InputFile {
            name,
            index,
            source,
            raw_read,
            file,
            compression,
            held: Vec::new(),
            ended: false,
            offset: 0,
            eol: Eol::Unknown,
            giant: None,
            passed: Counts::default(),
            done: false,
        };
        file.fill(CHUNK)?;
        if delimited {
            file.pass_byte_order_mark()?;
        }
        Ok(file)
    }

    fn pass_byte_order_mark(&mut self) -> Result<(), Error> {
        if self.held.starts_with(b"\xff\xfe") || self.held.starts_with(b"\xfe\xff") {
            return Err(Error::new(format!("{} is UTF-16, which no server reads", self.name))
                .with_hint("convert it first: iconv -f UTF-16 -t UTF-8"));
        }
        if self.held.starts_with(b"\xef\xbb\xbf") {
            self.held.drain(..3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Reads until `target` bytes are held or the file ends.
    fn fill(&mut self, target: usize) -> Result<(), Error> {
        while self.held.len() < target && !self.ended {
            let want = target - self.held.len();
            self.held.reserve_exact(want);
            let before = self.held.len();
            let read = self.source.by_ref().take(want as u64).read_to_end(&mut self.held);
            read.map_err(|e| {
                Error::io("read", &self.name, &e).with_hint(match self.compression {
                    Some(c) => format!("the file is {}; is it whole?", c.name()),
                    None => "nothing was loaded".into(),
                })
            })?;
            // `take` gives less only at the end.
            self.ended = self.held.len() - before < want;
        }
        if self.ended {
            self.check_unchanged()?;
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let Some((file, length)) = &self.file else { return Ok(()) };
        let now = file.metadata().map_err(|e| Error::io("read", &self.name, &e))?.len();
        let read = self.raw_read.load(Ordering::Relaxed);
        if now == *length && (read == *length || self.compression.is_some()) {
            return Ok(());
        }
        Err(Error::new(format!(
            "{} changed while it was read: it had {length} bytes, has {now}, and {read} were read",
            self.name
        ))
        .with_hint("load it again when nobody writes to it"))
    }

    /// Takes the first record off as the header.
    fn take_header(&mut self, dialect: &Dialect) -> Result<Option<HeaderLine>, Error> {
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
                    return Ok(Some(HeaderLine { bytes, fields }));
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
                    return Err(Error::new(format!("{}, line 1: {message}", self.name)));
                }
            }
            self.fill(target)?;
        }
    }

    /// The next bytes, whole records where a record can be held. The second
    /// value says that the file has no more.
    fn next(&mut self, dialect: Option<&Dialect>, free: Vec<u8>) -> Result<Option<Chunk>, Error> {
        if self.done {
            return Ok(None);
        }
        let mut target = CHUNK;
        let (end, part) = loop {
            self.fill(target)?;
            let Some(dialect) = dialect else { break (self.held.len(), Part::Piece) };
            if let Some((giant, length)) = &mut self.giant {
                let found = giant.end(&self.held, dialect, self.eol);
                *length += found.unwrap_or(self.held.len()) as u64;
                break match found {
                    Some(end) => (end, Part::LastPiece),
                    None if self.ended => (self.held.len(), Part::LastPiece),
                    None => (self.held.len(), Part::Piece),
                };
            }
            if self.ended {
                break (self.held.len(), Part::Whole);
            }
            match last_record_end(&self.held, dialect, self.eol) {
                0 if target < MAX_HELD => target *= 2,
                0 => {
                    let mut giant = Giant::default();
                    giant.end(&self.held, dialect, self.eol);
                    self.giant = Some((giant, self.held.len() as u64));
                    break (self.held.len(), Part::Piece);
                }
                end => break (end, Part::Whole),
            }
        };
        if let Some((_, length)) = self.giant {
            self.check_giant(length)?;
        }
        if part == Part::LastPiece {
            self.giant = None;
        }
        Ok(Some(self.give(end, part, dialect, free)))
    }

    fn check_giant(&self, length: u64) -> Result<(), Error> {
        if length <= MAX_RECORD {
            return Ok(());
        }
        let start = self.offset + self.held.len() as u64 - length;
        Err(Error::new(format!(
            "{}, byte offset {start}: a record is longer than the server's limit of 1 GB",
            self.name
        ))
        .with_hint("a quote may be left open there"))
    }

    /// Makes a chunk of the first `end` bytes held.
    fn give(
        &mut self,
        end: usize,
        part: Part,
        dialect: Option<&Dialect>,
        mut free: Vec<u8>,
    ) -> Chunk {
        free.clear();
        free.extend_from_slice(&self.held[end..]);
        let mut bytes = std::mem::replace(&mut self.held, free);
        bytes.truncate(end);
        let mut last = self.ended && self.held.is_empty();
        if let Some(d) = dialect.filter(|d| d.format == Format::Text && part == Part::Whole) {
            last |= ends_data(&bytes, d, self.eol);
        }
        let chunk = Chunk {
            sequence: 0,
            file: self.index,
            offset: self.offset,
            eol: self.eol,
            part,
            last,
            passed: std::mem::take(&mut self.passed),
            bytes,
        };
        self.offset += end as u64;
        self.done = last;
        if self.eol == Eol::Unknown {
            if let Some(d) = dialect {
                let mut scanner = Scanner::new(&chunk.bytes, self.ended, d, Eol::Unknown);
                // A fault is the encoders' to report.
                let _ = scanner.next(&mut Record::default());
                self.eol = scanner.eol();
            }
        }
        chunk
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

/// Where the last whole record of `bytes` ends, 0 if none does. `bytes` begins
/// at a record's start.
fn last_record_end(bytes: &[u8], dialect: &Dialect, eol: Eol) -> usize {
    let simple = dialect.format == Format::Csv && dialect.escape == dialect.quote;
    let end = match eol {
        Eol::Nl => b'\n',
        Eol::Cr => b'\r',
        _ => 0,
    };
    if !simple || end == 0 || dialect.quote == end {
        let mut scanner = Scanner::new(bytes, false, dialect, eol);
        let mut record = Record::default();
        loop {
            match scanner.next(&mut record) {
                Ok(Next::Record) => {}
                Ok(_) => return scanner.position(),
                // The chunk ends behind the fault, which is told there.
                Err(_) => match scanner.skip_line() {
                    Some(_) => {}
                    None => return scanner.position(),
                },
            }
        }
    }
    // Every quote toggles: an even number of them before a line end says that
    // it ends a record.
    let mut quotes = memchr::memchr_iter(dialect.quote, bytes).count();
    let mut upto = bytes.len();
    while let Some(at) = memchr::memrchr2(dialect.quote, end, &bytes[..upto]) {
        if bytes[at] == dialect.quote {
            quotes -= 1;
        } else if quotes % 2 == 0 {
            return at + 1;
        }
        upto = at;
    }
    0
}

/// Reads all sources in order.
pub struct Reader {
    sources: Vec<Source>,
    dialect: Option<Dialect>,
    header: Header,
    first_header: Option<HeaderLine>,
    current: Option<InputFile>,
    next_file: usize,
    sequence: u64,
    skip: u64,
    limit: Option<u64>,
    total: u64,
    raw_read: Vec<Arc<AtomicU64>>,
}

impl Reader {
    /// Opens the first source and reads its header; looks whether the others
    /// are there.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    pub fn open(options: &InputOptions) -> Result<Reader, Error> {
        let mut total = 0;
        for source in &options.sources {
            let Source::File(path) = source else { continue };
            let facts =
                std::fs::metadata(path).map_err(|e| Error::io("open", &source.name(), &e))?;
            total += facts.len();
        }
        let dialect = match &options.format {
            FileFormat::Delimited(dialect) => Some(dialect.clone()),
            FileFormat::Binary => None,
        };
        let mut reader = Reader {
            sources: options.sources.clone(),
            dialect,
            header: options.header,
            first_header: None,
            current: None,
            next_file: 0,
            sequence: 0,
            skip: options.skip,
            limit: options.limit,
            total,
            raw_read: Vec::new(),
        };
        reader.open_next()?;
        Ok(reader)
    }

    /// The first file's header, if headers were asked for.
    pub fn header(&self) -> Option<&HeaderLine> {
        self.first_header.as_ref()
    }

    /// The bytes that lie before the next record, as far as they are held: a
    /// sample to infer types from. The second value says that it is all there is.
    pub fn sample(&self) -> (&[u8], bool) {
        self.current.as_ref().map_or((&[], true), |f| (&f.held, f.ended))
    }

    /// Bytes of all files together; 0 where nobody knows.
    pub fn total_bytes(&self) -> u64 {
        if self.sources.contains(&Source::Stdin) {
            0
        } else {
            self.total
        }
    }

    /// Bytes that came from the disk so far.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_read.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// How the first file is compressed.
    pub fn compression(&self) -> Option<Compression> {
        self.current.as_ref().and_then(|f| f.compression)
    }

    fn open_next(&mut self) -> Result<bool, Error> {
        let Some(source) = self.sources.get(self.next_file) else { return Ok(false) };
        let mut file = InputFile::open(self.next_file, source, self.dialect.is_some())?;
        self.raw_read.push(file.raw_read.clone());
        if let (Some(dialect), true) = (&self.dialect, self.header != Header::None) {
            let header = file.take_header(dialect)?;
            match &self.first_header {
                None => self.first_header = header,
                Some(first) => {
                    let differs = header.is_some_and(|h| h.fields != first.fields);
                    if differs && self.header != Header::Ignore {
                        return Err(Error::new(format!(
                            "{}, line 1: the header differs from that of {}",
                            file.name,
                            self.sources[0].name()
                        )));
                    }
                }
            }
        }
        self.next_file += 1;
        self.current = Some(file);
        Ok(true)
    }

    /// The next chunk; `None` at the end of the last source. `free` is memory
    /// to use.
    ///
    /// # Errors
    ///
    /// A source cannot be read, or has changed.
    pub fn next(&mut self, mut free: Vec<u8>) -> Result<Option<Chunk>, Error> {
        loop {
            let Some(file) = &mut self.current else { return Ok(None) };
            if self.limit == Some(0) {
                return Ok(None);
            }
            match file.next(self.dialect.as_ref(), free)? {
                Some(mut chunk) => {
                    if let Some(dialect) = &self.dialect {
                        chunk.pass(&mut self.skip, dialect);
                        chunk.limit(&mut self.limit, dialect);
                    }
                    if chunk.bytes.is_empty() && !chunk.last && chunk.passed == Counts::default() {
                        free = chunk.bytes;
                        continue;
                    }
                    chunk.sequence = self.sequence;
                    self.sequence += 1;
                    return Ok(Some(chunk));
                }
                None => {
                    self.current = None;
                    free = Vec::new();
                    if !self.open_next()? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

impl Chunk {
    /// Passes over as many of the first records as are still to be skipped.
    fn pass(&mut self, skip: &mut u64, dialect: &Dialect) {
        if *skip == 0 || self.bytes.is_empty() {
            return;
        }
        if self.part != Part::Whole {
            let counts = self.count(dialect);
            *skip -= counts.records;
            self.passed += counts;
            self.offset += self.bytes.len() as u64;
            self.bytes.clear();
            return;
        }
        let (records, lines, end) = self.first_records(*skip, dialect);
        *skip -= records;
        self.passed += Counts { records, lines };
        self.bytes.drain(..end);
        self.offset += end as u64;
    }

    /// Cuts the chunk off behind the last record that is still to be read.
    fn limit(&mut self, limit: &mut Option<u64>, dialect: &Dialect) {
        let Some(left) = limit else { return };
        if self.part != Part::Whole {
            *left -= self.count(dialect).records;
            return;
        }
        let (records, _, end) = self.first_records(*left, dialect);
        *left -= records;
        if *left == 0 {
            self.bytes.truncate(end);
            self.last = true;
        }
    }

    /// How many of the first `most` records there are, their lines, and where
    /// they end.
    fn first_records(&self, most: u64, dialect: &Dialect) -> (u64, u64, usize) {
        let mut record = Record::default();
        let mut scanner = self.scanner(dialect);
        let mut records = 0;
        while records < most {
            match scanner.next(&mut record) {
                Ok(Next::Record) => records += 1,
                Ok(_) => break,
                Err(_) => match scanner.skip_line() {
                    Some((from, to)) if from < to => records += 1,
                    _ => break,
                },
            }
        }
        (records, scanner.lines(), scanner.position())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_where_the_scanner_says() {
        let csv = Dialect::csv();
        let slow = Dialect { escape: b'\\', ..Dialect::csv() };
        let data: [&[u8]; 5] =
            [b"a,b\nc,\"d\ne", b"a\n", b"\"a\n\n", b"a\"b\nc\"\nd", b"x,\"\"\"\n\"\ny,\""];
        for bytes in data {
            let fast = last_record_end(bytes, &csv, Eol::Nl);
            let expected = {
                let mut scanner = Scanner::new(bytes, false, &csv, Eol::Nl);
                while scanner.next(&mut Record::default()) == Ok(Next::Record) {}
                scanner.position()
            };
            assert_eq!(fast, expected);
        }
        assert_eq!(last_record_end(b"\"a\\\"\n\"\nb", &slow, Eol::Nl), 7);
    }

    #[test]
    fn chunks_are_the_file() {
        let dir = std::env::temp_dir().join(format!("pgsluice-reader-{}", std::process::id()));
        let mut data = b"n,t\n".to_vec();
        for i in 0..200_000 {
            data.extend_from_slice(format!("{i},\"line {i}\nand \"\"more\"\"\"\n").as_bytes());
        }
        data.extend_from_slice(b"\"");
        data.resize(data.len() + (9 << 20), b'x');
        data.extend_from_slice(b"\"\nend,1\n");
        std::fs::write(&dir, &data).unwrap();
        let options = InputOptions {
            sources: vec![Source::File(dir.clone())],
            format: FileFormat::Delimited(Dialect::csv()),
            header: Header::Names,
            encoding: None,
            skip: 3,
            limit: None,
        };
        let mut reader = Reader::open(&options).unwrap();
        let names = reader.header().unwrap().fields.clone();
        assert_eq!(names, [Some(b"n".to_vec()), Some(b"t".to_vec())]);
        let (mut counts, mut passed, mut end) = (Counts::default(), Counts::default(), 4 + 3 * 24);
        let mut parts = Vec::new();
        while let Some(chunk) = reader.next(Vec::new()).unwrap() {
            assert!(data[end..].starts_with(&chunk.bytes));
            end += chunk.bytes.len();
            passed += chunk.passed;
            counts += chunk.count(&Dialect::csv());
            parts.push(chunk.part);
        }
        std::fs::remove_file(dir).unwrap();
        assert_eq!(end, data.len());
        assert_eq!(passed, Counts { records: 3, lines: 7 });
        assert_eq!(counts.records, 200_000 - 3 + 2);
        assert!(parts.contains(&Part::Piece) && parts.contains(&Part::LastPiece));
    }
}
