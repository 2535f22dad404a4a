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

/// `host=h password=p` or `password='p q'`, with `\` before what is meant literally.
fn strip_keyword(target: &str) -> Option<(String, String)> {
    let key = "password=";
    let starts = |at: &usize| *at == 0 || target[..*at].ends_with(char::is_whitespace);
    let at = target.match_indices(key).map(|(at, _)| at).find(starts)?;
    let value = &target[at + key.len()..];
    let quoted = value.starts_with('\'');
    let mut password = String::new();
    let mut chars = value.char_indices().skip(usize::from(quoted));
    let mut end = value.len();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => password.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => {
                end = i + 1;
                break;
            }
            c if !quoted && c.is_whitespace() => {
                end = i;
                break;
            }
            c => password.push(c),
        }
    }
    Some((format!("{}{}", &target[..at], value[end..].trim_start()), password))
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
        ];
        for (target, clean, password) in cases {
            assert_eq!(strip(target), Some((clean.into(), password.into())));
        }
        for target in ["postgresql://u@h/db", "host=h", "", "postgresql:///a:b@c"] {
            assert_eq!(strip(target), None, "{target}");
        }
    }
}
