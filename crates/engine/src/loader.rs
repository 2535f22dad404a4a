//! The door of this crate: a load, built step by step.

use crate::check::{check, Checked};
use crate::error::Error;
use crate::event::Event;
use crate::inspect::{plan_only, Foretold};
use crate::load::{load, Job};
use crate::options::{InputOptions, Options, RejectOptions, TargetOptions};
use crate::reject::Listener;
use crate::report::Summary;
use crate::source::Source;
use crate::watch::Watch;
use std::sync::Arc;

/// A load of sources into a table: see the example at the crate.
pub struct Loader<'e> {
    options: Options,
    watch: Watch,
    on_event: Box<dyn Fn(Event<'_>) + 'e>,
}

impl<'e> Loader<'e> {
    /// A load into this table, of CSV with all of COPY's defaults.
    pub fn new(target: TargetOptions) -> Loader<'e> {
        Options { input: InputOptions::default(), target, rejects: None, once: None }.into()
    }

    /// How the sources are read. Sources that these options have come before others.
    #[must_use]
    pub fn options(mut self, mut input: InputOptions) -> Loader<'e> {
        input.sources.append(&mut self.options.input.sources);
        self.options.input = input;
        self
    }

    /// Keeps rejected records in a file, and goes on. Without it the first one ends the load.
    #[must_use]
    pub fn rejects(mut self, rejects: RejectOptions) -> Loader<'e> {
        self.options.rejects = Some(rejects);
        self
    }

    /// Adds a source. Sources are loaded in their order, all of them or none.
    #[must_use]
    pub fn input(mut self, source: impl Source + 'static) -> Loader<'e> {
        self.options.input.sources.push(Arc::new(source));
        self
    }

    /// Calls this in the thread that runs the load, at each event.
    #[must_use]
    pub fn on_event(mut self, on_event: impl Fn(Event<'_>) + 'e) -> Loader<'e> {
        self.on_event = Box::new(on_event);
        self
    }

    /// A handle to follow and to stop the load from other threads.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Loads.
    ///
    /// # Errors
    ///
    /// Nothing has changed, or [`Error::changed`] says what has.
    pub fn run(&self) -> Result<Summary, Error> {
        let Loader { options, watch, on_event } = self;
        load(&Job { options, watch, on_event, recording: None })
    }

    /// Says what [`Loader::run`] would do and why, and does nothing.
    ///
    /// # Errors
    ///
    /// As a load, as far as it shows before the first row.
    pub fn plan(&self) -> Result<Foretold, Error> {
        plan_only(&self.options)
    }

    /// Parses and converts every value and writes nothing. Each bad record is given to `found`,
    /// in the order of the sources.
    ///
    /// # Errors
    ///
    /// The check could not be made, or a file cannot be read on.
    pub fn check(&self, found: Listener) -> Result<Checked, Error> {
        check(&self.options, &self.watch, found)
    }
}

impl From<Options> for Loader<'_> {
    fn from(options: Options) -> Self {
        Loader { options, watch: Watch::default(), on_event: Box::new(|_| ()) }
    }
}
