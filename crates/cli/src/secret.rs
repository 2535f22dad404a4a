//! Removes a password on the command line from the process list, before anything else.

use crate::failure::Failure;
use pgsluice_engine::target::{part, SECRETS};
use pgsluice_engine::{io_message, Error};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// If the target of `--to` or `-d` contains secrets, runs the program again with the secrets in an
/// environment variable, which only the same user can read.
///
/// # Errors
///
/// The target cannot be read, or the program could not be run again.
pub fn hide() -> Result<(), Failure> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some((hidden, secrets)) = without_secrets(&arguments)? else { return Ok(()) };
    let failed = |e| Failure::new(format!("cannot hide the password: {}", io_message(&e)));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0(&hidden[0]).args(&hidden[1..]).env(SECRETS, secrets);
    // `exec` returns only if it failed.
    Err(failed(command.exec()))
}

/// The arguments without the secrets of their target, and the secrets; `None` if there are none. A
/// second target is an error that is reported later.
fn without_secrets(arguments: &[OsString]) -> Result<Option<(Vec<OsString>, String)>, Error> {
    for (i, argument) in arguments.iter().enumerate() {
        // File names need not be UTF-8.
        let Some(text) = argument.to_str() else { continue };
        let follows = i > 0 && arguments[i - 1].to_str().is_some_and(|a| within(a) == Some(""));
        let Some(target) = within(text).filter(|t| !t.is_empty()).or(follows.then_some(text))
        else {
            continue;
        };
        let Some(parted) = part(target)? else { continue };
        let mut hidden = arguments.to_vec();
        hidden[i] = format!("{}{}", &text[..text.len() - target.len()], parted.shown).into();
        return Ok(Some((hidden, parted.secrets)));
    }
    Ok(None)
}

/// The part of the target that an argument contains, if the argument is an option for the target:
/// all of it, or an empty string if the next argument is the target. `-d` may follow other short
/// options, as in `-qd URL`.
fn within(argument: &str) -> Option<&str> {
    for option in ["--to", "--dbname"] {
        if let Some(rest) = argument.strip_prefix(option) {
            return if rest.is_empty() { Some(rest) } else { rest.strip_prefix('=') };
        }
    }
    let short = argument.strip_prefix('-')?.trim_start_matches(['q', 'v']).strip_prefix('d')?;
    Some(short.strip_prefix('=').unwrap_or(short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn secrets_leave_the_arguments() {
        let odd = OsString::from_vec(b"\xff.csv".to_vec());
        for form in [
            &["--to", "user=u password=p"][..],
            &["--to=postgresql://u:p@"],
            &["--dbname", "user=u password=p"],
            &["--dbname=postgresql://u:p@"],
            &["-d", "user=u password=p"],
            &["-dpostgresql://u:p@"],
            &["-d=postgresql://u:p@"],
            &["-qd", "user=u password=p"],
            &["-vqduser=u password=p"],
        ] {
            let mut all: Vec<OsString> = vec!["pgsluice".into(), "load".into(), odd.clone()];
            all.extend(form.iter().map(OsString::from));
            let (hidden, secrets) = without_secrets(&all).unwrap().unwrap();
            assert_eq!(hidden.len(), all.len());
            assert_eq!(hidden[2], odd);
            let last = hidden.last().unwrap().to_str().unwrap();
            assert!(last.ends_with("user='u'"), "{last}");
            assert!(!last.contains("password") && !last.contains("postgresql"), "{last}");
            assert_eq!(secrets, "password='p'");
        }
        for none in [&["--to"][..], &["--to", "shop"], &["x", "password=p"], &["-d"], &["-dshop"]] {
            let all: Vec<OsString> = none.iter().map(OsString::from).collect();
            assert!(without_secrets(&all).unwrap().is_none());
        }
    }
}
