//! Values whose order only the server can determine.
//!
//! Each different value is stored once and gets a number. The server compares the stored values and
//! returns their order. From then on, rows are compared by the ranks of their values. Numbers never
//! change, and two values never change their relative order. Rows that were sorted before more
//! values were added therefore stay sorted.

use super::shape::Attribute;
use super::tuple::{self, Field};
use super::BuildFailure;
use crate::memory::{reserve_up_to, Fallible};

/// Bytes that a value takes in addition to its own: its start, its rank, the value of a rank, and
/// the memory that the server needs to sort it.
const VALUE: usize = 4 + 4 + 4 + 16;
/// Bytes of the varlena header before the bytes of a value.
const HEADER: usize = 4;
/// Most bytes of all values: the start of a value is stored in 32 bits, in units of eight bytes.
const MAX_IMAGES: usize = 8 << 32;
/// Most slots that are probed for one value. Only values chosen to collide need more. Every value
/// lies within them, counted from the slot that its hash selects.
const MAX_PROBES: usize = 1 << 12;

/// The different values of one attribute.
#[derive(Clone, Debug)]
#[allow(clippy::disallowed_methods)] // only tests clone it
pub struct Dictionary {
    attribute: Attribute,
    /// bytes that the dictionary may take
    limit: usize,
    /// the values, each in the form that a Datum points to, at multiples of eight bytes
    images: Vec<u8>,
    /// the start of each value, in units of eight bytes
    starts: Vec<u32>,
    /// open addressing: the hash in the upper half, the number plus 1 in the lower half; 0 is free
    slots: Vec<u64>,
    ranks: Vec<u32>,
    /// for each rank, a value of that rank
    of_rank: Vec<u32>,
}

/// The parts of a value: its bytes, and the varlena's header, or the length if it has no header.
struct Image<'a> {
    header: u32,
    bytes: &'a [u8],
}

/// The two halves of the product of two words, combined by XOR.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[inline]
fn hash(bytes: &[u8]) -> u32 {
    const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut chunks = bytes.chunks_exact(8);
    let mut hash = (bytes.len() as u64).wrapping_add(SEED);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = fold(hash ^ u64::from_le_bytes(word), SEED);
    }
    let mut word = [0; 8];
    word[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    hash = fold(hash ^ u64::from_le_bytes(word), SEED.rotate_left(31) | 1);
    fold(hash, SEED) as u32
}

impl Dictionary {
    /// An empty dictionary that may take about `limit` bytes.
    #[must_use]
    pub fn new(attribute: Attribute, limit: usize) -> Self {
        Self {
            attribute,
            limit,
            images: Vec::new(),
            starts: Vec::new(),
            slots: Vec::new(),
            ranks: Vec::new(),
            of_rank: Vec::new(),
        }
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All values, and the start of each in units of eight bytes. A value is a varlena with a
    /// header of four bytes, a value of fixed length, or the eight bytes of a Datum.
    #[must_use]
    pub fn values(&self) -> (&[u8], &[u32]) {
        (&self.images, &self.starts)
    }

    fn image<'a>(&self, field: Field<'a>, word: &'a mut [u8; 8]) -> Option<Image<'a>> {
        match field {
            Field::Word(value) => {
                *word = tuple::unsigned(value, self.attribute.len).to_le_bytes();
                Some(Image { header: 8, bytes: word })
            }
            Field::Bytes(bytes) if self.attribute.len > 0 => {
                Some(Image { header: bytes.len() as u32, bytes })
            }
            Field::Bytes(bytes) => Some(Image { header: (bytes.len() + HEADER) as u32 * 4, bytes }),
            Field::Compressed(bytes) => {
                Some(Image { header: (bytes.len() + HEADER) as u32 * 4 + 2, bytes })
            }
            Field::Ranked(_) => None,
        }
    }

    fn stored(&self, id: u32) -> Image<'_> {
        let at = self.starts[id as usize] as usize * 8;
        let fixed = match self.attribute.len {
            _ if self.attribute.by_value => 8,
            len if len > 0 => len as usize,
            _ => {
                let b = &self.images[at..at + HEADER];
                let header = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                let bytes = &self.images[at + HEADER..at + (header >> 2) as usize];
                return Image { header, bytes };
            }
        };
        Image { header: fixed as u32, bytes: &self.images[at..at + fixed] }
    }

    /// The value with this number.
    #[must_use]
    pub fn field(&self, id: u32) -> Field<'_> {
        let image = self.stored(id);
        if self.attribute.by_value {
            let mut word = [0; 8];
            word.copy_from_slice(image.bytes);
            Field::Word(u64::from_le_bytes(word))
        } else if self.attribute.len < 0 && image.header & 3 != 0 {
            Field::Compressed(image.bytes)
        } else {
            Field::Bytes(image.bytes)
        }
    }

    /// The slot of the value, or the free slot for it, and the value's hash. `None`: too many
    /// probes, or there are no slots.
    fn find(&self, image: &Image) -> Option<(usize, u32)> {
        let hash = hash(image.bytes);
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        for _ in 0..MAX_PROBES {
            let slot = self.slots[at];
            if slot == 0 {
                return Some((at, hash));
            }
            if (slot >> 32) as u32 == hash {
                let other = self.stored(slot as u32 - 1);
                if other.header == image.header && other.bytes == image.bytes {
                    return Some((at, hash));
                }
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// The number of the value. A new value gets a number. `None`: there is no room for it.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn intern(&mut self, field: Field) -> Result<Option<u32>, BuildFailure> {
        let mut word = [0; 8];
        let Some(image) = self.image(field, &mut word) else { return Err(BuildFailure::Corrupt) };
        if self.starts.len() * 2 >= self.slots.len() && !self.grow()? {
            return Ok(None);
        }
        let Some((at, hash)) = self.find(&image) else { return Ok(None) };
        if self.slots[at] != 0 {
            return Ok(Some(self.slots[at] as u32 - 1));
        }
        let more = image.bytes.len() + HEADER + 8;
        if self.size() + more + VALUE > self.limit || self.images.len() + more > MAX_IMAGES {
            return Ok(None);
        }
        let id = self.starts.len() as u32;
        let most = self.limit.saturating_sub(self.size() - self.images.len());
        reserve_up_to(&mut self.images, more, most)?;
        self.starts.try_reserve(1)?;
        self.starts.push_within((self.images.len() / 8) as u32);
        if self.attribute.len < 0 {
            self.images.extend_within_room(&image.header.to_le_bytes());
        }
        self.images.extend_within_room(image.bytes);
        self.images.resize_within(self.images.len().next_multiple_of(8), 0);
        self.slots[at] = u64::from(hash) << 32 | u64::from(id + 1);
        Ok(Some(id))
    }

    /// The hash that selects the value's slot; `None` for a value that cannot be stored.
    #[must_use]
    pub fn trace(&self, field: Field) -> Option<u32> {
        let mut word = [0; 8];
        self.image(field, &mut word).map(|image| hash(image.bytes))
    }

    /// Brings the slots and values for these traces into the processor's caches, all at once.
    /// Single lookups would each wait for memory.
    pub fn warm(&self, traces: &mut [u32]) {
        let Some(mask) = self.slots.len().checked_sub(1) else { return };
        for trace in traces.iter_mut() {
            *trace = self.slots[*trace as usize & mask] as u32;
        }
        for trace in traces.iter_mut() {
            *trace = trace.checked_sub(1).map_or(0, |id| self.starts[id as usize]);
        }
        let bytes = traces.iter().map(|&trace| self.images.get(trace as usize * 8));
        std::hint::black_box(bytes.fold(0, |all, byte| all ^ byte.copied().unwrap_or(0)));
    }

    fn size(&self) -> usize {
        self.images.len() + self.starts.len() * VALUE + self.slots.len() * 8
    }

    /// Enlarges the slots for `more` further values, or as far as there is room.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn expect(&mut self, more: usize) -> Result<(), BuildFailure> {
        while (self.starts.len() + more) * 2 > self.slots.len() && self.grow()? {}
        Ok(())
    }

    /// Doubles the slots. `false`: there is no room, or `find` would not reach some value.
    #[cold]
    fn grow(&mut self) -> Result<bool, BuildFailure> {
        let count = (self.slots.len() * 2).max(64);
        if self.size() + count * 8 > self.limit || count > 1 << 32 {
            return Ok(false);
        }
        let mut slots = Vec::with_room(count)?;
        slots.resize_within(count, 0);
        for &slot in self.slots.iter().filter(|&&slot| slot != 0) {
            let home = (slot >> 32) as usize;
            let mut probed = (home..home + MAX_PROBES).map(|at| at & (count - 1));
            let Some(at) = probed.find(|&at| slots[at] == 0) else { return Ok(false) };
            slots[at] = slot;
        }
        self.slots = slots;
        Ok(true)
    }

    /// Sets the order of all values: `order` has their numbers, ascending by value. `equal` says
    /// for each whether it is equal to the one before.
    ///
    /// # Errors
    ///
    /// No memory, or these are not all the values.
    pub fn rank(&mut self, order: &[u32], equal: &[bool]) -> Result<(), BuildFailure> {
        if order.len() != self.len() || equal.len() != self.len() {
            return Err(BuildFailure::Corrupt);
        }
        self.ranks.clear();
        self.ranks.try_reserve_exact(self.starts.len())?;
        self.ranks.resize_within(self.starts.len(), u32::MAX);
        self.of_rank.clear();
        self.of_rank.try_reserve_exact(self.starts.len())?;
        for (&id, &equal) in order.iter().zip(equal) {
            if !equal || self.of_rank.is_empty() {
                self.of_rank.push_within(id);
            }
            let rank = self.ranks.get_mut(id as usize).ok_or(BuildFailure::Corrupt)?;
            if *rank != u32::MAX {
                return Err(BuildFailure::Corrupt);
            }
            *rank = self.of_rank.len() as u32 - 1;
        }
        Ok(())
    }

    /// The rank of the value with this number.
    #[inline]
    #[must_use]
    pub fn rank_of(&self, id: u32) -> u32 {
        self.ranks.get(id as usize).copied().unwrap_or(u32::MAX)
    }

    /// A value with this rank.
    #[inline]
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> u32 {
        self.of_rank.get(rank as usize).copied().unwrap_or(0)
    }

    /// The rank of a value that has been interned.
    #[must_use]
    pub fn rank_of_field(&self, field: Field) -> u32 {
        let mut word = [0; 8];
        let slot = self.image(field, &mut word).and_then(|image| self.find(&image));
        match slot.map(|(at, _)| self.slots[at]) {
            Some(slot) if slot != 0 => self.rank_of(slot as u32 - 1),
            _ => u32::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Order;
    use super::*;

    /// Values that were chosen to lie far from the slots that their hashes select, once there are
    /// more slots: those that are too far are not taken, and none is forgotten.
    #[test]
    fn every_interned_value_is_found_again() {
        let attribute = Attribute {
            len: -1,
            align: 4,
            by_value: false,
            order: Order::Ranked,
            descending: false,
            nulls_first: false,
            exact: false,
        };
        let mut dictionary = Dictionary::new(attribute, 1 << 30);
        let mut interned = Vec::new();
        for (home, count) in
            [(14_000..14_384, 3000), (16_384..16_768, 3095), (5000..12_000, 2097), (0..1, 1)]
        {
            let values = (0..).map(u64::to_le_bytes);
            let chosen = values.filter(|value| home.contains(&(hash(value) % (1 << 15))));
            for value in chosen.take(count) {
                if dictionary.intern(Field::Bytes(&value)).unwrap().is_some() {
                    interned.push(value);
                }
            }
        }
        let order: Vec<u32> = (0..dictionary.len() as u32).collect();
        dictionary.rank(&order, &vec![false; order.len()]).unwrap();
        for (&rank, value) in order.iter().zip(&interned) {
            assert_eq!(dictionary.rank_of_field(Field::Bytes(value)), rank);
        }
        assert_eq!(dictionary.len(), 8192, "the values are not far enough");
    }
}
