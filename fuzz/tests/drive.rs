//! Runs every fuzz target on its kept corpus, then on mutations of it, for
//! `PGSLUICE_FUZZ_SECONDS` (4). The mutations are the same in every run, and
//! blind: `scripts/fuzz` runs the same targets guided by coverage.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgsluice_fuzz::rng::Random;
use pgsluice_fuzz::{FuzzTarget, TARGETS};

/// What mutations put in, beside what the corpus has.
const TOKENS: &[&[u8]] = &[
    b"\"",
    b"\"\"",
    b"\\",
    b"\\.",
    b"\n",
    b"\r\n",
    b"\r",
    b",",
    b"\t",
    b"\\N",
    b"-",
    b"+",
    b".",
    b"e",
    b"0",
    b"9",
    b"99999999",
    b" ",
    b":",
    b"/",
    b"infinity",
    b"NaN",
    b" BC",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"\xff\xff\xff\xff",
    b"\0\0\0",
    b"\xc3\xa9",
    b"T",
    b"Z",
    b"+00",
];

/// Inputs stay short: what a target does with length is not found blindly.
const LONGEST: usize = 600;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("no corpus in {}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn mutate(rng: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[rng.below(corpus.len())].clone();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(input.len() + 1);
        let end = (at + rng.below(9)).min(input.len());
        match rng.below(7) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.bits() as u8,
            2 => drop(input.drain(at..end)),
            3 => drop(input.splice(at..end, rng.pick(TOKENS).iter().copied())),
            4 => drop(input.splice(at..at, rng.pick(TOKENS).iter().copied())),
            5 => drop(input.splice(at..at, input[at..end].repeat(1 + rng.below(20)))),
            _ => {
                let other = &corpus[rng.below(corpus.len())];
                let from = rng.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(LONGEST);
    input
}

fn run(name: &str, target: FuzzTarget, input: &[u8]) {
    if let Err(panic) = catch_unwind(|| target(input)) {
        eprintln!("target {name} fails on b\"{}\"", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn drive(name: &str) {
    let (_, target) = TARGETS.iter().find(|(n, _)| *n == name).expect("a target of that name");
    let seconds = std::env::var("PGSLUICE_FUZZ_SECONDS");
    let seconds = seconds.map_or(4, |s| s.parse().expect("PGSLUICE_FUZZ_SECONDS is a number"));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let corpus = corpus(name);
    for input in &corpus {
        run(name, *target, input);
    }
    let mut rng = Random::new(1);
    let mut runs = 0_u64;
    while Instant::now() < deadline {
        for _ in 0..64 {
            run(name, *target, &mutate(&mut rng, &corpus));
        }
        runs += 64;
    }
    eprintln!("{name}: {} files, {runs} mutations", corpus.len());
}

macro_rules! targets {
    ($($name:ident)*) => {
        const DRIVEN: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                drive(stringify!($name));
            }
        )*
    };
}

targets! {
    scan split binary
    array bits datetime float integer interval json network numeric text
}

#[test]
fn every_target_is_driven() {
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(DRIVEN, names);
}
