//! Finds the files that the command line names: by name, pattern, folder or list.

use crate::failure::Failure;
use crate::patterns::{is_pattern, matching};
use pgsluice_engine::{io_message, Error};
use pgsluice_engine::{stdin, FileSource, Source};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the kind of a file that is certainly not a file to load; `None` for others.
pub type Other<'o> = &'o dyn Fn(&Path) -> Result<Option<String>, Error>;

/// The files that the command line names.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// in the order of loading
    pub sources: Vec<Arc<dyn Source>>,
    /// notes on files in folders that are not loaded
    pub notes: Vec<String>,
}

impl Named {
    /// Finds all files of the command line: first `files`, then those in the list `from`.
    ///
    /// # Errors
    ///
    /// A folder or a pattern has no file, a folder cannot be read, or standard input would be read
    /// twice.
    pub fn find(
        files: &[PathBuf],
        from: Option<&Path>,
        nul: bool,
        other: Other<'_>,
    ) -> Result<Named, Failure> {
        let mut named = Named::default();
        for file in files {
            let name = file.to_string_lossy();
            if name == "-" {
                named.sources.push(stdin());
            } else if is_pattern(&name) && !file.exists() {
                named.sources.extend(matching(&name)?.into_iter().map(file_source));
            } else {
                named.add(file, other)?;
            }
        }
        if let Some(list) = from {
            for file in listed(list, nul)? {
                named.add(&file, other)?;
            }
        }
        let list = from.is_some_and(|list| list == Path::new("-"));
        let twice = named.sources.iter().filter(|s| s.path().is_none()).count();
        if twice + usize::from(list) > 1 {
            return Err(Error::usage("standard input can be given only once").into());
        }
        Ok(named)
    }

    /// Adds a file, or all files of a folder.
    fn add(&mut self, path: &Path, other: Other<'_>) -> Result<(), Failure> {
        if !path.is_dir() {
            self.sources.push(file_source(path.to_owned()));
            return Ok(());
        }
        let failed = |e: io::Error| {
            Failure::new(format!("cannot look into {}: {}", path.display(), io_message(&e)))
        };
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let (mut files, mut left) = (Vec::new(), Vec::new());
        for entry in entries {
            let (name, file) = (entry.file_name(), entry.path());
            // Keep a dangling link: opening it is an error. If it were skipped, its rows would be
            // missing without a message.
            let facts = file.metadata();
            let why = match &facts {
                _ if name.as_bytes().starts_with(b".") => Some("is hidden".to_owned()),
                Ok(facts) if facts.is_dir() => Some("is a folder".to_owned()),
                Ok(facts) if !facts.is_file() => Some("is no regular file".to_owned()),
                Ok(_) => other(&file)?,
                Err(_) => None,
            };
            match why {
                Some(why) => left.push(format!("{} {why}", name.to_string_lossy())),
                None => files.push(file_source(file)),
            }
        }
        let folder = path.display();
        if files.is_empty() {
            let failure = Failure::new(format!("the folder {folder} has no file to load"));
            return Err(match left.is_empty() {
                true => failure,
                false => failure.with_hint(format!("left out: {}", left.join(", "))),
            });
        }
        if !left.is_empty() {
            self.notes.push(format!("not loaded from the folder {folder}: {}", left.join(", ")));
        }
        self.sources.append(&mut files);
        Ok(())
    }
}

/// The note on files that are named more than once, by any of their names. Empty files have no
/// rows, so they are left out, as are pipes and devices.
pub fn loaded_twice(sources: &[Arc<dyn Source>]) -> Option<String> {
    let (mut times, mut twice) = (HashMap::new(), Vec::new());
    for source in sources {
        let facts = source.path().and_then(|path| path.metadata().ok());
        if let Some(facts) = facts.filter(|facts| facts.is_file() && facts.len() > 0) {
            let count = times.entry((facts.dev(), facts.ino())).or_insert(0);
            *count += 1;
            if *count == 2 {
                twice.push(source.name());
            }
        }
    }
    match twice.as_slice() {
        [] => None,
        [name] => Some(format!("{name} is named twice and is loaded twice")),
        [first, ..] => {
            let count = twice.len();
            Some(format!("{count} files are named twice and are loaded twice, such as {first}"))
        }
    }
}

fn file_source(path: PathBuf) -> Arc<dyn Source> {
    Arc::new(FileSource::new(path))
}

/// The names in a list: one on each line, or with a NUL after each.
fn listed(list: &Path, nul: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut bytes = Vec::new();
    let read = match list == Path::new("-") {
        true => io::stdin().read_to_end(&mut bytes),
        false => File::open(list).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Error::io("read", &list.display().to_string(), &e))?;
    let end = if nul { b'\0' } else { b'\n' };
    let bare = |name: &[u8]| match nul {
        true => name.to_vec(),
        false => name.strip_suffix(b"\r").unwrap_or(name).to_vec(),
    };
    let names: Vec<Vec<u8>> =
        bytes.split(|c| *c == end).map(bare).filter(|n| !n.is_empty()).collect();
    if let Some(name) = names.iter().find(|name| name.contains(&0)) {
        let name = String::from_utf8_lossy(name).replace('\0', "\\0");
        return Err(Error::usage(format!("{} names {name:.80}", list.display()))
            .with_hint("--from0 reads names that end with NUL")
            .into());
    }
    if names.is_empty() {
        return Err(Failure::new(format!("the list {} names no file", list.display())));
    }
    Ok(names.iter().map(|name| OsStr::from_bytes(name).into()).collect())
}
