// The chat page: conversations in localStorage, answers streamed from /v1/chat/completions.
import {listChats, loadChat, loadSettings, newChat, openChat, removeChat, saveChat, saveSettings, selectChat, watch} from "/web/chats.js";
import {render} from "/web/markdown.js";
import {startPanel} from "/web/panel.js";

const $ = (id) => document.getElementById(id);
// maxTokens: null leaves the length of answers to the server.
const DEFAULTS = {temperature: 0.7, topP: 0.95, maxTokens: null, system: "", apiKey: "", theme: "", model: ""};

let chat = newChat();
let settings = {...DEFAULTS};
let running = null;  // AbortController of the answer in progress
let partial = null;  // the message being written
let editing = null;  // {index, draft}: the message being edited and what was in the input before

function stores(write) {
  try {
    return write();
  } catch { status("The browser cannot save this conversation (storage is full or disabled)."); }
}

function save() {
  if (stores(() => saveChat(chat))) status("This conversation was changed in another tab: yours continues in a copy.");
}

const keepSettings = () => stores(() => saveSettings(settings));

function status(text, isError = false, action = null) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
  if (!action) return;
  const button = $("status").appendChild(document.createElement("button"));
  button.type = "button";
  button.textContent = action.name;
  button.addEventListener("click", action.run);
}

// ---- conversation ------------------------------------------------------------------------------------------------

function bubble(message, index) {
  const box = document.createElement("article");
  box.className = `message ${message.role}`;
  box.classList.toggle("replaced", editing !== null && index >= editing.index);
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
  log.replaceChildren(...chat.messages.map(bubble));
  if (chat.messages.length === 0) log.append(empty);
  if (follow) toEnd(log);
  else log.scrollTo({top, behavior: "instant"});
}
const empty = $("empty");

// The conversation changes only when the new text is sent.
function edit(index) {
  if (running) return;
  editing = {index, draft: editing?.draft ?? $("input").value};
  showEditing(chat.messages[index].content);
}

function cancelEdit() {
  if (!editing) return;
  const {draft} = editing;
  editing = null;
  showEditing(draft);
}

function showEditing(text) {
  $("input").value = text;
  $("editing").hidden = !editing;
  draw(false);
  grow();
  $("input").focus({preventScroll: true});
}

function again(index) {
  if (running) return;
  cancelEdit();
  answer(chat.messages.splice(index));
}

// ---- conversations -----------------------------------------------------------------------------------------------

function show(next) {
  if (running || !next) return;
  cancelEdit();
  chat = next;
  stores(() => selectChat(chat));
  draw();
  drawChats();
  status("");
  $("input").focus();
}

function drawChats() {
  if (!$("chats").open) return;
  const rows = listChats().map(({id, title}) => {
    const row = document.createElement("li");
    const open = row.appendChild(document.createElement("button")), remove = row.appendChild(document.createElement("button"));
    open.type = remove.type = "button";
    open.textContent = title;
    open.setAttribute("aria-current", id === chat.id);
    open.addEventListener("click", () => show(openChat(id)));
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete ${title}`);
    remove.addEventListener("click", () => drop(id));
    return row;
  });
  $("chat-list").replaceChildren(...rows);
  $("no-chats").hidden = rows.length > 0;
}

function drop(id) {
  if (running) return;
  const current = id === chat.id, undo = removeChat(id);
  if (current) show(newChat());
  drawChats();
  status("The conversation was deleted. ", false, {name: "Undo", run: () => {
    stores(undo);
    if (current && chat.messages.length === 0) show(openChat(id));
    drawChats();
    status("");
  }});
}

// Another tab has saved something.
function changed(id) {
  if (id === null) {
    settings = {...DEFAULTS, ...loadSettings()};
    showSettings();
  } else if (id === chat.id && !running && openChat(id)) {
    chat = openChat(id);
    editing = editing && editing.index < chat.messages.length ? editing : null;
    $("editing").hidden = !editing;
    draw(false);
  }
  drawChats();
}

// ---- talking to the server ---------------------------------------------------------------------------------------

function headers() {
  const out = {"Content-Type": "application/json"};
  if (settings.apiKey) out.Authorization = `Bearer ${settings.apiKey}`;
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

function requestBody(limited) {
  const messages = chat.messages.filter((m) => m.content !== "").map(({role, content}) => ({role, content}));
  if (settings.system.trim()) messages.unshift({role: "system", content: settings.system});
  const body = {model: $("model").value, messages, stream: true, stream_options: {include_usage: true},
                temperature: settings.temperature, top_p: settings.topP};
  if (limited) body.max_tokens = settings.maxTokens;
  return JSON.stringify(body);
}

// The chosen answer length may exceed what is left of the context: then the server decides.
async function ask(limited = settings.maxTokens !== null) {
  const response = await fetch("/v1/chat/completions",
      {method: "POST", headers: headers(), body: requestBody(limited), signal: running.signal});
  if (response.ok) return response;
  const {error} = await response.json().catch(() => ({}));
  if (limited && error?.code === "context_length_exceeded") return ask(false);
  if (error?.code === "context_length_exceeded")
    throw new Error(`${error.message} Start a new chat, or edit an earlier message.`);
  throw new Error(error?.message ?? `The server answered ${response.status}.`);
}

async function stream(message, onText) {
  const response = await ask();
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
    if (event.choices?.[0]?.finish_reason === "length") message.error = "Stopped at the maximum answer length, or because the context is full.";
    usage = event.usage ?? usage;
  }
  return usage;
}

// replaced: messages to bring back if there is no answer at all.
async function answer(replaced = []) {
  const message = partial = {role: "assistant", content: ""};
  running = new AbortController();
  busy(true);
  draw();
  const box = $("log").appendChild(bubble(message, chat.messages.length));
  const body = box.querySelector(".body");
  const start = performance.now();
  let first = 0, queued = false;
  const refresh = () => {
    queued = false;
    const log = $("log"), follow = atEnd(log);
    fill(body, message);
    if (follow) toEnd(log);
  };
  try {
    status("Waiting for the first token …");
    const usage = await stream(message, () => {
      if (!first) { first = performance.now(); status("Answering …"); }
      if (!queued) { queued = true; requestAnimationFrame(refresh); }
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
  if (!message.content && replaced.length) chat.messages.push(...replaced);
  else if (message.content || message.error) chat.messages.push(message);
  save();
  drawChats();
  draw(atEnd($("log")));
  $("input").focus({preventScroll: true});
}

async function loadModels() {
  try {
    const response = await fetch("/v1/models", {headers: headers()});
    if (response.status === 401) return status("This server requires an API key: see Settings.", true);
    const {data} = await response.json();
    $("model").replaceChildren(...data.map((m) => new Option(m.id, m.id)));
    if (data.some((m) => m.id === settings.model)) $("model").value = settings.model;
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
  if (editing) chat.messages.length = editing.index;
  $("input").value = editing?.draft ?? "";
  editing = null;
  $("editing").hidden = true;
  chat.messages.push({role: "user", content: text});
  grow();
  save();
  answer();
}

function theme() {
  const dark = settings.theme ? settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  return dark;
}

const number = (text) => (Number.isFinite(parseFloat(text)) ? parseFloat(text) : undefined);
const count = (text) => (text.trim() === "" ? null : parseInt(text, 10) >= 1 ? parseInt(text, 10) : undefined);

// Input, setting, how its text is read (undefined: not valid), where the value is shown.
const FIELDS = [["temperature", "temperature", number, "temperature-value"], ["top-p", "topP", number, "top-p-value"],
                ["max-tokens", "maxTokens", count], ["system", "system", String], ["api-key", "apiKey", String]];

function showSettings() {
  for (const [id, name, , shown] of FIELDS) {
    if ($(id) !== document.activeElement) $(id).value = settings[name] ?? "";
    if (shown) $(shown).textContent = settings[name];
  }
  theme();
}

for (const [id, name, parse, shown] of FIELDS)
  $(id).addEventListener("input", () => {
    const value = parse($(id).value);
    if (value === undefined) return;
    settings[name] = value;
    if (shown) $(shown).textContent = value;
    keepSettings();
  });

chat = loadChat();  // first: it also moves the settings of a former version
Object.assign(settings, loadSettings());
showSettings();
$("api-key").addEventListener("change", loadModels);
$("model").addEventListener("change", () => { settings.model = $("model").value; keepSettings(); });
$("theme").addEventListener("click", () => { settings.theme = theme() ? "light" : "dark"; theme(); keepSettings(); });
$("clear").addEventListener("click", () => show(newChat()));
$("chats").addEventListener("toggle", drawChats);
$("cancel").addEventListener("click", cancelEdit);
$("stop").addEventListener("click", () => running?.abort());
$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else cancelEdit();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
addEventListener("pagehide", () => {  // save the partial answer
  if (!partial?.content) return;
  chat.messages.push({...partial, error: "The page was closed before the answer was complete."});
  partial = null;
  save();
});
addEventListener("pageshow", (event) => { if (event.persisted && running) location.reload(); });
watch(changed);
draw();
loadModels();
startPanel($("panel"), headers);
