//! The scanner in blocks of 64 bytes. It makes one pass, and copies no field whose value is its raw
//! bytes.
//!
//! It handles only well-formed records. All else (a malformed record, the first line and the last,
//! `\.`, no memory) is left to [`super::naive`], from the start of the record. The two scanners can
//! therefore not reject different records.

use super::marks::{Carry, Marks, Rules};
use super::simd::{Lanes, BLOCK};
use super::{strict, unescape};
use super::{Dialect, DotLine, Eol, FieldKind, Format, Next, Record, Scanner, MAX_RECORD};

/// The scanner's current block, and the marks in it that are not used yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// the position of the block in the chunk
    base: usize,
    marks: Marks,
    carry: Carry,
}

impl Window {
    /// A window without marks before `position`, where a record begins. The next block is loaded
    /// from there.
    pub(super) fn before(position: usize) -> Self {
        Window { base: position.wrapping_sub(BLOCK), ..Window::default() }
    }

    /// Loads the block at `base`. Marks before `from` are cleared.
    ///
    /// # Safety
    ///
    /// The processor has the features that `L` needs.
    #[inline(always)]
    unsafe fn load<L: Lanes>(
        base: usize,
        from: usize,
        chunk: &[u8],
        rules: &Rules,
        eol: Eol,
        mut carry: Carry,
    ) -> Window {
        let rest = &chunk[base..];
        let mut tail = [0; BLOCK];
        let block = match rest.first_chunk::<BLOCK>() {
            Some(block) => block,
            None => {
                tail[..rest.len()].copy_from_slice(rest);
                &tail
            }
        };
        // SAFETY: the caller guarantees what `L` needs.
        let mut marks = unsafe { Marks::of::<L>(block, rules, eol, &mut carry) };
        if rest.len() < BLOCK {
            let there = (1 << rest.len()) - 1;
            marks.ends &= there;
            marks.inside &= there;
        }
        if from > base {
            // This is the LF of the CR LF that ended the record before.
            marks.ends &= u64::MAX << (from - base);
        }
        Window { base, marks, carry }
    }
}

/// Whether the record at `start` may begin with the marker for the end of the data.
#[inline(always)]
fn may_be_marker(dialect: &Dialect, chunk: &[u8], start: usize) -> bool {
    chunk[start] == b'\\' && dialect.format == Format::Csv && dialect.dot_line == DotLine::Ends
}

/// Whether the field at `field`, which has a quote and continues after the block at `base`, may be
/// enclosed in quotes. After a stray quote, its end might be far away.
#[inline(never)]
fn may_be_quoted(dialect: &Dialect, chunk: &[u8], field: usize, base: usize) -> bool {
    /// after this many bytes, it pays to look for the quote that closes the field
    const LONG: usize = 256 * BLOCK;
    if chunk.get(field) != Some(&dialect.quote) {
        return false;
    }
    if base.saturating_sub(field) / BLOCK != LONG / BLOCK {
        return true;
    }
    let next = strict::closing(dialect, chunk, field + 1).and_then(|at| chunk.get(at));
    next.is_none_or(|c| *c == dialect.delimiter || matches!(c, b'\r' | b'\n'))
}

/// Scans the record at the scanner's position. `None`: the naive scanner must scan it.
///
/// # Safety
///
/// The processor has the features that `L` needs.
#[inline(always)]
pub(super) unsafe fn next<L: Lanes>(
    s: &mut Scanner<'_>,
    rules: &Rules,
    record: &mut Record,
) -> Option<Next> {
    let (chunk, dialect, start) = (s.chunk, s.dialect, s.position);
    if s.ended || start == chunk.len() || may_be_marker(dialect, chunk, start) {
        return None;
    }
    record.clear();
    let mut window = s.window;
    let mut field = start;
    // Counts in earlier blocks: quotes and escapes of this field, and lines of this record.
    let (mut inside, mut lines) = (0, 0);
    loop {
        while window.marks.ends != 0 {
            let bit = window.marks.ends & window.marks.ends.wrapping_neg();
            let at = window.base + bit.trailing_zeros() as usize;
            window.marks.ends ^= bit;
            let within = window.marks.inside & (bit - 1);
            if within == 0 && inside == 0 {
                record.push(field, at, dialect.kind_of_raw(&chunk[field..at])).ok()?;
            } else {
                window.marks.inside ^= within;
                inside += within.count_ones() as usize;
                // SAFETY: the caller guarantees what `L` needs.
                unsafe { resolve::<L>(dialect, chunk, field, at, inside, s.strict, record)? };
                inside = 0;
            }
            if chunk[at] == dialect.delimiter {
                field = at + 1;
                continue;
            }
            let next = line_end(chunk, at, s.eol)?;
            if next - start >= MAX_RECORD {
                return None;
            }
            let quoted = window.marks.quoted_lines & (bit - 1);
            window.marks.quoted_lines ^= quoted;
            lines += u64::from(quoted.count_ones());
            if next - at == 2 {
                // The LF after the CR is not another end. In the next block, loading clears it.
                window.marks.ends &= !(bit << 1);
            }
            s.line += lines + 1;
            s.position = next;
            s.window = window;
            record.start = start;
            record.end = next;
            record.line = s.line;
            return Some(Next::Record);
        }
        inside += window.marks.inside.count_ones() as usize;
        if s.strict && inside != 0 && !may_be_quoted(dialect, chunk, field, window.base) {
            return None;
        }
        lines += u64::from(window.marks.quoted_lines.count_ones());
        let base = window.base.wrapping_add(BLOCK);
        if base >= chunk.len() {
            return if s.strict && inside != 0 { None } else { unfinished(s, record) };
        }
        // SAFETY: the caller guarantees what `L` needs.
        window = unsafe { Window::load::<L>(base, start, chunk, rules, s.eol, window.carry) };
    }
}

/// [`next`], compiled for AVX2.
///
/// # Safety
///
/// [`super::simd::has_avx2`] holds.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,pclmulqdq")]
pub(super) unsafe fn next_avx2(
    s: &mut Scanner<'_>,
    rules: &Rules,
    record: &mut Record,
) -> Option<Next> {
    // SAFETY: the caller guarantees AVX2 and the other features.
    unsafe { next::<super::simd::Avx2>(s, rules, record) }
}

/// [`next`], compiled for AVX-512.
///
/// # Safety
///
/// [`super::simd::has_avx512`] holds.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,pclmulqdq")]
pub(super) unsafe fn next_avx512(
    s: &mut Scanner<'_>,
    rules: &Rules,
    record: &mut Record,
) -> Option<Next> {
    // SAFETY: the caller guarantees AVX-512 and the other features.
    unsafe { next::<super::simd::Avx512>(s, rules, record) }
}

/// The chunk ends within a record: either more bytes are needed, or it is the last record.
fn unfinished(s: &Scanner<'_>, record: &mut Record) -> Option<Next> {
    if s.last || s.chunk.len() - s.position >= MAX_RECORD {
        return None;
    }
    // Nothing is kept of a partial record.
    record.clear();
    record.start = s.position;
    record.end = s.position;
    record.line = s.line + 1;
    Some(Next::Partial)
}

/// The position of the next record, if the line end at `at` is of the known kind.
#[inline(always)]
fn line_end(chunk: &[u8], at: usize, eol: Eol) -> Option<usize> {
    match (eol, chunk[at]) {
        (Eol::Nl, b'\n') | (Eol::Cr, b'\r') => Some(at + 1),
        (Eol::CrNl, b'\r') if chunk.get(at + 1) == Some(&b'\n') => Some(at + 2),
        _ => None,
    }
}

/// Adds the field from `from` to `to`, which has `inside` quotes and escapes.
///
/// # Safety
///
/// The processor has the features that `L` needs.
#[inline(never)]
unsafe fn resolve<L: Lanes>(
    dialect: &Dialect,
    chunk: &[u8],
    from: usize,
    to: usize,
    inside: usize,
    strict: bool,
    record: &mut Record,
) -> Option<()> {
    let raw = &chunk[from..to];
    if dialect.format == Format::Text {
        return text(dialect, raw, from, to, record);
    }
    let enclosed = raw.len() >= 2 && raw[0] == dialect.quote && raw[raw.len() - 1] == dialect.quote;
    if enclosed && inside == 2 {
        let kind = dialect.kind_of_quoted(&raw[1..raw.len() - 1]);
        return record.push(from + 1, to - 1, kind).ok();
    }
    // Reserve more than the field, so that most copies can be made in whole steps.
    record.room(raw.len() + BLOCK).ok()?;
    let start = record.scratch.len();
    let simple = enclosed
        && dialect.quote == dialect.escape
        // SAFETY: the caller guarantees what `L` needs.
        && unsafe { L::halve(&raw[1..raw.len() - 1], dialect.quote, &mut record.scratch) };
    let quoted = simple
        || match strict {
            true => unescape::enclosed(dialect, raw, &mut record.scratch)?,
            false => unescape::csv(dialect, raw, &mut record.scratch)?,
        };
    let kind = if quoted {
        dialect.kind_of_quoted(&record.scratch[start..])
    } else {
        dialect.kind_of_raw(raw)
    };
    record.push_scratch(start, kind).ok()
}

/// Adds a field of text format that has backslashes.
fn text(dialect: &Dialect, raw: &[u8], from: usize, to: usize, record: &mut Record) -> Option<()> {
    record.room(raw.len()).ok()?;
    let start = record.scratch.len();
    // This comes first, because a field that equals a marker may contain `\.`.
    unescape::text(raw, &mut record.scratch)?;
    match dialect.kind_of_raw(raw) {
        FieldKind::Plain => record.push_scratch(start, FieldKind::Plain).ok(),
        marker => {
            record.scratch.truncate(start);
            record.push(from, to, marker).ok()
        }
    }
}
