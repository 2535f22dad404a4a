//! The shape of a table as a load sees it, and the compiled plan of a row.

/// What the values of a session's settings mean for the reading of text.
///
/// Where a setting is not the plain one, the values that depend on it are
/// answered with [`crate::error::Refusal::Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Env {
    /// `TimeZone` is UTC (or an alias of it): a timestamptz without a zone can
    /// be read without the zone database.
    pub utc: bool,
    /// The field order of `DateStyle`; ISO dates are read alike in all three.
    pub date_order: DateOrder,
    /// `lc_monetary` is C or POSIX, so that money has two decimals and no grouping.
    pub money_c: bool,
    /// The server's encoding has one byte for each character: text is any bytes but NUL. Set, too,
    /// where characters are not counted as those of UTF-8 for another reason.
    pub single_byte: bool,
}

/// The order that `DateStyle` gives to day, month and year.
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

/// A type whose text form the core can read, with its modifiers resolved.
///
/// Everything that is not here is [`Type::Server`]: only the server can read it.
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
    /// `numeric`; the typmod as in `pg_attribute.atttypmod`, -1 for none
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
    /// `time(p)`; fractional digits, -1 for none stated
    Time(i32),
    /// `timetz(p)`
    TimeTz(i32),
    /// `timestamp(p)`
    Timestamp(i32),
    /// `timestamptz(p)`
    TimestampTz(i32),
    /// `interval`; the typmod as in `pg_attribute.atttypmod`, -1 for none
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
    /// `bit(n)`; the length in bits, exact
    Bit(Option<u32>),
    /// `bit varying(n)`; the limit in bits
    Varbit(Option<u32>),
    /// an enum, with its labels
    Enum(EnumLabels),
    /// an array of any of these
    Array(Box<ArrayOf>),
    /// any other type: the server has to be asked
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

    /// The `pg_enum.oid` of a label, or `None` where there is no such label.
    pub fn oid(&self, label: &[u8]) -> Option<u32> {
        let at = self.0.binary_search_by(|(l, _)| l.as_slice().cmp(label)).ok()?;
        Some(self.0[at].1)
    }
}

/// An array type's element.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct ArrayOf {
    /// the element's type
    pub element: Type,
    /// the element's `pg_type.oid`
    pub element_oid: u32,
    /// `pg_type.typdelim` of the element: a comma for all but `box`
    pub delimiter: u8,
}

/// Where a column's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// the field of the record with this index, from 0
    Field(usize),
    /// NULL: the column is not in the file and has no default
    Null,
    /// a value that the sink was given beforehand: the column's default
    Given,
}

/// One column of the row that is made, in the order in which the sink wants it:
/// the statement's column list for the wire, `attnum` for the heap.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct Column {
    /// `pg_attribute.attname`
    pub name: String,
    /// the type, domains resolved to their base
    pub ty: Type,
    /// where the value comes from
    pub source: ValueSource,
    /// the column, or a domain over its type, forbids NULL
    pub not_null: bool,
    /// COPY's `FORCE_NULL` holds for it
    pub force_null: bool,
    /// COPY's `FORCE_NOT_NULL` holds for it
    pub force_not_null: bool,
}

impl Column {
    /// A nullable column that takes the record's field `field`.
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

/// The compiled plan of a row: what each record is turned into.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct RowShape {
    /// the columns in the sink's order
    pub columns: Vec<Column>,
    /// how many fields a record must have
    pub fields: usize,
    /// what the session's settings mean for values
    pub env: Env,
}
