"""`tokamak serve` with real engines on tiny models: flags, limits, several models, the memory ledger."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BINARY = os.environ["TOKAMAK_BINARY"]
TINY = pathlib.Path(os.environ["TOKAMAK_TINY_MODELS"])
FAMILIES = pathlib.Path(os.environ["TOKAMAK_TINY_FAMILIES"])
LLAMA = TINY / "llama.gguf"


class Serve:
    """A server process on a free port; stopped by SIGTERM, which must end it with 0."""

    def __init__(self, *args, cwd=None):
        self.process = subprocess.Popen([BINARY, "serve", *map(str, args), "--port", "0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, cwd=cwd)
        self.output = ""
        while "ready at" not in self.output:
            line = self.process.stdout.readline()
            assert line, self.output
            self.output += line
        self.url = re.search(r"http://\S+", self.output).group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=30)
        finally:
            self.process.kill()
            self.process.stdout.close()
        assert code == 0, code

    def send(self, path, body, **headers):
        """(status, headers, text)"""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return r.status, r.headers, r.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.headers, e.read().decode()

    def post(self, path, **body):
        """(status, headers, JSON)"""
        status, headers, text = self.send(path, body)
        return status, headers, json.loads(text)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as r:
            return r.read().decode()

    def metric(self, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics").splitlines()
                   if re.match(rf"{name}(\{{|\s)", line))


class Thoughts(unittest.TestCase):
    def test_a_budget_changes_only_where_thoughts_end(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "think.jinja"
            template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}")
            ask = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "seed": 3, "temperature": 1, "ignore_eos": True, "return_token_ids": True}
            with Serve(LLAMA, "--chat-template", template, "--reasoning-budget", 20) as s:
                ids = lambda answer: answer["choices"][0]["token_ids"]
                end = s.post("/tokenize", content="</think>", add_special=False)[2]["tokens"]
                free = s.post("/v1/chat/completions", **ask, reasoning_budget=-1)[2]
                for more, budget in (({"reasoning_budget": 5}, 5), ({"reasoning_budget": 1}, 1), ({}, 20)):
                    _, _, answer = s.post("/v1/chat/completions", **ask, **more)
                    self.assertEqual(ids(answer)[:budget], ids(free)[:budget])
                    self.assertEqual(ids(answer)[budget:budget + len(end)], end[:24 - budget])
                    if budget + len(end) <= 24:
                        self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], budget + len(end))
                        self.assertTrue(answer["choices"][0]["message"]["content"])
                text = s.post("/apply-template", messages=ask["messages"], reasoning_budget=0)[2]["prompt"]
                self.assertTrue(text.endswith("<think></think>"), text)
            with Serve(LLAMA, "--chat-template", template, "--reasoning", "off", "--reasoning-format", "none") as s:
                self.assertTrue(s.post("/apply-template", messages=ask["messages"])[2]["prompt"].endswith("<think></think>"))


class Progress(unittest.TestCase):
    def test_every_chunk_of_a_prompt_is_reported(self):
        with Serve(LLAMA, "--max-num-batched-tokens", 16, "--tpot-target", 0) as s:
            prompt = [5 + i % 30 for i in range(50)]
            request = urllib.request.Request(s.url + "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 3, "seed": 1, "ignore_eos": True, "stream": True, "return_progress": True}).encode(), {"content-type": "application/json"})
            for cached in (0, 48):  # whole blocks of 16 are found again
                with urllib.request.urlopen(request, timeout=60) as r:
                    chunks = [json.loads(line[6:]) for line in r if line.startswith(b"data: {")]
                told = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
                self.assertEqual([(p["cache"], p["total"]) for p in told], [(cached, 50)] * len(told))
                self.assertEqual([p["processed"] for p in told], [0, 16, 32, 48, 50] if cached == 0 else [48, 50])
                self.assertTrue(all("prompt_progress" not in c for c in chunks[len(told):]))  # before the answer
                self.assertTrue(any(c["choices"][0]["text"] for c in chunks))


class Restart(unittest.TestCase):
    def test_an_administrator_replaces_the_process(self):
        """Running answers end, connections that arrive meanwhile wait, and the new process answers as the old one did."""
        ask = {"prompt": "One two", "max_tokens": 8, "seed": 1}
        with Serve(LLAMA, "--admin-key", "root", "--api-key", "user", "--shutdown-timeout", 20) as s:
            def post(path, key, **body):
                request = urllib.request.Request(s.url + path, json.dumps(body).encode(), {"content-type": "application/json", "authorization": f"Bearer {key}"})
                with urllib.request.urlopen(request, timeout=60) as r:
                    return json.load(r)
            text = lambda: post("/v1/completions", "user", **ask)["choices"][0]["text"]
            with self.assertRaises(urllib.error.HTTPError) as refused:
                post("/admin/restart", "user")
            with refused.exception as e:
                self.assertEqual(e.code, 401)
            before = text()
            with concurrent.futures.ThreadPoolExecutor() as pool:
                running = pool.submit(post, "/v1/completions", "user", prompt="x", max_tokens=40, ignore_eos=True)
                time.sleep(0.05)
                for _ in range(4):  # more often than a crash is allowed to
                    self.assertEqual(post("/admin/restart", "root"), {"success": True})
                    self.assertEqual(text(), before)  # of the old process or of the new one
                    while "ready at" not in (line := s.process.stdout.readline()):
                        self.assertTrue(line)
                    self.assertEqual(text(), before)
                self.assertEqual(running.result()["usage"]["completion_tokens"], 40)


class Prefixes(unittest.TestCase):
    def test_the_tree_is_that_of_the_prompts(self):
        with Serve(LLAMA) as s:
            begin, first, second = [7] * 16, [8] * 16, [9] * 32
            for rest in (first, second):
                self.assertEqual(s.post("/v1/completions", prompt=begin + rest + [4], max_tokens=1)[0], 200)
            tree = json.loads(s.get("/prefix_tree"))
            nodes = [n for n in tree["nodes"] if n["tokens"]]
            self.assertEqual(sorted((n["first"], n["tokens"]) for n in nodes), [(0, 16), (16, 16), (16, 32)])
            self.assertEqual([n["references"] for n in nodes], [0, 0, 0])
            self.assertEqual(sum(n["cached_blocks"] for n in nodes), s.metric("tokamak_kv_blocks_cached"))
            self.assertTrue(all("text" not in n for n in tree["nodes"]))


class Timeline(unittest.TestCase):
    def test_threads_of_one_step(self):
        """Measured on an idle server: every thread has its spans, in order, and together they cover every call of the plan."""
        with Serve(LLAMA, "--threads", 3) as s:
            before = s.post("/v1/completions", prompt=[5, 6, 7], max_tokens=8, temperature=0)[2]["choices"][0]["text"]
            for function, tokens in (("decode", 1), ("step", 32)):  # half of the context
                trace = json.loads(s.get(f"/timeline/{function}"))
                self.assertEqual((trace["function"], trace["tokens"], trace["sequences"], len(trace["threads"])), (function, tokens, 1, 3))
                seen = set()
                for thread in trace["threads"]:
                    end = 0
                    for call, stage, begin, finish in thread["spans"]:
                        self.assertTrue(end <= begin <= finish <= trace["us"], (end, begin, finish))
                        end = finish
                        seen.add(call)
                    self.assertAlmostEqual(thread["busy_us"], sum(x[3] - x[2] for x in thread["spans"]), delta=0.1 * len(thread["spans"]))
                self.assertEqual(seen, set(range(len(trace["calls"]))))
                kernels = {k["kernel"] for k in json.loads(s.get(f"/plan/{function}"))["kernels"]}
                self.assertLessEqual(kernels, {c["kernel"] for c in trace["calls"]})
            self.assertEqual(s.post("/v1/completions", prompt=[5, 6, 7], max_tokens=8, temperature=0)[2]["choices"][0]["text"], before)
            for _ in range(100):
                if s.metric("tokamak_kv_blocks_used") == 0:
                    break
                time.sleep(0.05)
            self.assertEqual(s.metric("tokamak_kv_blocks_used"), 0)


class Flags(unittest.TestCase):
    def test_wrong_flags_end_with_2_and_say_why(self):
        for flags, words in ((["--scheduler", "magic"], "fcfs"), (["--kv-policy", "x"], "max-utilization"), (["--kv-dtype", "int3"], "f16"),
                             (["--kv-blocks", "4", "--kv-cache-memory", "1M"], "not both"), (["--kv-cache-memory", "10"], "one block"),
                             (["--kv-cache-memory", "0.5K"], "a KV cache of 512 bytes"), (["--kv-cache-memory", "-1"], "-1 is not a size"),
                             (["--model-memory", "3 parsecs"], "3 parsecs is not a size"), (["--api-key", ""], "--api-key is empty"),
                             (["--served-model-name", ""], "--served-model-name is empty"),
                             ([LLAMA], "two models have the name 'llama'"), (["--keep", "4"], "--keep requires --context-shift"),
                             (["--batch-concurrency", "4"], "--batch-concurrency requires --batch-dir"),
                             (["--metrics-compat", "x"], "vllm"), (["--max-queue", "0"], "--max-queue")):
            done = subprocess.run([BINARY, "serve", LLAMA, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, (flags, done.stderr))
            self.assertIn(words, done.stderr + done.stdout, flags)

    def test_ledger_kv_memory_and_what_never_fits(self):
        with Serve(LLAMA, "--kv-cache-memory", "64K", "--metrics-compat", "vllm") as s:
            self.assertRegex(s.output, r"KV +\d+\.\d MiB +\d+ blocks of \d+ tokens")
            for kind in ("weights", "arena", "total", "resident"):
                self.assertIn(kind, s.output)
            kv = re.search(r'tokamak_memory_bytes\{.*kind="kv"\} (\d+)', s.get("/metrics")).group(1)
            self.assertTrue(0 < int(kv) <= 65536, kv)
            self.assertEqual(s.metric("vllm:num_requests_running"), 0)
        with Serve(LLAMA, "--kv-blocks", "2") as s:
            self.assertIn("2 blocks of 16 tokens", s.output)
            status, _, body = s.post("/v1/completions", prompt="hello", max_tokens=60, ignore_eos=True)
            self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"))
            self.assertEqual(s.post("/v1/completions", prompt="hello", max_tokens=4)[0], 200)

    def test_kv_memory_is_what_inspect_says(self):
        """For a model of every family: bytes per token and per sequence from `inspect`, blocks and bytes from the server."""
        models = [p.parent for folder in (TINY, FAMILIES) for p in sorted(folder.glob("*/config.json")) if not p.parent.suffix]
        encoders = ("bert", "nomic", "embeddinggemma")  # these have no KV
        models = [m for m in models if not any(e in m.name for e in encoders) and m.name != "mamba2_grouped"]
        with Serve(*models, "--kv-blocks", "256") as s:  # planes are whole pages, except those of states
            metrics, sections = s.get("/metrics"), re.split(r"^memory of (.+):$", s.output, flags=re.M)
            ledger = dict(zip(sections[1::2], sections[2::2]))
            for model in models:
                done = subprocess.run([BINARY, "inspect", model, "--json"], capture_output=True, text=True, timeout=60)
                facts, name = json.loads(done.stdout), model.name
                states = re.search(r"states of (\d+) sequences", ledger[name])
                want = 256 * 16 * facts["kv_bytes_per_token"]
                want += int(states.group(1)) * facts["state_bytes_per_sequence"] if states else 0
                pages = 2 * 4096 * facts["layers"] if states else 0
                got = re.search(r'tokamak_memory_bytes\{[^}]*"%s"[^}]*kind="kv"\} (\d+)' % re.escape(name), metrics)
                if facts["head_dim"] % 16:  # no published model: the cpu backend pads such keys
                    pages = want
                with self.subTest(name):
                    self.assertTrue(want <= int(got.group(1)) <= want + pages, (got.group(1), want))

    def test_context_shift(self):
        common = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        with Serve(LLAMA, "--context", "48") as s:
            prompt = s.post("/tokenize", prompt="the house on the hill")[2]["tokens"]
            room = 48 - len(prompt)
            self.assertEqual(s.post("/v1/completions", prompt=prompt, max_tokens=room + 1, **common)[0], 400)
            # What a shift does, step by step: fill the context, drop half of the tokens after the kept ones, go on.
            context, expected, keep = prompt[:], [], 3
            while len(expected) < 150:
                count = min(48 - len(context), 150 - len(expected))
                ids = s.post("/v1/completions", prompt=context, max_tokens=count, **common)[2]["choices"][0]["token_ids"]
                expected += ids
                context = (context + ids)[:keep] + (context + ids)[keep + (len(context) + len(ids) - keep) // 2:]
        with Serve(LLAMA, "--context", "48", "--context-shift", "--keep", "3") as s:
            status, _, body = s.post("/v1/completions", prompt=prompt, max_tokens=150, **common)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["token_ids"], expected)
            self.assertEqual((body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]), ("length", 150))
            shifts = s.metric("tokamak_context_shifts_total")
            self.assertGreaterEqual(shifts, 5)
            self.assertGreater(s.metric("tokamak_context_shift_tokens_total"), shifts)
            # In a stream, and beside others.
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                streams = list(pool.map(lambda _: self.stream(s, prompt=prompt, max_tokens=150, **common), range(3)))
            for chunks in streams:
                self.assertEqual([i for c in chunks for i in c["choices"][0].get("token_ids") or []], expected)
            # As with llama.cpp: the field wins, and an answer without a limit goes on until its client leaves.
            fields = dict(prompt=prompt, n_predict=100, temperature=0, ignore_eos=True)
            answers = {keep: s.post("/completion", n_keep=keep, **fields)[2] for keep in (3, -1)}
            self.assertNotEqual(answers[3]["content"], answers[-1]["content"])
            self.assertEqual([(a["truncated"], a["tokens_predicted"]) for a in answers.values()], [(True, 100)] * 2)
            answer = s.post("/completion", prompt=prompt, n_predict=2)[2]
            self.assertEqual(answer["truncated"], len(prompt) + answer["tokens_predicted"] >= 48, answer)
            self.assertGreater(len(self.stream(s, most=200, prompt=prompt, max_tokens=-1, **common)), 150)
            self.assertEqual(s.post("/v1/completions", prompt=[5] * 48, max_tokens=1)[0], 400)  # prompts must fit
            end = time.monotonic() + 30
            while s.metric("tokamak_kv_blocks_used") + s.metric("tokamak_requests_running") and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(s.metric("tokamak_kv_blocks_used"), 0)

    def stream(self, s, most=10 ** 9, **body):
        """The chunks of a streamed completion; the client leaves after `most`."""
        request = urllib.request.Request(s.url + "/v1/completions", json.dumps({**body, "stream": True}).encode(), {"content-type": "application/json"})
        chunks = []
        with urllib.request.urlopen(request, timeout=60) as r:
            for line in r:
                if line.startswith(b"data: {"):
                    chunks.append(json.loads(line[6:]))
                if len(chunks) >= most:
                    break
        return chunks

    def test_kv_types(self):
        sizes, texts = {}, {}
        for kind in ("f32", "f16", "int8"):
            with Serve(LLAMA, "--kv-dtype", kind, "--kv-blocks", "64") as s:
                sizes[kind] = int(re.search(r'tokamak_memory_bytes\{.*kind="kv"\} (\d+)', s.get("/metrics")).group(1))
                ask = lambda i: s.post("/v1/completions", prompt=f"house {i}", max_tokens=20, temperature=0, ignore_eos=True)[2]["choices"][0]["text"]
                alone = [ask(i) for i in range(6)]
                with concurrent.futures.ThreadPoolExecutor(6) as pool:  # concurrently, from cached prefixes
                    self.assertEqual(list(pool.map(ask, range(6))), alone)
                texts[kind] = alone
        self.assertTrue(sizes["f32"] > sizes["f16"] > sizes["int8"] > 0, sizes)
        self.assertEqual(texts["f32"][0][:1], texts["int8"][0][:1])

    def test_beam_search(self):
        with Serve(LLAMA, "--kv-blocks", "64") as s:
            ask = lambda **more: s.post("/v1/completions", prompt="the house", max_tokens=12, ignore_eos=True, use_beam_search=True, **more)
            status, _, body = ask(n=3, best_of=4, logprobs=0, return_token_ids=True)
            self.assertEqual(status, 200, body)
            scores = [sum(c["logprobs"]["token_logprobs"]) for c in body["choices"]]
            self.assertEqual(scores, sorted(scores, reverse=True))
            self.assertEqual(len({tuple(c["token_ids"]) for c in body["choices"]}), 3)
            self.assertEqual(body["usage"]["completion_tokens"], 36)
            greedy = s.post("/v1/completions", prompt="the house", max_tokens=12, ignore_eos=True, temperature=0, logprobs=0)[2]["choices"][0]
            self.assertGreaterEqual(scores[0], sum(greedy["logprobs"]["token_logprobs"]) - 1e-4)
            self.assertEqual(ask(best_of=1)[2]["choices"][0]["text"], greedy["text"])  # one beam is greedy
            for more, param in (({"stop": "x"}, "stop"), ({"logprobs": 2}, "logprobs"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
                                ({"n": 3, "best_of": 2}, "best_of")):
                status, _, body = ask(**more)
                self.assertEqual((status, body["error"]["param"]), (400, param), body)
            self.assertEqual(ask(n=60)[0], 400)  # all beams together do not fit

    def test_full_queue_is_429_and_every_other_request_completes(self):
        with Serve(LLAMA, "--max-queue", "2", "--max-num-seqs", "1", "--kv-policy", "guaranteed-no-evict", "--threads", "1") as s:
            ask = lambda i: s.post("/v1/completions", prompt=f"request {i}", max_tokens=30, ignore_eos=True)
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                answers = list(pool.map(ask, range(12)))
            self.assertEqual({a[0] for a in answers} - {200, 429}, set())
            self.assertGreaterEqual(sum(a[0] == 200 for a in answers), 2)  # if all arrive before the first one starts
            for status, headers, body in answers:
                if status == 429:
                    self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                else:
                    self.assertEqual(body["usage"]["completion_tokens"], 30)

    def test_prefix_cache_and_its_switch(self):
        prompt = [5 + i for i in range(40)]
        cached = {}
        for flags in ((), ("--no-prefix-cache",)):
            with Serve(LLAMA, "--scheduler", "cache", *flags) as s:
                answers = [s.post("/v1/completions", prompt=prompt, max_tokens=4, temperature=0)[2] for _ in range(2)]
                self.assertEqual(answers[0]["choices"][0]["text"], answers[1]["choices"][0]["text"])
                cached[flags] = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(s.metric("tokamak_prefix_hit_tokens_total"), cached[flags])
        self.assertGreater(cached[()], 0)
        self.assertEqual(cached[("--no-prefix-cache",)], 0)

    def test_deadline(self):
        with Serve(LLAMA, "--request-timeout", "0.001", "--threads", "1") as s:
            status, _, body = s.post("/v1/completions", prompt="x", max_tokens=40, n=100, ignore_eos=True)
            self.assertEqual((status, body["error"]["code"]), (504, "deadline_exceeded"))

    def test_several_models(self):
        other = TINY / "qwen3.gguf"
        with Serve(LLAMA, other, "--served-model-name", "one", "two") as s:
            self.assertEqual([m["id"] for m in json.loads(s.get("/v1/models"))["data"]], ["one", "two"])
            for name in ("one", "two"):
                status, _, body = s.post("/v1/completions", model=name, prompt="hello", max_tokens=3, ignore_eos=True)
                self.assertEqual((status, body["model"]), (200, name))
            self.assertEqual(s.post("/v1/completions", model="three", prompt="x")[0], 404)
            self.assertIn('model_name="two"', s.get("/metrics"))

    def test_defaults_of_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model"
            shutil.copytree(TINY / "llama", copy)
            (copy / "generation_config.json").write_text(json.dumps({"top_k": 1, "temperature": "x", "top_p": 7}))
            with Serve(copy) as s:
                texts = {s.post("/v1/completions", prompt="hello", max_tokens=8, ignore_eos=True, **more)[2]["choices"][0]["text"]
                         for more in ({}, {"seed": 5}, {"temperature": 0}, {"seed": 6})}
                self.assertEqual(len(texts), 1)  # top_k 1 is greedy, regardless of the seed
                different = {s.post("/v1/completions", prompt="hello", max_tokens=8, ignore_eos=True, seed=i, top_k=0)[2]["choices"][0]["text"]
                             for i in range(3)}
                self.assertGreater(len(different), 1)

    def test_a_template_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model"
            shutil.copytree(TINY / "llama", copy)
            config = copy / "tokenizer_config.json"
            known = json.loads(config.read_text()) if config.exists() else {}
            templates = [{"name": name, "template": name + " {{ messages[0].content }}"} for name in ("default", "rag")]
            config.write_text(json.dumps({**known, "chat_template": templates}))
            (pathlib.Path(folder) / "rag").mkdir()  # a folder is not a template
            inline = "{#" + 5000 * "-" + "#}inline {{ messages[0].content }}"  # too long for the name of a file
            for flags, text in (([], "default x"), (["--chat-template", "rag"], "rag x"), (["--chat-template", inline], "inline x"),
                                (["--chat-template", "zephyr"], "<|user|>\nx<|endoftext|>\n<|assistant|>\n")):
                with Serve(copy, *flags, cwd=folder) as s:
                    self.assertEqual(s.post("/apply-template", messages=[{"role": "user", "content": "x"}])[2]["prompt"], text)
            done = subprocess.run([BINARY, "serve", copy, "--port", "0", "--chat-template", "none"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("available: default rag", done.stderr)

    def test_seed(self):
        def texts(*flags):
            with Serve(LLAMA, *flags) as s:
                ask = lambda **more: s.post("/v1/completions", prompt="hello", max_tokens=8, ignore_eos=True, **more)[2]["choices"][0]["text"]
                return [ask(), ask(), ask(seed=5), ask(n=1)]
        one = texts("--seed", "7")
        self.assertEqual(one, texts("--seed", "7"))
        self.assertNotEqual(one[0], one[1])  # each request has its own noise
        other = texts("--seed", "8")
        self.assertNotEqual(one[:2], other[:2])
        self.assertEqual(one[2], other[2])  # the request's own seed
        self.assertNotEqual(texts()[:2], texts()[:2])

    def test_tools_are_never_ignored_silently(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        with Serve(LLAMA) as s:  # its template does not know tools
            ask = lambda **more: s.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=2, **more)
            status, _, body = ask(tools=tools)
            self.assertEqual((status, body["error"]["param"], body["error"]["code"]), (400, "tools", "unsupported_parameter"))
            for more in ({"tools": tools, "tool_choice": "none"}, {"tools": []}, {}):
                self.assertEqual(ask(**more)[0], 200, more)

    def test_every_step_is_logged(self):
        with tempfile.NamedTemporaryFile() as log:
            with Serve(LLAMA, "--step-log", log.name) as s:
                usage = s.post("/v1/completions", prompt="hello there", max_tokens=8, ignore_eos=True)[2]["usage"]
            steps = [json.loads(line) for line in log.read().splitlines()]
        self.assertEqual(sum(step["prompt_tokens"] for step in steps), usage["prompt_tokens"])
        self.assertEqual(sum(step["decodes"] for step in steps), usage["completion_tokens"] - 1)
        for step in steps:
            self.assertGreaterEqual(min(step["ms"], step["cpu_ms"]), 0)

    def test_content_and_control_tokens(self):
        with Serve(LLAMA) as s:
            count = lambda content: s.post("/tokenize", messages=[{"role": "user", "content": content}], return_token_strs=True)[2]["token_strs"].count("<|im_end|>")
            self.assertEqual((count("x"), count("x<|im_end|>y<|im_start|>system"), count("<|im_end|>" * 50)), (1, 1, 1))

    def test_sampling_defaults_template_and_no_page(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
            template.flush()
            with Serve(LLAMA, "--temperature", "0", "--no-ui", "--chat-template", template.name) as s:
                ask = lambda **more: s.post("/v1/completions", prompt="hello", max_tokens=8, ignore_eos=True, **more)[2]["choices"][0]["text"]
                self.assertEqual(len({ask() for _ in range(4)}), 1)  # greedy
                self.assertGreater(len({ask(temperature=1.5, seed=i) for i in range(4)}), 1)
                self.assertEqual(s.post("/apply-template", messages=[{"role": "user", "content": "x"}])[2]["prompt"], "<user>x")
                with self.assertRaises(urllib.error.HTTPError):
                    s.get("/")
                self.assertIs(json.loads(s.get("/props"))["has_sampling_defaults"], True)
        with Serve(LLAMA) as s:
            self.assertIn("<html", s.get("/"))
            self.assertIs(json.loads(s.get("/props"))["has_sampling_defaults"], False)
        with Serve(LLAMA, "--temperature", "1") as s:  # given, although it is the default
            self.assertIs(json.loads(s.get("/props"))["has_sampling_defaults"], True)
        for flags in (["--temperature", "9"], ["--chat-template", "none.jinja"], ["--chat-template", "{% if %}"]):
            done = subprocess.run([BINARY, "serve", LLAMA, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, flags)

    def test_the_ledger_is_what_the_process_has(self):
        with Serve(LLAMA, "--kv-dtype", "f32", "--kv-blocks", "1024") as s:
            prompts = [[3 + (7 * i + j * (1 + i // 60)) % 60 for j in range(60)] for i in range(400)]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:  # until every block was used
                self.assertEqual({a[0] for a in pool.map(lambda p: s.post("/v1/completions", prompt=p, max_tokens=2), prompts)}, {200})
            self.assertEqual(s.post("/v1/completions", prompt="x", max_tokens=8, n=64, ignore_eos=True)[0], 200)  # every row
            self.assertGreater(s.metric("tokamak_kv_blocks_evicted_total"), 0)
            counted = s.metric("tokamak_memory_bytes") + s.metric("tokamak_process_memory_bytes")
            resident = s.metric("process_resident_memory_bytes")
            self.assertLess(abs(counted - resident), 4 << 20)  # of 24 MiB, half of which are program and heap
            self.assertRegex(s.output, r"program +\d+\.\d MiB")

    def test_clients_that_leave_all_at_once(self):
        with Serve(LLAMA, "--threads", "1", "--kv-blocks", "256", "--context", "1000") as s:
            port = int(s.url.rsplit(":", 1)[1])
            body = json.dumps({"prompt": [3 + i % 90 for i in range(197)], "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
            for c in clients:
                c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            for c in clients[:5]:
                self.assertIn(b"200 OK", c.recv(100))
            end = time.monotonic() + 30
            while s.metric("tokamak_kv_blocks_used") == 0 and time.monotonic() < end:
                time.sleep(0.01)  # headers come before the first step
            self.assertGreater(s.metric("tokamak_api_requests_running"), 0)
            for c in clients:
                c.close()
            names = ("tokamak_kv_blocks_used", "tokamak_requests_running", "tokamak_requests_waiting", "tokamak_api_requests_running")
            while any(s.metric(n) for n in names) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual([s.metric(n) for n in names], [0, 0, 0, 0])
            self.assertEqual(s.post("/v1/completions", prompt="x", max_tokens=2)[0], 200)

    def test_errors_name_the_parameter(self):
        with Serve(LLAMA, "--max-queue", "2", "--kv-blocks", "2") as s:
            status, _, body = s.post("/v1/completions", prompt="x", n=3, max_tokens=2)
            self.assertEqual((status, body["error"]["param"], body["error"]["code"]), (400, "n", "invalid_value"))
            status, _, body = s.post("/v1/completions", prompt="hello", max_tokens=60)
            self.assertEqual((status, body["error"]["param"], body["error"]["code"]), (400, "prompt", "context_length_exceeded"))
            status, _, body = s.post("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}], max_tokens=60)
            self.assertEqual((status, body["error"]["param"]), (400, "messages"))

    def test_a_context_beyond_the_models_is_a_warning(self):
        with Serve(LLAMA, "--max-model-len", "4096", "--kv-blocks", "8") as s:
            self.assertRegex(s.output, r"a context of 4096 tokens is longer than the \d+ that the model was trained for")
        with Serve(LLAMA, "--max-model-len", "4096", "--kv-blocks", "8", "--log-format", "json") as s:
            warnings = [json.loads(line) for line in s.output.splitlines() if line.startswith("{")]
            self.assertEqual([w["level"] for w in warnings if "trained for" in w["message"]], ["warn"])
            self.assertRegex(warnings[0]["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        with Serve(LLAMA, "--max-model-len", "64", "--kv-blocks", "8") as s:
            self.assertNotIn("trained for", s.output)

    def test_the_default_kv_cache_is_the_one_in_the_help(self):
        text = " ".join(subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True).stdout.split())
        least = int(re.search(r"two sequences of full length, but at least (\d+) tokens", text).group(1))
        with Serve(LLAMA, "--context", "64") as s:
            blocks, size = map(int, re.search(r"(\d+) blocks of (\d+) tokens", s.output).groups())
            self.assertEqual(blocks * size, least)


if __name__ == "__main__":
    unittest.main(verbosity=2)
