// Messages as DOM nodes.
import {render} from "/web/markdown.js";

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

export const button = (text, run, properties = {}) => {
  const node = element("button", {type: "button", textContent: text, ...properties});
  node.addEventListener("click", run);
  return node;
};

export async function copy(text, node) {
  const before = node.textContent;
  try {
    await navigator.clipboard.writeText(text);
    node.textContent = "Copied";
  } catch { node.textContent = "Not allowed"; }
  setTimeout(() => { node.textContent = before; }, 1500);
}

function folded(title, text, open) {
  return element("details", {open}, element("summary", {textContent: title}), element("p", {textContent: text}));
}

function callBox(call) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* still being written */ }
  return element("details", {className: "call"}, element("summary", {textContent: `Calls ${call.name}`}),
                 element("pre", {}, element("code", {textContent: text})));
}

// Browsers need seconds to lay out a text of megabytes, and draw its end wrongly.
const LONGEST = 100000;
function beginning(text) {
  return text.length <= LONGEST ? text : `${text.slice(0, LONGEST)}…\n(${(text.length - LONGEST).toLocaleString()} more characters: Edit and Copy have all of them)`;
}

export function fill(body, message) {
  body.replaceChildren();
  if (message.thoughts) body.append(folded(message.content ? "Thoughts" : "Thinking …", message.thoughts, !message.content));
  if (message.role === "user") {
    for (const file of message.files ?? []) body.append(folded(`${file.name} (${file.text.length.toLocaleString()} characters)`, file.text, false));
    body.append(element("p", {textContent: beginning(message.content)}));
  } else {
    try {
      body.append(render(message.content));
    } catch { body.append(message.content); }  // fall back to plain text
  }
  for (const call of message.calls ?? []) body.append(callBox(call));
  if (message.error) body.append(element("p", {className: "error", textContent: message.error}));
}

export function speed(stats) {
  if (!stats) return "";
  const rate = stats.seconds > 0.02 ? `, ${(stats.tokens / stats.seconds).toFixed(1)}/s` : "";
  const cached = stats.cached ? `, ${stats.cached} of ${stats.prompt} prompt tokens cached` : "";
  return `${stats.tokens} tokens${rate}, first after ${stats.first.toFixed(2)} s${cached}`;
}

// actions: {edit, again, copy, tokens, pick(sibling)}; family: messages that are alternatives to this one.
export function bubble(message, family, actions) {
  const who = element("div", {className: "who"}, message.role === "user" ? "You" : "Model");
  const act = (text, run, label) => {
    const node = button(text, () => run(message, node), {title: label});
    node.setAttribute("aria-label", label);
    who.append(node);
    return node;
  };
  if (message.role === "user") act("Edit", actions.edit, "Edit this message");
  else act("Again", actions.again, "Answer again");
  act("Copy", actions.copy, "Copy this message");
  if (message.role === "assistant" && message.content) act("Tokens", actions.tokens, "Show the probability of each token");
  if (family.length > 1) {
    const at = family.indexOf(message);
    const step = (text, to, label) => { act(text, () => actions.pick(family[to]), label).disabled = !family[to]; };
    const place = element("span", {className: "branch", textContent: `${at + 1}/${family.length}`});
    step("‹", at - 1, "Previous version");
    who.append(place);
    step("›", at + 1, "Next version");
  }
  const body = element("div", {className: "body"});
  fill(body, message);
  const box = element("article", {className: `message ${message.role}`}, who, body);
  box.dataset.id = message.id ?? "";
  if (message.stats) box.append(element("p", {className: "stats", textContent: speed(message.stats)}));
  return box;
}

// Each token is a button: its colour is its probability, a click shows the alternatives.
export function tokenView(tokens) {
  const detail = element("p", {className: "alternatives", role: "status", textContent: "Select a token to see what else was likely."});
  const list = element("div", {className: "tokens"});
  for (const token of tokens) {
    const p = Math.exp(token.logprob), shown = token.text.replaceAll("\n", "↵\n");
    const node = button(shown, () => {
      const others = token.top.map(([text, logprob]) => `${JSON.stringify(text)} ${(Math.exp(logprob) * 100).toFixed(1)} %`);
      detail.textContent = `${JSON.stringify(token.text)}: ${(p * 100).toFixed(1)} %, log-probability ${token.logprob.toFixed(3)}. Likely: ${others.join(", ")}`;
      for (const other of list.children) other.removeAttribute("aria-pressed");
      node.setAttribute("aria-pressed", "true");
    });
    node.className = p > 0.9 ? "sure" : p > 0.5 ? "likely" : p > 0.1 ? "open" : "rare";
    list.append(node);
  }
  return element("div", {className: "token-view"}, list, detail);
}
