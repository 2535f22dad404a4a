//! What an index looks like: its attributes, their order, and how its pages are to be formed.

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
            Order::Carried => true,
        };
        layout && order && matches!(self.align, 1 | 2 | 4 | 8)
    }
}

/// An index: attributes and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexShape {
    attributes: Vec<Attribute>,
    keys: usize,
    /// rows with equal keys are refused
    pub unique: bool,
    /// NULLs are equal for that refusal (`NULLS NOT DISTINCT`)
    pub nulls_not_distinct: bool,
    /// the refusal names the first row of the table that has a key again, not the first such key
    pub first_in_table: bool,
    /// equal rows share posting lists: `deduplicate_items`, "equal image" operator classes only,
    /// and not unique, as `_bt_load` has it
    pub deduplicate: bool,
    /// bytes to leave free on a leaf page (`BTGetTargetPageFreeSpace`)
    pub leaf_free: u16,
}

impl IndexShape {
    /// An index of `attributes`, of which the first `keys` are its key.
    ///
    /// `None` when an attribute is of a kind that cannot be, or carried attributes are not the
    /// last ones.
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
        sound.then_some(Self {
            attributes,
            keys,
            unique: false,
            nulls_not_distinct: false,
            first_in_table: false,
            deduplicate: count == keys,
            leaf_free: 8192 / 10,
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
}
