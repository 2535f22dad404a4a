//! The programs, server extensions and Python modules that methods need, and their versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::environment::first_line;
use crate::psql::Psql;
use crate::server::USER;

/// The available tools with their versions, and the reasons for the missing ones.
#[derive(Debug)]
pub struct Tools {
    extensions: BTreeMap<String, String>,
    settings: Vec<String>,
    icu: Option<String>,
    pgsluice: String,
    python: String,
    asked: BTreeMap<String, Result<String, String>>,
}

impl Tools {
    /// Queries a running server for its extensions.
    pub fn look(psql: &Psql, pgsluice: &Path, python: &str) -> Result<Self> {
        let sql = "SELECT name, default_version FROM pg_available_extensions";
        let pair = |line: &str| {
            let (name, version) = line.split_once('|')?;
            Some((name.to_owned(), version.to_owned()))
        };
        let extensions = psql.query(sql, USER)?.lines().filter_map(pair).collect();
        // A library's settings are visible only after it is loaded.
        let sql = "LOAD 'pgsluice'; SELECT name FROM pg_settings WHERE name LIKE 'pgsluice.%'";
        let settings = psql.query(sql, USER).unwrap_or_default();
        let sql = "SELECT collversion FROM pg_collation WHERE collname = 'en-US-x-icu'";
        let icu = psql.query(sql, USER)?;
        Ok(Self {
            icu: Some(icu).filter(|version| !version.is_empty()),
            settings: settings.lines().map(str::to_owned).collect(),
            extensions,
            pgsluice: pgsluice.display().to_string(),
            python: python.to_owned(),
            asked: BTreeMap::new(),
        })
    }

    /// The version of a tool that a definition names, or why it cannot be used.
    pub fn version(&mut self, need: &str) -> Result<String, String> {
        if let Some(known) = self.asked.get(need) {
            return known.clone();
        }
        let answer = self.ask(need);
        self.asked.insert(need.to_owned(), answer.clone());
        answer
    }

    fn ask(&self, need: &str) -> Result<String, String> {
        if let Some(name) = need.strip_prefix("extension:") {
            let found = self.extensions.get(name).cloned();
            return found.ok_or_else(|| format!("the server has no extension {name}"));
        }
        if let Some(name) = need.strip_prefix("setting:") {
            let there = self.settings.iter().any(|s| s == name);
            let missing = || format!("the server has no setting {name}");
            return there.then(|| "there".to_owned()).ok_or_else(missing);
        }
        if need == "icu" {
            return self.icu.clone().ok_or_else(|| "this server is built without ICU".to_owned());
        }
        if let Some(name) = need.strip_prefix("example:") {
            let path = Path::new(&self.pgsluice).with_file_name("examples").join(name);
            let missing = || format!("there is no {}\nhint: bench/prepare", path.display());
            return path.exists().then(|| "built with it".to_owned()).ok_or_else(missing);
        }
        if let Some(module) = need.strip_prefix("python:") {
            let code = format!(
                "import importlib.metadata, importlib; importlib.import_module('{module}'); \
                 print(importlib.metadata.version('{module}'))"
            );
            let version = first_line(&self.python, &["-c", &code]);
            return if version.is_empty() {
                Err(format!("{} has no module {module}\nhint: bench/rivals/setup", self.python))
            } else {
                Ok(version)
            };
        }
        let program = if need == "pgsluice" { &self.pgsluice } else { need };
        match Command::new(program).arg("--version").output() {
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                let line = text.lines().find(|l| l.contains(|c: char| c.is_ascii_digit()));
                Ok(line.unwrap_or("unknown").trim().to_owned())
            }
            Err(e) => Err(format!("the program {need} cannot be run: {e}")),
        }
    }
}
