//! Decides for each source of a load, by its name and its bytes, whether it is new, continues an
//! earlier load, or is loaded.

use super::correction::{changed, grown, other_name};
use super::identity::{same, Ends, Seen, END};
use super::lookup::{pieces, pieces_until, KnownSource};
use super::notes::About;
use super::pause::read_long;
use super::record::{Alias, Touched, Wanted};
use super::Found;
use crate::error::Error;
use crate::input::{compare, outside, Compared, KnownPiece};
use crate::session::conn::Conn;
use pgsluice_core::sink::TRAILER;
use std::collections::HashMap;
use std::ops::Range;

/// How many bytes of a source follow its known ranges, or the first range that has other bytes.
type AfterKnown = Result<u64, Range<u64>>;

/// A source that was compared with the known ranges of a row.
struct Beside {
    known: Vec<KnownPiece>,
    after: AfterKnown,
    /// it has the size and the ends that it had when the row was recorded
    as_it_was: bool,
    /// so it has, and the content has grown since: `known` are its ranges
    earlier: bool,
}

impl Found<'_> {
    /// Decides for each source whether it is new, continues an earlier load, or is loaded. No load
    /// that has begun one of the incomplete `rows` may be running without its claims.
    pub(super) fn decide(
        &mut self,
        conn: &mut Conn,
        sources: &[usize],
        ends: &HashMap<usize, Ends>,
        rows: Vec<KnownSource>,
    ) -> Result<(), Error> {
        let mut by_file: HashMap<usize, Vec<KnownSource>> = HashMap::new();
        for row in rows {
            by_file.entry(row.file).or_default().push(row);
        }
        // Files that are known by their names come first, so that the others are found to be copies
        // of them. Among these, names of a content come after the one that has its pieces.
        let rank = |i: &usize| {
            let mut rows = by_file.get(i).into_iter().flatten();
            let row = rows.find(|row| row.by_name);
            row.map_or(2, |row| u8::from(row.content != row.number))
        };
        let mut ordered = sources.to_vec();
        ordered.sort_by_key(rank);
        for i in ordered {
            let rows = by_file.remove(&i).unwrap_or_default();
            self.decide_one(conn, i, &ends[&i], &rows)?;
        }
        // They are loaded in their own order.
        self.wanted.sort_by_key(|(i, _)| *i);
        Ok(())
    }

    fn decide_one(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        rows: &[KnownSource],
    ) -> Result<(), Error> {
        let (seen, name) = (self.seen[i].clone(), self.sources[i].name());
        if seen.stream {
            return self.decide_stream(conn, i, ends, rows);
        }
        // Another machine loads the content under another name.
        let busy = |row: &&KnownSource| {
            let own = row.by_name && (row.complete || row.content == row.number);
            let apart = self.names_in_rows && self.is_of_another(row);
            !own && !apart && self.busy.contains(&row.content)
        };
        if let Some(row) = rows.iter().find(busy) {
            self.others.insert(row.content);
            return Ok(());
        }
        let mut failed = None;
        for row in rows {
            let Some(found) = self.compared(conn, i, ends, row)? else { continue };
            let decided = match row.by_name {
                true => self.by_name(conn, i, ends, row, found, &mut failed)?,
                false => self.by_content(conn, i, ends, row, found, failed)?,
            };
            if decided {
                return Ok(());
            }
        }
        self.add_new(conn, i, Wanted { begun: failed, ..Wanted::new(&seen, ends) }, &name)
    }

    /// Decides about a file by a row of its name. Returns false if the row decides nothing, and sets
    /// `failed` to a row of a failed attempt: pieces that another load has loaded of the same
    /// content take precedence.
    fn by_name(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        row: &KnownSource,
        found: Beside,
        failed: &mut Option<i64>,
    ) -> Result<bool, Error> {
        let other = row.content != row.number;
        // Nothing is loaded for which the name could have been recorded.
        let nothing = match found.after {
            Ok(_) => found.known.is_empty() && !(row.complete && (found.as_it_was || !other)),
            Err(_) if !(other && row.complete && row.compared) => false,
            Err(_) => pieces_until(conn, row.content, row.load)?.is_empty(),
        };
        if nothing {
            match other {
                true => self.replaced.push(row.number),
                false => *failed = Some(row.number),
            }
            return Ok(false);
        }
        let more = match &found.after {
            Ok(more) => *more,
            Err(bytes) => return Err(changed(&self.sources[i].name(), bytes, row)),
        };
        // Another name may be complete while the content, which has grown, is not.
        let goes_on = !row.complete || !row.whole && !found.as_it_was && self.append;
        match self.by_begun.get(&row.content).copied() {
            _ if !goes_on => self.decide_complete(conn, i, ends, row, &found, more)?,
            _ if self.busy.contains(&row.content) && other => {
                self.others.insert(row.content);
            }
            Some(taker) => self.copy_or_refuse(conn, i, ends, taker)?,
            None => self.go_on(i, ends, row),
        }
        Ok(true)
    }

    /// Decides about a file by a row that may be about the same content. Returns false if it is not.
    fn by_content(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        row: &KnownSource,
        found: Beside,
        failed: Option<i64>,
    ) -> Result<bool, Error> {
        let (Ok(more), known) = (&found.after, &found.known) else { return Ok(false) };
        let (seen, name) = (self.seen[i].clone(), self.sources[i].name());
        if known.is_empty() || !row.complete && self.by_begun.contains_key(&row.content) {
            return Ok(false);
        }
        if row.complete && self.outside(conn, i, ends, row, (known, *more))?.is_some() {
            return Ok(false);
        }
        self.fingerprint.check(&row.options, &name)?;
        if row.complete {
            let note = format!("{name} has the same bytes as {}, which is loaded", row.name);
            self.notes.add(About::Loaded, note);
            let was = found.earlier.then_some(row.number);
            self.aliases.push(Alias { seen, ends: ends.clone(), same_as: row.content, was });
        } else {
            self.notes.add(About::Continued, format!("{name} continues {}", row.name));
            self.go_on(i, ends, row);
        }
        self.replaced.extend(failed);
        Ok(true)
    }

    /// Decides about a file of which a part is loaded, and which `other` continues under another
    /// name. Both are names of it, so they must still be the same.
    fn copy_or_refuse(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        other: usize,
    ) -> Result<(), Error> {
        if self.add_copy(conn, i, ends)? {
            return Ok(());
        }
        let (name, other) = (self.sources[i].name(), self.sources[other].name());
        Err(Error::new(format!(
            "{name} and {other} were one file when a part of it was loaded, and now they differ"
        ))
        .with_hint("load the one that is right: the rest of it is loaded"))
    }

    /// Decides about a file of the name and the bytes of a complete source. `more` bytes follow the
    /// known ranges.
    fn decide_complete(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        row: &KnownSource,
        found: &Beside,
        more: u64,
    ) -> Result<(), Error> {
        let (known, was) = (&found.known, found.earlier);
        let (seen, name) = (self.seen[i].clone(), self.sources[i].name());
        let end = known.last().map_or(0, |p| p.bytes.end);
        match self.outside(conn, i, ends, row, (known, more))? {
            None => self.touched.push(Touched { row: row.number, seen, ends: ends.clone(), was }),
            Some(at) if at < end => {
                let next = known.iter().map(|p| p.bytes.start).find(|start| *start > at);
                return Err(changed(&name, &(at..next.unwrap_or(end)), row));
            }
            Some(_) if !self.append => return Err(grown(&name, end, more)),
            // Other machines append to the content under another name.
            Some(_) if row.content != row.number && self.busy.contains(&row.content) => {
                self.others.insert(row.content);
            }
            Some(_) => {
                // Another name of the content may have grown, too.
                if let Some(other) = self.by_begun.get(&row.content).copied() {
                    if self.add_copy(conn, i, ends)? {
                        return Ok(());
                    }
                    let other = other_name(&self.sources[other].name());
                    return Err(grown(&name, end, more).with_hint(other));
                }
                let note = format!("{name} has grown by {more} bytes");
                self.notes.add(About::Grown, note);
                self.go_on(i, ends, row);
            }
        }
        Ok(())
    }

    /// Loads what is left of the content of a row.
    fn go_on(&mut self, i: usize, ends: &Ends, row: &KnownSource) {
        let begun = Some(row.content);
        self.want(i, Wanted { begun, ..Wanted::new(&self.seen[i], ends) });
    }

    /// Adds the name of a file if another source of this load has the same bytes. Returns whether it
    /// has.
    fn add_copy(&mut self, conn: &mut Conn, i: usize, ends: &Ends) -> Result<bool, Error> {
        let seen = self.seen[i].clone();
        let other = self.copy_of(conn, &seen, ends)?;
        self.copies.extend(other.map(|other| (seen, ends.clone(), other)));
        Ok(other.is_some())
    }

    /// Returns where the first record of a file begins that is in none of the ranges of a complete
    /// source, whose bytes it has. Their hashes do not cover what was not a record when the source
    /// was loaded: comments, a footer. That may have changed while name and size stayed the same. If
    /// the file has another size and more bytes, these count as records. The size and the ends of a
    /// row say nothing if the file was only begun under that name.
    fn outside(
        &self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        row: &KnownSource,
        (known, more): (&[KnownPiece], u64),
    ) -> Result<Option<u64>, Error> {
        let first = known.first().map_or(0, |p| p.bytes.start);
        let end = known.last().map_or(0, |p| p.bytes.end);
        let same_size = row.size == self.seen[i].size;
        if more > 0 && !same_size && row.compared {
            return Ok(Some(end));
        }
        let gaps = known.windows(2).any(|two| two[0].bytes.end < two[1].bytes.start);
        let same_start = first == 0 || (row.head == ends.head && first <= END);
        let same_end = more == 0 || row.tail == ends.tail;
        let whole = same_size && row.size <= END && row.head == ends.head;
        if row.compared && (whole || (same_start && same_end && !gaps)) {
            return Ok(None);
        }
        // PGCOPY has nothing but a header and a trailer around its tuples.
        if self.input.dialect().is_none() {
            return Ok((more > TRAILER.len() as u64).then_some(end));
        }
        let (input, source, stop) = (&self.input, &self.sources[i], &self.stop);
        read_long(conn, self.lease, || outside(input, source, known, &|| stop.is_set()))
    }

    /// Decides about a stream. It is compared while it is read. One row has what is known of its
    /// name.
    fn decide_stream(
        &mut self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        rows: &[KnownSource],
    ) -> Result<(), Error> {
        let mut wanted = Wanted::new(&self.seen[i], ends);
        if let Some(row) = rows.iter().find(|row| row.by_name) {
            let known = pieces(conn, row.number)?;
            if !known.is_empty() {
                self.fingerprint.check(&row.options, &self.seen[i].name)?;
                wanted.ends.head.clone_from(&row.head);
            }
            wanted.begun = Some(row.number);
            wanted.whole = row.complete && !self.append;
        }
        self.want(i, wanted);
        Ok(())
    }

    /// Whether a row that was found by content is about another source of this load. A complete one
    /// is so only if its rows have its name: otherwise the same bytes are the same rows.
    fn is_of_another(&self, row: &KnownSource) -> bool {
        !row.by_name && (!row.complete || self.names_in_rows) && self.names.contains(&row.name)
    }

    /// Compares a source with the known ranges of a row that may be about it. `None` if the row is
    /// about another source of this load.
    fn compared(
        &self,
        conn: &mut Conn,
        i: usize,
        ends: &Ends,
        row: &KnownSource,
    ) -> Result<Option<Beside>, Error> {
        let (source, seen) = (&self.sources[i], &self.seen[i]);
        if self.is_of_another(row) {
            return Ok(None);
        }
        let mut known = pieces(conn, row.content)?;
        // A failed attempt has no pieces, so other options are no conflict.
        if row.by_name && !known.is_empty() {
            self.fingerprint.check(&row.options, &source.name())?;
        }
        // A record near the start may have been corrected. A row of an earlier version has no hash
        // of the header.
        let same = |own: &Ends| row.header.is_some() && own.header == row.header;
        let begins = !self.has_header()
            || known.is_empty()
            || same(ends)
            || seen.begins_as(row.size, &row.head)?;
        if !begins {
            return Err(changed(&source.name(), &(0..known[0].bytes.start), row));
        }
        // The content may have grown since the row of another name was added. The file is still what
        // it was then.
        let as_it_was = row.complete
            && row.compared
            && row.content != row.number
            && row.size == seen.size
            && (&row.head, &row.tail) == (&ends.head, &ends.tail);
        let stop = &self.stop;
        let comparing = || compare(source.as_ref(), &known, &|| stop.is_set());
        let (pieces, more, bytes, ended) = match read_long(conn, self.lease, comparing)? {
            Compared::Same(more) => {
                return Ok(Some(Beside { known, after: Ok(more), as_it_was, earlier: false }));
            }
            Compared::Ended { pieces, more } => (pieces, more, known[pieces].bytes.clone(), true),
            Compared::Differs { pieces, bytes } => {
                let end = pieces.checked_sub(1).map_or(0, |last| known[last].bytes.end);
                (pieces, bytes.end - end, bytes, false)
            }
        };
        // If a comment at its end is longer than the first range that was added, it does not end
        // before that range.
        let earlier = as_it_was && (ended || self.is_all(conn, i, &known[..pieces])?);
        if !earlier {
            return Ok(Some(Beside { known, after: Err(bytes), as_it_was, earlier }));
        }
        known.truncate(pieces);
        Ok(Some(Beside { known, after: Ok(more), as_it_was, earlier }))
    }

    /// Adds a source that no load has begun. If another source of this load has the same bytes, and
    /// so the same rows, adds only its name.
    fn add_new(
        &mut self,
        conn: &mut Conn,
        i: usize,
        wanted: Wanted,
        name: &str,
    ) -> Result<(), Error> {
        let copy = match self.names_in_rows {
            true => None,
            false => self.copy_of(conn, &wanted.seen, &wanted.ends)?,
        };
        if let Some(other) = copy {
            let same = &self.seen[other].name;
            let note = format!("{name} has the same bytes as {same}, and they are loaded once");
            self.notes.add(About::Copies, note);
            self.copies.push((wanted.seen, wanted.ends, other));
            self.replaced.extend(wanted.begun);
            return Ok(());
        }
        self.want(i, wanted);
        Ok(())
    }

    /// Returns another source to load that has the same bytes.
    fn copy_of(&self, conn: &mut Conn, seen: &Seen, ends: &Ends) -> Result<Option<usize>, Error> {
        let (content, stop) = ((seen.size, ends.clone()), &self.stop);
        for other in self.by_ends.get(&content).into_iter().flatten() {
            let name = &self.seen[*other].name;
            if read_long(conn, self.lease, || same(name, &seen.name, &|| stop.is_set()))? {
                return Ok(Some(*other));
            }
        }
        Ok(None)
    }

    /// Whether a source has no records outside of these ranges, whose bytes it has.
    fn is_all(&self, conn: &mut Conn, i: usize, known: &[KnownPiece]) -> Result<bool, Error> {
        let (input, source, stop) = (&self.input, &self.sources[i], &self.stop);
        let outside = || Ok(matches!(outside(input, source, known, &|| stop.is_set()), Ok(None)));
        Ok(input.dialect().is_some() && read_long(conn, self.lease, outside)?)
    }
}
