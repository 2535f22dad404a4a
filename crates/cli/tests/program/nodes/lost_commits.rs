//! The acknowledgement of a node's COMMIT is lost, and the server that answers afterwards does not
//! have the transaction.

use super::servers::{on_servers, ROWS};
use crate::common::proxy::{Fate, Proxy};

/// A node reports a transaction as committed but has neither its rows nor its record, as a standby
/// that lagged may if another transaction has the same number. The load leaves the node open, and
/// the same command loads its rows.
#[test]
fn a_node_without_the_record_has_not_committed() {
    on_servers(|servers| {
        let file = servers.file();
        servers.run(&file, &["--once"]).loaded("nothing fails");
        servers.nodes[1].sql(
            "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               DELETE FROM public.t_1; DELETE FROM pgsluice_loads.slices WHERE hash = NEW.hash; RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER undo AFTER INSERT ON pgsluice_loads.slices
               DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION undo()",
        );
        let file = servers.file();
        let proxy = Proxy::start(&servers.nodes[1], "COMMIT", 0, Fate::CutAfter, false);
        servers.through(1, &proxy);
        let ended = servers.run(&file, &["--once"]);
        ended.left_open(5, &["n1"], "undone");
        servers.has_all_but(&[1], "undone");
        servers.directly(1);
        servers.nodes[1].sql("DROP TRIGGER undo ON pgsluice_loads.slices");
        let loaded = servers.run(&file, &["--once"]).loaded("again");
        assert!(loaded > 0 && loaded < ROWS, "{loaded}");
        servers.has_all("again");
    });
}
