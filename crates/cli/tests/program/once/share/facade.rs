//! The library's interface for clusters: tasks take parts and load them, and the driver publishes
//! the load.

use super::{ended, machine, whole, worlds_files};
use crate::common::wait_until;
use crate::once::lines;
use crate::once::read_in_parts::FileInParts;
use pgsluice_engine::options::{OnceOptions, ShareOptions};
use pgsluice_engine::{FileSource, Loader, TargetOptions};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Tasks take parts of a file and load them. The parts of a task that is dropped are free for
/// others, and the load can be published only after all parts are loaded.
#[test]
fn tasks_load_and_the_driver_publishes() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 100_000))], false);
    let url = world.server.url("postgres");
    let share = Some(ShareOptions::default());
    let once = OnceOptions { share, commit_every: Some(512 << 10), ..OnceOptions::default() };
    let loader = || {
        let loader = Loader::new(TargetOptions::new(&url, "t")).once(once.clone());
        loader.input(FileSource::new(&paths[0]))
    };
    let (first, second, driver) = (loader(), loader(), loader());
    let mut task = first.share().unwrap();
    let parts = task.take().unwrap().expect("there are parts");
    assert!(parts.bytes() > 512 << 10, "{parts:?}");
    task.load(parts).unwrap();
    assert!(task.take().unwrap().is_some());
    // The task ends while it has parts.
    drop(task);
    let free = "SELECT count(*) FILTER (WHERE load IS NULL) || ' ' || \
        (SELECT count(*) FROM pgsluice_loads.leases) FROM pgsluice_loads.parts";
    let left = world.sql("SELECT count(*) FROM pgsluice_loads.parts");
    assert_eq!(world.sql(free), format!("{left} 0"));
    // A load with parts that are not loaded is not published.
    let error = driver.share().unwrap().publish().unwrap_err();
    assert!(error.to_string().contains("parts are left to be loaded"), "{error}");
    assert_eq!(world.sql(free), format!("{left} 0"));
    let mut task = second.share().unwrap();
    while let Some(parts) = task.take().unwrap() {
        task.load(parts).unwrap();
    }
    let summary = task.publish().unwrap();
    assert_eq!(summary.share.map(|share| (share.last, share.parts_lost)), Some((true, 0)));
    assert!(summary.loaded > 0 && summary.loaded < 100_000, "{summary:?}");
    let summary = driver.share().unwrap().publish().unwrap();
    assert_eq!((summary.loaded, summary.files_known), (0, 1));
    whole(&mut world, "published");
    let alone = Loader::new(TargetOptions::new(&url, "t")).input(FileSource::new(&paths[0]));
    assert!(alone.share().is_err());
}

/// A task drops parts that it has taken, and goes on. When no others are left, it gets them again
/// instead of waiting for itself. Until they are loaded, nothing is published.
#[test]
fn parts_that_are_dropped_are_taken_again() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 100_000))], false);
    let share = Some(ShareOptions::default());
    let once = OnceOptions { share, commit_every: Some(512 << 10), ..OnceOptions::default() };
    let url = world.server.url("postgres");
    let loader = |path: &str| {
        let loader = Loader::new(TargetOptions::new(&url, "t")).once(once.clone());
        let loader = loader.input(FileSource::new(path));
        // A task that waits for itself fails after this time.
        let watch = loader.watch();
        spawn(move || {
            sleep(Duration::from_secs(120));
            watch.cancel();
        });
        loader
    };
    let all = loader(&paths[0]);
    let mut task = all.share().unwrap();
    drop(task.take().unwrap().expect("there are parts"));
    while let Some(parts) = task.take().unwrap() {
        task.load(parts).unwrap();
    }
    assert_eq!(task.publish().unwrap().loaded, 100_000);
    whole(&mut world, "with the parts that were dropped");
    let one = loader(&world.file("b.csv", b"100000,x\n"));
    let mut task = one.share().unwrap();
    assert!(task.take().unwrap().is_some());
    let error = task.publish().unwrap_err();
    assert!(error.to_string().contains("1 parts are left to be loaded"), "{error}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "100000");
}

/// A part of a file fails on one machine. While the machine that has begun the file is at work, a
/// machine with a copy waits for it, and joins only once. Then it continues the file.
#[test]
fn a_copy_waits_after_a_part_has_failed() {
    let bytes = lines(0, 100_000);
    let (mut world, paths) = worlds_files(&[("a.csv", bytes.clone())], false);
    world.sql("ALTER TABLE t ADD CONSTRAINT few CHECK (a < 99999)");
    let share = Some(ShareOptions::default());
    let once = OnceOptions { share, commit_every: Some(512 << 10), ..OnceOptions::default() };
    let loader = Loader::new(TargetOptions::new(&world.server.url("postgres"), "t")).once(once);
    let loader = loader.input(FileSource::new(&paths[0]));
    let mut task = loader.share().unwrap();
    let parts = task.take().unwrap().expect("there are parts");
    task.load(parts).unwrap();
    let all =
        ["--table", "t", "--once", "--share", "--commit-every", "512kB", "--stray-quotes=copy"];
    let said = world.load(&[&[paths[0].as_str()], &all[..]].concat()).unwrap_err();
    assert!(said.contains("few"), "{said}");
    let copy = world.file("copy.csv", &bytes);
    let machine = machine(&world, "copy.json", &[&[copy.as_str()], &all[4..]].concat());
    let loads = "SELECT count(*) FROM pgsluice_loads.loads";
    wait_until(
        || "the machine with the copy does not join".into(),
        || world.sql(loads) >= "3".into(),
    );
    sleep(Duration::from_secs(2));
    assert_eq!(world.sql(loads), "3");
    world.sql("ALTER TABLE t DROP CONSTRAINT few");
    drop(task);
    assert!(ended(&world, "copy.json", machine)["loaded"].as_u64().unwrap() > 0);
    whole(&mut world, "continued");
}

/// Comparing a known file may take longer than a lease. The machine that joins keeps its lease
/// meanwhile, and loads only the rest.
#[test]
fn a_file_that_is_read_slowly_is_compared() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 60_000))], false);
    let gate = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS \
          $$ BEGIN RAISE 'not yet'; END $$; \
        CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW WHEN (new.a = 59999) EXECUTE FUNCTION f()";
    world.sql(gate);
    let all =
        [&paths[0], "--table", "t", "--once", "--commit-every", "64kB", "--stray-quotes=copy"];
    let said = world.load(&all).unwrap_err();
    assert!(said.contains("not yet"), "{said}");
    world.sql("DROP TRIGGER f ON t");
    let before: u64 = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(before > 30_000, "{before}");
    let share = Some(ShareOptions::new(Duration::from_secs(2)));
    let once = OnceOptions { share, ..OnceOptions::default() };
    let loader = Loader::new(TargetOptions::new(&world.server.url("postgres"), "t")).once(once);
    let loader = loader.input(FileInParts::new(&paths[0], || sleep(Duration::from_millis(200))));
    let mut task = loader.share().unwrap();
    while let Some(parts) = task.take().unwrap() {
        task.load(parts).unwrap();
    }
    assert_eq!(task.publish().unwrap().loaded, 60_000 - before);
    whole(&mut world, "compared slowly");
}
