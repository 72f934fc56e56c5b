// The live panel: small plots of /metrics, polled only while it is open.
const PERIOD = 2000, POINTS = 90;  // three minutes
let timer = null, last = null, getHeaders = () => ({});
const series = {};  // key -> numbers, newest last

// Prometheus text -> {name: sum over all models}; of histograms _sum and _count are enough.
function parse(text) {
  const sums = {};
  for (const line of text.split("\n")) {
    const m = /^([a-z_:]+)(?:\{.*\})? (\S+)$/.exec(line);
    if (m && !m[1].endsWith("_bucket")) sums[m[1]] = (sums[m[1]] ?? 0) + Number(m[2]);
  }
  return sums;
}

// The change since the last poll; null: unknown.
function derive(now, before, seconds) {
  const d = (name) => (now[name] ?? 0) - (before[name] ?? 0);
  const mean = (name, scale) => (d(`${name}_count`) > 0 ? d(`${name}_sum`) / d(`${name}_count`) * scale : null);
  const asked = d("tokamak_prefix_query_tokens_total");
  return {
    running: now.tokamak_requests_running ?? 0,
    waiting: now.tokamak_requests_waiting ?? 0,
    tokens: d("tokamak_generation_tokens_total") / seconds,
    ttft: mean("tokamak_time_to_first_token_seconds", 1000),
    itl: mean("tokamak_inter_token_latency_seconds", 1000),
    kv: now.tokamak_kv_blocks ? now.tokamak_kv_blocks_used / now.tokamak_kv_blocks * 100 : 0,
    hits: asked > 0 ? d("tokamak_prefix_hit_tokens_total") / asked * 100 : null,
  };
}

// As one line; with gaps where values are unknown.
function plot(svg, values, top) {
  const known = values.filter((v) => v !== null);
  const high = top ?? Math.max(1e-9, ...known) * 1.1;
  let path = "", pen = false;
  values.forEach((v, i) => {
    if (v === null) { pen = false; return; }
    path += `${pen ? "L" : "M"}${(100 - (values.length - 1 - i) * 100 / (Math.max(20, values.length) - 1)).toFixed(2)} ${(30 - Math.min(v / high, 1) * 28).toFixed(2)}`;
    pen = true;
  });
  if (known.length === 1) path += "h0.5";
  svg.firstElementChild.setAttribute("d", path);
}

async function look() {
  let text;
  try {
    const response = await fetch("/metrics", {headers: getHeaders()});
    if (!response.ok) return;
    text = await response.text();
  } catch { return; }
  const now = {at: performance.now(), sums: parse(text)};
  if (last) {
    const point = derive(now.sums, last.sums, (now.at - last.at) / 1000);
    for (const box of document.querySelectorAll("#panel [data-key]")) {
      const key = box.dataset.key, list = (series[key] ??= []);
      list.push(point[key]);
      if (list.length > POINTS) list.shift();
      const shown = list.findLast((v) => v !== null);
      box.querySelector("b").textContent = shown === undefined ? "–" : shown >= 100 || Number.isInteger(shown) ? shown.toFixed(0) : shown.toFixed(1);
      plot(box.querySelector("svg"), list, box.dataset.top ? Number(box.dataset.top) : undefined);
    }
  }
  last = now;
}

export function startPanel(details, headers) {
  getHeaders = headers;
  details.addEventListener("toggle", () => {
    clearInterval(timer);
    timer = null;
    last = null;
    if (!details.open) return;
    look();
    timer = setInterval(() => { if (!document.hidden) look(); }, PERIOD);
  });
}
