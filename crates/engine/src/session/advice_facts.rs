//! Facts that only advice needs: the layout of the table's columns, and the free space on the
//! server's disk, if that can be found out.

use super::conn::Conn;
use crate::error::Error;
use crate::facts::{AdviceFacts, ColumnWidth, TableFacts};

/// Reads the facts.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn advice_facts(conn: &mut Conn, table: &TableFacts) -> Result<AdviceFacts, Error> {
    let oid = table.oid.to_string();
    let rows = conn.query(
        "SELECT attname, attlen, CASE attalign WHEN 'c' THEN 1 WHEN 's' THEN 2 WHEN 'i' THEN 4 ELSE 8 END \
         FROM pg_catalog.pg_attribute WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped \
         ORDER BY attnum",
        &[Some(&oid)],
    )?;
    let number = |cell: &Option<String>| cell.as_ref().and_then(|n| n.parse::<usize>().ok());
    let columns = rows.iter().map(|row| ColumnWidth {
        name: row[0].clone().unwrap_or_default(),
        length: number(&row[1]),
        align: number(&row[2]).unwrap_or(8),
    });
    Ok(AdviceFacts { columns: columns.collect(), room: room(conn, &oid)? })
}

/// Returns the folder of the table's data and the bytes that are free there. Only a server that was
/// reached through a Unix socket, as the server itself reports, is on this machine, whatever
/// poolers and tunnels lie between. Some roles may not read where the data are; for them this is
/// `None`.
fn room(conn: &mut Conn, oid: &str) -> Result<Option<(String, u64)>, Error> {
    if !conn.host().starts_with('/') {
        return Ok(None);
    }
    let rows = conn.query(
        "SELECT coalesce(nullif(pg_catalog.pg_tablespace_location(coalesce(nullif(c.reltablespace, 0), \
           d.dattablespace)), ''), (SELECT setting FROM pg_catalog.pg_settings \
           WHERE name = 'data_directory')) \
         FROM pg_catalog.pg_class c, pg_catalog.pg_database d \
         WHERE c.oid = $1::oid AND d.datname = current_database() AND inet_server_addr() IS NULL",
        &[Some(oid)],
    )?;
    let folder = rows.first().and_then(|row| row[0].clone());
    Ok(folder.and_then(|folder| {
        // A folder that does not exist here is on another machine or in a container.
        let disk = nix::sys::statvfs::statvfs(folder.as_str()).ok()?;
        let free = disk.blocks_available() as u64 * disk.fragment_size() as u64;
        Some((folder, free))
    }))
}
