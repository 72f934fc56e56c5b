// Formulas by KaTeX and colours by highlight.js, loaded when a message first needs them. Until then, and on a server built
// without them, the text stays as it is.
const KEPT = 300;  // results kept, so that a message that grows is not worked out again and again

function library(script, style) {
  let state = null;  // null, a promise, true or false
  return {
    ready: () => state === true,
    load() {
      state ??= new Promise((done) => {
        const add = (name, fields) => document.head.appendChild(Object.assign(document.createElement(name), fields));
        if (style) add("link", {rel: "stylesheet", href: style});
        add("script", {src: script, onload: () => done(state = true), onerror: () => done(state = false)});
      });
      return Promise.resolve(state);
    },
  };
}

const katex = library("/web/lib/katex.min.js", "/web/lib/katex.min.css");
const hljs = library("/web/lib/highlight.min.js");

const kept = new Map();
function remember(key, make) {
  if (!kept.has(key)) {
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, make());
  }
  return kept.get(key).cloneNode(true);
}

// Fills the element now or when the library has arrived.
function decorate(lib, element, key, make) {
  const fill = () => element.replaceChildren(remember(key, make));
  if (lib.ready()) fill();
  else lib.load().then((good) => good && fill());
}

// KaTeX builds nodes, not HTML; what it cannot read stays as it is.
export function formula(text, display) {
  const out = document.createElement("span");
  out.className = display ? "formula display" : "formula";
  out.textContent = text;
  decorate(katex, out, `${display}${text}`, () => {
    const box = document.createElement("span");
    try {
      window.katex.render(text, box, {displayMode: display, maxSize: 30, maxExpand: 500, strict: "ignore"});
    } catch {
      box.textContent = text;
    }
    return box;
  });
  return out;
}

export function colour(code, language) {
  const text = code.textContent;
  if (text.length > 50000) return;
  decorate(hljs, code, `code ${language} ${text}`, () => {
    const out = document.createDocumentFragment();
    if (!window.hljs.getLanguage(language)) out.append(text);
    else copySpans(new DOMParser().parseFromString(window.hljs.highlight(language, text, true).value, "text/html").body, out);
    return out;
  });
}

// highlight.js returns HTML; only its text and the classes of its spans are used.
function copySpans(from, to) {
  for (const node of from.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) to.append(node.data);
    else if (node.nodeName === "SPAN") copySpans(node, to.appendChild(Object.assign(document.createElement("span"), {className: node.className})));
  }
}
