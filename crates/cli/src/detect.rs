//! `--dialect auto`: what the file shows becomes the options that were not given.

use crate::arguments::{with_files, FormatName, HeaderUse, SourceArguments, StrayQuotesAre};
use crate::failure::Failure;
use crate::output::say;
use crate::wording::words;
use pgsluice_engine::options::one_byte;
use pgsluice_engine::options::MOST_FOOTER;
use pgsluice_engine::sniff::{counted, option, sniff, Detected, Doubt, Given, Head};
use pgsluice_engine::sniff::{peek, Peek};
use pgsluice_engine::Error;
use pgsluice_engine::Source;
use std::sync::Arc;

/// The source arguments with what the first file shows. `rejects`: records that do not fit are
/// kept, so that a header that does not fit may be passed over.
///
/// # Errors
///
/// The file cannot be read, or leaves something undecided that no option decides.
pub fn detected(
    a: &SourceArguments,
    rejects: bool,
    quiet: bool,
) -> Result<SourceArguments, Failure> {
    if a.dialect.is_none() {
        return Ok(a.clone());
    }
    if a.format != FormatName::Csv {
        return Err(Error::usage("--dialect auto needs --format csv").into());
    }
    let mut a = with_files(a)?;
    let before = given(&a)?;
    let (source, found) = first(&a, &before)?;
    let finds_footer = a.skip_footer == 0;
    let header = |doubt: &Doubt| found.head == Head::Unfit && doubt.what == "header";
    let spaced = |doubt: &Doubt| doubt.what == "stray-quotes";
    // COPY's reading, which keeps every character.
    let kept = |doubt: &Doubt| doubt.what == "escape" && doubt.candidates.len() == 1;
    let ignores = |doubt: &Doubt| rejects && (header(doubt) || spaced(doubt) || kept(doubt));
    let doubts: Vec<&Doubt> = found.doubts.iter().filter(|doubt| !ignores(doubt)).collect();
    if !doubts.is_empty() {
        return Err(undecided(source.as_ref(), &doubts).into());
    }
    a.delimiter.get_or_insert_with(|| option(found.delimiter));
    a.quote.get_or_insert_with(|| option(found.quote));
    if found.escape != found.quote {
        a.escape.get_or_insert_with(|| option(found.escape));
    }
    if found.doubts.iter().any(spaced) {
        a.stray_quotes = Some(StrayQuotesAre::Copy);
    }
    if a.header.is_none() && !a.no_header {
        match found.head {
            Head::Names => a.header = Some(HeaderUse::Names),
            Head::Unfit => a.header = Some(HeaderUse::Ignore),
            Head::None | Head::Unknown => a.no_header = true,
        }
    }
    if a.skip_lines == 0 {
        a.skip_lines = found.skip_lines;
    }
    if a.skip_footer == 0 {
        a.skip_footer = footer(source.as_ref(), found.skip_footer)?;
    }
    let unfit = before.header.is_none() && found.head == Head::Unfit;
    let around = Around {
        lines: (before.skip_lines == 0).then_some(found.skip_lines),
        footer: finds_footer.then_some(found.skip_footer),
        unfit,
    };
    let header = if unfit { None } else { given(&a)?.header };
    let by = Given { header, skip_lines: before.skip_lines, ..given(&a)? };
    around.check(&a, source.as_ref(), &by)?;
    if !quiet {
        say(format_args!("{}: {}", source.name(), told(&found)));
    }
    Ok(a)
}

/// What was detected around the table of the first file: it is skipped in each file.
struct Around {
    /// lines before the table; `None` if they were not detected
    lines: Option<u64>,
    /// lines after it
    footer: Option<u64>,
    /// a header that does not fit
    unfit: bool,
}

impl Around {
    /// Checks that each file has the same around its table, so that no record is skipped.
    ///
    /// # Errors
    ///
    /// One has something else there, or cannot be read.
    fn check(&self, a: &SourceArguments, first: &dyn Source, by: &Given) -> Result<(), Failure> {
        let some = |lines: Option<u64>| lines.is_some_and(|lines| lines > 0);
        if !some(self.lines) && !some(self.footer) && !self.unfit {
            return Ok(());
        }
        for source in a.named.iter().flat_map(|named| &named.sources) {
            let Peek { bytes, whole } = peek(source.as_ref())?;
            if (bytes.is_empty() && whole) || source.name() == first.name() {
                continue;
            }
            let found = sniff(&bytes, whole, by);
            let unsure: Vec<&Doubt> =
                found.doubts.iter().filter(|doubt| doubt.what == "preamble").collect();
            if !unsure.is_empty() {
                return Err(undecided(source.as_ref(), &unsure).into());
            }
            if let Some((what, hint)) = self.differs(&found, first.name()) {
                let error = Error::data(format!("{} {what}", source.name()));
                return Err(error
                    .with_hint(format!("{hint}; files that differ need separate loads"))
                    .into());
            }
        }
        Ok(())
    }

    /// What another file has instead, and the option that says what is skipped.
    fn differs(&self, found: &Detected, first: String) -> Option<(String, &'static str)> {
        let lines = |n: u64| counted(n as usize, "line");
        if let Some(n) = self.lines.filter(|n| *n != found.skip_lines) {
            let own = lines(found.skip_lines);
            let what = format!("has {own} before the table, and {first} has {}", lines(n));
            return Some((what, "--skip-lines N skips the first N lines of each file"));
        }
        if let Some(n) = self.footer.filter(|n| *n != found.skip_footer) {
            let own = match found.whole {
                true => format!("has {} after the last record", lines(found.skip_footer)),
                false => "is too long for lines after the last record to be detected".into(),
            };
            let what = format!("{own}, and {first} has {}", lines(n));
            return Some((what, "--skip-footer N skips the last N lines of each file"));
        }
        let none = matches!(found.head, Head::None | Head::Unknown);
        (self.unfit && none).then(|| {
            let what = format!("has no header, and that of {first} does not fit and is skipped");
            (what, "--header=ignore skips the first record of each file")
        })
    }
}

/// The first source that is not empty, and what it shows.
fn first(a: &SourceArguments, given: &Given) -> Result<(Arc<dyn Source>, Detected), Failure> {
    let sources = a.named.iter().flat_map(|named| &named.sources);
    for source in sources.clone() {
        let Peek { bytes, whole } = peek(source.as_ref())?;
        if !(bytes.is_empty() && whole) {
            return Ok((source.clone(), sniff(&bytes, whole, given)));
        }
    }
    let name = sources.clone().next().map_or(String::new(), |source| source.name());
    Err(Error::data(format!("{name} is empty: no dialect can be detected")).into())
}

/// The lines after the last record, which `--skip-footer` limits.
fn footer(source: &dyn Source, lines: u64) -> Result<u32, Error> {
    u32::try_from(lines).ok().filter(|lines| *lines <= MOST_FOOTER).ok_or_else(|| {
        let name = source.name();
        Error::data(format!("{lines} lines of {name} follow the last record"))
            .with_hint("--skip-footer skips at most 1000 lines: remove them from the file")
    })
}

/// What the options say already.
fn given(a: &SourceArguments) -> Result<Given, Error> {
    let quote = one_byte("quote", a.quote.as_deref())?;
    Ok(Given {
        delimiter: one_byte("delimiter", a.delimiter.as_deref())?,
        quote,
        escape: one_byte("escape", a.escape.as_deref())?,
        header: match (a.header, a.no_header) {
            (Some(_), _) => Some(true),
            (None, true) => Some(false),
            (None, false) => None,
        },
        encoding: a.encoding.is_some(),
        stray_quotes: a.stray_quotes.map(StrayQuotesAre::meant),
        skip_lines: a.skip_lines,
    })
}

fn undecided(source: &dyn Source, doubts: &[&Doubt]) -> Error {
    let name = source.name();
    let what: Vec<String> = doubts.iter().map(|d| format!("{}: {}", d.what, d.why)).collect();
    let options: Vec<String> = doubts
        .iter()
        .filter(|doubt| !doubt.candidates.is_empty())
        .map(|doubt| {
            let all: Vec<String> = doubt.candidates.iter().map(|c| words(&c.text())).collect();
            all.join(" or ")
        })
        .collect();
    let options = match options.as_slice() {
        [] => "name the dialect with options".to_owned(),
        _ => options.join(", and "),
    };
    Error::data(format!("{name} does not decide its dialect: {}", what.join("; ")))
        .with_hint(format!("{options}; `pgsluice sniff {name}` shows more"))
}

/// What was detected, on one line.
fn told(found: &Detected) -> String {
    let mut told = format!("detected delimiter '{}'", option(found.delimiter));
    if found.why("quote").is_some_and(|why| !why.starts_with("no field")) {
        told += &format!(", quote {}", char::from(found.quote));
    }
    if found.escape != found.quote {
        told += &format!(", escape {}", char::from(found.escape));
    }
    if found.doubts.iter().any(|doubt| doubt.what == "stray-quotes") {
        told += ", quotes after spaces, which are kept (--stray-quotes copy)";
    }
    told += match found.head {
        Head::Names => ", a header",
        Head::Unfit => ", a header that does not fit and is skipped",
        Head::None | Head::Unknown => ", no header",
    };
    if found.skip_lines > 0 {
        told += &format!(", {} before it", counted(found.skip_lines as usize, "line"));
    }
    if found.skip_footer > 0 {
        told += &format!(", {} after the last record", counted(found.skip_footer as usize, "line"));
    }
    told
}
