//! The shape of an index: its attributes, their order, and how its pages are formed.

use super::interrupt::Interrupts;
use super::rank::Dictionary;
use super::tuple::Field;
use super::BuildFailure;
use crate::memory::{Fallible, OutOfMemory};

/// Most attributes of an index (`INDEX_MAX_KEYS`).
pub const MAX_ATTRIBUTES: usize = 32;

/// Largest index tuple of a leaf page, in bytes (`BTMaxItemSize` of an 8 kB page).
pub const MAX_TUPLE: usize = 2704;

/// How the values of an attribute are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// signed integer, passed by value: int2, int4, int8, date, timestamp, …
    Signed,
    /// unsigned integer, passed by value: bool, "char", oid
    Unsigned,
    /// float4 or float8: NaN above everything and equal to itself, −0 equal to 0
    /// (`float8_cmp_internal`)
    Float,
    /// fixed number of bytes, by `memcmp`: uuid
    Fixed,
    /// varlena without NUL bytes, by `memcmp`: text under a collation of code point order
    Text,
    /// varlena of any bytes, by `memcmp`: bytea
    Bytea,
    /// not part of the key (`INCLUDE`)
    Carried,
    /// in the server's order, for which it compares the different values: see [`Dictionary`]
    Ranked,
}

/// One attribute of an index tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// `attlen`: bytes, or −1 for a varlena
    pub len: i16,
    /// alignment in bytes: 1, 2, 4 or 8
    pub align: u8,
    /// `attbyval`
    pub by_value: bool,
    /// how values compare
    pub order: Order,
    /// `DESC`
    pub descending: bool,
    /// `NULLS FIRST`
    pub nulls_first: bool,
    /// for ranked values: equal values have the same bytes
    pub exact: bool,
}

impl Attribute {
    fn is_sound(&self) -> bool {
        let layout = match (self.by_value, self.len) {
            (true, 1 | 2 | 4 | 8) => true,
            (false, -1) => true,
            (false, len) => len > 0 && (len as usize) < MAX_TUPLE,
            (true, _) => false,
        };
        let order = match self.order {
            Order::Signed => self.by_value && self.len > 1,
            Order::Unsigned => self.by_value,
            Order::Float => self.by_value && (self.len == 4 || self.len == 8),
            Order::Fixed => !self.by_value && self.len > 0,
            Order::Text | Order::Bytea => self.len == -1,
            Order::Carried | Order::Ranked => true,
        };
        layout && order && matches!(self.align, 1 | 2 | 4 | 8)
    }
}

/// An index: attributes and rules.
#[derive(Clone, Debug)]
#[allow(clippy::disallowed_methods)] // only tests clone it
pub struct IndexShape {
    attributes: Vec<Attribute>,
    keys: usize,
    /// the values of each ranked attribute; empty if none is ranked, and before
    /// [`IndexShape::open_dictionaries`]
    dictionaries: Vec<Option<Dictionary>>,
    ranked: usize,
    /// rows with equal keys are rejected
    pub unique: bool,
    /// NULLs count as equal for that (`NULLS NOT DISTINCT`)
    pub nulls_not_distinct: bool,
    /// the error names the first row in the table that repeats a key, not the first repeated key
    pub first_in_table: bool,
    /// rows with equal keys are reported, not rejected: the caller must remove all but one
    pub reports_pairs: bool,
    /// equal rows share posting lists: `deduplicate_items`, with "equal image" operator classes
    /// only, and not in a unique index, as in `_bt_load`
    pub deduplicate: bool,
    /// a ranked value may be compressed in one row and not in another; each row keeps its form
    pub mixed: bool,
    /// bytes to leave free on a leaf page (`BTGetTargetPageFreeSpace`)
    pub leaf_free: u16,
    /// checked while rows are sorted
    pub interrupts: Interrupts,
}

impl IndexShape {
    /// An index of `attributes`, of which the first `keys` are the key.
    ///
    /// `None` if an attribute is not valid, or if carried attributes are not the last ones.
    #[must_use]
    pub fn new(attributes: Vec<Attribute>, keys: usize) -> Option<Self> {
        let count = attributes.len();
        let sound = (1..=count).contains(&keys)
            && count <= MAX_ATTRIBUTES
            && attributes.iter().all(Attribute::is_sound)
            && attributes
                .iter()
                .enumerate()
                .all(|(index, attribute)| (attribute.order == Order::Carried) == (index >= keys));
        let ranked = attributes.iter().filter(|attribute| attribute.order == Order::Ranked).count();
        sound.then(|| Self {
            dictionaries: Vec::new(),
            ranked,
            attributes,
            keys,
            unique: false,
            nulls_not_distinct: false,
            first_in_table: false,
            reports_pairs: false,
            deduplicate: count == keys,
            mixed: false,
            leaf_free: 8192 / 10,
            interrupts: Interrupts::default(),
        })
    }

    /// All attributes, key first.
    #[must_use]
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// The attributes of the key.
    #[must_use]
    pub fn key(&self) -> &[Attribute] {
        &self.attributes[..self.keys]
    }

    /// The number of ranked attributes.
    #[must_use]
    pub fn ranked(&self) -> usize {
        self.ranked
    }

    /// The index as if its values were ordered by their bytes; `None` unless it has one ranked
    /// column of variable length whose equal values have the same bytes.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn by_bytes(&self) -> Result<Option<Self>, OutOfMemory> {
        let [attribute] = self.attributes[..] else { return Ok(None) };
        let fit = attribute.order == Order::Ranked
            && attribute.len == -1
            && attribute.exact
            && !self.mixed;
        if !fit {
            return Ok(None);
        }
        let mut attributes = Vec::with_room(1)?;
        attributes.push_within(Attribute { order: Order::Text, descending: false, ..attribute });
        let shape = Self::new(attributes, 1);
        Ok(shape.map(|shape| Self { interrupts: self.interrupts, ..shape }))
    }

    /// Creates the dictionaries, which may take `limit` bytes together.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn open_dictionaries(&mut self, limit: usize) -> Result<(), OutOfMemory> {
        if self.ranked == 0 {
            return Ok(());
        }
        self.dictionaries = Vec::with_room(self.attributes.len())?;
        for attribute in &self.attributes {
            let ranked = attribute.order == Order::Ranked;
            let dictionary = ranked.then(|| Dictionary::new(*attribute, limit / self.ranked));
            self.dictionaries.push_within(dictionary);
        }
        Ok(())
    }

    /// The value in the form for the builder: its number if the attribute is ranked. `None`: there
    /// are too many different values.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn intern<'a>(
        &mut self,
        index: usize,
        field: Field<'a>,
    ) -> Result<Option<Field<'a>>, BuildFailure> {
        match self.dictionary_mut(index) {
            None => Ok(Some(field)),
            Some(dictionary) => Ok(dictionary.intern(field)?.map(Field::Ranked)),
        }
    }

    /// The values of a ranked attribute.
    #[must_use]
    #[inline]
    pub fn dictionary(&self, index: usize) -> Option<&Dictionary> {
        self.dictionaries.get(index)?.as_ref()
    }

    /// The values of a ranked attribute, to be ranked.
    #[inline]
    pub fn dictionary_mut(&mut self, index: usize) -> Option<&mut Dictionary> {
        self.dictionaries.get_mut(index)?.as_mut()
    }

    /// The value itself, if `field` is the number of one; else `field`.
    #[must_use]
    #[inline]
    pub fn resolve<'a>(&'a self, index: usize, field: Field<'a>) -> Field<'a> {
        match (field, self.dictionary(index)) {
            (Field::Ranked(id), Some(dictionary)) => dictionary.field(id),
            _ => field,
        }
    }
}
