//! The library's calls for clusters: parts are taken and loaded by tasks, and the driver publishes.

use super::{whole, worlds_files};
use crate::once::lines;
use pgsluice_engine::options::{OnceOptions, ShareOptions};
use pgsluice_engine::{FileSource, Loader, TargetOptions};

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
    // The task is gone with parts in its hands.
    drop(task);
    let free = "SELECT count(*) FILTER (WHERE load IS NULL) || ' ' || \
        (SELECT count(*) FROM pgsluice_loads.leases) FROM pgsluice_loads.parts";
    let left = world.sql("SELECT count(*) FROM pgsluice_loads.parts");
    assert_eq!(world.sql(free), format!("{left} 0"));
    // What is not loaded is not published.
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
