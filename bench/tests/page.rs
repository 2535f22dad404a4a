//! The HTML page in a real browser: headless Chromium, where there is one.

#[path = "../../crates/pgserver/tests/support/aloud.rs"]
mod aloud;
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use aloud::left_out;
use pgsluice_bench::demand::Judged;
use pgsluice_bench::report;
use pgsluice_bench::result::SuiteResult;
use serde_json::Value;

/// Put into a copy of the page: what a person would look at, as JSON.
const PROBE: &str = r##"<script>
addEventListener("load", () => setTimeout(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const box = (node) => { const b = node.getBoundingClientRect(); return { left: b.left, width: b.width, x: b.left + b.width / 2, y: b.top + b.height / 2 }; };
  const marks = (suite, what) => all(`#${suite} g[aria-description=${what}] > *`)
    .map((node) => ({ title: node.querySelector("title").textContent, ...box(node) }));
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    time: marks("votes", "time"), spread: marks("votes", "spread"), wal: marks("votes", "wal"), phases: marks("votes", "phases"),
    curve: marks("scaling", "curve-time"), memory: marks("scaling", "curve-server"),
    labels: all("svg").map((svg) => [...svg.querySelectorAll("g[aria-label$='-axis label'] text")].map((t) => t.textContent)),
    rows: all("#votes table")[1].innerText,
    asked: all("#votes .asked table")[0].innerText,
    losses: document.getElementById("losses").innerText,
    part: all("#votes > p").map((p) => p.textContent).join(" "),
    words: all("#votes p code").map((code) => code.textContent).join(),
    overflow: document.documentElement.scrollWidth - innerWidth,
    cut: all("svg text").filter((text) => text.getBoundingClientRect().right > innerWidth).map((text) => text.textContent),
    wide: all("svg").filter((svg) => svg.getBoundingClientRect().width > innerWidth).length,
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("svg text")).fill,
    requests: performance.getEntriesByType("resource").length,
  }), "*");
}, 200));
</script></body>"##;

/// A page with the probed one in a frame: no window of Chromium's is narrower than 500 pixels.
fn framed(page: &str, width: u32) -> String {
    format!(
        r#"<!doctype html><iframe src="{page}" width="{width}" height="2000" style="border: 0"></iframe>
        <script>addEventListener("message", (event) => {{
          const pre = document.createElement("pre");
          pre.id = "probe";
          pre.textContent = event.data;
          document.body.append(pre);
        }})</script>"#
    )
}

fn chromium() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let dirs: Vec<PathBuf> = std::env::split_paths(&paths).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    // Some systems have a script of that name that says what to install.
    let runs = |program: &PathBuf| {
        Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
    };
    names.iter().flat_map(|n| dirs.iter().map(move |d| d.join(n))).find(runs)
}

/// The page as the browser shows it at a width, with its console's complaints.
fn show(browser: &Path, dir: &Path, width: u32, dark: bool) -> Value {
    let page = fs::read_to_string(dir.join("index.html")).unwrap();
    let view = format!("{width}-{}", if dark { "dark" } else { "light" });
    let probed = format!("probed-{view}.html");
    fs::write(dir.join(&probed), page.replace("</body>", PROBE)).unwrap();
    let frame = dir.join(format!("frame-{view}.html"));
    fs::write(&frame, framed(&probed, width)).unwrap();
    let scheme = format!("--blink-settings=preferredColorScheme={}", u8::from(!dark));
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"])
        .args(["--disable-dev-shm-usage", "--virtual-time-budget=5000", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", dir.join(format!("profile-{view}")).display()))
        .arg("--window-size=1400,2100")
        .arg(scheme)
        .arg(format!("file://{}", frame.display()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = log.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "the console says: {complaints:?}");
    let dom = String::from_utf8_lossy(&output.stdout);
    let probe =
        dom.split_once("<pre id=\"probe\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (probe, _) = probe.unwrap_or_else(|| panic!("the page did not render:\n{log}"));
    let text = probe.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap()
}

/// The figure of each method as a mark's title and length on the page tell it.
fn check_bars(marks: &Value, expected: &[(String, f64)]) {
    let marks = marks.as_array().unwrap();
    assert_eq!(marks.len(), expected.len(), "{marks:?}");
    let mut scales = Vec::new();
    for (mark, (name, value)) in marks.iter().zip(expected) {
        let title = mark["title"].as_str().unwrap();
        let shown = title.strip_prefix(&format!("{name}: ")).unwrap_or_else(|| panic!("{title}"));
        let shown: f64 = shown.split(' ').next().unwrap().parse().unwrap();
        assert!((shown - value).abs() <= 1e-9 * value.abs(), "{title}: {value} in the JSON");
        scales.push(mark["width"].as_f64().unwrap() / value);
    }
    for scale in &scales {
        assert!((scale / scales[0] - 1.0).abs() < 0.03, "bars are not to scale: {scales:?}");
    }
}

fn bars_of(
    result: &SuiteResult,
    figure: impl Fn(&pgsluice_bench::result::MethodResult) -> Option<f64>,
) -> Vec<(String, f64)> {
    let entry = |m: &pgsluice_bench::result::MethodResult| {
        Some((format!("{} at {}", m.name, m.of_rows), figure(m)?))
    };
    result.methods.iter().filter_map(entry).collect()
}

#[test]
fn the_page_shows_what_the_json_says() {
    let Some(browser) = chromium() else {
        return left_out("the report's page, since there is no chromium here to show it (Debian: apt-get install chromium)");
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut votes, scaling) = (common::votes(1.0), common::scaling());
    let demand = r#"{"work": "the work", "method": "ours", "against": "copy", "kind": "speedup", "must": 2.0}"#;
    votes.methods[2].gives_up = vec!["order of the file".to_owned()];
    votes.departs = Some(vec!["2 rounds instead of 3".to_owned()]);
    votes.about = "It does `more than others`.".to_owned();
    votes.methods[1].title =
        "A title that is longer than any phone is wide, by far and away".to_owned();
    votes.demands = vec![Judged::new(serde_json::from_str(demand).unwrap(), &votes)];
    votes.write(&dir.path().join("votes.json")).unwrap();
    scaling.write(&dir.path().join("scaling.json")).unwrap();
    report::write(dir.path(), Path::new("nowhere")).unwrap();
    // Desk and phone, light and dark: all four at once, each in a browser of its own.
    let views = [(1200, false), (1200, true), (390, false), (390, true)];
    let look = |(width, dark)| {
        let seen = show(&browser, dir.path(), width, dark);
        assert_eq!(seen["width"], width);
        check_figures(&seen, &votes, &scaling);
        check_text(&seen);
        assert!(seen["overflow"].as_f64().unwrap() <= 0.0, "the page scrolls sideways at {width}");
        assert_eq!(seen["wide"], 0, "a plot is wider than the window of {width}");
        assert_eq!(seen["cut"], serde_json::json!([]), "text is cut off at {width}");
        assert_eq!(seen["requests"], 0, "the page fetches something");
        check_contrast(seen["ground"].as_str().unwrap(), seen["ink"].as_str().unwrap(), dark);
    };
    thread::scope(|scope| views.into_iter().for_each(|view| drop(scope.spawn(move || look(view)))));
}

/// Every plot's marks against the results.
fn check_figures(seen: &Value, votes: &SuiteResult, scaling: &SuiteResult) {
    check_bars(&seen["time"], &bars_of(votes, |m| Some(m.seconds?.median)));
    check_spreads(&seen["spread"], &seen["time"], votes);
    check_bars(&seen["wal"], &bars_of(votes, |m| m.median(|r| Some(r.wal_bytes? as f64 / 1e6))));
    check_phases(&seen["phases"], votes);
    check_curve(&seen["curve"], scaling);
    assert_eq!(seen["memory"].as_array().unwrap().len(), 6);
    check_labels(&seen["labels"]);
}

/// The line from the smallest to the largest time, drawn to the scale of the bars.
fn check_spreads(spreads: &Value, bars: &Value, votes: &SuiteResult) {
    let width = |mark: &Value| mark["width"].as_f64().unwrap();
    let timed: Vec<_> = votes.methods.iter().filter_map(|m| Some((m, m.seconds?))).collect();
    let (spreads, bars) = (spreads.as_array().unwrap(), bars.as_array().unwrap());
    assert_eq!(spreads.len(), timed.len(), "{spreads:?}");
    for ((spread, bar), (method, s)) in spreads.iter().zip(bars).zip(timed) {
        let title =
            format!("{} at {}: {} to {} seconds", method.name, method.of_rows, s.min, s.max);
        assert_eq!(spread["title"], title);
        let expected = width(bar) * (s.max - s.min) / s.median;
        assert!((width(spread) - expected).abs() < 2.0, "{title}: {} of {expected}", width(spread));
    }
}

/// Each phase of each method with its median.
fn check_phases(phases: &Value, votes: &SuiteResult) {
    let phases = phases.as_array().unwrap();
    assert_eq!(phases.len(), 8, "two phases of four methods");
    for method in votes.methods.iter().filter(|m| !m.runs.is_empty()) {
        for (i, name) in ["copy", "index"].iter().enumerate() {
            let due = method.median(|r| Some(r.phases[i].seconds)).unwrap();
            let title = |p: &&Value| {
                let title = p["title"].as_str().unwrap();
                let shown = title.strip_prefix(&format!("{}, {name}: ", method.name))?;
                shown.strip_suffix(" s")?.parse::<f64>().ok()
            };
            let shown: Vec<f64> = phases.iter().filter_map(|p| title(&p)).collect();
            assert!(shown.len() == 1 && (shown[0] - due).abs() < 1e-9, "{name}: {shown:?} {due}");
        }
    }
}

/// What the tables say.
fn check_text(seen: &Value) {
    let text = |key: &str| seen[key].as_str().unwrap().to_owned();
    let rows = text("rows");
    assert!(rows.contains("2.10 (2.00 to 2.50)") && rows.contains("not available here"), "{rows}");
    assert!(rows.contains("<b>&</b>"), "markup in a title must stay text: {rows}");
    assert!(rows.contains("order of the file"), "what a method gives up stands in its row: {rows}");
    assert!(text("words").contains("more than others"), "code in a text: {}", text("words"));
    assert!(
        text("part").contains("Not the whole suite: 2 rounds instead of 3."),
        "{}",
        text("part")
    );
    let asked = text("asked");
    assert!(asked.contains("2.08x (1.82x to 2.10x)") && asked.contains("≥ 2.00x: met"), "{asked}");
    assert!(text("losses").contains("unlike durability"));
}

/// The points of a curve lie where logarithmic axes put them: on a straight line.
fn check_curve(marks: &Value, scaling: &SuiteResult) {
    let marks = marks.as_array().unwrap();
    assert_eq!(marks.len(), scaling.methods.len());
    for points in marks.chunks(3) {
        let slope = |a: &Value, b: &Value| {
            let d = |key: &str| b[key].as_f64().unwrap() - a[key].as_f64().unwrap();
            d("y") / d("x")
        };
        let (first, second) = (slope(&points[0], &points[1]), slope(&points[1], &points[2]));
        assert!(first < 0.0 && (first / second - 1.0).abs() < 0.05, "{first} {second}");
    }
}

/// Both axes of every plot say what they are.
fn check_labels(labels: &Value) {
    let plots = labels.as_array().unwrap();
    assert_eq!(plots.len(), 6, "three plots for each of the two suites");
    for plot in plots {
        let texts: Vec<&str> =
            plot.as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts.iter().all(|t| t.len() > 1), "{texts:?}");
    }
}

/// Text against ground, by lightness, and the ground as the scheme demands.
fn check_contrast(ground: &str, ink: &str, dark: bool) {
    let light = |colour: &str| -> f64 {
        let numbers = colour.split(|c: char| !c.is_ascii_digit() && c != '.');
        numbers.filter_map(|n| n.parse::<f64>().ok()).take(3).sum::<f64>() / 765.0
    };
    assert_eq!(light(ground) < 0.5, dark, "ground {ground}");
    assert!((light(ground) - light(ink)).abs() > 0.6, "{ink} on {ground}");
}

#[test]
fn the_page_holds_everything_itself() {
    let dir = tempfile::tempdir().unwrap();
    common::votes(1.0).write(&dir.path().join("votes.json")).unwrap();
    report::write(dir.path(), Path::new("nowhere")).unwrap();
    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    for outside in ["<script src", "<link rel=\"stylesheet", "@import", "url(http", "src=\"http"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("d3js.org v7") && page.contains("@observablehq/plot v0.6"));
    assert!(!page.contains("<b>&</b>"), "titles are escaped in the data");
}
