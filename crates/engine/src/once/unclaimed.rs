//! Loads that have lost the session with their claims before they have committed anything.
//!
//! Nothing shows yet whether their files are those of another load: their rows of `sources` have a size and the hashes
//! of the ends, and no pieces. A load that has the same claims now is sure that they have lost theirs. It stops them before it
//! decides what is to be loaded, so that whatever they have committed is seen, and nothing comes later
//! (`record`). To be found, a load is registered while it has its claims.

use super::identity::Ends;
use super::lookup::candidates;
use super::record::Target;
use super::{parts, Found};
use crate::error::Error;
use crate::session::conn::Conn;
use std::collections::HashMap;

/// Checks that a load that is now registered has its claims. Another load with the same claims either
/// had them before, or finds this one.
pub(super) fn check_claims(guard: &mut Conn) -> Result<(), Error> {
    guard.exec("SELECT 1").map(drop)
}

impl Found<'_> {
    /// The rows of `sources` of loads that have begun with the same names or bytes.
    pub(super) fn unclaimed(
        &self,
        conn: &mut Conn,
        target: &Target,
        sources: &[usize],
        ends: &HashMap<usize, Ends>,
    ) -> Result<Vec<i64>, Error> {
        let files: Vec<_> = sources.iter().map(|i| (*i, &self.seen[*i], &ends[i])).collect();
        let rows = candidates(conn, target.oid, &files)?;
        Ok(rows.iter().filter(|row| !row.complete).map(|row| row.number).collect())
    }
}

/// Stops loads that have begun with these rows of `sources` and have lost their claims: of which nothing is
/// loaded, as otherwise they are continued. Waits for those of their transactions that are about to commit. What the
/// rows have is to be read after that. If this load is `shared`, it has the same claims as those with parts.
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
