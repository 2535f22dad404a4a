//! Reads the partitions of a table from the catalog.

use super::conn::{quote_ident, Conn};
use crate::error::Error;
use crate::facts::{KeyColumn, Partition, PartitionKey};

/// Reads the table and all its partitions. A partition that is being detached is left out.
///
/// # Errors
///
/// The connection is lost.
pub fn read(conn: &mut Conn, oid: u32) -> Result<Vec<Partition>, Error> {
    let keys = keys(conn, oid)?;
    let rows = conn.query(
        "SELECT c.oid, i.inhparent, n.nspname, c.relname, c.relkind, \
         pg_catalog.pg_get_expr(c.relpartbound, c.oid), \
         pg_catalog.has_table_privilege(c.oid, 'INSERT') \
           AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'), \
         pg_catalog.row_security_active(c.oid), \
         EXISTS (SELECT 1 FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid \
           AND tgtype & 1 = 0 AND tgtype & 4 <> 0 AND tgenabled <> 'D'), \
         (SELECT pg_catalog.string_agg(a.attname, E'\\n') FROM pg_catalog.pg_attribute a \
           JOIN pg_catalog.pg_attribute r ON r.attrelid = $1::oid AND r.attname = a.attname \
           LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
           LEFT JOIN pg_catalog.pg_attrdef e ON e.adrelid = r.attrelid AND e.adnum = r.attnum \
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
           AND (a.attidentity <> '' OR r.attidentity <> '' OR a.attgenerated <> r.attgenerated \
             OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) IS DISTINCT FROM \
                pg_catalog.pg_get_expr(e.adbin, e.adrelid))) \
         FROM pg_catalog.pg_partition_tree($1::oid::regclass) t \
         JOIN pg_catalog.pg_class c ON c.oid = t.relid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND c.oid <> $1::oid \
         WHERE i.inhdetachpending IS NOT TRUE ORDER BY c.oid",
        &[Some(&oid.to_string())],
    )?;
    let partition = |row: &Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let oid = text(0).parse().unwrap_or(0);
        Partition {
            oid,
            parent: text(1).parse().unwrap_or(0),
            sql: format!("{}.{}", quote_ident(&text(2)), quote_ident(&text(3))),
            kind: text(4).chars().next().unwrap_or(' '),
            bound: text(5),
            writable: text(6) == "t",
            row_security: text(7) == "t",
            statement_triggers: text(8) == "t",
            other_defaults: text(9).lines().map(str::to_owned).collect(),
            key: keys.iter().find(|(of, _)| *of == oid).map(|(_, key)| key.clone()),
        }
    };
    Ok(rows.iter().map(partition).collect())
}

/// Reads the partition keys of the table and of its partitions that are partitioned themselves.
fn keys(conn: &mut Conn, oid: u32) -> Result<Vec<(u32, PartitionKey)>, Error> {
    // 950 and 951 are the collations C and POSIX (src/include/catalog/pg_collation.dat).
    let rows = conn.query(
        "SELECT p.partrelid, p.partstrat, a.attname, \
         o.opcdefault AND o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace, \
         k.coll IN (950, 951), coalesce(l.collisdeterministic, true) \
         FROM pg_catalog.pg_partitioned_table p \
         CROSS JOIN LATERAL ROWS FROM (unnest(p.partattrs::int2[]), unnest(p.partclass::oid[]), \
           unnest(p.partcollation::oid[])) WITH ORDINALITY AS k (number, class, coll, place) \
         JOIN pg_catalog.pg_opclass o ON o.oid = k.class \
         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.number \
         LEFT JOIN pg_catalog.pg_collation l ON l.oid = k.coll \
         WHERE p.partrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass)) \
         ORDER BY p.partrelid, k.place",
        &[Some(&oid.to_string())],
    )?;
    let mut keys: Vec<(u32, PartitionKey)> = Vec::new();
    for row in rows {
        let is = |i: usize| row[i].as_deref() == Some("t");
        let table = row[0].as_deref().and_then(|oid| oid.parse().ok()).unwrap_or(0);
        let strategy = row[1].as_deref().and_then(|s| s.chars().next()).unwrap_or(' ');
        if keys.last().is_none_or(|(last, _)| *last != table) {
            keys.push((table, PartitionKey { strategy, columns: Vec::new() }));
        }
        let column = KeyColumn {
            name: row[2].clone(),
            usual_class: is(3),
            bytewise: is(4),
            deterministic: is(5),
        };
        keys.last_mut().into_iter().for_each(|(_, key)| key.columns.push(column.clone()));
    }
    Ok(keys)
}
