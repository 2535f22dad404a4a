//! Loads with `--commit-every` are killed at random moments, in several ways. No row is lost or
//! loaded twice, and few rows have to be sent again.

use super::{exact, lines, start};
use crate::common::{each_major, signal, Signal, World};
use std::ops::ControlFlow;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

const ROWS: usize = 300_000;

/// The most bytes that a lane may have sent beyond the size at which it commits: a chunk.
const CHUNK: u64 = 512 << 10;

/// A simple generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The files of the loads, one of them compressed, and how often loads were killed.
struct Kills {
    world: World,
    paths: Vec<String>,
    /// of all files, decompressed
    bytes: usize,
    random: Random,
    /// milliseconds within which a load is killed: longer if nothing more is committed by then,
    /// shorter if loads end before
    within: u64,
    done: usize,
    /// after these, some rows were committed, and some were not
    in_the_middle: usize,
    /// records that were loaded again, over all kills where that can be counted
    again: u64,
}

impl Kills {
    fn new() -> Kills {
        let mut world = World::new(&each_major().pop().unwrap());
        world.sql("CREATE TABLE t (a int, b text, c serial); CREATE TABLE stock (a int, b text)");
        let files: Vec<Vec<u8>> = (0..3).map(|i| lines(i * ROWS / 3, ROWS / 3)).collect();
        let mut paths = Vec::new();
        for (i, bytes) in files.iter().enumerate() {
            world.stock("COPY stock FROM STDIN (FORMAT csv)", bytes).unwrap();
            paths.push(world.file(&format!("{i}.csv"), bytes));
        }
        assert!(Command::new("gzip").arg(&paths[1]).status().unwrap().success());
        paths[1].push_str(".gz");
        let bytes = files.iter().map(Vec::len).sum();
        let random = Random(18);
        Kills { world, paths, bytes, random, within: 500, done: 0, in_the_middle: 0, again: 0 }
    }

    /// The number of rows that were ever inserted, including those that were rolled back, and of
    /// rows in the table.
    fn rows(&mut self) -> (u64, u64) {
        let inserted = self.world.sql("SELECT pg_stat_get_tuples_inserted('t'::regclass)");
        let rows = self.world.sql("SELECT count(*) FROM t");
        (inserted.parse().unwrap(), rows.parse().unwrap())
    }

    /// Starts a load and kills it, unless it ends before that.
    fn one(&mut self) -> ControlFlow<()> {
        let (inserted, rows) = self.rows();
        let (lanes, size) = (1 + self.random.below(3), (64 << 10) << self.random.below(5));
        let (count, every) = (lanes.to_string(), format!("{}kB", size >> 10));
        let mut all: Vec<&str> = self.paths.iter().map(String::as_str).collect();
        all.extend(["--columns", "a,b", "--commit-every", &every]);
        match lanes {
            1 => all.extend(["--method", ["auto", "insert-batch"][self.done % 2]]),
            _ => all.extend(["--method", "lanes", "--lanes", &count]),
        }
        let mut child = start(&self.world, &all);
        sleep(Duration::from_millis(20 + self.random.below(self.within)));
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            assert!(status.success(), "{output:?}");
            self.within -= self.within / 10;
            return ControlFlow::Break(());
        }
        self.done += 1;
        let counted = self.kill(child);
        if self.world.sql("SELECT to_regclass('pgsluice_loads.pieces') IS NOT NULL") == "f" {
            self.within += self.within / 10;
            return ControlFlow::Continue(());
        }
        // A commit of the killed load may still be on its way.
        self.world.wait_until_alone();
        let what = format!("kill {}", self.done);
        exact(&mut self.world, &what);
        let after = self.rows();
        self.in_the_middle += usize::from(after.1 > 0 && after.1 < ROWS as u64);
        // On a slow machine, each load must get further than the one before.
        if after.1 == rows {
            self.within += self.within / 10;
        }
        if counted {
            let again = (after.0 - inserted) - (after.1 - rows);
            let bytes = again * self.bytes as u64 / ROWS as u64;
            // The first lines are shorter than the average, by up to a tenth.
            let most = lanes * (size + CHUNK) * 11 / 10;
            assert!(bytes <= most, "{what}: {lanes} lanes, {every}: {bytes}");
            self.again += again;
        }
        ControlFlow::Continue(())
    }

    /// Kills the load in one of several ways; returns whether the server's statistics survive that.
    fn kill(&mut self, mut child: Child) -> bool {
        let way = self.random.below(8);
        match way {
            0 => {
                self.world.server.kill9().unwrap();
                self.world.restart_with(&[]);
            }
            // All its sessions, or one of them.
            1 | 2 => {
                let limit = ["ALL", "1"][way as usize - 1];
                self.world.sql(&format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
                     WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' \
                     ORDER BY random() LIMIT {limit}) s"
                ));
            }
            3 => assert!(signal(child.id(), Signal::SIGTERM)),
            _ => child.kill().unwrap(),
        }
        // A load that has lost only the session with its claims may succeed.
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{said}");
        assert!(matches!(output.status.code(), None | Some(0 | 1 | 5 | 7)), "{way}: {output:?}");
        way > 0
    }

    /// Checks that the table has the rows of stock COPY, and that the ledger says so.
    fn whole(&mut self) {
        let what = format!("after kill {}", self.done);
        exact(&mut self.world, &what);
        assert_eq!(self.world.difference("(SELECT a, b FROM t)", "stock"), "", "{what}");
        let state = "SELECT string_agg(DISTINCT state, ',') FROM pgsluice_loads.sources";
        assert_eq!(self.world.sql(state), "complete", "{what}");
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        assert_eq!(self.world.sql(left), "0", "{what}");
    }
}

/// The loader, the server or its sessions are killed at random moments, with another number of
/// lanes and another size of pieces each time. After each kill, the ledger agrees with the table.
/// At the end, the table has the rows of stock COPY.
#[test]
fn killed_at_any_moment_it_continues() {
    let most = if std::env::var_os("PGSLUICE_SOAK").is_some() { 1000 } else { 30 };
    let mut kills = Kills::new();
    while kills.done < most {
        kills.world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        while kills.one().is_continue() {}
        kills.whole();
    }
    let Kills { done, in_the_middle, again, .. } = kills;
    eprintln!("{done} kills, {in_the_middle} in the middle, {again} records loaded again");
    assert!(in_the_middle > 0 && again > 0, "no kill came in the middle");
}
