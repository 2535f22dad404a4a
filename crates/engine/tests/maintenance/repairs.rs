//! `repair`: during a load, twice at the same time, and by another role.

use crate::cluster::*;
use crate::support::wait_until;
use pgsluice_engine::internals::ledger;
use pgsluice_engine::internals::maintenance::{take_down, TakenDown};
use pgsluice_engine::internals::Conn;
use pgsluice_engine::repair::{repair, Report};
use pgsluice_engine::Error;
use pgsluice_pgserver::Server;

fn left_down(conn: &mut Conn, oid: u32) -> TakenDown {
    let ledger = ledger::ensure(conn).unwrap();
    conn.exec("BEGIN").unwrap();
    let taken = take_down(conn, oid, &everything(), &ledger).unwrap();
    conn.exec("COMMIT").unwrap();
    taken
}

/// If nothing is down, `repair` creates no ledger.
#[test]
fn nothing_is_made_where_nothing_is_down() {
    let servers = servers();
    let url = database(servers.last().unwrap());
    let report = repair(&url, 2, &[]).unwrap();
    assert!(report.put_back.is_empty() && report.failed.is_empty());
    let mut conn = Conn::open(&url).unwrap();
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice_loads'";
    assert_eq!(one(&mut conn, schemas), "0");
}

/// If `repair` runs twice at the same time, everything is put back once.
#[test]
fn two_repairs_at_once_do_the_work_once() {
    for server in servers().iter() {
        let (url, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        let before = snapshot(&mut conn, oid);
        left_down(&mut conn, oid);
        let run = || repair(&url, 2, &[]).unwrap();
        let (one, two) = std::thread::scope(|s| {
            let (a, b) = (s.spawn(run), s.spawn(run));
            (a.join().unwrap(), b.join().unwrap())
        });
        assert!(one.failed.is_empty() && two.failed.is_empty(), "{one:?} {two:?}");
        assert_eq!(one.put_back.len() + two.put_back.len(), 18);
        assert!(one.put_back.is_empty() || two.put_back.is_empty());
        assert_same(&before, &snapshot(&mut conn, oid));
    }
}

/// A definition with a backslash is executed under the `standard_conforming_strings` under which it
/// was written, whatever the roles of the load and of `repair` have.
#[test]
fn backslashes_in_definitions_stay_as_they_were() {
    for server in servers().iter() {
        let url = database(server);
        let mut conn = Conn::open(&url).unwrap();
        if conn.server_version() >= 190_000 {
            // Later versions have no literals in which each backslash is an escape.
            continue;
        }
        conn.exec(
            "CREATE TABLE t (a text); CREATE INDEX t_a ON t (replace(a, E'\\\\', '/')); \
             ALTER TABLE t ADD CONSTRAINT t_x EXCLUDE USING btree (a WITH =) \
               WHERE (a <> E'\\\\')",
        )
        .unwrap();
        let oid = oid(&mut conn, "t");
        let definitions = "SELECT string_agg(pg_get_indexdef(indexrelid), '; ' \
            ORDER BY indexrelid::regclass::text) FROM pg_index WHERE indrelid = 't'::regclass";
        let before = one(&mut conn, definitions);
        assert_eq!(before.matches('\\').count(), 2, "{before}");
        let under =
            |setting: &str| format!("{url}&options=-c%20standard_conforming_strings%3D{setting}");
        for (load, repaired) in [("on", "off"), ("off", "on")] {
            left_down(&mut Conn::open(&under(load)).unwrap(), oid);
            let report = repair(&under(repaired), 2, &[]).unwrap();
            assert!(report.failed.is_empty(), "{report:?}");
            assert_eq!(report.put_back.len(), 2, "{report:?}");
            assert_eq!(one(&mut conn, definitions), before);
        }
    }
}

/// `repair` leaves a running load alone. After the load's connection is lost, it puts everything
/// back.
#[test]
fn a_load_at_work_is_left_alone() {
    let servers = servers();
    let (url, mut conn) = zoo(servers.last().unwrap());
    let oid = oid(&mut conn, TABLE);
    let taken = left_down(&mut conn, oid);
    let mut load = Conn::open(&url).unwrap();
    load.exec("BEGIN").unwrap();
    assert!(ledger::lock(&mut load, &taken.entry.load).unwrap());
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!((report.running, report.put_back.len()), (vec![TABLE.to_string()], 0));
    // The connection ends, and so the lock is released.
    drop(load);
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!(report.put_back.len(), 18);
    assert_eq!(still_down(&mut conn), 0);
}

/// A database with a ledger and a table `theirs.own` of this role; returns its URL, and that of the
/// role.
fn of_another_role(server: &Server, role: &str) -> (String, String, Conn) {
    let (url, mut admin) = zoo(server);
    ledger::ensure(&mut admin).unwrap();
    admin
        .exec(&format!(
            "CREATE ROLE {role} LOGIN; CREATE SCHEMA theirs AUTHORIZATION {role}; \
        CREATE TABLE theirs.own (id int PRIMARY KEY); ALTER TABLE theirs.own OWNER TO {role}"
        ))
        .unwrap();
    let their_url = format!("{url}&user={role}");
    (url, their_url, admin)
}

/// The objects that loads of other roles have left, and the hint for each.
fn of_others(url: &str) -> Vec<(String, String)> {
    let words = |(object, error): (String, Error)| {
        let hint = error.hint().unwrap().plain();
        (object, hint.to_owned())
    };
    repair(url, 2, &[]).unwrap().others.into_iter().map(words).collect()
}

/// `repair` does not run statements that another role has recorded. It says which role took the
/// object down, and whether that role exists.
#[test]
fn repair_names_the_role_that_took_an_object_down() {
    let servers = servers();
    let role = format!("other_{}", std::process::id());
    let (url, their_url, mut admin) = of_another_role(servers.last().unwrap(), &role);
    let mut conn = Conn::open(&their_url).unwrap();
    let own = oid(&mut conn, "theirs.own");
    left_down(&mut conn, own);
    let object = format!("primary key theirs.own_pkey of theirs.own (taken down by {role})");
    let hint = "run pgsluice repair as that role".to_string();
    assert_eq!(of_others(&url), [(object.clone(), hint.clone())]);
    admin.exec(&format!("ALTER ROLE {role} RENAME TO {role}_now")).unwrap();
    let (named, gone) = of_others(&url).remove(0);
    assert_eq!(named, object);
    assert!(gone.starts_with("that role was renamed or dropped; a superuser can"), "{gone}");
    admin.exec(&format!("ALTER ROLE {role}_now RENAME TO {role}")).unwrap();
    assert_eq!(of_others(&url), [(object, hint)]);
    assert_eq!(repair(&their_url, 2, &[]).unwrap().put_back.len(), 1);
    drop(conn);
    admin.exec(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).unwrap();
}

/// A plan for a partition also reports what a load into its parent has left, and the reverse: a
/// trigger that is disabled on one of them may be missing on the other. It does not report what is
/// left on other tables.
#[test]
fn what_is_left_on_partitions_and_parents_is_reported() {
    let servers = servers();
    let (url, mut conn) = zoo(servers.last().unwrap());
    conn.exec(
        "CREATE TABLE parent (a int) PARTITION BY LIST (a); \
         CREATE TABLE part PARTITION OF parent FOR VALUES IN (1); CREATE INDEX part_a ON part (a); \
         CREATE TABLE part2 PARTITION OF parent FOR VALUES IN (2)",
    )
    .unwrap();
    let relations = ["parent", "part", "part2"].map(|name| oid(&mut conn, name));
    let left = |conn: &mut Conn| {
        relations.map(|relation| {
            conn.exec("BEGIN").unwrap();
            let (notes, own) = ledger::left(conn, relation, true).unwrap();
            conn.exec("COMMIT").unwrap();
            (notes, own.len())
        })
    };
    left_down(&mut conn, relations[1]);
    let [parent, part, part2] = left(&mut conn);
    let note = "an earlier load dropped or disabled: index public.part_a";
    let other = format!("{note} of public.part; pgsluice repair recreates it");
    assert_eq!(parent, (vec![other], 0));
    assert_eq!(part, (vec![format!("{note}; this load recreates it first")], 1));
    assert_eq!(part2, (vec![], 0));
    repair(&url, 2, &[]).unwrap();
    conn.exec(
        "DROP INDEX part_a; \
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER audit AFTER INSERT ON parent FOR EACH ROW EXECUTE FUNCTION audit()",
    )
    .unwrap();
    left_down(&mut conn, relations[0]);
    let [parent, part, part2] = left(&mut conn);
    // The trigger of the parent has one on each partition.
    assert_eq!((parent.1, part.1, part2.1), (3, 0, 0));
    let other = " of public.parent; pgsluice repair recreates it";
    for (notes, _) in [part, part2] {
        assert!(notes[0].contains("trigger audit") && notes[0].ends_with(other), "{notes:?}");
    }
}

/// What a running load of another role has down is left to it, and is not missing.
#[test]
fn a_load_of_another_role_at_work_is_left_alone() {
    let servers = servers();
    let role = format!("at_work_{}", std::process::id());
    let (url, their_url, mut admin) = of_another_role(servers.last().unwrap(), &role);
    let mut conn = Conn::open(&their_url).unwrap();
    let own = oid(&mut conn, "theirs.own");
    let taken = left_down(&mut conn, own);
    conn.exec("BEGIN").unwrap();
    assert!(ledger::lock(&mut conn, &taken.entry.load).unwrap());
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!((report.running, report.others.len()), (vec!["theirs.own".to_string()], 0));
    conn.exec("COMMIT").unwrap();
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!((report.running.len(), report.others.len()), (0, 1));
    drop(conn);
    admin.exec(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).unwrap();
}

/// Any role may insert rows about any table, and about none. They count only if the role may load
/// into the table.
#[test]
fn rows_of_roles_that_may_not_load_are_not_reported() {
    let servers = servers();
    let (url, mut admin) = zoo(servers.last().unwrap());
    ledger::ensure(&mut admin).unwrap();
    let role = format!("clerk_{}", std::process::id());
    admin.exec(&format!("CREATE TABLE t (a int); CREATE ROLE {role}; SET ROLE {role}")).unwrap();
    for table in [oid(&mut admin, "t"), 4_000_000_000] {
        let insert = "INSERT INTO pgsluice_loads.taken_down \
              (load, relation, relation_name, object, choice, search_path) \
            VALUES (gen_random_uuid(), $1::oid, 't', 'index i', '{}', '')";
        admin.query(insert, &[Some(&table.to_string())]).unwrap();
    }
    admin.exec("RESET ROLE").unwrap();
    assert!(of_others(&url).is_empty());
    admin.exec(&format!("GRANT INSERT (a) ON t TO {role}")).unwrap();
    let told = format!("index i of t (taken down by {role})");
    assert_eq!(of_others(&url)[0].0, told);
    admin.exec(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).unwrap();
}

/// The loader has died during a two-phase commit. `repair` rolls back all lanes if the first one
/// was not committed, and otherwise commits all. It leaves a running load alone. Its own transactions
/// may be idle for longer than the role's.
#[test]
fn prepared_lanes_follow_the_first() {
    let installation = each_major().pop().unwrap();
    let server = start(&installation, &[("max_prepared_transactions", "4"), ("fsync", "off")]);
    let url = database(&server);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec("CREATE TABLE t (a int)").unwrap();
    for committed in [false, true] {
        let mut lanes = [Conn::open(&url).unwrap(), Conn::open(&url).unwrap()];
        let mut xid = String::new();
        for (i, lane) in lanes.iter_mut().enumerate() {
            lane.exec(&format!("BEGIN; INSERT INTO t VALUES ({i})")).unwrap();
            if i == 0 {
                xid = one(lane, "SELECT pg_current_xact_id()");
            }
            lane.exec(&format!("PREPARE TRANSACTION 'pgsluice_{xid}_{i}'")).unwrap();
        }
        lanes[0].exec("BEGIN").unwrap();
        assert!(ledger::lock(&mut lanes[0], &xid).unwrap());
        let report = repair(&url, 2, &[]).unwrap();
        assert_eq!((report.running.len(), report.lanes.len()), (2, 0), "the loader is at work");
        lanes[0].exec("COMMIT").unwrap();
        if committed {
            conn.exec(&format!("COMMIT PREPARED 'pgsluice_{xid}_0'")).unwrap();
        }
        let idle = format!("{url}&options=-c%20idle_in_transaction_session_timeout%3D1");
        let report = repair(&idle, 2, &[]).unwrap();
        assert_eq!(report.lanes.len(), if committed { 1 } else { 2 }, "{report:?}");
        assert_eq!(one(&mut conn, "SELECT count(*) FROM pg_prepared_xacts"), "0");
        let rows = if committed { "2" } else { "0" };
        assert_eq!(one(&mut conn, "SELECT count(*) FROM t"), rows);
    }
}

/// Runs `repair` while lanes stay prepared on the table `t`, whose index `t_a` is missing. It does
/// not wait for them, and reports both.
fn repair_beside_lanes(url: &str) -> Report {
    let url = url.to_owned();
    let work = std::thread::spawn(move || repair(&url, 2, &[]).unwrap());
    wait_until(|| "repair waits".into(), || work.is_finished());
    let report = work.join().unwrap();
    assert!(!report.prepared.is_empty() && report.lanes.is_empty(), "{report:?}");
    assert_eq!((report.put_back.len(), report.failed.len()), (0, 1), "{report:?}");
    let (objects, error) = &report.failed[0];
    assert_eq!(objects, "index public.t_a");
    assert!(error.message().contains("_0 holds a lock of public.t"), "{error}");
    report
}

/// Prepared lanes of another role are not ended, but named with that role, by `repair` and by the
/// next plan. What is missing of their table stays missing, without a wait. Lanes of a load that is
/// at work are left to it. A repair by their role ends those that are left.
#[test]
fn prepared_lanes_of_another_role_are_named() {
    let installation = each_major().pop().unwrap();
    let server = start(&installation, &[("max_prepared_transactions", "4"), ("fsync", "off")]);
    let url = database(&server);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec("CREATE TABLE t (a int); CREATE INDEX t_a ON t (a)").unwrap();
    conn.exec("CREATE ROLE etl LOGIN; GRANT INSERT ON t TO etl").unwrap();
    let oid = oid(&mut conn, "t");
    let their_url = format!("{url}&user=etl");
    let mut lane = Conn::open(&their_url).unwrap();
    lane.exec("BEGIN; INSERT INTO t VALUES (1)").unwrap();
    let xid = one(&mut lane, "SELECT pg_current_xact_id()");
    lane.exec(&format!("PREPARE TRANSACTION 'pgsluice_{xid}_0'")).unwrap();
    lane.exec("BEGIN").unwrap();
    assert!(ledger::lock(&mut lane, &xid).unwrap());
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!((report.running.len(), report.prepared.len()), (1, 0), "the loader is at work");
    lane.exec("COMMIT").unwrap();
    let report = repair(&url, 2, &[]).unwrap();
    let (what, why) = &report.prepared[0];
    assert_eq!((report.prepared.len(), report.lanes.len()), (1, 0), "{report:?}");
    assert_eq!(what, &format!("prepared transaction pgsluice_{xid}_0"));
    assert!(why.hint().is_some_and(|h| h.starts_with("run pgsluice repair as the role etl")));
    conn.exec("BEGIN").unwrap();
    let (notes, _) = ledger::left(&mut conn, oid, false).unwrap();
    conn.exec("COMMIT").unwrap();
    let told = format!("pgsluice_{xid}_0 of the role etl; pgsluice repair as that role ends them");
    assert!(notes.len() == 1 && notes[0].ends_with(&told), "{notes:?}");
    assert_eq!(repair(&their_url, 2, &[]).unwrap().lanes.len(), 1);
    assert!(repair(&url, 2, &[]).unwrap().prepared.is_empty());
    // Now on a table whose index is missing. Only then is it dropped, as that needs the lock.
    left_down(&mut conn, oid);
    lane.exec("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'pgsluice_5_0'").unwrap();
    repair_beside_lanes(&url);
    lane.exec("ROLLBACK PREPARED 'pgsluice_5_0'").unwrap();
    assert_eq!(repair(&url, 2, &[]).unwrap().put_back.len(), 1);
    assert_eq!(still_down(&mut conn), 0);
}

/// The loader has died while the server commits the first lane and waits for a standby. `repair`
/// leaves all lanes alone and reports them, and does not wait for them to recreate an index. When
/// the first lane is committed, it commits the others and recreates the index.
#[test]
fn lanes_whose_first_one_is_being_committed_are_left_alone() {
    let installation = each_major().pop().unwrap();
    let settings =
        [("max_prepared_transactions", "4"), ("fsync", "off"), ("synchronous_commit", "local")];
    let mut server = start(&installation, &settings);
    let mut conn = Conn::open(&server.url("postgres")).unwrap();
    conn.exec("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'").unwrap();
    drop(conn);
    server.restart().unwrap();
    let url = database(&server);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec("CREATE TABLE t (a int); CREATE INDEX t_a ON t (a)").unwrap();
    let oid = oid(&mut conn, "t");
    left_down(&mut conn, oid);
    let mut lanes = [Conn::open(&url).unwrap(), Conn::open(&url).unwrap()];
    let mut xid = String::new();
    for (i, lane) in lanes.iter_mut().enumerate() {
        lane.exec(&format!("BEGIN; INSERT INTO t VALUES ({i})")).unwrap();
        if i == 0 {
            xid = one(lane, "SELECT pg_current_xact_id()");
        }
        lane.exec(&format!("PREPARE TRANSACTION 'pgsluice_{xid}_{i}'")).unwrap();
    }
    let mut first = Conn::open(&url).unwrap();
    first.exec("SET synchronous_commit = on").unwrap();
    let commit = format!("COMMIT PREPARED 'pgsluice_{xid}_0'");
    let first = std::thread::spawn(move || first.exec(&commit).map(drop));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until(|| "the commit does not wait".into(), || one(&mut conn, waits) == "1");
    assert_eq!(repair_beside_lanes(&url).prepared.len(), 2);
    assert_eq!(one(&mut conn, "SELECT count(*) FROM pg_prepared_xacts"), "2");
    let end = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    conn.exec(end).unwrap();
    first.join().unwrap().unwrap();
    let report = repair(&url, 2, &[]).unwrap();
    assert_eq!((report.prepared.len(), report.lanes.len()), (0, 1), "{report:?}");
    assert_eq!((report.put_back.len(), still_down(&mut conn)), (1, 0), "{report:?}");
    assert_eq!(one(&mut conn, "SELECT count(*) FROM pg_prepared_xacts"), "0");
    assert_eq!(one(&mut conn, "SELECT count(*) FROM t"), "2");
}
