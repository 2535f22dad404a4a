//! PGCOPY: any cutting into blocks sees the same tuples, and the same fault.

use pgsluice_core::scan::binary::{header, Corrupt, TupleSplitter, Tuples, HEADER_LEN};

use crate::rng::Random;

/// Tuples that were read, and how the stream ended: the fault, its line and the
/// index of its column.
pub type BinaryOutcome = (u64, Option<(Corrupt, u64, Option<usize>)>);

/// Reads all of a stream, the header excluded, at once.
pub fn whole(data: &[u8], columns: i16) -> BinaryOutcome {
    let mut tuples = Tuples::new(data, columns);
    let mut fields = Vec::new();
    let mut seen = 0;
    loop {
        let start = tuples.position();
        match tuples.next(&mut fields) {
            Ok(true) => {
                assert_eq!(fields.len(), columns as usize);
                let ends = fields.iter().flatten().map(|f| f.end);
                assert!(ends.fold(start, |a, b| if b >= a { b } else { usize::MAX }) <= data.len());
                seen += 1;
            }
            Ok(false) => return (seen, None),
            Err(fault) => {
                let whole_tuple =
                    matches!(fault, Corrupt::FieldCount { .. } | Corrupt::AfterTrailer);
                let column = (!whole_tuple).then_some(fields.len());
                return (seen, Some((fault, tuples.line(), column)));
            }
        }
    }
}

/// Reads the same in blocks of `size` bytes.
pub fn in_blocks(data: &[u8], columns: i16, size: usize) -> BinaryOutcome {
    let mut splitter = TupleSplitter::new(columns);
    let (mut base, mut last) = (0, 0);
    for block in data.chunks(size) {
        let (cuts, fed) = splitter.feed(block);
        assert!(cuts.first <= cuts.last && cuts.last <= Some(block.len()));
        last = cuts.last.map_or(last, |cut| base + cut);
        base += block.len();
        let before = whole(&data[..last], columns);
        assert_eq!(before, (cuts.tuples, None), "a cut is where a tuple ends");
        if let Err(fault) = fed {
            return (cuts.tuples, Some((fault, splitter.line(), splitter.column())));
        }
    }
    let tuples = splitter.line() - 1;
    let fault = splitter.finish().err();
    (tuples, fault.map(|fault| (fault, splitter.line(), splitter.column())))
}

/// A stream of some tuples, most of them sound, behind a header.
pub fn stream(rng: &mut Random, columns: i16) -> Vec<u8> {
    let mut out = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    for _ in 0..rng.below(6) {
        out.extend_from_slice(&columns.to_be_bytes());
        for _ in 0..columns {
            if rng.once_in(4) {
                out.extend_from_slice(&(-1_i32).to_be_bytes());
            } else {
                let len = rng.below(20);
                out.extend_from_slice(&(len as i32).to_be_bytes());
                out.extend((0..len).map(|_| rng.bits() as u8));
            }
        }
    }
    if !rng.once_in(4) {
        out.extend_from_slice(b"\xff\xff");
    }
    match rng.below(6) {
        0 => out.truncate(rng.below(out.len() + 1)),
        1 | 2 => {
            let at = rng.below(out.len());
            out[at] = rng.pick(&[0, 1, 2, 3, 127, 128, 254, 255]);
        }
        3 => out.push(rng.bits() as u8),
        4 if rng.once_in(2) => {
            let extension = rng.below(4);
            out[18] = extension as u8;
            out.splice(19..19, vec![7; extension]);
        }
        _ => {}
    }
    out
}

/// The fuzz target: columns, the size of a block, then the stream.
pub fn target(bytes: &[u8]) {
    let Some((head, data)) = bytes.split_first_chunk::<2>() else { return };
    let (columns, size) = (i16::from(head[0] % 8), 1 + usize::from(head[1]));
    let _ = header(&data[..data.len().min(HEADER_LEN)]);
    assert_eq!(in_blocks(data, columns, size), whole(data, columns), "blocks of {size}");
}
