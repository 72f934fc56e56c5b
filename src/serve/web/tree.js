// The tree of cached prefixes: a row for each part, where its bar begins and ends as its tokens do in the prompt.
import {getJson} from "/web/server.js";
import {button, element} from "/web/view.js";

const FIRST = 60;
const plural = (n, one) => `${n.toLocaleString()} ${one}${n === 1 ? "" : "s"}`;

function state(node) {
  if (node.producing) return ["computing", "being computed"];
  if (node.references > 0) return ["used", `used by ${plural(node.references, "sequence")}`];
  if (!node.blocks) return ["free", "not cached"];
  return ["cached", node.ended_since_use > 0 ? `cached; ${plural(node.ended_since_use, "answer")} ended since its last use` : "cached, used last"];
}

// Rows in the order of the tree, with their level; a root has no tokens and only separates.
function rowsOf(nodes) {
  const children = nodes.map(() => []), rows = [];
  nodes.forEach((n, i) => { if (n.parent !== null) children[n.parent].push(i); });
  const open = nodes.flatMap((n, i) => (n.parent === null ? children[i].map((c) => [c, 1]) : [])).reverse();
  while (open.length) {
    const [i, level] = open.pop();
    rows.push({...nodes[i], level, children: children[i].length});
    open.push(...children[i].map((c) => [c, level + 1]).reverse());
  }
  return rows;
}

export function startTree(model) {
  const box = element("section", {className: "prefixes"}), list = element("div", {role: "tree", ariaLabel: "Cached prefixes"});
  const summary = element("p", {className: "note", role: "status"}), more = button("Show all", () => { limit = Infinity; draw(); }, {hidden: true});
  let limit = FIRST, rows = [], last = "";
  box.append(element("h3", {textContent: "Prefix tree"}), summary, list, more);

  function row(n, whole) {
    const [kind, words] = state(n), label = `${plural(n.tokens, "token")} after ${n.first.toLocaleString()}, ${words}`;
    const bar = element("i", {className: kind}), item = element("div", {role: "treeitem", tabIndex: -1, title: `${label}\n${plural(n.blocks, "block")}, name ${n.hash}`, ariaLabel: `${label}. ${n.text ?? ""}`});
    item.setAttribute("aria-level", n.level);
    bar.style.marginLeft = `${n.first / whole * 100}%`;
    bar.style.width = `max(3px, ${n.tokens / whole * 100}%)`;
    item.append(element("span", {className: "bar", ariaHidden: "true"}, bar), element("span", {className: "count", textContent: n.tokens.toLocaleString()}),
                element("span", {className: "words", textContent: n.text ? n.text.replaceAll("\n", "↵") : `${n.hash}`}), element("span", {className: "use", textContent: words}));
    item.querySelector(".words").style.paddingLeft = `${Math.min(n.level - 1, 12) * 0.8}rem`;
    return item;
  }

  function draw() {
    const whole = Math.max(1, ...rows.map((n) => n.first + n.tokens)), at = [...list.children].indexOf(document.activeElement);
    list.replaceChildren(...rows.slice(0, limit).map((n) => row(n, whole)));
    more.hidden = rows.length <= limit;
    more.textContent = `Show all ${rows.length}`;
    const items = list.children;
    if (items.length) items[Math.max(0, Math.min(at, items.length - 1))].tabIndex = 0;
    if (at >= 0 && items.length) items[Math.min(at, items.length - 1)].focus();
  }

  list.addEventListener("keydown", (event) => {
    const items = [...list.children], at = items.indexOf(document.activeElement);
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1}[event.key];
    if (to === undefined || !items[to]) return;
    event.preventDefault();
    items[at].tabIndex = -1;
    items[to].tabIndex = 0;
    items[to].focus();
  });

  return {box, async look() {
    const tree = await getJson(`/prefix_tree/${encodeURIComponent(model())}`), text = JSON.stringify(tree);
    if (text === last) return;
    last = text;
    rows = rowsOf(tree.nodes);
    const tokens = rows.reduce((sum, n) => sum + n.tokens, 0), owners = tree.nodes.filter((n) => n.parent === null).length;
    summary.textContent = rows.length === 0 ? "No prompt is cached yet."
        : `${plural(tokens, "token")} in ${plural(rows.length, "part")}${owners > 1 ? ` of ${owners} separate caches` : ""}${tree.left_out ? `; ${plural(tree.left_out, "unit")} more are not shown` : ""}. Prompts that begin alike share the beginning; texts are shown to the key that sent them.`;
    draw();
  }};
}
