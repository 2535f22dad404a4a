//! A password on the command line: out of the process list before anything else.

use crate::failure::Failure;
use pgsluice_engine::error::Error;
use pgsluice_engine::session::target::{part, SECRETS};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// If the target of `--to` holds secrets, runs the program anew with them in the
/// environment, where only the same user can see them.
///
/// # Errors
///
/// The target cannot be read, or the program could not be run anew.
pub fn hide() -> Result<(), Failure> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some((hidden, secrets)) = without_secrets(&arguments)? else { return Ok(()) };
    let failed = |e| Failure::new(format!("cannot hide the password: {e}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0(&hidden[0]).args(&hidden[1..]).env(SECRETS, secrets);
    // Returns only if it failed.
    Err(failed(command.exec()))
}

/// The arguments without the secrets of their target, and the secrets; `None`
/// where there are none. A second target is an error that is told later.
fn without_secrets(arguments: &[OsString]) -> Result<Option<(Vec<OsString>, String)>, Error> {
    for (i, argument) in arguments.iter().enumerate() {
        // Names of files may be anything.
        let Some(text) = argument.to_str() else { continue };
        let follows = i > 0 && arguments[i - 1] == "--to";
        let Some(target) = text.strip_prefix("--to=").or(follows.then_some(text)) else { continue };
        let Some(parted) = part(target)? else { continue };
        let mut hidden = arguments.to_vec();
        hidden[i] = format!("{}{}", &text[..text.len() - target.len()], parted.shown).into();
        return Ok(Some((hidden, parted.secrets)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn secrets_leave_the_arguments() {
        let odd = OsString::from_vec(b"\xff.csv".to_vec());
        for form in [&["--to", "user=u password=p"][..], &["--to=postgresql://u:p@"]] {
            let mut all: Vec<OsString> = vec!["pgsluice".into(), "load".into(), odd.clone()];
            all.extend(form.iter().map(OsString::from));
            let (hidden, secrets) = without_secrets(&all).unwrap().unwrap();
            assert_eq!(hidden.len(), all.len());
            assert_eq!(hidden[2], odd);
            let last = hidden.last().unwrap().to_str().unwrap();
            assert_eq!(last.trim_start_matches("--to="), "user='u'");
            assert_eq!(secrets, "password='p'");
        }
        for none in [&["--to"][..], &["--to", "shop"], &["x", "password=p"]] {
            let all: Vec<OsString> = none.iter().map(OsString::from).collect();
            assert!(without_secrets(&all).unwrap().is_none());
        }
    }
}
