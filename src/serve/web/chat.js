// The chat page: conversation in localStorage, answers streamed from /v1/chat/completions.
import {render} from "/web/markdown.js";
import {startPanel} from "/web/panel.js";

const $ = (id) => document.getElementById(id);
const KEY = "tokamak-chat";
const DEFAULTS = {temperature: 0.7, topP: 0.95, maxTokens: 1024, system: "", apiKey: "", theme: "", model: ""};

let state = {messages: [], settings: {...DEFAULTS}};
let running = null;  // AbortController of the answer in progress
let partial = null;  // the message being written

function load() {
  try {
    const saved = JSON.parse(localStorage.getItem(KEY));
    if (Array.isArray(saved?.messages))
      state.messages = saved.messages.filter((m) => typeof m?.role === "string" && typeof m?.content === "string");
    Object.assign(state.settings, saved?.settings);
  } catch { /* nothing saved, or not ours */ }
}

function save() {
  try {
    localStorage.setItem(KEY, JSON.stringify(state));
  } catch { status("The browser cannot save this conversation (storage is full or disabled)."); }
}

function status(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// ---- conversation ------------------------------------------------------------------------------------------------

function bubble(message, index) {
  const box = document.createElement("article");
  box.className = `message ${message.role}`;
  const who = box.appendChild(document.createElement("div"));
  who.className = "who";
  who.append(message.role === "user" ? "You" : "Model");
  const action = who.appendChild(document.createElement("button"));
  action.type = "button";
  action.textContent = message.role === "user" ? "Edit" : "Again";
  action.addEventListener("click", () => (message.role === "user" ? edit(index) : again(index)));
  const body = box.appendChild(document.createElement("div"));
  body.className = "body";
  fill(body, message);
  return box;
}

function fill(body, message) {
  if (message.role === "user") {
    const p = document.createElement("p");
    p.textContent = message.content;
    body.replaceChildren(p);
  } else {
    try {
      body.replaceChildren(render(message.content));
    } catch {
      body.textContent = message.content;  // fall back to plain text
    }
    if (message.thoughts) {
      const box = document.createElement("details"), summary = document.createElement("summary"), p = document.createElement("p");
      box.open = !message.content;
      summary.textContent = message.content ? "Thoughts" : "Thinking …";
      p.textContent = message.thoughts;
      box.append(summary, p);
      body.prepend(box);
    }
  }
  if (message.error) {
    const p = body.appendChild(document.createElement("p"));
    p.className = "error";
    p.textContent = message.error;
  }
}

const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 16;
const toEnd = (log) => log.scrollTo({top: log.scrollHeight, behavior: "instant"});

// follow: scroll to the end; otherwise keep the scroll position.
function draw(follow = true) {
  const log = $("log"), top = log.scrollTop;
  log.replaceChildren(...state.messages.map(bubble));
  if (state.messages.length === 0) log.append(empty);
  if (follow) toEnd(log);
  else log.scrollTo({top, behavior: "instant"});
}
const empty = $("empty");

function edit(index) {
  if (running) return;
  $("input").value = state.messages[index].content;
  state.messages.length = index;
  save();
  draw();
  grow();
  $("input").focus();
}

function again(index) {
  if (running) return;
  state.messages.length = index;
  answer();
}

// ---- talking to the server ---------------------------------------------------------------------------------------

function headers() {
  const out = {"Content-Type": "application/json"};
  if (state.settings.apiKey) out.Authorization = `Bearer ${state.settings.apiKey}`;
  return out;
}

// Yields the JSON of each event without interpreting it.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      for (const line of part.split("\n")) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") return;
        yield JSON.parse(line.slice(6));
      }
    }
  }
}

function requestBody() {
  const s = state.settings;
  const messages = state.messages.filter((m) => m.content !== "").map(({role, content}) => ({role, content}));
  if (s.system.trim()) messages.unshift({role: "system", content: s.system});
  return {model: $("model").value, messages, stream: true, stream_options: {include_usage: true},
          temperature: s.temperature, top_p: s.topP, max_tokens: s.maxTokens};
}

async function stream(message, onText) {
  const response = await fetch("/v1/chat/completions",
      {method: "POST", headers: headers(), body: JSON.stringify(requestBody()), signal: running.signal});
  if (!response.ok) {
    const error = await response.json().catch(() => null);
    throw new Error(error?.error?.message ?? `The server answered ${response.status}.`);
  }
  let usage = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices?.[0]?.delta, text = delta?.content;
    if (delta?.reasoning_content) {
      message.thoughts = (message.thoughts ?? "") + delta.reasoning_content;
      onText();
    }
    if (text) {
      message.content += text;
      onText();
    }
    if (event.choices?.[0]?.finish_reason === "length") message.error = "Stopped at the maximum answer length.";
    usage = event.usage ?? usage;
  }
  return usage;
}

async function answer() {
  const message = partial = {role: "assistant", content: ""};
  running = new AbortController();
  busy(true);
  draw();
  const box = $("log").appendChild(bubble(message, state.messages.length));
  const body = box.querySelector(".body");
  const start = performance.now();
  let first = 0, queued = false;
  const show = () => {
    queued = false;
    const log = $("log"), follow = atEnd(log);
    fill(body, message);
    if (follow) toEnd(log);
  };
  try {
    status("Waiting for the first token …");
    const usage = await stream(message, () => {
      if (!first) { first = performance.now(); status("Answering …"); }
      if (!queued) { queued = true; requestAnimationFrame(show); }
    });
    const seconds = (performance.now() - first) / 1000;
    if (usage && first)
      status(`${usage.completion_tokens} tokens, ${(usage.completion_tokens / Math.max(seconds, 0.001)).toFixed(1)}/s, ` +
             `first after ${((first - start) / 1000).toFixed(2)} s`);
    else
      status("");
  } catch (error) {
    if (error.name === "AbortError") status("Stopped.");
    else { message.error = error.message; status(error.message, true); }
  }
  if (partial !== message) return;  // the page is being closed and has saved it
  running = partial = null;
  busy(false);
  if (message.content || message.error) state.messages.push(message);
  save();
  draw(atEnd($("log")));
  $("input").focus({preventScroll: true});
}

async function loadModels() {
  try {
    const response = await fetch("/v1/models", {headers: headers()});
    if (response.status === 401) return status("This server requires an API key: see Settings.", true);
    const {data} = await response.json();
    $("model").replaceChildren(...data.map((m) => new Option(m.id, m.id)));
    if (data.some((m) => m.id === state.settings.model)) $("model").value = state.settings.model;
    status("");
  } catch { status("The server does not respond.", true); }
}

// ---- controls ----------------------------------------------------------------------------------------------------

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("clear").disabled = on;
}

function grow() {
  const input = $("input");
  input.rows = Math.min(10, input.value.split("\n").length);
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  state.messages.push({role: "user", content: text});
  $("input").value = "";
  grow();
  save();
  answer();
}

function theme() {
  const dark = state.settings.theme ? state.settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  return dark;
}

function bind(id, name, parse, shown) {
  const input = $(id);
  input.value = state.settings[name];
  const update = () => {
    const value = parse(input.value);
    if (value !== null) state.settings[name] = value;
    if (shown) $(shown).textContent = state.settings[name];
  };
  update();
  input.addEventListener("input", () => { update(); save(); });
}

const number = (text) => (Number.isFinite(parseFloat(text)) ? parseFloat(text) : null);
const count = (text) => (parseInt(text, 10) >= 1 ? parseInt(text, 10) : null);

load();
theme();
bind("temperature", "temperature", number, "temperature-value");
bind("top-p", "topP", number, "top-p-value");
bind("max-tokens", "maxTokens", count);
bind("system", "system", String);
bind("api-key", "apiKey", String);
$("api-key").addEventListener("change", loadModels);
$("model").addEventListener("change", () => { state.settings.model = $("model").value; save(); });
$("theme").addEventListener("click", () => { state.settings.theme = theme() ? "light" : "dark"; theme(); save(); });
$("clear").addEventListener("click", () => { state.messages = []; save(); draw(); status(""); $("input").focus(); });
$("stop").addEventListener("click", () => running?.abort());
$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
addEventListener("pagehide", () => {  // save the partial answer
  if (!partial?.content) return;
  state.messages.push({...partial, error: "The page was closed before the answer was complete."});
  partial = null;
  save();
});
addEventListener("pageshow", (event) => { if (event.persisted && running) location.reload(); });
draw();
loadModels();
startPanel($("panel"), headers);
