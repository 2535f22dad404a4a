//! The scanner against real servers: the same file through stock COPY into
//! columns of text and through `scan` and `row` gives equal rows, or an equal
//! refusal (SQLSTATE, message and line).

#[path = "../../crates/pgserver/tests/support/mod.rs"]
mod support;
#[path = "server/wire.rs"]
mod wire;

use pgsluice_core::error::Malformed;
use pgsluice_core::scan::binary::{header, Corrupt, Tuples, HEADER_LEN};
use pgsluice_core::scan::{Dialect, Eol, FieldKind, Format, Next, Record, Scanner};
use pgsluice_fuzz::binary;
use pgsluice_fuzz::hostile::ReadCase;
use pgsluice_fuzz::rng::Random;
use pgsluice_pgserver::{Server, ServerOptions};

use support::on_each_major;
use wire::Client;

type Row = Vec<Option<Vec<u8>>>;

/// SQLSTATE, message and line of the CONTEXT.
type Refused = (String, String, Option<u64>);

/// Files for each server; a seed is a file, so that a failure can be had again.
/// `PGSLUICE_CASES` asks for more.
fn cases() -> u64 {
    std::env::var("PGSLUICE_CASES").map_or(5000, |n| n.parse().expect("PGSLUICE_CASES is a number"))
}

#[test]
fn stock_copy_agrees_on_every_server() {
    on_each_major(|installation| {
        let major = installation.version.major;
        let pg_bin = Some(installation.bin.clone());
        let settings = vec![("fsync".into(), "off".into())];
        let server = Server::start(ServerOptions { pg_bin, settings, ..ServerOptions::default() });
        let server = server.expect("the server starts");
        let mut client = Client::connect(&server.socket_dir().join(".s.PGSQL.5432"), "postgres");
        prepare(&mut client);
        text_and_csv_are_read_alike(&mut client, major);
        binary_streams_are_read_alike(&mut client, major);
        bytes_that_are_not_utf8_are_named_alike(&mut client);
    });
}

fn text_and_csv_are_read_alike(client: &mut Client, major: u32) {
    let (mut rows, mut refusals) = (0, 0);
    for seed in 0..cases() {
        let mut rng = Random::new(seed);
        let case = match seed % 40 {
            7 => ReadCase::at_border(&mut rng, major),
            _ => ReadCase::new(&mut rng, major),
        };
        let theirs = by_server(client, &case);
        let ours = by_scanner(&case);
        let text = String::from_utf8_lossy(&case.data);
        assert_eq!(ours, theirs, "server {major}, seed {seed}: {text:?}, {case:?}");
        match ours {
            Ok(found) => rows += found.len(),
            Err(_) => refusals += 1,
        }
    }
    eprintln!("server {major}: {} files, {rows} rows, {refusals} refusals", cases());
    assert!(rows > 1000 && refusals > 500, "the generator has lost its balance");
}

fn prepare(client: &mut Client) {
    for columns in 0..=4 {
        let texts: String =
            (0..columns).map(|i| format!(", c{i} text DEFAULT 'dflt{i}'")).collect();
        let byteas: String = (0..columns).map(|i| format!(", c{i} bytea")).collect();
        let sql = format!("CREATE UNLOGGED TABLE t{columns} (id bigserial{texts})");
        client.run(&sql).unwrap();
        let sql = format!("CREATE UNLOGGED TABLE b{columns} (id bigserial{byteas})");
        client.run(&sql).unwrap();
    }
    client.run("ALTER TABLE b0 DROP COLUMN id").unwrap();
}

fn by_server(client: &mut Client, case: &ReadCase) -> Result<Vec<Row>, Refused> {
    let table = format!("t{}", case.columns);
    let list: Vec<_> = (0..case.columns).map(|i| format!("c{i}")).collect();
    let list = list.join(",");
    client.run("BEGIN").unwrap();
    let copied =
        client.copy_in(&format!("COPY {table} ({list}) FROM STDIN {}", case.options()), &case.data);
    let result = match copied {
        Ok(()) => {
            let sql =
                format!("COPY (SELECT {list} FROM {table} ORDER BY id) TO STDOUT (FORMAT binary)");
            Ok(binary_rows(&client.copy_out(&sql).unwrap()))
        }
        Err(failure) => {
            let line = failure.line();
            Err((failure.sqlstate, failure.message, line))
        }
    };
    client.run("ROLLBACK").unwrap();
    result
}

fn binary_rows(data: &[u8]) -> Vec<Row> {
    let mut at = 19;
    let mut take = |n: usize| {
        at += n;
        &data[at - n..at]
    };
    let mut rows = Vec::new();
    loop {
        let columns = i16::from_be_bytes(take(2).try_into().unwrap());
        if columns < 0 {
            return rows;
        }
        let mut row = Row::new();
        for _ in 0..columns {
            let len = i32::from_be_bytes(take(4).try_into().unwrap());
            row.push(usize::try_from(len).ok().map(|len| take(len).to_vec()));
        }
        rows.push(row);
    }
}

fn by_scanner(case: &ReadCase) -> Result<Vec<Row>, Refused> {
    let mut scanner = Scanner::new(&case.data, true, &case.dialect, Eol::Unknown);
    let mut record = Record::default();
    let mut rows = Vec::new();
    loop {
        let next = scanner.next(&mut record);
        let fault = match next {
            Ok(Next::Record) => match row(case, &record) {
                Ok(row) => {
                    rows.push(row);
                    continue;
                }
                Err(fault) => fault,
            },
            Ok(_) => return Ok(rows),
            Err(fault) => fault,
        };
        let column = match fault {
            Malformed::MissingData(column) => format!("c{column}"),
            _ => String::new(),
        };
        let message = fault.message(case.dialect.format == Format::Csv, &column);
        return Err((fault.sqlstate().into(), message, Some(record.line)));
    }
}

/// One record as a row of text, by the rules of `NextCopyFrom`.
fn row(case: &ReadCase, record: &Record) -> Result<Row, Malformed> {
    if record.len() > case.columns {
        return Err(Malformed::ExtraData);
    }
    let mut row = Row::new();
    for i in 0..record.len() {
        let (kind, value) = record.field(&case.data, i);
        let forced = |bits: u8| bits >> i & 1 == 1;
        row.push(match kind {
            FieldKind::Plain | FieldKind::Quoted => Some(value.to_vec()),
            FieldKind::QuotedNull => (!forced(case.force_null)).then(|| value.to_vec()),
            FieldKind::Null => forced(case.force_not_null).then(|| value.to_vec()),
            FieldKind::Default => Some(format!("dflt{i}").into_bytes()),
        });
    }
    if record.len() < case.columns {
        return Err(Malformed::MissingData(record.len()));
    }
    Ok(row)
}

fn binary_streams_are_read_alike(client: &mut Client, major: u32) {
    let (mut tuples, mut refusals) = (0, 0);
    for seed in 0..cases() / 2 {
        let mut rng = Random::new(seed);
        let columns = rng.below(5) as i16;
        let stream = binary::stream(&mut rng, columns);
        client.run("BEGIN").unwrap();
        // Rows lie in the order of their ids; those without columns are all alike.
        let (list, query) = match columns {
            0 => (String::new(), "SELECT FROM b0".into()),
            _ => {
                let names: Vec<_> = (0..columns).map(|i| format!("c{i}")).collect();
                let names = names.join(",");
                (format!("({names})"), format!("SELECT {names} FROM b{columns} ORDER BY id"))
            }
        };
        let sql = format!("COPY b{columns} {list} FROM STDIN (FORMAT binary)");
        let theirs = client.copy_in(&sql, &stream).map(|()| {
            let sql = format!("COPY ({query}) TO STDOUT (FORMAT binary)");
            binary_rows(&client.copy_out(&sql).unwrap())
        });
        client.run("ROLLBACK").unwrap();
        let theirs = theirs.map_err(|f| (f.sqlstate.clone(), f.message.clone(), f.line()));
        let ours = by_binary_scan(&stream, columns);
        match (&ours, &theirs) {
            // Each major words the limit in its own way.
            (Err(ours), Err(theirs)) if ours.0 == "54000" => assert_eq!(theirs.0, "54000"),
            _ => assert_eq!(ours, theirs, "server {major}, seed {seed}: {stream:?}"),
        }
        match ours {
            Ok(rows) => tuples += rows.len(),
            Err(_) => refusals += 1,
        }
    }
    assert!(tuples > 1000 && refusals > 300, "the generator has lost its balance");
}

fn by_binary_scan(stream: &[u8], columns: i16) -> Result<Vec<Row>, Refused> {
    let refused = |fault: Corrupt, line| (fault.sqlstate().into(), fault.to_string(), line);
    let head = &stream[..stream.len().min(HEADER_LEN)];
    let extension = header(head).map_err(|fault| refused(fault, None))? as usize;
    let data = stream[HEADER_LEN..].get(extension..);
    let data = data.ok_or_else(|| refused(Corrupt::WrongLength, None))?;
    let mut found = Tuples::new(data, columns);
    let (mut rows, mut fields) = (Vec::new(), Vec::new());
    while found.next(&mut fields).map_err(|fault| refused(fault, Some(found.line())))? {
        rows.push(fields.iter().map(|f| f.clone().map(|f| data[f].to_vec())).collect());
    }
    Ok(rows)
}

fn bytes_that_are_not_utf8_are_named_alike(client: &mut Client) {
    let mut rng = Random::new(7);
    for _ in 0..500 {
        let mut data = Vec::new();
        for _ in 0..1 + rng.below(6) {
            match rng.below(3) {
                0 => data.push(rng.bits() as u8),
                1 => data.extend_from_slice("é漢🚂z\n".as_bytes()),
                _ => data.push(rng.pick(b"\xc3\xa9\xe0\x80\xbf\xf0\x90\xf4\x8f\xed\xa0 a\n\0")),
            }
        }
        let theirs = client.copy_in("COPY t1 (c0) FROM STDIN (FORMAT csv, QUOTE '|')", &data);
        let theirs = theirs.map_err(|f| f.message).err();
        let Err(bad) = pgsluice_core::scan::valid_utf8(&data) else { continue };
        // Lines before the bad one may be refused first, for what they are.
        let dialect = Dialect { quote: b'|', ..Dialect::csv() };
        let mut scanner = Scanner::new(&data[..bad.offset], false, &dialect, Eol::Unknown);
        let mut record = Record::default();
        let clean = loop {
            match scanner.next(&mut record) {
                Ok(Next::Record) if record.len() == 1 => {}
                Ok(Next::Record) | Err(_) => break false,
                Ok(_) => break true,
            }
        };
        if clean {
            assert_eq!(theirs, Some(bad.message()), "{data:?}");
        }
    }
}
