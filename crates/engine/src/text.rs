//! Texts for users, in which the words that name a setting are marked.
//!
//! A program has its own form for a setting: on a command line it is `--truncate`. Only the
//! literals of this library mark settings, by backquotes. A value that is inserted into a text is
//! never searched for them, so it stays as the user wrote it, whatever it contains.

use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display, Formatter, Write};
use std::ops::{Deref, Range};

/// A message, a hint, a note or a reason. As a `str` it has the plain name of each setting.
///
/// It does not implement `Display`: a text formatted into another one would lose the marks of its
/// settings. Use `text!` for that.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub struct Text {
    plain: String,
    settings: Vec<Range<usize>>,
}

impl Text {
    /// The text, with each setting in the form that `name` returns.
    pub fn with(&self, name: impl Fn(&str) -> String) -> String {
        let (mut out, mut at) = (String::new(), 0);
        for setting in &self.settings {
            out += &self.plain[at..setting.start];
            out += &name(&self.plain[setting.clone()]);
            at = setting.end;
        }
        out + &self.plain[at..]
    }

    /// The text, with the plain name of each setting.
    pub fn plain(&self) -> &str {
        &self.plain
    }

    /// The settings that it names, in order. In a hint, these are the ones to change.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| &self.plain[setting.clone()])
    }

    /// A text that is only the name of a setting.
    pub(crate) fn setting(name: &str) -> Text {
        let whole = 0..name.len();
        Text { plain: name.to_owned(), settings: vec![whole] }
    }

    /// The function for `text!`, which checks the number of the values.
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

    /// All texts, separated by `between`.
    pub(crate) fn join(all: &[Text], between: &'static str) -> Text {
        let mut text = Text::default();
        for (i, part) in all.iter().enumerate() {
            text.append_literal(if i > 0 { between } else { "" });
            part.append_to(&mut text);
        }
        text
    }

    /// Appends words of this library. A lower-case word in backquotes names a setting.
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

/// A value that can be inserted into a text: another text, or anything that can be displayed.
pub(crate) trait TextPart {
    /// Appends it to `text`.
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

/// `text!("`map` names {}, which the header does not have", name)`: like `format!`, for a text.
/// Each `{}` is replaced by a value. There are no other placeholders.
macro_rules! text {
    ($template:literal $(, $value:expr)* $(,)?) => {{
        const _: () = $crate::text::check($template, <[&str]>::len(&[$(stringify!($value)),*]));
        $crate::text::Text::filled($template, &[$(&$value),*])
    }};
}
pub(crate) use text;

/// Fails the compilation if the numbers of placeholders and values differ.
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

/// Words without settings. They may be from a user.
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
