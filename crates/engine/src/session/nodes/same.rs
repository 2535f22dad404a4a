//! Detects nodes that are the same database: two foreign servers may be, or one and the
//! coordinator.
//!
//! Each connection holds an advisory lock of the load with its own number. Such a lock belongs to a
//! database, and every role may take it. The server's system identifier is not sufficient: a copy
//! of a server has the same one.

use crate::error::Error;
use crate::facts::Node;
use crate::session::conn::Conn;
use crate::session::transaction::{BEGIN, NO_TIMEOUTS};

/// Returns, in words, the coordinator or the earlier node that is the same database. The
/// transaction stays open and holds the lock.
pub(super) fn same_as(
    conn: &mut Conn,
    probe: &str,
    before: &[Node],
) -> Result<Option<String>, Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
    Ok(locked_before(conn, probe, before.len() + 1)?.map(|place| match place.checked_sub(1) {
        Some(node) => format!("node {}", before[node].name),
        None => "the coordinator".to_owned(),
    }))
}

/// Takes the lock of connection number `place` until its transaction ends, and tries those of the
/// connections before it; free ones are kept. Returns the highest number whose lock is taken: the
/// last connection to the same database. The coordinator's number is 0.
pub(super) fn locked_before(
    conn: &mut Conn,
    probe: &str,
    place: usize,
) -> Result<Option<usize>, Error> {
    let rows = conn.query(
        "SELECT pg_catalog.max(place) FROM pg_catalog.generate_series(0, $2::integer) place \
         WHERE NOT pg_catalog.pg_try_advisory_xact_lock( \
           pg_catalog.hashtextextended($1::text || ' ' || place::text, 0))",
        &[Some(probe), Some(&place.to_string())],
    )?;
    Ok(rows.first().and_then(|row| row[0].as_ref()?.parse().ok()))
}
