// The calls of one step in the order in which they run, a row for each kernel.
import {element} from "/web/view.js";
import {shape, us} from "/web/svg.js";
import {zoomable} from "/web/zoom.js";

const ROW = 32, BAR = 14, NAMES = 12;

export function drawTimeline(report) {
  const calls = [], rows = new Map();
  let at = 0;
  for (const [index, call] of (report.calls ?? []).entries()) {
    const kernel = report.kernels[call.kernel];
    if (!kernel) continue;
    const time = call.measured_us ?? kernel.bound_us + kernel.overhead_us;
    calls.push({...call, index, kernel, at, time});
    at += time;
    rows.set(kernel.kernel, (rows.get(kernel.kernel) ?? 0) + time);
  }
  if (!calls.length || !at) return "";
  const names = [...rows].sort((a, b) => b[1] - a[1]).map(([name]) => name), shown = names.slice(0, NAMES), others = names.length > NAMES;
  const rowOf = (call) => Math.min(names.indexOf(call.kernel.kernel), NAMES), height = (shown.length + (others ? 1 : 0)) * ROW + 22;
  const svg = shape("svg", {class: "timeline", height, role: "img", "aria-label": `Timeline of ${calls.length} calls, ${us(at)}; the table of kernels has the same data. Plus and minus zoom, arrow keys move.`});
  const area = svg.appendChild(shape("g", {})), axis = svg.appendChild(shape("g", {}));
  const about = element("p", {className: "note", role: "status", textContent: "Point at a call to read about it."});
  for (const call of calls) {
    const kind = call.kernel.bound === "memory" ? "memory" : "compute";
    call.box = shape("rect", {y: rowOf(call) * ROW + ROW - BAR - 2, height: BAR, rx: 2, class: kind}, `${call.name}: ${us(call.time)}`);
    call.box.addEventListener("pointerenter", () => {
      about.textContent = `Call ${call.index}, ${call.name}: ${us(call.time)} of ${us(at)}, from ${us(call.at)}, ${call.kernel.bound} bound`;
    });
    area.append(call.box);
  }
  const labels = [...shown, ...(others ? [`${names.length - NAMES} others`] : [])].map((name, i) => {
    const node = svg.appendChild(shape("text", {x: 6, y: i * ROW + 13, class: "row-name"}));
    node.textContent = name;
    return node;
  });
  function draw({k, x}) {
    for (const call of calls) {
      call.box.setAttribute("x", x + call.at * k);
      call.box.setAttribute("width", Math.max(0.6, call.time * k - 0.3));
    }
    const width = svg.getBoundingClientRect().width, step = 10 ** Math.ceil(Math.log10(70 / k)), marks = [];
    for (let t = Math.max(0, Math.ceil(-x / k / step) * step); t * k + x <= width && t <= at; t += step) {
      const node = shape("text", {x: x + t * k + 3, y: height - 5, class: "label start"});
      node.textContent = us(t);
      marks.push(shape("path", {d: `M${x + t * k} 0V${height}`, class: "axis"}), node);
    }
    axis.replaceChildren(...marks);
    for (const label of labels) svg.append(label);
  }
  const zoom = zoomable(svg, "timeline", () => ({width: at, height}), draw, true);
  return element("div", {className: "drawing"}, element("div", {className: "row"}, element("span", {className: "scale", textContent: `${calls.length} calls, ${us(at)}`}),
                                                         element("span", {className: "grow"}), zoom.buttons), svg, about);
}
