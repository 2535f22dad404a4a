//! Texts for users, which keep apart which of their words name a setting.
//!
//! A program has its own way to write a setting: on the command line it is `--truncate`. Settings
//! are marked by backquotes in the literals of this library alone. A value that is put into a
//! text is never searched for them, so it stays as the user wrote it, whatever it reads.

use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display, Formatter, Write};
use std::ops::{Deref, Range};

/// A message, a hint, a note or a reason. As a `str` it has each setting by its plain name.
///
/// It is not `Display`, since a text that is formatted into another one would lose what it knows
/// of its settings: that takes `text!`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub struct Text {
    plain: String,
    settings: Vec<Range<usize>>,
}

impl Text {
    /// The text with each setting as `name` writes it.
    pub fn with(&self, name: impl Fn(&str) -> String) -> String {
        let (mut out, mut at) = (String::new(), 0);
        for setting in &self.settings {
            out += &self.plain[at..setting.start];
            out += &name(&self.plain[setting.clone()]);
            at = setting.end;
        }
        out + &self.plain[at..]
    }

    /// The text with each setting by its plain name.
    pub fn plain(&self) -> &str {
        &self.plain
    }

    /// The settings that it names, in order: what a hint says to change.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| &self.plain[setting.clone()])
    }

    /// A setting alone.
    pub(crate) fn setting(name: &str) -> Text {
        let whole = 0..name.len();
        Text { plain: name.to_owned(), settings: vec![whole] }
    }

    /// As `text!`, which checks the number of the values.
    pub(crate) fn filled(template: &'static str, values: &[&dyn TextPart]) -> Text {
        let mut text = Text::default();
        for (i, words) in template.split("{}").enumerate() {
            if let Some(value) = i.checked_sub(1).and_then(|before| values.get(before)) {
                value.append_to(&mut text);
            }
            text.append_literal(words);
        }
        text
    }

    /// All of them, with `between` between them.
    pub(crate) fn join(all: &[Text], between: &'static str) -> Text {
        let mut text = Text::default();
        for (i, part) in all.iter().enumerate() {
            text.append_literal(if i > 0 { between } else { "" });
            part.append_to(&mut text);
        }
        text
    }

    /// Words of this library, where a word of lower case in backquotes names a setting.
    fn append_literal(&mut self, mut words: &'static str) {
        let is_name = |name: &&str| {
            !name.is_empty() && name.bytes().all(|c| c.is_ascii_lowercase() || c == b'-')
        };
        while let Some((before, after)) = words.split_once('`') {
            self.plain += before;
            match after.split_once('`').filter(|(name, _)| is_name(name)) {
                Some((name, rest)) => {
                    Text::setting(name).append_to(self);
                    words = rest;
                }
                None => {
                    self.plain.push('`');
                    words = after;
                }
            }
        }
        self.plain += words;
    }
}

/// What can be put into a text: another one, or anything that can be shown.
pub(crate) trait TextPart {
    /// Adds it to the end.
    fn append_to(&self, text: &mut Text);
}

impl TextPart for Text {
    fn append_to(&self, text: &mut Text) {
        let at = text.plain.len();
        text.plain += &self.plain;
        text.settings.extend(self.settings.iter().map(|s| s.start + at..s.end + at));
    }
}

impl<T: Display> TextPart for T {
    fn append_to(&self, text: &mut Text) {
        let _ = write!(text.plain, "{self}");
    }
}

/// `text!("`map` names {}, which the header does not have", name)`: as `format!`, for a text.
/// A value takes the place of each `{}`; there are no other placeholders.
macro_rules! text {
    ($template:literal $(, $value:expr)* $(,)?) => {{
        const _: () = $crate::text::check($template, <[&str]>::len(&[$(stringify!($value)),*]));
        $crate::text::Text::filled($template, &[$(&$value),*])
    }};
}
pub(crate) use text;

/// Stops the compiler where a template has another number of places than there are values.
pub(crate) const fn check(template: &str, values: usize) {
    let (bytes, mut at, mut places) = (template.as_bytes(), 0, 0);
    while at < bytes.len() {
        if bytes[at] == b'{' {
            assert!(at + 1 < bytes.len() && bytes[at + 1] == b'}', "no placeholder but {{}}");
            places += 1;
        }
        at += 1;
    }
    assert!(places == values, "one value for each {{}}");
}

/// A literal of this library, with its settings.
impl From<&'static str> for Text {
    fn from(words: &'static str) -> Text {
        let mut text = Text::default();
        text.append_literal(words);
        text
    }
}

/// Words without a setting: they may be a user's.
impl From<String> for Text {
    fn from(plain: String) -> Text {
        Text { plain, settings: Vec::new() }
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.plain
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.plain
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.plain == other
    }
}

impl Debug for Text {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.plain, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &Text) -> String {
        text.with(|name| format!("--{name}"))
    }

    #[test]
    fn settings_of_literals_are_named_and_values_stay() {
        for (literal, plain, written) in [
            ("`truncate` empties it", "truncate empties it", "--truncate empties it"),
            (
                "`header`=ignore, `columns` a",
                "header=ignore, columns a",
                "--header=ignore, --columns a",
            ),
            (
                "run `pgsluice repair` or `a`",
                "run `pgsluice repair` or a",
                "run `pgsluice repair` or --a",
            ),
            (
                "a ` alone, `no such setting`",
                "a ` alone, `no such setting`",
                "a ` alone, `no such setting`",
            ),
            ("{time} in the name", "{time} in the name", "{time} in the name"),
        ] {
            let text = Text::from(literal);
            assert_eq!((&*text, flags(&text).as_str()), (plain, written));
        }
        let value = "`truncate`".to_owned();
        assert_eq!(flags(&value.clone().into()), value);
        let inner = text!("`map` {} `set`", value);
        assert_eq!(
            flags(&text!("{}: {}{}", value, inner, 7)),
            "`truncate`: --map `truncate` --set7"
        );
        assert_eq!(inner.settings().collect::<Vec<_>>(), ["map", "set"]);
        let both = Text::join(&[inner.clone(), inner], " and `null`, ");
        assert_eq!(flags(&both), "--map `truncate` --set and --null, --map `truncate` --set");
    }
}
