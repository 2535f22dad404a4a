//! What a role may not do, and what must not be dropped.

use crate::cluster::*;
use pgsluice_engine::internals::ledger::{self, State};
use pgsluice_engine::internals::maintenance::decide;
use pgsluice_engine::internals::maintenance::take_down;
use pgsluice_engine::internals::maintenance::Request;
use pgsluice_engine::internals::Conn;

fn reasons(conn: &mut Conn, table: &str, request: &Request) -> Vec<String> {
    let oid = oid(conn, table);
    decide(&read(conn, oid), request).lines().into_iter().map(String::from).collect()
}

fn assert_line(lines: &[String], line: &str) {
    assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
}

/// An index on which something else depends stays, and the reason names it: a foreign key, a view,
/// a publication or a partitioned table.
#[test]
fn what_something_depends_on_stays() {
    for server in servers().iter() {
        let mut conn = Conn::open(&database(server)).unwrap();
        conn.exec(
            "CREATE TABLE referred (id int PRIMARY KEY, a int); \
             CREATE TABLE refers (id int REFERENCES referred); \
             CREATE TABLE grouped (id int PRIMARY KEY, a int); \
             CREATE INDEX ON grouped (a); \
             CREATE VIEW by_key AS SELECT id, a FROM grouped GROUP BY id; \
             CREATE TABLE published (id int PRIMARY KEY, a int UNIQUE); \
             CREATE PUBLICATION pub FOR TABLE published; \
             CREATE TABLE inserts_only (id int PRIMARY KEY); \
             CREATE PUBLICATION ins FOR TABLE inserts_only WITH (publish = 'insert'); \
             CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); \
             CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10); \
             CREATE INDEX own ON part (id)",
        )
        .unwrap();
        let request = everything();
        let lines = reasons(&mut conn, "referred", &request);
        assert_line(
            &lines,
            "keep primary key public.referred_pkey: \
            constraint refers_id_fkey on table public.refers depends on it",
        );
        let lines = reasons(&mut conn, "grouped", &request);
        assert_line(
            &lines,
            "keep primary key public.grouped_pkey: \
            rule _RETURN on view public.by_key depends on it",
        );
        assert_line(&lines, "rebuild index public.grouped_a_idx: asked for");
        let lines = reasons(&mut conn, "published", &request);
        assert_line(
            &lines,
            "keep primary key public.published_pkey: a publication identifies rows by it",
        );
        assert_line(&lines, "rebuild unique constraint public.published_a_key: asked for");
        let lines = reasons(&mut conn, "inserts_only", &request);
        assert_line(&lines, "rebuild primary key public.inserts_only_pkey: asked for");
        let kept = "it belongs to a partitioned table";
        assert_line(
            &reasons(&mut conn, "parts", &request),
            &format!("keep primary key public.parts_pkey: {kept}"),
        );
        let lines = reasons(&mut conn, "part", &request);
        assert_line(&lines, &format!("keep primary key public.part_pkey: {kept}"));
        assert_line(&lines, "rebuild index public.own: asked for");
    }
}

/// An index that was invalid before the load is left as it is, and the reason says so.
#[test]
fn an_invalid_index_is_left_and_named() {
    let servers = servers();
    let mut conn = Conn::open(&database(servers.last().unwrap())).unwrap();
    conn.exec("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (1)").unwrap();
    conn.exec("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (a)").unwrap_err();
    let lines = reasons(&mut conn, "t", &everything());
    assert_eq!(
        lines,
        ["keep unique index public.broken: \
        it was not valid before the load and is left as it is"]
    );
}

/// With rejects, only triggers and plain indexes are taken down: no constraint and no unique index.
#[test]
fn with_rejects_what_refuses_records_stays() {
    let servers = servers();
    let (_, mut conn) = zoo(servers.last().unwrap());
    let oid = oid(&mut conn, TABLE);
    let request = Request { rejects: true, ..everything() };
    let around = read(&mut conn, oid);
    let decision = decide(&around, &request);
    assert!(decision.down().all(|c| c.kind == "trigger" || c.object.starts_with("index ")));
    assert!(decision.down().any(|c| c.kind == "index"));
}

/// A role takes nothing down if it does not own the table or may not create objects in its schema.
/// A role that may not write the ledger still rebuilds in one transaction.
#[test]
fn a_role_does_what_it_may() {
    for server in servers().iter() {
        let (url, mut admin) = zoo(server);
        let role = format!("plain_{}", std::process::id());
        admin
            .exec(&format!(
                "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; \
                 CREATE TABLE others (id int PRIMARY KEY); GRANT ALL ON others TO {role}; \
                 CREATE SCHEMA theirs AUTHORIZATION {role}; \
                 CREATE TABLE theirs.own (id int PRIMARY KEY); \
                 ALTER TABLE theirs.own OWNER TO {role}; \
                 CREATE TABLE shut (id int PRIMARY KEY); ALTER TABLE shut OWNER TO {role}; \
                 REVOKE CREATE ON SCHEMA public FROM PUBLIC"
            ))
            .unwrap();
        let mut conn = Conn::open(&format!("{url}&user={role}")).unwrap();
        assert_eq!(one(&mut conn, "SELECT current_user"), role);
        let request = everything();
        assert_eq!(
            reasons(&mut conn, "others", &request),
            ["keep primary key public.others_pkey: the role does not own the table"]
        );
        assert_eq!(
            reasons(&mut conn, "shut", &request),
            ["keep primary key public.shut_pkey: \
            the role may not create objects in the table's schema"]
        );
        let state = ledger::ensure(&mut conn).unwrap();
        assert_eq!(
            state,
            State::Unusable("the role may not create the schema pgsluice_loads".into())
        );
        let own = oid(&mut conn, "theirs.own");
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, own, &request, &state).unwrap();
        assert_eq!((taken.entry.choices.len(), taken.recorded), (1, false));
        pgsluice_engine::internals::maintenance::put_back(&mut conn, &taken).unwrap();
        conn.exec("COMMIT").unwrap();

        // Once a superuser has made the ledger, the role writes its own rows, and
        // sees and changes no others.
        ledger::ensure(&mut admin).unwrap();
        assert_eq!(ledger::ensure(&mut conn).unwrap(), State::Ready);
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, own, &request, &State::Ready).unwrap();
        assert!(taken.recorded);
        conn.exec("COMMIT").unwrap();
        assert_eq!(still_down(&mut conn), 1);
        let (mine, others) = ledger::still_down(&mut admin).unwrap();
        assert!(mine.is_empty());
        assert_eq!(
            others.into_iter().map(|other| other.words).collect::<Vec<_>>(),
            [format!("primary key theirs.own_pkey of theirs.own (taken down by {role})")]
        );
        let forged = "INSERT INTO pgsluice_loads.taken_down \
            (load, relation, relation_name, object, choice, search_path, taken_down_by) \
            VALUES (gen_random_uuid(), 1, '', '', '{}', '', 'postgres')";
        assert_eq!(conn.exec(forged).unwrap_err().sqlstate(), "42501");
        drop(conn);
        admin.exec(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).unwrap();
    }
}

/// Another owner of the ledger could put statements into it, and the owner of another table in its
/// schema could add triggers. So such a ledger is not used.
#[test]
fn a_ledger_of_somebody_else_is_not_trusted() {
    let servers = servers();
    let server = servers.last().unwrap();
    let url = database(server);
    let mut admin = Conn::open(&url).unwrap();
    let role = format!("sly_{}", std::process::id());
    admin
        .exec(&format!(
            "CREATE ROLE {role}; CREATE SCHEMA pgsluice_loads AUTHORIZATION {role}; \
        SET ROLE {role}; CREATE TABLE pgsluice_loads.taken_down (id int); RESET ROLE"
        ))
        .unwrap();
    let unusable =
        State::Unusable(format!("the schema pgsluice_loads, or a table in it, belongs to {role}"));
    assert_eq!(ledger::ensure(&mut admin).unwrap(), unusable);
    admin.exec("DROP SCHEMA pgsluice_loads CASCADE").unwrap();
    assert_eq!(ledger::ensure(&mut admin).unwrap(), State::Ready);
    admin.exec("CREATE TABLE pgsluice_loads.loads (id int)").unwrap();
    admin.exec(&format!("ALTER TABLE pgsluice_loads.loads OWNER TO {role}")).unwrap();
    assert_eq!(ledger::ensure(&mut admin).unwrap(), unusable);
    admin.exec(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).unwrap();
}
