//! A suite's result as a Markdown page, with published and measured figures side by side.

use crate::result::{MethodResult, MethodStatus, Run, SuiteResult};
use crate::{demand, figures, whole};

/// The whole page.
pub fn page(result: &SuiteResult) -> String {
    let mut text = format!("# {}\n\n{}\n\n", result.title, result.about.trim());
    if let Some(left_out) = &result.left_out {
        text += &format!("Left out: {left_out}\n\n");
    }
    if !result.complete {
        text += "**Not complete**: some runs are still to come.\n\n";
    }
    text.extend(whole::sentence(result).map(|sentence| format!("**{sentence}**\n\n")));
    text += &circumstances(result);
    text += &demands(result);
    text += &times(result);
    text += &costs(result);
    text += &growth(result);
    text += &remarks(result);
    text
}

/// Machine, versions, parameters and the published comparison.
fn circumstances(result: &SuiteResult) -> String {
    let e = &result.environment;
    let p = &result.parameters;
    let mut text = format!(
        "- Machine: {}, {} cores, {} MB of memory, {} on a disk the kernel calls {}, {} MB/s of plain \
         write and sync; {}, kernel {}; load {:.2} at the start\n- PostgreSQL {}; commit {}; {}\n",
        e.cpu,
        e.cores,
        figures::megabytes(e.memory_bytes as f64),
        e.file_system,
        e.disk,
        figures::megabytes(e.disk_bytes_per_second),
        e.system,
        e.kernel,
        e.load_at_start,
        e.postgres,
        e.commit,
        result.started
    );
    let settings: Vec<String> = p.settings.iter().map(|(n, v)| format!("{n} = {v}")).collect();
    text += &format!("- Settings: {}\n", settings.join(", "));
    text += &format!(
        "- {} of all methods, page cache {}, {} lanes; medians with smallest and largest\n",
        figures::rounds(p),
        p.page_cache.word(),
        p.lanes
    );
    for data in &result.data {
        text += &format!(
            "- Input {}: {} rows, {} MB of CSV\n",
            data.name,
            figures::count(data.rows),
            figures::megabytes(data.bytes as f64)
        );
    }
    if let Some(published) = &result.published {
        text += &format!(
            "- Published: “{}”, {} rows, {}; {}\n",
            published.title,
            figures::count(published.rows),
            published.figures,
            published.machine
        );
    }
    text + "\n"
}

/// The required figures and those reached.
fn demands(result: &SuiteResult) -> String {
    if result.demands.is_empty() {
        return String::new();
    }
    let mut text = demand::table(result);
    if result.parameters.profile == "quick" {
        text += "\nQuick profile: the figures are asked for at more rows than these.\n";
    }
    text + "\n"
}

/// The table of times.
fn times(result: &SuiteResult) -> String {
    let mut text = String::from(
        "| method | durability | published | seconds here | rows/s here | MB/s here | time over its counterpart, by pairs | after kill -9 | gives up |\n\
         |---|---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for method in &result.methods {
        let rate = method.rows_per_second.map_or("–".to_owned(), |r| figures::count(r as u64));
        let ratio = method.ratio.as_ref().map_or("–".to_owned(), |r| {
            format!("{} of {}", figures::ratio(r), result.title_of(&r.against))
        });
        text += &format!(
            "| {} | {} | {} | {} | {rate} | {} | {ratio} | {} | {} |\n",
            name(result, method),
            method.durability.word(),
            figures::published(result, method),
            extrapolated(method),
            figures::csv_rate(method),
            figures::after_crash(method),
            figures::gives_up(method)
        );
    }
    text.extend(unlike(result).map(|mark| format!("\n{mark}\n")));
    text + "\n"
}

/// The meaning of the mark for different durability, if a figure of the result has it.
pub fn unlike(result: &SuiteResult) -> Option<&'static str> {
    let marked = |m: &MethodResult| m.ratio.as_ref().is_some_and(|r| !r.same_durability);
    let any =
        result.methods.iter().any(marked) || result.demands.iter().any(|d| !d.same_durability);
    any.then_some("† unlike durability: the two promise different things after a crash.")
}

/// The measured time, with the extrapolated one marked as such if it was requested.
fn extrapolated(method: &MethodResult) -> String {
    let time = figures::time(method);
    match method.extrapolated_seconds {
        Some(all) => format!(
            "{time}; extrapolated to {} rows: {}",
            figures::count(method.of_rows),
            figures::seconds(all)
        ),
        None => time,
    }
}

/// The title, with the row count if the suite has several.
fn name(result: &SuiteResult, method: &MethodResult) -> String {
    if result.parameters.rows.len() > 1 {
        format!("{}, {} rows", method.title, figures::count(method.of_rows))
    } else {
        method.title.clone()
    }
}

/// The table of costs.
fn costs(result: &SuiteResult) -> String {
    let mut text = String::from(
        "| method | CPU s server | CPU s client | peak MB server | peak MB client | WAL MB | table MB | indexes MB | written MB | floor s | time / floor |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let bytes = |n: Option<u64>| n.map(|n| n as f64);
    for method in result.methods.iter().filter(|m| !m.runs.is_empty()) {
        let mb = |figure: &dyn Fn(&Run) -> Option<u64>| {
            figures::median(method, |r| bytes(figure(r)), figures::megabytes)
        };
        let s = |figure: &dyn Fn(&Run) -> Option<f64>| {
            figures::median(method, figure, figures::seconds)
        };
        let over_floor = |r: &Run| r.floor_seconds.filter(|f| *f > 0.0).map(|f| r.seconds / f);
        let cells = [
            name(result, method),
            s(&|r| r.server_cpu_seconds),
            s(&|r| Some(r.client_cpu_seconds)),
            mb(&|r| r.server_peak_bytes),
            mb(&|r| Some(r.client_peak_bytes)),
            mb(&|r| r.wal_bytes),
            mb(&|r| r.table_bytes),
            mb(&|r| r.index_bytes),
            mb(&|r| r.written_bytes),
            s(&|r| r.floor_seconds),
            figures::median(method, over_floor, |x| format!("{x:.1}")),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text + "\nFloor: the time to write and sync as many bytes as the server had written, with plain `write`, right after the run.\n\n"
}

/// The fitted exponents.
fn growth(result: &SuiteResult) -> String {
    if result.growth.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "| method | time grows with rows to the power | server memory | client memory | row counts |\n\
         |---|--:|--:|--:|--:|\n",
    );
    let power = |p: Option<f64>| p.map_or("–".to_owned(), |p| format!("{p:.2}"));
    for growth in &result.growth {
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            growth.method,
            power(Some(growth.time_exponent)),
            power(growth.server_memory_exponent),
            power(growth.client_memory_exponent),
            growth.points
        );
    }
    text + "\n"
}

/// Settings of methods, their phases, what they reported, why some have no figure, and the
/// versions.
fn remarks(result: &SuiteResult) -> String {
    let mut text = String::new();
    for method in &result.methods {
        let mut parts = Vec::new();
        let settings: Vec<String> =
            method.settings.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        if !settings.is_empty() {
            parts.push(format!("settings {}", settings.join(", ")));
        }
        parts.extend(figures::phases(method));
        if let Some(message) = &method.message {
            let what =
                if method.status == MethodStatus::Failed { "failed" } else { "not available here" };
            parts.push(format!("{what}: {}", message.replace('\n', " ")));
        }
        if let Some(run) = method.runs.last() {
            parts.extend(run.notes.iter().cloned());
            let told = |name: &String| method.median(|r| r.figures.get(name).copied());
            let figure = |name| Some(format!("{name} {:.2}", told(name)?));
            parts.extend(run.figures.keys().filter_map(figure));
        }
        parts.extend(method.versions.iter().map(|(name, version)| format!("{name} {version}")));
        if !parts.is_empty() {
            text += &format!("- {}: {}\n", name(result, method), parts.join(". "));
        }
    }
    text
}
