//! Fast equals naive, and any chunking equals the whole, on generated input.

use pgsluice_core::scan::Format;
use pgsluice_fuzz::hostile::{self, Case};
use pgsluice_fuzz::rng::Rng;
use pgsluice_fuzz::{scan, split};

#[test]
fn hostile_files_are_scanned_alike_however_it_is_done() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let case = Case::new(&mut rng, if seed % 2 == 0 { 15 } else { 18 });
        let size = 1 + rng.below(90);
        scan::check(&case.dialect, &case.data, size);
        split::check(&case.dialect, &case.data, size);
    }
}

/// Where special bytes stand so close, every one meets every edge of a block.
#[test]
fn soups_of_special_bytes_are_scanned_alike() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let format = if rng.once_in(3) { Format::Text } else { Format::Csv };
        let major = rng.pick(&[15, 18]);
        let dialect = hostile::dialect(&mut rng, format, major);
        let eol: &[u8] = rng.pick(&[b"\n", b"\r\n", b"\r"]);
        let mut soup = eol.to_vec();
        for _ in 0..rng.below(200) {
            match rng.below(9) {
                0 => soup.extend_from_slice(eol),
                1 => soup.push(dialect.delimiter),
                2 | 3 => soup.push(dialect.quote),
                4 => soup.push(dialect.escape),
                5 => soup.extend_from_slice(&[dialect.escape, dialect.quote]),
                6 => soup.extend_from_slice(b"\\n"),
                7 => soup.push(b'\\'),
                _ => soup.extend(std::iter::repeat_n(b'a', rng.below(40))),
            }
        }
        let size = 1 + rng.below(200);
        scan::check(&dialect, &soup, size);
        split::check(&dialect, &soup, size);
    }
}
