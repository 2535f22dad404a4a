//! A load that another thread stops ends soon, whatever it does at that moment.

use super::read_in_parts::FileInParts;
use super::{held_back, lines, world};
use pgsluice_engine::options::OnceOptions;
use pgsluice_engine::{Event, FileSource, Kind, Loader, StreamSource, TargetOptions, Watch};
use std::fs;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// The read that stops the load.
const STOPPING: usize = 5;

/// A load is stopped while it compares a file with the record. It reads no more of the file.
#[test]
fn a_load_that_compares_a_file_ends() {
    let world = world();
    let path = world.file("a.csv", &lines(0, 60_000));
    world.load(&[&path, "--table", "t", "--once", "--stray-quotes", "copy"]).unwrap();
    // The modification time differs, so the bytes are compared.
    fs::write(&path, lines(0, 60_000)).unwrap();
    let (reads, watch) = (Arc::<AtomicUsize>::default(), Arc::<OnceLock<Watch>>::default());
    let (count, stop) = (reads.clone(), watch.clone());
    let before = move || {
        if count.fetch_add(1, Ordering::SeqCst) + 1 == STOPPING {
            stop.get().unwrap().cancel();
        }
    };
    let loader = Loader::new(TargetOptions::new(&world.server.url("postgres"), "t"))
        .once(OnceOptions::default())
        .input(FileInParts::new(&path, before));
    assert!(watch.set(loader.watch()).is_ok());
    let error = loader.run().unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled, "{error}");
    assert_eq!(reads.load(Ordering::SeqCst), STOPPING);
}

/// A load is stopped just before it waits for another load of the same files. The server ignores a
/// request to cancel that arrives between two statements, so the load repeats it.
#[test]
fn a_load_that_waits_for_another_one_ends() {
    let mut world = world();
    let (path, first) = held_back(&mut world);
    let url = world.server.url("postgres");
    let (done, ended) = channel();
    spawn(move || {
        let loader = Loader::new(TargetOptions::new(&url, "t")).once(OnceOptions::default());
        let watch = loader.watch();
        let stop = move |event: Event<'_>| {
            if matches!(event, Event::Waiting) {
                watch.cancel();
            }
        };
        let loaded = loader.input(FileSource::new(path)).on_event(stop).run();
        let _ = done.send(loaded.map(|summary| summary.loaded).map_err(|e| e.kind()));
    });
    let loaded = ended.recv_timeout(Duration::from_secs(180));
    world.sql("COMMIT");
    assert!(first.wait_with_output().unwrap().status.success());
    assert_eq!(loaded, Ok(Err(Kind::Cancelled)));
}

/// A stream without bytes, whose end comes only when the sender is dropped.
struct Silent(Receiver<()>);

impl Read for Silent {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(0)
    }
}

/// A load is stopped while it waits for the first bytes of a source.
#[test]
fn a_load_that_opens_a_source_ends() {
    let (end, silent) = channel();
    let ((to, from), (done, ended)) = (channel(), channel());
    spawn(move || {
        // It opens the source before it connects.
        let loader = Loader::new(TargetOptions::new("postgresql:///none", "t"))
            .input(StreamSource::new("pipe", Silent(silent)));
        to.send(loader.watch()).unwrap();
        let _ = done.send(loader.run().map(|summary| summary.loaded).map_err(|e| e.kind()));
    });
    let watch: Watch = from.recv().unwrap();
    sleep(Duration::from_millis(200));
    watch.cancel();
    let loaded = ended.recv_timeout(Duration::from_secs(180));
    drop(end);
    assert_eq!(loaded, Ok(Err(Kind::Cancelled)));
}
