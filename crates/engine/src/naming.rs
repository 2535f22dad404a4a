//! The column names that `--create` takes from a header. A name that is missing, repeated or a system
//! column's is replaced, and a note says so.

use crate::error::{shown, Error};
use crate::input::HeaderLine;
use crate::mapping::{name_of, AS_DATA};
use crate::quote::cut_name;
use crate::text::{text, Text};
use std::collections::{HashMap, HashSet};

/// The maximum number of names that a note lists.
const LISTED: usize = 5;

/// The columns that the server gives every table: no other may have these names.
pub(crate) const SYSTEM: [&str; 6] = ["ctid", "xmin", "cmin", "xmax", "cmax", "tableoid"];

/// The names to use if none are given.
pub(crate) fn numbered(fields: usize) -> Vec<String> {
    (1..=fields).map(|i| format!("c{i}")).collect()
}

/// Returns one name for each field of the records. `fields` is the number of their fields, if there
/// is a record.
///
/// # Errors
///
/// A field has a NUL or is not UTF-8, or the number of fields differs from that of names.
pub(crate) fn from_header(
    header: &HeaderLine,
    fields: Option<usize>,
    notes: &mut Vec<Text>,
) -> Result<Vec<String>, Error> {
    let mut names = trimmed(header, notes)?;
    if fields == Some(names.len() + 1) {
        return Err(one_more(header, &names));
    }
    let ends_empty = names.len() > 1 && names.last().is_some_and(String::is_empty);
    if ends_empty && fields.is_some_and(|fields| fields + 1 == names.len()) {
        names.pop();
        notes.push("the header ends with a delimiter, and the records do not".into());
    }
    if let Some(fields) = fields.filter(|fields| *fields != names.len()) {
        let message =
            format!("the header has {} names, and each record {fields} fields", names.len());
        return Err(Error::new(message)
            .at(header.place())
            .with_hint(text!("`header`=ignore names the columns c1 to c{}", fields)));
    }
    let (mut used, mut given) = (UsedNames::new(&names), Vec::new());
    let (mut unnamed, mut repeated, mut long) = (Vec::new(), Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        let number = format!("c{}", i + 1);
        let wanted = if name.is_empty() { &number } else { name };
        let unique = used.unique(wanted, !name.is_empty());
        if name.is_empty() {
            unnamed.push(unique.clone());
        } else if cut_name(name) != name {
            long.push((name.clone(), unique.clone()));
        } else if unique != *name {
            repeated.push(unique.clone());
        }
        given.push(unique);
    }
    if !unnamed.is_empty() {
        notes.push(text!("columns without a name in the header are named {}", list(&unnamed)));
    }
    if !repeated.is_empty() {
        let data = repeated.iter().all(|name| name.starts_with(|c: char| !c.is_alphabetic()));
        let ask = if data { text!("; {}", Text::from(AS_DATA)) } else { Text::default() };
        let repeated = list(&repeated);
        notes.push(text!(
            "columns whose name is already used, or is that of a system column, are named {}{}",
            repeated,
            ask
        ));
    }
    notes.extend(long.into_iter().map(|(name, cut)| {
        text!("the name \"{}\" is cut to \"{}\", as the server would", name, cut)
    }));
    Ok(given)
}

/// The header's names without surrounding spaces.
fn trimmed(header: &HeaderLine, notes: &mut Vec<Text>) -> Result<Vec<String>, Error> {
    let mut spaced = Vec::new();
    let name = |(i, field): (usize, &Option<Vec<u8>>)| match field {
        Some(field) => name_of(header, i, field).map(|name| {
            if name.trim() != name {
                spaced.push(format!("{:?}", shown(name.as_bytes())));
            }
            name.trim().to_owned()
        }),
        None => Ok(String::new()),
    };
    let names = header.fields.iter().enumerate().map(name).collect();
    if !spaced.is_empty() {
        notes.push(text!("the spaces around names are dropped: {}", list(&spaced)));
    }
    names
}

/// The names that a new one must not equal.
struct UsedNames<'h> {
    header: HashSet<&'h str>,
    given: HashSet<String>,
    /// for each name: with all numbers before this one, it is used
    next: HashMap<String, usize>,
}

impl<'h> UsedNames<'h> {
    fn new(header: &'h [String]) -> Self {
        let header = header.iter().map(String::as_str).collect();
        UsedNames { header, given: HashSet::new(), next: HashMap::new() }
    }

    /// Returns the name, cut as the server cuts it. Adds a number if the name is already used or is
    /// a system column's, or if another column has it in the header. `is_own` says that the name is
    /// from the header.
    fn unique(&mut self, name: &str, is_own: bool) -> String {
        let is_taken = |candidate: &str| {
            let others = candidate != name || !is_own;
            SYSTEM.contains(&candidate)
                || self.given.contains(candidate)
                || (others && self.header.contains(candidate))
        };
        let cut = cut_name(name);
        // A shortened name must not equal the complete name of another column.
        let (unique, next) = if is_taken(cut) {
            // A used name stays used.
            let first = self.next.get(cut).copied().unwrap_or(2);
            let mut numbers = (first..).map(|n| (with_number(cut, n), n + 1));
            numbers.find(|(candidate, _)| !is_taken(candidate)).unwrap_or_default()
        } else {
            (cut.to_owned(), 2)
        };
        self.next.insert(cut.to_owned(), next);
        self.given.insert(unique.clone());
        unique
    }
}

/// The name with a number, cut so that the server does not cut it.
fn with_number(name: &str, n: usize) -> String {
    let suffix = format!("_{n}");
    let head = (0..=name.len()).rev().find(|at| {
        name.is_char_boundary(*at)
            && cut_name(&format!("{}{suffix}", &name[..*at])).len() == at + suffix.len()
    });
    format!("{}{suffix}", &name[..head.unwrap_or(0)])
}

/// The error for records with one field more than the header: row names, or a delimiter at the end.
/// Only the user can say which.
fn one_more(header: &HeaderLine, names: &[String]) -> Error {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let (s, hint) = match names {
        // The line may be a title, or have another delimiter.
        [_] => (
            "",
            text!(
                "`skip-lines` passes over lines before the header, and `delimiter` names another \
                 delimiter; `pgsluice sniff {}` detects both",
                header.file
            ),
        ),
        _ => {
            let columns = quoted.join(",");
            let hint = text!(
                "if the first field is the name of the row: `header`=ignore `columns` '\"row\",{}'",
                columns
            );
            ("s", hint)
        }
    };
    let (names, fields) = (names.len(), names.len() + 1);
    Error::new(format!("the header has {names} name{s}, and each record {fields} fields"))
        .at(header.place())
        .with_hint(hint)
}

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let listed = names[..names.len() - more].join(", ");
    if more > 0 {
        format!("{listed} and {more} more")
    } else {
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::computed;

    fn named(fields: &[&str], records: Option<usize>) -> (Result<Vec<String>, Error>, Vec<Text>) {
        let field = |f: &&str| (!f.is_empty()).then(|| f.as_bytes().to_vec());
        let header = HeaderLine {
            file: "f".into(),
            line: 1,
            bytes: Vec::new(),
            fields: fields.iter().map(field).collect(),
        };
        let mut notes = Vec::new();
        (from_header(&header, records, &mut notes), notes)
    }

    #[test]
    fn every_column_of_a_header_gets_a_name() {
        for (header, records, names, note) in [
            (
                &["", "x"][..],
                Some(2),
                &["c1", "x"][..],
                "without a name in the header are named c1",
            ),
            (&["", "c1"], Some(2), &["c1_2", "c1"], "are named c1_2"),
            (&["x", "x", "x_2", "x"], Some(4), &["x", "x_3", "x_2", "x_4"], "named x_3, x_4"),
            (&["xmin", "x"], Some(2), &["xmin_2", "x"], "a system column, are named xmin_2"),
            (&["0", "0"], Some(2), &["0", "0_2"], "is the first line data?"),
            (&["a", "b", ""], Some(2), &["a", "b"], "the header ends with a delimiter"),
            (&["a", "b", ""], Some(3), &["a", "b", "c3"], "are named c3"),
            (&["a", ""], None, &["a", "c2"], "are named c2"),
            (&[" a ", "b"], Some(2), &["a", "b"], "spaces around names are dropped: \" a \""),
        ] {
            let (given, notes) = named(header, records);
            assert_eq!(given.unwrap(), names, "{header:?}");
            assert!(notes.iter().any(|n| n.contains(note)), "{header:?}: {notes:?}");
        }
        assert!(named(&["a", "A"], Some(2)).1.is_empty());
    }

    /// The name of the next column, looked for from the first number on.
    fn next_name(name: &str, is_own: bool, header: &[String], given: &[String]) -> String {
        let is_taken = |candidate: &String| {
            let others = candidate != name || !is_own;
            SYSTEM.contains(&candidate.as_str())
                || given.contains(candidate)
                || (others && header.contains(candidate))
        };
        let cut = cut_name(name).to_owned();
        let numbers = (2..).map(|n| with_number(&cut, n));
        std::iter::once(cut.clone()).chain(numbers).find(|name| !is_taken(name)).unwrap()
    }

    #[test]
    fn no_number_is_left_out() {
        let (long, cut) = ("n".repeat(70), "n".repeat(63));
        let (ends, own) = (format!("{}_2", "n".repeat(61)), format!("{}_3", "n".repeat(61)));
        let mut words = vec!["", "x", "x_2", "x_3", "x_2_2", "c2", "c3", "c3_2", "xmin", "xmin_2"];
        words.extend([long.as_str(), cut.as_str(), ends.as_str(), own.as_str()]);
        let mut state = 1_u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        for _ in 0..2_000 {
            let header: Vec<String> =
                (0..2 + random(9)).map(|_| words[random(words.len())].to_owned()).collect();
            let fields: Vec<&str> = header.iter().map(String::as_str).collect();
            let mut given: Vec<String> = Vec::new();
            for (i, name) in header.iter().enumerate() {
                let number = format!("c{}", i + 1);
                let wanted = if name.is_empty() { &number } else { name };
                given.push(next_name(wanted, !name.is_empty(), &header, &given));
            }
            assert_eq!(named(&fields, Some(fields.len())).0.unwrap(), given, "{header:?}");
        }
    }

    #[test]
    fn equal_names_take_time_by_their_number_alone() {
        let before = computed();
        let names = named(&["x"; 1_600], Some(1_600)).0.unwrap();
        let took = computed() - before;
        assert!(took < 500, "{took} ms");
        assert_eq!((names[1].as_str(), names[1_599].as_str()), ("x_2", "x_1600"));
    }

    #[test]
    fn names_that_are_cut_alike_stay_apart() {
        let (long, cut) = ("n".repeat(70), "n".repeat(63));
        let (names, notes) = named(&[&long, &cut, &format!("{long}x")], Some(3));
        let names = names.unwrap();
        assert_eq!(names[1], cut);
        assert_eq!(names[0], format!("{}_2", "n".repeat(61)));
        assert_eq!(names[2], format!("{}_3", "n".repeat(61)));
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    #[test]
    fn names_of_rows_need_a_name_from_the_user() {
        for fields in [1, 5] {
            let error = named(&["a", "b"], Some(fields)).0.unwrap_err();
            assert!(error.hint().unwrap().starts_with("header=ignore names"), "{error}");
        }
        let error = named(&["a", "b"], Some(3)).0.unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.contains("header=ignore columns '\"row\",\"a\",\"b\"'"), "{hint:?}");
    }
}
