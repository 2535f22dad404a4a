//! What C passes about a table and a statement, compiled into the core's terms.

use std::ops::Range;

use pgsluice_core::memory::{Fallible, OutOfMemory};
use pgsluice_core::scan::{Characters, Dialect, DotLine, Format, Record, StrayQuotes};
use pgsluice_core::shape::{Column, DateOrder, EnumLabels, Env, RowShape, Type, ValueSource};
use pgsluice_core::sink::{HeapColumn, Scratch};

/// The longest slice that [`crate::pgsluice_form`] accepts, in bytes.
pub const MAX_SLICE: usize = 8 << 20;

/// A label of an enum.
#[derive(Debug)]
#[repr(C)]
pub struct LabelDef {
    /// its bytes
    pub label: *const u8,
    /// how many
    pub len: usize,
    /// `pg_enum.oid`
    pub oid: u32,
}

/// One attribute of the relation, dropped ones included.
#[derive(Debug)]
#[repr(C)]
pub struct ColumnDef {
    /// `pg_type.oid` of the base type; 0 if only the server can read it
    pub type_oid: u32,
    /// `atttypmod`
    pub typmod: i32,
    /// the field of the record, or one of [`FROM_NULL`], [`FROM_GIVEN`], [`FROM_BLANK`]
    pub source: i32,
    /// for an enum: its labels
    pub labels: *const LabelDef,
    /// how many
    pub nlabels: usize,
    /// for [`FROM_GIVEN`]: the value's bytes, without varlena header
    pub given: *const u8,
    /// how many
    pub given_len: usize,
    /// `attlen`
    pub len: i16,
    /// `attalign` in bytes
    pub align: u8,
    /// for an array: its elements' `typalign` in bytes
    pub element_align: u8,
    /// `attstorage` is not plain
    pub packable: bool,
    /// NULL is left to the server, which rejects it
    pub not_null: bool,
    /// COPY's FORCE_NULL
    pub force_null: bool,
    /// COPY's FORCE_NOT_NULL
    pub force_not_null: bool,
}

/// [`ColumnDef::source`]: NULL.
pub const FROM_NULL: i32 = -1;
/// [`ColumnDef::source`]: the value in [`ColumnDef::given`].
pub const FROM_GIVEN: i32 = -2;
/// [`ColumnDef::source`]: a fixed-width value that is filled in later.
pub const FROM_BLANK: i32 = -3;

/// COPY's options for the format of the data.
#[derive(Debug)]
#[repr(C)]
pub struct DialectDef {
    /// the NULL marker
    pub null: *const u8,
    /// its length
    pub null_len: usize,
    /// the DEFAULT marker, or NULL
    pub default: *const u8,
    /// its length
    pub default_len: usize,
    /// `FORMAT binary`: the other fields are ignored
    pub binary: bool,
    /// csv, not text
    pub csv: bool,
    /// `\.` has the meaning that it had up to 17 ([`DotLine::Ends`])
    pub dot_ends: bool,
    /// DELIMITER
    pub delimiter: u8,
    /// QUOTE
    pub quote: u8,
    /// ESCAPE
    pub escape: u8,
}

/// The session's settings that change the meaning of values.
#[derive(Debug)]
#[repr(C)]
pub struct EnvDef {
    /// `TimeZone` is UTC
    pub utc: bool,
    /// `DateOrder` of `src/include/miscadmin.h`: 0 YMD, 1 DMY, 2 MDY
    pub date_order: u8,
    /// `lc_monetary` is C
    pub money_c: bool,
    /// the database's encoding has one byte for each character
    pub single_byte: bool,
}

/// How the records of one statement become tuples of one relation.
#[derive(Debug)]
pub struct FormPlan {
    pub(crate) shape: RowShape,
    pub(crate) heap: Vec<HeapColumn>,
    pub(crate) dialect: Dialect,
    pub(crate) binary: bool,
    /// the fields of the current binary tuple
    pub(crate) fields: Vec<Option<Range<usize>>>,
    pub(crate) record: Record,
    pub(crate) scratch: Scratch,
}

/// Makes a slice, which may be empty; `data` may then be NULL.
///
/// # Safety
///
/// `data` is valid for `len` items, or `len` is 0.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's duty.
    unsafe { std::slice::from_raw_parts(data, len) }
}

impl FormPlan {
    /// # Safety
    ///
    /// The pointers within the structs are valid for the lengths beside them.
    pub(crate) unsafe fn new(
        defs: &[ColumnDef],
        fields: usize,
        dialect: &DialectDef,
        env: &EnvDef,
    ) -> Result<FormPlan, OutOfMemory> {
        let mut columns = Vec::with_room(defs.len())?;
        let mut heap = Vec::with_room(defs.len())?;
        for def in defs {
            // SAFETY: the caller's duty.
            unsafe {
                columns.push_within(column(def)?);
                heap.push_within(heap_column(def)?);
            }
        }
        let scratch = Scratch { array: Vec::with_room(MAX_SLICE)?, ..Scratch::default() };
        Ok(FormPlan {
            binary: dialect.binary,
            fields: Vec::with_room(fields)?,
            shape: RowShape { columns, fields, env: environment(env) },
            heap,
            // SAFETY: the caller's duty.
            dialect: unsafe { dialect_of(dialect)? },
            record: Record::default(),
            scratch,
        })
    }
}

/// # Safety
///
/// The struct's pointers are valid for the lengths beside them.
unsafe fn column(def: &ColumnDef) -> Result<Column, OutOfMemory> {
    let source = match def.source {
        FROM_NULL => ValueSource::Null,
        FROM_GIVEN | FROM_BLANK => ValueSource::Given,
        field => ValueSource::Field(field as usize),
    };
    Ok(Column {
        name: String::new(),
        // SAFETY: the caller's duty.
        ty: unsafe { type_of(def)? },
        source,
        not_null: def.not_null,
        force_null: def.force_null,
        force_not_null: def.force_not_null,
    })
}

/// # Safety
///
/// As [`column`].
unsafe fn heap_column(def: &ColumnDef) -> Result<HeapColumn, OutOfMemory> {
    let mut given = None;
    if def.source == FROM_GIVEN {
        // SAFETY: the caller's duty.
        given = Some(copy(unsafe { slice(def.given, def.given_len) })?);
    }
    Ok(HeapColumn {
        len: def.len,
        align: def.align,
        packable: def.packable,
        element_align: def.element_align,
        given,
    })
}

/// # Safety
///
/// As [`column`].
unsafe fn type_of(def: &ColumnDef) -> Result<Type, OutOfMemory> {
    if def.nlabels > 0 {
        // SAFETY: the caller's duty.
        let defs = unsafe { slice(def.labels, def.nlabels) };
        let mut labels = Vec::with_room(defs.len())?;
        for def in defs {
            // SAFETY: the caller's duty.
            labels.push_within((copy(unsafe { slice(def.label, def.len) })?, def.oid));
        }
        return Ok(Type::Enum(EnumLabels::new(labels)));
    }
    if reads(def.type_oid) {
        Type::try_from_oid(def.type_oid, def.typmod)
    } else {
        Ok(Type::Server)
    }
}

/// A copy of the bytes.
fn copy(bytes: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut copied = Vec::with_room(bytes.len())?;
    copied.extend_within_room(bytes);
    Ok(copied)
}

/// See [`crate::pgsluice_reads`].
pub(crate) fn reads(oid: u32) -> bool {
    let base = |oid| Type::base(oid, -1);
    // Array elements are formed in other memory than jsonb's trees, so the server reads arrays of
    // jsonb.
    let of_array = || Type::element(oid).and_then(base).filter(|element| *element != Type::Jsonb);
    base(oid).or_else(of_array).is_some()
}

fn environment(def: &EnvDef) -> Env {
    let date_order = match def.date_order {
        0 => DateOrder::Ymd,
        1 => DateOrder::Dmy,
        _ => DateOrder::Mdy,
    };
    Env { utc: def.utc, date_order, money_c: def.money_c, single_byte: def.single_byte }
}

/// # Safety
///
/// As [`column`].
unsafe fn dialect_of(def: &DialectDef) -> Result<Dialect, OutOfMemory> {
    let mut default = None;
    if !def.default.is_null() {
        // SAFETY: the caller's duty.
        default = Some(copy(unsafe { slice(def.default, def.default_len) })?);
    }
    // SAFETY: the caller's duty.
    let null = copy(unsafe { slice(def.null, def.null_len) })?;
    Ok(Dialect {
        format: if def.csv { Format::Csv } else { Format::Text },
        delimiter: def.delimiter,
        quote: def.quote,
        escape: def.escape,
        null,
        default,
        dot_line: match (def.dot_ends, def.csv) {
            (true, _) => DotLine::Ends,
            (false, true) => DotLine::IsData,
            (false, false) => DotLine::Alone,
        },
        utf8: true,
        // The server has converted the data.
        characters: Characters::Ascii,
        stray_quotes: StrayQuotes::Copy,
    })
}
