// The list of conversations: search, rename, delete with undo, export and import.
import {exportChats, importChats, listChats, openChat, removeChat, saveChat} from "/web/chats.js";
import {button, element} from "/web/view.js";

const $ = (id) => document.getElementById(id);

// page: {current(), show(chat), fresh(), busy(), status(text, isError, action), stores(write)}
export function startSide(page) {
  let renaming = null;  // the id of the conversation whose name is being written

  function draw() {
    const rows = listChats($("search").value).map(row);
    $("chat-list").replaceChildren(...rows);
    $("no-chats").hidden = rows.length > 0;
    $("no-chats").textContent = $("search").value.trim() ? "No conversation contains this." : "No conversation is saved in this browser yet.";
  }

  function row({id, title, updated}) {
    if (id === renaming) return renameRow(id, title);
    const open = button(title, () => page.show(openChat(id)), {title: `${title}\n${new Date(updated).toLocaleString()}`});
    open.setAttribute("aria-current", id === page.current().id);
    const rename = button("✎", () => { renaming = id; draw(); $("rename").select(); }, {title: "Rename"});
    rename.setAttribute("aria-label", `Rename ${title}`);
    const remove = button("✕", () => drop(id), {title: "Delete"});
    remove.setAttribute("aria-label", `Delete ${title}`);
    return element("li", {}, open, rename, remove);
  }

  function renameRow(id, title) {
    const input = element("input", {id: "rename", value: title, maxLength: 200});
    input.setAttribute("aria-label", "Name of the conversation");
    const end = (keep) => {
      if (renaming !== id) return;
      renaming = null;
      const chat = id === page.current().id ? page.current() : openChat(id), name = input.value.trim();
      if (keep && name && chat) {
        chat.title = name;
        page.stores(() => saveChat(chat, false));
      }
      draw();
    };
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
    });
    input.addEventListener("blur", () => end(true));
    return element("li", {}, input);
  }

  function drop(id) {
    if (page.busy()) return;
    const current = id === page.current().id, undo = removeChat(id);
    if (current) page.fresh();
    draw();
    page.status("The conversation was deleted. ", false, {name: "Undo", run: () => {
      page.stores(undo);
      if (current && page.current().nodes.length === 0) page.show(openChat(id));
      draw();
      page.status("");
    }});
  }

  function save() {
    const url = URL.createObjectURL(new Blob([exportChats()], {type: "application/json"}));
    element("a", {href: url, download: "tokamak-chats.json"}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  async function load(file) {
    try {
      const count = importChats(await file.text());
      page.status(`${count} conversation${count === 1 ? " was" : "s were"} imported.`);
    } catch (error) { page.status(error.message, true); }
    draw();
  }

  $("search").addEventListener("input", draw);
  $("export").addEventListener("click", save);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", () => {
    const [file] = $("import-file").files;
    if (file) load(file);
    $("import-file").value = "";
  });
  return draw;
}
