'use strict';
// The page of `tokamak explain --html`, generated from the JSON report in #data.
const report = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function amount(value, unit) {
  if (value === null || value === undefined) return '–';
  let prefix = 0;
  while (value >= 999.5 && prefix < 4) { value /= 1000; prefix += 1; }
  const digits = prefix === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${['', 'k', 'M', 'G', 'T'][prefix]}${unit}`;
}
function micros(us) {
  if (us === null || us === undefined) return '–';
  if (us >= 10000) return `${(us / 1000).toFixed(1)} ms`;
  return `${us.toFixed(us >= 100 ? 0 : us >= 1 ? 1 : 2)} µs`;
}

// The main kind of a kernel, for its colour.
const CLASSES = { matrix: 'matrices', attention: 'attention', state: 'KV writes', rows: 'norms, rows, element-wise', other: 'other' };
function classOf(ops, name = '') {
  const all = ops.map(op => op.split(' ')[0]);
  if (all.some(op => ['linear', 'matmul', 'grouped_linear', 'lora'].includes(op))) return 'matrix';
  if (all.includes('attend') || all.includes('sdpa')) return 'attention';
  if (all.includes('append') || name.includes('append')) return 'state';
  if (all.some(op => ['embed', 'gather', 'reshape', 'slice', 'concat', 'transpose'].includes(op))) return 'other';
  return 'rows';
}
const colour = kind => `var(--${kind})`;

// One tooltip for all pictures; on touch screens a tap shows it.
function tip(node, text) {
  const show = event => {
    const box = $('tip');
    box.textContent = text;
    box.hidden = false;
    const x = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
    const below = event.clientY + 16 + box.offsetHeight < innerHeight;
    box.style.left = `${Math.max(4, x)}px`;
    box.style.top = `${below ? event.clientY + 16 : event.clientY - box.offsetHeight - 10}px`;
  };
  node.addEventListener('pointermove', show);
  node.addEventListener('pointerdown', show);
  node.addEventListener('pointerleave', () => { $('tip').hidden = true; });
}

function header() {
  const s = report.shape;
  $('what').textContent = `${report.model} · ${report.function} · B=${s.B} T=${s.T} S=${s.S} R=${s.R} · ` +
    `${report.backend} (${report.isa}) · ${report.mode} · machine ${report.machine.name}` +
    report.warnings.map((w) => ` · warning: ${w}`).join('');
  document.title = `${report.model} ${report.function} – Tokamak explain`;
  const t = report.totals, m = report.memory;
  const cards = [
    ['Calls per step', `${t.calls}`, `${t.kinds} kinds`],
    ['Bytes per step', amount(t.bytes, 'B'), `${amount(t.weight_bytes, 'B')} weights`],
    ['Operations', amount(t.flops, 'op'), `${(t.flops / t.bytes).toFixed(2)} per byte`],
    ['Bound', micros(t.bound_us), `${micros(t.overhead_us)} for calls`],
  ];
  if (t.measured_us) cards.push(['Measured', micros(t.measured_us), `${(100 * t.bound_us / t.measured_us).toFixed(0)} % of the bound reached`]);
  if (t.counted_equal !== undefined)
    cards.push(['Counted bytes', amount(t.counted_bytes, 'B'), t.counted_equal === null ? 'not all calls' : t.counted_equal ? 'equal to the prediction' : 'different from the prediction']);
  cards.push(['Arena', amount(m.peak, 'B'), `${(100 * m.gap).toFixed(2)} % above the lower bound`]);
  if (report.fusion) cards.push(['Fusion', `${report.fusion.calls_before} → ${report.fusion.calls_after}`, 'calls']);
  $('cards').append(...cards.map(([name, value, note]) => element('div', {}, name, element('b', {}, value), note)));
}

// --- Kernel table ---
const measured = Boolean(report.totals.measured_us), counted = report.totals.counted_bytes !== undefined;
const COLUMNS = [
  { key: 'name', title: 'Name', left: true, text: k => k.name },
  { key: 'kernel', title: 'Kernel', left: true, text: k => k.kernel },
  { key: 'calls', title: 'Calls', text: k => `${k.calls}` },
  { key: 'layers', title: 'Layers', text: k => k.layers || '–' },
  { key: 'share', title: 'Share', text: k => `${(100 * k.share).toFixed(1)} %` },
  ...(measured ? [{ key: 'measured_us', title: 'Measured', text: k => micros(k.measured_us) }] : []),
  { key: 'bound_us', title: 'Bound', text: k => micros(k.bound_us) },
  { key: 'bound', title: 'By', text: k => k.bound },
  { key: 'bytes', title: 'Bytes', text: k => amount(k.bytes, 'B') },
  ...(counted ? [{ key: 'counted_bytes', title: 'Counted', text: k => k.counted_bytes === null ? '–' : k.counted_bytes === k.bytes ? 'equal' : amount(k.counted_bytes, 'B') }] : []),
  { key: 'flops', title: 'Ops', text: k => amount(k.flops, 'op') },
  { key: 'intensity', title: 'Ops/byte', text: k => k.intensity.toFixed(2) },
  { key: 'offset', title: 'Arena', text: k => k.arena.length ? `${k.arena[0].offset}+${k.arena[0].bytes}` : '–' },
];
const shareOf = k => k.calls * (k.measured_us ?? k.bound_us);
const wholeShare = report.kernels.reduce((sum, k) => sum + shareOf(k), 0);
for (const k of report.kernels) {
  k.share = wholeShare > 0 ? shareOf(k) / wholeShare : 0;
  k.offset = k.arena.length ? k.arena[0].offset : -1;
  k.class = classOf(k.ops, k.name);
}
const sorting = { key: null, down: true };
const opened = new Set();

function kernelDetails(k) {
  const list = element('dl');
  const add = (name, value) => list.append(element('dt', {}, name), element('dd', {}, value));
  add('Ops', k.ops.join(', '));
  add('Why', k.why);
  if (k.saved_us !== undefined) add('Saves', `${micros(k.saved_us)}; one by one its ops would move ${amount(k.unfused_bytes, 'B')} (average over the planner's shapes)`);
  add('Arguments', k.arguments.join('; '));
  add('Bytes', `${amount(k.weight_bytes, 'B')} weights, ${amount(k.state_bytes, 'B')} KV, ${amount(k.activation_bytes, 'B')} activations`);
  add('Bound', `memory ${micros(k.memory_us)}, arithmetic ${micros(k.compute_us)}, call and barrier ${micros(k.overhead_us)}`);
  add('Arena', k.arena.map(a => `${a.bytes} bytes at ${a.offset}`).join(', ') || 'nothing');
  add('Numbers', k.numeric_class);
  return list;
}

function kernelRows() {
  const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const hit = k => words.every(w => [k.name, k.kernel, k.why, k.bound, ...k.ops].join(' ').toLowerCase().includes(w));
  const rows = report.kernels.filter(hit);
  if (sorting.key) {
    const sign = sorting.down ? -1 : 1;
    rows.sort((a, b) => {
      const x = a[sorting.key], y = b[sorting.key];
      return sign * (typeof x === 'string' ? x.localeCompare(y) : (x ?? -1) - (y ?? -1));
    });
  }
  return rows;
}

function kernelTable() {
  const head = element('tr', {}, ...COLUMNS.map(column => {
    const cell = element('th', { 'data-key': column.key, scope: 'col', tabindex: '0', class: column.left ? 'left' : '' }, column.title);
    if (sorting.key === column.key) cell.setAttribute('aria-sort', sorting.down ? 'descending' : 'ascending');
    const sort = () => {
      sorting.down = sorting.key === column.key ? !sorting.down : !column.left;
      sorting.key = column.key;
      kernelTable();
    };
    cell.addEventListener('click', sort);
    cell.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
    return cell;
  }));
  const body = element('tbody');
  for (const k of kernelRows()) {
    const row = element('tr', { class: 'row' }, ...COLUMNS.map(column => {
      const cell = element('td', { class: column.left ? 'left' : '' }, column.text(k));
      if (column.key === 'name') cell.prepend(element('span', { class: 'dot', style: `background:${colour(k.class)}` }));
      if (column.key === 'share') cell.append(element('span', { class: 'bar' }, element('span', { style: `width:${(100 * k.share).toFixed(1)}%` })));
      if (column.key === 'counted_bytes' && k.counted_bytes !== null) cell.classList.add(k.counted_bytes === k.bytes ? 'good' : 'bad');
      return cell;
    }));
    row.addEventListener('click', () => {
      if (!opened.delete(k)) opened.add(k);
      kernelTable();
    });
    body.append(row);
    if (opened.has(k)) body.append(element('tr', { class: 'more' }, element('td', { colspan: COLUMNS.length }, kernelDetails(k))));
  }
  $('kernel-table').replaceChildren(element('thead', {}, head), body);
}

function simpleTable(id, titles, rows, left) {
  const cells = (tag, values) => values.map((v, i) => element(tag, { class: left.includes(i) ? 'left' : '' }, v));
  const body = rows.map(row => {
    const line = element('tr', {}, ...cells('td', row));
    line.lastChild.classList.add('wrap');
    return line;
  });
  $(id).replaceChildren(element('thead', {}, element('tr', {}, ...cells('th', titles))), element('tbody', {}, ...body));
}

function passTable() {
  const rows = report.passes.map(p => {
    const rules = Object.entries(p.rules).sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} ×${n}`);
    const refused = Object.entries(p.refused).map(([reason, n]) => `left ${n}: ${reason}`);
    return [p.function, p.name, p.class, p.skipped ? 'off' : `${p.ms.toFixed(1)} ms`, `${p.nodes_before} → ${p.nodes_after}`, `${p.fired}`,
      [rules.join(', ') || p.what, ...refused].join('; ')];
  });
  simpleTable('pass-table', ['Function', 'Pass', 'Class', 'Time', 'Nodes', 'Fired', 'Rules'], rows, [0, 1, 2, 6]);
  if (!rows.length) $('passes').hidden = true;
}

function edgeTable() {
  const f = report.fusion;
  $('fusion-hint').textContent = f
    ? `${f.calls_before} → ${f.calls_after} calls, ${micros(f.us_before)} → ${micros(f.us_after)} predicted over the planner's shapes; ` +
      `${f.candidates} candidates, ${f.states} states${f.exact ? '' : ', not exact'}. Edges that stayed, with the reason and what fusing them would have saved:`
    : 'The fusion planner did not run.';
  const rows = report.not_fused.map(n => [`${n.producer} → ${n.consumer}`, `${n.count}`, n.layers || '–', n.reason, n.saving_us > 0 ? micros(n.saving_us) : '–', amount(n.bytes, 'B'), n.detail]);
  simpleTable('edge-table', ['Edge', 'Count', 'Layers', 'Reason', 'Lost', 'Bytes', 'Detail'], rows, [0, 3, 6]);
}

function theme() {
  const saved = (() => { try { return localStorage.getItem('theme'); } catch { return null; } })();
  const set = name => { document.documentElement.dataset.theme = name; };
  set(saved ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'));
  $('theme').addEventListener('click', () => {
    set(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
    try { localStorage.setItem('theme', document.documentElement.dataset.theme); } catch { /* private windows */ }
  });
}

theme();
header();
$('filter').addEventListener('input', kernelTable);
kernelTable();
passTable();
edgeTable();
