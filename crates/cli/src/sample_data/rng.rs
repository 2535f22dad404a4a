//! Random numbers that are the same on every machine and in every version of the program.

/// SplitMix64 (Steele, Lea and Flood, 2014): one multiply-and-shift hash of a counter.
pub(super) struct Rng(u64);

/// The odd number nearest to 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of one block of one kind of data under one seed.
    pub(super) fn of_block(seed: u64, kind: u64, block: u64) -> Self {
        Self(mix(mix(seed ^ mix(kind.wrapping_add(GOLDEN))) ^ block.wrapping_mul(GOLDEN)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number in `0..bound`, with a bias below bound / 2^64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `first..=last`.
    pub(super) fn between(&mut self, first: i64, last: i64) -> i64 {
        first + self.below((last - first) as u64 + 1) as i64
    }

    /// True in `percent` of 100 draws.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number above 0 and up to 1.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// One of several.
    pub(super) fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len() as u64) as usize]
    }
}
