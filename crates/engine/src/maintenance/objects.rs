//! Reads the indexes, constraints, foreign keys and triggers of a table from the catalogs.
//!
//! The server itself writes all statements that drop and build them (`*.sql`), with its own
//! quoting.

use super::settings;
use crate::error::Error;
use crate::facts::{Index, Relation, TableObjects};
use crate::session::catalog::{objects, rows_kept_by, LISTS};
use crate::session::conn::Conn;

impl TableObjects {
    /// Queries the catalogs. Needs an open transaction. The settings are restored before it
    /// returns. It takes no lock other than `ACCESS SHARE`.
    ///
    /// # Errors
    ///
    /// There is no such table, or the connection is lost.
    pub fn read(conn: &mut Conn, oid: u32) -> Result<TableObjects, Error> {
        let usual = settings::exact(conn)?;
        let sql = include_str!("relation.sql").replace("$lists", LISTS);
        let relation = objects::<Relation>(conn, &sql, oid)?.pop();
        let mut relation =
            relation.ok_or_else(|| Error::new(format!("there is no table with oid {oid}")))?;
        let (mut indexes, mut foreign_keys, mut triggers) = (Vec::new(), Vec::new(), Vec::new());
        if !relation.bare {
            indexes = objects(conn, include_str!("indexes.sql"), oid)?;
            foreign_keys = objects(conn, include_str!("foreign_keys.sql"), oid)?;
            triggers = objects(conn, include_str!("triggers.sql"), oid)?;
        }
        let kept_by = rows_kept_by(conn, oid, relation.lists.as_deref())?;
        conn.exec(&usual)?;
        if let Some(extension) = kept_by {
            // The tables with the rows have such indexes, too. The extension does not accept each
            // statement that recreates one.
            let keep = |index: &mut Index| index.extension = Some(extension.into());
            indexes.iter_mut().for_each(keep);
        }
        relation.empty = relation.kind == 'r'
            && kept_by.is_none()
            && (relation.heap_bytes == 0 || relation.visible && is_empty(conn, &relation.name)?);
        Ok(TableObjects { relation, indexes, foreign_keys, triggers })
    }
}

fn is_empty(conn: &mut Conn, name: &str) -> Result<bool, Error> {
    let rows = conn.exec(&format!("SELECT NOT EXISTS (SELECT FROM {name})"))?;
    Ok(rows[0][0].as_deref() == Some("t"))
}
