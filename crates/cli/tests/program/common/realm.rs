//! A Kerberos realm of one KDC, which MIT's programs serve on a free port as any user.

use super::{left_out, wait_until, Port, World};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The realm's name.
const NAME: &str = "SLUICE.TEST";
/// Debian has these programs in folders that not every user's PATH names.
const FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// What the realm needs, and the packages that bring it on Debian.
const PROGRAMS: [&str; 4] = ["kdb5_util", "krb5kdc", "kadmin.local", "kinit"];

/// The realm, which ends when dropped.
pub struct Realm {
    kdc: Child,
    folder: String,
    port: Port,
}

impl Realm {
    /// Makes the realm in the folder of a world; none where its programs are not installed.
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
        // Names are taken as they are given: nothing here may hang on the machine's DNS.
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

    /// Makes a principal; gives the file with its key.
    pub fn principal(&self, name: &str) -> String {
        let keytab = format!("{}/{}.keytab", self.folder, name.replace('/', "-"));
        run(&self.folder, "kadmin.local", &["-q", &format!("addprinc -randkey {name}")]);
        // What fails in there does not fail the program.
        run(&self.folder, "kadmin.local", &["-q", &format!("ktadd -k {keytab} {name}")]);
        assert!(Path::new(&keytab).exists(), "{name} has no key");
        keytab
    }

    /// What a program needs to be this principal: its ticket, and where the KDC is.
    pub fn ticket(&self, name: &str) -> Vec<(&'static str, String)> {
        let keytab = self.principal(name);
        let cache = format!("FILE:{}/{name}.tickets", self.folder);
        run(&self.folder, "kinit", &["-c", &cache, "-k", "-t", &keytab, name]);
        self.variables(&cache)
    }

    /// As for [`Realm::ticket`], of one who has none.
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

/// One of the realm's programs, which sees nothing of the machine's own realms.
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
