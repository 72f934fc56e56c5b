// A small, safe subset of Markdown as DOM nodes: text is only inserted as text nodes, never as HTML.
import {colour, formula} from "/web/decorate.js";
import {button, copy} from "/web/view.js";

const FENCE = /^(\s*)(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(\S[^]*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;  // below the head of a table
const FORMULA = /^\s*(\$\$|\\\[)/;  // alone on its lines
const MAX_DEPTH = 8, MAX_INLINE = 20000;

export function render(text) {
  const out = document.createDocumentFragment();
  blocks(text.split("\n"), out, 0);
  return out;
}

const add = (parent, name) => parent.appendChild(document.createElement(name));
const indentOf = (line) => line.length - line.trimStart().length;

function blocks(lines, parent, depth) {
  let paragraph = [];
  const flush = () => {
    if (paragraph.join("").trim()) addInline(add(parent, "p"), paragraph.join("\n"));
    paragraph = [];
  };
  for (let i = 0; i < lines.length;) {
    const line = lines[i], reader = depth < MAX_DEPTH && line.length <= MAX_INLINE && READERS.find((r) => r.starts(lines, i));
    if (reader) {
      flush();
      i = reader.read(lines, i, parent, depth);
    } else {
      if (line.trim() === "") flush();
      else paragraph.push(line);
      i++;
    }
  }
  flush();
}

// Each parses a block that starts at line i and returns the line after it.
const READERS = [
  {starts: (lines, i) => FENCE.test(lines[i]), read: readCode},
  {starts: (lines, i) => FORMULA.test(lines[i]) && formulaEnd(lines, i) >= 0, read: readFormula},
  {starts: (lines, i) => HEADING.test(lines[i]), read: readHeading},
  {starts: (lines, i) => RULE.test(lines[i]), read: (lines, i, parent) => (add(parent, "hr"), i + 1)},
  {starts: (lines, i) => /^\s*>/.test(lines[i]), read: readQuote},
  {starts: (lines, i) => lines[i].includes("|") && lines[i + 1]?.includes("|") && DIVIDER.test(lines[i + 1]), read: readTable},
  {starts: (lines, i) => ITEM.test(lines[i]), read: readList},
];

function readCode(lines, i, parent) {
  const [, indent, marks, language] = FENCE.exec(lines[i]);
  const code = [];
  for (i++; i < lines.length; i++) {
    const text = lines[i].trim();
    if (text.length >= marks.length && text === marks[0].repeat(text.length)) return parent.append(codeBlock(code.join("\n"), language, true)), i + 1;
    code.push(lines[i].slice(Math.min(indent.length, indentOf(lines[i]))));
  }
  parent.append(codeBlock(code.join("\n"), language));  // still being written
  return i;
}

const closing = (line) => (line.includes("$$") ? "$$" : "\\]");

// The line that ends a formula which begins at line i; -1 if it does not end there, or other text follows.
function formulaEnd(lines, i) {
  const open = FORMULA.exec(lines[i])[0], close = closing(open);
  for (let end = i; end < lines.length && end < i + 100 && lines[end].trim() !== ""; end++) {
    const at = lines[end].indexOf(close, end === i ? open.length : 0);
    if (at >= 0) return lines[end].slice(at + 2).trim() === "" ? end : -1;
  }
  return -1;
}

function readFormula(lines, i, parent) {
  const end = formulaEnd(lines, i), text = lines.slice(i, end + 1).join("\n").trim();
  parent.append(formula(text.slice(2, text.lastIndexOf(closing(text.slice(0, 2)))), true));
  return end + 1;
}

function readHeading(lines, i, parent) {
  const [, marks, text] = HEADING.exec(lines[i]);
  addInline(add(parent, marks.length < 3 ? "h3" : "h4"), text.trimEnd().replace(/(?<!#)#{1,6}$/, "").trimEnd());
  return i + 1;
}

function readQuote(lines, i, parent, depth) {
  const inner = [];
  for (; i < lines.length && /^\s*>/.test(lines[i]); i++) inner.push(lines[i].replace(/^\s*> ?/, ""));
  blocks(inner, add(parent, "blockquote"), depth + 1);
  return i;
}

// A bar after a backslash is text.
const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function readTable(lines, i, parent) {
  const box = add(parent, "div");  // scrolls if the table is wider than the page
  box.className = "table";
  const table = add(box, "table");
  const align = cells(lines[i + 1]).map((mark) => (!mark.endsWith(":") ? "" : mark.startsWith(":") ? "center" : "right"));
  const row = (line, kind) => {
    const tr = add(table, "tr");
    cells(line).forEach((text, column) => {
      const cell = add(tr, kind);
      if (align[column]) cell.className = align[column];
      addInline(cell, text);
    });
  };
  row(lines[i], "th");
  for (i += 2; i < lines.length && lines[i].includes("|"); i++) row(lines[i], "td");
  return i;
}

function readList(lines, i, parent, depth) {
  const [, indent, mark] = ITEM.exec(lines[i]);
  const ordered = /\d/.test(mark), base = indent.length;
  const list = add(parent, ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(mark, 10);
  const belongs = (line) => indentOf(line) >= base + 2;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || RULE.test(lines[i]) || Math.abs(item[1].length - base) > 1 || /\d/.test(item[2]) !== ordered) break;
    const li = add(list, "li"), inner = [], task = /^\[([ xX])\]\s+(.*)$/.exec(item[3]);
    if (task) {
      li.className = "task";
      Object.assign(add(li, "input"), {type: "checkbox", disabled: true, checked: task[1] !== " "});
    }
    addInline(li, task ? task[2] : item[3]);
    for (i++; i < lines.length; i++) {
      const blank = lines[i].trim() === "";
      if (blank ? !(i + 1 < lines.length && belongs(lines[i + 1])) : !belongs(lines[i])) break;
      inner.push(lines[i].slice(Math.min(base + 2, indentOf(lines[i]))));
    }
    blocks(inner, li, depth + 1);
    if (lines[i]?.trim() === "" && ITEM.test(lines[i + 1] ?? "")) i++;  // items may be separated by blank lines
  }
  return i;
}

function codeBlock(text, language, complete) {
  const pre = document.createElement("pre");
  const code = add(pre, "code");
  code.textContent = text;
  if (language) code.dataset.language = language;
  if (language && complete) colour(code, language);
  pre.append(button("Copy", (event) => copy(text, event.target)));
  return pre;
}

// `code`, $formulas$ and \(formulas\), ***both***, **bold**, *italic* and _italic_, ~~struck~~, ![images](data:...) from data URLs only, [links](https://...), bare
// addresses and \escapes; everything else is text.
const INLINE = new RegExp([
  /(`+)(?!`)(.+?)(?<!`)\1(?!`)/, /\\\((.+?)\\\)/, /\$\$([^$\n]+)\$\$/, /(?<![\\$\w])\$(?=[^\s$])((?:[^$\n\\`]|\\.)*?[^\s$\\`])\$(?![\d$])/, /\*\*\*([^*\n]+)\*\*\*/, /\*\*(?=\S)((?:[^*\n]|\*(?!\*))+?)\*\*/,
  /(?<![\w*])\*(?=[^\s*])([^*\n]+?)\*(?![\w*])/, /~~([^~\n]+)~~/,
  /!\[([^\[\]\n]{0,500})\]\((data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+)\)/,
  /!?\[([^\[\]\n]{1,500})\]\((https?:\/\/(?:[^\s()]|\([^\s()]*\))+)\)/, /(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_])/,
  /(?<![\w_])_(?=[^\s_])([^_\n]+?)_(?![\w_])/, /\\([\\`*_{}[\]()#+.!|~>$-])/,
].map((r) => r.source).join("|"), "g");

const LARGE_IMAGE = /^!\[([^\[\]\n]{0,500})\]\((data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+)\)$/;

function addInline(parent, text) {
  if (text.length > MAX_INLINE) {
    const image = LARGE_IMAGE.exec(text.trim());
    if (image) Object.assign(add(parent, "img"), {alt: image[1], src: image[2]});
    else parent.append(text);
    return;
  }
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, round, display, dollars, both, bold, italic, struck, alt, source, label, href, address, slanted, escaped] = match;
    parent.append(text.slice(last, match.index));
    last = match.index + all.length;
    if (code !== undefined) add(parent, "code").textContent = code;
    else if ((round ?? dollars) !== undefined) parent.append(formula(round ?? dollars, false));
    else if (display !== undefined) parent.append(formula(display, true));
    else if (both !== undefined) addInline(add(add(parent, "strong"), "em"), both);
    else if (bold !== undefined) addInline(add(parent, "strong"), bold);
    else if ((italic ?? slanted) !== undefined) addInline(add(parent, "em"), italic ?? slanted);
    else if (struck !== undefined) addInline(add(parent, "s"), struck);
    else if (source !== undefined) Object.assign(add(parent, "img"), {src: source, alt});
    else if (escaped !== undefined) parent.append(escaped);
    else Object.assign(add(parent, "a"), {textContent: label ?? address, href: href ?? address, target: "_blank", rel: "noopener noreferrer"});
  }
  parent.append(text.slice(last));
}
