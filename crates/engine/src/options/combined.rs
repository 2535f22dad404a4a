//! Options that contradict each other, and values that an option cannot have.

use super::{ColumnSet, Create, FileFormat, ForeignKeys, Header, Indexes};
use super::{InputOptions, Method, Options, Triggers, MOST_FOOTER};
use crate::error::Error;
use crate::frame::check_comment;
use crate::plan::refuse_beside_nodes;
use crate::reject::{check_free, side_path, Existing};
use crate::source::Source;
use crate::text::{text, Text};
use pgsluice_core::scan::Format;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

impl InputOptions {
    /// Checks these options, without those of the target.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.frame.skip_footer > MOST_FOOTER {
            return Err(Error::usage(text!("`skip-footer` is at most {}", MOST_FOOTER)));
        }
        let FileFormat::Delimited(dialect) = &self.format else { return Ok(()) };
        super::check(dialect)?;
        self.frame.comment.map_or(Ok(()), |comment| check_comment(comment, dialect))
    }

    /// Checks that a file to be written is not one of the sources.
    ///
    /// # Errors
    ///
    /// It is one of them.
    pub fn check_output(&self, out: &Path) -> Result<(), Error> {
        let Ok(facts) = out.metadata() else { return Ok(()) };
        let same = |source: &Arc<dyn Source>| {
            let read = source.path().and_then(|path| path.metadata().ok());
            read.is_some_and(|f| (f.dev(), f.ino()) == (facts.dev(), facts.ino()))
        };
        if facts.is_file() && self.sources.iter().any(same) {
            let message = format!("{} is an input file and cannot be written to", out.display());
            return Err(Error::usage(message));
        }
        Ok(())
    }
}

impl Options {
    /// Checks that the options can be used together. A [`Loader`](crate::Loader) does this before
    /// anything else, for a plan or a check as for a load.
    ///
    /// # Errors
    ///
    /// A usage error: options contradict each other, or a value is not valid for its option.
    pub fn check(&self) -> Result<(), Error> {
        self.input.check()?;
        self.check_of_format()?;
        self.check_target()?;
        self.check_fields()?;
        self.check_expressions()?;
        self.check_nulls()?;
        self.check_rejects()?;
        self.check_once()?;
        refuse_beside_nodes(self)
    }

    /// Checks for options that the format does not have. PGCOPY describes itself.
    fn check_of_format(&self) -> Result<(), Error> {
        let (input, target) = (&self.input, &self.target);
        let csv = input.dialect().is_some_and(|dialect| dialect.format == Format::Csv);
        let of_csv = [
            ("`force-null`", target.force_null != ColumnSet::None),
            ("`force-not-null`", target.force_not_null != ColumnSet::None),
        ];
        if let (Some(option), false) = (first(&of_csv), csv) {
            return Err(Error::usage(text!("{} can be used only with `format` csv", option)));
        }
        let not_of_binary = [
            ("`header`", input.header != Header::None),
            ("`encoding`", input.encoding.is_some()),
            ("`skip-lines`", input.frame.skip_lines > 0),
            ("`skip-footer`", input.frame.skip_footer > 0),
            ("`comment`", input.frame.comment.is_some()),
            ("`set`", !target.fields.set.is_empty()),
            ("`null`", !target.fields.nulls.is_empty()),
        ];
        match first(&not_of_binary) {
            Some(option) if input.format == FileFormat::Binary => {
                Err(Error::usage(text!("{} cannot be used with `format` binary", option)))
            }
            _ => Ok(()),
        }
    }

    fn check_target(&self) -> Result<(), Error> {
        let (target, once) = (&self.target, self.once.as_ref());
        if target.logged_landing && target.method != Method::Staged {
            return Err(Error::usage("`landing` can be used only with `method` staged"));
        }
        let lease = once.and_then(|once| once.share).map(|share| share.lease);
        let none = [
            ("`lanes`", target.lanes == Some(0)),
            ("`commit-every`", once.is_some_and(|once| once.commit_every == Some(0))),
            ("`lease`", lease.is_some_and(|lease| lease.is_zero())),
        ];
        if let Some(option) = first(&none) {
            return Err(Error::usage(text!("{} cannot be 0", option)));
        }
        let locking: [(Text, bool); 5] = [
            ("`truncate`".into(), target.truncate && target.method != Method::Lanes),
            ("`indexes` rebuild".into(), target.indexes == Indexes::Rebuild),
            ("`triggers` off".into(), target.triggers == Triggers::Off),
            ("`foreign-keys` revalidate".into(), target.foreign_keys == ForeignKeys::Revalidate),
            (text!("`method` {}", target.method), target.method.exclusive()),
        ];
        match locking.into_iter().find(|(_, locks)| target.no_lock_out && *locks) {
            Some((option, _)) => {
                Err(Error::usage(text!("`no-lock-out` forbids {}: it locks the table", option)))
            }
            None => Ok(()),
        }
    }

    /// Checks the columns of the fields, which are given by position or by the header.
    fn check_fields(&self) -> Result<(), Error> {
        let fields = &self.target.fields;
        let columns = self.target.columns.as_deref().unwrap_or_default();
        let left_out = columns.iter().any(Option::is_none);
        if left_out && columns.iter().all(Option::is_none) {
            return Err(Error::usage("`columns` leaves every field out"));
        }
        if left_out && self.input.format == FileFormat::Binary {
            return Err(Error::usage("`columns` cannot leave out fields of a binary file")
                .with_hint("name the columns of all its fields"));
        }
        if let Some(name) = twice(fields.map.iter().map(|(name, _)| name)) {
            return Err(Error::usage(text!("`map` names \"{}\" twice", name)));
        }
        let by_name = [
            ("`map`", !fields.map.is_empty()),
            ("`unknown-columns`", fields.ignore_unknown),
            ("`missing-columns`", fields.all_columns),
        ];
        let Some(option) = first(&by_name) else { return Ok(()) };
        if self.target.columns.is_some() {
            let why = text!("{} uses the names in the header, and `columns` positions", option);
            return Err(Error::usage(why).with_hint("use one of them"));
        }
        if self.input.header != Header::Names {
            return Err(Error::usage(text!("{} needs `header`", option)));
        }
        match first(&by_name[1..]) {
            Some(option) if self.target.create != Create::No => {
                Err(Error::usage(text!("{} cannot be used with `create`", option)))
            }
            _ => Ok(()),
        }
    }

    /// Expressions need rows in the text form, in the landing table of the method staged.
    fn check_expressions(&self) -> Result<(), Error> {
        let expressions = &self.target.fields.expressions;
        if let Some(column) = twice(expressions.iter().map(|expression| &expression.column)) {
            return Err(Error::usage(text!("`expr` names column \"{}\" twice", column)));
        }
        let wrong = |message: Text, hint: &'static str| Err(Error::usage(message).with_hint(hint));
        match self.target.method {
            _ if expressions.is_empty() => Ok(()),
            _ if self.input.format == FileFormat::Binary => wrong(
                "`expr` cannot be used with `format` binary".into(),
                "? is the text of a field",
            ),
            _ if self.target.create != Create::No => wrong(
                "`expr` cannot be used with `create`, which infers types from the file".into(),
                "create the table first",
            ),
            Method::Auto | Method::Staged => Ok(()),
            method => wrong(
                text!("`expr` needs the method staged, and `method` names {}", method),
                "leave `method` out",
            ),
        }
    }

    /// Checks the further spellings of NULL.
    fn check_nulls(&self) -> Result<(), Error> {
        for (_, spelling) in &self.target.fields.nulls {
            let shown = format!("{spelling:?}");
            if spelling.contains(['\r', '\n']) {
                let message = text!("`null` {}: a spelling of NULL has no line end", shown);
                return Err(Error::usage(message));
            }
            let begins = |comment| spelling.as_bytes().first() == Some(&comment);
            if self.input.frame.comment.is_some_and(begins) {
                return Err(Error::usage(text!("`comment` begins a value by `null` {}", shown)));
            }
        }
        Ok(())
    }

    fn check_rejects(&self) -> Result<(), Error> {
        let Some(rejects) = &self.rejects else { return Ok(()) };
        if rejects.existing == Existing::Append && self.input.format == FileFormat::Binary {
            let hint = "`reject-file` with {time} or {id} in it makes a new file for each run";
            return Err(Error::usage("rejects of `format` binary cannot be appended to a file")
                .with_hint(hint));
        }
        for file in [rejects.file.clone(), side_path(&rejects.file)] {
            // A device or a pipe could not be made durable, and an empty one would be removed.
            if file.metadata().is_ok_and(|facts| !facts.is_file()) {
                let name = file.display();
                return Err(Error::usage(format!(
                    "{name} is not a regular file, which rejects need"
                ))
                .with_hint("if nobody needs the rejects, remove their files after the load"));
            }
            self.input.check_output(&file)?;
        }
        Ok(())
    }

    /// Checks that the reject files can be created. A load must do this before it changes the
    /// table: later, it might have to recreate indexes for hours before it can report the error.
    /// With `once`, the files are reserved when the load is recorded.
    pub(crate) fn check_reject_files(&self) -> Result<(), Error> {
        match (&self.rejects, &self.once) {
            (Some(rejects), None) => check_free(&rejects.file, rejects.existing),
            _ => Ok(()),
        }
    }
}

/// The first of these options that is given.
fn first(options: &[(&'static str, bool)]) -> Option<Text> {
    options.iter().find(|(_, given)| *given).map(|(option, _)| Text::from(*option))
}

/// The first name that occurs a second time.
fn twice<'n>(mut names: impl Iterator<Item = &'n String>) -> Option<&'n String> {
    let mut seen = HashSet::new();
    names.find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::options::{Expression, Limit, OnceOptions, Route};
    use crate::options::{RejectOptions, ShareOptions, TargetOptions};
    use crate::{FileSource, Loader};
    use pgsluice_core::scan::Dialect;
    use std::time::Duration;

    /// The input of [`plain`].
    const INPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

    /// The options of a CSV file that can be used together.
    fn plain() -> Options {
        let source: Arc<dyn Source> = Arc::new(FileSource::new(INPUT));
        let input = InputOptions { sources: vec![source], ..InputOptions::default() };
        let target = TargetOptions::new("host=/nowhere", "t");
        Options { input, target, rejects: None, once: None }
    }

    fn binary(o: &mut Options) -> &mut Options {
        o.input.format = FileFormat::Binary;
        o
    }

    fn in_text(o: &mut Options) -> &mut Options {
        o.input.format = FileFormat::Delimited(Dialect::text());
        o
    }

    /// The header names the columns of a new table.
    fn created(o: &mut Options) -> &mut Options {
        (o.input.header, o.target.create) = (Header::Names, Create::Typed);
        o
    }

    fn mapped(o: &mut Options) -> &mut Options {
        (o.input.header, o.target.fields.map) = (Header::Names, vec![("a".into(), None)]);
        o
    }

    fn expression() -> Expression {
        Expression::new("a", "trim(?)").unwrap()
    }

    fn computed(o: &mut Options) -> &mut Options {
        o.target.fields.expressions = vec![expression()];
        o
    }

    fn in_use(o: &mut Options) -> &mut Options {
        o.target.no_lock_out = true;
        o
    }

    fn once(o: &mut Options) -> &mut OnceOptions {
        o.once.get_or_insert_with(Default::default)
    }

    fn rejects(file: &str) -> Option<RejectOptions> {
        Some(RejectOptions { file: file.into(), existing: Existing::Append, limit: Limit::None })
    }

    /// What is changed in [`plain`], and what the error says.
    type Refused = (fn(&mut Options), &'static str);

    const REFUSED: [Refused; 44] = [
        (|o| o.input.frame.skip_footer = MOST_FOOTER + 1, "skip-footer is at most 1000"),
        (
            |o| o.input.format = FileFormat::Delimited(Dialect { quote: b',', ..Dialect::csv() }),
            "delimiter and quote must be different",
        ),
        (|o| o.input.frame.comment = Some(b','), "comment cannot be the delimiter"),
        (|o| in_text(o).input.frame.comment = Some(b'\\'), "comment cannot be a backslash"),
        (
            |o| in_text(o).target.force_null = ColumnSet::All,
            "force-null can be used only with format csv",
        ),
        (
            |o| binary(o).target.force_not_null = ColumnSet::All,
            "force-not-null can be used only with format csv",
        ),
        (|o| binary(o).input.header = Header::Names, "header cannot be used with format binary"),
        (
            |o| binary(o).input.encoding = Some("LATIN1".into()),
            "encoding cannot be used with format binary",
        ),
        (|o| binary(o).input.frame.skip_lines = 1, "skip-lines cannot be used with format binary"),
        (
            |o| binary(o).input.frame.skip_footer = 1,
            "skip-footer cannot be used with format binary",
        ),
        (
            |o| binary(o).input.frame.comment = Some(b'#'),
            "comment cannot be used with format binary",
        ),
        (
            |o| binary(o).target.fields.set = vec![("a".into(), Vec::new())],
            "set cannot be used with format binary",
        ),
        (
            |o| binary(o).target.fields.nulls = vec![(None, "-".into())],
            "null cannot be used with format binary",
        ),
        (|o| o.target.logged_landing = true, "landing can be used only with method staged"),
        (|o| o.target.lanes = Some(0), "lanes cannot be 0"),
        (|o| once(o).commit_every = Some(0), "commit-every cannot be 0"),
        (|o| once(o).share = Some(ShareOptions::new(Duration::ZERO)), "lease cannot be 0"),
        (|o| in_use(o).target.truncate = true, "no-lock-out forbids truncate"),
        (|o| in_use(o).target.indexes = Indexes::Rebuild, "no-lock-out forbids indexes rebuild"),
        (|o| in_use(o).target.triggers = Triggers::Off, "no-lock-out forbids triggers off"),
        (
            |o| in_use(o).target.foreign_keys = ForeignKeys::Revalidate,
            "no-lock-out forbids foreign-keys revalidate",
        ),
        (
            |o| in_use(o).target.method = Method::CopyFresh,
            "no-lock-out forbids method copy-fresh: it locks the table",
        ),
        (|o| o.target.columns = Some(vec![None, None]), "columns leaves every field out"),
        (
            |o| binary(o).target.columns = Some(vec![Some("a".into()), None]),
            "columns cannot leave out fields of a binary file",
        ),
        (|o| mapped(o).target.fields.map.push(("a".into(), None)), "map names \"a\" twice"),
        (
            |o| mapped(o).target.columns = Some(vec![Some("a".into())]),
            "map uses the names in the header, and columns positions",
        ),
        (|o| mapped(o).input.header = Header::Ignore, "map needs header"),
        (|o| o.target.fields.ignore_unknown = true, "unknown-columns needs header"),
        (|o| o.target.fields.all_columns = true, "missing-columns needs header"),
        (
            |o| created(o).target.fields.ignore_unknown = true,
            "unknown-columns cannot be used with create",
        ),
        (
            |o| created(o).target.fields.all_columns = true,
            "missing-columns cannot be used with create",
        ),
        (
            |o| computed(o).target.fields.expressions.push(expression()),
            "expr names column \"a\" twice",
        ),
        (
            |o| computed(o).input.format = FileFormat::Binary,
            "expr cannot be used with format binary",
        ),
        (|o| computed(o).target.create = Create::Typed, "expr cannot be used with create"),
        (
            |o| computed(o).target.method = Method::CopyCsv,
            "expr needs the method staged, and method names copy-csv",
        ),
        (
            |o| o.target.fields.nulls = vec![(None, "-\n".into())],
            "null \"-\\n\": a spelling of NULL has no line end",
        ),
        (
            |o| {
                o.input.frame.comment = Some(b'#');
                o.target.fields.nulls = vec![(None, "#N/A".into())];
            },
            "comment begins a value by null \"#N/A\"",
        ),
        (
            |o| binary(o).rejects = rejects("none"),
            "rejects of format binary cannot be appended to a file",
        ),
        (|o| o.rejects = rejects(INPUT), "is an input file and cannot be written to"),
        (|o| o.rejects = rejects("/dev/null"), "/dev/null is not a regular file"),
        (
            |o| (o.once, o.target.truncate) = (Some(OnceOptions::default()), true),
            "truncate cannot be used with once",
        ),
        (|o| o.target.atomic = true, "atomic is for route nodes"),
        (
            |o| o.target.nodes = vec![("n".into(), "host=/nowhere".into())],
            "node is for route nodes",
        ),
        (
            |o| (o.target.route, o.target.filter) = (Route::Nodes, Some("true".into())),
            "route nodes does not support where",
        ),
    ];

    #[test]
    fn options_that_contradict_each_other_are_refused_at_every_door() {
        assert_eq!(plain().check(), Ok(()));
        for (change, says) in REFUSED {
            let mut options = plain();
            change(&mut options);
            let error = options.check().expect_err(says);
            assert_eq!(error.kind(), Kind::Usage, "{says}: {error}");
            assert!(error.message().contains(says), "{says}: {error}");
            let loader = Loader::from(options);
            let doors = [
                loader.run().err(),
                loader.plan().err(),
                loader.check(Box::new(|_| ())).err(),
                loader.share().err(),
            ];
            assert!(doors.iter().all(|door| door.as_ref() == Some(&error)), "{says}: {doors:?}");
        }
    }

    /// Before it has a connection, a load can have changed nothing.
    #[test]
    fn reject_files_that_cannot_be_created_are_found_before_there_is_a_connection() {
        let dir = std::env::temp_dir().join(format!("pgsluice-free-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (input, taken) = (dir.join("t.csv"), dir.join("taken"));
        std::fs::write(&input, "1,x\n").unwrap();
        std::fs::write(side_path(&taken), "kept").unwrap();
        let failures = |file: &Path, existing| {
            let mut options = plain();
            options.input.sources = vec![Arc::new(FileSource::new(&input))];
            let limit = Limit::None;
            options.rejects = Some(RejectOptions { file: file.into(), existing, limit });
            let loader = Loader::from(options);
            [loader.run().err(), loader.plan().err()].map(Option::unwrap)
        };
        for (file, existing, why) in [
            (&taken, Existing::Error, "File exists"),
            (&dir.join("none/new"), Existing::Error, "no such file"),
            (&dir.join("none/new"), Existing::Append, "no such file"),
            (&input.join("new"), Existing::Replace, "Not a directory"),
        ] {
            for error in failures(file, existing) {
                let says = format!("cannot create the reject file {}: {why}", file.display());
                assert_eq!(error.message().plain(), says);
            }
        }
        for (file, existing) in [(&taken, Existing::Append), (&dir.join("new"), Existing::Error)] {
            let connection = |error: Error| error.kind() == Kind::Connection;
            assert!(failures(file, existing).into_iter().all(connection), "{}", file.display());
            assert!(!file.exists());
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
