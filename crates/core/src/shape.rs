//! The shape of a table for a load, and the compiled plan of a row.

/// The settings of a session that affect the reading of text.
///
/// If a setting is not the plain one, values that depend on it are refused with
/// [`crate::error::Refusal::Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Env {
    /// `TimeZone` is UTC (or an alias of it): a timestamptz without a zone can
    /// be read without the zone database.
    pub utc: bool,
    /// The field order of `DateStyle`. ISO dates are read alike in all three orders.
    pub date_order: DateOrder,
    /// `lc_monetary` is C or POSIX, so that money has two decimals and no grouping.
    pub money_c: bool,
    /// The server's encoding has one byte for each character, so text is any bytes except NUL. Also
    /// set if characters must not be counted as UTF-8 for another reason.
    pub single_byte: bool,
}

/// The order of day, month and year in `DateStyle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateOrder {
    /// month, day, year: the default
    Mdy,
    /// day, month, year
    Dmy,
    /// year, month, day
    Ymd,
}

impl Default for Env {
    fn default() -> Self {
        Env { utc: false, date_order: DateOrder::Mdy, money_c: false, single_byte: false }
    }
}

/// A type whose text form the core can read, with resolved modifiers.
///
/// All other types are [`Type::Server`]: only the server can read them.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub enum Type {
    /// `boolean`
    Bool,
    /// `smallint`
    Int2,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `oid`
    Oid,
    /// `real`
    Float4,
    /// `double precision`
    Float8,
    /// `numeric`; the typmod is that of `pg_attribute.atttypmod`, -1 for none
    Numeric(i32),
    /// `money`
    Money,
    /// `text`
    Text,
    /// `varchar(n)`; the limit in characters
    Varchar(Option<u32>),
    /// `char(n)`; the length in characters, to which values are padded
    Bpchar(Option<u32>),
    /// `name`
    Name,
    /// `bytea`
    Bytea,
    /// `date`
    Date,
    /// `time(p)`; number of fractional digits, -1 if not given
    Time(i32),
    /// `timetz(p)`
    TimeTz(i32),
    /// `timestamp(p)`
    Timestamp(i32),
    /// `timestamptz(p)`
    TimestampTz(i32),
    /// `interval`; the typmod is that of `pg_attribute.atttypmod`, -1 for none
    Interval(i32),
    /// `uuid`
    Uuid,
    /// `json`
    Json,
    /// `jsonb`
    Jsonb,
    /// `inet`
    Inet,
    /// `cidr`
    Cidr,
    /// `macaddr`
    Macaddr,
    /// `macaddr8`
    Macaddr8,
    /// `bit(n)`; the exact length in bits
    Bit(Option<u32>),
    /// `bit varying(n)`; the limit in bits
    Varbit(Option<u32>),
    /// an enum, with its labels
    Enum(EnumLabels),
    /// an array of any of these types
    Array(Box<ArrayOf>),
    /// any other type: the server must read the value
    Server,
}

/// The labels of an enum type, sorted by their bytes, each with its `pg_enum.oid`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct EnumLabels(pub Vec<(Vec<u8>, u32)>);

impl EnumLabels {
    /// Sorts the labels, so that [`EnumLabels::oid`] can search them.
    pub fn new(mut labels: Vec<(Vec<u8>, u32)>) -> Self {
        labels.sort_unstable();
        EnumLabels(labels)
    }

    /// The `pg_enum.oid` of a label; `None` if there is no such label.
    pub fn oid(&self, label: &[u8]) -> Option<u32> {
        let at = self.0.binary_search_by(|(l, _)| l.as_slice().cmp(label)).ok()?;
        Some(self.0[at].1)
    }
}

/// The element of an array type.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct ArrayOf {
    /// the element's type
    pub element: Type,
    /// the element's `pg_type.oid`
    pub element_oid: u32,
    /// `pg_type.typdelim` of the element: a comma for all types except `box`
    pub delimiter: u8,
}

/// The source of a column's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// the field of the record at this index, from 0
    Field(usize),
    /// NULL: the column is not in the file and has no default
    Null,
    /// a value that the sink already has: the column's default
    Given,
}

/// One column of the resulting row, in the order of the sink: the column list of the statement for
/// the wire, `attnum` for the heap.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct Column {
    /// `pg_attribute.attname`
    pub name: String,
    /// the type; a domain is resolved to its base type
    pub ty: Type,
    /// the source of the value
    pub source: ValueSource,
    /// the column, or a domain that is its type, forbids NULL
    pub not_null: bool,
    /// COPY's `FORCE_NULL` applies to it
    pub force_null: bool,
    /// COPY's `FORCE_NOT_NULL` applies to it
    pub force_not_null: bool,
}

impl Column {
    /// A nullable column with the record's field `field`.
    pub fn new(name: &str, ty: Type, field: usize) -> Self {
        Column {
            name: name.into(),
            ty,
            source: ValueSource::Field(field),
            not_null: false,
            force_null: false,
            force_not_null: false,
        }
    }
}

/// The compiled plan of a row, into which each record is converted.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct RowShape {
    /// the columns in the sink's order
    pub columns: Vec<Column>,
    /// number of fields that a record must have
    pub fields: usize,
    /// the settings of the session that affect values
    pub env: Env,
}
