//! The inputs of a suite. Each is made and checked once, and all methods share it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::checksum::{self, Checksum};
use crate::definition::Data;
use crate::psql::{Captured, Psql};
use crate::server::{self, BenchServer, Binaries, ServerSettings, USER};
use crate::template;

/// A CSV file, what a table loaded from it must hold, and the files derived from it.
#[derive(Debug)]
pub struct Dataset {
    /// The file.
    pub csv: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Checksum of its text.
    pub text: Checksum,
    /// Checksum of the typed values.
    pub typed: Checksum,
    /// Derived files by name.
    pub derived: BTreeMap<String, PathBuf>,
    /// The file cut into shares, by their number.
    pub parts: BTreeMap<u32, Vec<PathBuf>>,
}

impl Dataset {
    /// Removes its files.
    pub fn remove(&self) -> Result<()> {
        self.csv.parent().map_or(Ok(()), server::remove_dir)
    }
}

/// What making data needs.
#[derive(Debug)]
pub struct Workshop<'a> {
    /// The server's programs.
    pub binaries: &'a Binaries,
    /// The folder for all files of a run.
    pub work: &'a Path,
    /// An initialised cluster.
    pub template: &'a Path,
    /// The loader, which makes the samples.
    pub pgsluice: &'a Path,
    /// Seed of the samples.
    pub seed: u64,
    /// Settings of the server that makes the data.
    pub settings: &'a ServerSettings,
}

impl Workshop<'_> {
    /// Makes an input of `rows` rows, with the named derived files and shares.
    pub fn make(&self, data: &Data, rows: u64, derived: &[&str], lanes: &[u32]) -> Result<Dataset> {
        let dir = self.work.join(format!("data-{}-{rows}", data.name));
        server::remove_dir(&dir)?;
        self.binaries.make_dir(&dir)?;
        let csv = dir.join("source.csv");
        let cluster = self.work.join("maker");
        server::fresh_copy(self.template, &cluster)?;
        let maker = BenchServer::start(self.binaries, &cluster, self.work, self.settings)?;
        self.make_csv(data, rows, &csv, &dir, maker.psql())?;

        let bytes = fs::metadata(&csv)?.len();
        let text = checksum::of_csv(&csv, data.columns.len())?;
        ensure!(
            data.file.is_some() || text.rows == rows,
            "{} has {} rows where {rows} were asked for",
            csv.display(),
            text.rows
        );
        let typed = expected(data, &csv, text, !derived.is_empty(), maker.psql())
            .with_context(|| format!("cannot tell what data {} must become", data.name))?;
        let mut made = BTreeMap::new();
        for name in derived {
            let out = dir.join(name);
            let values = [
                ("out".to_owned(), out.display().to_string()),
                ("rows".to_owned(), rows.to_string()),
            ];
            let sql = template::fill(&data.derived[*name], &values.into())?;
            maker.psql().query(&sql, USER)?;
            made.insert((*name).to_owned(), out);
        }
        drop(maker);
        server::remove_dir(&cluster)?;
        let parts = lanes.iter().map(|n| Ok((*n, split(&csv, *n)?))).collect::<Result<_>>()?;
        sync_all(&dir)?;
        Ok(Dataset { csv, bytes, text, typed, derived: made, parts })
    }

    fn make_csv(&self, data: &Data, rows: u64, csv: &Path, dir: &Path, psql: &Psql) -> Result<()> {
        if let Some(kind) = &data.sample {
            let mut command = Command::new(self.pgsluice);
            command.args(["sample", kind, "--rows", &rows.to_string()]);
            command.args(["--seed", &self.seed.to_string(), "--out"]).arg(csv);
            let files = Captured::new(dir, "sample");
            let client = files.spawn(&mut command).with_context(|| {
                "the data comes from `pgsluice sample`\nhint: cargo build --release -p pgsluice"
            })?;
            files.wait(client, "pgsluice sample")?;
        } else if let Some(sql) = &data.sql {
            let values = [("rows".to_owned(), rows.to_string())].into();
            let sql = template::fill(sql, &values)?;
            psql.query(&format!("COPY ({sql}) TO '{}' (FORMAT csv)", csv.display()), USER)?;
        } else if let Some(file) = &data.file {
            fs::copy(file, csv).with_context(|| format!("cannot copy {file}"))?;
        }
        Ok(())
    }
}

/// Writes the files of a folder out to disk. Otherwise the kernel would do so during the first
/// timed runs, and the method that comes first would look slower than it is.
fn sync_all(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(())
}

/// The checksum that a typed table of this file must have.
///
/// For a canonical file, it is the checksum of the file itself. For any other file, the server's
/// text of a value differs from the file's. Then the file is first loaded into a landing table of
/// text columns, which must have the file's own checksum. Its columns, cast one by one, give the
/// answer. The table `source`, loaded by stock COPY, must have the same checksum.
fn expected(
    data: &Data,
    csv: &Path,
    text: Checksum,
    need_source: bool,
    psql: &Psql,
) -> Result<Checksum> {
    let copy = |table: &str| format!("COPY {table} FROM '{}' (FORMAT csv)", csv.display());
    let ask = |sql: &str| Checksum::parse(&psql.query(sql, USER)?);
    if !data.canonical {
        let names = data.names().join(" text, ");
        psql.query(&format!("CREATE UNLOGGED TABLE landing ({names} text)"), USER)?;
        psql.query(&copy("landing"), USER)?;
        let names: Vec<String> = data.names().iter().map(|n| (*n).to_owned()).collect();
        let landed = ask(&checksum::server_sql("landing", &names))?;
        ensure!(landed == text, "landed as text: {landed}, in the file: {text}");
    } else if !need_source {
        return Ok(text);
    }
    psql.query(&format!("CREATE UNLOGGED TABLE source ({})", data.columns.join(", ")), USER)?;
    psql.query(&copy("source"), USER)?;
    let stock = ask(&checksum::server_sql("source", &data.expressions()))?;
    let answer = if data.canonical { text } else { ask(&cast_sql(data))? };
    ensure!(stock == answer, "by stock COPY: {stock}, from the file: {answer}");
    Ok(answer)
}

/// The checksum of the landing table's values, each cast to its column's type.
fn cast_sql(data: &Data) -> String {
    let casts: Vec<String> = data
        .columns
        .iter()
        .map(|column| {
            let (name, kind) = column.split_once(' ').unwrap_or((column, "text"));
            let kind = kind.split(" NOT NULL").next().unwrap_or(kind);
            format!("{name}::{kind} AS {name}")
        })
        .collect();
    let cast = format!("(SELECT {} FROM landing) AS cast_rows", casts.join(", "));
    checksum::server_sql(&cast, &data.expressions())
}

/// Cuts a CSV file into shares of about equal size at record ends. A newline ends a record if the
/// number of quotes before it is even.
fn split(csv: &Path, shares: u32) -> Result<Vec<PathBuf>> {
    let total = fs::metadata(csv)?.len();
    let path = |i: u32| csv.with_file_name(format!("part-{shares}-{i}.csv"));
    let mut input = File::open(csv)?;
    let mut buffer = vec![0; 1 << 18];
    let (mut share, mut written, mut quoted) = (0, 0_u64, false);
    let mut out = BufWriter::new(File::create(path(0))?);
    loop {
        let n = input.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        let mut from = 0;
        for (i, byte) in buffer[..n].iter().enumerate() {
            quoted ^= *byte == b'"';
            let due =
                written + (i - from) as u64 + 1 >= total * u64::from(share + 1) / u64::from(shares);
            if *byte == b'\n' && !quoted && due && share + 1 < shares {
                out.write_all(&buffer[from..=i])?;
                written += (i + 1 - from) as u64;
                from = i + 1;
                share += 1;
                out.flush()?;
                out = BufWriter::new(File::create(path(share))?);
            }
        }
        out.write_all(&buffer[from..n])?;
        written += (n - from) as u64;
    }
    out.flush()?;
    for rest in share + 1..shares {
        File::create(path(rest))?;
    }
    Ok((0..shares).map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_records_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let csv = dir.path().join("source.csv");
        let text: String = (0..100).map(|i| format!("{i},\"a\nb \"\"{i}\"\"\",x\n")).collect();
        fs::write(&csv, &text).unwrap();
        let whole = checksum::of_csv(&csv, 3).unwrap();
        for shares in [1, 2, 3, 7, 150] {
            let parts = split(&csv, shares).unwrap();
            assert_eq!(parts.len(), shares as usize);
            let mut sum = Checksum::default();
            let mut joined = String::new();
            for part in parts {
                let one = checksum::of_csv(&part, 3).unwrap();
                sum.rows += one.rows;
                sum.sum += one.sum;
                joined += &fs::read_to_string(part).unwrap();
            }
            assert_eq!(sum, whole);
            assert_eq!(joined, text);
        }
    }
}
