//! Votes on links: who voted, on which link, up or down.
//!
//! The data are like those that "Dissecting the Postgres bulk insert and binary format" loads. A
//! user's votes are adjacent, in the order of their links. No user has more than 1000 votes up and
//! 1000 down, and none votes twice on a link. Few links have many votes. A row has about 22 bytes.

use super::rng::Rng;
use super::row::RowWriter;

/// The table with its surrogate key. The data have the other three columns.
pub(super) const DDL: &str = "\
CREATE TABLE votes (
    voteid serial PRIMARY KEY,
    username text NOT NULL,
    link text NOT NULL,
    score int NOT NULL
);
";

/// A block holds whole users, except that its last one is cut.
pub(super) const BLOCK_ROWS: u64 = 1 << 16;

/// Most votes of one user in either direction.
const MOST_VOTES: f64 = 1000.0;

/// Number of links.
const LINKS: f64 = (1 << 21) as f64;

/// The number of codes of five base-36 digits, less room for a user's links that are moved up. The
/// factor has no common divisor with it and scatters the ranks over the codes.
const CODES: u64 = 36 * 36 * 36 * 36 * 36 - 4096;
const SCATTER: u64 = 37_199_767;

const DIGITS_36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const DIGITS_64: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-_abcdefghijklmnopqrstuvwxyz";
const BEGINNINGS: [&[u8]; 8] = [b"", b"x", b"mr", b"the", b"real", b"", b"old", b"dr_"];

pub(super) fn block(rng: &mut Rng, block: u64, rows: u64, row: &mut RowWriter) {
    let mut left = rows;
    let mut links = Vec::with_capacity(2 * MOST_VOTES as usize);
    let mut user = block * BLOCK_ROWS;
    // The draws must not depend on `rows`, or a longer file would begin differently.
    while left > 0 {
        let ups = heavy(rng, 60.0, 59.0);
        let downs = heavy(rng, 12.0, 12.0);
        let name = username(user);
        draw_links(rng, ups + downs, &mut links);
        left = left.saturating_sub(write_user(rng, &name, &links, ups, left, row));
        user += 1;
    }
}

/// A number of votes: few users have many.
fn heavy(rng: &mut Rng, scale: f64, less: f64) -> u64 {
    (scale / rng.unit() - less).min(MOST_VOTES) as u64
}

/// Draws distinct links in ascending order. With this power, the first link of 7.5 million votes
/// has about 1,800.
fn draw_links(rng: &mut Rng, count: u64, links: &mut Vec<u64>) {
    links.clear();
    for _ in 0..count {
        let unit = rng.unit();
        let root = unit.sqrt();
        // Raise to the power 1.75 by correctly rounded operations only, so that every machine has
        // the same result.
        let rank = (LINKS * unit * root * root.sqrt()) as u64;
        links.push((rank + 1) * SCATTER % CODES);
    }
    links.sort_unstable();
    let mut least = 0;
    for link in links.iter_mut() {
        *link = (*link).max(least);
        least = *link + 1;
    }
}

/// Writes up to `most` of a user's votes and returns their number.
fn write_user(
    rng: &mut Rng,
    name: &[u8],
    links: &[u64],
    ups: u64,
    most: u64,
    row: &mut RowWriter,
) -> u64 {
    let mut ups_left = ups;
    let count = links.len().min(most as usize);
    for (done, code) in links[..count].iter().enumerate() {
        let up = rng.below((links.len() - done) as u64) < ups_left;
        ups_left -= u64::from(up);
        let mut link = *b"t3_00000";
        let mut rest = *code;
        for digit in link[3..].iter_mut().rev() {
            *digit = DIGITS_36[(rest % 36) as usize];
            rest /= 36;
        }
        row.plain(name);
        row.plain(&link);
        row.plain(if up { b"1" } else { b"-1" });
        row.end();
    }
    count as u64
}

/// A name that no other user has: its last seven characters encode the user's scattered number.
fn username(user: u64) -> Vec<u8> {
    let code = (user + 1).wrapping_mul(0x25c_1f4a_3b27) & ((1 << 42) - 1);
    let mut name = BEGINNINGS[(code >> 20) as usize % BEGINNINGS.len()].to_vec();
    name.extend((0..7).map(|digit| DIGITS_64[(code >> (6 * (6 - digit))) as usize & 63]));
    name
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::super::SampleTable;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn votes_have_the_shape_of_the_article() {
        let data = String::from_utf8(sample(SampleTable::Votes, 300_000)).unwrap();
        let mut users: HashMap<&str, (u32, u32)> = HashMap::new();
        let mut links: HashMap<&str, u32> = HashMap::new();
        let mut pairs = HashSet::new();
        let mut last = ("", "");
        for line in data.lines() {
            let fields: Vec<&str> = line.split(',').collect();
            let [user, link, score] = fields[..] else { panic!("{line:?}") };
            assert!(link.len() == 8 && link.starts_with("t3_"), "{line:?}");
            assert!(pairs.insert((user, link)), "voted twice: {line:?}");
            if last.0 == user {
                assert!(last.1 < link, "links are in order: {line:?}");
            } else {
                assert!(!users.contains_key(user), "a user's votes stand together: {line:?}");
            }
            last = (user, link);
            let votes = users.entry(user).or_default();
            match score {
                "1" => votes.0 += 1,
                "-1" => votes.1 += 1,
                _ => panic!("{line:?}"),
            }
            *links.entry(link).or_default() += 1;
        }
        assert!(users.values().all(|(up, down)| *up <= 1000 && *down <= 1000));
        assert!(users.values().any(|(up, _)| *up == 1000), "somebody reaches the limit");
        assert!(users.values().any(|(up, down)| up + down < 10), "and somebody votes little");
        let most = links.values().max().unwrap();
        assert!((20..200).contains(most), "one link is popular: {most}");
        let bytes = data.len() as f64 / 300_000.0;
        assert!((21.0..23.0).contains(&bytes), "{bytes} bytes a row");
    }
}
