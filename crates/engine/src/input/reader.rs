//! Reads the sources one after another.

use super::chunk::{Chunk, Counts};
use super::decompress::Compression;
use super::file::{HeaderLine, InputFile};
use super::known::{changed, KnownPiece, KnownRanges};
use super::records::Layout;
use crate::error::Error;
use crate::frame::{without_comments, Frame, Passed};
use crate::options::{FileFormat, Header, InputOptions};
use crate::source::Source;
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers of skipped lines that are not records. They grow while a [`Reader`] reads.
#[derive(Clone, Default)]
pub struct PassedLines(Arc<Mutex<Passed>>);

/// The bytes at the start of a file that are held in memory, without its header.
pub struct HeldStart<'a> {
    pub bytes: Cow<'a, [u8]>,
    /// whether they are the rest of the file
    pub ended: bool,
    /// the line end, if the header has shown it
    pub eol: Eol,
}

impl HeldStart<'_> {
    /// A scanner of its records.
    pub fn scanner<'s>(&'s self, dialect: &'s Dialect) -> Scanner<'s> {
        Scanner::new(&self.bytes, self.ended, dialect, self.eol)
    }
}

impl PassedLines {
    /// The numbers so far.
    pub fn get(&self) -> Passed {
        *self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn add(&self, passed: Passed) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) += passed;
    }
}

/// Reads all sources in order.
pub struct Reader {
    sources: Vec<Arc<dyn Source>>,
    notes: Vec<String>,
    layout: Layout,
    header: Header,
    /// no option gives an encoding other than UTF-8
    utf8: bool,
    first_header: Option<HeaderLine>,
    current: Option<InputFile>,
    next_file: usize,
    sequence: u64,
    skip: u64,
    limit: Option<u64>,
    total: u64,
    /// number of bytes that were read of the files before the current one
    raw_before: u64,
    frame: Frame,
    /// the line of the first file that names the delimiter, as Excel reads it
    excel: Option<Vec<u8>>,
    passed_lines: PassedLines,
    /// empty lines at the ends of files are skipped
    blank: bool,
    /// a file begins with a byte order mark
    marked: bool,
    /// the number of lines of the current file so far, if they are counted
    lines: Option<u64>,
    /// the approximate maximum number of records in a chunk
    most_records: usize,
    /// the ranges of each file that an earlier load has loaded
    known: Vec<KnownRanges>,
    /// set when all known ranges of a source have been skipped
    compared: Arc<AtomicBool>,
    /// the bytes after the last chunk, which was cut before a known range
    cut_off: Option<Chunk>,
}

impl Reader {
    /// Opens the first source and reads its header. If that source is empty, the header is that of
    /// the first source that is not. Checks that the other sources exist.
    ///
    /// # Errors
    ///
    /// One of the sources cannot be read.
    pub fn open(options: &InputOptions) -> Result<Reader, Error> {
        let lengths = options
            .sources
            .iter()
            .map(|source| source.length().map_err(|e| Error::io("open", &source.name(), &e)));
        let lengths = lengths.collect::<Result<Vec<Option<u64>>, Error>>()?;
        let total = lengths.into_iter().sum::<Option<u64>>().unwrap_or(0);
        // The columns of tuples are known only when the table is: see `read_as`.
        let layout = options.dialect().map_or(Layout::Tuples(Vec::new()), Layout::Lines);
        let mut reader = Reader {
            sources: options.sources.clone(),
            notes: options.notes.clone(),
            layout,
            header: options.header,
            utf8: options.encoding.is_none(),
            first_header: None,
            current: None,
            next_file: 0,
            sequence: 0,
            skip: options.skip,
            limit: options.limit,
            total,
            raw_before: 0,
            frame: options.frame,
            excel: None,
            passed_lines: PassedLines::default(),
            blank: false,
            marked: false,
            lines: None,
            most_records: usize::MAX,
            known: Vec::new(),
            compared: Arc::default(),
            cut_off: None,
        };
        // The first header that is found decides which columns the fields of all files belong to.
        // A binary file has none.
        let headed = reader.header != Header::None && reader.layout.dialect().is_some();
        while reader.open_next()? && headed && reader.first_header.is_none() {}
        reader.frame.delimiter_named = true;
        Ok(reader)
    }

    /// Returns the options by which the files are read: `options`, with the delimiter that the
    /// first file names.
    pub fn settled(&self, options: &InputOptions) -> InputOptions {
        let mut options = options.clone();
        if let (Some(_), FileFormat::Delimited(d)) = (&self.excel, &mut options.format) {
            d.delimiter = self.layout.dialect().map_or(d.delimiter, |own| own.delimiter);
            options.frame.delimiter_named = true;
        }
        options
    }

    /// Returns notes for the user about how the files are read.
    pub fn notes(&self) -> Vec<String> {
        let mark = self.marked.then_some("the byte order mark at the start of the file is skipped");
        let excel = self.excel.as_ref().map(|line| {
            format!(
                "the first line names the delimiter: {}",
                String::from_utf8_lossy(line).trim_end()
            )
        });
        let found = mark.map(str::to_owned).into_iter().chain(excel);
        self.notes.iter().cloned().chain(found).collect()
    }

    /// Returns the line of the first file that names the delimiter, if there is one, and the
    /// header.
    pub fn head(&self) -> Option<Vec<u8>> {
        let header = self.first_header.as_ref().map(|header| header.bytes.as_slice());
        let head = [self.excel.as_deref().unwrap_or_default(), header.unwrap_or_default()].concat();
        (!head.is_empty()).then_some(head)
    }

    /// Returns the counters of skipped lines that are not records.
    pub fn passed_lines(&self) -> PassedLines {
        self.passed_lines.clone()
    }

    /// From here on, the files are read by these rules, which are the server's.
    pub fn read_as(&mut self, layout: &Layout) {
        self.layout.clone_from(layout);
    }

    /// Skips the ranges of each file that an earlier load has loaded. The `whole` files must not
    /// have any other bytes. Sets `compared` when a source has the same bytes in all of its ranges.
    ///
    /// # Errors
    ///
    /// A part of a file was loaded, but the file is empty now.
    pub fn know(
        &mut self,
        known: &[Vec<KnownPiece>],
        whole: &[bool],
        compared: &Arc<AtomicBool>,
    ) -> Result<(), Error> {
        self.compared.clone_from(compared);
        let ranges = |(pieces, whole): (&Vec<KnownPiece>, &bool)| match whole {
            true => KnownRanges::new(pieces).whole(),
            false => KnownRanges::new(pieces),
        };
        self.known = known.iter().zip(whole).map(ranges).collect();
        // Empty files before the first header are not read again.
        let passed = self.next_file.saturating_sub(1);
        match self.known.iter().take(passed).position(|known| known.missing().is_some()) {
            Some(file) => Err(changed(&self.sources[file].name(), &known[file][0].bytes)),
            None => Ok(()),
        }
    }

    /// From here on, each chunk has the number of lines of its file before it.
    pub fn count_lines(&mut self) {
        self.lines = Some(0);
    }

    /// From here on, a chunk has at most about `most` records.
    pub fn limit_chunks(&mut self, most: usize) {
        self.most_records = most.max(1);
    }

    /// From here on, empty lines at the end of a file are skipped if records have several `fields`.
    /// If records have one field, such a line is a record.
    pub fn pass_blank_ends(&mut self, fields: usize) {
        self.blank = self.layout.dialect().is_some() && fields > 1;
    }

    /// Returns the first header, if headers were requested: that of the first file that is not
    /// empty.
    pub fn header(&self) -> Option<&HeaderLine> {
        self.first_header.as_ref()
    }

    /// The number of fields of the first record; 1 if it is not known.
    pub fn width(&self) -> usize {
        let Some(dialect) = self.layout.dialect() else { return 1 };
        let sample = self.sample();
        let mut record = Record::default();
        match sample.scanner(dialect).next(&mut record) {
            Ok(Next::Record) => record.len(),
            _ => 1,
        }
    }

    /// Returns the held bytes that follow, without comments, as a sample to infer types from.
    pub fn sample(&self) -> HeldStart<'_> {
        let Some(file) = &self.current else {
            return HeldStart { bytes: Cow::Borrowed(&[]), ended: true, eol: Eol::Unknown };
        };
        let bytes = match (self.frame.comment, self.layout.dialect()) {
            (Some(comment), Some(dialect)) => {
                without_comments(&file.held, file.ended, dialect, comment).into()
            }
            _ => Cow::Borrowed(&file.held[..]),
        };
        HeldStart { bytes, ended: file.ended, eol: file.eol }
    }

    /// Whether the input certainly has no records.
    pub fn has_none(&self) -> bool {
        let none = self.current.as_ref().is_none_or(|f| f.held.is_empty() && f.ended);
        none && self.next_file >= self.sources.len()
    }

    /// Estimates the number of records of all files from the first bytes of the first file, after
    /// decompression. `None` if too little is known.
    pub fn estimate(&self) -> Option<u64> {
        self.layout.dialect()?;
        let file = self.current.as_ref()?;
        let lines = memchr::memchr_iter(b'\n', &file.held).count() as u64;
        if file.ended && self.sources.len() == 1 {
            return Some(
                lines + u64::from(!file.held.is_empty() && file.held.last() != Some(&b'\n')),
            );
        }
        let read = file.sampled();
        (self.total_bytes() > 0 && read > 0)
            .then(|| (lines as f64 * self.total_bytes() as f64 / read as f64) as u64)
    }

    /// The size of all files in bytes; 0 if it is not known.
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Number of bytes that were read from disk so far.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_before + self.current.as_ref().map_or(0, InputFile::raw_bytes)
    }

    /// The compression of the current file.
    pub fn compression(&self) -> Option<Compression> {
        self.current.as_ref().and_then(|f| f.compression)
    }

    fn open_next(&mut self) -> Result<bool, Error> {
        let Some(source) = self.sources.get(self.next_file).cloned() else { return Ok(false) };
        let opened = self.open_source(source.as_ref());
        opened.map_err(|error| error.of_file(&source.name())).map(|()| true)
    }

    fn open_source(&mut self, source: &dyn Source) -> Result<(), Error> {
        let dialect = self.layout.dialect();
        let mut file = InputFile::open(self.next_file, source, dialect, self.utf8, &self.frame)?;
        self.marked |= dialect.is_some() && file.offset > 0;
        let in_the_middle = source.span().is_some_and(|span| span.head == 0);
        if let (Layout::Lines(dialect), false) = (&mut self.layout, in_the_middle) {
            let line = file.pass_head(dialect, &self.frame)?;
            self.frame.delimiter_named |= line.is_some();
            self.excel = self.excel.take().or(line);
        }
        if let (Some(dialect), true) = (self.layout.dialect(), self.header != Header::None) {
            let header = file.take_header(dialect)?;
            file.pass_comments(dialect)?;
            match &self.first_header {
                None => self.first_header = header,
                Some(first) => {
                    let differs = header.filter(|h| h.fields != first.fields);
                    if let Some(header) = differs.filter(|_| self.header != Header::Ignore) {
                        return Err(Error::new(format!(
                            "{}, line {}: the header differs from that of {}",
                            file.name, header.line, first.file
                        )));
                    }
                }
            }
        }
        if let Some(span) = source.span() {
            file.go_to(span)?;
        }
        self.next_file += 1;
        self.raw_before = self.raw_bytes();
        self.current = Some(file);
        Ok(())
    }

    /// Returns the next chunk; `None` at the end of the last source. `free` is memory to use.
    ///
    /// # Errors
    ///
    /// A source cannot be read, or has changed.
    pub fn next(&mut self, free: Vec<u8>) -> Result<Option<Chunk>, Error> {
        self.read_on(free).map_err(|error| match &self.current {
            Some(file) => error.of_file(&file.name),
            None => error,
        })
    }

    fn read_on(&mut self, mut free: Vec<u8>) -> Result<Option<Chunk>, Error> {
        loop {
            let Some(file) = &mut self.current else { return Ok(None) };
            if self.limit == Some(0) {
                return Ok(None);
            }
            let next = match self.cut_off.take() {
                Some(chunk) => Some(chunk),
                None => file.next(&self.layout, self.blank, self.most_records, free)?,
            };
            let known = self.known.get_mut(self.next_file - 1);
            match next {
                Some(mut chunk) => {
                    chunk.known += std::mem::take(&mut file.before);
                    if let Some(known) = known {
                        self.cut_off = known.pass(&file.name, &mut chunk, &self.layout)?;
                        known.check_rest(&file.name, &chunk)?;
                        if known.missing().is_none() {
                            self.compared.store(true, Ordering::Release);
                        }
                    }
                    chunk.pass(&mut self.skip, &self.layout);
                    chunk.limit(&mut self.limit, &self.layout);
                    let mut passed = std::mem::take(&mut file.passed_over);
                    if self.limit == Some(0) {
                        // The lines after the last record that is read are not read, so they are
                        // not skipped lines.
                        (passed.footer, passed.blank) = (0, 0);
                    }
                    self.passed_lines.add(passed);
                    let before = [chunk.passed, chunk.known];
                    if chunk.bytes.is_empty() && !chunk.last && before == [Counts::default(); 2] {
                        free = chunk.bytes;
                        continue;
                    }
                    if let Some(lines) = &mut self.lines {
                        // Without the line end, the lines of the first record would be miscounted.
                        chunk.eol = chunk.line_end(&self.layout);
                        chunk.line = *lines + chunk.passed.lines + chunk.known.lines;
                        *lines = chunk.line + chunk.count(&self.layout).lines;
                    }
                    chunk.sequence = self.sequence;
                    self.sequence += 1;
                    return Ok(Some(chunk));
                }
                None => {
                    if let Some(missing) = known.and_then(|known| known.missing().cloned()) {
                        return Err(changed(&file.name, &missing));
                    }
                    self.raw_before = self.raw_bytes();
                    self.current = None;
                    self.lines = self.lines.map(|_| 0);
                    free = Vec::new();
                    if !self.open_next()? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Part;
    use crate::options::FileFormat;
    use pgsluice_core::scan::Dialect;

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
            sources: vec![Arc::new(crate::source::FileSource::new(&dir))],
            notes: Vec::new(),
            format: FileFormat::Delimited(Dialect::csv()),
            header: Header::Names,
            encoding: None,
            skip: 3,
            limit: None,
            first_is_data: false,
            frame: Frame::default(),
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
            counts += chunk.count(&Layout::Lines(Dialect::csv()));
            parts.push(chunk.part);
        }
        std::fs::remove_file(dir).unwrap();
        assert_eq!(end, data.len());
        assert_eq!(passed, Counts { records: 3, lines: 7 });
        assert_eq!(counts.records, 200_000 - 3 + 2);
        assert!(parts.contains(&Part::Piece) && parts.contains(&Part::LastPiece));
    }
}
