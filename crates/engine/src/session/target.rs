//! The target of a connection, as the user writes it. libpq parses it, so that this program finds
//! secrets in it wherever libpq would find them.

use super::conn::c_string;
use super::libpq::*;
use super::refused::GENERAL;
use crate::error::Error;
use crate::text::text;
use std::ffi::{c_char, CStr, CString};
use std::ptr;

/// The environment variable with the secrets of a target whose text is visible to other users, as
/// libpq's keywords and values. Only processes of the same user can read the environment. libpq has
/// its own variable for only one of the secrets, and a service file overrides that.
pub const SECRETS: &str = "PGSLUICE_SECRETS";

const ESCAPES: &str = "within a URL's password / is written %2F, @ %40, : %3A, % %25";

/// Words that are part of the name of a secret or begin it, or that precede a secret.
const SUSPECT: [&str; 4] = ["pass", "secret", "scram", "@"];

/// Keywords of libpq with their values in a target.
pub(super) type TargetKeywords = Vec<(String, String)>;

/// A target in two parts, both as libpq's keywords and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parted {
    /// the part that everybody may see
    pub shown: String,
    /// passwords and keys
    pub secrets: String,
}

/// Separates a target from the secrets in it. Returns `None` if there are none.
///
/// # Errors
///
/// libpq cannot read the target, or takes a part of a password for a host or a port. The message
/// contains nothing that may be secret.
pub fn part(target: &str) -> Result<Option<Parted>, Error> {
    let (secret, plain): (TargetKeywords, TargetKeywords) =
        read(target)?.into_iter().partition(|(k, _)| secret(k));
    let parted = || Parted { shown: written(&plain), secrets: written(&secret) };
    Ok((!secret.is_empty()).then(parted))
}

/// Parses a target into its keywords and values.
///
/// # Errors
///
/// As for [`part`].
pub(super) fn read(target: &str) -> Result<TargetKeywords, Error> {
    // As libpq distinguishes a database name from a connection string
    // (`recognized_connection_string`).
    let url = ["postgresql://", "postgres://"].iter().any(|scheme| target.starts_with(scheme));
    if let (Some((scheme, _)), false) = (target.split_once("://"), url) {
        // libpq would take this for a database name, or repeat a password in it.
        let bare = scheme.strip_prefix("jdbc:").unwrap_or(scheme);
        if bare.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
            return Err(Error::usage(format!("{scheme}:// is not the URL of a PostgreSQL server"))
                .with_hint("URLs begin with postgresql:// or postgres://"));
        }
    }
    if !url && !target.contains('=') {
        return Ok(Vec::new());
    }
    let pairs = parse(target)?;
    let value = |keyword| pairs.iter().find(|(k, _)| k == keyword).map_or("", |(_, v)| v.as_str());
    let number = |c: char| c.is_ascii_digit() || c == ',';
    if !value("port").chars().all(number) {
        return Err(Error::usage("the port of the target is not a number").with_hint(ESCAPES));
    }
    if value("host").contains('@') && !value("host").starts_with(['/', '@']) {
        return Err(Error::usage("the host of the target has an @").with_hint(ESCAPES));
    }
    Ok(pairs)
}

/// Adds to a target what options give: the keyword, the name of the option, the value. The programs
/// of libpq let the target win; here a contradiction is an error.
///
/// # Errors
///
/// As for [`part`], or the target has one of the keywords.
pub fn joined(target: &str, options: &[(&str, &str, &str)]) -> Result<String, Error> {
    if options.is_empty() {
        return Ok(target.to_owned());
    }
    let mut pairs = read(target)?;
    if pairs.is_empty() && !target.is_empty() {
        pairs.push(("dbname".into(), target.into()));
    }
    for (keyword, option, value) in options {
        if pairs.iter().any(|(known, given)| known == keyword && !given.is_empty()) {
            let message = text!("`to` has a {}, and {} gives another one", keyword, option);
            return Err(Error::usage(message).with_hint("leave one of the two out"));
        }
        pairs.retain(|(known, _)| known != keyword);
        pairs.push(((*keyword).into(), (*value).into()));
    }
    Ok(written(&pairs))
}

fn secret(keyword: &str) -> bool {
    keyword.ends_with("password") || keyword.contains("secret") || keyword.starts_with("scram_")
}

/// Formats pairs as `keyword='value'`, by the rules of `conninfo_parse`.
pub(super) fn written(pairs: &TargetKeywords) -> String {
    let one = |(keyword, value): &(String, String)| {
        format!("{keyword}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
    };
    pairs.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Whether this program's libpq has a keyword.
pub(super) fn known(keyword: &str) -> bool {
    parse(&format!("{keyword}=''")).is_ok()
}

fn parse(target: &str) -> Result<TargetKeywords, Error> {
    let text = c_string(target)?;
    let mut fault: *mut c_char = ptr::null_mut();
    // SAFETY: a C string, and a location for a message.
    let options = unsafe { PQconninfoParse(text.as_ptr(), &mut fault) };
    if options.is_null() {
        return Err(unreadable(target, fault));
    }
    let mut pairs = Vec::new();
    let mut next = options;
    // SAFETY: the array ends with an entry whose keyword is NULL; every keyword, and every value
    // that is not NULL, is a C string that lives as long as the array.
    unsafe {
        while !(*next).keyword.is_null() {
            if !(*next).val.is_null() {
                pairs.push((copied((*next).keyword), copied((*next).val)));
            }
            next = next.add(1);
        }
        PQconninfoFree(options);
    }
    Ok(pairs)
}

/// # Safety
///
/// `text` is a C string.
unsafe fn copied(text: *const c_char) -> String {
    // SAFETY: the caller ensures it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The error for a target that libpq cannot read. libpq repeats that text in quotes.
fn unreadable(target: &str, fault: *mut c_char) -> Error {
    let mut message = String::from("out of memory");
    if !fault.is_null() {
        // SAFETY: a message of libpq is a C string, and is freed once.
        message = unsafe { copied(fault) };
        // SAFETY: as above.
        unsafe { PQfreemem(fault.cast()) };
    }
    let message = message.trim();
    if !SUSPECT.iter().any(|word| target.contains(word)) {
        return Error::usage(message.to_owned()).with_hint(GENERAL);
    }
    let plain: Vec<&str> = match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) => vec![&message[..first], &message[last + 1..]],
        _ => vec![message],
    };
    Error::usage(format!("the target cannot be read: {}", plain.join("********")))
        .with_hint(ESCAPES)
}

/// The secrets from the environment variable, for `PQconnectdbParams`. Returns none if the target
/// has a password, even an empty one: then it is the target of another server.
///
/// # Errors
///
/// As for [`part`].
pub(super) fn secrets(target: &TargetKeywords) -> Result<Vec<(CString, CString)>, Error> {
    if target.iter().any(|(keyword, _)| keyword == "password") {
        return Ok(Vec::new());
    }
    let pairs = std::env::var(SECRETS).map_or(Ok(Vec::new()), |text| parse(&text))?;
    pairs.iter().map(|(keyword, value)| Ok((c_string(keyword)?, c_string(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_parted_in_every_form_of_a_target() {
        let cases = [
            ("postgresql://u:a%40b@h:1/d?connect_timeout=3", "password='a@b'"),
            ("postgres://u@h:1/d?pass%77ord=p&connect_timeout=3", "password='p'"),
            ("postgres://u:first@h:1/d?password=p&connect_timeout=3", "password='p'"),
            ("postgresql://u:p?q@h:1/d?connect_timeout=3", "password='p?q'"),
            (
                "user=u host=h port=1 dbname=d connect_timeout=3 password=\\'p\\ q",
                "password='\\'p q'",
            ),
            (
                "password=x password='p' port=1 dbname=d user=u connect_timeout=3 host=h",
                "password='p'",
            ),
            (
                "postgresql://u:p@h:1/d?sslpassword=k%27&connect_timeout=3",
                "password='p' sslpassword='k\\''",
            ),
            (
                "sslpassword = 'a b' host=h user=u dbname=d port=1 connect_timeout=3",
                "sslpassword='a b'",
            ),
        ];
        for (target, secrets) in cases {
            let parted = part(target).unwrap().unwrap();
            let words = |text: &str| {
                let mut all: Vec<String> = text.split(' ').map(str::to_owned).collect();
                all.sort();
                all
            };
            let shown = "connect_timeout='3' dbname='d' host='h' port='1' user='u'";
            assert_eq!(words(&parted.shown), words(shown), "{target}");
            assert_eq!(words(&parted.secrets), words(secrets), "{target}");
            // The written form is parsed to the same result.
            assert_eq!(part(&parted.secrets).unwrap().unwrap().secrets, parted.secrets);
        }
        for plain in ["", "shop", "postgresql://u@h/db", "host=h", "user='password=x'", "service=s"]
        {
            assert_eq!(part(plain).unwrap(), None, "{plain}");
        }
    }

    #[test]
    fn options_are_joined_to_every_form_of_a_target() {
        let host = ("host", "`host`", "h");
        let user = ("user", "`username`", "o'neil");
        let cases = [
            ("", "host='h' user='o\\'neil'"),
            ("shop", "dbname='shop' host='h' user='o\\'neil'"),
            ("dbname=shop port=1", "dbname='shop' port='1' host='h' user='o\\'neil'"),
            ("postgresql:///shop", "dbname='shop' host='h' user='o\\'neil'"),
            ("postgresql://:7/shop", "port='7' dbname='shop' host='h' user='o\\'neil'"),
        ];
        for (target, whole) in cases {
            let made = joined(target, &[host, user]).unwrap();
            let words = |text: &str| {
                let mut all: Vec<String> = text.split(' ').map(str::to_owned).collect();
                all.sort();
                all
            };
            assert_eq!(words(&made), words(whole), "{target}");
            assert!(read(&made).unwrap().contains(&("user".into(), "o'neil".into())), "{made}");
            assert_eq!(joined(target, &[]).unwrap(), target);
        }
        for target in ["host=x", "postgresql://x/shop"] {
            let error = joined(target, &[host]).unwrap_err();
            assert!(error.message().contains("`host`"), "{error}");
        }
    }

    #[test]
    fn passwords_do_not_appear() {
        for target in [
            "postgresql://u:s3cr3t%@h/db",
            "postgresql://u:s3cr3t/pa@h/db",
            "postgresql://u:pa@s3cr3t@h/db",
            "postgresql://u@h/db?sslpassword=s3cr3t%zz",
            "postgresql://u:s3cr3t@[h/db",
            "password='s3cr3t",
            "host=h password=pa s3cr3t",
            "host=h password=pa s3cr3t=x user=u",
        ] {
            let error = part(target).expect_err(target);
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
            assert!(error.hint().is_some_and(|hint| !hint.contains("s3cr3t")), "{error}");
        }
        let error = part("hots=h").unwrap_err();
        assert!(error.message().contains("hots"), "{error}");
    }
}
