//! Finds installed PostgreSQL servers.

use super::account::Account;
use super::error::ServerError;
use super::setup::isolate;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server's version, as its programs print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerVersion {
    /// The major version, 18 for 18.4 and for 18beta1.
    pub major: u32,
    /// The whole version, for example `18.4` or `19devel`.
    pub text: String,
}

impl ServerVersion {
    /// Reads `postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)` and the like.
    fn parse(line: &str) -> Option<Self> {
        let text = line.split(") ").nth(1)?.split_whitespace().next()?;
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let major = text[..digits].parse().ok()?;
        Some(Self { major, text: text.to_owned() })
    }

    /// Whether it is a release, not a beta or a release candidate.
    fn is_released(&self) -> bool {
        self.text.strip_prefix(&self.major.to_string()).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How an installation was found, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The caller named its folder of programs.
    Named,
    /// The environment variable `PGSLUICE_PG_BIN` names it.
    Environment,
    /// The embedded package, in the clone or installed beside the program.
    Embedded,
    /// The `pg_config` on the search path names it.
    PgConfig,
    /// Debian's folder `/usr/lib/postgresql`.
    Debian,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Named => "named",
            Origin::Environment => "$PGSLUICE_PG_BIN",
            Origin::Embedded => "embedded",
            Origin::PgConfig => "pg_config",
            Origin::Debian => "debian",
        })
    }
}

/// The programs of one installed PostgreSQL server.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The folder of `postgres` and `initdb`, without symbolic links.
    pub bin: PathBuf,
    /// The output of `postgres --version`.
    pub version: ServerVersion,
    /// How it was found.
    pub origin: Origin,
}

impl Installation {
    /// The path of one of the installation's programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Whether the server extension is installed in it.
    pub fn has_extension(&self) -> bool {
        // These are the two folders, beside the programs, into which builds install modules.
        let modules = ["../lib/postgresql/pgsluice.so", "../lib/pgsluice.so"];
        modules.iter().any(|module| self.bin.join(module).is_file())
    }

    /// Opens a folder of programs. The error names the missing program. If `account` could have
    /// chosen the folder, the program runs as that user.
    pub(super) fn open(
        bin: &Path,
        origin: Origin,
        account: Option<&Account>,
    ) -> Result<Self, ServerError> {
        let bin = fs::canonicalize(bin)
            .map_err(|e| ServerError::io("open the folder of programs", bin, e))?;
        for name in ["postgres", "initdb"] {
            if !bin.join(name).is_file() {
                return Err(ServerError::new(format!("there is no {name} in {bin:?}")).with_hint(
                    "name the folder that holds a PostgreSQL server's programs, \
                     such as /usr/lib/postgresql/15/bin",
                ));
            }
        }
        let postgres = bin.join("postgres");
        let mut command = Command::new(&postgres);
        command.arg("--version");
        if let Some(account) = account {
            isolate(&mut command, account);
        }
        let line = first_line(&mut command).ok_or_else(|| {
            ServerError::new(format!("{postgres:?} --version does not run"))
                .with_hint("its shared libraries may be missing: run it by hand to see")
        })?;
        let version = ServerVersion::parse(&line).ok_or_else(|| {
            ServerError::new(format!("{postgres:?} --version says {line:?}, not a version"))
        })?;
        Ok(Self { bin, version, origin })
    }
}

/// Every installed server, the preferred one first: by origin, then releases before others, then by
/// descending major version.
pub fn find_all() -> Vec<Installation> {
    let mut found: Vec<Installation> = Vec::new();
    for (bin, origin) in candidates() {
        if let Ok(installation) = Installation::open(&bin, origin, None) {
            if !found.iter().any(|f| f.bin == installation.bin) {
                found.push(installation);
            }
        }
    }
    found.sort_by_key(|f| (f.origin, !f.version.is_released(), std::cmp::Reverse(f.version.major)));
    found
}

/// Chooses the server to use.
///
/// If the user has given a folder of programs in `named`, it is used, or the call fails. The same
/// applies to `$PGSLUICE_PG_BIN` after that. Otherwise it is the first of [`find_all`] that has the
/// requested major version.
pub fn find(named: Option<&Path>, major: Option<u32>) -> Result<Installation, ServerError> {
    let forced = match named {
        Some(bin) => Some((bin.to_owned(), Origin::Named)),
        None => environment().map(|bin| (bin, Origin::Environment)),
    };
    if let Some((bin, origin)) = forced {
        let installation = Installation::open(&bin, origin, None)?;
        return match major {
            Some(wanted) if wanted != installation.version.major => Err(ServerError::new(format!(
                "PostgreSQL {wanted} is needed, {bin:?} holds {}",
                installation.version
            ))),
            _ => Ok(installation),
        };
    }
    let mut all = find_all().into_iter();
    all.find(|f| major.unwrap_or(f.version.major) == f.version.major).ok_or_else(|| {
        let wanted = major.map_or("PostgreSQL".to_owned(), |m| format!("PostgreSQL {m}"));
        ServerError::new(format!("no {wanted} server is installed here")).with_hint(
            "in a clone run scripts/servers; elsewhere install PostgreSQL \
             (Debian: apt-get install postgresql), or name its programs with --pg-bin",
        )
    })
}

/// Folders that may have a server's programs.
fn candidates() -> Vec<(PathBuf, Origin)> {
    let mut all = Vec::new();
    all.extend(environment().map(|bin| (bin, Origin::Environment)));
    for servers in embedded_folders() {
        all.extend(versions_in(&servers).into_iter().map(|bin| (bin, Origin::Embedded)));
    }
    let pg_config = first_line(Command::new("pg_config").arg("--bindir")).map(PathBuf::from);
    all.extend(pg_config.map(|bin| (bin, Origin::PgConfig)));
    let debian = versions_in(Path::new("/usr/lib/postgresql"));
    all.extend(debian.into_iter().map(|bin| (bin, Origin::Debian)));
    all
}

fn environment() -> Option<PathBuf> {
    env::var_os("PGSLUICE_PG_BIN").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// Folders with one embedded server for each major version: the folder in `$PGSLUICE_SERVERS`,
/// `lib/pgsluice/servers` of the prefix into which the program is installed, and `build/servers` of
/// the clone in which it was built.
fn embedded_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    folders.extend(env::var_os("PGSLUICE_SERVERS").filter(|v| !v.is_empty()).map(PathBuf::from));
    if let Ok(program) = env::current_exe() {
        for above in program.ancestors().skip(1) {
            folders.push(above.join("lib/pgsluice/servers"));
            folders.push(above.join("build/servers"));
        }
    }
    folders
}

/// The `bin` folders of subfolders whose names are major versions.
fn versions_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.parse::<u32>().is_ok()))
        .map(|e| e.path().join("bin"))
        .collect()
}

/// The first line that a program prints, if it runs and succeeds.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.lines().next().unwrap_or("").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let cases = [
            ("postgres (PostgreSQL) 18.4", 18, "18.4"),
            ("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)", 15, "15.20"),
            ("postgres (PostgreSQL) 19devel", 19, "19devel"),
            ("postgres (EnterpriseDB) 17beta2", 17, "17beta2"),
        ];
        for (line, major, text) in cases {
            let version = ServerVersion::parse(line).expect(line);
            assert_eq!((version.major, version.text.as_str()), (major, text));
            assert_eq!(version.is_released(), text.contains('.'), "{text}");
        }
        for line in ["", "postgres 18.4", "postgres (PostgreSQL) next"] {
            assert_eq!(ServerVersion::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_folder_without_a_server_is_named_in_the_error() {
        let error = find(Some(Path::new("/usr/bin/no-such-folder")), None).unwrap_err();
        assert!(error.to_string().contains("/usr/bin/no-such-folder"), "{error}");
        let error = find(Some(Path::new("/etc")), None).unwrap_err();
        assert!(error.to_string().contains("there is no postgres in \"/etc\""), "{error}");
        assert!(error.hint().is_some());
    }
}
