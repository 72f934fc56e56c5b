// A part of the compiler's graph as a drawing: ops from the top down in the order of their inputs, with search, zoom and pan.
import {element} from "/web/view.js";
import {shape} from "/web/svg.js";
import {zoomable} from "/web/zoom.js";

const WIDTH = 168, HEIGHT = 40, GAP = 18, LAYER = 74;

// Nodes of a segment and, as small nodes, the values that come from outside of it.
function nodesOf(part) {
  const nodes = part.nodes.map((n, i) => ({...n, id: i, inputs: [], outputs: [], depth: 0, outside: false}));
  const outside = new Map();
  part.nodes.forEach((n, i) => {
    for (const from of n.from ?? []) {
      let source = typeof from === "number" ? nodes[from] : outside.get(from);
      if (!source) {
        source = {id: nodes.length + outside.size, op: from, name: "", inputs: [], outputs: [], depth: 0, outside: true};
        outside.set(from, source);
      }
      nodes[i].inputs.push(source);
      source.outputs.push(nodes[i]);
    }
  });
  for (const n of nodes) n.depth = Math.max(0, ...n.inputs.map((from) => from.depth + 1));  // inputs precede their uses
  for (const n of outside.values()) n.depth = Math.max(0, Math.min(...n.outputs.map((to) => to.depth)) - 1);
  return [...nodes, ...outside.values()];
}

// Layers by depth; within one, nodes are ordered by where their neighbours are. Sets x and y.
function place(nodes) {
  const layers = [];
  for (const n of nodes) (layers[n.depth] ??= []).push(n);
  const used = layers.filter(Boolean), middle = (list) => list.reduce((sum, n) => sum + n.x, 0) / list.length;
  for (const layer of used) layer.forEach((n, i) => { n.x = i; });
  for (let round = 0; round < 6; round++)
    for (const layer of round % 2 ? [...used].reverse() : used) {
      const near = round % 2 ? "outputs" : "inputs";
      for (const n of layer) n.want = n[near].length ? middle(n[near]) : n.x;
      layer.sort((a, b) => a.want - b.want || a.id - b.id).forEach((n, i) => { n.x = i - (layer.length - 1) / 2; });
    }
  const widest = Math.max(...used.map((layer) => layer.length));
  used.forEach((layer, row) => {
    for (const n of layer) Object.assign(n, {x: (n.x + widest / 2) * (WIDTH + GAP), y: row * LAYER + HEIGHT / 2 + 8});
  });
  return {width: widest * (WIDTH + GAP) + GAP, height: used.length * LAYER + 8};
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function drawGraph(part) {
  const nodes = nodesOf(part), whole = place(nodes);
  const svg = shape("svg", {class: "graph", role: "group", "aria-label": `Graph of ${part.title}: ${part.nodes.length} ops. Arrow keys move it, plus and minus zoom, 0 shows all.`});
  const layer = svg.appendChild(shape("g", {}));
  for (const n of nodes)
    for (const from of n.inputs)
      n.lines = [...(n.lines ?? []), layer.appendChild(shape("path", {class: "edge", d: `M${from.x} ${from.y + HEIGHT / 2}C${from.x} ${from.y + HEIGHT} ${n.x} ${n.y - HEIGHT} ${n.x} ${n.y - HEIGHT / 2}`}))];
  const about = element("p", {className: "note node", role: "status", textContent: "Choose an op to read about it."});
  let chosen = null;
  function choose(n) {
    for (const each of nodes) {
      each.box.classList.toggle("chosen", each === n);
      for (const line of each.lines ?? []) line.classList.toggle("chosen", each === n || n?.outputs.includes(each) && each.inputs[each.lines.indexOf(line)] === n);
    }
    chosen = n;
    const parts = n.outside ? ["comes from outside of this part"] : [n.type, n.weights ? `weights ${[n.weights].flat().join(", ")}` : "", n.why ?? ""];
    about.replaceChildren(element("b", {textContent: [n.op, n.name].filter(Boolean).join(" ")}), ` ${parts.filter(Boolean).join(" · ")}`);
  }
  for (const n of nodes) {
    n.box = shape("g", {class: n.outside ? "outside" : (n.weights ?? "").length ? "weighted" : "plain", tabindex: "0", role: "button",
                        "aria-label": `${n.op} ${n.name ?? ""} ${n.type ?? ""}`.trim(), transform: `translate(${n.x - WIDTH / 2} ${n.y - HEIGHT / 2})`});
    const op = shape("text", {x: WIDTH / 2, y: n.outside ? 24 : 17}), name = shape("text", {x: WIDTH / 2, y: 32, class: "small"});
    op.textContent = cut(n.op, 24);
    name.textContent = cut([n.name, n.type].filter(Boolean).join(" "), 29);
    n.box.append(shape("rect", {width: WIDTH, height: HEIGHT, rx: 6}), op, ...(n.outside ? [] : [name]));
    n.box.addEventListener("click", () => choose(n));
    n.box.addEventListener("focus", () => { choose(n); zoom.center(n.x, n.y); });
    layer.append(n.box);
  }
  const zoom = zoomable(svg, part.title, () => whole, ({k, x, y}) => layer.setAttribute("transform", `translate(${x} ${y}) scale(${k})`));

  const input = element("input", {type: "search", placeholder: "Find an op", ariaLabel: "Find an op in the graph"}), count = element("span", {className: "scale", role: "status"});
  function find(next) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? nodes.filter((n) => words.every((w) => `${n.op} ${n.name} ${n.type} ${n.weights ?? ""}`.toLowerCase().includes(w))) : [];
    for (const n of nodes) n.box.classList.toggle("found", found.includes(n));
    svg.classList.toggle("searching", words.length > 0);
    if (!found.length) {
      count.textContent = words.length ? "none" : "";
      return words.length ? null : zoom.fit();
    }
    const at = found.indexOf(chosen), n = found[at < 0 ? 0 : (at + (next ? 1 : 0)) % found.length];
    choose(n);
    zoom.center(n.x, n.y, 1);
    count.textContent = `${found.indexOf(n) + 1} of ${found.length}`;
  }
  input.addEventListener("input", () => { chosen = null; find(false); });
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") find(true); });
  return element("div", {className: "drawing"}, element("div", {className: "row"}, input, count, element("span", {className: "grow"}), zoom.buttons), svg, about);
}
