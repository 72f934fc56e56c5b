#!/usr/bin/env python3
"""Soak test of decoding: every drafter, grammars, tools, programs and adapters at once, with few KV blocks.

    tools/soak_decoding.py MODEL [--tokamak build/release/tokamak] [--minutes 10] [--requests 120] [--clients 6] [--json FILE]

A plain server (no drafts, no prefix cache, room for everything) answers all requests first. Then a server for each drafter, with so few
KV blocks that sequences are preempted, gets the same requests in random order from several clients, while other clients
send random requests and leave in the middle of the answer. Every answer must equal the plain one, token by token;
requests for beams with drafts must be refused. Exits with 1 if an answer differed, if blocks or sequences were left, if memory kept
growing, or if the server had an internal error. MODEL: a Llama model as GGUF or as a folder.
Needs the Python packages numpy and safetensors.
"""
import argparse
import collections
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from safetensors.numpy import save_file

import soak

TEMPLATE = """{% if tools %}<|im_start|>system
Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>. The tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ITEMS = {"type": "array", "maxItems": 3, "items": {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
                                                  "required": ["id", "ok"], "additionalProperties": False}}
CONTAINS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "contains": {"minimum": 50}, "minContains": 2, "maxItems": 5}
GRAMMARS = [{"guided_json": soak.SCHEMA}, {"guided_json": ITEMS}, {"guided_json": CONTAINS}, {"guided_regex": r"(\d{1,3}-)+[a-z]{2,8}"}, {"guided_choice": ["left", "right", "straight on"]},
            {"guided_grammar": 'root ::= item ("," item){0,4}\nitem ::= [a-z]+ "=" [0-9]+'}, {"response_format": {"type": "json_object"}}]
PROGRAM = {"variables": {"words": ["stone", "river", "seven"]}, "program": [
    {"text": "A word and its kind.\nhouse: thing\ngoes: verb\nred: colour\n"},
    {"fork": "words", "as": "word", "into": "found", "do": [
        {"text": "{{ word }}:"}, {"select": "kind", "choices": [" thing", " verb", " colour", " number"]}, {"text": "\nWhy:"}, {"gen": "why", "max_tokens": 8, "stop": "\n"}]},
    {"return": "found"}]}
DRAFTERS = {"ngram": {"method": "ngram"}, "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 40}, "lookahead": {"method": "lookahead"},
            "early_exit": {"method": "early_exit", "num_speculative_tokens": 3, "adaptive": False}, "patterns": {"method": "patterns"},
            "draft_model": {"method": "draft_model", "num_speculative_tokens": 3}, "ngram-always": {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1},
            "suffix-tree": {"method": "suffix", "max_branches": 3, "adaptive": False}}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--minutes", type=float, default=10, help="of all drafters together; at least one round of requests each")
    p.add_argument("--requests", type=int, default=120, help="different requests")
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--kv-blocks", type=int, default=160)
    p.add_argument("--threads", type=int, default=1, help="of the server's backend")
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--drafters", default=",".join(DRAFTERS), help="separated by commas (default: all)")
    p.add_argument("--growth", type=float, default=8, help="largest growth of memory in the second half of a drafter's time, MiB")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=pathlib.Path, help="write the result here")
    return p.parse_args()


def write_adapter(folder, shape, seed):
    """A random LoRA adapter of q_proj and v_proj, as PEFT saves it."""
    rng, rank, tensors = np.random.default_rng(seed), 4, {}
    rows = {"q_proj": shape["heads"] * shape["head_dim"], "v_proj": shape["kv_heads"] * shape["head_dim"]}
    for layer in range(shape["layers"]):
        for name, n in rows.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_"
            tensors[at + "A.weight"] = rng.normal(0, 0.02, (rank, shape["hidden"])).astype(np.float32)
            tensors[at + "B.weight"] = rng.normal(0, 0.02, (n, rank)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "bias": "none",
                                                            "target_modules": list(rows), "base_model_name_or_path": "x"}))


def text_of(rng):
    shared = random.Random(rng.randrange(3))  # prefixes that several requests have
    words = shared.choices(soak.WORDS, k=rng.choice((0, 40, 120)))
    phrase = rng.choices(soak.WORDS, k=6)
    return " ".join(words + phrase + rng.choices(soak.WORDS, k=rng.randint(0, 12)) + phrase)


def request_of(rng, i, model):
    """(path, body, expected status)"""
    kind = rng.choice(("text", "text", "text", "grammar", "grammar", "chat", "tools", "tools", "adapter", "program", "beams", "repeat"))
    if kind == "program":
        return "/v1/programs", {**PROGRAM, "model": model, "seed": i}, 200
    body = {"model": rng.choice(("lora-a", "lora-b")) if kind == "adapter" else model, "max_tokens": rng.randint(4, 40), "seed": i,
            "temperature": rng.choice((0, 0, 0.7, 1.0, 1.5)), "return_token_ids": True}
    if kind == "beams":
        return "/v1/completions", {**body, "prompt": text_of(rng), "use_beam_search": True, "n": 2, "speculative": 2}, 400
    for field, chance, value in (("top_k", 0.2, 20), ("top_p", 0.2, 0.9), ("min_p", 0.2, 0.05), ("repetition_penalty", 0.1, 1.2), ("presence_penalty", 0.1, 0.5),
                                 ("n", 0.1, 2), ("stop", 0.15, ["river", "\n\n"]), ("logprobs", 0.2, 2), ("ignore_eos", 0.3, True)):
        if rng.random() < chance and not (kind in ("chat", "tools") and field in ("logprobs", "ignore_eos")):
            body[field] = value
    if kind in ("chat", "tools"):
        body["messages"] = [{"role": "user", "content": text_of(rng)}]
        if kind == "tools":
            strict = {**soak.TOOL["function"], "strict": True}
            body |= {"tools": [{"type": "function", "function": strict}], "max_tokens": 80,
                     "tool_choice": rng.choice(("auto", "required", {"type": "function", "function": {"name": "look_up"}}))}
            body.pop("stop", None)
        return "/v1/chat/completions", body, 200
    body["prompt"] = text_of(rng) if kind != "repeat" else "Say it again: " + (text_of(rng) + "\n") * 2
    if kind == "grammar":
        body |= {**rng.choice(GRAMMARS), "max_tokens": 60}
        for field in ("stop", "ignore_eos"):
            body.pop(field, None)
    return "/v1/completions", body, 200


class Comparer(threading.Thread):
    """Sends requests of a common list until the time is over and every one was sent."""

    def __init__(self, server, jobs, until, counts, wrong):
        super().__init__()
        self.server, self.jobs, self.until, self.counts, self.wrong = server, jobs, until, counts, wrong

    def run(self):
        while self.server.process.poll() is None and len(self.wrong) < 20:
            job = self.jobs.next(time.monotonic() >= self.until)
            if job is None:
                return
            path, body, status, expected = job
            try:
                got, answer = self.server.post(path, body)
            except OSError as e:
                self.wrong.append(f"{path} {json.dumps(body)}: {e!r}")
                return
            self.counts["compared"] += 1
            if (got, tokens_of(answer)) != (status, expected):
                self.wrong.append(f"{path} {json.dumps(body)}: {got} {json.dumps(tokens_of(answer))} instead of {status} {json.dumps(expected)}")


class Jobs:
    """Rounds of all requests, each in a random order."""

    def __init__(self, known, rng):
        self.known, self.rng, self.left, self.rounds, self.lock = known, rng, [], 0, threading.Lock()

    def next(self, over):
        with self.lock:
            if not self.left:
                if over and self.rounds > 0:
                    return None
                self.rounds += 1
                self.left = self.rng.sample(self.known, len(self.known))
            elif over and self.rounds > 1:
                return None
            return self.left.pop()


def tokens_of(answer):
    """What must not change: all but ids, times and counts of cached tokens; of an error, what it is about."""
    return answer["error"]["param"] if "error" in answer else soak.essence(answer)


def start(args, folder, blocks, *flags):
    options = argparse.Namespace(tokamak=args.tokamak, model=args.model, threads=args.threads, kv_blocks=blocks, context=args.context, backend="cpu",
                                 chat_template=str(folder / "tools.jinja"), server_flags="")
    options.server_flags = " ".join([f"--lora-modules lora-a={folder}/a lora-b={folder}/b", "--jump-forward", *flags])
    batches = folder / f"batches-{time.monotonic_ns()}"
    return soak.Server(options, batches)


def stop(server, wrong, name):
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(timeout=120)
    wrong += [f"{name}: exit code {code}"] if code else []
    wrong += [f"{name}: log: {line}" for line in server.errors if "internal" in line.lower()]


def soak_drafter(name, args, folder, known, seconds):
    config = dict(DRAFTERS[name])
    if name == "patterns":
        config["patterns"] = str(folder / "words.patterns")
    if name == "draft_model":
        config["model"] = str(args.model)
    server = start(args, folder, args.kv_blocks, f"--speculative-config '{json.dumps(config)}'")
    counts, wrong, samples = collections.Counter(), [], []
    first, begin = server.sample(), time.monotonic()
    until = begin + seconds
    jobs = Jobs(known, random.Random(args.seed))
    clients = [Comparer(server, jobs, until, counts, wrong) for _ in range(args.clients)]
    clients += [soak.Client(server, args.seed * 100 + i, until, counts) for i in range(2)]
    for c in clients:
        c.start()
    while any(c.is_alive() for c in clients):
        time.sleep(1)
        samples.append(server.sample()["anon_mib"])
    end, last = time.monotonic() + 60, server.sample()
    while time.monotonic() < end and (last["blocks"] or last["running"] or last["answers"]):
        time.sleep(0.2)
        last = server.sample()
    metrics = collections.Counter()
    for line in server.get("/metrics").splitlines():
        if line.startswith("tokamak_"):
            label, _, value = line.rpartition(" ")
            metrics[label.split("{")[0]] += float(value)
    stop(server, wrong, name)
    wrong += [f"{k} left: {last[k]}" for k in ("blocks", "running", "waiting", "answers") if last[k]]
    wrong += [f"threads {first['threads']} -> {last['threads']}"] if last["threads"] > first["threads"] else []
    wrong += [f"{k}: {v}" for k, v in counts.items() if k.startswith(("status 5", "stream without"))]
    half = samples[len(samples) // 2:]
    growth = max(half) - half[0] if half else 0
    wrong += [f"memory grew by {growth:.1f} MiB"] if growth > args.growth else []
    return {"drafter": name, "seconds": round(time.monotonic() - begin), "rounds": jobs.rounds, **dict(sorted(counts.items())),
            "drafted": metrics["tokamak_draft_tokens_total"], "accepted": metrics["tokamak_draft_accepted_tokens_total"],
            "preemptions": metrics["tokamak_preemptions_total"], "prefix hits": metrics["tokamak_prefix_hit_tokens_total"],
            "memory, MiB": [round(samples[0]), round(half[0]), round(samples[-1])], "wrong": wrong}


def main():
    args = parse_args()
    for name in args.drafters.split(","):
        if name not in DRAFTERS:
            sys.exit(f"no drafter is called {name}; there are {', '.join(DRAFTERS)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tokamak-soak-"))
    (folder / "tools.jinja").write_text(TEMPLATE)
    shape = json.loads(subprocess.check_output([args.tokamak, "inspect", str(args.model), "--json"]))
    shape = shape.get("config", shape)
    for i, name in enumerate("ab"):
        write_adapter(folder / name, shape, args.seed * 10 + i)
    rng = random.Random(args.seed)
    (folder / "words.txt").write_text("\n".join(text_of(rng) for _ in range(200)))
    subprocess.check_call([args.tokamak, "draft", "build", str(folder / "words.txt"), "--model", str(args.model), "-o", str(folder / "words.patterns")],
                          stdout=subprocess.DEVNULL)
    results, wrong, known = [], [], []
    plain = start(args, folder, 20 * args.kv_blocks, "--no-prefix-cache")
    model = json.loads(plain.get("/v1/models"))["data"][0]["id"]
    for i in range(args.requests):
        path, body, status = request_of(rng, i, model)
        got, answer = plain.post(path, body)
        if got != status:
            wrong.append(f"plain: {path} {json.dumps(body)}: {got} {json.dumps(answer)}")
        known.append((path, body, status, tokens_of(answer)))
    stop(plain, wrong, "plain")
    names = args.drafters.split(",")
    for name in names if not wrong else []:
        results.append(soak_drafter(name, args, folder, known, 60 * args.minutes / len(names)))
        print(json.dumps(results[-1]), flush=True)
        wrong += results[-1]["wrong"]
    shutil.rmtree(folder)
    total = {"requests": len(known), "kinds": dict(collections.Counter(path for path, *_ in known)), "compared": sum(r["compared"] for r in results), "wrong": wrong}
    print(json.dumps(total))
    if args.json:
        args.json.write_text(json.dumps({**total, "drafters": results}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
