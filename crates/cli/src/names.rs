//! Column names on the command line: lists of names, and pairs of names.

use std::str::FromStr;

/// Names, separated by commas and optional blanks. As in SQL, a name in double quotes may contain a
/// comma, and a doubled quote. Unlike in SQL, a name without quotes keeps its case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

/// Like [`Names`], but `-` without quotes is no name: the field is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<Option<String>>);

/// Pairs, separated by commas: a name in the header, `=`, and a column name, or `-` without quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(pub Vec<(String, Option<String>)>);

/// A name, and whether it was in quotes.
struct Name(String, bool);

impl Name {
    /// The column name; `None` for `-` without quotes.
    fn column(self) -> Option<String> {
        (self.1 || self.0 != "-").then_some(self.0)
    }
}

impl FromStr for Names {
    type Err = String;

    fn from_str(list: &str) -> Result<Names, String> {
        each(list, |rest| name(rest, &[',']).map(|(name, rest)| (name.0, rest))).map(Names)
    }
}

impl FromStr for Fields {
    type Err = String;

    fn from_str(list: &str) -> Result<Fields, String> {
        each(list, |rest| name(rest, &[',']).map(|(name, rest)| (name.column(), rest))).map(Fields)
    }
}

impl FromStr for Pairs {
    type Err = String;

    fn from_str(list: &str) -> Result<Pairs, String> {
        let pair = |rest| {
            let (header, rest) = name(rest, &['=', ','])?;
            let rest = rest.strip_prefix('=').ok_or("a pair is NAME=COLUMN, or NAME=-")?;
            let (column, rest) = name(rest.trim_start(), &[','])?;
            Ok(((header.0, column.column()), rest))
        };
        each(list, pair).map(Pairs)
    }
}

/// Applies `one` to each item of a comma-separated list.
fn each<'a, T>(
    list: &'a str,
    one: impl Fn(&'a str) -> Result<(T, &'a str), String>,
) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    let mut rest = list.trim_start();
    loop {
        let (item, behind) = one(rest)?;
        all.push(item);
        match behind.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if behind.is_empty() => return Ok(all),
            None => return Err(format!("a comma is missing before {behind}")),
        }
    }
}

/// The name at the beginning of `rest`, up to one of the characters `ends`, and the remaining text.
fn name<'a>(rest: &'a str, ends: &[char]) -> Result<(Name, &'a str), String> {
    let (name, behind) = match rest.strip_prefix('"') {
        Some(quoted) => {
            let (name, behind) = unquoted(quoted).ok_or("a quote is left open")?;
            (Name(name, true), behind)
        }
        None => {
            let (name, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            (Name(name.trim_end().to_owned(), false), behind)
        }
    };
    if name.0.is_empty() {
        return Err("a name is empty".into());
    }
    Ok((name, behind.trim_start()))
}

/// The name up to its closing quote, and the remaining text; `None` if there is no closing quote.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let (piece, behind) = rest.split_once('"')?;
        name.push_str(piece);
        match behind.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_sql_reads_them_in_quotes() {
        let read = |list: &str| list.parse::<Names>().map(|names| names.0);
        assert_eq!(read("a,B c,d").unwrap(), ["a", "B c", "d"]);
        assert_eq!(read("\"a,b\",c,\"d \"\"e\"\"\"").unwrap(), ["a,b", "c", "d \"e\""]);
        assert_eq!(read("*").unwrap(), ["*"]);
        assert_eq!(read(" a , B c, \" d\" ,e").unwrap(), ["a", "B c", " d", "e"]);
        for bad in ["", " ", "a,", ",a", "a, ,b", "\"a", "\"a\"b", "\"\""] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_dash_without_quotes_is_no_column() {
        let some = |name: &str| Some(name.to_owned());
        let fields = "a, - ,\"-\",--".parse::<Fields>().unwrap().0;
        assert_eq!(fields, [some("a"), None, some("-"), some("--")]);
        let pairs = "File Name = file, \"a=b\"=-,c=\"-\"".parse::<Pairs>().unwrap().0;
        let expected = [("File Name", some("file")), ("a=b", None), ("c", some("-"))];
        assert_eq!(pairs, expected.map(|(name, column)| (name.to_owned(), column)));
        for bad in ["", "a", "a=", "=a", "a=b=", "a=b,", "a,b=c", "\"a\"b=c"] {
            let read = bad.parse::<Pairs>();
            assert!(read.is_err() || bad == "a=b=", "{bad}: {read:?}");
        }
    }
}
