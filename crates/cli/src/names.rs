//! Lists of column names on the command line.

use std::str::FromStr;

/// Names between commas, and blanks around them. A name in double quotes may hold a comma, and
/// a quote that is doubled, as in SQL; unlike there, one without quotes keeps its case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl FromStr for Names {
    type Err = String;

    fn from_str(list: &str) -> Result<Names, String> {
        let mut names = Vec::new();
        let mut rest = list.trim_start();
        loop {
            let (name, behind) = match rest.strip_prefix('"') {
                Some(quoted) => unquoted(quoted).ok_or("a quote is left open")?,
                None => {
                    let (name, _) = rest.split_once(',').unwrap_or((rest, ""));
                    (name.trim_end().to_owned(), &rest[name.len()..])
                }
            };
            if name.is_empty() {
                return Err("a name is empty".into());
            }
            names.push(name);
            let behind = behind.trim_start();
            match behind.strip_prefix(',') {
                Some(more) => rest = more.trim_start(),
                None if behind.is_empty() => return Ok(Names(names)),
                None => return Err(format!("a comma is missing before {behind}")),
            }
        }
    }
}

/// The name up to the quote that closes it, and what follows; `None` where none does.
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
}
