//! Where pgsluice loses, computed from the results: every comparison that goes against it. The
//! loader by itself and the server with the extension are compared separately. Users who have only
//! one of them then see where it loses, however fast the other is.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::definition::{By, Durability};
use crate::result::{MethodResult, MethodStatus, Run, SuiteResult};

/// One comparison that pgsluice loses.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Loss {
    /// Suite.
    pub suite: String,
    /// Rows that both loaded.
    pub rows: u64,
    /// `time`, or the cost: `CPU`, `server memory`, `client memory`, `WAL`, `disk` (table and
    /// indexes) or `bytes written`.
    pub what: String,
    /// The method of pgsluice.
    pub ours: String,
    /// The other method.
    pub theirs: String,
    /// Our figure divided by theirs: above 1.
    pub ratio: f64,
    /// What the other gives up and ours does not, and the other way round.
    pub note: String,
}

/// Every loss in these results, by suite. Time comes before the other figures, and within each the
/// largest ratio comes first.
pub fn find(results: &[SuiteResult]) -> Vec<Loss> {
    let mut losses = Vec::new();
    for result in results {
        let mut of_suite = Vec::new();
        for ours in result.methods.iter().filter(|m| m.by == By::Pgsluice && is_ok(m)) {
            for theirs in counterparts(result, ours) {
                of_suite.extend(costs_more(result, ours, theirs));
            }
        }
        for theirs in result.methods.iter().filter(|m| m.by != By::Pgsluice && is_ok(m)) {
            of_suite.extend(beaten_by(result, theirs, false));
            of_suite.extend(beaten_by(result, theirs, true));
        }
        // The fastest of our methods may have been compared with this very method already, by
        // pairs.
        let mut seen = BTreeSet::new();
        of_suite.retain(|l: &Loss| {
            seen.insert((l.rows, l.what.clone(), l.ours.clone(), l.theirs.clone()))
        });
        let other = |loss: &Loss| loss.what != "time";
        of_suite.sort_by(|a, b| other(a).cmp(&other(b)).then(b.ratio.total_cmp(&a.ratio)));
        losses.extend(of_suite);
    }
    losses
}

/// Whether a method counts in comparisons. Our methods that write files or measure themselves do
/// not: they load no table that another method could load faster or slower.
fn is_ok(method: &MethodResult) -> bool {
    let of_ours = method.by == By::Pgsluice && method.durability == Durability::Foreign;
    method.status == MethodStatus::Ok && method.seconds.is_some() && !of_ours
}

fn median(method: &MethodResult) -> f64 {
    method.seconds.map_or(f64::INFINITY, |s| s.median)
}

/// Whether the server does the work of our method: then the method needs the extension.
fn by_extension(method: &MethodResult) -> bool {
    method.versions.contains_key("extension:pgsluice")
}

/// The indexes of a method's table: more indexes mean other work. Their names do not count. Older
/// results have nothing but names.
fn indexes(method: &MethodResult) -> Vec<String> {
    let Some(answer) = method.runs.first().map(|run| &run.answer) else { return Vec::new() };
    let defined = |name: &String| {
        let text = answer.definitions.get(name)?;
        let (head, rest) = text.split_once(" USING ")?;
        Some(format!("{} {rest}", if head.contains(" UNIQUE ") { "unique" } else { "" }))
    };
    let names = answer.indexes.keys();
    let mut all: Vec<String> = names.map(|n| defined(n).unwrap_or_else(|| n.clone())).collect();
    all.sort();
    all
}

/// A loss to another's method: it is faster than our fastest on the same rows and indexes. Only our
/// methods that guarantee at least as much after a crash are compared.
fn beaten_by(result: &SuiteResult, theirs: &MethodResult, extension: bool) -> Option<Loss> {
    let same_work = |m: &&MethodResult| {
        m.by == By::Pgsluice
            && is_ok(m)
            && by_extension(m) == extension
            && m.durability.covers(theirs.durability)
            && indexes(m) == indexes(theirs)
            && m.data == theirs.data
            && m.of_rows == theirs.of_rows
            && m.rows == theirs.rows
    };
    let candidates = result.methods.iter().filter(same_work);
    let ours = candidates.min_by(|a, b| median(a).total_cmp(&median(b)))?;
    let ratio = median(ours) / median(theirs);
    (ratio > 1.0).then(|| loss(result, "time", ours, theirs, ratio))
}

/// A figure of a run.
type Figure = fn(&Run) -> Option<f64>;

/// The methods with which one of ours is compared, by its definition or by a demand.
fn counterparts<'a>(result: &'a SuiteResult, ours: &'a MethodResult) -> Vec<&'a MethodResult> {
    let demands = result.demands.iter().map(|judged| &judged.demand);
    let by_demand = demands.filter(|d| d.method == ours.name).filter_map(|d| d.against.as_ref());
    let named: BTreeSet<&String> = ours.against.iter().chain(by_demand).collect();
    let there = named.into_iter().filter_map(|name| result.method(name, ours.of_rows));
    there.filter(|m| is_ok(m) && m.rows == ours.rows && m.name != ours.name).collect()
}

/// The figures in which a method of ours costs more than its counterpart.
fn costs_more(result: &SuiteResult, ours: &MethodResult, theirs: &MethodResult) -> Vec<Loss> {
    let figures: [(&str, Figure); 7] = [
        ("time", |r| Some(r.seconds)),
        ("CPU", |r| Some(r.client_cpu_seconds + r.server_cpu_seconds?)),
        ("server memory", |r| r.server_peak_bytes.map(|n| n as f64)),
        ("client memory", |r| Some(r.client_peak_bytes as f64)),
        ("WAL", |r| r.wal_bytes.map(|n| n as f64)),
        ("disk", |r| Some((r.table_bytes? + r.index_bytes?) as f64)),
        ("bytes written", |r| r.written_bytes.map(|n| n as f64)),
    ];
    let mut losses = Vec::new();
    for (what, figure) in figures {
        let ratio = match (what, &ours.ratio) {
            ("time", Some(ratio)) if ratio.against == theirs.name => Some(ratio.pairs.median),
            _ => ours.median(figure).zip(theirs.median(figure)).map(|(a, b)| a / b),
        };
        // Differences within 1 % are noise in these figures.
        losses.extend(
            ratio
                .filter(|r| *r > 1.01 && r.is_finite())
                .map(|r| loss(result, what, ours, theirs, r)),
        );
    }
    losses
}

fn loss(
    result: &SuiteResult,
    what: &str,
    ours: &MethodResult,
    theirs: &MethodResult,
    ratio: f64,
) -> Loss {
    let mut notes = Vec::new();
    if ours.durability != theirs.durability {
        notes.push(format!(
            "unlike durability: ours {}, theirs {}",
            ours.durability.word(),
            theirs.durability.word()
        ));
    }
    if !theirs.gives_up.is_empty() {
        notes.push(format!("theirs gives up {}", theirs.gives_up.join(", ")));
    }
    Loss {
        suite: result.suite.clone(),
        rows: ours.rows,
        what: what.to_owned(),
        ours: ours.title.clone(),
        theirs: theirs.title.clone(),
        ratio,
        note: notes.join("; "),
    }
}

/// The losses as a Markdown table.
pub fn markdown(losses: &[Loss]) -> String {
    let mut text = String::from("## Where pgsluice loses\n\n");
    if losses.is_empty() {
        return text + "No comparison of this run goes against it.\n";
    }
    text += "| suite | rows | what | ours | theirs | ours / theirs | |\n|---|--:|---|---|---|--:|---|\n";
    for loss in losses {
        text += &format!(
            "| {} | {} | {} | {} | {} | {:.2} | {} |\n",
            loss.suite,
            crate::figures::count(loss.rows),
            loss.what,
            loss.ours,
            loss.theirs,
            loss.ratio,
            loss.note
        );
    }
    text
}
