//! Finds the client library of PostgreSQL, or builds it.
//!
//! The machine's own libpq is taken where there is one, with or without its
//! headers (`src/session/libpq.rs` declares what is used): it knows GSS and LDAP
//! and gets the machine's security updates. Elsewhere the sources in the crate
//! `pq-src` are compiled, by a cargo of its own, so that builds which find a
//! libpq do not pay for it. `PGSLUICE_LIBPQ=bundled` asks for the latter.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(compiled_openssl)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=libpq/Cargo.toml");
    println!("cargo:rerun-if-env-changed=PGSLUICE_LIBPQ");
    println!("cargo:rerun-if-env-changed=PG_CONFIG");
    let bundled = env::var("PGSLUICE_LIBPQ").is_ok_and(|v| v == "bundled");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match (!bundled).then(system).flatten() {
        Some(library) => link_system(&library, &out),
        None => link_bundled(&out),
    }
}

/// The machine's libpq: a shared library, found as the tools of PostgreSQL
/// know it, or in the folders of the system.
fn system() -> Option<PathBuf> {
    let cross = env::var("HOST") != env::var("TARGET");
    if cross {
        return None;
    }
    let pg_config = env::var("PG_CONFIG").unwrap_or_else(|_| "pg_config".into());
    let triple = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let folders = [
        said("pkg-config", &["--variable=libdir", "libpq"]),
        said(&pg_config, &["--libdir"]),
        Some(triple),
        Some("/usr/lib64".into()),
        Some("/usr/lib".into()),
        Some("/usr/local/lib".into()),
    ];
    let names = ["libpq.so", "libpq.so.5", "libpq.dylib"];
    let found = folders.into_iter().flatten().flat_map(|folder| {
        let folder = PathBuf::from(folder);
        names.map(|name| folder.join(name))
    });
    found.into_iter().find(|path| path.exists())
}

/// What a program prints, if there is such a program and it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Links the shared library, under the name that the linker looks for.
fn link_system(library: &Path, out: &Path) {
    println!("cargo:rerun-if-changed={}", library.display());
    let link = out.join(if cfg!(target_os = "macos") { "libpq.dylib" } else { "libpq.so" });
    // A left-over of an earlier build may point elsewhere.
    let _ = fs::remove_file(&link);
    symlink(library, &link).expect("OUT_DIR takes a link");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=pq");
}

/// Compiles libpq, and OpenSSL where the machine does not have that either.
fn link_bundled(out: &Path) {
    let tls = if said("pkg-config", &["--modversion", "openssl"]).is_some() {
        Some("system-openssl")
    } else if said("perl", &["-MIPC::Cmd", "-MFindBin", "-e", "print 1"]).is_some() {
        println!("cargo:rustc-cfg=compiled_openssl");
        Some("vendored-openssl")
    } else {
        println!(
            "cargo:warning=this build cannot use TLS: there is no libpq, no OpenSSL and no perl \
             to build one with; install libpq5 (or libssl-dev, or perl) and build again"
        );
        None
    };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("libpq");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo.args(["build", "--release", "--locked", "--message-format=json"]);
    cargo.arg("--manifest-path").arg(package.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(out.join("libpq"));
    cargo.args(tls.map(|feature| format!("--features={feature}")));
    // Settings that are meant for the outer build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_ENCODED_") || name.starts_with("DEP_") || name == "RUSTFLAGS" {
            cargo.env_remove(name);
        }
    }
    let output = cargo.output().expect("cargo runs");
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        panic!("libpq could not be built; install libpq5 (Debian's name) and build again");
    }
    for message in String::from_utf8_lossy(&output.stdout).lines() {
        for path in strings(message, "\"linked_paths\":[") {
            println!("cargo:rustc-link-search={path}");
        }
        for library in strings(message, "\"linked_libs\":[") {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}

/// The strings of the array that `key` opens in one of cargo's JSON messages.
fn strings<'m>(message: &'m str, key: &str) -> Vec<&'m str> {
    let Some((_, rest)) = message.split_once(key) else { return Vec::new() };
    let Some((array, _)) = rest.split_once(']') else { return Vec::new() };
    array.split(',').map(|s| s.trim_matches('"')).filter(|s| !s.is_empty()).collect()
}
