// Pictures: roofline, memory map, graph.
const SVG = 'http://www.w3.org/2000/svg';
function svg(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function canvas(width, height, label) {
  return svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
}

// --- Roofline: operations per second over operations per byte, both logarithmic. ---
function roofline() {
  const m = report.machine;
  const dots = report.kernels.filter(k => k.flops > 0 && k.bytes > 0).map(k => {
    const seconds = (k.measured_us ?? k.bound_us) * 1e-6;
    return { k, x: k.intensity, y: k.flops / Math.max(seconds, 1e-12), weight: k.share };
  });
  $('roofline-hint').textContent = `One dot per row of the table, ${measured ? 'at its measured speed' : 'at its bound (use --run to measure)'}; ` +
    `its size is its share of the step. Slopes: ${m.levels.map(l => `${l.name} ${amount(l.bandwidth, 'B/s')}`).join(', ')}.`;
  const width = Math.max(300, $('roofline-picture').clientWidth), height = Math.min(420, Math.max(260, width * .5));
  const box = { left: 72, right: width - 14, top: 12, bottom: height - 36 };
  const span = (values, low, high) => [Math.floor(Math.log10(Math.min(low, ...values))), Math.ceil(Math.log10(Math.max(high, ...values)))];
  const [x0, x1] = span(dots.map(d => d.x), .1, m.i8_ops / m.bandwidth * 2);
  const [y0, y1] = span(dots.map(d => d.y), m.f32_flops / 100, m.i8_ops);
  const px = v => box.left + (Math.log10(v) - x0) / (x1 - x0) * (box.right - box.left);
  const py = v => box.bottom - (Math.log10(v) - y0) / (y1 - y0) * (box.bottom - box.top);
  const picture = canvas(width, height, 'Roofline');
  for (let e = x0; e <= x1; e += 1) {
    picture.append(svg('line', { class: 'axis', x1: px(10 ** e), x2: px(10 ** e), y1: box.top, y2: box.bottom }));
    picture.append(svg('text', { x: px(10 ** e), y: box.bottom + 15, 'text-anchor': 'middle' }, e < 0 ? (10 ** e).toFixed(-e) : `${10 ** e}`));
  }
  for (let e = y0; e <= y1; e += 1) {
    picture.append(svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: py(10 ** e), y2: py(10 ** e) }));
    picture.append(svg('text', { x: box.left - 5, y: py(10 ** e) + 4, 'text-anchor': 'end' }, amount(10 ** e, 'op/s')));
  }
  picture.append(svg('text', { x: box.right, y: height - 5, 'text-anchor': 'end' }, 'operations per byte'));
  const clip = v => Math.min(10 ** y1, Math.max(10 ** y0, v));
  m.levels.forEach((level, i) => {
    const from = Math.max(10 ** x0, 10 ** y0 / level.bandwidth), to = m.i8_ops / level.bandwidth;
    const last = i === m.levels.length - 1;
    picture.append(svg('line', { class: last ? 'roof' : 'dash', x1: px(from), y1: py(clip(from * level.bandwidth)), x2: px(Math.min(10 ** x1, to)), y2: py(clip(Math.min(10 ** x1, to) * level.bandwidth)) }));
  });
  for (const [name, peak] of [['int8', m.i8_ops], ['f32', m.f32_flops], ['element-wise', m.vector_ops]]) {
    picture.append(svg('line', { class: name === 'int8' ? 'roof' : 'dash', x1: px(Math.max(10 ** x0, peak / m.levels[0].bandwidth)), y1: py(clip(peak)), x2: box.right, y2: py(clip(peak)) }));
    picture.append(svg('text', { x: box.right, y: py(clip(peak)) - 4, 'text-anchor': 'end' }, name));
  }
  for (const d of dots.sort((a, b) => b.weight - a.weight)) {
    const dot = svg('circle', { class: 'hit', cx: px(d.x), cy: py(clip(d.y)), r: 4 + 16 * Math.sqrt(d.weight), fill: colour(d.k.class), 'fill-opacity': .75 });
    tip(dot, `${d.k.name} ×${d.k.calls}\n${d.k.kernel}\n${amount(d.y, 'op/s')} at ${d.x.toFixed(2)} op/byte\n${amount(d.k.bytes, 'B')}, ${amount(d.k.flops, 'op')}\n` +
      `bound ${micros(d.k.bound_us)} (${d.k.bound})${d.k.measured_us ? `, measured ${micros(d.k.measured_us)}` : ''}\n${(100 * d.weight).toFixed(1)} % of the step`);
    picture.append(dot);
  }
  $('roofline-picture').replaceChildren(picture);
  $('legend').replaceChildren(...Object.entries(CLASSES).map(([kind, name]) =>
    element('span', {}, element('span', { class: 'dot', style: `background:${colour(kind)}` }), name)));
}

// --- Memory: calls from left to right, addresses from bottom to top. ---
// One large value would flatten the others: the stretched scale gives every interval between two value boundaries the
// same height.
const memoryScale = { stretched: report.memory.values.some(v => v.bytes > report.memory.peak / 2) };
function addressScale(values, peak, box) {
  const height = box.bottom - box.top;
  if (!memoryScale.stretched) {
    return { at: a => box.bottom - a / peak * height, marks: [0, .25, .5, .75, 1].map(part => part * peak) };
  }
  const borders = [...new Set([0, peak, ...values.flatMap(v => [v.offset, v.offset + v.bytes])])].sort((a, b) => a - b);
  const at = a => {
    let high = borders.findIndex(b => b >= a);
    if (high < 0) high = borders.length - 1;
    const low = Math.max(0, high - 1), span = borders[high] - borders[low];
    const rank = span > 0 ? low + (a - borders[low]) / span : high;
    return box.bottom - rank / Math.max(1, borders.length - 1) * height;
  };
  const every = Math.max(1, Math.ceil(borders.length / 12));
  return { at, marks: borders.filter((_, i) => i % every === 0 || i === borders.length - 1) };
}

function memoryMap() {
  const m = report.memory, calls = report.calls.length;
  $('memory-hint').textContent = `${m.values.length} values over ${calls} calls: ${amount(m.peak, 'B')} planned (${m.peak}), at least ${m.lower_bound} needed, ` +
    `gap ${(100 * m.gap).toFixed(2)} %, placed by ${m.method || 'unknown'}. Time runs to the right, addresses upwards` +
    `${memoryScale.stretched ? '; the scale is stretched where values are small.' : '.'}`;
  $('memory-scale').textContent = memoryScale.stretched ? 'True scale' : 'Stretch small values';
  const width = Math.max(300, $('memory-picture').clientWidth), height = Math.min(420, Math.max(240, width * .42));
  const box = { left: 72, right: width - 10, top: 12, bottom: height - 30 };
  const scale = addressScale(m.values, Math.max(1, m.peak), box), py = scale.at;
  const px = c => box.left + c / Math.max(1, calls) * (box.right - box.left);
  const picture = canvas(width, height, 'Memory map');
  for (const mark of scale.marks) {
    picture.append(svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: py(mark), y2: py(mark) }));
    picture.append(svg('text', { x: box.left - 5, y: py(mark) + 4, 'text-anchor': 'end' }, amount(mark, 'B')));
  }
  for (const v of m.values) {
    const maker = report.kernels[report.calls[v.first].kernel];
    const rect = svg('rect', { class: 'hit', x: px(v.first), y: py(v.offset + v.bytes), width: Math.max(1, px(v.last + 1) - px(v.first)),
      height: Math.max(1, py(v.offset) - py(v.offset + v.bytes)), fill: colour(maker.class), 'fill-opacity': .6, stroke: 'var(--panel)', 'stroke-width': .5 });
    tip(rect, `${v.name}\n${v.bytes} bytes at ${v.offset}\ncalls ${v.first} to ${v.last} (${maker.kernel})`);
    picture.append(rect);
  }
  picture.append(svg('line', { class: 'dash', x1: box.left, x2: box.right, y1: py(m.lower_bound), y2: py(m.lower_bound) }));
  picture.append(svg('text', { x: box.left, y: height - 8 }, 'call 0'));
  picture.append(svg('text', { x: box.right, y: height - 8, 'text-anchor': 'end' }, `call ${calls - 1}`));
  $('memory-picture').replaceChildren(picture);
}
$('memory-scale').addEventListener('click', () => {
  memoryScale.stretched = !memoryScale.stretched;
  memoryMap();
});

// --- Graph: nodes in rows by their depth, parents above. ---
function layout(nodes) {
  const places = [], rows = [];
  nodes.forEach((node, i) => {
    const parents = node.from.filter(f => typeof f === 'number');
    const depth = parents.length ? 1 + Math.max(...parents.map(p => places[p].depth)) : 0;
    const label = node.name ? node.name.replace(/^blk\.\d+\./, '') : '';
    const title = node.op.startsWith('region') ? `${node.op} (${node.body.length} ops)` : node.op;
    const width = Math.max(58, 14 + 6.7 * Math.max(title.length, Math.min(label.length, 34)));
    places.push({ node, i, depth, label: label.length > 34 ? `${label.slice(0, 33)}…` : label, title, width, parents });
    (rows[depth] ??= []).push(places[i]);
  });
  let widest = 0;
  for (const row of rows) {
    const middle = p => p.parents.length ? p.parents.reduce((sum, q) => sum + places[q].order, 0) / p.parents.length : p.i;
    row.sort((a, b) => middle(a) - middle(b));
    row.forEach((p, i) => { p.order = (i + .5) / row.length; });
    widest = Math.max(widest, row.reduce((sum, p) => sum + p.width + 14, 0));
  }
  for (const row of rows) {
    let x = (widest - row.reduce((sum, p) => sum + p.width + 14, -14)) / 2;
    for (const p of row) { p.x = x; p.y = 8 + p.depth * 54; x += p.width + 14; }
  }
  // Edges over several rows are routed around the nodes in between.
  const edges = [];
  let margin = 0;
  for (const p of places)
    for (const q of new Set(p.parents)) {
      const from = places[q], x1 = from.x + from.width / 2, x2 = p.x + p.width / 2;
      let aside = 0;
      if (p.depth - from.depth > 1) {
        const right = Math.max(...rows.slice(from.depth + 1, p.depth).map(row => Math.max(...row.map(n => n.x + n.width))));
        aside = right + 12 + 5 * (edges.length % 3);
        margin = Math.max(margin, aside - widest + 8);
      }
      edges.push({ x1, y1: from.y + 34, x2, y2: p.y, aside });
    }
  return { places, edges, width: widest + 4 + margin, height: rows.length * 54 + 4 };
}

function edgePath({ x1, y1, x2, y2, aside }) {
  if (!aside) return `M${x1},${y1} C${x1},${y1 + 14} ${x2},${y2 - 14} ${x2},${y2}`;
  const bend = Math.min(27, (y2 - y1) / 4);
  return `M${x1},${y1} C${x1},${y1 + bend} ${aside},${y1} ${aside},${y1 + bend} V${y2 - bend} C${aside},${y2} ${x2},${y2 - bend} ${x2},${y2}`;
}

function segmentFigure(segment) {
  const { places, edges, width, height } = layout(segment.nodes);
  const picture = canvas(Math.max(width, 120), height, segment.title);
  for (const edge of edges) picture.append(svg('path', { class: 'edge', d: edgePath(edge) }));
  for (const p of places) {
    const n = p.node, group = svg('g', { class: 'hit' });
    const kind = classOf(n.body ?? [n.op], n.name);
    group.append(svg('rect', { class: 'node', x: p.x, y: p.y, width: p.width, height: 34, rx: 6, stroke: colour(kind) }));
    group.append(svg('text', { class: 'op', x: p.x + p.width / 2, y: p.y + (p.label ? 14 : 21), 'text-anchor': 'middle' }, p.title));
    if (p.label) group.append(svg('text', { x: p.x + p.width / 2, y: p.y + 28, 'text-anchor': 'middle' }, p.label));
    const outside = n.from.filter(f => typeof f === 'string');
    tip(group, [n.name ? `${n.op} ${n.name}` : n.op, n.type, n.body ? `does: ${n.body.join(', ')}` : '', n.weights.length ? `weights: ${n.weights.join(', ')}` : '',
      outside.length ? `takes: ${outside.join(', ')}` : '', n.why ? `from: ${n.why}` : ''].filter(Boolean).join('\n'));
    picture.append(group);
  }
  const title = segment.count > 1 ? `${segment.title} (×${segment.count})` : segment.title;
  return element('figure', {}, element('figcaption', {}, title), picture);
}

function opCounts(graph) {
  const counts = new Map();
  for (const segment of graph.segments)
    for (const node of segment.nodes) counts.set(node.op, (counts.get(node.op) ?? 0) + segment.count);
  return counts;
}

function showStage(index) {
  const graph = report.graphs[index];
  [...$('stages').children].forEach((button, i) => button.setAttribute('aria-selected', `${i === index}`));
  const now = opCounts(graph), before = index > 0 ? opCounts(report.graphs[index - 1]) : now;
  const total = [...now.values()].reduce((a, b) => a + b, 0);
  const changes = [...new Set([...now.keys(), ...before.keys()])].map(op => [op, (now.get(op) ?? 0) - (before.get(op) ?? 0)]).filter(([, n]) => n !== 0)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).map(([op, n]) => `${n > 0 ? '+' : '−'}${Math.abs(n)} ${op}`);
  $('diff').textContent = `${graph.function}: ${total} ops in ${graph.nodes} nodes${changes.length ? `; ${changes.join(', ')}` : index > 0 ? '; other types or attributes' : ''}`;
  const previous = index > 0 ? report.graphs[index - 1] : null;
  $('after-title').textContent = previous ? `After ${graph.stage}` : 'As imported';
  $('after').replaceChildren(...graph.segments.map(segmentFigure));
  $('before-title').textContent = previous ? `Before ${graph.stage}` : '';
  $('before').replaceChildren(...(previous ? previous.segments.map(segmentFigure) : []));
}

function graphs() {
  if (!report.graphs.length) { $('graph').hidden = true; return; }
  report.graphs.forEach((graph, i) => {
    const button = element('button', { type: 'button', role: 'tab' }, `${graph.stage}${graph.function !== report.function ? ` (${graph.function})` : ''}`);
    button.addEventListener('click', () => showStage(i));
    $('stages').append(button);
  });
  showStage(report.graphs.length - 1);
}

function pictures() {
  roofline();
  memoryMap();
}
pictures();
graphs();
let pending = 0;
addEventListener('resize', () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(pictures);
});
