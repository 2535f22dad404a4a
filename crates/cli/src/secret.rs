//! A password on the command line: out of the process list before anything else.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// If the target of `--to` holds a password, runs the program anew with the
/// password in the environment, where only the same user can see it.
///
/// # Errors
///
/// The program could not be run anew.
pub fn hide() -> std::io::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some((hidden, password)) = without_password(&arguments) else { return Ok(()) };
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg0(&hidden[0]).args(&hidden[1..]).env("PGPASSWORD", password);
    // Returns only if it failed.
    Err(command.exec())
}

fn without_password(arguments: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let mut hidden = arguments.to_vec();
    for i in 0..hidden.len() {
        let text = hidden[i].to_str()?.to_owned();
        let follows = i > 0 && hidden[i - 1] == "--to";
        let target = match text.strip_prefix("--to=") {
            Some(target) => target,
            None if follows => text.as_str(),
            None => continue,
        };
        let (clean, password) = strip(target)?;
        hidden[i] = format!("{}{clean}", &text[..text.len() - target.len()]).into();
        return Some((hidden, password));
    }
    None
}

/// The target without its password, and the password.
fn strip(target: &str) -> Option<(String, String)> {
    let url = ["postgresql://", "postgres://"].iter().find_map(|s| target.strip_prefix(s));
    let Some(rest) = url else { return strip_keyword(target) };
    let scheme = &target[..target.len() - rest.len()];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    if let Some((user, host)) = rest[..end].rsplit_once('@') {
        if let Some((user, password)) = user.split_once(':') {
            return Some((format!("{scheme}{user}@{host}{}", &rest[end..]), decoded(password)?));
        }
    }
    let (path, query) = target.split_once('?')?;
    let (secret, kept): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|pair| pair.starts_with("password="));
    let password = decoded(secret.first()?.strip_prefix("password=")?)?;
    let mark = if kept.is_empty() { "" } else { "?" };
    Some((format!("{path}{mark}{}", kept.join("&")), password))
}

/// `host=h password=p` or `password = 'p q'`, with `\` before what is meant
/// literally, by the rules of libpq (`conninfo_parse`).
fn strip_keyword(target: &str) -> Option<(String, String)> {
    let mut rest = target.trim_start();
    while !rest.is_empty() {
        let start = target.len() - rest.len();
        let (keyword, value) = rest.split_once('=')?;
        let (value, after) = keyword_value(value.trim_start());
        if keyword.trim_end() == "password" {
            return Some((format!("{}{}", &target[..start], after.trim_start()), value));
        }
        rest = after.trim_start();
    }
    None
}

/// The value at the start of the text, and what follows it.
fn keyword_value(text: &str) -> (String, &str) {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return (value, &text[i + 1..]),
            c if !quoted && c.is_ascii_whitespace() => return (value, &text[i..]),
            c => value.push(c),
        }
    }
    (value, "")
}

/// Percent-encoding resolved.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_target() {
        let cases = [
            ("postgresql://u:a%40b@h:1/db?x=y", "postgresql://u@h:1/db?x=y", "a@b"),
            ("postgres:///db?password=p&host=h", "postgres:///db?host=h", "p"),
            ("postgresql://u@h/db?password=p", "postgresql://u@h/db", "p"),
            ("host=h password=p user=u", "host=h user=u", "p"),
            ("password='a b\\'c' host=h", "host=h", "a b'c"),
            ("host = h password = p user=u", "host = h user=u", "p"),
            ("user='password=x' password=\\'p\\ q", "user='password=x' ", "'p q"),
        ];
        for (target, clean, password) in cases {
            assert_eq!(strip(target), Some((clean.into(), password.into())));
        }
        for target in
            ["postgresql://u@h/db", "host=h", "", "postgresql:///a:b@c", "host=h password"]
        {
            assert_eq!(strip(target), None, "{target}");
        }
    }
}
