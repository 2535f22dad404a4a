//! Every way that libpq has to give the server's address and the user's credentials: key/value
//! strings, URLs, variables, service and password files, TLS with every sslmode, Kerberos tickets.
//! The password must not appear anywhere.

use crate::common::realm::Realm;
use crate::common::{each_major, left_out, on_each_major, wait_until, Port, World};
use pgsluice_pgserver::Installation;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A password that must be quoted in each of the forms.
const PASSWORD: &str = "s3cr3t p'a\\ss@:/";
/// The same in a URL, and in a string of keywords and values.
const IN_URL: &str = "s3cr3t%20p'a%5Css%40%3A%2F";
const IN_KEYWORDS: &str = "'s3cr3t p\\'a\\\\ss@:/'";
/// Parts of it that would show in any form of quoting.
const TELLTALE: [&str; 2] = ["s3cr3t", "p'a"];

/// A server on a port, with a role that has a password.
struct Site {
    world: World,
    port: Port,
    logged: usize,
}

impl Site {
    fn new(installation: &Installation) -> Site {
        let port = Port::keep();
        let mut world = World::with(installation, Some(port.number), &[("log_connections", "on")]);
        let quoted = pgsluice_engine::internals::quote_literal(PASSWORD);
        world.sql(&format!(
            "CREATE ROLE loader LOGIN PASSWORD {quoted}; CREATE ROLE \"certified\" LOGIN;
             CREATE TABLE t (a int, b text); GRANT ALL ON t TO loader, certified"
        ));
        let mut logged = 0;
        world.log(&mut logged);
        Site { world, port, logged }
    }

    /// Copies a file into the data directory, where only the server's user may read it; returns its
    /// path.
    fn give(&self, from: &str, name: &str) -> PathBuf {
        let data = self.world.server.data();
        let owner = fs::metadata(&data).unwrap();
        let to = data.join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
        chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
        to
    }

    /// Restarts the server with these settings, and with these rules before its own in pg_hba.conf.
    fn restart_with(&mut self, rules: &str, settings: &[(&str, &str)]) {
        let path = self.world.server.data().join("pg_hba.conf");
        let own = fs::read_to_string(&path).unwrap();
        fs::write(path, format!("{rules}{own}")).unwrap();
        self.world.restart_with(&[settings, &[("log_connections", "on")]].concat());
        self.world.log(&mut self.logged);
    }

    /// The program, without this user's environment and home directory.
    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        command.args(arguments).env_clear().env("HOME", self.world.path("home"));
        command.stdin(Stdio::null());
        command
    }

    /// Loads a row, then plans the load; neither may show the password. Returns what the server
    /// logged.
    fn loads(&mut self, what: &str, to: Option<&str>, variables: &[(&str, &str)]) -> String {
        let file = self.world.file("one.csv", b"1,x\n");
        let summary = self.world.path("summary.json");
        self.world.sql("TRUNCATE t");
        let target: Vec<&str> = to.iter().flat_map(|to| ["--to", to]).collect();
        let arguments = [&["load", &file, "--table", "t", "--summary", &summary], &target[..]];
        let mut command = self.program(&arguments.concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{what}: {output:?}");
        quiet_about_it(what, &output);
        tells_nothing(what, &fs::read_to_string(&summary).unwrap());
        assert_eq!(self.world.sql("SELECT count(*) FROM t"), "1", "{what}");
        let arguments = [&["plan", &file, "--table", "t"], &target[..]];
        let mut command = self.program(&arguments.concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{what}: {output:?}");
        quiet_about_it(what, &output);
        let log = self.world.log(&mut self.logged);
        tells_nothing(what, &log);
        log
    }

    /// Runs a load that must fail without showing the password; returns its message.
    fn fails(&mut self, what: &str, to: &str, variables: &[(&str, &str)]) -> String {
        let file = self.world.file("one.csv", b"1,x\n");
        let mut command = self.program(&["load", &file, "--table", "t", "--to", to]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(1 | 2 | 5)), "{what}: {output:?}");
        assert!(said.starts_with("error: ") && said.contains("\nhint: "), "{what}: {said}");
        quiet_about_it(what, &output);
        said
    }
}

fn tells_nothing(what: &str, text: &str) {
    assert!(!TELLTALE.iter().any(|part| text.contains(part)), "{what}: {text}");
}

fn quiet_about_it(what: &str, output: &Output) {
    tells_nothing(what, &String::from_utf8_lossy(&output.stdout));
    tells_nothing(what, &String::from_utf8_lossy(&output.stderr));
}

fn forms(site: &mut Site) {
    let port = site.port.number.to_string();
    let keywords = format!("host=127.0.0.1 port={port} user=loader dbname=postgres");
    let socket = site.world.server.socket_dir().to_str().unwrap().to_owned();
    let through_socket = format!("host={socket} port={port} user=loader dbname=postgres");
    site.loads("socket", Some(&through_socket), &[]);
    let url = format!("postgresql://loader:{IN_URL}@127.0.0.1:{port}/postgres");
    site.loads("url", Some(&url), &[]);
    site.loads("postgres scheme", Some(&url.replace("postgresql", "postgres")), &[]);
    let query = format!("postgresql://loader@127.0.0.1:{port}/postgres?password={IN_URL}");
    site.loads("query", Some(&query), &[]);
    let in_keywords = format!("{keywords} password = {IN_KEYWORDS}");
    site.loads("keywords", Some(&in_keywords), &[]);
    let tight = format!("{keywords} password={IN_KEYWORDS}");
    site.loads("keywords", Some(&tight), &[]);
    site.loads("PGPASSWORD", Some(&keywords), &[("PGPASSWORD", PASSWORD)]);
    // The first host does not answer.
    let two = format!("postgresql://loader:{IN_URL}@127.0.0.1:1,127.0.0.1:{port}/postgres");
    site.loads("two hosts", Some(&two), &[]);
    let variables = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGUSER", "loader"),
        ("PGDATABASE", "postgres"),
        ("PGPASSWORD", PASSWORD),
    ];
    site.loads("variables", None, &variables);

    let escaped = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    let pgpass = site.world.file("pgpass", format!("*:{port}:*:loader:{escaped}\n").as_bytes());
    fs::set_permissions(&pgpass, Permissions::from_mode(0o600)).unwrap();
    site.loads("PGPASSFILE", Some(&keywords), &[("PGPASSFILE", &pgpass)]);
    site.loads("passfile", Some(&format!("{keywords} passfile={pgpass}")), &[]);
    let home = site.world.path("home");
    fs::create_dir_all(&home).unwrap();
    fs::copy(&pgpass, format!("{home}/.pgpass")).unwrap();
    site.loads("~/.pgpass", Some(&keywords), &[]);
    let service = format!("[mine]\nhost=127.0.0.1\nport={port}\nuser=loader\ndbname=postgres\n");
    let service = site.world.file("services", service.as_bytes());
    for to in ["service=mine", "postgresql:///?service=mine"] {
        site.loads("service", Some(to), &[("PGSERVICEFILE", &service)]);
    }
    // `--to` takes precedence over the service file, even for a password that is hidden.
    let wrong = fs::read_to_string(&service).unwrap() + "password=wrong\n";
    let wrong = site.world.file("wrong", wrong.as_bytes());
    let over = format!("service=mine password={IN_KEYWORDS}");
    site.loads("over the service", Some(&over), &[("PGSERVICEFILE", &wrong)]);
    site.loads("PGSERVICE", None, &[("PGSERVICEFILE", &service), ("PGSERVICE", "mine")]);
    fs::remove_file(format!("{home}/.pgpass")).unwrap();

    let said = site.fails("no password", &keywords, &[]);
    assert!(said.contains("no password supplied"), "{said}");
    let wrong = url.replace("s3cr3t", "s3cr3tx");
    let said = site.fails("wrong password", &wrong, &[]);
    assert!(said.contains("password authentication failed"), "{said}");
    let said = site.fails("no service", "service=none", &[("PGSERVICEFILE", &service)]);
    assert!(said.contains("\"none\""), "{said}");
    for malformed in [
        "postgresql://loader:s3cr3t@127.0.0.1:port/x",
        "host= password=s3cr3t what",
        "postgresql://loader:s3cr3t%@127.0.0.1/x",
        "postgresql://loader:s3cr3t/x@127.0.0.1/x",
        "postgresql://loader:x@s3cr3t@127.0.0.1/x",
        "host=127.0.0.1 sslpassword='s3cr3t",
    ] {
        site.fails(malformed, malformed, &[]);
    }
    let said = site.fails("nothing said", "", &[("PGHOST", "/nowhere")]);
    assert!(said.contains("\"/nowhere/.s.PGSQL.5432\" failed"), "{said}");
}

/// In every form of `--to`, the program removes the password from its command line in /proc.
fn process_list(site: &Site) {
    let port = site.port.number;
    for to in [
        format!("postgresql://loader:{IN_URL}@127.0.0.1:{port}/postgres"),
        format!("postgresql://loader@127.0.0.1:{port}/postgres?password={IN_URL}"),
        format!("host=127.0.0.1 port={port} user=loader dbname=postgres password={IN_KEYWORDS}"),
        format!("host=127.0.0.1 port={port} password = {IN_KEYWORDS} user=loader dbname=postgres"),
        // Of several passwords the last one counts, and all are hidden.
        format!(
            "postgresql://loader:s3cr3t@127.0.0.1:{port}/postgres?pass%77ord={IN_URL}&sslpassword=s3cr3t"
        ),
    ] {
        for form in [
            vec!["--to".into(), to.clone()],
            vec![format!("--to={to}")],
            vec!["-d".into(), to.clone()],
            vec![format!("-d{to}")],
        ] {
            let mut child = site
                .program(&["load", "-", "--table", "t", "--quiet"])
                .args(form)
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let shown = || {
                let bytes = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            // The password is visible until the program has executed itself again.
            let mut last = String::new();
            wait_until(
                || format!("{to} stays in the process list"),
                || {
                    last = shown();
                    !last.is_empty() && !last.contains(TELLTALE[0])
                },
            );
            let shown = last;
            assert!(shown.contains("loader"), "{shown}");
            tells_nothing(&to, &shown);
            child.stdin.take().unwrap().write_all(b"2,y\n").unwrap();
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(child.wait().unwrap().success(), "{said}");
        }
    }
}

/// Certificates for the server (named localhost) and for a client, the CA that signed both, and
/// another CA that signed nothing. Returns `None` if openssl is not installed.
fn certificates(world: &World) -> Option<String> {
    let folder = world.path("tls");
    fs::create_dir_all(&folder).unwrap();
    let script = r#"
        for ca in ca other; do
            openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout $ca.key -out $ca.crt -subj "/CN=$ca"
        done
        for pair in server:localhost client:certified; do
            openssl req -newkey rsa:2048 -nodes -keyout ${pair%:*}.key -out request -subj "/CN=${pair#*:}"
            openssl x509 -req -in request -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out ${pair%:*}.crt \
                -extfile <(echo "subjectAltName=DNS:${pair#*:}")
        done
        openssl pkcs8 -topk8 -v2 aes-256-cbc -in client.key -out locked.key -passout "pass:$1"
        chmod 600 *.key"#;
    let bash = ["-ec", script, "bash", PASSWORD];
    let made = Command::new("bash").args(bash).current_dir(&folder).output().unwrap();
    let found = Command::new("openssl").arg("version").output().is_ok();
    assert!(made.status.success() || !found, "{made:?}");
    found.then_some(folder)
}

/// Turns TLS on. The role `certified` can log in only with a client certificate.
fn turn_on_tls(site: &mut Site, folder: &str) {
    for name in ["server.key", "server.crt", "ca.crt"] {
        site.give(&format!("{folder}/{name}"), name);
    }
    let rules = "hostssl all certified 127.0.0.1/32 cert\nhost all certified 127.0.0.1/32 reject\n";
    site.restart_with(rules, &[("ssl", "on"), ("ssl_ca_file", "ca.crt")]);
}

fn tls(site: &mut Site) {
    let Some(folder) = certificates(&site.world) else {
        left_out("TLS, since there is no openssl to make certificates with");
        return;
    };
    turn_on_tls(site, &folder);
    let port = site.port.number;
    let to = |host: &str, more: &str| {
        format!("host={host} port={port} user=loader dbname=postgres {more}")
    };
    let (ca, other) =
        (format!("sslrootcert={folder}/ca.crt"), format!("sslrootcert={folder}/other.crt"));
    let password = [("PGPASSWORD", PASSWORD)];
    let cases = [
        ("127.0.0.1", "sslmode=disable".to_owned(), false),
        ("127.0.0.1", "sslmode=allow".into(), false),
        ("127.0.0.1", "sslmode=prefer".into(), true),
        ("127.0.0.1", "sslmode=require".into(), true),
        ("127.0.0.1", format!("sslmode=verify-ca {ca}"), true),
        ("localhost", format!("sslmode=verify-full {ca}"), true),
    ];
    for (host, more, encrypted) in &cases {
        let log = site.loads(more, Some(&to(host, more)), &password);
        assert!(log.contains("user=loader"), "{more}: {log}");
        assert_eq!(log.contains("SSL enabled"), *encrypted, "{more}: {log}");
    }
    let url =
        format!("postgresql://loader:{IN_URL}@localhost:{port}/postgres?sslmode=verify-full&{ca}");
    assert!(site.loads("url", Some(&url), &[]).contains("SSL enabled"));
    for (host, more, what) in [
        ("127.0.0.1", format!("sslmode=verify-ca {other}"), "certificate verify failed"),
        ("localhost", format!("sslmode=verify-full {other}"), "certificate verify failed"),
        ("127.0.0.1", format!("sslmode=verify-full {ca}"), "127.0.0.1"),
        ("localhost", "sslmode=verify-full".into(), "root certificate"),
        ("localhost", "sslmode=nonsense".into(), "invalid sslmode value"),
    ] {
        let said = site.fails(&more, &to(host, &more), &password);
        assert!(said.contains(what), "{more}: {said}");
    }
    let certified =
        to("localhost", &format!("sslmode=verify-full {ca}")).replace("loader", "certified");
    site.fails("no certificate", &certified, &[]);
    let with = format!("{certified} sslcert={folder}/client.crt sslkey={folder}/client.key");
    let log = site.loads("certificate", Some(&with), &[]);
    assert!(log.contains("SSL enabled") && log.contains("user=certified"), "{log}");
    let locked = with.replace("client.key", "locked.key");
    let log = site.loads("locked key", Some(&format!("{locked} sslpassword={IN_KEYWORDS}")), &[]);
    assert!(log.contains("SSL enabled") && log.contains("user=certified"), "{log}");
    site.fails("wrong key", &format!("{locked} sslpassword=s3cr3t"), &[]);
}

/// Whether the program's libpq supports GSS; a libpq that is linked into the program does not.
fn knows_gss(site: &Site) -> bool {
    let to = "host=127.0.0.1 port=1 gssencmode=require";
    let output = site.program(&["plan", "x", "--table", "t", "--to", to]).output().unwrap();
    !String::from_utf8_lossy(&output.stderr).contains("not compiled in")
}

fn gss(site: &mut Site, realm: &Realm) {
    let keytab = site.give(&realm.principal("postgres/localhost"), "server.keytab");
    let rules = "hostgssenc all certified 127.0.0.1/32 gss include_realm=0\n\
         hostnogssenc all certified 127.0.0.1/32 gss include_realm=0\n";
    site.restart_with(rules, &[("krb_server_keyfile", keytab.to_str().unwrap())]);
    let port = site.port.number;
    let to = |host: &str, mode: &str| {
        format!("host={host} port={port} user=certified dbname=postgres gssencmode={mode}")
    };
    fn all<'t>(ticket: &'t [(&'static str, String)]) -> Vec<(&'t str, &'t str)> {
        ticket.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
    let ticket = realm.ticket("certified");
    for (mode, encrypted) in [("require", "yes"), ("prefer", "yes"), ("disable", "no")] {
        let log = site.loads(mode, Some(&to("localhost", mode)), &all(&ticket));
        let said = format!("GSS (authenticated=yes, encrypted={encrypted}");
        assert!(log.contains(&said) && log.contains("principal=certified@"), "{mode}: {log}");
    }
    let url = format!("postgresql://certified@localhost:{port}/postgres?gssencmode=require");
    let log = site.loads("url", Some(&url), &all(&ticket));
    assert!(log.contains("encrypted=yes"), "{log}");

    let (none, other) = (realm.no_ticket(), realm.ticket("someone"));
    for (what, host, mode, ticket, why) in [
        ("no ticket", "localhost", "require", &none, "GSSAPI"),
        ("no ticket, no encryption", "localhost", "disable", &none, "No Kerberos credentials"),
        ("another's ticket", "localhost", "require", &other, "GSSAPI authentication failed"),
        ("another's ticket, no encryption", "localhost", "disable", &other, "\"certified\""),
        ("an unknown server", "127.0.0.1", "require", &ticket, "postgres/127.0.0.1@"),
    ] {
        let said = site.fails(what, &to(host, mode), &all(ticket));
        assert!(said.contains(why), "{what}: {said}");
        assert_eq!(site.world.sql("SELECT count(*) FROM t"), "1", "{what}");
    }
}

/// A load connects with every form of connection string, with variables, a service file and a
/// password file. The password appears in no output, log, summary or process list.
#[test]
fn connections() {
    let mut site = Site::new(&each_major().pop().unwrap());
    forms(&mut site);
    process_list(&site);
}

/// `-h`, `-p`, `-U`, `-d` and `-t` take precedence over a service file and the variables, as in
/// psql.
#[test]
fn options_of_psql() {
    let mut site = Site::new(&each_major().pop().unwrap());
    let port = site.port.number.to_string();
    let file = site.world.file("one.csv", b"1,x\n");
    let service = format!("[mine]\nhost=/nowhere\nport={port}\ndbname=nothing\n");
    let service = site.world.file("services", service.as_bytes());
    let variables = [("PGPASSWORD", PASSWORD), ("PGSERVICEFILE", &service), ("PGUSER", "nobody")];
    let keywords = format!("port={port} user=loader dbname=postgres");
    for options in [
        &["-h", "127.0.0.1", "-p", &port, "-U", "loader", "-d", "postgres", "-t", "t"][..],
        &["--host=127.0.0.1", "--port", &port, "--username", "loader", "--dbname=postgres", "-tt"],
        &["-h127.0.0.1", "-d", &keywords, "-t", "t"],
        &["-h", "127.0.0.1", "-U", "loader", "-d", "service=mine dbname=postgres", "-t", "t"],
    ] {
        site.world.sql("TRUNCATE t");
        let arguments = [&["load", "-q", &file], options].concat();
        let output = site.program(&arguments).envs(variables).output().unwrap();
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert_eq!(site.world.sql("SELECT count(*) FROM t"), "1", "{options:?}");
    }
    for (options, code, said) in [
        (&["load", &file, "-t", "t", "-h", "h", "-d", "host=x"][..], 2, "--host gives another"),
        (&["load", &file, "-t", "t", "-d", "x", "-h"], 2, "hint: -h is the server's host"),
        (&["repair", "-h", "/nowhere"], 5, "/nowhere"),
        (&["load", "-?"], 0, "Usage: pgsluice load"),
        (&["load", "--help"], 0, "Usage: pgsluice load"),
        (&["-h"], 0, "Usage: pgsluice"),
        (
            &["load", &file, "-t", "t", "--sep", ";"],
            2,
            "hint: --delimiter CHAR; pgsluice sniff FILE detects it\n",
        ),
        (&["load", &file, "-table", "t"], 2, "hint: options have two dashes: --table\n"),
    ] {
        let output = site.program(options).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {output:?}");
        let text = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&text).contains(said), "{options:?}: {text:?}");
    }
}

/// Loads connect over TLS with every sslmode, with a client certificate and with an encrypted key.
/// Certificates that do not match are refused.
#[test]
fn encrypted_connections() {
    for installation in each_major() {
        let mut site = Site::new(&installation);
        let library = "SELECT setting FROM pg_settings WHERE name = 'ssl_library'";
        if !site.world.sql(library).is_empty() {
            return tls(&mut site);
        }
    }
    left_out("TLS, which no PostgreSQL here was built with");
}

/// A Kerberos ticket logs in, with GSS encryption and without it. A missing ticket or another
/// user's ticket is refused.
#[test]
fn kerberos() {
    let built_with_gss = |installation: &Installation| {
        let asked = Command::new(installation.program("pg_config")).arg("--configure").output();
        asked.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("--with-gssapi"))
    };
    let Some(installation) = each_major().into_iter().find(built_with_gss) else {
        return left_out("GSS, which no PostgreSQL here was built with");
    };
    let mut site = Site::new(&installation);
    if !knows_gss(&site) {
        return left_out("GSS, which the libpq in this program was built without");
    }
    if let Some(realm) = Realm::start(&site.world) {
        gss(&mut site, &realm);
    }
}

/// The password appears neither in the message of a refused connection nor in the process list,
/// standard error or the summary.
#[test]
fn secrets() {
    on_each_major(|installation| secrets_of(&mut World::new(installation)));
}

fn secrets_of(world: &mut World) {
    let file = world.file("one.csv", b"1,x\n");
    let url = "postgresql://nobody:s3cr3t@127.0.0.1:1/none";
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &file, "--table", "t", "--to", url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(!said.contains("s3cr3t") && said.contains("hint:"), "{said}");
    world.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text)");
    let url = format!("{}&password=s3cr3t", world.server.url("postgres"));
    let held = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "t", "--to", &url])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let shown = || std::fs::read_to_string(format!("/proc/{}/cmdline", held.id())).unwrap();
    wait_until(shown, || shown().contains("--to") && !shown().contains("s3cr3t"));
    assert!(held.wait_with_output().unwrap().status.success());
    let summary = world.path("secret.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &file, "--table", "t", "--to", &url, "--summary", &summary])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cr3t"));
    assert!(!std::fs::read_to_string(summary).unwrap().contains("s3cr3t"));
}
