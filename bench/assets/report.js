"use strict";
(() => {
  const { results, losses, folder, demand_heads: demandHeads, demands } = JSON.parse(document.getElementById("data").textContent);
  const PHASES = ["--p0", "--p1", "--p2", "--p3", "--p4", "--p5"];

  // The same words as in the Markdown pages.
  const seconds = (v) => v.toFixed(v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : 3);
  const count = (v) => Math.trunc(v).toLocaleString("en-US");
  const megabytes = (b) => (b / 1e6).toFixed(b / 1e6 < 10 ? 1 : 0);
  const spread = (s) => `${seconds(s.median)} (${seconds(s.min)} to ${seconds(s.max)})`;
  const dash = (v, write) => (v === null || v === undefined ? "–" : write(v));

  const el = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  // A definition's `word` between backticks is code, as in the Markdown pages.
  const prose = (text) => el("p", {}, ...text.trim().split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part)));
  const colour = (m) => `var(--${m.by})`;
  const median = (m, figure) => {
    const values = m.runs.map(figure);
    return values.length && values.every((v) => v !== null) ? d3.median(values) : null;
  };
  const title = (r, m) =>
    r.parameters.rows.length > 1 ? `${m.title}, ${count(m.of_rows)} rows` : m.title;
  const published = (m) =>
    [
      m.published_seconds !== null && `${seconds(m.published_seconds)} s`,
      m.published_rows_per_second !== null && `${count(m.published_rows_per_second)} rows/s`,
      m.published_note,
    ].filter(Boolean).join("; ") || "–";
  const time = (m) => {
    if (m.status === "unavailable") return "not available here";
    if (m.status === "failed") return "failed";
    if (m.seconds === null) return "not yet";
    if (m.rows === 0) return "loads nothing: its own figures below";
    const sample = m.sampled ? ` for ${count(m.rows)} rows` : "";
    const whole = m.extrapolated_seconds;
    const times = m.runs.length === 1 ? `${seconds(m.seconds.median)} (one run)` : spread(m.seconds);
    return times + sample +
      (whole === null ? "" : `; extrapolated to ${count(m.of_rows)} rows: ${seconds(whole)}`);
  };
  const ratio = (r, m) =>
    dash(m.ratio, ({ pairs: p, same_durability, against }) =>
      p.median.toFixed(2) + (p.min === p.max ? "" : ` (${p.min.toFixed(2)} to ${p.max.toFixed(2)})`) +
      `${same_durability ? "" : " †"} of ${(r.methods.find((o) => o.name === against) || { title: against }).title}`);
  const byPhase = (m) => {
    const names = m.runs.length ? m.runs[0].phases.map((p) => p.name) : [];
    const of = (name) => median(m, (run) => run.phases.find((p) => p.name === name)?.seconds ?? null);
    const told = names.filter((name) => of(name) !== null).map((name) => `${name} ${seconds(of(name))}`);
    return told.length > 1 ? `seconds by phase: ${told.join(", ")}` : null;
  };
  const afterCrash = (m) => {
    const left = m.runs.map((r) => r.after_crash).find((c) => c);
    return left ? (left.same ? "all rows" : `${count(left.rows)} rows`) : "–";
  };

  function table(heads, rows) {
    const cell = (value) => {
      const long = typeof value === "object";
      return el("td", long ? { class: "text" } : {}, long ? value.text : value);
    };
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heads.join(", ") },
      el("table", {},
        el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))),
        el("tbody", {}, ...rows.map(({ kind, name, cells }) =>
          el("tr", { class: kind, "data-method": name }, ...cells.map(cell))))));
  }

  // Every method's name stands above its bar, so that a narrow screen keeps its width for the bars;
  // one longer than the plot (in ems of 12 pixels) ends in an ellipsis.
  const above = (data, width, text) => Plot.text(data, {
    x: 0, y: "key", text, textAnchor: "start", dy: -12, dx: 2, fill: "currentColor",
    lineWidth: (width - 24) / 12, textOverflow: "ellipsis",
  });
  function bars(width, r, methods, { unit, of, whiskers, mark }) {
    const step = 40;
    const entries = methods.map((m) => ({ m, key: `${m.name} ${m.of_rows}`, value: of(m) }))
      .filter((d) => d.value !== null);
    const label = (d) => `${d.m.durability === "kept" ? "" : `[${d.m.durability}] `}${title(r, d.m)}`;
    const far = d3.max(entries, (d) => Math.max(d.value, whiskers ? d.m.seconds.max : 0)) || 1;
    return Plot.plot({
      className: "plot", width, height: entries.length * step + 50,
      marginLeft: 8, marginRight: 64, marginTop: 28, marginBottom: 34,
      x: { label: unit, domain: [0, far], grid: true, ticks: Math.max(3, width / 110) },
      y: { label: "method", domain: entries.map((d) => d.key), labelAnchor: "top", tickSize: 0, tickFormat: () => "", padding: 0 },
      ariaLabel: unit,
      marks: [
        Plot.barX(entries, {
          x: "value", y: "key", insetTop: 20, insetBottom: 6, ariaDescription: mark,
          fill: (d) => (d.m.durability === "kept" ? colour(d.m) : "none"),
          stroke: (d) => colour(d.m),
          title: (d) => `${d.m.name} at ${d.m.of_rows}: ${d.value} ${unit}`,
        }),
        whiskers && Plot.ruleY(entries, {
          x1: (d) => d.m.seconds.min, x2: (d) => d.m.seconds.max, y: "key", dy: 7,
          stroke: "currentColor", strokeWidth: 1.5, ariaDescription: "spread",
          title: (d) => `${d.m.name} at ${d.m.of_rows}: ${d.m.seconds.min} to ${d.m.seconds.max} seconds`,
        }),
        above(entries, width, label),
        Plot.text(entries, {
          x: (d) => Math.max(d.value, whiskers ? d.m.seconds.max : 0), y: "key",
          text: (d) => (whiskers ? seconds(d.value) : megabytes(d.value * 1e6)),
          textAnchor: "start", dx: 5, dy: 7, fill: "currentColor",
        }),
        Plot.ruleX([0], { stroke: "currentColor" }),
      ].filter(Boolean),
    });
  }

  function phases(width, r, methods) {
    const parts = methods.flatMap((m) => {
      const names = m.runs.length ? m.runs[0].phases.map((p) => p.name) : [];
      return names.length < 2 ? [] : names.map((name, i) => ({
        key: m.name, label: title(r, m), name, first: i === 0,
        value: d3.median(m.runs, (run) => (run.phases[i] ? run.phases[i].seconds : 0)),
      }));
    });
    if (!parts.length) return null;
    const names = [...new Set(parts.map((p) => p.name))];
    // Beyond six phases the hues of the circle, in two lightnesses, so that none comes twice.
    const hue = (i) => `hsl(${Math.round((360 * i) / names.length)} 50% ${i % 2 ? 44 : 62}%)`;
    const shade = (name) => {
      const i = names.indexOf(name);
      return names.length <= PHASES.length ? `var(${PHASES[i]})` : hue(i);
    };
    const keys = [...new Set(parts.map((p) => p.key))];
    const swatches = el("div", { class: "plot-swatches" }, ...names.map((name) =>
      el("span", {}, el("i", { style: `background: ${shade(name)}` }), name)));
    const plot = Plot.plot({
      className: "plot", width, height: keys.length * 40 + 50,
      marginLeft: 8, marginRight: 24, marginTop: 28, marginBottom: 34,
      x: { label: "seconds, medians of the phases", grid: true, ticks: Math.max(3, width / 110) },
      y: { label: "method", domain: keys, labelAnchor: "top", tickSize: 0, tickFormat: () => "", padding: 0 },
      marks: [
        Plot.barX(parts, Plot.stackX({
          x: "value", y: "key", insetTop: 20, insetBottom: 6, ariaDescription: "phases",
          fill: (d) => shade(d.name), title: (d) => `${d.key}, ${d.name}: ${d.value} s`,
        })),
        above(parts.filter((d) => d.first), width, "label"),
        Plot.ruleX([0], { stroke: "currentColor" }),
      ],
    });
    return el("div", {}, swatches, plot);
  }

  function curves(width, r, methods, unit, of, mark) {
    const points = methods.map((m) => ({ m, rows: m.rows, value: of(m) })).filter((d) => d.value !== null);
    const names = [...new Set(points.map((d) => d.m.name))];
    const shade = (d) => `var(${PHASES[names.indexOf(d.m.name) % PHASES.length]})`;
    const grown = new Map(r.growth.map((g) => [g.method, g.time_exponent]));
    const swatches = el("div", { class: "plot-swatches" }, ...names.map((name, i) =>
      el("span", {}, el("i", { style: `background: var(${PHASES[i % PHASES.length]})` }),
        mark === "curve-time" && grown.has(name) ? `${name} (rows to the power ${grown.get(name).toFixed(2)})` : name)));
    return el("div", {}, swatches, Plot.plot({
      className: "plot", width, height: Math.min(420, Math.max(260, width * 0.6)),
      marginLeft: 52, marginRight: 20, marginTop: 24, marginBottom: 38,
      x: { type: "log", label: "rows", grid: true, tickFormat: "~s", ticks: Math.max(3, width / 120) },
      y: mark === "curve-time"
        ? { type: "log", label: unit, grid: true, tickFormat: "~g", ticks: 5 }
        : { label: unit, grid: true, zero: true },
      marks: [
        Plot.line(points, { x: "rows", y: "value", z: (d) => d.m.name, stroke: shade, strokeWidth: 2 }),
        Plot.dot(points, {
          x: "rows", y: "value", fill: shade, r: 3.5, ariaDescription: mark,
          title: (d) => `${d.m.name} at ${d.m.of_rows}: ${d.value} ${unit}`,
        }),
      ],
    }));
  }

  function figure(caption, draw) {
    const place = el("div");
    const node = el("figure", {}, el("h3", {}, caption), place);
    drawings.push({ place, draw });
    return node;
  }
  const drawings = [];
  let drawnAt = 0;
  function redraw() {
    const width = Math.min(960, document.getElementById("suites").clientWidth);
    if (width === drawnAt || width === 0) return;
    drawnAt = width;
    for (const { place, draw } of drawings) {
      const drawn = draw(width);
      place.replaceChildren(...(drawn ? [drawn] : []));
    }
  }

  function suite(r) {
    const several = r.parameters.rows.length > 1;
    const done = r.methods.filter((m) => m.status === "ok" && m.seconds !== null);
    const section = el("section", { id: r.suite },
      el("h2", {}, r.title), prose(r.about));
    if (r.left_out) section.append(prose(`Left out: ${r.left_out}`));
    if (!r.complete) section.append(el("p", {}, "Not complete: some runs are still to come."));
    if (r.departs && r.departs.length) section.append(el("p", {}, `Not the whole suite: ${r.departs.join("; ")}.`));
    const p = r.parameters;
    const once = p.once_from && p.rows.some((n) => n >= p.once_from) ? ` (one from ${count(p.once_from)} rows on)` : "";
    const facts = [
      `PostgreSQL ${r.environment.postgres}`, `${p.rows.map(count).join(", ")} rows`,
      `${p.runs} interleaved round${p.runs === 1 ? "" : "s"}${once}`, `page cache ${p.page_cache}`, `${p.lanes} lanes`,
      `commit ${r.environment.commit}`, r.started, `load ${r.environment.load_at_start.toFixed(2)} at the start`,
      `${megabytes(r.environment.disk_bytes_per_second)} MB/s of plain write and sync`,
      ...Object.entries(p.settings).map(([k, v]) => `${k} = ${v}`),
    ];
    section.append(el("p", { class: "soft" }, facts.join(" · ")));
    if (r.published) {
      const q = r.published;
      section.append(el("p", { class: "soft" },
        `Published: “${q.title}”, ${count(q.rows)} rows, ${q.figures}; ${q.machine}`));
    }
    if (several) {
      section.append(
        figure("Time over rows", (w) => curves(w, r, done, "seconds", (m) => m.seconds.median, "curve-time")),
        figure("Peak memory of the server over rows", (w) => curves(w, r, done, "MB",
          (m) => dashless(median(m, (run) => run.server_peak_bytes)), "curve-server")),
        figure("Peak memory of the client over rows", (w) => curves(w, r, done, "MB",
          (m) => dashless(median(m, (run) => run.client_peak_bytes)), "curve-client")));
    } else {
      const whole = done.filter((m) => !m.sampled && m.rows > 0);
      section.append(figure("Seconds: median, with a line from smallest to largest",
        (w) => bars(w, r, whole, { unit: "seconds", of: (m) => m.seconds.median, whiskers: true, mark: "time" })));
      if (done.some((m) => m.runs[0].phases.length > 1)) {
        section.append(figure("Time by phase", (w) => phases(w, r, whole)));
      }
      section.append(figure("WAL written",
        (w) => bars(w, r, whole, { unit: "MB of WAL", of: (m) => dashless(median(m, (run) => run.wal_bytes)), mark: "wal" })));
    }
    if (demands[r.suite].length) section.append(asked(r));
    section.append(times(r), costs(r), remarks(r));
    return section;
  }

  function asked(r) {
    const rows = demands[r.suite].map((cells, i) => ({
      kind: "demand", name: r.demands[i].method, cells: [cells[0], cells[1], { text: cells[2] }, ...cells.slice(3, 6), { text: cells[6] }] }));
    const quick = r.parameters.profile === "quick"
      ? [el("p", { class: "soft" }, "Quick profile: the figures are asked for at more rows than these.")] : [];
    return el("div", { class: "asked" }, el("h3", {}, "Asked and reached"), table(demandHeads, rows), ...quick);
  }

  const dashless = (bytes) => (bytes === null ? null : bytes / 1e6);

  function times(r) {
    const heads = ["method", "durability", "published", "seconds here", "rows/s here", "MB/s here",
      "time over its counterpart, by pairs", "after kill -9", "gives up"];
    const rows = r.methods.map((m) => ({
      kind: m.by, name: m.name,
      cells: [title(r, m), m.durability, published(m), time(m), dash(m.rows_per_second, count),
        dash(m.rows ? m.seconds : null, (s) => megabytes(m.bytes / s.median)), { text: ratio(r, m) }, afterCrash(m),
        { text: m.gives_up.join("; ") || "–" }],
    }));
    const unlike = [...r.methods.map((m) => m.ratio), ...r.demands].some((x) => x && !x.same_durability);
    const node = el("div", {}, el("h3", {}, "Times"), table(heads, rows));
    if (unlike) node.append(el("p", { class: "soft" },
      "† unlike durability: the two promise different things after a crash."));
    return node;
  }

  function costs(r) {
    const heads = ["method", "CPU s server", "CPU s client", "peak MB server", "peak MB client", "WAL MB",
      "table MB", "indexes MB", "written MB", "floor s", "time / floor"];
    const rows = r.methods.filter((m) => m.runs.length).map((m) => {
      const s = (f) => dash(median(m, f), seconds);
      const mb = (f) => dash(median(m, f), megabytes);
      return {
        kind: m.by, name: m.name,
        cells: [title(r, m), s((x) => x.server_cpu_seconds), s((x) => x.client_cpu_seconds),
          mb((x) => x.server_peak_bytes), mb((x) => x.client_peak_bytes), mb((x) => x.wal_bytes),
          mb((x) => x.table_bytes), mb((x) => x.index_bytes), mb((x) => x.written_bytes),
          s((x) => x.floor_seconds),
          dash(median(m, (x) => (x.floor_seconds ? x.seconds / x.floor_seconds : null)), (v) => v.toFixed(1))],
      };
    });
    return el("details", {}, el("summary", {}, "Costs: CPU, memory, WAL, bytes written, and the floor"),
      table(heads, rows),
      el("p", { class: "soft" }, "Floor: the time to write and sync as many bytes as the server had written, " +
        "with plain write, right after the run."));
  }

  function remarks(r) {
    const lines = r.methods.map((m) => {
      const parts = [];
      const settings = Object.entries(m.settings).map(([k, v]) => `${k} = ${v}`);
      if (settings.length) parts.push(`settings ${settings.join(", ")}`);
      if (byPhase(m)) parts.push(byPhase(m));
      if (m.message) parts.push(`${m.status === "failed" ? "failed" : "not available here"}: ${m.message}`);
      if (m.runs.length) {
        const last = m.runs[m.runs.length - 1];
        parts.push(...last.notes);
        parts.push(...Object.keys(last.figures)
          .map((name) => `${name} ${dash(median(m, (run) => run.figures[name] ?? null), (v) => v.toFixed(2))}`));
      }
      parts.push(...Object.entries(m.versions).map(([k, v]) => `${k} ${v}`));
      return parts.length ? el("li", {}, `${title(r, m)}: ${parts.join(". ")}`) : null;
    }).filter(Boolean);
    return el("details", {}, el("summary", {}, "What each told, its phases, and what it was made with"), el("ul", {}, ...lines));
  }

  function lossTable() {
    if (!losses.length) return el("p", {}, "No comparison of this run goes against it.");
    return table(["suite", "rows", "what", "ours", "theirs", "ours / theirs", "note"],
      losses.map((l) => ({ kind: "loss", name: l.ours, cells: [
        l.suite, count(l.rows), l.what, { text: l.ours }, { text: l.theirs }, l.ratio.toFixed(2), { text: l.note }] })));
  }

  const e = results[0].environment;
  document.getElementById("machine").textContent =
    `Run ${folder}: ${e.cpu}, ${e.cores} cores, ${megabytes(e.memory_bytes)} MB of memory, ${e.system}, ` +
    `kernel ${e.kernel}, ${e.file_system} on a disk the kernel calls ${e.disk}. ` +
    `Every time was kept only after count, checksum and indexes had been checked.`;
  const main = document.getElementById("suites");
  main.replaceChildren(...results.map(suite));
  document.getElementById("contents").append(
    ...results.map((r) => el("a", { href: `#${r.suite}` }, r.suite)), el("a", { href: "#losses" }, "where it loses"));
  document.getElementById("losses").append(lossTable());
  redraw();
  window.addEventListener("resize", redraw);
})();
