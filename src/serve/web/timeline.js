// Bars over time with zoom: the calls of one step with predicted times, a row for each kernel; threads.js draws measured ones.
import {element} from "/web/view.js";
import {shape, us} from "/web/svg.js";
import {zoomable} from "/web/zoom.js";

const ROW = 32, BAR = 14, NAMES = 12;

// bars: {row, at, time, kind, name, about}, times in microseconds; total: of the whole.
export function drawBars({rows, bars, total, name, summary, hint}) {
  const height = rows.length * ROW + 22;
  const svg = shape("svg", {class: "timeline", height, role: "img", "aria-label": `${hint} Plus and minus zoom, arrow keys move.`});
  const area = svg.appendChild(shape("g", {})), axis = svg.appendChild(shape("g", {}));
  const about = element("p", {className: "note", role: "status", textContent: "Point at a call to read about it."});
  for (const bar of bars) {
    bar.box = shape("rect", {y: bar.row * ROW + ROW - BAR - 2, height: BAR, rx: 2, class: bar.kind}, `${bar.name}: ${us(bar.time)}`);
    bar.box.addEventListener("pointerenter", () => { about.textContent = bar.about; });
    area.append(bar.box);
  }
  const labels = rows.map((text, i) => {
    const node = svg.appendChild(shape("text", {x: 6, y: i * ROW + 13, class: "row-name"}));
    node.textContent = text;
    return node;
  });
  function draw({k, x}) {
    for (const bar of bars) {
      bar.box.setAttribute("x", x + bar.at * k);
      bar.box.setAttribute("width", Math.max(0.6, bar.time * k - 0.3));
    }
    const width = svg.getBoundingClientRect().width, step = 10 ** Math.ceil(Math.log10(70 / k)), marks = [];
    for (let t = Math.max(0, Math.ceil(-x / k / step) * step); t * k + x <= width && t <= total; t += step) {
      const node = shape("text", {x: x + t * k + 3, y: height - 5, class: "label start"});
      node.textContent = us(t);
      marks.push(shape("path", {d: `M${x + t * k} 0V${height}`, class: "axis"}), node);
    }
    axis.replaceChildren(...marks);
    for (const label of labels) svg.append(label);
  }
  const zoom = zoomable(svg, name, () => ({width: total, height}), draw, true);
  return element("div", {className: "drawing"}, element("div", {className: "row"}, element("span", {className: "scale", textContent: summary}),
                                                         element("span", {className: "grow"}), zoom.buttons), svg, about);
}

export function drawTimeline(report) {
  const calls = [], sums = new Map();
  let at = 0;
  for (const [index, call] of (report.calls ?? []).entries()) {
    const kernel = report.kernels[call.kernel];
    if (!kernel) continue;
    const time = call.measured_us ?? kernel.bound_us + kernel.overhead_us;
    calls.push({name: call.name, index, kernel, at, time, kind: kernel.bound === "memory" ? "memory" : "compute"});
    at += time;
    sums.set(kernel.kernel, (sums.get(kernel.kernel) ?? 0) + time);
  }
  if (!calls.length || !at) return "";
  const names = [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name), others = names.length - NAMES;
  for (const call of calls) {
    call.row = Math.min(names.indexOf(call.kernel.kernel), NAMES);
    call.about = `Call ${call.index}, ${call.name}: ${us(call.time)} of ${us(at)}, from ${us(call.at)}, ${call.kernel.bound} bound`;
  }
  return drawBars({rows: [...names.slice(0, NAMES), ...(others > 0 ? [`${others} others`] : [])], bars: calls, total: at, name: "timeline",
                   summary: `${calls.length} calls, ${us(at)}`, hint: `Timeline of ${calls.length} calls, ${us(at)}; the table of kernels has the same data.`});
}
