//! Reads the rows of a heap page as the fields of an index, like `heap_deform_tuple` for the
//! columns of the index.

use super::shape::{Attribute, MAX_ATTRIBUTES};
use super::tuple::{Field, MAX_VARLENA};

/// Bytes of a page's header. The line pointers follow it.
const PAGE_HEADER: usize = 24;
/// Bytes of a tuple's header up to the null bitmap (`SizeofHeapTupleHeader`).
const TUPLE_HEADER: usize = 23;
/// `HEAP_HASNULL`
const HAS_NULL: u8 = 1;
/// Bytes of the pointer to a value out of line (`TOAST_POINTER_SIZE`).
const OUT_OF_LINE: usize = 18;

/// One column of the table.
#[derive(Clone, Copy, Debug)]
pub struct StoredColumn {
    /// `attlen`: bytes, or −1 for a varlena
    pub len: i16,
    /// alignment in bytes: 1, 2, 4 or 8
    pub align: u8,
    /// the attribute of the index that it is, if any; a column that is several attributes cannot be
    /// described here
    pub attribute: Option<usize>,
}

/// A row that cannot be read here: a value is compressed, out of line, or too long to be stored
/// unchanged in an index, or the bytes are no valid tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit;

/// The columns of a table, as they are read for an index.
#[derive(Debug)]
pub struct HeapSource {
    columns: Vec<StoredColumn>,
}

/// The fields of one row, by attribute of the index.
pub type HeapFields<'a> = [Option<Field<'a>>; MAX_ATTRIBUTES];

impl HeapSource {
    /// Reads `columns`, which are the first ones of the table.
    ///
    /// `None` if a column's length or alignment is not one that tables have.
    #[must_use]
    pub fn new(columns: Vec<StoredColumn>) -> Option<Self> {
        let sound = |column: &StoredColumn| {
            (column.len == -1 || column.len > 0)
                && matches!(column.align, 1 | 2 | 4 | 8)
                && column.attribute.is_none_or(|attribute| attribute < MAX_ATTRIBUTES)
        };
        columns.iter().all(sound).then_some(Self { columns })
    }

    /// The tuple at line pointer `offset` (from 1) of a page.
    #[must_use]
    #[inline]
    pub fn tuple(page: &[u8], offset: u16) -> Option<&[u8]> {
        let at = PAGE_HEADER + 4 * (usize::from(offset).checked_sub(1)?);
        let b = page.get(at..at + 4)?;
        let word = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let start = (word & 0x7FFF) as usize;
        page.get(start..start + (word >> 17) as usize)
    }

    /// Reads a tuple that has all the columns into `fields`. Other elements of `fields` are
    /// unchanged.
    ///
    /// # Errors
    ///
    /// See [`Unfit`].
    #[inline]
    pub fn read<'a>(
        &self,
        attributes: &[Attribute],
        tuple: &'a [u8],
        fields: &mut HeapFields<'a>,
    ) -> Result<(), Unfit> {
        if tuple.len() < TUPLE_HEADER {
            return Err(Unfit);
        }
        let has_null = tuple[20] & HAS_NULL != 0;
        let data = tuple.get(usize::from(tuple[22])..).ok_or(Unfit)?;
        let mut at = 0;
        for (index, column) in self.columns.iter().enumerate() {
            if has_null {
                let bits = tuple.get(TUPLE_HEADER + index / 8).ok_or(Unfit)?;
                if bits >> (index % 8) & 1 == 0 {
                    if let Some(attribute) = column.attribute {
                        fields[attribute] = None;
                    }
                    continue;
                }
            }
            let align = usize::from(column.align);
            let aligned = (at + align - 1) & !(align - 1);
            let (start, plain);
            (start, at, plain) = if column.len > 0 {
                (aligned, aligned + column.len as usize, true)
            } else {
                // A pad byte is zero. The byte of a one-byte header is not.
                let first = *data.get(at).ok_or(Unfit)?;
                varlena(data, if first == 0 { aligned } else { at })?
            };
            let Some(attribute) = column.attribute else { continue };
            let bytes = data.get(start..at).ok_or(Unfit)?;
            fields[attribute] = Some(if attributes[attribute].by_value {
                Field::Word(word(bytes))
            } else if plain && (column.len > 0 || bytes.len() + 4 <= MAX_VARLENA) {
                Field::Bytes(bytes)
            } else {
                return Err(Unfit);
            });
        }
        Ok(())
    }
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match bytes.len() {
        4 => word[..4].copy_from_slice(&bytes[..4]),
        8 => word.copy_from_slice(&bytes[..8]),
        len => word[..len.min(8)].copy_from_slice(&bytes[..len.min(8)]),
    }
    u64::from_le_bytes(word)
}

/// Start and end of the bytes of a varlena that begins at `at`, and whether they are the plain
/// value.
#[inline]
fn varlena(data: &[u8], at: usize) -> Result<(usize, usize, bool), Unfit> {
    let first = *data.get(at).ok_or(Unfit)?;
    if first == 1 {
        return Ok((at, at + OUT_OF_LINE, false));
    }
    if first & 1 == 1 {
        return Ok((at + 1, at + usize::from(first >> 1), true));
    }
    let b = data.get(at..at + 4).ok_or(Unfit)?;
    let header = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let size = (header >> 2) as usize;
    if size < 4 {
        return Err(Unfit);
    }
    // The flag 2 means compressed.
    Ok((at + 4, at + size, header & 3 == 0))
}

#[cfg(test)]
mod tests {
    use super::super::shape::Order;
    use super::*;

    fn attribute(len: i16, by_value: bool) -> Attribute {
        let order = if by_value { Order::Signed } else { Order::Text };
        Attribute {
            len,
            align: 4,
            by_value,
            order,
            descending: false,
            nulls_first: false,
            exact: true,
        }
    }

    /// int4, text (not in the index), int8, text, int2
    fn source() -> HeapSource {
        let column = |len, align, attribute| StoredColumn { len, align, attribute };
        HeapSource::new(vec![
            column(4, 4, Some(2)),
            column(-1, 4, None),
            column(8, 8, Some(0)),
            column(-1, 4, Some(1)),
            column(2, 2, Some(3)),
        ])
        .unwrap()
    }

    fn read(nulls: Option<u8>, data: &[u8]) -> Result<Vec<Option<Field<'static>>>, Unfit> {
        let mut tuple = vec![0; 24];
        tuple[22] = 24;
        if let Some(bits) = nulls {
            tuple[20] = HAS_NULL;
            tuple[23] = bits;
        }
        tuple.extend_from_slice(data);
        let tuple: &'static [u8] = tuple.leak();
        let attributes =
            [attribute(8, true), attribute(-1, false), attribute(4, true), attribute(2, true)];
        let mut fields = [Some(Field::Word(99)); MAX_ATTRIBUTES];
        source().read(&attributes, tuple, &mut fields)?;
        Ok(fields[..4].to_vec())
    }

    #[test]
    fn columns_are_found_behind_short_long_compressed_and_absent_values() {
        let expected = vec![
            Some(Field::Word(7)),
            Some(Field::Bytes(b"abc")),
            Some(Field::Word(5)),
            Some(Field::Word(3)),
        ];
        let tail = |out: &mut Vec<u8>| {
            out.resize(out.len().next_multiple_of(8), 0);
            out.extend_from_slice(&7_u64.to_le_bytes());
            out.extend_from_slice(b"\x09abc");
            out.extend_from_slice(&3_u16.to_le_bytes());
        };
        let long = [&(104_u32 << 2).to_le_bytes()[..], &[b'x'; 100]].concat();
        let compressed = [&(24_u32 << 2 | 2).to_le_bytes()[..], &[1; 20]].concat();
        let out_of_line = [&[1, 18][..], &[255; 16]].concat();
        for second in [b"\x07xy".to_vec(), long, compressed, out_of_line] {
            let mut data = 5_u32.to_le_bytes().to_vec();
            data.extend_from_slice(&second);
            tail(&mut data);
            assert_eq!(read(None, &data).unwrap(), expected);
            // However it is cut, the tuple is rejected, or read without the missing part.
            for len in 0..data.len() {
                assert_eq!(read(None, &data[..len]), Err(Unfit));
            }
        }
        let mut data = 5_u32.to_le_bytes().to_vec();
        tail(&mut data);
        assert_eq!(read(Some(0b11101), &data).unwrap(), expected);
        assert_eq!(read(Some(0b00001), &data).unwrap()[..2], [None, None]);
    }

    #[test]
    fn values_that_an_index_would_not_store_as_they_are_are_refused() {
        let head = [&5_u32.to_le_bytes()[..], &[3, 0, 0, 0], &7_u64.to_le_bytes()].concat();
        let long = |len: u32, kind: u32| {
            let header = ((len + 4) << 2 | kind).to_le_bytes();
            [&head[..], &header, &vec![b'x'; len as usize], &[0, 0, 3, 0][..]].concat()
        };
        assert!(read(None, &long(506, 0)).is_ok());
        assert_eq!(read(None, &long(508, 0)), Err(Unfit));
        assert_eq!(read(None, &long(100, 2)), Err(Unfit));
        assert_eq!(read(None, &[&head[..], &[1, 18], &[0; 40]].concat()), Err(Unfit));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut state = 1_u64;
        for round in 0..20_000 {
            let bytes: Vec<u8> = (0..round % 90)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as u8 & if round % 2 == 0 { 255 } else { 31 }
                })
                .collect();
            let attributes =
                [attribute(8, true), attribute(-1, false), attribute(4, true), attribute(2, true)];
            let mut fields = [None; MAX_ATTRIBUTES];
            let _ = source().read(&attributes, &bytes, &mut fields);
            let _ = HeapSource::tuple(&bytes, 1 + round % 40);
        }
    }
}
