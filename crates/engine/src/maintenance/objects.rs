//! Reads the indexes, constraints, foreign keys and triggers of a table from the catalogs.
//!
//! The server itself writes all statements that drop and build them (`*.sql`), with its own
//! quoting.

use super::settings;
use crate::error::Error;
use crate::facts::{Relation, TableObjects};
use crate::session::conn::Conn;
use serde::Deserialize;

impl TableObjects {
    /// Queries the catalogs. Needs an open transaction. The settings are restored before it
    /// returns. It takes no lock other than `ACCESS SHARE`.
    ///
    /// # Errors
    ///
    /// There is no such table, or the connection is lost.
    pub fn read(conn: &mut Conn, oid: u32) -> Result<TableObjects, Error> {
        let usual = settings::exact(conn)?;
        let relation = rows::<Relation>(conn, include_str!("relation.sql"), oid)?.pop();
        let mut relation =
            relation.ok_or_else(|| Error::new(format!("there is no table with oid {oid}")))?;
        let (mut indexes, mut foreign_keys, mut triggers) = (Vec::new(), Vec::new(), Vec::new());
        if !relation.bare {
            indexes = rows(conn, include_str!("indexes.sql"), oid)?;
            foreign_keys = rows(conn, include_str!("foreign_keys.sql"), oid)?;
            triggers = rows(conn, include_str!("triggers.sql"), oid)?;
        }
        conn.exec(&usual)?;
        relation.empty = relation.kind == 'r'
            && (relation.heap_bytes == 0 || relation.visible && is_empty(conn, &relation.name)?);
        Ok(TableObjects { relation, indexes, foreign_keys, triggers })
    }
}

fn is_empty(conn: &mut Conn, name: &str) -> Result<bool, Error> {
    let rows = conn.exec(&format!("SELECT NOT EXISTS (SELECT FROM {name})"))?;
    Ok(rows[0][0].as_deref() == Some("t"))
}

fn rows<T: for<'a> Deserialize<'a>>(conn: &mut Conn, sql: &str, oid: u32) -> Result<Vec<T>, Error> {
    let rows = conn.query(sql, &[Some(&oid.to_string())])?;
    let json = rows.iter().map(|r| r[0].as_deref().unwrap_or("null"));
    json.map(|j| serde_json::from_str(j).map_err(|e| Error::new(format!("catalog query: {e}"))))
        .collect()
}
