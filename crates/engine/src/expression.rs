//! Expressions of `--expr`: SQL in which `?` stands for a field's text.

use crate::error::Error;
use crate::text::text;

/// An expression, split where the field's text is inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// the column of its value
    pub column: String,
    /// the expression as it was given
    pub sql: String,
    /// the SQL between the insertions
    pieces: Vec<String>,
}

impl Expression {
    /// Parses an expression. A `?` in a string, a quoted name or a comment stays as it is, and `??`
    /// stands for a `?` of an operator.
    ///
    /// # Errors
    ///
    /// There is no `?`; or there is a parameter; or a parenthesis, a string, a name or a comment is
    /// left open; or it is more than one expression.
    pub fn new(column: &str, sql: &str) -> Result<Expression, Error> {
        let wrong = |what: &str| Error::usage(text!("`expr` {}: {}: {}", column, what, sql));
        let (mut pieces, mut depth, mut at) = (vec![String::new()], 0_u32, 0);
        while let Some(c) = sql[at..].chars().next() {
            let rest = &sql[at..];
            let length = match c {
                '?' if rest.starts_with("??") => {
                    push(&mut pieces, "?");
                    at += 2;
                    continue;
                }
                '?' => {
                    pieces.push(String::new());
                    at += 1;
                    continue;
                }
                ';' => return Err(wrong("it is more than one expression")),
                '(' | '[' => {
                    depth += 1;
                    1
                }
                ')' | ']' => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or_else(|| wrong("a parenthesis is closed that was not opened"))?;
                    1
                }
                '$' if is_parameter(&sql[..at], rest) => {
                    return Err(wrong("it has a parameter; only ? is allowed"))
                }
                ',' if depth == 0 => return Err(wrong("it is more than one expression")),
                _ => quoted(&sql[..at], rest).ok_or_else(|| wrong("a quote is left open"))?,
            };
            push(&mut pieces, &rest[..length]);
            at += length;
        }
        match pieces.len() {
            _ if depth > 0 => Err(wrong("a parenthesis is left open")),
            1 => Err(wrong("it has no ?")
                .with_hint("? stands for the field's text: `expr` n='replace(?, '','', ''.'')'")),
            _ => Ok(Expression { column: column.into(), sql: sql.into(), pieces }),
        }
    }

    /// Returns the SQL, with `text` in place of the field's text.
    pub fn of(&self, text: &str) -> String {
        // The line end closes a comment at the end of the expression.
        format!("({}\n)", self.pieces.join(text))
    }
}

fn push(pieces: &mut [String], text: &str) {
    if let Some(piece) = pieces.last_mut() {
        piece.push_str(text);
    }
}

/// Returns the length of the first token of `rest`: a string, a quoted name, a comment, or a
/// character. `None` if it has no end.
fn quoted(before: &str, rest: &str) -> Option<usize> {
    let ends = |mark: &str, from: usize| rest[from..].find(mark).map(|at| from + at + mark.len());
    let first = rest.chars().next().map_or(0, char::len_utf8);
    match rest.as_bytes() {
        [b'\'', ..] => string(rest, escapes(before)),
        [b'"', ..] => ends("\"", 1),
        [b'-', b'-', ..] => Some(rest.find('\n').unwrap_or(rest.len())),
        [b'/', b'*', ..] => comment(rest),
        [b'$', ..] if !in_name(before) => {
            let word = rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_');
            let tag = word.map_or(rest.len(), |word| word + 1);
            match rest.as_bytes().get(tag) {
                Some(b'$') => ends(&rest[..=tag], tag + 1),
                _ => Some(first),
            }
        }
        _ => Some(first),
    }
}

fn is_parameter(before: &str, rest: &str) -> bool {
    !in_name(before) && rest[1..].starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a name or a number ends just before.
fn in_name(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// Whether backslashes escape in the string that follows, as in `E'…'`.
fn escapes(before: &str) -> bool {
    before.strip_suffix(['e', 'E']).is_some_and(|before| !in_name(before))
}

fn string(rest: &str, escapes: bool) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'\\' if escapes => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Returns the length of a comment. Comments nest, as in SQL.
fn comment(rest: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    loop {
        let pair = rest.as_bytes().get(at..at + 2)?;
        match pair {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_question_mark_of_sql_is_the_field() {
        let of = |sql: &str| Expression::new("c", sql).map(|e| e.of("X"));
        for (sql, expected) in [
            ("trim(?)", "trim(X)"),
            ("? || '?' || ?", "X || '?' || X"),
            ("replace(?, 'it''s ?', '')", "replace(X, 'it''s ?', '')"),
            ("e'\\'?' || ?", "e'\\'?' || X"),
            ("some'\\' || ?", "some'\\' || X"),
            ("\"a?\" || \"b\"\"?\" || ?", "\"a?\" || \"b\"\"?\" || X"),
            ("$$?$$ || $a$ $$ ? $a$ || ?", "$$?$$ || $a$ $$ ? $a$ || X"),
            ("a$b$ || ?", "a$b$ || X"),
            ("?::jsonb ?? 'a' -- a ? here", "X::jsonb ? 'a' -- a ? here"),
            ("/* ? /* ? */ ' */ ?", "/* ? /* ? */ ' */ X"),
            ("coalesce(?, (array['a', 'b'])[1])", "coalesce(X, (array['a', 'b'])[1])"),
            ("'é' || ?", "'é' || X"),
        ] {
            assert_eq!(of(sql).unwrap(), format!("({expected}\n)"), "{sql}");
        }
        for (sql, says) in [
            ("now()", "it has no ?"),
            ("'?'", "it has no ?"),
            ("??", "it has no ?"),
            ("?), (1", "closed that was not opened"),
            ("?, 1", "more than one expression"),
            ("?; DROP TABLE t", "more than one expression"),
            ("? || $1", "only ? is allowed"),
            ("f(?", "a parenthesis is left open"),
            ("? || 'a", "a quote is left open"),
            ("? || \"a", "a quote is left open"),
            ("? /* /* */", "a quote is left open"),
            ("? || $x$ $$", "a quote is left open"),
        ] {
            let said = of(sql).unwrap_err().message().clone();
            assert!(said.contains(says), "{sql}: {said:?}");
        }
    }
}
