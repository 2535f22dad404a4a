//! The splitter: fast equals naive, and chunks that end at its cuts, scanned
//! apart, are the whole.

use pgsluice_core::scan::{whole_records, Dialect, Eol, Processor, Scanner, Splitter};

use crate::scan::{self, Scanned};

/// Checks every rule on one file that comes in blocks of `size` bytes.
pub fn check(dialect: &Dialect, data: &[u8], size: usize) {
    let whole = scan::naive(dialect, data);
    for processor in Processor::available() {
        let parts = in_parts(dialect, data, size, *processor);
        let text = String::from_utf8_lossy(data);
        assert_eq!(parts, whole, "{processor:?}, blocks of {size}: {dialect:?} {text:?}");
    }
}

/// Cuts at the last record end of every block, and scans what lies between cuts. After a stray
/// quote, the records are walked through instead.
fn in_parts(dialect: &Dialect, data: &[u8], size: usize, processor: Processor) -> Scanned {
    let strict = scan::strict(dialect);
    let mut splitter = Splitter::new(dialect, Eol::Unknown).on(processor);
    let mut naive = Splitter::new(dialect, Eol::Unknown);
    let mut outcome = Scanned::new();
    let (mut start, mut marker, mut stray, mut walked) = (0, false, false, false);
    for (i, block) in data.chunks(size).enumerate() {
        let mut cuts = splitter.feed(block);
        assert_eq!(cuts, naive.feed_naive(block), "{processor:?}");
        assert_eq!(splitter.eol(), naive.eol());
        assert!(cuts.first <= cuts.last && cuts.last <= Some(block.len()));
        marker |= cuts.marker;
        stray |= strict && cuts.stray;
        let fed = i * size + block.len();
        if stray {
            walked = true;
            let (end, eol) = whole_records(&data[start..fed], false, dialect, outcome.eol);
            cuts.last = (end > 0).then_some((start + end).wrapping_sub(i * size));
            if end > 0 {
                splitter = Splitter::new(dialect, eol).on(processor);
                naive = Splitter::new(dialect, eol);
                let rest = &data[start + end..fed];
                let rest = (splitter.feed(rest), naive.feed_naive(rest));
                assert_eq!(rest.0, rest.1);
                stray = rest.0.stray;
            }
        }
        let Some(last) = cuts.last else { continue };
        let end = (i * size).wrapping_add(last);
        if !scan_part(&mut outcome, dialect, data, start, end) {
            assert!(marker || !outcome.ended, "the data ended without notice");
            return outcome;
        }
        assert!(walked || outcome.lines == cuts.lines, "lines up to {end}");
        start = end;
    }
    scan_part(&mut outcome, dialect, data, start, data.len());
    outcome
}

/// Scans one chunk to its end; tells whether to go on.
fn scan_part(o: &mut Scanned, dialect: &Dialect, data: &[u8], start: usize, end: usize) -> bool {
    let chunk = &data[start..end];
    let scanner = Scanner::new(chunk, true, dialect, o.eol);
    scan::scan_chunk(o, chunk, start, scan::strict(dialect), scanner, |s, r| s.next(r)).1
}

/// The fuzz target; the bytes are those of [`scan::target`].
pub fn target(bytes: &[u8]) {
    let Some((dialect, size, data)) = scan::input(bytes) else { return };
    check(&dialect, data, size);
}
