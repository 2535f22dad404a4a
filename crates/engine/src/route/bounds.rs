//! Parses the bound of a partition from the text that `pg_get_expr` returns for
//! `pg_class.relpartbound`. This form is public and the same in every major version.

/// One value of a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// `NULL`
    Null,
    /// `MINVALUE`
    Min,
    /// `MAXVALUE`
    Max,
    /// the text of a literal, as the type's output function writes it
    Text(String),
}

/// The bound of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `DEFAULT`
    Default,
    /// `IN (…)`
    List(Vec<Datum>),
    /// `FROM (…) TO (…)`
    Range(Vec<Datum>, Vec<Datum>),
    /// `WITH (modulus …, remainder …)`
    Hash {
        /// divides the greatest modulus
        modulus: u64,
        /// the remainder of the hash divided by `modulus`
        remainder: u64,
    },
}

/// Parses a bound. Returns `None` if any part of it is not recognized.
pub fn parse(text: &str) -> Option<Bound> {
    if text == "DEFAULT" {
        return Some(Bound::Default);
    }
    let mut text = Text(text.strip_prefix("FOR VALUES ")?);
    let bound = if text.skip("IN ") {
        Bound::List(text.datums()?)
    } else if text.skip("FROM ") {
        let from = text.datums()?;
        text.skip(" TO ").then_some(())?;
        Bound::Range(from, text.datums()?)
    } else {
        text.skip("WITH (modulus ").then_some(())?;
        let modulus = text.word().parse().ok()?;
        text.skip(", remainder ").then_some(())?;
        let remainder = text.word().parse().ok()?;
        text.skip(")").then_some(())?;
        Bound::Hash { modulus, remainder }
    };
    text.0.is_empty().then_some(bound)
}

/// The text that is left to parse.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn skip(&mut self, words: &str) -> bool {
        let rest = self.0.strip_prefix(words);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Letters, digits, signs and periods.
    fn word(&mut self) -> &'a str {
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        let end = self.0.find(|c| !part(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    /// `(a, b, …)`
    fn datums(&mut self) -> Option<Vec<Datum>> {
        self.skip("(").then_some(())?;
        let mut all = Vec::new();
        loop {
            all.push(self.datum()?);
            if self.skip(")") {
                return Some(all);
            }
            self.skip(", ").then_some(())?;
        }
    }

    fn datum(&mut self) -> Option<Datum> {
        if self.skip("'") {
            return self.quoted().map(Datum::Text);
        }
        match self.word() {
            "" => None,
            "NULL" => Some(Datum::Null),
            "MINVALUE" => Some(Datum::Min),
            "MAXVALUE" => Some(Datum::Max),
            word => Some(Datum::Text(word.to_owned())),
        }
    }

    /// Reads the rest of a literal. The meaning of a backslash depends on a setting, so none is
    /// accepted.
    fn quoted(&mut self) -> Option<String> {
        let mut value = String::new();
        loop {
            let end = self.0.find('\'')?;
            value.push_str(&self.0[..end]);
            self.0 = &self.0[end + 1..];
            if !self.skip("'") {
                return (!value.contains('\\')).then_some(value);
            }
            value.push('\'');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_whole_or_not_at_all() {
        let text = |text: &str| Datum::Text(text.into());
        let cases = [
            ("DEFAULT", Bound::Default),
            (
                "FOR VALUES WITH (modulus 64, remainder 7)",
                Bound::Hash { modulus: 64, remainder: 7 },
            ),
            (
                "FOR VALUES IN ('o''neil, (x)', NULL, '-5', 7, true)",
                Bound::List(vec![
                    text("o'neil, (x)"),
                    Datum::Null,
                    text("-5"),
                    text("7"),
                    text("true"),
                ]),
            ),
            (
                "FOR VALUES FROM (MINVALUE, '2024-01-01') TO (10, MAXVALUE)",
                Bound::Range(vec![Datum::Min, text("2024-01-01")], vec![text("10"), Datum::Max]),
            ),
        ];
        for (written, bound) in cases {
            assert_eq!(parse(written), Some(bound), "{written}");
        }
        for strange in [
            "",
            "FOR VALUES IN ('a\\\\b')",
            "FOR VALUES IN ('a'",
            "FOR VALUES IN ()",
            "FOR VALUES IN (1) x",
            "FOR VALUES FROM (1)",
            "FOR VALUES WITH (modulus 4, remainder -1)",
            "FOR VALUES IN ('1'::text)",
        ] {
            assert_eq!(parse(strange), None, "{strange}");
        }
    }
}
