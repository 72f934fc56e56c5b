// Requests to the server.
let key = "";
export const setKey = (value) => { key = value; };

export function headers() {
  const out = {"Content-Type": "application/json"};
  if (key) out.Authorization = `Bearer ${key}`;
  return out;
}

export class ServerGone extends Error {
  constructor() { super("The server cannot be reached. Your text is kept; send it again when the server is back."); }
}

async function reach(path, options = {}) {
  try {
    return await fetch(path, {...options, headers: headers()});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerGone();
  }
}

// An Error with the server's message, `code` and `status`.
async function refusal(response) {
  const {error} = await response.json().catch(() => ({}));
  return Object.assign(new Error(error?.message ?? `The server answered ${response.status}.`), {code: error?.code, status: response.status});
}

export async function getJson(path) {
  const response = await reach(path);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export async function getText(path) {
  const response = await reach(path);
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  return response.text();
}

export async function post(path, body, signal) {
  const response = await reach(path, {method: "POST", body: JSON.stringify(body), signal});
  if (response.ok) return response;
  throw await refusal(response);
}

// Yields the JSON of each event.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerGone();
    }
    if (part.done) return;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const line of blocks.flatMap((block) => block.split("\n"))) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}

// Calls back(true) when the server answers again, after waits of 1, 2, 4, ... seconds.
let waiting = null;
export function awaitServer(back, delay = 1000) {
  if (waiting) return;
  waiting = setTimeout(async () => {
    waiting = null;
    try {
      if ((await fetch("/health", {cache: "no-store"})).ok) return back();
    } catch { /* not yet */ }
    awaitServer(back, Math.min(delay * 2, 15000));
  }, delay);
}

// The tokens of an answer with their log-probabilities and alternatives: the server scores the conversation again.
export async function scoreAnswer(model, messages, answer) {
  const {prompt} = await (await post("/apply-template", {model, messages})).json();
  const {count} = await (await post("/tokenize", {model, prompt, add_special_tokens: false})).json();
  const body = {model, prompt: prompt + answer, echo: true, max_tokens: 0, logprobs: 5, add_special_tokens: false};
  const {tokens, token_logprobs: logprobs, top_logprobs: top} = (await (await post("/v1/completions", body)).json()).choices[0].logprobs;
  return tokens.slice(count).map((text, i) => ({
    text, logprob: logprobs[count + i] ?? 0,
    top: Object.entries(top[count + i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}
