//! A Kerberos realm with one KDC. MIT's programs serve it on a free port and need no privileges.

use super::{left_out, wait_until, Port, World};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The realm's name.
const NAME: &str = "SLUICE.TEST";
/// Debian has these programs in folders that are not in every user's PATH.
const FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// The programs that the realm needs.
const PROGRAMS: [&str; 4] = ["kdb5_util", "krb5kdc", "kadmin.local", "kinit"];

/// A realm. Dropping it stops its KDC.
pub struct Realm {
    kdc: Child,
    folder: String,
    port: Port,
}

impl Realm {
    /// Creates the realm in the folder of a world; returns `None` if its programs are not
    /// installed.
    pub fn start(world: &World) -> Option<Realm> {
        let there = |program: &&str| {
            FOLDERS.split(':').any(|folder| Path::new(folder).join(program).exists())
        };
        if let Some(lacking) = PROGRAMS.iter().find(|program| !there(program)) {
            left_out(&format!(
                "GSS, since {lacking} is not here (Debian: apt-get install krb5-kdc \
                 krb5-admin-server krb5-user)"
            ));
            return None;
        }
        let folder = world.path("realm");
        fs::create_dir_all(&folder).unwrap();
        let kept = Port::keep();
        let port = kept.number;
        // Host names are used as they are given: the test must not depend on the machine's DNS.
        let client = format!(
            "[libdefaults]\ndefault_realm = {NAME}\ndns_lookup_kdc = false\n\
             dns_lookup_realm = false\ndns_canonicalize_hostname = false\nrdns = false\n\
             udp_preference_limit = 1\n[realms]\n{NAME} = {{\nkdc = 127.0.0.1:{port}\n}}\n"
        );
        let server = format!(
            "[realms]\n{NAME} = {{\nkdc_listen = \"\"\nkdc_tcp_listen = 127.0.0.1:{port}\n\
             database_name = {folder}/principals\nkey_stash_file = {folder}/stash\n\
             acl_file = {folder}/acl\n}}\n[logging]\nkdc = FILE:{folder}/kdc.log\n"
        );
        fs::write(format!("{folder}/krb5.conf"), client).unwrap();
        fs::write(format!("{folder}/kdc.conf"), server).unwrap();
        run(&folder, "kdb5_util", &["create", "-s", "-r", NAME, "-P", "of the master key"]);
        let mut kdc = program(&folder, "krb5kdc", &["-n"]);
        let kdc = kdc.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut realm = Realm { kdc, folder, port: kept };
        realm.wait();
        Some(realm)
    }

    fn wait(&mut self) {
        let log = format!("{}/kdc.log", self.folder);
        let log = || format!("the KDC does not listen: {:?}", fs::read_to_string(&log));
        wait_until(log, || {
            assert!(self.kdc.try_wait().unwrap().is_none(), "{}", log());
            TcpStream::connect(("127.0.0.1", self.port.number)).is_ok()
        });
    }

    /// Creates a principal; returns the file with its key.
    pub fn principal(&self, name: &str) -> String {
        let keytab = format!("{}/{}.keytab", self.folder, name.replace('/', "-"));
        run(&self.folder, "kadmin.local", &["-q", &format!("addprinc -randkey {name}")]);
        // A query that fails does not fail `kadmin.local`.
        run(&self.folder, "kadmin.local", &["-q", &format!("ktadd -k {keytab} {name}")]);
        assert!(Path::new(&keytab).exists(), "{name} has no key");
        keytab
    }

    /// The environment variables of a program that runs as this principal: its ticket and the KDC's
    /// address.
    pub fn ticket(&self, name: &str) -> Vec<(&'static str, String)> {
        let keytab = self.principal(name);
        let cache = format!("FILE:{}/{name}.tickets", self.folder);
        run(&self.folder, "kinit", &["-c", &cache, "-k", "-t", &keytab, name]);
        self.variables(&cache)
    }

    /// As [`Realm::ticket`], but without a ticket.
    pub fn no_ticket(&self) -> Vec<(&'static str, String)> {
        self.variables(&format!("FILE:{}/none.tickets", self.folder))
    }

    fn variables(&self, cache: &str) -> Vec<(&'static str, String)> {
        let configuration = format!("{}/krb5.conf", self.folder);
        vec![("KRB5_CONFIG", configuration), ("KRB5CCNAME", cache.to_owned())]
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

/// One of the realm's programs, isolated from the machine's own Kerberos configuration.
fn program(folder: &str, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env("PATH", FOLDERS).stdin(Stdio::null());
    command.current_dir(folder).env("KRB5_CONFIG", format!("{folder}/krb5.conf"));
    command.env("KRB5_KDC_PROFILE", format!("{folder}/kdc.conf"));
    command
}

fn run(folder: &str, name: &str, arguments: &[&str]) {
    let output = program(folder, name, arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
}
