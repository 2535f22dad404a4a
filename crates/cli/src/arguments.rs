//! The arguments that `load`, `plan` and `check` share, and their conversion to options of the
//! engine.

use crate::connection::ConnectionArguments;
use crate::detect::detected;
use crate::encodings::other_than_utf8;
use crate::failure::Failure;
use crate::fields::{marker, FieldArguments};
use crate::names::Names;
use crate::once::OnceArguments;
use crate::outcome::{only_with_rejects, rejects, ErrorArguments, OnError, OutputArguments};
use crate::sources::{loaded_twice, Named};
use crate::target::target_options;
use clap::{Args, ValueEnum};
use pgsluice_core::scan::{self, StrayQuotes};
use pgsluice_engine::options::{
    one_byte, DialectOptions, FileFormat, Header, InputOptions, Method, Options,
};
use pgsluice_engine::options::{ForeignKeys, Indexes, Route, Triggers};
use pgsluice_engine::options::{Frame, MOST_FOOTER};
use pgsluice_engine::sniff::other_content;
use pgsluice_engine::Error;
use pgsluice_engine::FileSource;
use std::path::{Path, PathBuf};

/// The format of the files
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// comma-separated values, by COPY's rules
    Csv,
    /// COPY's text format
    Text,
    /// COPY's binary format
    Binary,
}

/// How to read a quote that neither opens nor closes a field
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrayQuotesAre {
    /// the record is refused; it ends at the end of its line
    Error,
    /// as COPY does: a quote opens inside a field too, spans lines, and is removed
    Copy,
    /// the quote is part of the value, which ends at the next delimiter or line end
    Literal,
}

impl StrayQuotesAre {
    /// The engine's value for this option.
    pub fn meant(self) -> StrayQuotes {
        match self {
            StrayQuotesAre::Error => StrayQuotes::Error,
            StrayQuotesAre::Copy => StrayQuotes::Copy,
            StrayQuotesAre::Literal => StrayQuotes::Literal,
        }
    }
}

/// What the first line of each file is
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HeaderUse {
    /// column names: each field goes to the column of its name
    Names,
    /// skipped; fields go to columns by position
    Ignore,
    /// column names, which must be those of the table in the same order
    Match,
}

/// How a table is created
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CreateHow {
    /// a value that does not fit its column's type fails the load
    Typed,
    /// a column whose type is in doubt after the whole input becomes text
    TextOnDoubt,
}

/// How the method staged creates its landing table
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LandingKind {
    /// not written to the WAL
    Unlogged,
    /// written to the WAL as any other table
    Logged,
}

/// Whether the schema pgsluice_loads is used
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ledger {
    /// when something must be recorded
    Auto,
    /// never
    None,
}

/// How the dialect is found
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectFrom {
    /// what no option gives is detected in the first file
    Auto,
}

/// The files and how they are read.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Source")]
pub struct SourceArguments {
    /// Files, quoted patterns such as 'votes-*.csv.gz', or folders, whose files are loaded in
    /// order of name; - is standard input. gzip, zstd, lz4, bzip2 and xz are detected by
    /// content
    #[arg(required_unless_present = "files_from", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Load the files named in LIST as well, one name per line; - reads the list from standard
    /// input
    #[arg(long, value_name = "LIST")]
    pub files_from: Option<PathBuf>,
    /// The files, once they are found.
    #[arg(skip)]
    pub named: Option<Named>,
    /// Names in LIST end with a NUL byte, as find -print0 writes them
    #[arg(long, requires = "files_from")]
    pub from0: bool,
    /// The format of the files
    #[arg(long, value_enum, default_value = "csv")]
    pub format: FormatName,
    /// Read options from a file, as `pgsluice sniff` writes it; options on the command line
    /// win. (The command `pgsluice plan` is something else: it shows what a load would do)
    #[arg(long, value_name = "FILE")]
    #[allow(dead_code)] // plan_file reads it earlier
    plan: Option<PathBuf>,
    /// Detect delimiter, quote, escape, header and the lines around the table in the first
    /// file, unless options give them; if the file does not decide, stop and list the
    /// candidates
    #[arg(long, value_enum, value_name = "auto")]
    pub dialect: Option<DialectFrom>,
    /// What the first line is; --header alone means names
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "names", value_name = "HOW", overrides_with = "no_header")]
    pub header: Option<HeaderUse>,
    /// The first line is data (the default, as in COPY)
    #[arg(long, overrides_with = "header")]
    pub no_header: bool,
    /// The character between fields: by default a comma in CSV and a tab in text; \t and \xHH
    /// are accepted
    #[arg(long, value_name = "CHAR")]
    pub delimiter: Option<String>,
    /// The character around values in CSV [default: "]
    #[arg(long, value_name = "CHAR")]
    pub quote: Option<String>,
    /// The character before a quote inside a quoted value in CSV [default: the quote]
    #[arg(long, value_name = "CHAR")]
    pub escape: Option<String>,
    /// How to read a quote in CSV that neither opens nor closes a field, as in 5" pipe
    /// [default: error]
    #[arg(long, value_enum, value_name = "HOW")]
    pub stray_quotes: Option<StrayQuotesAre>,
    /// The text that means NULL [default: nothing in CSV, \N in text]. COLUMN=TEXT adds a text
    /// for one column, *=TEXT for all columns; may be repeated
    #[arg(long, value_name = "[COLUMN=]TEXT", allow_hyphen_values = true)]
    pub null: Vec<String>,
    /// The text that means the default of its column (PostgreSQL 16 or later)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub default: Option<String>,
    /// The encoding of the files, by the server's name for it [default: UTF8]
    #[arg(long, value_name = "NAME")]
    pub encoding: Option<String>,
    /// Skip the first N lines of each file, before the header
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_lines: u64,
    /// Skip the last N lines of each file, at most 1000
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_FOOTER)))]
    pub skip_footer: u32,
    /// Skip lines that begin with this character, except inside quotes
    #[arg(long, value_name = "CHAR")]
    pub comment: Option<String>,
    /// Skip the first N records of the input, after the header
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Read at most N records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// Where the rows go.
#[derive(Args, Debug)]
#[command(next_help_heading = "Target")]
pub struct TargetArguments {
    /// The table, written as in SQL: votes, s.votes, "Votes"
    #[arg(long, short, value_name = "NAME")]
    pub table: String,
    /// Load only the rows that satisfy this SQL condition
    #[arg(long = "where", value_name = "SQL", allow_hyphen_values = true)]
    pub filter: Option<String>,
    /// How rows are written; `pgsluice methods` lists the methods
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub method: Method,
    /// Where the rows of a partitioned table go: leaf: straight to their partitions; nodes: straight
    /// to the servers that hold its partitions, foreign tables of postgres_fdw; root: to the table,
    /// where the server routes them; auto: leaf for a large file and partitions with indexes, else root
    #[arg(long, default_value = "auto", value_name = "auto|leaf|nodes|root")]
    pub route: Route,
    /// With --route nodes: all nodes commit, or none, by two-phase commit
    #[arg(long)]
    pub atomic: bool,
    /// With --route nodes: connect to the node NAME (its foreign server) by URL, instead of as the
    /// catalog says; may be repeated. Passwords come from ~/.pgpass
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    pub nodes: Vec<(String, String)>,
    /// Number of connections that send rows, for the method lanes [default: the number of cores,
    /// but at most half of the server's max_connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub lanes: Option<u16>,
    /// How the method staged creates its landing table [default: unlogged; temporary if the
    /// role may create no other]
    #[arg(long, value_enum, value_name = "HOW")]
    pub landing: Option<LandingKind>,
    /// Empty the table first, in the same transaction
    #[arg(long)]
    pub truncate: bool,
    /// With --truncate or --create: allow the table to be empty after the load, which is an
    /// error otherwise
    #[arg(long)]
    pub allow_empty: bool,
    /// Create the table, with types inferred from the input
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "typed", value_name = "HOW")]
    pub create: Option<CreateHow>,
    /// With --create: order the columns by width, which saves space in each row. A load by
    /// position then needs --columns
    #[arg(long, requires = "create")]
    pub pack_columns: bool,
    /// Columns (or *) in which the NULL text means NULL even in quotes
    #[arg(long, value_name = "A,B,…")]
    pub force_null: Vec<Names>,
    /// Columns (or *) in which the NULL text is an ordinary value
    #[arg(long, value_name = "A,B,…")]
    pub force_not_null: Vec<Names>,
    /// DateStyle of the session
    #[arg(long, value_name = "STYLE")]
    pub date_style: Option<String>,
    /// TimeZone of the session
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    pub time_zone: Option<String>,
    /// How long to wait for a lock, for example 10s
    #[arg(long, value_name = "TIME")]
    pub lock_timeout: Option<String>,
    /// Fail instead of taking a lock that blocks other sessions' reads or writes
    #[arg(long)]
    pub no_lock_out: bool,
    /// Whether to use the schema pgsluice_loads, in which the method lanes records what it
    /// drops or disables
    #[arg(long, value_enum, default_value = "auto", value_name = "auto|none")]
    pub ledger: Ledger,
    /// Do not run ANALYZE; leave it to autovacuum
    #[arg(long)]
    pub no_analyze: bool,
    /// keep: update the indexes with each row; rebuild: drop indexes and their constraints, and
    /// recreate them after the rows, which locks others out of the table; auto: rebuild if the
    /// table is empty
    #[arg(long, default_value = "auto", value_name = "keep|rebuild|auto")]
    pub indexes: Indexes,
    /// keep: triggers fire; off: disable the triggers of the table during the load
    #[arg(long, default_value = "keep", value_name = "keep|off")]
    pub triggers: Triggers,
    /// keep: check each row; revalidate: check all rows together after the load
    #[arg(long, default_value = "keep", value_name = "keep|revalidate")]
    pub foreign_keys: ForeignKeys,
}

/// Splits NAME=URL into the name of a node and its URL.
///
/// # Errors
///
/// The name or the URL is missing.
pub fn node(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, url)) if !name.is_empty() && !url.is_empty() => Ok((name.into(), url.into())),
        _ => Err("not of the form NAME=URL".into()),
    }
}

/// What `load`, `plan` and `check` take alike. A plan has nothing to sum up.
#[derive(Args, Debug)]
pub struct LoadArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
    #[command(flatten)]
    fields: FieldArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    once: OnceArguments,
    #[command(flatten)]
    errors: ErrorArguments,
    /// what is reported
    #[command(flatten)]
    pub output: OutputArguments,
}

impl LoadArguments {
    /// The options of the engine for these arguments.
    ///
    /// # Errors
    ///
    /// They contradict each other, or a pattern matches no file.
    pub fn options(&self) -> Result<Options, Failure> {
        only_with_rejects(&self.errors)?;
        if self.source.dialect.is_none() {
            // Wrong usage is reported before a file is looked for.
            let named = Some(Named::default());
            self.options_of(&SourceArguments { named, ..self.source.clone() })?;
        }
        let on_reject = self.errors.on_error == OnError::Reject;
        self.options_of(&detected(&self.source, on_reject, self.output.quiet)?)
    }

    /// The same with these arguments of the source, in which the files may be found already.
    fn options_of(&self, source: &SourceArguments) -> Result<Options, Failure> {
        let mut input = input(source)?;
        let once = self.once.options();
        if once.is_none() {
            input.notes.extend(loaded_twice(&input.sources));
        }
        let rejects = rejects(&self.errors, &input);
        let mut target = target_options(&self.target, self.connection.target()?);
        target.columns = self.fields.columns();
        target.fields = self.fields.options(source)?;
        let options = Options { input, target, rejects, once };
        options.check()?;
        Ok(options)
    }
}

/// The options of the input.
///
/// # Errors
///
/// A usage error: the format does not have an option, or a value is not valid for its option.
pub fn input(a: &SourceArguments) -> Result<InputOptions, Failure> {
    let format = format(a)?;
    let frame = frame(a)?;
    let header = match a.header {
        None => Header::None,
        Some(HeaderUse::Names) => Header::Names,
        Some(HeaderUse::Ignore) => Header::Ignore,
        Some(HeaderUse::Match) => Header::Match,
    };
    let named = match &a.named {
        Some(named) => named.clone(),
        None => named(a, &format)?,
    };
    Ok(InputOptions {
        sources: named.sources,
        notes: named.notes,
        format,
        header,
        encoding: other_than_utf8(a.encoding.as_deref()),
        skip: a.skip,
        limit: a.limit,
        first_is_data: a.no_header,
        frame,
    })
}

/// The format of the files, with the options given for it.
fn format(a: &SourceArguments) -> Result<FileFormat, Failure> {
    let dialect = DialectOptions {
        delimiter: a.delimiter.clone(),
        quote: a.quote.clone(),
        escape: a.escape.clone(),
        null: marker(&a.null)?,
        default: a.default.clone(),
        stray_quotes: a.stray_quotes.map(StrayQuotesAre::meant),
    };
    Ok(match a.format {
        FormatName::Csv => FileFormat::Delimited(dialect.dialect(scan::Format::Csv)?),
        FormatName::Text => FileFormat::Delimited(dialect.dialect(scan::Format::Text)?),
        FormatName::Binary => binary(&dialect)?,
    })
}

fn named(a: &SourceArguments, format: &FileFormat) -> Result<Named, Failure> {
    let utf8 = other_than_utf8(a.encoding.as_deref()).is_none();
    let other = |path: &Path| other_content(&FileSource::new(path), format, utf8, a.skip_lines > 0);
    Named::find(&a.files, a.files_from.as_deref(), a.from0, &other)
}

/// The same arguments with the files found. A list on standard input can be read only once.
///
/// # Errors
///
/// As [`input`].
pub fn with_files(a: &SourceArguments) -> Result<SourceArguments, Failure> {
    let named = named(a, &format(a)?)?;
    Ok(SourceArguments { named: Some(named), ..a.clone() })
}

/// The lines that are not records.
fn frame(a: &SourceArguments) -> Result<Frame, Error> {
    let comment = one_byte("comment", a.comment.as_deref())?;
    let delimiter_named = a.delimiter.is_some();
    Ok(Frame { skip_lines: a.skip_lines, skip_footer: a.skip_footer, comment, delimiter_named })
}

/// The binary format, which has no dialect.
fn binary(dialect: &DialectOptions) -> Result<FileFormat, Failure> {
    let given = [
        ("--delimiter", dialect.delimiter.is_some()),
        ("--quote", dialect.quote.is_some()),
        ("--escape", dialect.escape.is_some()),
        ("--stray-quotes", dialect.stray_quotes.is_some()),
        ("--null", dialect.null.is_some()),
        ("--default", dialect.default.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Error::usage(format!("{option} cannot be used with --format binary")).into())
        }
        None => Ok(FileFormat::Binary),
    }
}
