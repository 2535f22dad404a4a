//! SQL names of types, for `convert` without a server.

use crate::error::Error;
use pgsluice_core::shape::{ArrayOf, Type};

/// Names and their fixed oids (`src/include/catalog/pg_type.dat`).
const NAMES: [(&str, u32); 45] = [
    ("bool", 16),
    ("boolean", 16),
    ("bytea", 17),
    ("name", 19),
    ("bigint", 20),
    ("int8", 20),
    ("smallint", 21),
    ("int2", 21),
    ("integer", 23),
    ("int", 23),
    ("int4", 23),
    ("text", 25),
    ("oid", 26),
    ("json", 114),
    ("cidr", 650),
    ("real", 700),
    ("float4", 700),
    ("double precision", 701),
    ("float8", 701),
    ("float", 701),
    ("macaddr8", 774),
    ("money", 790),
    ("macaddr", 829),
    ("inet", 869),
    ("char", 1042),
    ("character", 1042),
    ("bpchar", 1042),
    ("varchar", 1043),
    ("character varying", 1043),
    ("date", 1082),
    ("time", 1083),
    ("time without time zone", 1083),
    ("timestamp", 1114),
    ("timestamp without time zone", 1114),
    ("timestamptz", 1184),
    ("timestamp with time zone", 1184),
    ("interval", 1186),
    ("timetz", 1266),
    ("time with time zone", 1266),
    ("bit", 1560),
    ("bit varying", 1562),
    ("varbit", 1562),
    ("numeric", 1700),
    ("decimal", 1700),
    ("uuid", 2950),
];

const JSONB: u32 = 3802;

/// Parses a list of types such as `integer, varchar(20), numeric(10,2), text[]`.
///
/// # Errors
///
/// A name is unknown. Enums, domains and other types of a database are unknown, too. Or there are
/// more than 32,767 types.
pub fn parse_list(list: &str) -> Result<Vec<Type>, Error> {
    let mut depth = 0;
    let inner = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    let types: Vec<Type> = list.split(inner).map(parse).collect::<Result<_, _>>()?;
    // A row of PGCOPY begins with the number of its fields, an int16.
    match i16::try_from(types.len()) {
        Ok(_) => Ok(types),
        Err(_) => Err(Error::usage(format!(
            "a row of COPY's binary format has at most 32767 fields, and there are {} types",
            types.len()
        ))),
    }
}

fn parse(name: &str) -> Result<Type, Error> {
    let name = name.trim().to_lowercase();
    let unknown = || {
        Error::usage(format!("there is no type {name:?} that can be written without a server"))
            .with_hint("`to` and `table` take the types from a table")
    };
    let element = name.trim_end_matches("[]").trim_end();
    let (words, modifiers) = match element.split_once('(') {
        None => (element.to_owned(), Vec::new()),
        Some((before, rest)) => {
            let (inside, after) = rest.split_once(')').ok_or_else(unknown)?;
            let numbers: Result<Vec<i32>, _> =
                inside.split(',').map(|n| n.trim().parse::<i32>()).collect();
            (format!("{}{after}", before.trim_end()), numbers.map_err(|_| unknown())?)
        }
    };
    let oid = NAMES.iter().find(|(n, _)| *n == words).map(|(_, oid)| *oid);
    let oid = oid.or((words == "jsonb").then_some(JSONB)).ok_or_else(unknown)?;
    let ty = Type::from_oid(oid, typmod(oid, &words, &modifiers).ok_or_else(unknown)?);
    Ok(if element.len() < name.len() {
        Type::Array(Box::new(ArrayOf { element: ty, element_oid: oid, delimiter: b',' }))
    } else {
        ty
    })
}

/// Returns the modifier as in `pg_attribute.atttypmod`; `None` if it is not valid.
fn typmod(oid: u32, words: &str, modifiers: &[i32]) -> Option<i32> {
    let between = |n: i32, most: i32| (1..=most).contains(&n).then_some(n);
    match (oid, modifiers) {
        (1042, []) if words != "bpchar" => Some(5),
        (1560, []) => Some(1),
        (_, []) => Some(-1),
        (1042 | 1043, [n]) => Some(between(*n, 10_485_760)? + 4),
        (1560 | 1562, [n]) => between(*n, 83_886_080),
        (1083 | 1114 | 1184 | 1266, [p]) => (0..=6).contains(p).then_some(*p),
        // INTERVAL_FULL_RANGE and the precision (`src/include/utils/timestamp.h`).
        (1186, [p]) => (0..=6).contains(p).then_some(0x7fff << 16 | *p),
        (1700, [p]) => Some((between(*p, 1000)? << 16) + 4),
        (1700, [p, s]) if (-1000..=1000).contains(s) => {
            Some(((between(*p, 1000)? << 16) | (s & 0x7ff)) + 4)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn names_and_modifiers() {
        let types = parse_list(
            "int, character varying(20), numeric(10,2), text[], timestamp(3) with time zone, char",
        )
        .unwrap();
        assert_eq!(types[0], Type::Int4);
        assert_eq!(types[1], Type::Varchar(Some(20)));
        assert_eq!(types[2], Type::Numeric(((10 << 16) | 2) + 4));
        assert!(
            matches!(&types[3], Type::Array(of) if of.element == Type::Text && of.element_oid == 25)
        );
        assert_eq!(types[4], Type::TimestampTz(3));
        assert_eq!(types[5], Type::Bpchar(Some(1)));
        assert!(parse_list("mood").is_err() && parse_list("varchar(0)").is_err());
    }

    #[test]
    fn a_row_has_as_many_fields_as_it_can_count() {
        let types = |n: usize| parse_list(&vec!["int"; n].join(","));
        assert_eq!(types(32_767).unwrap().len(), 32_767);
        let error = types(32_768).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains("at most 32767 fields"), "{error}");
    }
}
