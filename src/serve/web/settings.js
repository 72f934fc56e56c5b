// Settings: what is sent with every request, saved system prompts, the theme.
import {loadSettings, saveSettings} from "/web/chats.js";
import {setKey} from "/web/server.js";

const $ = (id) => document.getElementById(id);
// null leaves a value to the server.
const DEFAULTS = {temperature: null, topP: null, maxTokens: null, system: "", schema: "", apiKey: "", theme: "", model: "", prompts: []};

export const settings = {...DEFAULTS};

const number = (text) => (text.trim() === "" ? null : Number.isFinite(Number(text)) ? Number(text) : undefined);
const count = (text) => (text.trim() === "" ? null : parseInt(text, 10) >= 1 ? parseInt(text, 10) : undefined);
// Input, setting, how its text is read (undefined: not valid).
const FIELDS = [["temperature", "temperature", number], ["top-p", "topP", number], ["max-tokens", "maxTokens", count],
                ["system", "system", String], ["schema", "schema", String], ["api-key", "apiKey", String]];

// The JSON schema of answers; undefined: none, or not valid.
export function schema() {
  if (!settings.schema.trim()) return undefined;
  try {
    const value = JSON.parse(settings.schema);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch { return undefined; }
}

export function theme() {
  const dark = settings.theme ? settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  return dark;
}

function showPrompts() {
  $("prompts").replaceChildren(new Option("Saved prompts …", ""), ...settings.prompts.map((p, i) => new Option(p.name, i)));
  $("prompts").value = String(settings.prompts.findIndex((p) => p.text === settings.system));
  if ($("prompts").selectedIndex < 0) $("prompts").value = "";
  $("drop-prompt").disabled = $("prompts").value === "";
  $("keep-prompt").disabled = !settings.system.trim() || $("prompts").value !== "";
}

export function show() {
  for (const [id, name] of FIELDS)
    if ($(id) !== document.activeElement) $(id).value = settings[name] ?? "";
  $("schema-error").hidden = !settings.schema.trim() || schema() !== undefined;
  setKey(settings.apiKey);
  showPrompts();
  theme();
}

export function reload() {
  Object.assign(settings, DEFAULTS, loadSettings());
  if (!Array.isArray(settings.prompts)) settings.prompts = [];
  show();
}

// stores: runs a write and tells the user if it fails.
export function startSettings(stores) {
  const keep = () => { stores(() => saveSettings(settings)); show(); };
  for (const [id, name, parse] of FIELDS)
    $(id).addEventListener("input", () => {
      const value = parse($(id).value);
      if (value === undefined) return;
      settings[name] = value;
      keep();
    });
  $("prompts").addEventListener("change", () => {
    const chosen = settings.prompts[Number($("prompts").value)];
    if ($("prompts").value === "" || !chosen) return;
    settings.system = $("system").value = chosen.text;
    keep();
  });
  $("keep-prompt").addEventListener("click", () => {
    const text = settings.system.trim();
    settings.prompts.push({name: text.slice(0, 40).replace(/\s+/g, " "), text: settings.system});
    keep();
  });
  $("drop-prompt").addEventListener("click", () => {
    settings.prompts.splice(Number($("prompts").value), 1);
    keep();
  });
  $("theme").addEventListener("click", () => { settings.theme = theme() ? "light" : "dark"; keep(); });
  $("model").addEventListener("change", () => { settings.model = $("model").value; keep(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  reload();
}
