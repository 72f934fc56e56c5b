// Conversations and settings in localStorage. Each conversation has its own key and a revision: a tab never overwrites
// what another tab has written, it continues in a copy. A conversation is a tree: every message knows the one before it,
// and `leaf` is the end of the branch that is shown.
const PREFIX = "tokamak-chat:", SETTINGS = "tokamak-settings", FORMER = "tokamak-chat", TAB = "tokamak-tab";
const FORMAT = "tokamak-chats";

// A browser that keeps no data of pages refuses every access: then conversations end with the tab.
const memory = () => Object.create({getItem(key) { return this[key] ?? null; }, setItem(key, text) { this[key] = text; }, removeItem(key) { delete this[key]; }});
function storage(name) {
  try {
    return window[name] ?? memory();
  } catch { return memory(); }
}
const local = storage("localStorage"), session = storage("sessionStorage");
export const forgetful = !(local instanceof Storage);

export const fresh = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;

function parse(text) {
  try {
    return JSON.parse(text);
  } catch { return null; }
}

const ROLES = ["user", "assistant", "system", "tool"], isText = (value) => typeof value === "string";
const isMessage = (m) => ROLES.includes(m?.role) && isText(m.content);
// Members that a message may have; others, and those of another type, are dropped.
const MEMBERS = {id: isText, parent: (value) => value === null || isText(value), role: isText, content: isText, thoughts: isText, error: isText,
                 files: (list) => Array.isArray(list) && list.every((file) => isText(file?.name) && isText(file.text)),
                 calls: (list) => Array.isArray(list) && list.every((call) => isText(call?.name) && isText(call.arguments)),
                 stats: (stats) => ["tokens", "prompt", "cached", "seconds", "first"].every((name) => Number.isFinite(stats?.[name]))};
const clean = (message) => Object.fromEntries(Object.entries(message).filter(([name, value]) => MEMBERS[name]?.(value)));

// From what was stored or imported, whatever it is.
function read(id, saved) {
  if (!saved || typeof saved !== "object") return null;
  const chat = {...newChat(), id, revision: saved.revision ?? null, updated: Number(saved.updated) || 0};
  if (typeof saved.title === "string") chat.title = saved.title;
  const known = new Set();
  for (const node of Array.isArray(saved.nodes) ? saved.nodes : []) {
    if (!isMessage(node) || typeof node.id !== "string" || known.has(node.id)) continue;
    if (node.parent !== null && !known.has(node.parent)) continue;  // parents come first
    known.add(node.id);
    chat.nodes.push(clean(node));
  }
  for (const message of Array.isArray(saved.messages) ? saved.messages : [])  // a former version: one branch
    if (isMessage(message)) addNode(chat, clean(message));
  if (known.size) chat.leaf = known.has(saved.leaf) ? saved.leaf : chat.nodes.at(-1).id;
  return chat;
}

const stored = (id) => read(id, parse(local.getItem(PREFIX + id)));

// ---- the tree ----------------------------------------------------------------------------------------------------

const find = (chat, id) => chat.nodes.find((node) => node.id === id);

// The messages of the branch that is shown.
export function branch(chat) {
  const out = [], byId = new Map(chat.nodes.map((node) => [node.id, node]));
  for (let node = byId.get(chat.leaf); node; node = byId.get(node.parent)) out.unshift(node);
  return out;
}

// Appends to the message `after` (default: the end of the branch), and shows that branch.
export function addNode(chat, message, after = chat.leaf) {
  const node = {...message, id: fresh(), parent: after};
  chat.nodes.push(node);
  chat.leaf = node.id;
  return node;
}

export const siblings = (chat, node) => chat.nodes.filter((other) => other.parent === node.parent);

// Shows the branch through this message, to its latest end.
export function choose(chat, id) {
  for (let node = find(chat, id); node; node = chat.nodes.findLast((other) => other.parent === node.id)) chat.leaf = node.id;
}

export function dropNode(chat, node) {
  chat.nodes = chat.nodes.filter((other) => other !== node);
  chat.leaf = node.parent;
}

// ---- the store ---------------------------------------------------------------------------------------------------

// The page once kept a single conversation together with the settings.
function moveFormer() {
  const former = parse(local.getItem(FORMER));
  if (!former) return;
  const settings = {...former.settings};
  if (settings.maxTokens === 1024) delete settings.maxTokens;  // was the default
  const chat = read(fresh(), {messages: former.messages});
  if (chat.nodes.length) saveChat(chat);
  if (!local.getItem(SETTINGS)) saveSettings(settings);
  local.removeItem(FORMER);
}

export const newChat = () => ({id: fresh(), revision: null, updated: 0, nodes: [], leaf: null});

// The tab's own conversation, in a new tab the latest one.
export function loadChat() {
  try {
    moveFormer();
    const id = session.getItem(TAB) ?? listChats()[0]?.id;
    return id ? openChat(id) ?? {...newChat(), id} : newChat();
  } catch { return newChat(); }  // storage is full
}

export const openChat = stored;  // null: there is none

// The one to show after a reload.
export const selectChat = (chat) => session.setItem(TAB, chat.id);

// Throws when nothing can be stored. True: another tab has changed the conversation meanwhile, and this one became a copy.
export function saveChat(chat, select = true) {
  const before = stored(chat.id), copied = before !== null && before.revision !== chat.revision;
  const {id: former, ...rest} = chat, id = copied ? fresh() : former, next = {revision: fresh(), updated: Date.now()};
  if (chat.nodes.length) local.setItem(PREFIX + id, JSON.stringify({...rest, ...next}));
  Object.assign(chat, {id, ...next});  // only now: what could not be stored is tried again
  if (select) selectChat(chat);
  return copied;
}

export function removeChat(id) {
  const text = local.getItem(PREFIX + id);
  local.removeItem(PREFIX + id);
  return () => local.setItem(PREFIX + id, text);  // undo
}

export const titleOf = (chat) => chat.title || (chat.nodes[0]?.content ?? "").slice(0, 80).replace(/\s+/g, " ") || "New chat";

const allChats = () => Object.keys(local).filter((key) => key.startsWith(PREFIX)).map((key) => stored(key.slice(PREFIX.length)))
    .filter((chat) => chat?.nodes.length);

// Latest first; with `words`, those that contain all of them.
export function listChats(words = "") {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (chat) => {
    const text = [titleOf(chat), ...chat.nodes.map((node) => node.content)].join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  return allChats().filter((chat) => wanted.length === 0 || matches(chat)).sort((a, b) => b.updated - a.updated)
      .map((chat) => ({id: chat.id, updated: chat.updated, title: titleOf(chat)}));
}

export function exportChats() {
  return JSON.stringify({format: FORMAT, version: 1, chats: allChats()}, null, 1);
}

// Returns how many conversations were added. Those that are here already are left out. Throws if the text is something else.
export function importChats(text) {
  const file = parse(text);
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new Error("This file does not contain conversations of this page.");
  let count = 0;
  for (const saved of file.chats) {
    const id = typeof saved?.id === "string" && saved.id ? saved.id : fresh();
    const chat = read(id, saved), here = stored(id);
    if (!chat?.nodes.length || (here && here.revision === chat.revision)) continue;
    if (here) chat.id = fresh();
    local.setItem(PREFIX + chat.id, JSON.stringify(chat));
    count++;
  }
  return count;
}

export const loadSettings = () => {
  try {
    return parse(local.getItem(SETTINGS)) ?? {};
  } catch { return {}; }
};
export const saveSettings = (settings) => local.setItem(SETTINGS, JSON.stringify(settings));

// changed(id): another tab has written that conversation; null: the settings.
export function watch(changed) {
  addEventListener("storage", (event) => {
    if (event.key === SETTINGS) changed(null);
    else if (event.key?.startsWith(PREFIX)) changed(event.key.slice(PREFIX.length));
  });
}
