//! Notes about files: the first few of each kind name their file, and the rest are counted.

/// How many notes of a kind name their file if there are at least two more.
const NAMED: usize = 3;

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// files of the load that are named twice
    Twice,
    /// files with the same bytes as others that are loaded
    Loaded,
    /// files with the same bytes as other files of the load
    Copies,
    /// files that continue others that an earlier load has begun
    Continued,
    /// files that have grown
    Grown,
}

impl About {
    fn more(self) -> &'static str {
        match self {
            About::Twice => "are named twice and loaded once",
            About::Loaded => "have the same bytes as files that are loaded",
            About::Copies => "have the same bytes as others of this load, and they are loaded once",
            About::Continued => "continue others that an earlier load has begun",
            About::Grown => "have grown",
        }
    }
}

/// The notes of a load. If a folder was moved, there must not be one note for each of 10,000 files.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// for each kind, in the order of their first notes: the first notes, and the number of all
    kinds: Vec<(About, Vec<String>, usize)>,
}

impl Notes {
    /// Adds a note about a file.
    pub fn add(&mut self, about: About, note: String) {
        let place = self.kinds.iter().position(|(kind, ..)| *kind == about).unwrap_or_else(|| {
            self.kinds.push((about, Vec::new(), 0));
            self.kinds.len() - 1
        });
        let (_, notes, count) = &mut self.kinds[place];
        *count += 1;
        // Keep one more than `NAMED`: a line with its count would be no shorter.
        if notes.len() <= NAMED {
            notes.push(note);
        }
    }

    /// The notes for the summary.
    pub fn summed_up(self) -> Vec<String> {
        let mut all = Vec::new();
        for (about, mut notes, count) in self.kinds {
            if count > notes.len() {
                notes.truncate(NAMED);
                notes.push(format!("{} more files {}", count - NAMED, about.more()));
            }
            all.append(&mut notes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_named_and_the_rest_counted() {
        let of = |count: usize| {
            let mut notes = Notes::default();
            notes.add(About::Grown, "g has grown by 1 bytes".into());
            (0..count).for_each(|i| notes.add(About::Twice, format!("file {i}")));
            notes.summed_up()
        };
        let grown = "g has grown by 1 bytes";
        assert_eq!(of(0), [grown]);
        assert_eq!(of(4), [grown, "file 0", "file 1", "file 2", "file 3"]);
        let last = "9997 more files are named twice and loaded once";
        assert_eq!(of(10_000), [grown, "file 0", "file 1", "file 2", last]);
    }
}
