// One step as it was measured: a lane for each thread of the backend, with what it computed and where it waited.
import {getJson} from "/web/server.js";
import {us} from "/web/svg.js";
import {drawBars} from "/web/timeline.js";
import {button, element} from "/web/view.js";

const percent = (part, whole) => `${(part / whole * 100).toFixed(1)} %`;

// The share of each call, over all of its stages: what the threads computed, and what they waited before it.
function callRows({calls, threads}) {
  const rows = calls.map((call) => ({...call, busy: 0, waited: 0, most: 0, begin: Infinity}));
  for (const {spans} of threads) {
    const own = new Map();
    let before = 0;
    for (const [call, , begin, end] of spans) {
      const row = rows[call];
      row.busy += end - begin;
      row.waited += begin - before;
      row.begin = Math.min(row.begin, begin);
      own.set(call, (own.get(call) ?? 0) + end - begin);
      row.most = Math.max(row.most, own.get(call));
      before = end;
    }
  }
  return rows.filter((row) => row.begin < Infinity)
      .map((row, i) => [String(i), row.name, row.kernel, us(row.begin), us(row.most), us(row.busy / threads.length), us(row.waited / threads.length)]);
}

function drawThreads(trace, kinds, table) {
  const bars = [];
  for (const [row, {spans}] of trace.threads.entries())
    for (const [call, stage, begin, end] of spans) {
      const {name, kernel} = trace.calls[call];
      bars.push({row, at: begin, time: end - begin, name, kind: kinds.get(name) ?? "compute",
                 about: `Thread ${row}, call ${call}, ${name}${stage ? `, stage ${stage}` : ""}: ${us(end - begin)}, from ${us(begin)}, ${kernel}`});
    }
  const count = trace.threads.length, busy = trace.threads.reduce((sum, t) => sum + t.busy_us, 0) / count, s = (n) => (n === 1 ? "" : "s");
  const summary = `One step of ${trace.function}, ${trace.tokens} token${s(trace.tokens)} of ${trace.sequences} sequence${s(trace.sequences)}: ${us(trace.us)}; threads computed ${percent(busy, trace.us)} of it`;
  const rows = trace.threads.map((t, i) => `thread ${i}: ${percent(t.busy_us, trace.us)} busy`);
  return element("div", {}, drawBars({rows, bars, total: trace.us, name: "threads", summary, hint: `${summary}. A lane for each of ${count} threads; the table of calls has the same data.`}),
                 element("details", {}, element("summary", {textContent: "As a table"}),
                         table(["", "Call", "Kernel", "Begins", "Slowest thread", "Mean of the threads", "Mean wait before"], callRows(trace))));
}

// report: of /plan, for the colours; table: draws one.
export function measuredThreads(report, which, table) {
  const note = element("p", {className: "note", role: "status"}), box = element("div", {});
  const kinds = new Map((report.calls ?? []).map((call) => [call.name, report.kernels[call.kernel]?.bound === "memory" ? "memory" : "compute"]));
  const measure = button("Measure one step", async () => {
    measure.disabled = true;
    note.textContent = "Measuring …";
    try {
      box.replaceChildren(drawThreads(await getJson(`/timeline/${which}`), kinds, table));
      note.textContent = "";
    } catch (error) {
      note.textContent = error.message;
    }
    measure.disabled = false;
  });
  return [element("div", {className: "row"}, measure), note, box];
}
