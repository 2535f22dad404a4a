//! Maps `pg_type` rows to the core's types; resolves domains, enums and arrays.

use super::conn::Conn;
use crate::error::Error;
use crate::facts::ServerFacts;
use pgsluice_core::shape::{ArrayOf, EnumLabels, Type};
use std::collections::HashMap;

/// The fixed oid of `interval` (`src/include/catalog/pg_type.dat`).
const INTERVAL: u32 = 1186;

/// The fixed oids of `date`, `time`, `timestamp`, `timestamptz` and `timetz`.
const DATES: [u32; 5] = [1082, 1083, 1114, 1184, 1266];

/// The facts about one `pg_type` row.
#[derive(Clone, Debug)]
struct TypeRow {
    kind: char,
    base: u32,
    base_typmod: i32,
    not_null: bool,
    element: u32,
    is_array: bool,
    delimiter: u8,
    labels: EnumLabels,
}

/// A column's type, with domains replaced by their base types.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// the type as the core reads it
    pub ty: Type,
    /// a domain forbids NULL
    pub not_null: bool,
}

/// The `pg_type` rows that a table's columns use, directly or indirectly.
#[derive(Debug, Default)]
pub struct TypeResolver(HashMap<u32, TypeRow>);

impl TypeResolver {
    /// Reads the types with these oids and all types that they are based on.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn read(conn: &mut Conn, mut wanted: Vec<u32>) -> Result<Self, Error> {
        let mut all = TypeResolver::default();
        while !wanted.is_empty() {
            let list: Vec<String> = wanted.iter().map(u32::to_string).collect();
            // int2vector and oidvector have the subscripts of an array, but not its text form.
            let rows = conn.query(
                "SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, t.typnotnull, t.typelem, \
                 t.typinput::oid = 'pg_catalog.array_in'::regproc::oid, \
                 pg_catalog.ascii(coalesce(e.typdelim, ',')), \
                 (SELECT pg_catalog.string_agg(pg_catalog.encode(pg_catalog.convert_to( \
                     l.enumlabel::text, CASE pg_catalog.getdatabaseencoding() \
                       WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END), \
                     'hex') || ':' || l.oid::text, ',') \
                   FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid) \
                 FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem \
                 WHERE t.oid = ANY ($1::oid[])",
                &[Some(&format!("{{{}}}", list.join(",")))],
            )?;
            wanted.clear();
            for row in &rows {
                let text = |i: usize| row[i].clone().unwrap_or_default();
                let number = |i: usize| text(i).parse::<u32>().unwrap_or(0);
                let found = TypeRow {
                    kind: text(1).chars().next().unwrap_or('b'),
                    base: number(2),
                    base_typmod: text(3).parse().unwrap_or(-1),
                    not_null: text(4) == "t",
                    element: number(5),
                    is_array: text(6) == "t",
                    delimiter: number(7) as u8,
                    labels: labels(&text(8)),
                };
                let inner = if found.kind == 'd' { found.base } else { found.element };
                all.0.insert(number(0), found);
                wanted.push(inner);
            }
            wanted.retain(|oid| *oid != 0 && !all.0.contains_key(oid));
        }
        Ok(all)
    }

    /// The type with this oid and modifier.
    pub fn resolve(&self, oid: u32, typmod: i32, server: &ServerFacts) -> Resolved {
        let unknown = Resolved { ty: Type::Server, not_null: false };
        let Some(row) = self.0.get(&oid) else { return unknown };
        match row.kind {
            'd' => {
                let base = self.resolve(row.base, row.base_typmod, server);
                Resolved { ty: base.ty, not_null: base.not_null || row.not_null }
            }
            'e' => Resolved { ty: Type::Enum(row.labels.clone()), not_null: false },
            'b' if row.is_array && server.array_nulls => {
                let element = self.resolve(row.element, typmod, server);
                if element.ty == Type::Server || element.not_null {
                    return unknown;
                }
                let array = ArrayOf {
                    element: element.ty,
                    element_oid: row.element,
                    delimiter: row.delimiter,
                };
                Resolved { ty: Type::Array(Box::new(array)), not_null: false }
            }
            // The other styles give the signs of an interval another meaning.
            'b' if oid == INTERVAL && server.interval_style != "postgres" => unknown,
            'b' if DATES.contains(&oid) && !server.plain_dates() => unknown,
            'b' if !row.is_array => Resolved { ty: Type::from_oid(oid, typmod), not_null: false },
            _ => unknown,
        }
    }
}

fn labels(list: &str) -> EnumLabels {
    let label = |pair: &str| {
        let (hex, oid) = pair.split_once(':')?;
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        Some((bytes, oid.parse().ok()?))
    };
    EnumLabels::new(list.split(',').filter_map(label).collect())
}
