// A small, safe part of Markdown as DOM nodes: text only ever enters through text nodes, never as HTML.

const FENCE = /^\s*```([\w+#.-]*)\s*$/;

export function render(text) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  let paragraph = [];
  const flush = () => {
    if (paragraph.join("").trim()) addInline(out.appendChild(document.createElement("p")), paragraph.join("\n"));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const fence = FENCE.exec(lines[i]);
    const heading = /^(#{1,6})\s+(.*)$/.exec(lines[i]);
    const item = /^\s*([-*+]|\d+[.)])\s+(.*)$/.exec(lines[i]);
    if (fence) {
      flush();
      const code = [];
      while (++i < lines.length && !/^\s*```\s*$/.test(lines[i])) code.push(lines[i]);
      out.append(codeBlock(code.join("\n"), fence[1]));
    } else if (heading) {
      flush();
      addInline(out.appendChild(document.createElement(heading[1].length < 3 ? "h3" : "h4")), heading[2]);
    } else if (item) {
      flush();
      const kind = /\d/.test(item[1]) ? "OL" : "UL";
      let list = out.lastChild;
      if (!list || list.nodeName !== kind) {
        list = out.appendChild(document.createElement(kind));
        if (kind === "OL") list.start = parseInt(item[1], 10);
      }
      addInline(list.appendChild(document.createElement("li")), item[2]);
    } else if (lines[i].trim() === "") {
      flush();
    } else {
      paragraph.push(lines[i]);
    }
  }
  flush();
  return out;
}

function codeBlock(text, language) {
  const pre = document.createElement("pre");
  const code = pre.appendChild(document.createElement("code"));
  code.textContent = text;
  if (language) code.dataset.language = language;
  const copy = pre.appendChild(document.createElement("button"));
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return pre;
}

// `code`, **bold** and *italic*; everything else is text.
function addInline(parent, text) {
  const pattern = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;
  let last = 0;
  for (let match; (match = pattern.exec(text));) {
    parent.append(text.slice(last, match.index));
    const [, code, bold, italic] = match;
    const node = parent.appendChild(document.createElement(code ? "code" : bold ? "strong" : "em"));
    node.textContent = code || bold || italic;
    last = match.index + match[0].length;
  }
  parent.append(text.slice(last));
}
