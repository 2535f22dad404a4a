//! A gate in the table `t`: loads wait there in the middle of their rows, however fast they are,
//! until the test lets them go on.

use super::{signal, wait_until, Signal, World};
use std::process::Child;

impl World {
    /// Makes loads wait at each row whose column `a` is a multiple of 100,000, but not at 0.
    pub fn shut_gate(&mut self) {
        self.sql(
            "CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1); \
               RETURN NEW; END $$; \
             CREATE OR REPLACE TRIGGER gate BEFORE INSERT ON t FOR EACH ROW \
               WHEN (new.a > 0 AND new.a % 100000 = 0) EXECUTE FUNCTION gate()",
        );
        self.sql("SELECT pg_advisory_lock(1)");
    }

    /// Lets loads go on.
    pub fn open_gate(&mut self) {
        self.sql("SELECT pg_advisory_unlock(1)");
    }

    /// Waits until the table has a row and the load comes to the gate, suspends its process, and opens
    /// the gate. The load has begun a transaction and is not about to commit it.
    pub fn suspend_at_gate(&mut self, load: &Child) {
        self.wait_for_a_row();
        self.wait_at_gate();
        assert!(signal(load.id(), Signal::SIGSTOP));
        self.open_gate();
        // The server may have more rows, but COMMIT is sent only after its answer to them.
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
            AND backend_type = 'client backend' AND state = 'active' \
            AND wait_event_type IS DISTINCT FROM 'Client'";
        wait_until(|| "the server works on".into(), || self.sql(busy) == "0");
    }

    /// Waits until a load waits for the lock 1.
    pub fn wait_at_gate(&mut self) {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 \
            AND objsubid = 1 AND NOT granted";
        wait_until(|| "no load comes to the gate".into(), || self.sql(waits) != "0");
    }

    /// Waits until the table has a row.
    pub fn wait_for_a_row(&mut self) {
        let some = "SELECT EXISTS (SELECT FROM t)";
        wait_until(|| "nothing is committed".into(), || self.sql(some) == "t");
    }
}
