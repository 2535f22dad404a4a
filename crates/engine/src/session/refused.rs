//! The error for a connection that failed: libpq's message, and a hint for its cause.
//!
//! libpq returns only text. Its own sentences are in English, and those of the server are in the
//! server's language. A message that is not recognized gets the general hint.

use crate::error::{Error, Kind};

/// The hint for a target that cannot be read, and for causes that are not recognized.
pub(super) const GENERAL: &str =
    "`to` takes a URL (postgresql://user@host:port/database) or libpq's \
     keywords; passwords belong in ~/.pgpass or PGPASSWORD";

/// The first major version of libpq that supports `sslrootcert=system`.
const SYSTEM_ROOTS: u32 = 16;

/// The texts that identify a cause, whether another attempt may help, and the hint. In a text, `*`
/// stands for a name. The first match counts, so detailed causes come before more general ones. The
/// message also has the names of the host, the database and the role, so no text should be a word
/// that occurs in names.
const CAUSES: [(&[&str], bool, &str); 32] = [
    (
        &["could not translate host name", "Name or service not known"],
        true,
        "the host's name cannot be resolved: check its spelling, and the network's DNS",
    ),
    (
        &["password authentication failed"],
        false,
        "the password or the user is wrong: check ~/.pgpass, PGPASSWORD or the target",
    ),
    (
        &["no password supplied", "password retrieved from file"],
        false,
        "the server requires a password: put it into ~/.pgpass (mode 600) or PGPASSWORD",
    ),
    (
        &["channel binding", "authentication method requirement", "requirepeer specifies"],
        false,
        "the server does not authenticate as channel_binding, require_auth or requirepeer in the \
         target, the environment or the options of the foreign server requires",
    ),
    (
        &["no pg_hba.conf entry", "pg_hba.conf rejects"],
        false,
        "the server's pg_hba.conf does not admit this user, database, address and encryption \
         together: its administrator can add a line; it may require sslmode=require",
    ),
    (
        &["Peer authentication failed", "Ident authentication failed"],
        false,
        "over a Unix socket the server admits only the operating system's user of the same name: \
         name a host (host=localhost), or another user",
    ),
    (
        &["GSSAPI", "Kerberos", "GSSENC"],
        false,
        "a valid Kerberos ticket is needed (klist shows it, kinit gets one)",
    ),
    (
        &["requires a valid client certificate", "certificate authentication failed"],
        false,
        "the server requires a client certificate: sslcert=FILE and sslkey=FILE",
    ),
    (
        &["authentication failed for user"],
        false,
        "the server does not accept the user's password or token: it may be wrong or have expired",
    ),
    (
        &["too many clients", "connection slots are reserved", "too many connections"],
        true,
        "the server has no free connection: try again later, or use fewer lanes",
    ),
    (
        &[
            "is starting up",
            "is shutting down",
            "in recovery mode",
            "not yet accepting",
            "not accepting connections",
        ],
        true,
        "the server is not ready: try again in a moment",
    ),
    (
        &["session is read-only", "session is not read-only", "in hot standby mode"],
        true,
        "no host that answers is in the state that target_session_attrs requires: name all hosts, or \
         another state; after a failover, try again in a moment",
    ),
    (&["root certificate file \"system\""], false, ""),
    (
        &["root certificate file"],
        false,
        "name the file of the certificate authority: sslrootcert=FILE; sslmode=require encrypts \
         without checking the certificate",
    ),
    (
        &["does not match host name"],
        false,
        "the certificate is for another name: connect by the name in it, or use sslmode=verify-ca",
    ),
    (
        &["certificate has expired"],
        false,
        "the certificate is no longer valid: the server's administrator can renew it",
    ),
    (
        &["certificate revoked", "revoked"],
        false,
        "the certificate was revoked: the server's administrator can issue another one",
    ),
    (
        &["certificate verify failed", "self-signed certificate", "self signed certificate"],
        false,
        "the server's certificate is not signed by the authority in sslrootcert: name the right \
         file there",
    ),
    (
        &["private key file", "could not load private key", "certificate file", "bad decrypt"],
        false,
        "check sslcert, sslkey (mode 600) and sslpassword",
    ),
    (
        &["does not support SSL", "does not support SSL, but SSL was required"],
        false,
        "the server does not support TLS: sslmode=prefer or disable connects without it, unencrypted",
    ),
    (
        &["SSL SYSCALL error"],
        true,
        "the connection was cut while TLS began: try again in a moment; a proxy or a firewall may \
         not let TLS through",
    ),
    (
        &["SSL error"],
        false,
        "TLS failed: check sslcert, sslrootcert and the TLS versions that the server takes",
    ),
    (
        &["permission denied for database"],
        false,
        "the role may not connect to the database: its owner can GRANT CONNECT ON DATABASE",
    ),
    (
        &["database \"*\" is not currently accepting connections"],
        false,
        "the database allows no connections: ALTER DATABASE ... ALLOW_CONNECTIONS true changes it",
    ),
    (
        &["cannot connect to invalid database"],
        false,
        "a DROP DATABASE was interrupted, and the database must be dropped: name another one",
    ),
    (
        &["database \"*\" does not exist"],
        false,
        "the database does not exist: check the name after the last / of the URL; psql -l lists them",
    ),
    (
        &["is not permitted to log in"],
        false,
        "log in as a member of the role, and set it by options='-c role=NAME' in the target",
    ),
    (
        &["permission denied to set role"],
        false,
        "the target or PGOPTIONS sets a role of which the user is no member: GRANT it to the user",
    ),
    (
        &["role \"*\" does not exist"],
        false,
        "the role does not exist: name another one in the target (user@host, or user=…)",
    ),
    (
        &["Connection refused"],
        true,
        "no server listens there: check host and port, and whether the server runs and takes TCP \
         connections (listen_addresses)",
    ),
    (
        &[
            "timeout expired",
            "timed out",
            "No route to host",
            "Network is unreachable",
            "Host is down",
        ],
        true,
        "the host does not answer: check its address, firewalls and the network; \
         connect_timeout=SECONDS in the target waits longer",
    ),
    (
        &["No such file or directory"],
        true,
        "no server listens on this Unix socket: check that it runs, or name a host",
    ),
];

/// The error for libpq's message. `libpq` is the library's version in the form of `PQlibVersion`.
pub(super) fn refused(said: &str, libpq: u32) -> Error {
    // Lines that begin with a tab are libpq's own hints.
    let lines: Vec<&str> = said.trim().lines().filter(|l| !l.starts_with('\t')).collect();
    let error = Error::new(lines.join("\n"));
    let found = CAUSES.iter().find(|(needles, ..)| {
        said.lines().any(|line| needles.iter().any(|needle| has(line, needle)))
    });
    match found {
        Some((_, _, "")) => error.with_hint(system_roots(libpq)),
        Some((_, again, hint)) => {
            error.of_kind(if *again { Kind::Connection } else { Kind::Failed }).with_hint(*hint)
        }
        // libpq rejects an option before it tries to connect.
        None if !said.contains("connection to server") => error.with_hint(GENERAL),
        None => error.of_kind(Kind::Connection).with_hint(GENERAL),
    }
}

/// Whether a line has the parts of a text before, between and after each `*`, in this order.
fn has(line: &str, needle: &str) -> bool {
    needle.split('*').try_fold(line, |rest, part| Some(rest.split_once(part)?.1)).is_some()
}

fn system_roots(libpq: u32) -> String {
    format!(
        "sslrootcert=system needs libpq {SYSTEM_ROOTS}, and this program has {}.{}: name a file, \
         such as sslrootcert=/etc/ssl/certs/ca-certificates.crt",
        libpq / 10_000,
        libpq % 10_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_hint() {
        let to = "connection to server at \"h\" (10.0.0.1), port 5432 failed: ";
        for (said, hint, kind) in [
            (
                "Connection refused\n\tIs the server running on that host?",
                "listens",
                Kind::Connection,
            ),
            ("timeout expired", "does not answer", Kind::Connection),
            ("FATAL:  password authentication failed for user \"u\"", "~/.pgpass", Kind::Failed),
            ("fe_sendauth: no password supplied", "requires a password", Kind::Failed),
            ("channel binding required, but SSL not in use", "channel_binding", Kind::Failed),
            ("FATAL:  no pg_hba.conf entry for host", "pg_hba.conf", Kind::Failed),
            ("FATAL:  database \"x\" does not exist", "does not exist", Kind::Failed),
            ("FATAL:  permission denied for database \"x\"", "GRANT CONNECT", Kind::Failed),
            (
                "FATAL:  database \"x\" is not currently accepting connections",
                "ALLOW_CONNECTIONS",
                Kind::Failed,
            ),
            ("FATAL:  cannot connect to invalid database \"x\"", "dropped", Kind::Failed),
            ("FATAL:  role \"x\" does not exist", "user", Kind::Failed),
            ("FATAL:  role \"x\" is not permitted to log in", "as a member", Kind::Failed),
            ("FATAL:  permission denied to set role \"x\"", "GRANT it", Kind::Failed),
            ("FATAL:  PAM authentication failed for user \"u\"", "expired", Kind::Failed),
            ("SSL SYSCALL error: EOF detected", "try again", Kind::Connection),
            ("SSL error: tlsv1 alert protocol version", "TLS failed", Kind::Failed),
            ("FATAL:  sorry, too many clients already", "free connection", Kind::Connection),
            ("FATAL:  the database system is starting up", "not ready", Kind::Connection),
            ("session is read-only", "target_session_attrs", Kind::Connection),
            ("session is not read-only", "target_session_attrs", Kind::Connection),
            ("server is in hot standby mode", "target_session_attrs", Kind::Connection),
            ("server is not in hot standby mode", "target_session_attrs", Kind::Connection),
            ("SSL error: certificate verify failed", "not signed", Kind::Failed),
            (
                "server certificate for \"a\" does not match host name \"b\"",
                "another name",
                Kind::Failed,
            ),
            ("root certificate file \"/x\" does not exist", "sslrootcert=FILE", Kind::Failed),
            ("root certificate file \"system\" does not exist", "needs libpq 16", Kind::Failed),
            ("server does not support SSL, but SSL was required", "support TLS", Kind::Failed),
            ("FATAL:  connection requires a valid client certificate", "sslcert", Kind::Failed),
            ("private key file \"k\" has group or world access", "sslkey", Kind::Failed),
            ("something else", "to takes", Kind::Connection),
        ] {
            let error = refused(&format!("{to}{said}\n"), 150_020);
            assert!(error.hint().unwrap().contains(hint), "{said}: {:?}", error.hint());
            assert_eq!(error.kind(), kind, "{said}");
            assert!(!error.message().contains('\n'), "{said}");
        }
        let there = to.replace("\"h\"", "\"alerts-db.internal\"");
        let refusal = refused(&format!("{there}Connection refused\n"), 0);
        assert_eq!(refusal.kind(), Kind::Connection);
        assert!(refusal.hint().unwrap().contains("listens"), "{:?}", refusal.hint());
        let dns = "could not translate host name \"nohost\" to address: Name or service not known";
        assert!(refused(dns, 0).hint().unwrap().contains("DNS"));
    }

    #[test]
    fn each_attempt_has_a_line_of_its_own() {
        let one =
            "connection to server at \"h\", port 1 failed: Connection refused\n\tIs it there?\n";
        assert_eq!(refused(&one.repeat(2), 0).message().lines().count(), 2);
    }
}
