//! Converts the arguments on the table to options of the engine.

use crate::arguments::{CreateHow, LandingKind, Ledger, TargetArguments};
use crate::names::Names;
use pgsluice_engine::options::{ColumnSet, Create, FieldOptions, TargetOptions};

/// The options of the engine for these arguments.
pub fn target_options(a: &TargetArguments, url: String) -> TargetOptions {
    let set = |lists: &[Names]| {
        let names: Vec<String> = lists.iter().flat_map(|list| list.0.clone()).collect();
        match names.as_slice() {
            [] => ColumnSet::None,
            [all] if all == "*" => ColumnSet::All,
            _ => ColumnSet::Named(names),
        }
    };
    TargetOptions {
        url,
        table: a.table.clone(),
        columns: None,
        fields: FieldOptions::default(),
        filter: a.filter.clone(),
        method: a.method,
        route: a.route,
        atomic: a.atomic,
        nodes: a.nodes.clone(),
        lanes: a.lanes.map(usize::from),
        logged_landing: a.landing == Some(LandingKind::Logged),
        truncate: a.truncate,
        allow_empty: a.allow_empty,
        create: match a.create {
            None => Create::No,
            Some(CreateHow::Typed) => Create::Typed,
            Some(CreateHow::TextOnDoubt) => Create::TextOnDoubt,
        },
        pack_columns: a.pack_columns,
        force_null: set(&a.force_null),
        force_not_null: set(&a.force_not_null),
        date_style: a.date_style.clone(),
        time_zone: a.time_zone.clone(),
        lock_timeout: a.lock_timeout.clone(),
        no_lock_out: a.no_lock_out,
        ledger: a.ledger == Ledger::Auto,
        analyze: !a.no_analyze,
        indexes: a.indexes,
        triggers: a.triggers,
        foreign_keys: a.foreign_keys,
    }
}
