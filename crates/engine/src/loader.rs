//! The entry point of this crate: a load, built step by step.

use crate::check::{check, Checked};
use crate::error::Error;
use crate::event::Event;
use crate::inspect::{plan_only, Foretold};
use crate::load::{load, Job};
use crate::options::{InputOptions, OnceOptions, Options, RejectOptions, TargetOptions};
use crate::reject::Listener;
use crate::report::Summary;
use crate::share::{self, Share};
use crate::source::Source;
use crate::watch::Watch;
use std::sync::Arc;

/// A load of sources into a table. The documentation of the crate has an example.
pub struct Loader<'e> {
    options: Options,
    watch: Watch,
    on_event: Box<dyn Fn(Event<'_>) + 'e>,
}

impl<'e> Loader<'e> {
    /// A load into this table, of CSV files with all of COPY's defaults.
    pub fn new(target: TargetOptions) -> Loader<'e> {
        Options { input: InputOptions::default(), target, rejects: None, once: None }.into()
    }

    /// Sets how the sources are read. Sources in `input` come before those added earlier.
    #[must_use]
    pub fn options(mut self, mut input: InputOptions) -> Loader<'e> {
        input.sources.append(&mut self.options.input.sources);
        self.options.input = input;
        self
    }

    /// Writes rejected records to a file and continues. Without this, the first one ends the load.
    #[must_use]
    pub fn rejects(mut self, rejects: RejectOptions) -> Loader<'e> {
        self.options.rejects = Some(rejects);
        self
    }

    /// Records the load in the database, and loads each file only once.
    #[must_use]
    pub fn once(mut self, once: OnceOptions) -> Loader<'e> {
        self.options.once = Some(once);
        self
    }

    /// Adds a source. Sources are loaded in their order, all of them or none.
    #[must_use]
    pub fn input(mut self, source: impl Source + 'static) -> Loader<'e> {
        self.options.input.sources.push(Arc::new(source));
        self
    }

    /// Calls `on_event` at each event, in the thread that runs the load.
    #[must_use]
    pub fn on_event(mut self, on_event: impl Fn(Event<'_>) + 'e) -> Loader<'e> {
        self.on_event = Box::new(on_event);
        self
    }

    /// A handle with which other threads can follow and stop the load.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Runs the load.
    ///
    /// # Errors
    ///
    /// Nothing has changed, unless [`Error::changed`] says what has.
    pub fn run(&self) -> Result<Summary, Error> {
        let Loader { options, watch, on_event } = self;
        options.check()?;
        watch.progress.bytes.set(0);
        watch.progress.records.set(0);
        let job = Job { options, watch, on_event, recording: None };
        match options.once.as_ref().is_some_and(|once| once.share.is_some()) {
            true => share::run(&job),
            false => load(&job),
        }
    }

    /// This machine's part of a load that several machines share, each with the same options. The
    /// tasks of a cluster take parts and load them. The driver then publishes the whole.
    /// [`Loader::run`] does all three.
    ///
    /// ```no_run
    /// use pgsluice_engine::options::{OnceOptions, ShareOptions};
    /// use pgsluice_engine::{FileSource, Loader, TargetOptions};
    ///
    /// let once = OnceOptions { share: Some(ShareOptions::default()), ..OnceOptions::default() };
    /// let loader = Loader::new(TargetOptions::new("postgresql:///test", "public.votes"))
    ///     .once(once)
    ///     .input(FileSource::new("/shared/votes.csv"));
    ///
    /// // In each task:
    /// let mut share = loader.share()?;
    /// while let Some(parts) = share.take()? {
    ///     share.load(parts)?;
    /// }
    ///
    /// // In the driver, when all tasks have ended:
    /// let summary = loader.share()?.publish()?;
    /// println!("{}", summary.notes.last().map_or("", |note| note.plain()));
    /// # Ok::<(), pgsluice_engine::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The options do not say that the load is shared, or other options do not fit a shared load.
    pub fn share(&self) -> Result<Share<'_>, Error> {
        let Loader { options, watch, on_event } = self;
        options.check()?;
        match options.once.as_ref().is_some_and(|once| once.share.is_some()) {
            true => Ok(Share::new(options, watch, on_event)),
            false => Err(Error::usage("the options do not set `share`")),
        }
    }

    /// Returns what [`Loader::run`] would do and why. Changes nothing.
    ///
    /// # Errors
    ///
    /// Those of a load, as far as they occur before the first row.
    pub fn plan(&self) -> Result<Foretold, Error> {
        self.options.check()?;
        self.options.check_reject_files()?;
        plan_only(&self.options)
    }

    /// Parses and converts every value and writes nothing. Each bad record is passed to `found`, in
    /// the order of the sources.
    ///
    /// # Errors
    ///
    /// The check is not possible, or a file cannot be read to its end.
    pub fn check(&self, found: Listener) -> Result<Checked, Error> {
        self.options.check()?;
        check(&self.options, &self.watch, found)
    }
}

impl From<Options> for Loader<'_> {
    fn from(options: Options) -> Self {
        Loader { options, watch: Watch::default(), on_event: Box::new(|_| ()) }
    }
}
