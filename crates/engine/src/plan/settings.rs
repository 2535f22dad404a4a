//! Settings of the load's sessions.

use crate::facts::ServerFacts;
use crate::options::{Method, Options};

/// The settings of the session for the load, on a server of this major version.
pub fn settings(options: &Options, major: u32) -> Vec<(String, String)> {
    let mut all = Vec::new();
    // A statement for one row needs no exception from time limits.
    if options.target.method != Method::Insert {
        let timeouts = ["statement_timeout", "idle_in_transaction_session_timeout"];
        let whole = (major >= 17).then_some("transaction_timeout");
        let timeouts = timeouts.into_iter().chain(whole);
        all.extend(timeouts.map(|name| (name.to_string(), "0".to_string())));
    }
    let given = [
        ("DateStyle", &options.target.date_style),
        ("TimeZone", &options.target.time_zone),
        ("lock_timeout", &options.target.lock_timeout),
    ];
    for (name, value) in given {
        all.extend(value.clone().map(|v| (name.to_string(), v)));
    }
    all
}

pub(super) fn session_settings(
    options: &Options,
    server: &ServerFacts,
    method: Method,
) -> Vec<(String, String)> {
    let all = settings(options, server.major()).into_iter().chain(one_by_one(method));
    // It also builds indexes that are recreated.
    let builds = server.extension.as_ref().filter(|_| method != Method::Insert);
    let builds = builds.map(|_| (INDEX_BUILD.to_string(), "on".to_string()));
    all.chain(builds).collect()
}

/// The setting of the server's extension for index builds.
pub(crate) const INDEX_BUILD: &str = "pgsluice.index_build";

/// The setting for the method that commits each row.
fn one_by_one(method: Method) -> Option<(String, String)> {
    let value = "off, except for the last commit, which waits for all";
    (method == Method::Insert).then(|| ("synchronous_commit".into(), value.into()))
}
