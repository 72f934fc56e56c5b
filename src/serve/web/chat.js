// The chat page: conversations in localStorage, answers streamed from /v1/chat/completions.
import {addNode, branch, choose, dropNode, forgetful, loadChat, newChat, openChat, saveChat, selectChat, siblings, watch} from "/web/chats.js";
import {startMetrics} from "/web/metrics.js";
import {startPlan} from "/web/plan.js";
import {startRag} from "/web/rag.js";
import {awaitServer, events, getJson, post, scoreAnswer, ServerGone} from "/web/server.js";
import {reload as reloadSettings, schema, settings, startSettings} from "/web/settings.js";
import {startSide} from "/web/side.js";
import {bubble, button, copy, element, fill, tokenView} from "/web/view.js";

const $ = (id) => document.getElementById(id);
const MAX_FILE = 400000;  // characters

let chat = newChat();
let running = null;  // AbortController of the answer in progress
let partial = null;  // the message being written
let editing = null;  // {node, draft}: the message being edited and what was in the input before
let files = [];      // attached to the next message
let drawSide = () => {};

function stores(write) {
  try {
    return write();
  } catch { status("The browser cannot save this conversation (storage is full or disabled)."); }
}

function save() {
  if (stores(() => saveChat(chat))) status("This conversation was changed in another tab: yours continues in a copy.");
  drawSide();
}

function status(text, isError = false, action = null) {
  $("status").replaceChildren(text);
  $("status").classList.toggle("error", isError);
  if (action) $("status").append(button(action.name, action.run));
}

function gone() {
  $("offline").hidden = false;
  awaitServer(() => {
    $("offline").hidden = true;
    status("The server is back.");
    loadModels();
  });
}

// ---- conversation ------------------------------------------------------------------------------------------------

const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 48;  // the status line may have grown
const toEnd = (log) => log.scrollTo({top: log.scrollHeight, behavior: "instant"});
const empty = $("empty");

// follow: scroll to the end; otherwise keep the scroll position.
function draw(follow = true) {
  const log = $("log"), top = log.scrollTop, shown = branch(chat);
  const from = editing ? shown.indexOf(editing.node) : shown.length;
  log.replaceChildren(...shown.map((node, i) => {
    const box = bubble(node, siblings(chat, node), {edit, again, copy: copyMessage, tokens: showTokens, pick});
    box.classList.toggle("replaced", i >= from);
    return box;
  }));
  if (shown.length === 0) log.append(empty);
  document.title = shown.length ? `${$("chat-list").querySelector("[aria-current=true]")?.textContent ?? "Chat"} · Tokamak` : "Tokamak";
  if (follow) toEnd(log);
  else log.scrollTo({top, behavior: "instant"});
}

const copyMessage = (node, control) => copy(node.content, control);

// The conversation changes only when the new text is sent; the former text stays as another branch.
function edit(node) {
  if (running) return;
  editing = {node, draft: editing?.draft ?? $("input").value};
  showEditing(node.content);
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

function again(node) {
  if (running) return;
  cancelEdit();
  const before = chat.leaf;
  chat.leaf = node.parent;
  answer(before);
}

function pick(node) {
  if (running || !node) return;
  cancelEdit();
  choose(chat, node.id);
  save();
  draw(false);
}

async function showTokens(node, control) {
  const box = $("log").querySelector(`[data-id="${CSS.escape(node.id)}"]`), old = box?.querySelector(".token-view");
  if (old) return old.remove();
  control.disabled = true;
  try {
    const shown = branch(chat), before = shown.slice(0, shown.indexOf(node));
    box?.append(tokenView(await scoreAnswer($("model").value, asMessages(before), node.content)));
  } catch (error) { failed(error); }
  control.disabled = false;
}

function show(next) {
  if (running || !next) return;
  cancelEdit();
  chat = next;
  stores(() => selectChat(chat));
  drawSide();
  draw();
  status("");
  $("side").classList.remove("open");
  openTab("chat");
  $("input").focus();
}

// Another tab has saved something.
function changed(id) {
  if (id === null) {
    reloadSettings();
  } else if (id === chat.id && !running && openChat(id)) {
    chat = openChat(id);
    if (editing) editing.node = chat.nodes.find((node) => node.id === editing.node.id);
    if (editing && !editing.node) editing = null;
    $("editing").hidden = !editing;
    draw(false);
  }
  drawSide();
}

// ---- answers -----------------------------------------------------------------------------------------------------

const withFiles = ({content, files: attached}) =>
  [...(attached ?? []).map((file) => `File ${file.name}:\n\`\`\`\n${file.text}\n\`\`\``), content].join("\n\n");

function asMessages(nodes) {
  const messages = nodes.filter((m) => m.content !== "" || m.files?.length).map((m) => ({role: m.role, content: withFiles(m)}));
  if (settings.system.trim()) messages.unshift({role: "system", content: settings.system});
  return messages;
}

function requestBody(limited) {
  const body = {model: $("model").value, messages: asMessages(branch(chat)), stream: true, stream_options: {include_usage: true}};
  const own = body.model === modelWithoutDefaults ? PAGE_DEFAULTS : {}, temperature = settings.temperature ?? own.temperature, topP = settings.topP ?? own.topP;
  if (temperature !== undefined) body.temperature = temperature;
  if (topP !== undefined) body.top_p = topP;
  if (limited) body.max_tokens = settings.maxTokens;
  if (schema()) body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: schema()}};
  return body;
}

// The chosen answer length may exceed what is left of the context: then the server decides.
async function ask(limited = settings.maxTokens !== null) {
  try {
    return await post("/v1/chat/completions", requestBody(limited), running.signal);
  } catch (error) {
    if (error.status === 401) throw new Error(KEY_NEEDED);
    if (error.code !== "context_length_exceeded") throw error;
    if (limited) return ask(false);
    throw new Error(`${error.message} Start a new chat, or edit an earlier message.`);
  }
}

function take(message, delta) {
  if (delta.reasoning_content) message.thoughts = (message.thoughts ?? "") + delta.reasoning_content;
  if (delta.content) message.content += delta.content;
  for (const call of delta.tool_calls ?? []) {
    message.calls ??= [];
    const known = (message.calls[call.index] ??= {name: "", arguments: ""});
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }
  return Boolean(delta.reasoning_content || delta.content || delta.tool_calls);
}

async function stream(message, onText) {
  let usage = null, ended = false;
  for await (const event of events(await ask())) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    if (choice && take(message, choice.delta)) onText();
    ended ||= Boolean(choice?.finish_reason);
    if (choice?.finish_reason === "length") message.error = "Stopped at the maximum answer length, or because the context is full.";
    usage = event.usage ?? usage;
  }
  if (!ended) throw new Error("The connection ended before the answer was complete.");
  return usage;
}

function failed(error) {
  if (error instanceof ServerGone) gone();
  status(error.message, true);
}

// before: the branch to go back to if there is no answer at all.
async function answer(before = null) {
  const message = partial = {role: "assistant", content: ""};
  running = new AbortController();
  busy(true);
  draw();
  const box = $("log").appendChild(element("article", {className: "message assistant"}, element("div", {className: "who"}, "Model"),
                                           element("div", {className: "body"})));
  toEnd($("log"));
  const start = performance.now();
  let first = 0, queued = false;
  const refresh = () => {
    queued = false;
    const log = $("log"), follow = atEnd(log);
    fill(box.lastChild, message);
    if (follow) toEnd(log);
  };
  try {
    status("Waiting for the first token …");
    const usage = await stream(message, () => {
      if (!first) { first = performance.now(); status("Answering …"); }
      if (!queued) { queued = true; requestAnimationFrame(refresh); }
    });
    if (usage && first)
      message.stats = {tokens: usage.completion_tokens, prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
                       seconds: (performance.now() - first) / 1000, first: (first - start) / 1000};
    status("");
  } catch (error) {
    if (error.name === "AbortError") status("Stopped.");
    else { message.error = error.message; failed(error); }
  }
  if (partial !== message) return;  // the page is being closed and has saved it
  finish(message, before);
}

function finish(message, before) {
  running = partial = null;
  busy(false);
  const follow = atEnd($("log"));
  if (!message.content && !message.calls && before !== null) chat.leaf = before;
  else if (message.content || message.calls || message.error) addNode(chat, message);
  save();
  draw(follow);
  $("input").focus({preventScroll: true});
}

// For a model without sampling defaults of its own or from flags: unrestricted sampling is too random for chats with small models.
const PAGE_DEFAULTS = {temperature: 0.7, topP: 0.95};
let modelWithoutDefaults = null;
const KEY_NEEDED = "This server requires an API key: see Settings.";

async function lacksSamplingDefaults() {
  return (await getJson("/props")).has_sampling_defaults === false;
}

async function loadModels() {
  try {
    const [{data}, lacks] = await Promise.all([getJson("/v1/models"), lacksSamplingDefaults().catch(() => false)]);
    modelWithoutDefaults = lacks ? data[0]?.id ?? null : null;  // whose settings /props has
    $("model").replaceChildren(...data.map((m) => new Option(m.id, m.id)));
    if (data.some((m) => m.id === settings.model)) $("model").value = settings.model;
    if ($("status").classList.contains("error")) status("");
    if (forgetful) status("This browser keeps no data of this page: conversations end with the tab. Export saves them.");
  } catch (error) {
    if (error.status === 401) status(KEY_NEEDED, true);
    else failed(error);
  }
}

// ---- controls ----------------------------------------------------------------------------------------------------

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("clear").disabled = on;
}

// The height follows the text, also where long lines wrap.
function grow() {
  const input = $("input");
  input.rows = 1;
  const line = parseFloat(getComputedStyle(input).lineHeight) || 24;
  input.rows = Math.min(12, Math.max(1, Math.round((input.scrollHeight - 14) / line)));
}

function drawFiles() {
  $("files").replaceChildren(...files.map((file, i) => {
    const remove = button("✕", () => { files.splice(i, 1); drawFiles(); });
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    return element("li", {}, file.name, remove);
  }));
}

async function attach(list) {
  for (const file of list) {
    const text = await file.text();
    if (text.includes("\0")) status(`${file.name} is not a text file.`, true);
    else if (text.length > MAX_FILE) status(`${file.name} has more than ${MAX_FILE.toLocaleString()} characters.`, true);
    else files.push({name: file.name, text});
  }
  drawFiles();
}

function send() {
  const text = $("input").value.trim();
  if ((!text && files.length === 0) || running) return;
  const message = {role: "user", content: text};
  if (files.length) message.files = files;
  else if (editing?.node.files) message.files = editing.node.files;
  addNode(chat, message, editing ? editing.node.parent : chat.leaf);
  $("input").value = editing?.draft ?? "";
  editing = null;
  files = [];
  drawFiles();
  $("editing").hidden = true;
  grow();
  save();
  answer();
}

function openTab(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !on;
  }
  metrics.visible(name === "server");
  plan.visible(name === "plan");
}

function startTabs() {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => openTab(tab.id.slice(4)));
    tab.addEventListener("keydown", (event) => {
      const tabs = [...document.querySelectorAll("[role=tab]:not([hidden])")], i = tabs.indexOf(tab);
      const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1}[event.key];
      if (to === undefined) return;
      const next = tabs[(to + tabs.length) % tabs.length];
      openTab(next.id.slice(4));
      next.focus();
    });
  }
}

const metrics = startMetrics($("panel-server"), () => $("model").value);
const plan = startPlan($("panel-plan"), () => $("model").value);
startRag($("panel-rag"), $("tab-rag"), () => $("model").value);
startTabs();
chat = loadChat();  // first: it also moves the settings of a former version
startSettings(stores);
drawSide = startSide({current: () => chat, show, fresh: () => show(newChat()), busy: () => running !== null, status, stores});
$("api-key").addEventListener("change", loadModels);
$("clear").addEventListener("click", () => show(newChat()));
$("menu").addEventListener("click", () => $("menu").setAttribute("aria-expanded", $("side").classList.toggle("open")));
$("cancel").addEventListener("click", cancelEdit);
$("stop").addEventListener("click", () => running?.abort());
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { attach([...$("file").files]); $("file").value = ""; });
$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("side").classList.add("open");
    return $("search").focus();
  }
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if ($("side").classList.contains("open")) $("side").classList.remove("open");
  else cancelEdit();
});
addEventListener("resize", grow);
// While the page is visible it polls the server, so that an outage shows before the user sends something.
async function poll() {
  if (document.hidden || running) return;
  await getJson("/health").catch((error) => { if (error instanceof ServerGone) gone(); });
}
setInterval(poll, 10000);
document.addEventListener("visibilitychange", poll);
addEventListener("pagehide", () => {  // save the partial answer
  if (!partial?.content) return;
  addNode(chat, {...partial, error: "The page was closed before the answer was complete."});
  partial = null;
  save();
});
addEventListener("pageshow", (event) => { if (event.persisted && running) location.reload(); });
watch(changed);
drawSide();
draw();
loadModels();
