//! Derives hostile values from good ones, deterministically, so that a failure can be reproduced.

/// xorshift64*, seeded by a name.
pub struct Random(u64);

impl Random {
    pub fn new(name: &str) -> Self {
        Random(name.bytes().fold(0x9e37_79b9_7f4a_7c15, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3) | 1
        }))
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Characters that have a meaning for the input functions, and others that they must withstand.
const ALPHABET: &str = "00112345678999+-.,:;eE \t\n\r\u{b}\u{c}\"'{}[]()=\\/xXbTZz_nNaAfFiIuUpP$%äß€😀\u{a0}\u{2003}\u{7f}";

fn letter(random: &mut Random) -> char {
    let count = ALPHABET.chars().count();
    ALPHABET.chars().nth(random.below(count)).expect("within the alphabet")
}

/// One of the seeds after one to four edits.
pub fn mutate(seeds: &[&str], random: &mut Random) -> String {
    let mut value: Vec<char> = seeds[random.below(seeds.len())].chars().collect();
    for _ in 0..=random.below(4) {
        edit(&mut value, seeds, random);
    }
    value.into_iter().take(2000).collect()
}

fn edit(value: &mut Vec<char>, seeds: &[&str], random: &mut Random) {
    let at = random.below(value.len() + 1);
    match random.below(10) {
        0 => value.insert(at, letter(random)),
        1 if at < value.len() => value[at] = letter(random),
        2 if at < value.len() => drop(value.remove(at)),
        3 => value.truncate(at),
        4 => {
            let other: Vec<char> = seeds[random.below(seeds.len())].chars().collect();
            let from = random.below(other.len() + 1);
            value.truncate(at);
            value.extend(&other[from..]);
        }
        5 if !value.is_empty() => {
            let from = random.below(at.max(1));
            let piece: Vec<char> = value[from..at].to_vec();
            value.splice(at..at, piece);
        }
        6 => value.insert(if random.below(2) == 0 { 0 } else { value.len() }, ' '),
        7 => {
            for c in value.iter_mut().filter(|c| c.is_alphabetic()) {
                *c = if random.below(2) == 0 {
                    c.to_ascii_uppercase()
                } else {
                    c.to_ascii_lowercase()
                };
            }
        }
        // The most productive edit: the same form with other digits.
        _ => {
            let often = 1 + random.below(3);
            for c in value.iter_mut().filter(|c| c.is_ascii_digit()) {
                if random.below(often) == 0 {
                    *c = char::from(b'0' + random.below(10) as u8);
                }
            }
        }
    }
}
