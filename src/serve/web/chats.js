// Conversations and settings in localStorage. Each conversation has its own key and a revision: a tab never overwrites
// what another tab has written, it continues in a copy.
const PREFIX = "tokamak-chat:", SETTINGS = "tokamak-settings", FORMER = "tokamak-chat", TAB = "tokamak-tab";

const fresh = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;

function parse(text) {
  try {
    return JSON.parse(text);
  } catch { return null; }
}

const valid = (messages) => (Array.isArray(messages) ? messages : []).filter(
    (m) => typeof m?.role === "string" && typeof m?.content === "string");

function stored(id) {
  const saved = parse(localStorage.getItem(PREFIX + id));
  return saved ? {id, revision: saved.revision, updated: Number(saved.updated) || 0, messages: valid(saved.messages)} : null;
}

// The page once kept a single conversation together with the settings.
function moveFormer() {
  const former = parse(localStorage.getItem(FORMER));
  if (!former) return;
  const messages = valid(former.messages), settings = {...former.settings};
  if (settings.maxTokens === 1024) delete settings.maxTokens;  // was the default
  if (messages.length) saveChat({...newChat(), messages});
  if (!localStorage.getItem(SETTINGS)) saveSettings(settings);
  localStorage.removeItem(FORMER);
}

export const newChat = () => ({id: fresh(), revision: null, updated: 0, messages: []});

// The tab's own conversation, in a new tab the latest one.
export function loadChat() {
  try {
    moveFormer();
    const id = sessionStorage.getItem(TAB) ?? listChats()[0]?.id;
    return id ? openChat(id) ?? {...newChat(), id} : newChat();
  } catch { return newChat(); }  // storage is disabled
}

export const openChat = stored;  // null: there is none

// The one to show after a reload.
export const selectChat = (chat) => sessionStorage.setItem(TAB, chat.id);

// Throws when nothing can be stored. True: another tab has changed the conversation meanwhile, and this one became a copy.
export function saveChat(chat) {
  const before = stored(chat.id), copied = before !== null && before.revision !== chat.revision;
  if (copied) chat.id = fresh();
  chat.revision = fresh();
  chat.updated = Date.now();
  selectChat(chat);
  const {id, ...rest} = chat;
  if (chat.messages.length) localStorage.setItem(PREFIX + id, JSON.stringify(rest));
  return copied;
}

export function removeChat(id) {
  const text = localStorage.getItem(PREFIX + id);
  localStorage.removeItem(PREFIX + id);
  return () => localStorage.setItem(PREFIX + id, text);  // undo
}

// Latest first.
export function listChats() {
  const ids = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
  return ids.map(stored).filter((chat) => chat?.messages.length).sort((a, b) => b.updated - a.updated).map(
      ({id, updated, messages}) => ({id, updated, title: messages[0].content.slice(0, 80).replace(/\s+/g, " ")}));
}

export const loadSettings = () => {
  try {
    return parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch { return {}; }
};
export const saveSettings = (settings) => localStorage.setItem(SETTINGS, JSON.stringify(settings));

// changed(id): another tab has written that conversation; null: the settings.
export function watch(changed) {
  addEventListener("storage", (event) => {
    if (event.key === SETTINGS) changed(null);
    else if (event.key?.startsWith(PREFIX)) changed(event.key.slice(PREFIX.length));
  });
}
