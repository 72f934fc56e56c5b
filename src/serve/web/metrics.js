// The server tab: plots of /metrics with history, polled only while the tab is open.
import {getText} from "/web/server.js";
import {startTree} from "/web/tree.js";
import {element} from "/web/view.js";

const PERIOD = 2000, POINTS = 900;  // half an hour
const SVG = "http://www.w3.org/2000/svg";

// Prometheus text -> {sums: name -> sum over all models, buckets: name -> upper bound -> count, rows: [name, labels, value]}
function parse(text) {
  const sums = {}, buckets = {}, rows = [];
  for (const line of text.split("\n")) {
    const m = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!m || !m[1].startsWith("tokamak_")) continue;
    const [, name, labels = "", value] = m, number = Number(value);
    if (name.endsWith("_bucket")) {
      const bound = Number(/le="([^"]*)"/.exec(labels)?.[1].replace("+Inf", "Infinity"));
      const of = (buckets[name.slice(0, -7)] ??= new Map());
      of.set(bound, (of.get(bound) ?? 0) + number);
    } else {
      sums[name] = (sums[name] ?? 0) + number;
      rows.push([name, labels, number]);
    }
  }
  return {sums, buckets, rows};
}

// The value below which a share of the samples between two polls lies; null: there were none.
function percentile(now, before, share) {
  if (!now) return null;
  const counts = [...now.entries()].map(([bound, n]) => [bound, n - (before?.get(bound) ?? 0)]).sort((a, b) => a[0] - b[0]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (const [bound, n] of counts) {
    if (n >= share * total) return Number.isFinite(bound) ? low + (bound - low) * (share * total - below) / Math.max(n - below, 1e-9) : low;
    [low, below] = [bound, n];
  }
  return low;
}

const ms = (name, share) => (now, before) => {
  const value = percentile(now.buckets[name], before.buckets[name], share);
  return value === null ? null : value * 1000;
};
const rate = (name) => (now, before, seconds) => ((now.sums[name] ?? 0) - (before.sums[name] ?? 0)) / seconds;
const gauge = (name) => (now) => now.sums[name] ?? 0;
const hits = (now, before) => {
  const d = (name) => (now.sums[name] ?? 0) - (before.sums[name] ?? 0), asked = d("tokamak_prefix_query_tokens_total");
  return asked > 0 ? d("tokamak_prefix_hit_tokens_total") / asked * 100 : null;
};
const kv = (now) => (now.sums.tokamak_kv_blocks ? now.sums.tokamak_kv_blocks_used / now.sums.tokamak_kv_blocks * 100 : 0);
const batch = (now, before) => {
  const d = (name) => (now.sums[name] ?? 0) - (before.sums[name] ?? 0), steps = d("tokamak_step_sequences_count");
  return steps > 0 ? d("tokamak_step_sequences_sum") / steps : null;
};

// Title, unit, the lines of the plot, the top of the scale (undefined: from the values).
const PLOTS = [
  ["Requests", "", {running: gauge("tokamak_requests_running"), waiting: gauge("tokamak_requests_waiting")}],
  ["Tokens", "/s", {answers: rate("tokamak_generation_tokens_total"), prompts: rate("tokamak_prompt_tokens_total")}],
  ["Time to first token", "ms", {p50: ms("tokamak_time_to_first_token_seconds", 0.5), p95: ms("tokamak_time_to_first_token_seconds", 0.95)}],
  ["Time between tokens", "ms", {p50: ms("tokamak_inter_token_latency_seconds", 0.5), p95: ms("tokamak_inter_token_latency_seconds", 0.95)}],
  ["Sequences per step", "", {mean: batch}],
  ["KV cache used", "%", {used: kv}, 100],
  ["Prefix cache hits", "%", {hits}, 100],
  ["Preemptions", "/s", {preemptions: rate("tokamak_preemptions_total")}],
];

const short = (v) => (v === undefined || v === null ? "–" : v >= 100 || Number.isInteger(v) ? Math.round(v).toLocaleString() : v.toFixed(1));

function path(values, top) {
  let out = "", pen = false;
  values.forEach((v, i) => {
    if (v === null) { pen = false; return; }
    const x = 300 - (values.length - 1 - i) * 300 / (Math.max(60, values.length) - 1), y = 78 - Math.min(v / top, 1) * 74;
    out += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (!pen && values[i + 1] === null) out += "h1";
    pen = true;
  });
  return out;
}

function makePlot([title, unit, lines, top]) {
  const svg = document.createElementNS(SVG, "svg"), names = Object.keys(lines);
  svg.setAttribute("viewBox", "0 0 300 80");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = names.map(() => svg.appendChild(document.createElementNS(SVG, "path")));
  const shown = names.map((name, i) => element("span", {className: `line-${i}`}, `${name} `, element("b", {textContent: "–"})));
  const scale = element("span", {className: "scale"});
  const box = element("figure", {}, element("figcaption", {}, `${title}${unit ? `, ${unit}` : ""} `, scale), svg, element("div", {className: "values"}, ...shown));
  const series = names.map(() => []);
  return {box, add(now, before, seconds) {
    names.forEach((name, i) => {
      series[i].push(lines[name](now, before, seconds));
      if (series[i].length > POINTS) series[i].shift();
    });
    const known = series.flat().filter((v) => v !== null), high = top ?? Math.max(1e-9, ...known) * 1.1;
    scale.textContent = known.some((v) => v > 0) ? `up to ${short(top ?? high / 1.1)}` : "";
    names.forEach((name, i) => {
      paths[i].setAttribute("d", path(series[i], high));
      shown[i].lastChild.textContent = short(series[i].findLast((v) => v !== null));
    });
    svg.setAttribute("aria-label", `${title}: ${names.map((name, i) => `${name} ${shown[i].lastChild.textContent} ${unit}`).join(", ")}`);
  }};
}

function kvMap(box, {sums}) {
  const total = sums.tokamak_kv_blocks ?? 0;
  if (!total) return;
  const used = sums.tokamak_kv_blocks_used ?? 0, cached = sums.tokamak_kv_blocks_cached ?? 0;
  const cells = 200, upTo = (n) => Math.round(n / total * cells);
  const kinds = Array.from({length: cells}, (_, i) => (i < upTo(used) ? "used" : i < upTo(used + cached) ? "cached" : "free"));
  box.replaceChildren(element("h3", {textContent: "KV blocks"}),
                      element("p", {textContent: `${used} in use, ${cached} cached for reuse, ${total - used - cached} free of ${total}`}),
                      element("div", {className: "blocks", ariaHidden: "true"}, ...kinds.map((kind) => element("i", {className: kind}))));
}

function memory(box, {rows}) {
  const bytes = rows.filter(([name]) => name === "tokamak_memory_bytes");
  if (!bytes.length) return;
  const table = element("table", {});
  for (const [, labels, value] of bytes) {
    const kind = /kind="([^"]*)"/.exec(labels)?.[1] ?? labels;
    table.append(element("tr", {}, element("th", {scope: "row", textContent: kind}), element("td", {textContent: `${(value / 1048576).toFixed(1)} MiB`})));
  }
  box.replaceChildren(element("h3", {textContent: "Memory"}), table);
}

export function startMetrics(panel, model) {
  const plots = PLOTS.map(makePlot), blocks = element("section", {}), bytes = element("section", {});
  const note = element("p", {className: "note", role: "status", textContent: "The plots begin when this tab is opened."});
  panel.append(element("h2", {textContent: "Server"}), note, element("div", {className: "plots"}, ...plots.map((p) => p.box)),
               element("div", {className: "facts"}, blocks, bytes));
  const tree = startTree(model);
  panel.append(tree.box);
  let timer = null, last = null;
  async function look() {
    let now;
    try {
      now = {at: performance.now(), ...parse(await getText("/metrics"))};
      note.textContent = "";
    } catch (error) {
      note.textContent = error.message;
      last = null;
      return;
    }
    if (last) for (const plot of plots) plot.add(now, last, (now.at - last.at) / 1000);
    kvMap(blocks, now);
    memory(bytes, now);
    last = now;
    tree.box.hidden = await tree.look().then(() => false, (error) => error.status !== 429 || tree.box.hidden);  // 429: another page is reading it
  }
  return {visible(on) {
    if (on === (timer !== null)) return;
    clearInterval(timer);
    timer = null;
    last = null;
    if (!on) return;
    look();
    timer = setInterval(() => { if (!document.hidden) look(); }, PERIOD);
  }};
}
