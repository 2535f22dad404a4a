//! Loads that have lost the session with their claims before they have committed anything.
//!
//! Their rows of `sources` have a size and the hashes of the ends, but no pieces. So it is not
//! known whether their files are those of another load. If a load gets the same claims, the earlier
//! load has lost them. The new load stops the earlier one before it decides what to load. So it
//! sees all that the earlier load has committed, and the earlier load commits nothing later
//! (`record`). For this to find each load, a load is registered while it has its claims.

use super::lookup::KnownSource;
use super::parts;
use crate::error::Error;
use crate::session::conn::Conn;

/// Checks that a load still has its claims after it was registered. Another load with the same
/// claims either had them before, or finds this load.
pub(super) fn check_claims(guard: &mut Conn) -> Result<(), Error> {
    guard.exec("SELECT 1").map(drop)
}

/// Returns the numbers of the rows that have the pieces of the rows that are not complete. While this load has its claims, no other
/// load changes the complete ones.
pub(super) fn incomplete_rows(rows: &[KnownSource]) -> Vec<i64> {
    rows.iter().filter(|row| !row.complete).map(|row| row.content).collect()
}

/// Stops loads that have begun these rows of `sources` and have lost their claims. Only loads
/// without committed pieces are stopped here; the others are continued. Waits for those of their
/// transactions that are about to commit. Read the rows again after that. If this load is `shared`,
/// it has the same claims as the loads with parts, and those are not stopped.
pub(super) fn stop_unclaimed(conn: &mut Conn, sources: &[i64], shared: bool) -> Result<(), Error> {
    let sources = parts::list(sources.iter().copied());
    let begun = "s.number IN (SELECT n::bigint \
          FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
        AND NOT EXISTS (SELECT FROM pgsluice_loads.pieces p WHERE p.source = s.number) \
        AND NOT ($2::boolean AND EXISTS \
          (SELECT FROM pgsluice_loads.parts p WHERE p.source = s.number))";
    let parameters = [Some(sources.as_str()), Some(if shared { "t" } else { "f" })];
    conn.query(
        &format!(
            "UPDATE pgsluice_loads.loads SET state = 'stopped', ended = pg_catalog.clock_timestamp(), \
               error = 'another load has taken its files over' \
             WHERE state = 'running' AND number IN \
               (SELECT s.load FROM pgsluice_loads.sources s WHERE {begun})"
        ),
        &parameters,
    )?;
    conn.query(
        &format!(
            "DELETE FROM pgsluice_loads.parts WHERE source IN \
               (SELECT s.number FROM pgsluice_loads.sources s WHERE {begun})"
        ),
        &parameters,
    )
    .map(drop)
}
