//! Finds the files that match a pattern on the command line.

use crate::failure::Failure;
use glob::{MatchOptions, Pattern};
use pgsluice_engine::{io_message, Error};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// As in a shell, a name that begins with a dot matches only if the pattern has the dot.
const HOW: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Whether a name is a pattern.
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// The files that match a pattern, sorted by name. `**` matches any number of folders. The walk of
/// `glob` is not used, because it panics at names that are not UTF-8, or skips them.
///
/// # Errors
///
/// No file matches, the pattern is malformed, or a folder cannot be read. A dangling link counts as
/// a match and fails later. If these were skipped, their rows would be missing without a message.
pub fn matching(pattern: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let wanted = Pattern::new(part)
            .map_err(|e| Error::usage(format!("invalid pattern {pattern}: {}", e.msg)))?;
        let mut next = Vec::new();
        for folder in found {
            let looked = if part == "**" {
                below(folder.clone(), &mut next)
            } else if is_pattern(part) {
                names(&folder).map(|names| {
                    let fits = |n: &OsString| wanted.matches_with(&n.to_string_lossy(), HOW);
                    next.extend(names.into_iter().filter(fits).map(|name| folder.join(name)));
                })
            } else {
                let path = folder.join(part);
                exists(&path).map(|is_there| next.extend(is_there.then_some(path)))
            };
            looked.map_err(|e| {
                let (place, why) = (folder.display(), io_message(&e));
                Failure::new(format!("cannot look for {pattern} in {place}: {why}"))
            })?;
        }
        found = next;
    }
    found.retain(|path| !path.is_dir());
    if found.is_empty() {
        return Err(Failure::new(format!("no file matches {pattern}")));
    }
    found.sort();
    // Two `**` can find the same file.
    found.dedup();
    Ok(found)
}

/// Adds the folder and its subfolders at any depth, but no hidden ones, and none behind links.
fn below(folder: PathBuf, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for name in names(&folder)? {
        let path = folder.join(&name);
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if !hidden && is_folder(path.symlink_metadata())? {
            below(path, found)?;
        }
    }
    found.push(folder);
    Ok(())
}

/// The names in a folder; none if the path is not a folder.
fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !is_folder(folder.metadata())? {
        return Ok(Vec::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Whether it is a folder. If that may not be found out, its files would be missing without a message.
fn is_folder(facts: io::Result<Metadata>) -> io::Result<bool> {
    match facts {
        Ok(facts) => Ok(facts.is_dir()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(e),
        Err(_) => Ok(false),
    }
}

/// Whether an entry has this name. A dangling link counts, too.
fn exists(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        // The parent is not a folder, so it has no entries.
        Err(_) if !path.parent().is_some_and(Path::is_dir) => Ok(false),
        Err(e) => Err(e),
    }
}
