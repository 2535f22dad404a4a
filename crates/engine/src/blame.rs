//! Decides whether a record is the cause of an error of the server, so that the load can continue
//! without it.

use crate::error::Error;
use crate::text::text;

/// The classes of the server's own SQLSTATEs (`errcodes.txt`, of all major versions). The authors
/// of triggers define other classes.
const POSTGRES: [&str; 44] = [
    "00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22",
    "23", "24", "25", "26", "27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40",
    "42", "44", "53", "54", "55", "57", "58", "72", "F0", "HV", "P0", "XX",
];

/// The server's functions that raise 54000 although no record is the cause: transaction IDs or
/// MultiXactIds have run out, a transaction has too many commands, a relation has too many blocks.
/// `rejects.c` of the extension has the same list.
const LIMITS_OF_THE_SERVER: [&str; 9] = [
    "GetNewTransactionId",
    "GetNewMultiXactId",
    "PushTransaction",
    "CommandCounterIncrement",
    "ReadBuffer_common",
    "ExtendBufferedRelShared",
    "ExtendBufferedRelLocal",
    "mdextend",
    "mdzeroextend",
];

/// The server's function that raised the error. Its name does not depend on the language.
fn function_of(error: &Error) -> Option<&str> {
    error.server().and_then(|says| says.function.as_deref())
}

/// Whether the server has reached a limit that it would reach with any record.
fn is_of_a_limit(error: &Error) -> bool {
    error.sqlstate() == "54000"
        && function_of(error).is_some_and(|function| LIMITS_OF_THE_SERVER.contains(&function))
}

/// Whether an error of the server is caused by the record.
///
/// These are data exceptions (22), integrity constraints (23), the check option of views (44),
/// exceptions that a trigger raises (P0 of PL/pgSQL, 38 of other languages, classes that are not
/// the server's), and limits such as the longest index row (54000). Everything else (connection,
/// disk, privileges, deadlock, cancellation, no more transaction IDs) fails the load.
pub fn is_of_the_record(error: &Error) -> bool {
    let sqlstate = error.sqlstate();
    let Some(class) = sqlstate.get(..2) else { return false };
    matches!(class, "22" | "23" | "38" | "44" | "P0")
        || sqlstate == "54000" && !is_of_a_limit(error)
        || !POSTGRES.contains(&class)
}

/// Whether an expression of the user may have raised an error with this SQLSTATE for a record: a
/// subquery has more than one row.
pub fn is_of_an_expression(sqlstate: &str) -> bool {
    sqlstate == "21000"
}

/// Whether a policy of row-level security rejects the row. The SQLSTATE is that of any missing
/// privilege; only the server's function distinguishes them.
pub fn is_of_a_policy(error: &Error) -> bool {
    error.sqlstate() == "42501" && function_of(error) == Some("ExecWithCheckOptions")
}

/// Whether a type's `recv` function may have raised an error with this SQLSTATE for the bytes of a
/// value: too few bytes (`pq_getmsgint`, protocol violation), another element type (`array_recv`),
/// an unknown version (`jsonb_recv`, internal). Use this only if the server names the value that it
/// was reading.
pub fn is_of_a_binary_value(sqlstate: &str) -> bool {
    matches!(sqlstate, "08P01" | "42804" | "XX000")
}

/// Whether a type's input function may have raised an error with this SQLSTATE for the text of a
/// value:
///
/// - that of `tsquery`, `tsvector`, `jsonpath` or `ltree` (syntax)
/// - that of `json` (nested too deep for the server's stack)
/// - that of `regclass` and similar types (not a name, or a name of nothing)
/// - that of extensions' types without their own codes (internal: PostGIS)
///
/// Use this only if the server names the value that it was reading, or if nothing else can be the
/// cause: an error in a statement may have the same codes.
pub fn is_of_a_text_value(sqlstate: &str) -> bool {
    is_of_a_literal(sqlstate)
        || matches!(sqlstate, "42704" | "42P01" | "42883" | "42725" | "3F000" | "XX000")
}

/// Whether it is one of those SQLSTATEs that are not about names. If an INSERT is well-formed and
/// its tables exist, such an error is about one of its values.
pub fn is_of_a_literal(sqlstate: &str) -> bool {
    matches!(sqlstate, "42601" | "42602" | "54001")
}

/// Whether a record may be the cause of an error of the server. Then it is worth looking for
/// the record before the load fails: a trigger may raise any error. No record is the cause of
/// errors of the connection, the transaction or the server.
pub fn may_be_of_a_record(error: &Error) -> bool {
    let class = error.sqlstate().get(..2);
    class.is_some_and(|c| !["08", "25", "40", "42", "53", "55", "57", "58", "XX"].contains(&c))
        && !is_of_a_limit(error)
}

/// Whether an error with this SQLSTATE is independent of the line that the server was reading: the
/// query was cancelled, the session ended, or a lock or disk space was not available.
pub fn is_of_circumstances(sqlstate: &str) -> bool {
    let class = sqlstate.get(..2).unwrap_or_default();
    matches!(class, "25" | "40" | "53" | "57" | "58") || sqlstate == "55P03"
}

/// Adds the user's condition to the error of a statement that the server cannot parse. This program
/// writes the rest of the statement, so the condition is wrong. The server does not say so.
pub fn of_condition(error: Error, condition: Option<&str>) -> Error {
    let context = error.server().and_then(|s| s.context.as_ref());
    let unread = error.sqlstate().starts_with("42") && error.sqlstate() != "42501";
    match condition {
        Some(condition) if unread && context.is_none() && error.hint().is_none() => {
            error.with_hint(text!("the condition of `where` is: {}", condition))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ServerSays;

    fn raised(sqlstate: &str, function: &str) -> Error {
        Error::new("x").with_server(ServerSays {
            sqlstate: sqlstate.into(),
            function: Some(function.into()),
            ..ServerSays::default()
        })
    }

    #[test]
    fn only_the_records_own_faults_are_rejected() {
        let of_triggers = ["P0001", "P0002", "38000", "45000", "ABC01"];
        let of_values = ["22P02", "22021", "23505", "23P01", "44000", "54000"];
        for own in of_values.into_iter().chain(of_triggers) {
            assert!(is_of_the_record(&raised(own, "any")), "{own}");
        }
        for other in ["53100", "57014", "42501", "40P01", "08006", "25006", "42601", ""] {
            assert!(!is_of_the_record(&raised(other, "any")), "{other}");
        }
        for other in ["42501", "53100", "57014", "XX001", ""] {
            assert!(!is_of_a_text_value(other), "{other}");
        }
        // If the server does not name the value, these may be about anything.
        for other in ["42P01", "XX000"] {
            assert!(is_of_a_text_value(other) && !is_of_a_literal(other), "{other}");
        }
        for (sqlstate, may) in [("22P02", true), ("ABC01", true), ("57014", false), ("", false)] {
            assert_eq!(may_be_of_a_record(&raised(sqlstate, "any")), may, "{sqlstate}");
        }
    }

    #[test]
    fn limits_of_the_server_are_of_no_record() {
        let value = raised("54000", "index_form_tuple");
        assert!(is_of_the_record(&value) && may_be_of_a_record(&value));
        for function in LIMITS_OF_THE_SERVER {
            let limit = raised("54000", function);
            assert!(!is_of_the_record(&limit) && !may_be_of_a_record(&limit), "{function}");
        }
    }
}
