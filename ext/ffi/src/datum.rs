//! Datums of an index's attributes, as the core takes them.

use crate::index::IndexStatus;
use crate::plan::slice;
use pgsluice_core::index_sort::shape::{IndexShape, Order};
use pgsluice_core::index_sort::tuple::{Field, MAX_VARLENA};
use pgsluice_core::index_sort::BuildFailure;

/// A varlena as `index_form_tuple` stores it. `None`: that may differ from this one, because it is
/// not `stored` and is compressed, out of line or long.
///
/// # Safety
///
/// `datum` points to a varlena that lives for `'a`.
#[inline]
unsafe fn varlena<'a>(datum: usize, stored: bool) -> Option<Field<'a>> {
    let at = datum as *const u8;
    // SAFETY: a varlena has at least one byte. If that byte is odd, it says how many bytes there
    // are. If it is even, there are at least four bytes, and these say how many there are.
    unsafe {
        let first = *at;
        if first & 1 == 1 {
            let size = usize::from(first >> 1);
            return (size > 0).then(|| Field::Bytes(slice(at.add(1), size - 1)));
        }
        let header = at.cast::<u32>().read_unaligned();
        let size = (header >> 2) as usize;
        if size < 4 || !stored && (header & 3 != 0 || size > MAX_VARLENA) {
            return None;
        }
        let bytes = slice(at.add(4), size - 4);
        Some(if header & 3 == 0 { Field::Bytes(bytes) } else { Field::Compressed(bytes) })
    }
}

/// A Datum as a field, before it is interned. `None`: NULL. Or the status that says why it is not
/// accepted.
///
/// # Safety
///
/// Unless `null`, `datum` is one of the attribute; what it points to lives for `'a`.
#[inline]
pub(crate) unsafe fn plain_field<'a>(
    shape: &IndexShape,
    index: usize,
    datum: usize,
    null: bool,
    stored: bool,
) -> Result<Option<Field<'a>>, IndexStatus> {
    if null {
        return Ok(None);
    }
    let attribute = shape.attributes()[index];
    if attribute.by_value {
        return Ok(Some(Field::Word(datum as u64)));
    }
    if attribute.len > 0 {
        // SAFETY: the caller's duty: a value of fixed length passed by reference.
        return Ok(Some(Field::Bytes(unsafe {
            slice(datum as *const u8, attribute.len as usize)
        })));
    }
    // SAFETY: the caller's duty: a varlena.
    match unsafe { varlena(datum, stored) } {
        // Its order depends on bytes that are not decompressed here.
        Some(Field::Compressed(_)) if matches!(attribute.order, Order::Text | Order::Bytea) => {
            Err(IndexStatus::Unfit)
        }
        Some(field) => Ok(Some(field)),
        None => Err(IndexStatus::Unfit),
    }
}

/// A Datum as a field, interned if its attribute is ranked. `None`: NULL. Or the status that says
/// why it is not accepted.
///
/// # Safety
///
/// As for [`plain_field`].
#[inline]
pub(crate) unsafe fn field<'a>(
    shape: &mut IndexShape,
    index: usize,
    datum: usize,
    null: bool,
    stored: bool,
) -> Result<Result<Option<Field<'a>>, IndexStatus>, BuildFailure> {
    // SAFETY: the caller's duty.
    match unsafe { plain_field(shape, index, datum, null, stored) } {
        Ok(Some(field)) => Ok(shape.intern(index, field)?.map(Some).ok_or(IndexStatus::Crowded)),
        other => Ok(other),
    }
}
