//! The hash of a partition key, as a little-endian server computes it:
//! `compute_partition_hash_value` of `src/backend/partitioning/partbounds.c` and the extended hash
//! functions that it calls (`src/common/hashfn.c`). If the server is big-endian, the leaf rejects
//! the rows, and they go through the root.

/// `HASH_PARTITION_SEED`
const SEED: u64 = 0x7A5B_2236_7996_DCFD;

/// The hash of an empty key.
pub const START: u64 = 0;

/// `hash_combine64`: the hash of a key with one more value. NULL adds nothing.
#[inline]
pub fn combine(hash: u64, value: u64) -> u64 {
    let sum =
        value.wrapping_add(0x49a0_f4dd_15e5_a8e3).wrapping_add(hash << 54).wrapping_add(hash >> 7);
    hash ^ sum
}

/// `hash_bytes_uint32_extended`: `smallint`, `integer`, `date`, `oid`, `boolean`.
#[inline]
pub fn of_u32(value: u32) -> u64 {
    let mut state = State::new(4);
    state.0[0] = state.0[0].wrapping_add(value);
    state.end()
}

/// `hashint8extended`: equal to [`of_u32`] for values that fit in an `integer`.
#[inline]
pub fn of_i64(value: i64) -> u64 {
    let (low, high) = (value as u32, (value >> 32) as u32);
    of_u32(low ^ if value >= 0 { high } else { !high })
}

/// `hash_bytes_extended`: text under deterministic collations, `uuid`, `bytea`.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let mut state = State::new(bytes.len());
    let mut blocks = bytes.chunks_exact(12);
    for block in &mut blocks {
        for (word, bytes) in state.0.iter_mut().zip(block.chunks_exact(4)) {
            let four = [bytes[0], bytes[1], bytes[2], bytes[3]];
            *word = word.wrapping_add(u32::from_le_bytes(four));
        }
        state.mix();
    }
    for (at, byte) in blocks.remainder().iter().enumerate() {
        // The lowest byte of the last word is reserved for the length.
        let shift = if at < 8 { 8 * (at % 4) } else { 8 * (at % 4 + 1) };
        let word = &mut state.0[at / 4];
        *word = word.wrapping_add(u32::from(*byte) << shift);
    }
    state.end()
}

struct State([u32; 3]);

impl State {
    fn new(length: usize) -> State {
        let start = 0x9e37_79b9_u32.wrapping_add(length as u32).wrapping_add(3_923_095);
        let mut state = State([
            start.wrapping_add((SEED >> 32) as u32),
            start.wrapping_add(SEED as u32),
            start,
        ]);
        state.mix();
        state
    }

    /// `mix`
    #[inline]
    fn mix(&mut self) {
        let [mut a, mut b, mut c] = self.0;
        let step = |x: &mut u32, y: &mut u32, z: &mut u32, turn: u32| {
            *x = x.wrapping_sub(*z) ^ z.rotate_left(turn);
            *z = z.wrapping_add(*y);
        };
        step(&mut a, &mut b, &mut c, 4);
        step(&mut b, &mut c, &mut a, 6);
        step(&mut c, &mut a, &mut b, 8);
        step(&mut a, &mut b, &mut c, 16);
        step(&mut b, &mut c, &mut a, 19);
        step(&mut c, &mut a, &mut b, 4);
        self.0 = [a, b, c];
    }

    /// `final`; returns the two words of the hash.
    #[inline]
    fn end(self) -> u64 {
        let [mut a, mut b, mut c] = self.0;
        let step = |x: &mut u32, y: u32, turn: u32| *x = (*x ^ y).wrapping_sub(y.rotate_left(turn));
        step(&mut c, b, 14);
        step(&mut a, c, 11);
        step(&mut b, a, 25);
        step(&mut c, b, 16);
        step(&mut a, c, 4);
        step(&mut b, a, 14);
        step(&mut c, b, 24);
        u64::from(b) << 32 | u64::from(c)
    }
}
