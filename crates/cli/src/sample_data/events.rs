//! Events of a code-hosting site: seven typed columns with a JSON payload of varying size, as in
//! "1M rows into Postgres in 1.29 seconds". A row has about 250 bytes as CSV.

use super::rng::Rng;
use super::row::{push_hex, push_int, push_time, RowWriter};

/// The table with its types.
pub(super) const DDL: &str = "\
CREATE TABLE events (
    event_id text,
    event_type text,
    actor_id bigint,
    repo_id bigint,
    created_at timestamptz,
    is_public boolean,
    payload jsonb
);
";

pub(super) const BLOCK_ROWS: u64 = 1 << 13;

const FIRST_ID: i64 = 34_500_000_000;
/// 2024-01-01 00:00:00 UTC; four events a second.
const FIRST_SECOND: u64 = 1_704_067_200;

const WORDS: [&str; 48] = [
    "fix",
    "add",
    "remove",
    "update",
    "parser",
    "test",
    "for",
    "the",
    "server",
    "when",
    "index",
    "is",
    "empty",
    "build",
    "release",
    "of",
    "docs",
    "typo",
    "in",
    "README",
    "cache",
    "crash",
    "on",
    "start",
    "naïve",
    "über",
    "数据库",
    "привет",
    "☃",
    "\\\"quoted\\\"",
    "C:\\\\temp",
    "a\\tb",
    "line\\nbreak",
    "\\u00e9t\\u00e9",
    "{braces}",
    "[x]",
    "50%",
    "it's",
    "a,b",
    "#42",
    "refactor",
    "merge",
    "bump",
    "version",
    "to",
    "v1.2.3",
    "and",
    "cleanup",
];
const BRANCHES: [&str; 6] = ["main", "master", "develop", "feature/login", "fix-7", "release/2.x"];
const LABELS: [&str; 5] = ["bug", "enhancement", "good first issue", "docs", "wontfix"];

/// The percentage of each type, and the function that writes its payload.
type Payload = fn(&mut Rng, &mut Vec<u8>);
const TYPES: [(u64, &str, Payload); 9] = [
    (52, "PushEvent", push),
    (14, "CreateEvent", create),
    (9, "PullRequestEvent", pull_request),
    (7, "IssueCommentEvent", comment),
    (7, "WatchEvent", watch),
    (4, "IssuesEvent", issue),
    (4, "DeleteEvent", delete),
    (2, "ForkEvent", fork),
    (1, "PublicEvent", public),
];

pub(super) fn block(rng: &mut Rng, block: u64, rows: u64, row: &mut RowWriter) {
    let mut buffer = Vec::with_capacity(4096);
    for number in block * BLOCK_ROWS..block * BLOCK_ROWS + rows {
        let mut draw = rng.below(100);
        let (_, name, payload) = TYPES
            .iter()
            .find(|(share, ..)| match draw.checked_sub(*share) {
                Some(rest) => {
                    draw = rest;
                    false
                }
                None => true,
            })
            .unwrap_or(&TYPES[0]);
        row.int(FIRST_ID + 3 * number as i64 + rng.between(0, 2));
        row.plain(name.as_bytes());
        row.int(rng.between(1, 150_000_000));
        row.int(rng.between(1, 750_000_000));
        buffer.clear();
        push_time(&mut buffer, FIRST_SECOND + number / 4, b'T');
        buffer.push(b'Z');
        row.plain(&buffer);
        row.plain(if rng.chance(98) { b"true" } else { b"false" });
        buffer.clear();
        payload(rng, &mut buffer);
        row.text(&buffer);
        row.end();
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn put_int(rng: &mut Rng, out: &mut Vec<u8>, name: &str, first: i64, last: i64) {
    put_text(out, name);
    push_int(out, rng.between(first, last));
}

fn put_words(rng: &mut Rng, out: &mut Vec<u8>, most: u64) {
    for number in 0..=rng.below(most) {
        if number > 0 {
            out.push(b' ');
        }
        put_text(out, rng.pick(&WORDS));
    }
}

fn put_sha(rng: &mut Rng, out: &mut Vec<u8>) {
    push_hex(out, rng.next(), 16);
    push_hex(out, rng.next(), 16);
    push_hex(out, rng.next(), 8);
}

fn push(rng: &mut Rng, out: &mut Vec<u8>) {
    put_int(rng, out, r#"{"push_id":"#, 1_000_000_000, 20_000_000_000);
    put_text(out, r#","ref":"refs/heads/"#);
    put_text(out, rng.pick(&BRANCHES));
    put_text(out, r#"","head":""#);
    put_sha(rng, out);
    put_text(out, r#"","before":""#);
    put_sha(rng, out);
    put_text(out, r#"","commits":["#);
    let commits = if rng.chance(80) { 0 } else { 1 + rng.below(3) };
    for number in 0..commits {
        put_text(out, if number > 0 { r#",{"sha":""# } else { r#"{"sha":""# });
        put_sha(rng, out);
        put_text(out, r#"","message":""#);
        put_words(rng, out, 12);
        put_text(out, r#"","distinct":"#);
        put_text(out, if rng.chance(90) { "true}" } else { "false}" });
    }
    put_text(out, "]}");
}

fn create(rng: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, r#"{"ref":""#);
    put_text(out, rng.pick(&BRANCHES));
    put_text(out, r#"","ref_type":"branch","description":"#);
    if rng.chance(40) {
        put_text(out, "null");
    } else {
        out.push(b'"');
        put_words(rng, out, 10);
        out.push(b'"');
    }
    put_text(out, r#","pusher_type":"user"}"#);
}

fn pull_request(rng: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, r#"{"action":""#);
    put_text(out, rng.pick(&["opened", "closed", "reopened"]));
    put_int(rng, out, r#"","number":"#, 1, 90_000);
    put_text(out, r#","pull_request":{"title":""#);
    put_words(rng, out, 10);
    put_int(rng, out, r#"","additions":"#, 0, 5_000);
    put_int(rng, out, r#","deletions":"#, 0, 5_000);
    put_text(out, r#","merged":"#);
    put_text(out, if rng.chance(50) { "true}}" } else { "null}}" });
}

fn comment(rng: &mut Rng, out: &mut Vec<u8>) {
    put_int(rng, out, r#"{"action":"created","issue":"#, 1, 90_000);
    put_text(out, r#","comment":{"body":""#);
    // Few comments are long, so that a page holds rows of very different sizes.
    let most = if rng.chance(3) { 300 } else { 25 };
    put_words(rng, out, most);
    put_int(rng, out, r#"","reactions":"#, 0, 30);
    put_text(out, "}}");
}

fn watch(_: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, r#"{"action":"started"}"#);
}

fn issue(rng: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, r#"{"action":""#);
    put_text(out, rng.pick(&["opened", "closed", "labeled"]));
    put_text(out, r#"","issue":{"title":""#);
    put_words(rng, out, 12);
    put_text(out, r#"","labels":["#);
    for number in 0..rng.below(3) {
        put_text(out, if number > 0 { ",\"" } else { "\"" });
        put_text(out, rng.pick(&LABELS));
        out.push(b'"');
    }
    put_text(out, r#"],"score":"#);
    push_int(out, rng.between(-9, 9));
    put_int(rng, out, ".", 1, 99);
    put_text(out, "}}");
}

fn delete(rng: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, r#"{"ref":""#);
    put_text(out, rng.pick(&BRANCHES));
    put_text(out, r#"","ref_type":"branch","pusher_type":"user"}"#);
}

fn fork(rng: &mut Rng, out: &mut Vec<u8>) {
    put_int(rng, out, r#"{"forkee":{"id":"#, 1, 750_000_000);
    put_text(out, r#","private":false,"topics":[],"license":null}}"#);
}

fn public(_: &mut Rng, out: &mut Vec<u8>) {
    put_text(out, "{}");
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::super::SampleTable;

    #[test]
    fn events_have_the_size_of_the_article() {
        let data = sample(SampleTable::Events, 50_000);
        let bytes = data.len() as f64 / 50_000.0;
        assert!((240.0..260.0).contains(&bytes), "{bytes} bytes a row");
        assert_eq!(data.iter().filter(|b| **b == b'\n').count(), 50_000, "a line is a row");
        let longest = data.split(|b| *b == b'\n').map(<[u8]>::len).max().unwrap();
        assert!(longest > 1_500, "few rows are long: {longest}");
    }
}
