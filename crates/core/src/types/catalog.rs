//! Converts `pg_type.oid` and `atttypmod` to [`Type`].
//!
//! The source is `src/include/catalog/pg_type.dat`. The OIDs of base types never change.

use crate::memory::{self, OutOfMemory};
use crate::shape::{ArrayOf, Type};

/// Base types whose text the core reads: the OID of each type and of its array type.
const TYPES: [(u32, u32); 29] = [
    (16, 1000),   // bool
    (17, 1001),   // bytea
    (19, 1003),   // name
    (20, 1016),   // int8
    (21, 1005),   // int2
    (23, 1007),   // int4
    (25, 1009),   // text
    (26, 1028),   // oid
    (114, 199),   // json
    (650, 651),   // cidr
    (700, 1021),  // float4
    (701, 1022),  // float8
    (774, 775),   // macaddr8
    (790, 791),   // money
    (829, 1040),  // macaddr
    (869, 1041),  // inet
    (1042, 1014), // bpchar
    (1043, 1015), // varchar
    (1082, 1182), // date
    (1083, 1183), // time
    (1114, 1115), // timestamp
    (1184, 1185), // timestamptz
    (1186, 1187), // interval
    (1266, 1270), // timetz
    (1560, 1561), // bit
    (1562, 1563), // varbit
    (1700, 1231), // numeric
    (2950, 2951), // uuid
    (3802, 3807), // jsonb
];

impl Type {
    /// The base type, or array of a base type, with this `pg_type.oid` and `atttypmod` (-1 for
    /// none); [`Type::Server`] for all other OIDs.
    ///
    /// The OIDs of enums, domains and their arrays differ between databases. The caller must handle
    /// those types.
    pub fn from_oid(oid: u32, typmod: i32) -> Type {
        Type::try_from_oid(oid, typmod).unwrap_or_else(|_| memory::abort())
    }

    /// Like [`Type::from_oid`].
    ///
    /// # Errors
    ///
    /// There is not enough memory for the element of an array.
    pub fn try_from_oid(oid: u32, typmod: i32) -> Result<Type, OutOfMemory> {
        if let Some(ty) = Type::base(oid, typmod) {
            return Ok(ty);
        }
        match Type::element(oid).and_then(|e| Some((e, Type::base(e, typmod)?))) {
            Some((element_oid, element)) => {
                let of = ArrayOf { element, element_oid, delimiter: b',' };
                Ok(Type::Array(memory::try_box(of)?))
            }
            None => Ok(Type::Server),
        }
    }

    /// The `pg_type.oid` of the elements of this array type.
    pub fn element(oid: u32) -> Option<u32> {
        TYPES.iter().find(|(_, array)| *array == oid).map(|(element, _)| *element)
    }

    /// The base type with this `pg_type.oid`.
    pub fn base(oid: u32, typmod: i32) -> Option<Type> {
        // The typmod of varchar and char is VARHDRSZ more than the length. For bit it is the
        // length.
        let characters = u32::try_from(typmod - 4).ok().filter(|_| typmod >= 4);
        let bits = u32::try_from(typmod).ok().filter(|n| *n > 0);
        Some(match oid {
            16 => Type::Bool,
            17 => Type::Bytea,
            19 => Type::Name,
            20 => Type::Int8,
            21 => Type::Int2,
            23 => Type::Int4,
            25 => Type::Text,
            26 => Type::Oid,
            114 => Type::Json,
            650 => Type::Cidr,
            700 => Type::Float4,
            701 => Type::Float8,
            774 => Type::Macaddr8,
            790 => Type::Money,
            829 => Type::Macaddr,
            869 => Type::Inet,
            1042 => Type::Bpchar(characters),
            1043 => Type::Varchar(characters),
            1082 => Type::Date,
            1083 => Type::Time(typmod),
            1114 => Type::Timestamp(typmod),
            1184 => Type::TimestampTz(typmod),
            1186 => Type::Interval(typmod),
            1266 => Type::TimeTz(typmod),
            1560 => Type::Bit(bits),
            1562 => Type::Varbit(bits),
            1700 => Type::Numeric(typmod),
            2950 => Type::Uuid,
            3802 => Type::Jsonb,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typmods() {
        assert_eq!(Type::from_oid(1043, 9), Type::Varchar(Some(5)));
        assert_eq!(Type::from_oid(1043, -1), Type::Varchar(None));
        assert_eq!(Type::from_oid(1560, 3), Type::Bit(Some(3)));
        assert_eq!(Type::from_oid(1700, -1), Type::Numeric(-1));
        assert_eq!(Type::from_oid(600, -1), Type::Server); // point
        assert_eq!(Type::from_oid(0, -1), Type::Server);
        let Type::Array(of) = Type::from_oid(1015, 9) else { panic!("an array") };
        assert_eq!((of.element, of.element_oid), (Type::Varchar(Some(5)), 1043));
    }
}
