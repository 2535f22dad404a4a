//! Writes the golden fixtures again: `cargo test -p pgsluice-engine --test golden -- --ignored`.

use pgsluice_pgserver::{find_all, Server, ServerOptions};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs each query on the best available server, and writes its results to `fixtures/golden`.
#[test]
#[ignore = "writes fixtures/golden"]
#[allow(non_snake_case)]
fn UPDATE() {
    let server = Server::start(ServerOptions::default()).expect("the server starts");
    let psql = find_all().into_iter().map(|i| i.program("psql")).find(|p| p.is_file());
    let psql = psql.unwrap_or("psql".into());
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden");
    for entry in fs::read_dir(dir).expect("the fixtures") {
        let query = entry.unwrap().path();
        if query.extension().is_none_or(|e| e != "sql") {
            continue;
        }
        let sql = fs::read_to_string(&query).unwrap();
        for (format, extension) in [("text", "txt"), ("binary", "pgcopy")] {
            let copy = format!("COPY (\n{sql}) TO STDOUT (FORMAT {format})");
            let output = Command::new(&psql)
                .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &server.url("postgres")])
                .args(["-c", "SET timezone = 'UTC'; SET lc_monetary = 'C'", "-c", &copy])
                .env("PGCLIENTENCODING", "UTF8")
                .output()
                .expect("psql runs");
            let talk = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{query:?}: {talk}");
            fs::write(query.with_extension(extension), output.stdout).unwrap();
        }
    }
}
