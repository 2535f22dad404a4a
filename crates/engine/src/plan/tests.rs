//! Tests the rule of `auto`, fact by fact, without a server.

use super::*;
use crate::facts::{ColumnFacts, TriggerFacts};
use crate::options::{ColumnSet, InputOptions, RejectOptions, TargetOptions};
use crate::reject::{Existing, Limit};

/// The facts for the rule. Each test changes some of them.
struct Case {
    input: InputFacts,
    server: ServerFacts,
    table: TableFacts,
    options: Options,
    cores: usize,
}

impl Case {
    /// A CSV file for an empty table with these columns, which the role owns.
    fn new(types: &[Type]) -> Case {
        let column = |(i, ty): (usize, &Type)| ColumnFacts {
            number: i as i32 + 1,
            name: format!("c{i}"),
            type_name: "any".into(),
            type_id: (0, -1),
            plain_type: "any".into(),
            base: (0, -1),
            base_name: "any".into(),
            reader: None,
            cast_by_user: false,
            ty: ty.clone(),
            not_null: false,
            default: None,
            volatile_default: false,
            generated: false,
            identity: false,
        };
        let table = TableFacts {
            name: "t".into(),
            sql: "\"public\".\"t\"".into(),
            kind: 'r',
            persistence: 'p',
            owned: true,
            empty: true,
            columns: types.iter().enumerate().map(column).collect(),
            ..TableFacts::default()
        };
        let server = ServerFacts {
            version: 180_000,
            max_connections: 100,
            encoding: "UTF8".into(),
            date_style: "ISO, MDY".into(),
            interval_style: "postgres".into(),
            time_zone: "UTC".into(),
            abbreviations: "Default".into(),
            ..ServerFacts::default()
        };
        let input =
            InputOptions { sources: vec![crate::source::stdin()], ..InputOptions::default() };
        let target = TargetOptions::new("", "t");
        let options = Options { input, target, rejects: None, once: None };
        Case {
            input: InputFacts { name: "-".into(), ..InputFacts::default() },
            server,
            table,
            options,
            cores: 2,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Case)) -> Case {
        change(&mut self);
        self
    }

    fn plan(&self) -> Arc<Plan> {
        self.result().unwrap()
    }

    fn result(&self) -> Result<Arc<Plan>, Error> {
        let facts = Facts {
            input: self.input.clone(),
            server: self.server.clone(),
            table: self.table.clone(),
            cores: self.cores,
            ..Facts::default()
        };
        plan(&facts, &self.options)
    }
}

fn typed() -> Case {
    Case::new(&[Type::Int8, Type::Bool, Type::Text])
}

fn trigger(row: bool) -> TriggerFacts {
    TriggerFacts { name: "fires".into(), row, before: row, internal: false }
}

fn rejects() -> Option<RejectOptions> {
    Some(RejectOptions { file: "r".into(), existing: Existing::Error, limit: Limit::None })
}

#[test]
fn no_table_is_truncated_that_others_refer_to() {
    let case = typed().with(|c| (c.options.target.truncate, c.table.referenced) = (true, true));
    let error = case.result().unwrap_err();
    assert!(error.message().contains("cannot be truncated"), "{error}");
}

#[test]
fn auto_is_a_rule_over_facts() {
    let text = || Case::new(&[Type::Text, Type::Text]);
    let cases = [
        (typed(), Method::CopyBinary, "typed"),
        (text(), Method::CopyText, "columns are text"),
        // votes: binary rows would save less time than they cost.
        (Case::new(&[Type::Text, Type::Text, Type::Int4]), Method::CopyText, "columns are text"),
        (
            text().with(|c| c.options.target.force_null = ColumnSet::All),
            Method::CopyCsv,
            "columns are text",
        ),
        (Case::new(&[Type::Int8, Type::Server]), Method::CopyCsv, "only the server reads"),
        (
            typed().with(|c| c.options.input.encoding = Some("LATIN1".into())),
            Method::CopyCsv,
            "encoding",
        ),
        (
            typed().with(|c| c.options.input.format = FileFormat::Binary),
            Method::CopyBinary,
            "already",
        ),
        (
            text().with(|c| c.options.input.format = FileFormat::Delimited(Dialect::text())),
            Method::CopyText,
            "",
        ),
        (typed().with(|c| c.table.created = true), Method::CopyFresh, ""),
        (typed().with(|c| c.options.target.truncate = true), Method::CopyFresh, ""),
        // Rows that other sessions may see, or a table that others refer to.
        (typed().with(|c| c.table.empty = false), Method::CopyBinary, ""),
        (
            typed().with(|c| (c.options.target.truncate, c.table.owned) = (true, false)),
            Method::CopyBinary,
            "",
        ),
        (
            typed().with(|c| (c.options.target.truncate, c.table.kind) = (true, 'p')),
            Method::CopyBinary,
            "",
        ),
        (
            typed().with(|c| c.table.triggers = vec![trigger(false)]),
            Method::CopyCsv,
            "must fire once",
        ),
        (typed().with(|c| c.table.triggers = vec![trigger(true)]), Method::CopyBinary, ""),
        (typed().with(|c| c.server.extension = Some("0.1".into())), Method::Extension, "extension"),
        (
            typed().with(|c| c.server.extension_fault = Some("gone".into())),
            Method::CopyBinary,
            "cannot be used: gone",
        ),
        (
            typed().with(|c| {
                c.server.extension = Some("0.1".into());
                c.options.rejects = rejects();
            }),
            Method::CopyBinary,
            "",
        ),
    ];
    chooses(&cases);
}

/// Each of several files is one COPY if its rows or triggers need that.
#[test]
fn each_of_several_files_is_one_copy() {
    let of_several = |change: fn(&mut TableFacts)| {
        let case = typed().with(|c| c.options.input.sources.push(crate::source::stdin()));
        case.with(|c| change(&mut c.table))
    };
    let after = TriggerFacts { before: false, ..trigger(true) };
    let refers = of_several(|table| table.refers_to_itself = true);
    let fires = of_several(|_| ()).with(|c| c.table.triggers = vec![after]);
    let before = of_several(|_| ()).with(|c| c.table.triggers = vec![trigger(true)]);
    let one_copy = [&of_several(|_| ()), &before, &refers, &fires].map(|case| case.plan().one_copy);
    assert_eq!(one_copy, [false, false, true, true]);
    chooses(&[
        (of_several(|_| ()), Method::CopyBinary, "typed"),
        (refers, Method::CopyCsv, "later rows of the file"),
        (fires, Method::CopyCsv, "an AFTER ROW trigger"),
    ]);
}

#[test]
fn auto_goes_by_insert_where_copy_is_refused() {
    let policies = |change: fn(&mut Case)| {
        let case = typed().with(|c| {
            c.server.extension = Some("0.1".into());
            c.table.row_security = true;
        });
        case.with(change)
    };
    let marked = |c: &mut Case| {
        let marker = Some(b"DEFAULT".to_vec());
        c.options.input.format =
            FileFormat::Delimited(Dialect { default: marker, ..Dialect::csv() });
    };
    chooses(&[
        (policies(|_| ()), Method::Staged, "row-level security"),
        (policies(marked), Method::InsertBatch, "row-level security"),
    ]);
}

fn chooses(cases: &[(Case, Method, &str)]) {
    for (i, (case, method, why)) in cases.iter().enumerate() {
        let plan = case.plan();
        assert_eq!(plan.method, *method, "case {i}: {:?}", plan.reason);
        assert!(plan.reason.contains(why), "case {i}: {:?}", plan.reason);
        assert!(!plan.reason.is_empty() && !plan.reason.contains('\n'), "case {i}");
        // Durability and atomicity are not given up without a request.
        assert_eq!((plan.lanes, plan.commits_first()), (1, false), "case {i}");
        assert!(!plan.before.iter().any(|s| s.contains("UNLOGGED")), "case {i}");
    }
}

#[test]
fn what_lanes_are() {
    let lanes = || typed().with(|c| c.options.target.method = Method::Lanes);
    assert_eq!((lanes().plan().lanes, lanes().plan().two_phase), (2, false));
    // Half of the server's connections are left to other sessions, unless a number is given.
    let few = |lanes| {
        let case = typed().with(|c| {
            c.options.target.method = Method::Lanes;
            c.options.target.lanes = lanes;
            c.server.max_connections = 20;
        });
        case.with(|c| c.cores = 64).plan().lanes
    };
    assert_eq!((few(None), few(Some(15))), (10, 15));
    let more = lanes().with(|c| c.options.target.lanes = Some(5));
    assert_eq!(more.plan().lanes, 5);
    assert!(more.plan().notes.iter().any(|n| n.contains("one after another")));
    let prepared = more.with(|c| c.server.max_prepared_transactions = 5);
    assert!(prepared.plan().two_phase);
    let alone = lanes().with(|c| c.table.refers_to_itself = true);
    assert_eq!(alone.plan().lanes, 1);
    let emptied = lanes().with(|c| {
        (c.options.target.truncate, c.table.keeps_apart, c.table.empty) = (true, true, false)
    });
    assert_eq!(emptied.plan().lanes, 1);
    let apart = lanes().with(|c| {
        c.table.keeps_apart = true;
        c.options.rejects = rejects();
    });
    assert_eq!(apart.plan().lanes, 1);
    // Other methods have one connection, and the plan says so if more are requested.
    for (requested, noted) in [(None, false), (Some(1), false), (Some(2), true)] {
        let plan = typed().with(|c| c.options.target.lanes = requested).plan();
        let note = "lanes 2 has no effect without method lanes";
        assert_eq!(plan.notes.iter().any(|n| n.contains(note)), noted, "{requested:?}");
        assert_eq!(plan.lanes, 1, "{requested:?}");
    }
}

/// A landing table has one column more than the file, and a table at most 1,600.
#[test]
fn a_landing_table_has_a_column_more_than_the_file() {
    let staged = |columns| {
        let case = Case::new(&vec![Type::Int8; columns]);
        case.with(|c| c.options.target.method = Method::Staged).result()
    };
    assert!(staged(1_599).unwrap().landing.is_some());
    let error = staged(1_600).unwrap_err();
    assert!(error.message().contains("a landing table of 1601 columns"), "{error}");
    assert!(error.hint().unwrap().contains("insert-batch"), "{error}");
}

/// If a method cannot do something, it is an error. No other method is used.
#[test]
fn what_methods_refuse() {
    let refused = |method, change: fn(&mut Case)| {
        let case = typed().with(|c| c.options.target.method = method).with(change);
        case.result().unwrap_err().to_string()
    };
    for method in [Method::CopyFresh, Method::Unlogged, Method::UnloggedLogged] {
        assert!(refused(method, |c| c.table.empty = false).contains("has rows"));
        assert!(refused(method, |c| c.table.kind = 'p').contains("does not work on"));
    }
    for method in [Method::Insert, Method::InsertBatch] {
        assert!(
            refused(method, |c| c.options.target.filter = Some("true".into())).contains("where")
        );
    }
    for method in [Method::InsertBatch, Method::Staged] {
        assert!(refused(method, |c| c.table.rules = vec!["r".into()]).contains("rewrite: r"));
        let none = "has no column to insert into";
        assert!(refused(method, |c| c.table.columns.clear()).contains(none));
    }
    for method in [Method::CopyCsv, Method::CopyBinary, Method::Lanes] {
        assert!(refused(method, |c| c.table.row_security = true).contains("does not accept COPY"));
    }
    let binary = |c: &mut Case| {
        c.options.input.format = FileFormat::Binary;
        c.table.row_security = true;
    };
    assert!(refused(Method::Auto, binary).contains("does not accept COPY"));
    assert!(refused(Method::Extension, |_| ()).contains("is not in this database"));
    assert!(
        refused(Method::Staged, |c| c.options.input.format = FileFormat::Binary).contains("binary")
    );
    assert!(refused(Method::Auto, |c| c.table.kind = 'm').contains("not a table"));
    let default = |c: &mut Case| {
        let marker = Some(b"DEFAULT".to_vec());
        c.options.input.format =
            FileFormat::Delimited(Dialect { default: marker, ..Dialect::csv() });
        c.server.version = 150_000;
    };
    for method in [Method::Auto, Method::CopyCsv, Method::CopyBinary, Method::Lanes] {
        assert!(refused(method, default).contains("does not support DEFAULT"));
    }
    let inserts = typed().with(|c| c.options.target.method = Method::InsertBatch).with(default);
    assert_eq!(inserts.plan().method, Method::InsertBatch);
    // The extension's COPY accepts binary files like all others.
    let binary = typed().with(|c| {
        c.options.target.method = Method::Extension;
        c.options.input.format = FileFormat::Binary;
        c.server.extension = Some("1.0".into());
    });
    assert_eq!(binary.plan().wire, Wire::AsIs);
}
