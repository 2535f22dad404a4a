//! Facts from the catalog about the server and the table. Makes no decisions.

use super::conn::{Conn, Rows};
use super::types::TypeResolver;
use crate::error::Error;
use crate::facts::{ColumnFacts, IndexFacts, ServerFacts, TableFacts, TriggerFacts};
use serde::de::DeserializeOwned;

/// Runs a query of the catalogs that takes the OID `$1` and returns a JSON object in each row.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn objects<T: DeserializeOwned>(
    conn: &mut Conn,
    sql: &str,
    oid: u32,
) -> Result<Vec<T>, Error> {
    let rows = conn.query(sql, &[Some(&oid.to_string())])?;
    let json = rows.iter().map(|row| row[0].as_deref().unwrap_or("null"));
    json.map(|j| serde_json::from_str(j).map_err(|e| Error::new(format!("catalog query: {e}"))))
        .collect()
}

/// The expression for whether transactions are read-only by default: `on` or `off`.
const READ_ONLY: &str = "pg_catalog.current_setting('default_transaction_read_only')";

/// Whether transactions are read-only by default on the whole server, and not only for this role,
/// this database or this session.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn is_read_only(conn: &mut Conn) -> Result<bool, Error> {
    let by_default = conn.exec(&format!("SELECT {READ_ONLY}"))?;
    Ok(by_default[0][0].as_deref() == Some("on") && is_read_only_for_all(conn)?)
}

/// The server reads all settings to find the source of one. Most loads need not ask for it.
fn is_read_only_for_all(conn: &mut Conn) -> Result<bool, Error> {
    let rows = conn.exec(
        "SELECT FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only' \
           AND source NOT IN ('user', 'database', 'database user', 'client', 'session')",
    )?;
    Ok(!rows.is_empty())
}

/// Reads the facts about the server.
///
/// # Errors
///
/// The connection is lost.
pub fn server(conn: &mut Conn) -> Result<ServerFacts, Error> {
    let rows = conn.exec(&format!(
        "SELECT pg_catalog.current_setting('server_encoding'), \
         pg_catalog.current_setting('wal_level'), \
         pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_wal_size')), \
         pg_catalog.pg_size_bytes(pg_catalog.current_setting('shared_buffers')), \
         extract(epoch from pg_catalog.current_setting('checkpoint_timeout')::interval)::int, \
         pg_catalog.current_setting('wal_compression'), \
         pg_catalog.current_setting('max_prepared_transactions'), \
         pg_catalog.current_setting('DateStyle'), pg_catalog.current_setting('TimeZone'), \
         pg_catalog.current_setting('IntervalStyle'), pg_catalog.current_setting('lc_monetary'), \
         pg_catalog.current_setting('array_nulls'), \
         (SELECT e.extversion FROM pg_catalog.pg_extension e \
           JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::regclass::oid \
             AND d.refobjid = e.oid AND d.classid = 'pg_catalog.pg_class'::regclass::oid \
             AND d.deptype = 'e' \
           JOIN pg_catalog.pg_class c ON c.oid = d.objid \
           WHERE e.extname = 'pgsluice' AND c.relname = 'last_copy' \
           AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') \
           AND pg_catalog.has_table_privilege(c.oid, 'SELECT')), \
         pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), \
         (SELECT pg_catalog.string_agg(slot_name::text, ',') FROM pg_catalog.pg_replication_slots), \
         pg_catalog.current_setting('timezone_abbreviations'), \
         pg_catalog.current_setting('max_connections'), pg_catalog.pg_backend_pid(), {READ_ONLY}"
    ))?;
    let row = &rows[0];
    let text = |i: usize| row[i].clone().unwrap_or_default();
    let number = |i: usize| text(i).parse().unwrap_or(0);
    Ok(ServerFacts {
        version: conn.server_version(),
        encoding: text(0),
        wal_level: text(1),
        max_wal_size: number(2),
        shared_buffers: number(3),
        checkpoint_timeout: number(4),
        wal_compression: text(5) != "off",
        max_connections: number(16) as u32,
        max_prepared_transactions: number(6) as u32,
        slots: text(14).split(',').filter(|s| !s.is_empty()).map(str::to_string).collect(),
        date_style: text(7),
        time_zone: text(8),
        abbreviations: text(15),
        interval_style: text(9),
        lc_monetary: text(10),
        array_nulls: text(11) == "on",
        process: number(17) as u32,
        extension: row[12].clone(),
        extension_fault: None,
        can_create_schema: text(13) == "t",
        read_only: text(18) == "on" && is_read_only_for_all(conn)?,
    })
}

/// Checks whether the extension works in this session.
///
/// # Errors
///
/// The connection is lost.
pub fn try_extension(conn: &mut Conn, server: &mut ServerFacts) -> Result<(), Error> {
    if server.extension.is_none() {
        return Ok(());
    }
    if let Some(fault) = load_library(conn)? {
        server.extension = None;
        server.extension_fault = Some(fault.message().to_string());
    }
    Ok(())
}

/// Makes the server load the library of the extension into this session, by a query of its view.
/// Returns why that fails: the library may be missing or built for another server, or the objects of
/// the extension may be of another version. In either case, the transaction goes on.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn load_library(conn: &mut Conn) -> Result<Option<Error>, Error> {
    // The view raises a NOTICE if it is queried before any COPY.
    conn.exec("SAVEPOINT pgsluice_extension; SET LOCAL client_min_messages = warning")?;
    let fault = match conn.exec("SELECT route, indexes FROM pgsluice.last_copy") {
        Err(error) if error.sqlstate().is_empty() => return Err(error),
        queried => queried.err(),
    };
    conn.exec("ROLLBACK TO SAVEPOINT pgsluice_extension; RELEASE SAVEPOINT pgsluice_extension")?;
    Ok(fault)
}

/// Finds the table that `name` refers to in this session. `name` is read as in SQL, with quotes and
/// a schema if they are given. Returns `None` if there is no such table.
///
/// # Errors
///
/// `name` is not a name, or the connection is lost.
pub fn find(conn: &mut Conn, name: &str) -> Result<Option<TableFacts>, Error> {
    let rows = conn.query(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, \
         pg_catalog.pg_has_role(c.relowner, 'USAGE'), c.relispartition, \
         pg_catalog.has_schema_privilege(n.oid, 'CREATE'), \
         pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'), \
         pg_catalog.obj_description(c.oid, 'pg_class') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = pg_catalog.to_regclass($1)::oid",
        &[Some(name)],
    )?;
    let Some(row) = rows.first() else { return Ok(None) };
    let text = |i: usize| row[i].clone().unwrap_or_default();
    let letter = |i: usize| text(i).chars().next().unwrap_or(' ');
    let sql =
        format!("{}.{}", super::conn::quote_ident(&text(1)), super::conn::quote_ident(&text(2)));
    Ok(Some(TableFacts {
        oid: text(0).parse().unwrap_or(0),
        schema: text(1),
        name: text(2),
        sql,
        kind: letter(3),
        persistence: letter(4),
        owned: text(5) == "t",
        is_partition: text(6) == "t",
        schema_open: text(7) == "t",
        lockable: text(8) == "t",
        comment: row[9].clone(),
        ..TableFacts::default()
    }))
}

/// The facts about a table in one row, with [`LISTS`] in place of `$lists`. A foreign key of a
/// partition to its partitioned table is not one of another table. A key that is NOT ENFORCED has no
/// triggers. TRUNCATE looks for keys, whether enforced or not, only if the table has triggers or is
/// partitioned (`heap_truncate_check_FKs`).
const FACTS: &str = "SELECT (SELECT count(*) FROM pg_catalog.pg_constraint \
       WHERE conrelid = $1::oid AND contype = 'f'), \
     (c.relhastriggers OR c.relkind = 'p') AND EXISTS (SELECT 1 FROM pg_catalog.pg_constraint \
       WHERE confrelid = $1::oid AND contype = 'f' AND conrelid <> $1::oid AND conrelid NOT IN \
         (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))), \
     (SELECT count(*) FROM pg_catalog.pg_partition_tree($1::oid::regclass) WHERE isleaf), \
     (SELECT coalesce(sum(pg_catalog.pg_total_relation_size(relid)), 0) \
       FROM pg_catalog.pg_partition_tree($1::oid::regclass)) \
     + CASE WHEN c.relkind = 'r' AND NOT c.relispartition \
       THEN pg_catalog.pg_total_relation_size($1::oid) ELSE 0 END, \
     has_table_privilege($1::oid, 'SELECT'), \
     (SELECT coalesce(sum(pg_catalog.pg_relation_size(relid)), 0) \
       FROM pg_catalog.pg_partition_tree($1::oid::regclass)) \
     + CASE WHEN c.relkind = 'r' AND NOT c.relispartition \
       THEN pg_catalog.pg_relation_size($1::oid) ELSE 0 END, \
     EXISTS (SELECT 1 FROM pg_catalog.pg_constraint WHERE contype = 'f' \
       AND (conrelid = $1::oid OR conrelid IN \
         (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))) \
       AND (confrelid = $1::oid OR confrelid IN \
         (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass) \
          UNION ALL SELECT pg_catalog.pg_partition_ancestors($1::oid::regclass)))), \
     EXISTS (SELECT 1 FROM pg_catalog.pg_index \
       WHERE (indisunique OR indisexclusion) AND (indrelid = $1::oid OR indrelid IN \
         (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass)))), \
     row_security_active($1::oid), \
     (SELECT string_agg(rulename, E'\\n' ORDER BY rulename) FROM pg_catalog.pg_rewrite \
       WHERE ev_class = $1::oid AND ev_type = '3' AND ev_enabled <> 'D'), \
     EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k \
       WHERE contype = 'f' AND confdeltype IN ('c', 'n', 'd') \
         AND pg_catalog.to_jsonb(k)->>'conenforced' IS DISTINCT FROM 'false' \
         AND (confrelid = $1::oid OR confrelid IN \
           (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))) \
       AND conrelid <> $1::oid AND conrelid NOT IN \
         (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))), \
     EXISTS (SELECT 1 FROM pg_catalog.pg_publication p, pg_catalog.pg_class k \
       WHERE p.pubinsert AND (k.oid = $1::oid OR k.oid IN \
           (SELECT pg_catalog.pg_partition_ancestors($1::oid::regclass))) \
         AND (p.puballtables OR EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r \
             WHERE r.prpubid = p.oid AND r.prrelid = k.oid) \
           OR EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace n \
             WHERE n.pnpubid = p.oid AND n.pnnspid = k.relnamespace)) \
         AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r \
             WHERE r.prpubid = p.oid AND r.prrelid = k.oid \
               AND pg_catalog.to_jsonb(r)->>'prexcept' = 'true')), \
     EXISTS (SELECT 1 FROM pg_catalog.pg_publication p \
       WHERE p.pubinsert AND (p.puballtables OR EXISTS \
         (SELECT 1 FROM pg_catalog.pg_publication_namespace n \
           WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace))), \
     $lists \
     FROM pg_catalog.pg_class c WHERE c.oid = $1::oid";

/// Reads everything but the columns about the table that [`find`] has found. The caller has locked
/// it, so that the facts stay valid. Call this within [`super::transaction::in_pg_catalog`].
///
/// # Errors
///
/// The table is gone, or the connection is lost.
pub fn describe(conn: &mut Conn, table: &mut TableFacts) -> Result<(), Error> {
    let oid = table.oid.to_string();
    table.indexes = indexes(conn, &oid)?;
    table.triggers = triggers(conn, &oid)?;
    let rows = conn.query(&FACTS.replace("$lists", LISTS), &[Some(&oid)])?;
    // This happens only if the table is not locked, as for a plan that is only shown.
    let Some(row) = rows.first() else {
        return Err(Error::new(format!("table {} was dropped in the meantime", table.sql)));
    };
    let text = |i: usize| row[i].clone().unwrap_or_default();
    table.foreign_keys = text(0).parse().unwrap_or(0);
    table.referenced = text(1) == "t";
    table.cascades = text(10) == "t";
    table.published = text(11) == "t";
    table.publishes_new = text(12) == "t";
    table.partitions = if table.kind == 'p' { text(2).parse().unwrap_or(0) } else { 0 };
    table.bytes = text(3).parse().unwrap_or(0);
    table.row_security = text(8) == "t";
    table.rules = row[9].iter().flat_map(|names| names.lines()).map(str::to_owned).collect();
    let (readable, heap_bytes) = (text(4) == "t" && !table.row_security, text(5));
    table.refers_to_itself = text(6) == "t";
    table.keeps_apart = text(7) == "t";
    table.rows_kept_by = rows_kept_by(conn, table.oid, row[13].as_deref())?;
    table.empty = match table.kind {
        _ if table.rows_kept_by.is_some() => false,
        'r' | 'p' if heap_bytes == "0" => true,
        'r' | 'p' if readable => {
            let only = if table.kind == 'r' { "ONLY " } else { "" };
            let rows = conn.exec(&format!("SELECT EXISTS (SELECT 1 FROM {only}{})", table.sql))?;
            rows[0][0].as_deref() == Some("f")
        }
        _ => false,
    };
    Ok(())
}

/// An expression for the names of the tables in which extensions list the tables whose rows they
/// keep elsewhere; NULL without such extensions. The lists must belong to a superuser: another role
/// could use their names for tables with policies that run its functions.
pub(crate) const LISTS: &str = "(SELECT pg_catalog.string_agg(l.relname::text, ' ') \
    FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace \
    JOIN pg_catalog.pg_roles r ON r.oid = l.relowner \
    WHERE (n.nspname, l.relname) IN (('_timescaledb_catalog', 'hypertable'), \
        ('pg_catalog', 'pg_dist_partition')) AND l.relkind = 'r' AND r.rolsuper \
      AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
      AND pg_catalog.has_table_privilege(l.oid, 'SELECT'))";

/// A row if TimescaleDB keeps the rows of the table in chunks, which inherit from it.
const HYPERTABLE: &str = "SELECT 1 FROM _timescaledb_catalog.hypertable h, pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.oid = $1::oid AND h.schema_name = n.nspname AND h.table_name = c.relname";

/// A row if Citus keeps the rows of the table in shards.
const DISTRIBUTED: &str = "SELECT 1 FROM pg_catalog.pg_dist_partition WHERE logicalrel = $1::oid";

/// Returns the extension that keeps the rows of a table in other tables; `None` if the table has its
/// rows itself. The file of such a table is empty, even if a query finds rows. `lists` is what
/// [`LISTS`] gives.
///
/// # Errors
///
/// The connection is lost, or the server reports an error.
pub(crate) fn rows_kept_by(
    conn: &mut Conn,
    oid: u32,
    lists: Option<&str>,
) -> Result<Option<&'static str>, Error> {
    let oid = oid.to_string();
    for list in lists.unwrap_or_default().split_whitespace() {
        let (extension, listed) = match list {
            "hypertable" => ("timescaledb", HYPERTABLE),
            _ => ("citus", DISTRIBUTED),
        };
        if !conn.query(listed, &[Some(&oid)])?.is_empty() {
            return Ok(Some(extension));
        }
    }
    Ok(None)
}

/// Reads the columns of a table. Call this under the path of the session, which decides whether the
/// names of types are qualified.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn columns(
    conn: &mut Conn,
    server: &ServerFacts,
    oid: u32,
) -> Result<Vec<ColumnFacts>, Error> {
    let oid = oid.to_string();
    let rows = conn.query(
        "SELECT a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypid, \
         a.atttypmod, a.attnotnull, coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), \
           pg_catalog.pg_get_expr(t.typdefaultbin, 0), pg_catalog.quote_literal(t.typdefault)), \
         a.attgenerated <> '', \
         a.attidentity <> '', pg_catalog.format_type(plain.oid, -1), plain.oid, plain.typmod, \
         pg_catalog.format_type(plain.oid, plain.typmod), \
         (SELECT pg_catalog.bool_and(k.castsource = 25::oid) FROM pg_catalog.pg_cast k \
           WHERE k.castsource IN (25::oid, 1043::oid) AND k.casttarget = plain.oid \
             AND k.castmethod <> 'i' AND k.oid >= 16384::oid) \
         FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d \
           ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         CROSS JOIN LATERAL (WITH RECURSIVE b AS (SELECT t.oid, t.typtype, t.typbasetype, \
             a.atttypmod AS typmod, t.typtypmod AS below \
           UNION ALL SELECT u.oid, u.typtype, u.typbasetype, b.below, u.typtypmod \
             FROM pg_catalog.pg_type u, b WHERE b.typtype = 'd' AND u.oid = b.typbasetype) \
           SELECT oid, typmod FROM b WHERE typtype <> 'd') AS plain \
         WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        &[Some(&oid)],
    )?;
    let defaults = rows.iter().any(|row| row[6].is_some());
    let volatile = if defaults { volatile_defaults(conn, &oid)? } else { Vec::new() };
    let wanted = rows.iter().filter_map(|r| r[3].as_ref()?.parse().ok()).collect();
    let types = TypeResolver::read(conn, wanted)?;
    let column = |row: &Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let number = text(0).parse().unwrap_or(0);
        let type_id = (text(3).parse().unwrap_or(0), text(4).parse().unwrap_or(-1));
        let resolved = types.resolve(type_id.0, type_id.1, server);
        ColumnFacts {
            number,
            name: text(1),
            type_name: text(2),
            type_id,
            plain_type: text(9),
            base: (text(10).parse().unwrap_or(0), text(11).parse().unwrap_or(-1)),
            base_name: text(12),
            reader: reader(&text(10), &text(11)),
            cast_by_user: text(13) == "t",
            ty: resolved.ty,
            not_null: text(5) == "t" || resolved.not_null,
            default: row[6].clone(),
            volatile_default: volatile.contains(&number),
            generated: text(7) == "t",
            identity: text(8) == "t",
        }
    };
    Ok(rows.iter().map(column).collect())
}

/// The expression that reads a value of a type as COPY does, if a cast from text would read it
/// differently. Such a cast ignores the type modifier (`5` is five hours for `interval hour`), and
/// accepts no number for a relation.
fn reader(oid: &str, typmod: &str) -> Option<String> {
    let input = match (oid, typmod) {
        ("2205", _) => "pg_catalog.regclassin($)".to_owned(),
        (_, "-1") => return None,
        ("1186", _) => format!("pg_catalog.interval_in($, 0, {typmod})"),
        // array_in returns `anyarray`, which can be converted to the type only by way of text.
        ("1187", _) => format!("pg_catalog.array_in($, 1186, {typmod})::text::interval[]"),
        _ => return None,
    };
    Some(input)
}

/// Columns whose default calls a volatile function other than `nextval`: COPY then inserts row by
/// row. The functions are found in the stored expression.
fn volatile_defaults(conn: &mut Conn, oid: &str) -> Result<Vec<i32>, Error> {
    let rows = conn.query(
        "SELECT DISTINCT d.adnum FROM pg_catalog.pg_attrdef d, \
         LATERAL pg_catalog.regexp_matches(d.adbin::text, ':funcid ([0-9]+)', 'g') AS m, \
         pg_catalog.pg_proc p \
         WHERE d.adrelid = $1::oid AND p.oid = m[1]::oid AND p.provolatile = 'v' \
           AND p.oid <> 'pg_catalog.nextval(regclass)'::regprocedure::oid",
        &[Some(oid)],
    )?;
    Ok(rows.iter().filter_map(|r| r[0].as_ref()?.parse().ok()).collect())
}

fn indexes(conn: &mut Conn, oid: &str) -> Result<Vec<IndexFacts>, Error> {
    let rows = conn.query(
        "SELECT i.indexrelid::regclass::text, i.indisunique, i.indisprimary, m.amname \
         FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
         JOIN pg_catalog.pg_am m ON m.oid = c.relam \
         WHERE i.indrelid = $1::oid ORDER BY i.indexrelid",
        &[Some(oid)],
    )?;
    let is = |cell: &Option<String>| cell.as_deref() == Some("t");
    Ok(rows
        .into_iter()
        .map(|mut r| IndexFacts {
            unique: is(&r[1]),
            primary: is(&r[2]),
            name: r[0].take().unwrap_or_default(),
            method: r[3].take().unwrap_or_default(),
        })
        .collect())
}

fn triggers(conn: &mut Conn, oid: &str) -> Result<Vec<TriggerFacts>, Error> {
    // tgtype: 1 ROW, 2 BEFORE, 4 INSERT, 64 INSTEAD (src/include/catalog/pg_trigger.h).
    // A statement trigger of a partition does not fire for a statement on its parent.
    let rows: Rows = conn.query(
        "SELECT DISTINCT tgname, tgtype & 1 <> 0, tgtype & 66 <> 0, tgisinternal \
         FROM pg_catalog.pg_trigger WHERE tgtype & 4 <> 0 AND tgenabled <> 'D' \
         AND (tgrelid = $1::oid OR tgtype & 1 <> 0 AND NOT tgisinternal AND tgrelid IN \
           (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass))) \
         ORDER BY tgname",
        &[Some(oid)],
    )?;
    let is = |cell: &Option<String>| cell.as_deref() == Some("t");
    Ok(rows
        .into_iter()
        .map(|mut r| TriggerFacts {
            row: is(&r[1]),
            before: is(&r[2]),
            internal: is(&r[3]),
            name: r[0].take().unwrap_or_default(),
        })
        .collect())
}
