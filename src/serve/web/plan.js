// The model tab: the compiled plan of the loaded model, from GET /plan: kernels, roofline, memory, fusion.
import {drawGraph} from "/web/graph.js";
import {getJson} from "/web/server.js";
import {shape, size, us} from "/web/svg.js";
import {measuredThreads} from "/web/threads.js";
import {drawTimeline} from "/web/timeline.js";
import {element} from "/web/view.js";

// Numbers with their units are aligned to the right; long texts wrap. head: null for none.
function table(head, rows) {
  const kind = (text) => (/^[\d.]+( [µmKMG%]?i?[sB]?)?$/.test(text) ? "right" : text.length > 40 ? "long" : "");
  const cell = (text) => element("td", {textContent: text ?? "", className: kind(String(text ?? ""))});
  const body = element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map(cell))));
  const grid = element("table", {}, body);
  if (head) grid.prepend(element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {scope: "col", textContent: text})))));
  return element("div", {className: "table"}, grid);
}

function section(title, note, ...content) {
  return element("section", {}, element("h3", {textContent: title}), element("p", {className: "note", textContent: note}), ...content);
}

function filtered(title, note, head, rows) {
  const input = element("input", {type: "search", placeholder: "Filter"}), box = element("div", {}), count = element("span", {className: "scale"});
  input.setAttribute("aria-label", `Filter ${title}`);
  const draw = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((row) => words.every((word) => row.join(" ").toLowerCase().includes(word)));
    count.textContent = `${kept.length} of ${rows.length}`;
    box.replaceChildren(table(head, kept.slice(0, 500)));
  };
  input.addEventListener("input", draw);
  draw();
  return section(title, note, element("div", {className: "row"}, input, count), box);
}

function kernels(report) {
  const all = report.kernels.reduce((sum, k) => sum + k.calls * (k.bound_us + k.overhead_us), 0) || 1;
  const rows = report.kernels.map((k) => {
    const time = k.calls * (k.bound_us + k.overhead_us);
    return [k.name, k.kernel, String(k.calls), us(time), `${(time / all * 100).toFixed(1)} %`, size(k.bytes), k.bound, (k.ops ?? []).join(" "), k.why ?? ""];
  });
  return filtered("Kernels", "Each kind of call with its predicted time in one step, and why this kernel was chosen.",
                  ["Call", "Kernel", "Calls", "Time", "Share", "Bytes", "Bound by", "Fused ops", "Why"], rows);
}

// Arithmetic intensity against predicted speed, both axes logarithmic.
function roofline(report) {
  const points = report.kernels.filter((k) => k.flops > 0 && k.bytes > 0 && k.bound_us > 0)
      .map((k) => ({k, x: Math.log10(k.flops / k.bytes), y: Math.log10(k.flops / k.bound_us / 1000)}));
  if (points.length < 2) return "";
  const range = (values) => [Math.floor(Math.min(...values) - 0.2), Math.ceil(Math.max(...values) + 0.2)];
  const [x0, x1] = range(points.map((p) => p.x)), [y0, y1] = range(points.map((p) => p.y));
  const svg = shape("svg", {viewBox: "0 0 600 260", role: "img", "aria-label": "Roofline: the table of kernels has the same data"});
  const px = (x) => 50 + (x - x0) / (x1 - x0) * 530, py = (y) => 230 - (y - y0) / (y1 - y0) * 210;
  for (let x = x0; x <= x1; x++) svg.append(shape("path", {d: `M${px(x)} 20V230`, class: "axis"}), text(px(x), 246, `${10 ** x}`));
  for (let y = y0; y <= y1; y++) svg.append(shape("path", {d: `M50 ${py(y)}H580`, class: "axis"}), text(24, py(y) + 4, `${10 ** y}`));
  for (const {k, x, y} of points)
    svg.append(shape("circle", {cx: px(x), cy: py(y), r: 5, class: k.bound}, `${k.name}: ${k.bound} bound, ${us(k.bound_us)}`));
  return section("Roofline", "Operations per byte (across) and predicted Gflop/s (up). Blue dots are bound by memory, orange ones by computation.", svg);
}

function text(x, y, content) {
  const node = shape("text", {x, y, class: "label"});
  node.textContent = content;
  return node;
}

// The arena: when each value lives (across, in calls) and where (up, in bytes).
function memory({memory: plan, calls}) {
  const values = (plan?.values ?? []).filter((v) => v.bytes > 0), peak = plan?.peak || 1, last = Math.max(1, (calls?.length ?? 1));
  if (!values.length) return "";
  const svg = shape("svg", {viewBox: "0 0 600 200", preserveAspectRatio: "none", role: "img", "aria-label": `Memory map of ${values.length} values, peak ${size(peak)}`});
  for (const [i, v] of values.entries())
    svg.append(shape("rect", {x: v.first / last * 600, width: Math.max(0.8, (v.last - v.first + 1) / last * 600), y: 200 - (v.offset + v.bytes) / peak * 200,
                              height: Math.max(0.8, v.bytes / peak * 200), class: `value-${i % 4}`}, `${v.name}: ${size(v.bytes)}, calls ${v.first} to ${v.last}`));
  return section("Memory", `Intermediate values share ${size(peak)}; no order of these calls needs less than ${size(plan.lower_bound ?? 0)}. Weights: ${size(plan.weights ?? 0)}.`, svg);
}

function notFused(report) {
  const rows = (report.not_fused ?? []).map((e) => [e.producer, e.consumer, String(e.count), e.reason, e.detail ?? "", us(e.saving_us ?? 0)]);
  return rows.length ? filtered("Not fused", "Neighbours that stayed separate calls, and why.", ["Producer", "Consumer", "Count", "Reason", "Detail", "Would save"], rows) : "";
}

function passes(report) {
  const rows = (report.passes ?? []).map((p) => [p.function, p.name, p.what, p.class, `${p.ms.toFixed(2)} ms`, `${p.nodes_before} → ${p.nodes_after}`]);
  return rows.length ? filtered("Passes", "What the compiler did, in order.", ["Function", "Pass", "What", "Class", "Time", "Nodes"], rows) : "";
}

// The graph after the passes that changed it; equal layers are shown once. One part of it is drawn, the others can be chosen.
function graphs(report) {
  const list = report.graphs ?? [];
  if (!list.length) return "";
  const stage = element("select", {ariaLabel: "Stage of the graph"}, ...list.map((g, i) => new Option(`${g.function}: ${g.stage} (${g.nodes} nodes)`, i)));
  stage.value = String(list.length - 1);
  const part = element("select", {ariaLabel: "Part of the graph"}), box = element("div", {}), from = (f) => (typeof f === "number" ? `%${f}` : f);
  const draw = () => {
    const segment = list[Number(stage.value)].segments[Number(part.value)];
    box.replaceChildren(drawGraph(segment), element("details", {}, element("summary", {textContent: "As a table"}),
      table(["", "Op", "Name", "Type", "From", "Weights", "Why"], segment.nodes.map((n, i) =>
        [`%${i}`, n.op, n.name, n.type, (n.from ?? []).map(from).join(", "), [n.weights ?? ""].flat().join(", "), n.why ?? ""]))));
  };
  const choose = () => {
    const {segments} = list[Number(stage.value)], most = Math.max(...segments.map((s) => s.count * 1000 + s.nodes.length));
    part.replaceChildren(...segments.map((s, i) => new Option(`${s.title}${s.count > 1 ? `, ${s.count} times` : ""} (${s.nodes.length} ops)`, i)));
    part.value = String(segments.findIndex((s) => s.count * 1000 + s.nodes.length === most));  // the repeated layer
    draw();
  };
  stage.addEventListener("change", choose);
  part.addEventListener("change", draw);
  choose();
  return section("Graph", "Before the first pass and after each one that changed it. Blue ops have weights, dashed values come from outside. Drag to move; zoom with the buttons, two fingers, or Ctrl and the wheel. Enter in the search goes to the next match.",
                 element("div", {className: "row choices"}, stage, part), box);
}

function timeline(report) {
  const drawing = drawTimeline(report), measured = report.calls?.some((c) => c.measured_us !== undefined);
  return drawing && section("Timeline", `The calls of one step one after the other, a row for each kernel, ${measured ? "as measured" : "with predicted times"}. Blue calls are bound by memory, orange ones by computation.`, drawing);
}

function threads(report, which) {
  return section("Threads", "What each thread of the server does in one step, a lane for each. Threads share every call, and wait where one needs what another computes. An idle server answers a short request for it.",
                 ...measuredThreads(report, which, table));
}

function show(box, report, which) {
  const t = report.totals ?? {}, facts = [
    ["Model", report.model], ["Backend", `${report.backend} (${report.isa})`], ["Shape", Object.entries(report.shape ?? {}).map(([k, v]) => `${k}=${v}`).join(", ")],
    ["One step", `${t.calls} calls of ${t.kinds} kinds, ${size(t.bytes ?? 0)}, predicted ${us((t.bound_us ?? 0) + (t.overhead_us ?? 0))}`],
    ["Numerics", report.numerics_id]];
  box.replaceChildren(table(null, facts.filter(([, value]) => value !== undefined)), graphs(report), timeline(report), threads(report, which), kernels(report), roofline(report), memory(report), notFused(report), passes(report));
}

export function startPlan(panel, model) {
  const choice = element("select", {}, new Option("decode: one token per sequence", "decode"), new Option("step: prompts and answers", "step"));
  choice.setAttribute("aria-label", "Function");
  const note = element("p", {className: "note", role: "status"}), box = element("div", {className: "plan"});
  panel.append(element("h2", {textContent: "Compiled plan "}, choice), note, box);
  let shown = null, open = false;
  async function load() {
    const wanted = `${choice.value}/${model()}`;
    if (!open || shown === wanted) return;
    note.textContent = "Loading …";
    box.replaceChildren();
    shown = null;
    try {
      const which = `${choice.value}/${encodeURIComponent(model())}`;
      show(box, await getJson(`/plan/${which}`), which);
      shown = wanted;
      note.textContent = "";
    } catch (error) {
      note.textContent = error.status === 404 ? "This server does not show the plan of its model." : error.message;
    }
  }
  choice.addEventListener("change", load);
  return {visible(on) { open = on; load(); }};
}
