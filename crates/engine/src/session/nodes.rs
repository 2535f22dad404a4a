//! The servers that hold the leaves of a partitioned table, according to the catalog of
//! `postgres_fdw`, and whether their tables match the leaves.

use super::conn::{quote_ident, Conn, Rows};
use super::target::{known, part, read as read_target, written, TargetKeywords};
use crate::error::{Error, Kind};
use crate::facts::{Address, Node, Nodes, RemoteLeaf};
use crate::ledger;
use crate::text::text;
use alike::{checks, columns, compared, unlogged};
use same::{locked_before, same_as};

mod alike;
mod same;

pub use alike::hold_leaf;

/// Options of servers and of user mappings that this program's connections use with the same
/// meaning. All options that protect the password are among them. Options that name files are
/// excluded: the files are on the coordinator's machine.
const CONNECTION: [&str; 20] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "ssl_min_protocol_version",
    "gssencmode",
    "krbsrvname",
    "channel_binding",
    "require_auth",
    "requirepeer",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "target_session_attrs",
];

/// Reads the leaves, connects to each node, and compares the tables there. For nodes in `given`,
/// these addresses are used in place of the catalog's. If the load is `tolerant`, a node that
/// cannot be reached is left out.
///
/// # Errors
///
/// A leaf is not on another server, a node cannot be reached, or its table differs.
pub fn read(
    conn: &mut Conn,
    root: u32,
    given: &[(String, String)],
    tolerant: bool,
) -> Result<Nodes, Error> {
    // Makes type names in expressions qualified, and dates in them the same in every session: the
    // bound of a partition is recorded with what a node has.
    let all = "SELECT pg_catalog.current_setting('search_path'), \
        pg_catalog.current_setting('TimeZone'), pg_catalog.current_setting('DateStyle')";
    let own = conn.exec(all)?.into_iter().next().unwrap_or_default();
    let fixed = ["pg_catalog", "UTC", "ISO, YMD"].map(|value| Some(value.to_owned()));
    set(conn, &fixed)?;
    let read = read_all(conn, root, given, tolerant);
    // After an error, the transaction has failed.
    if read.is_ok() {
        set(conn, &own)?;
    }
    read
}

/// Sets `search_path`, `TimeZone` and `DateStyle` until the transaction ends.
fn set(conn: &mut Conn, values: &[Option<String>]) -> Result<(), Error> {
    let values: Vec<Option<&str>> = values.iter().map(Option::as_deref).collect();
    let set = "SELECT pg_catalog.set_config('search_path', $1, true), \
        pg_catalog.set_config('TimeZone', $2, true), pg_catalog.set_config('DateStyle', $3, true)";
    conn.query(set, &values).map(drop)
}

/// Reads the leaves from the catalog.
fn leaves(conn: &mut Conn, root: u32) -> Result<Rows, Error> {
    // As in postgres_fdw: the option of the table overrides that of the server.
    let option = |name: &str| {
        let of = |options: &str| {
            format!(
                "(SELECT lower(option_value) FROM pg_options_to_table({options}) \
                   WHERE option_name = '{name}')"
            )
        };
        let (table, server) = (of("f.ftoptions"), of("s.srvoptions"));
        format!("coalesce({table}, {server}, 'true') NOT IN ('false', 'off')")
    };
    let (updatable, truncatable) = (option("updatable"), option("truncatable"));
    let select = format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, p.proname = 'postgres_fdw_handler', \
         s.srvname, s.oid, pg_get_partition_constraintdef(c.oid), \
         (SELECT option_value FROM pg_options_to_table(f.ftoptions) \
           WHERE option_name = 'schema_name'), \
         (SELECT option_value FROM pg_options_to_table(f.ftoptions) \
           WHERE option_name = 'table_name'), \
         (SELECT string_agg(tgname, ', ') FROM pg_trigger \
           WHERE tgrelid = c.oid AND tgtype & 4 <> 0 AND tgenabled <> 'D'), \
         has_table_privilege($1::oid, 'INSERT'), {updatable}, {truncatable} \
         FROM pg_partition_tree($1::oid::regclass) t JOIN pg_class c ON c.oid = t.relid \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_foreign_table f ON f.ftrelid = c.oid \
         LEFT JOIN pg_foreign_server s ON s.oid = f.ftserver \
         LEFT JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw \
         LEFT JOIN pg_proc p ON p.oid = w.fdwhandler WHERE t.isleaf ORDER BY c.oid"
    );
    conn.query(&select, &[Some(&root.to_string())])
}

/// Why rows cannot be sent directly to a leaf, or why the coordinator would not accept them; with a
/// hint.
fn obstacle(leaf: &[Option<String>]) -> Option<(String, &'static str)> {
    const ROOT: &str = "`route` root loads it through this server";
    let is = |i: usize| leaf[i].as_deref() == Some("t");
    if !is(4) {
        return Some(("it is not a foreign table of postgres_fdw".into(), ROOT));
    }
    if let Some(triggers) = &leaf[10] {
        let why = format!("it has triggers, which fire on this server: {triggers}");
        return Some((why, ROOT));
    }
    if !is(11) {
        let why = "the role may not insert into the partitioned table".into();
        return Some((why, "the table's owner can GRANT it"));
    }
    let why = || "its option updatable is false, and so it does not allow inserts".into();
    let hint = "the owner of the foreign table or of its server can change the option";
    (!is(12)).then(|| (why(), hint))
}

fn read_all(
    conn: &mut Conn,
    root: u32,
    given: &[(String, String)],
    tolerant: bool,
) -> Result<Nodes, Error> {
    let rows = leaves(conn, root)?;
    check_names(&rows, given)?;
    let (may_truncate, truncate_triggers) = truncates(conn, root)?;
    let mut found = Nodes { may_truncate, truncate_triggers, ..Nodes::default() };
    let mut servers = Vec::new();
    let mut conns: Vec<Option<Conn>> = Vec::new();
    let probe = ledger::new_load(conn)?;
    locked_before(conn, &probe, 0)?;
    for row in rows {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let partition = format!("{}.{}", quote_ident(&text(1)), quote_ident(&text(2)));
        if let Some((why, hint)) = obstacle(&row) {
            let message = text!("`route` nodes cannot load {}: {}", partition, why);
            return Err(Error::new(message).with_hint(hint));
        }
        let node = match servers.iter().position(|oid| *oid == text(6)) {
            Some(node) => node,
            None => {
                let (mut node, there) = node(conn, text(5), &text(6), given)?;
                let there = there.and_then(|there| compare(&mut node, there, &probe, &found.nodes));
                conns.push(match there {
                    Ok(there) => Some(there),
                    Err(error) if tolerant && error.kind() == Kind::Connection => {
                        node.down = Some(error);
                        None
                    }
                    Err(error) => return Err(error),
                });
                servers.push(text(6));
                found.nodes.push(node);
                found.nodes.len() - 1
            }
        };
        let schema = row[8].as_ref().unwrap_or(&text(1)).clone();
        let relation = row[9].as_ref().unwrap_or(&text(2)).clone();
        let oid = text(0).parse().unwrap_or(0);
        let mut leaf = RemoteLeaf {
            oid,
            table: format!("{}.{}", quote_ident(&schema), quote_ident(&relation)),
            partition,
            node,
            relation,
            columns: columns(conn, oid)?,
            checks: checks(conn, &text(0))?,
            constraint: row[7].clone().filter(|text| !text.is_empty()),
            unlogged: false,
            truncatable: row[13].as_deref() == Some("t"),
        };
        // Without a connection: the load that brings its rows compares it.
        if let Some(there) = &mut conns[node] {
            let of_node = |error| of_node(&found.nodes[node].name, error);
            leaf.columns = compared(there, &leaf).map_err(of_node)?;
            leaf.unlogged = unlogged(there, &leaf.table).map_err(of_node)?;
        }
        found.leaves.push(leaf);
    }
    match found.nodes.iter().map(|node| node.down.clone()).collect::<Option<Vec<_>>>() {
        Some(all) => all.into_iter().next().map_or(Ok(found), Err),
        None => Ok(found),
    }
}

/// Returns the nodes of a partitioned table by the names of their servers, each with its tables,
/// quoted and qualified. Empty if there are no foreign tables.
///
/// # Errors
///
/// The connection is lost.
pub fn tables(conn: &mut Conn, root: &str) -> Result<Vec<(String, Vec<String>)>, Error> {
    let rows = conn.query(
        "SELECT s.srvname, pg_catalog.jsonb_agg(pg_catalog.format('%I.%I', \
           coalesce((SELECT option_value FROM pg_catalog.pg_options_to_table(f.ftoptions) \
             WHERE option_name = 'schema_name'), n.nspname), \
           coalesce((SELECT option_value FROM pg_catalog.pg_options_to_table(f.ftoptions) \
             WHERE option_name = 'table_name'), c.relname))) \
         FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) t \
         JOIN pg_catalog.pg_foreign_table f ON f.ftrelid = t.relid \
         JOIN pg_catalog.pg_class c ON c.oid = t.relid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_foreign_server s ON s.oid = f.ftserver \
         GROUP BY s.srvname ORDER BY s.srvname",
        &[Some(root)],
    )?;
    let node = |row: &Vec<Option<String>>| {
        let tables = serde_json::from_str(row[1].as_deref().unwrap_or("[]")).unwrap_or_default();
        (row[0].clone().unwrap_or_default(), tables)
    };
    Ok(rows.iter().map(node).collect())
}

/// Whether the role may truncate a partitioned table, and the triggers that fire then.
fn truncates(conn: &mut Conn, table: u32) -> Result<(bool, Option<String>), Error> {
    // tgtype: 32 TRUNCATE
    let select = "SELECT has_table_privilege($1::oid, 'TRUNCATE'), \
        (SELECT string_agg(tgname, ', ') FROM pg_trigger \
          WHERE tgrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass)) \
            AND tgtype & 32 <> 0 AND tgenabled <> 'D' AND NOT tgisinternal)";
    let row = conn.query(select, &[Some(&table.to_string())])?.swap_remove(0);
    Ok((row[0].as_deref() == Some("t"), row[1].clone()))
}

/// Checks that each given address is that of a node.
fn check_names(rows: &Rows, given: &[(String, String)]) -> Result<(), Error> {
    let mut names: Vec<&str> = rows.iter().filter_map(|row| row[5].as_deref()).collect();
    match given.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        Some((name, _)) => {
            names.sort_unstable();
            names.dedup();
            Err(Error::new(text!("`node` {}: the table has no partition there", name))
                .with_hint(text!("its nodes are {}", names.join(", "))))
        }
        None => Ok(()),
    }
}

/// Creates a node from the name and the OID of its foreign server, and connects to it.
fn node(
    conn: &mut Conn,
    name: String,
    oid: &str,
    given: &[(String, String)],
) -> Result<(Node, Result<Conn, Error>), Error> {
    let address = address(conn, &name, oid, given)?;
    let mut node = Node { name, address, max_prepared_transactions: 0, down: None, same_as: None };
    let mut there = open(&node.name, &node.address);
    if let Ok(there) = &mut there {
        node.max_prepared_transactions = max_prepared_transactions(there);
    }
    Ok((node, there))
}

/// Checks whether the node's database is that of the coordinator or of an earlier node.
fn compare(node: &mut Node, mut conn: Conn, probe: &str, before: &[Node]) -> Result<Conn, Error> {
    let same = same_as(&mut conn, probe, before);
    node.same_as = same.map_err(|error| of_node(&node.name, error))?;
    // Its tables are compared with this path.
    let set = conn.exec("SET LOCAL search_path = pg_catalog");
    set.map_err(|error| of_node(&node.name, error))?;
    Ok(conn)
}

/// Connects to a node.
///
/// # Errors
///
/// As for [`Conn::open`], with the name of the node.
fn open(name: &str, address: &Address) -> Result<Conn, Error> {
    Conn::open(&address.0).map_err(|e| of_node(name, e))
}

/// Connects to a node by the name of its server in the coordinator's catalog.
///
/// # Errors
///
/// There is no such server, or as for [`Conn::open`].
pub fn connect(
    coordinator: &mut Conn,
    name: &str,
    given: &[(String, String)],
) -> Result<Conn, Error> {
    // The server may have been renamed or dropped since a load has prepared transactions there.
    if let Some(address) = given_address(name, given)? {
        return open(name, &address);
    }
    let find = "SELECT oid FROM pg_catalog.pg_foreign_server WHERE srvname = $1";
    let rows = coordinator.query(find, &[Some(name)])?;
    let Some(oid) = rows.first().and_then(|row| row[0].clone()) else {
        return Err(Error::new(text!("node {}: there is no foreign server of this name", name))
            .with_hint(text!("`node` {}=URL gives its address", name)));
    };
    open(name, &address(coordinator, name, &oid, given)?)
}

fn max_prepared_transactions(conn: &mut Conn) -> u32 {
    let setting = "SELECT pg_catalog.current_setting('max_prepared_transactions')";
    let rows = conn.exec(setting).unwrap_or_default();
    rows.first().and_then(|row| row[0].as_ref()?.parse().ok()).unwrap_or(0)
}

/// Adds the name of the node to an error.
pub fn of_node(name: &str, error: Error) -> Error {
    let kind = error.kind();
    let (place, hint) = (error.place().cloned(), error.hint().cloned());
    let changed = error.changed().map(str::to_owned);
    let mut named = Error::new(text!("node {}: {}", name, error.message().clone())).of_kind(kind);
    if let Some(server) = error.server() {
        named = named.with_server(server.clone());
    }
    if let Some(place) = place {
        named = named.at(place);
    }
    if let Some(changed) = changed {
        named = named.with_changed(changed);
    }
    match hint {
        Some(hint) => named.with_hint(hint),
        None => named,
    }
}

/// The address that the user gives for a node.
fn given_address(name: &str, given: &[(String, String)]) -> Result<Option<Address>, Error> {
    let given = given.iter().find(|(node, _)| node == name);
    given.map(|(_, url)| written_address(url)).transpose()
}

/// The address of a foreign server, from its options and those of the role's user mapping. It
/// always has a password, which may be empty: the coordinator's password must not be sent to a
/// node.
fn address(
    conn: &mut Conn,
    name: &str,
    oid: &str,
    given: &[(String, String)],
) -> Result<Address, Error> {
    if let Some(address) = given_address(name, given)? {
        return Ok(address);
    }
    let rows = conn.query(
        "SELECT option_name, option_value FROM pg_catalog.pg_foreign_server, \
           pg_catalog.pg_options_to_table(srvoptions) WHERE oid = $1::oid \
         UNION ALL SELECT option_name, option_value FROM \
           (SELECT umoptions FROM pg_catalog.pg_user_mappings WHERE srvid = $1::oid \
             AND umuser IN (0::oid, (SELECT oid FROM pg_catalog.pg_roles \
               WHERE rolname = current_user)) ORDER BY umuser DESC LIMIT 1) AS m, \
           pg_catalog.pg_options_to_table(m.umoptions)",
        &[Some(oid)],
    )?;
    let mut pairs: TargetKeywords =
        rows.into_iter().filter_map(|row| Some((row[0].clone()?, row[1].clone()?))).collect();
    for_this_machine(&mut pairs);
    if let Some((option, _)) = pairs.iter().find(|(option, _)| !known(option)) {
        let message = format!(
            "node {name}: libpq {} of this program does not support the option {option} of the \
             foreign server",
            conn.library() / 10_000
        );
        return Err(Error::new(message).with_hint(
            "a build with a later libpq supports it; `node` NAME=URL replaces the server's options",
        ));
    }
    let has = |pairs: &TargetKeywords, name: &str| pairs.iter().find(|(n, _)| n == name).cloned();
    let host = has(&pairs, "host").or_else(|| has(&pairs, "hostaddr"));
    let Some(user) = has(&pairs, "user") else {
        return Err(Error::new(format!("node {name}: the user mapping does not say the user"))
            .with_hint("the role must be able to read a user mapping with the option user"));
    };
    let near = |host: &str| {
        host.starts_with(['/', '@', '.'])
            || ["localhost", "::1"].contains(&host)
            || host.starts_with("127.")
    };
    let Some((_, host)) = host else {
        return Err(Error::new(format!("node {name}: the server has no option host"))
            .with_hint("give the foreign server the option host, or say `node` NAME=URL"));
    };
    let own = conn.host();
    if near(&host) && !own.is_empty() && !near(&own) {
        let message = format!("node {name}: its host {host} is the coordinator's machine");
        return Err(Error::new(message)
            .with_hint("run the load there, or give the server an address that is valid here"));
    }
    for (keyword, value) in [("port", "5432"), ("dbname", &user.1), ("password", "")] {
        if has(&pairs, keyword).is_none() {
            pairs.push((keyword.into(), value.into()));
        }
    }
    Ok(Address(written(&pairs)))
}

/// Leaves the options that have the same meaning on this machine. If the node's certificate is
/// checked with a file of the coordinator, it is checked here with the file of this machine.
fn for_this_machine(pairs: &mut TargetKeywords) {
    let value = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    let mode = match (value("sslrootcert"), value("sslmode")) {
        // The default of libpq 16. Earlier ones take `system` for a file, and check nothing if it
        // is missing.
        (Some("system"), None) => Some("verify-full"),
        // If there is such a file, libpq checks the certificate by this mode, too.
        (Some(file), Some("require")) if !["", "system"].contains(&file) => Some("verify-ca"),
        _ => None,
    };
    if let Some(mode) = mode {
        pairs.retain(|(name, _)| name != "sslmode");
        pairs.push(("sslmode".into(), mode.into()));
    }
    pairs.retain(|(name, value)| {
        CONNECTION.contains(&name.as_str()) || name == "sslrootcert" && value == "system"
    });
}

/// Parses an address that the user gave.
fn written_address(url: &str) -> Result<Address, Error> {
    if part(url)?.is_some() {
        return Err(Error::usage(
            "`node` has a password, which other users of this machine can see",
        )
        .with_hint("put it into the password file (~/.pgpass), or into the user mapping"));
    }
    let mut pairs = read_target(url)?;
    if pairs.is_empty() {
        pairs.push(("dbname".into(), url.into()));
    }
    pairs.push(("password".into(), String::new()));
    Ok(Address(written(&pairs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_checked_as_the_foreign_server_does() {
        let cases = [
            ("sslmode=require sslrootcert=/x", "sslmode='verify-ca'"),
            ("sslmode=verify-full sslrootcert=/x", "sslmode='verify-full'"),
            ("sslmode=require sslcert=/x", "sslmode='require'"),
            ("sslrootcert=/x", ""),
            ("sslrootcert=system", "sslrootcert='system' sslmode='verify-full'"),
        ];
        for (options, used) in cases {
            let words = options.split(' ').filter_map(|pair| pair.split_once('='));
            let mut pairs: TargetKeywords = words.map(|(n, v)| (n.into(), v.into())).collect();
            for_this_machine(&mut pairs);
            assert_eq!(written(&pairs), used, "{options}");
        }
    }
}
