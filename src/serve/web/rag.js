// The tab "Docs": a question about the indexed folder, the answer of the model and the passages it was given.
import {render} from "/web/markdown.js";
import {events, getJson, post} from "/web/server.js";
import {button, element} from "/web/view.js";

function sourceItem(source, number) {
  const where = `[${number}] ${source.file}:${source.line}`;
  return element("li", {}, element("details", {}, element("summary", {textContent: `${where} (${source.score.toFixed(3)})`}),
                                   element("p", {textContent: source.text})));
}

// The tab stays hidden unless the server has an index.
export async function startRag(panel, tab, model) {
  let about;
  try {
    about = await getJson("/v1/rag");
  } catch { return; }
  if (!about.passages) return;
  const input = element("input", {id: "rag-query", type: "search", placeholder: "Ask about the documents"});
  input.setAttribute("aria-label", "Question about the documents");
  const ask = element("button", {id: "rag-ask", type: "submit", textContent: "Ask"});
  const answer = element("div", {id: "rag-answer"}), sources = element("ol", {id: "rag-sources"});
  answer.setAttribute("aria-live", "polite");
  sources.setAttribute("aria-label", "Sources");
  const note = element("p", {className: "hint", textContent: `Passages: ${about.passages}. Files: ${about.files}. Embedding model: ${about.model}.`});
  let running = null;
  const stop = button("Stop", () => running?.abort(), {id: "rag-stop", hidden: true});

  async function run(query) {
    running = new AbortController();
    ask.disabled = true;
    stop.hidden = false;
    answer.replaceChildren("Searching …");
    sources.replaceChildren();
    let text = "";
    try {
      const response = await post("/v1/rag/query", {query, model: model(), stream: true}, running.signal);
      for await (const event of events(response)) {
        if (event.error) throw new Error(event.error.message);
        if (event.sources) sources.replaceChildren(...event.sources.map((source, i) => sourceItem(source, i + 1)));
        const choice = event.choices?.[0];
        text += choice?.delta?.content ?? choice?.text ?? "";
        answer.replaceChildren(text ? render(text) : "Answering …");
      }
    } catch (error) {
      if (error.name !== "AbortError") answer.replaceChildren(element("p", {className: "error", textContent: error.message}));
    }
    running = null;
    ask.disabled = false;
    stop.hidden = true;
  }

  const form = element("form", {className: "row"}, input, ask, stop);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running && input.value.trim()) run(input.value.trim());
  });
  panel.replaceChildren(note, form, answer, element("h3", {textContent: "Sources"}), sources);
  tab.hidden = false;
}
