"""Probes, metrics, the OpenAPI document, rejections with Retry-After."""
import concurrent.futures
import json
import pathlib
import re
import tempfile
import threading
import time
import unittest

from harness import Server, chat, chunks, encode, events, read_response

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse_metrics(text):
    """{family: (type, [(name, labels, value)])}; strict about the format."""
    families, current = {}, None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, help_text = line[7:].split(" ", 1)
            assert help_text and name not in families, line
            families[name] = [None, []]
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert families[name][0] is None and kind in ("counter", "gauge", "histogram"), line
            families[name][0] = kind
            current = name
        else:
            name, labels, value = SAMPLE.match(line).groups()
            labels = labels or ""
            assert LABEL.sub("", labels) == "", line
            base = re.sub(r"_(bucket|sum|count)$", "", name) if families[current][0] == "histogram" else name
            assert base == current, f"{name} stands under {current}"
            families[current][1].append((name, dict(LABEL.findall(labels)), float(value)))
    return families


def value(families, name, **labels):
    found = [v for n, l, v in families[name][1] if n == name and all(l.get(k) == x for k, x in labels.items())]
    assert len(found) == 1, (name, labels, found)
    return found[0]


class Routes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(vllm=1, retry_after=7, request_timeout_ms=400)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def metrics(self):
        status, headers, body = self.server.request("GET", "/metrics")
        self.assertEqual((status, headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        return parse_metrics(body.decode())

    def test_probes(self):
        for path, word in (("/health", "ok"), ("/ping", "ok"), ("/ready", "ready")):
            self.assertEqual(self.server.json("GET", path), (200, {"status": word}))

    def test_metrics_format_and_numbers(self):
        before = self.metrics()
        for _ in range(3):
            self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "[cached 4][say abcde]"})[0], 200)
        after = self.metrics()
        self.assertEqual(self.metrics().keys(), after.keys())  # reading does not reset anything
        grown = lambda name, **labels: value(after, name, **labels) - value(before, name, **labels)
        self.assertEqual(grown("tokamak_generation_tokens_total"), 15)
        self.assertEqual(grown("tokamak_prefix_hit_tokens_total"), 12)
        self.assertEqual(grown("tokamak_answers_finished_total", reason="stop"), 3)
        self.assertEqual(grown("tokamak_api_requests_total", result="finished"), 3)
        self.assertEqual(value(after, "tokamak_memory_bytes", kind="weights"), 1000)
        self.assertGreater(value(after, "process_resident_memory_bytes"), 1e6)
        for family in ("tokamak_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"):
            buckets = [(l["le"], v) for n, l, v in after[family][1] if n.endswith("_bucket")]
            self.assertEqual(buckets[-1][0], "+Inf")
            edges = [float(le) for le, _ in buckets]
            self.assertEqual(edges, sorted(set(edges)))
            self.assertLessEqual(edges[1], 0.001)  # fine enough for fast decoding
            self.assertEqual([v for _, v in buckets], sorted(v for _, v in buckets))
            count = [v for n, _, v in after[family][1] if n == family + "_count"]
            self.assertEqual(count, [buckets[-1][1]])
            self.assertEqual(len([1 for n, _, _ in after[family][1] if n == family + "_sum"]), 1)

    def test_no_name_is_both_gauge_and_counter(self):
        """OpenMetrics drops the _total of a counter's name."""
        names = [re.sub("_total$", "", name) for name in self.metrics()]
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_names_that_dashboards_read(self):
        families = self.metrics()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
                     "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total",
                     "request_success_total", "time_to_first_token_seconds", "inter_token_latency_seconds",
                     "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
                     "request_generation_tokens", "request_max_num_generation_tokens", "iteration_tokens_total", "request_inference_time_seconds",
                     "request_params_max_tokens", "request_params_n", "cache_config_info"):
            self.assertIn("vllm:" + name, families)
            self.assertEqual(families["vllm:" + name][1][0][1]["model_name"], "fake")
        plain = Server()
        try:
            self.assertNotIn("vllm:", plain.request("GET", "/metrics")[2].decode())
        finally:
            plain.stop()

    def test_the_dashboard_asks_for_what_is_there(self):
        text = (pathlib.Path(__file__).parents[2] / "deploy" / "grafana.json").read_text()
        json.loads(text)
        exported = {name for _, (_, samples) in self.metrics().items() for name, _, _ in samples}
        asked = set(re.findall(r"(?:tokamak|process)_[a-z0-9_]+", text))
        self.assertGreater(len(asked), 15)
        self.assertEqual(asked - exported, set())

    def test_full_queue_and_what_never_fits(self):
        for prompt in ("[full]", "[busy]"):  # rejected at once, and after a while
            status, headers, body = self.server.request("POST", "/v1/completions", {"prompt": prompt})
            self.assertEqual((status, headers["retry-after"]), (429, "7"))
            error = json.loads(body)["error"]
            self.assertEqual((error["type"], error["code"]), ("rate_limit_error", "queue_full"))
        status, headers, body = self.server.request("POST", "/v1/completions", {"prompt": "[full]", "stream": True})
        self.assertEqual((status, headers["retry-after"]), (429, "7"))  # before the stream begins
        status, data = self.server.json("POST", "/v1/completions", {"prompt": "[never]"})
        self.assertEqual((status, data["error"]["type"], data["error"]["code"]),
                         (400, "invalid_request_error", "context_length_exceeded"))

    def test_deadline(self):
        start = time.monotonic()
        status, data = self.server.json("POST", "/v1/completions", {"prompt": "[hold]"})
        self.assertEqual((status, data["error"]["type"], data["error"]["code"]), (504, "timeout_error", "deadline_exceeded"))
        self.assertGreater(time.monotonic() - start, 0.3)
        body = self.server.request("POST", "/v1/completions", {"prompt": "[slow 50]", "max_tokens": 100, "stream": True})[2]
        data = events(body)
        self.assertEqual(data[-1], b"[DONE]")
        self.assertEqual(json.loads(data[-2])["error"]["code"], "deadline_exceeded")
        self.assertTrue(json.loads(data[0])["choices"][0]["text"])

    def test_samplers(self):
        ok = {"typical_p": 0.5, "dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
              "dry_sequence_breakers": ["\n"], "xtc_probability": 0.5, "xtc_threshold": 0.2, "samplers": ["top_k", "temperature"]}
        self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "[say x]", **ok})[0], 200)
        for bad in ({"typical_p": 2}, {"dry_base": "x"}, {"dry_allowed_length": 0}, {"xtc_probability": -1}, {"samplers": ["magic"]},
                    {"samplers": ["top_k", "top_k"]}, {"samplers": "top_k"}, {"dry_sequence_breakers": [1]}):
            status, data = self.server.json("POST", "/v1/completions", {"prompt": "[say x]", **bad})
            self.assertEqual(status, 400, bad)
            self.assertTrue(data["error"]["param"].startswith(list(bad)[0]))


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(env={"FAKE_BATCH_DIR": cls.folder.name})
        cls.document = cls.server.json("GET", "/openapi.json")[1]
        cls.schemas = cls.document["components"]["schemas"]

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def test_lists_every_route_and_no_other(self):
        listed = {method.upper() + " " + re.sub(r"{\w+}", "{...}", path) for path, item in self.document["paths"].items()
                  for method in item if method != "parameters"}
        routes = {r for r in self.server.json("GET", "/fake/routes")[1]
                  if not re.match(r"GET (/fake|/$|/web/|/favicon|/index|/v1/health)", r)}
        short = {r for r in routes if r.replace(" /", " /v1/", 1) in routes}  # the same without /v1
        self.assertEqual(len(short), 20)
        self.assertEqual(listed, routes - short)
        self.assertEqual(self.document["info"]["version"], "0.1.0")

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def test_limits_are_those_of_the_server(self):
        """Numeric limits: the bounds are accepted, values outside are rejected with the parameter's name."""
        bases = {"ChatRequest": ("/v1/chat/completions", chat("[say x]", logprobs=True)),
                 "CompletionRequest": ("/v1/completions", {"prompt": "[say x]", "echo": True})}
        tried = 0
        for name, (path, base) in bases.items():
            for field, schema in self.schemas[name]["properties"].items():
                if "minimum" not in schema or "maximum" not in schema:
                    continue
                low, high = schema["minimum"], schema["maximum"]
                for x in (low, high):
                    if field in ("max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "penalty_alpha") and x == high:
                        continue  # exceeds this model's context, slow, only for beams, or needs top_k
                    status, data = self.server.json("POST", path, {**base, field: x})
                    self.assertEqual(status, 200, (field, x, data))
                for x in (low - 1, high + 1, "text", [], {}):
                    status, data = self.server.json("POST", path, {**base, field: x})
                    self.assertEqual((status, data["error"]["param"]), (400, field), (field, x, data))
                    tried += 1
                self.assertEqual(self.server.request("POST", path, {**base, field: None})[0], 200, field)
        self.assertGreater(tried, 150)

    def test_lists_every_field_that_is_read_and_no_other(self):
        known = self.server.json("GET", "/fake/fields")[1]
        for name, kind in (("ChatRequest", "chat"), ("CompletionRequest", "completion")):
            self.assertEqual(set(self.schemas[name]["properties"]), set(known[kind]) | {"model"})
        for path in ("/tokenize", "/apply-template"):
            schema = self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            self.assertLessEqual(set(known["template"]), set(self.resolve(schema)["properties"]), path)

    def test_streams_have_a_documented_type(self):
        bodies = [("chat/completions", {"messages": []}), ("completions", {"prompt": "x"}), ("responses", {"input": "x"}), ("messages", {"max_tokens": 1}), ("rag/query", {"query": "x"})]
        cases = [(f"/v1/{path}", body) for path, body in bodies] + [("/completion", {"prompt": "x"}), ("/api/chat", {}), ("/api/generate", {"prompt": "x"}), ("/v2/models/{name}/generate_stream", {"text_input": "x"})]
        for path, body in cases:
            body = {**body, "stream": True, **({"messages": chat("x")["messages"]} if path.endswith(("chat", "messages", "chat/completions")) else {})}
            if path.startswith("/v2/"):
                del body["stream"]
            status, headers, _ = self.server.request("POST", path.replace("{name}", "fake"), {**body, "model": "fake"})
            documented = self.document["paths"][path]["post"]["responses"]["200"]["content"]
            self.assertEqual((status, headers["content-type"].split(";")[0] in documented), (200, True), path)

    def test_lengths_are_those_of_the_server(self):
        """maxLength counts characters, maxItems members."""
        tried = 0
        for name, path, base in (("ChatRequest", "/v1/chat/completions", chat("[say x]")), ("CompletionRequest", "/v1/completions", {"prompt": "[say x]"})):
            for field, schema in self.schemas[name]["properties"].items():
                for inner in (schema, *schema.get("anyOf", [])):
                    if field in ("prompt", "messages") or not {"maxLength", "maxItems"} & set(inner):
                        continue
                    samples = {"request_id": "x", "stop_token_ids": 1, "samplers": None}
                    if "maxItems" in inner and samples.get(field, "") is not None:
                        make = lambda n: [samples.get(field, "x")] * n
                        low, high = inner["maxItems"], inner["maxItems"] + 1
                    elif "maxLength" in inner:
                        make = lambda n: samples.get(field, "\u2603") * n
                        low, high = inner["maxLength"], inner["maxLength"] + 1
                    else:
                        continue
                    self.assertEqual(self.server.json("POST", path, {**base, field: make(low)})[0], 200, (field, low))
                    status, data = self.server.json("POST", path, {**base, field: make(high)})
                    self.assertEqual((status, data["error"]["param"]), (400, field), high)
                    tried += 1
        self.assertGreaterEqual(tried, 12)

    def test_required_and_types(self):
        for name, path in (("ChatRequest", "/v1/chat/completions"), ("CompletionRequest", "/v1/completions")):
            base = chat("[say x]") if "chat" in path else {"prompt": "[say x]"}
            for field in self.schemas[name]["required"]:
                less = {k: v for k, v in base.items() if k != field}
                self.assertEqual(self.server.json("POST", path, less)[1]["error"]["param"], field)
            for field, schema in self.schemas[name]["properties"].items():
                kinds = schema.get("type", [])
                if "boolean" in kinds:
                    self.assertEqual(self.server.request("POST", path, {**base, field: False})[0], 200, field)
                if "boolean" in kinds or "string" in kinds or "integer" in kinds or "number" in kinds:
                    self.assertEqual(self.server.request("POST", path, {**base, field: [1]})[0], 400, field)

    def test_answers_have_what_is_promised(self):
        def check(schema, data, where):
            schema = self.resolve(schema)
            for key in schema.get("required", []):
                self.assertIn(key, data, where)
            for key, inner in schema.get("properties", {}).items():
                if isinstance(data, dict) and isinstance(data.get(key), dict):
                    check(inner, data[key], f"{where}.{key}")
            if isinstance(data, dict) and schema.get("properties"):
                unknown = set(data) - set(schema["properties"])
                self.assertFalse(unknown, where)
        check(self.schemas["ChatAnswer"], self.server.json("POST", "/v1/chat/completions", chat("[say x]"))[1], "chat")
        check(self.schemas["CompletionAnswer"], self.server.json("POST", "/v1/completions", {"prompt": "[say x]"})[1], "completion")
        check(self.schemas["Error"], self.server.json("POST", "/v1/completions", {})[1], "error")
        check(self.schemas["Model"], self.server.json("GET", "/v1/models/fake")[1], "model")


class Draining(unittest.TestCase):
    def test_probes_tell_and_work_is_refused(self):
        server = Server(drain_ms=100_000)
        answer = []
        thread = threading.Thread(target=lambda: answer.append(server.request(
            "POST", "/v1/completions", {"prompt": "[slow 100]", "max_tokens": 40, "stream": True})))
        thread.start()
        server.wait_engine(lambda e: e["submitted"] == 1)
        server.process.terminate()
        end = time.monotonic() + 60
        while server.json("GET", "/ready")[0] != 503 and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(server.json("GET", "/ready"), (503, {"status": "draining"}))
        self.assertEqual(server.json("GET", "/health"), (200, {"status": "ok"}))
        self.assertEqual(value(parse_metrics(server.request("GET", "/metrics")[2].decode()), "tokamak_requests_running"), 1)
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "x"})
        self.assertEqual((status, headers["retry-after"]), (503, "5"))
        with server.connect() as silent:  # a connection without a request does not delay the shutdown
            thread.join()
            server.stop(told=True, timeout=60)  # less than the time to drain
            self.assertEqual(silent.recv(1), b"")
        self.assertEqual(len(chunks(answer[0][2])), 40)


class Keys(unittest.TestCase):
    def test_keys_guard_all_but_probes_and_are_the_salt(self):
        server = Server(env={"FAKE_API_KEY": "secret"})
        try:
            probes = ("/health", "/v1/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready")
            for path in probes:
                self.assertEqual(server.request("GET", path)[0], 200)
            for route in server.json("GET", "/fake/routes")[1]:
                method, path = route.replace("{...}", "x").split(" ")
                if path in (*probes, "/", "/index.html") or path.startswith(("/web/", "/fake", "/favicon")):
                    continue
                self.assertEqual(server.request(method, path, {} if method == "POST" else None)[0], 401, route)
            good = {"Authorization": "Bearer secret"}
            self.assertEqual(server.request("GET", "/metrics", headers=good)[0], 200)
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "[say x]"}, good)[0], 200)
            self.assertEqual(server.engine()["cache_salt"], "secret")
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "[say x]", "cache_salt": "mine"}, good)[0], 200)
            self.assertEqual(server.engine()["cache_salt"], "secret\nmine")
            self.assertEqual(server.engine()["tenant"], "secret")
        finally:
            server.stop()

    def test_keys_from_a_file_have_limits(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "keys"
            path.write_text("# comment\n\nfree\none running=1\ntwo per-minute=2\n")
            server = Server(env={"FAKE_KEY_FILE": str(path)})

            def ask(key, prompt="[say x]"):
                return server.request("POST", "/v1/completions", {"prompt": prompt}, {"Authorization": f"Bearer {key}"})
            try:
                self.assertEqual([ask(key)[0] for key in ("free", "one", "none", "# comment")], [200, 200, 401, 401])
                held = threading.Thread(target=ask, args=("one", "[slow 150][say " + "x" * 10 + "]"))
                held.start()
                server.wait_engine(lambda e: e["running"] == 1)
                status, headers, data = ask("one")
                self.assertEqual((status, json.loads(data)["error"]["code"]), (429, "rate_limit_exceeded"))
                self.assertEqual(ask("free")[0], 200)
                held.join()
                server.wait_engine(lambda e: e["generations"] == 0)
                self.assertEqual(ask("one")[0], 200)
                # Requests that are refused do not count.
                self.assertEqual([ask("two", prompt)[0] for prompt in (1, "", None, [], "[say x]", 1, "[say x]", "[say x]")],
                                 [400, 400, 400, 400, 200, 400, 200, 429])
                self.assertLessEqual(int(ask("two")[1]["retry-after"]), 60)
            finally:
                server.stop()
            for text in ("", "key limit=3", "key running=0", "key running=x"):
                path.write_text(text)
                with self.assertRaises(RuntimeError):
                    Server(env={"FAKE_KEY_FILE": str(path)})


class Operators(unittest.TestCase):
    def test_open_metrics(self):
        server = Server(vllm=1)
        try:
            server.json("POST", "/v1/completions", {"prompt": "[say x]"})
            status, headers, data = server.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
            self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "application/openmetrics-text"))
            lines = data.decode().splitlines()
            self.assertEqual((lines[-1], lines.count("# EOF"), lines.count("")), ("# EOF", 1, 0))
            kinds, seen = {}, set()
            for line in lines[:-1]:
                if line.startswith("# TYPE "):
                    name, kind = line.split()[2:]
                    self.assertNotIn(name, kinds)  # all samples of a family are together
                    kinds[name] = kind
                elif not line.startswith("#"):
                    sample = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line).group()
                    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[kind]
                    self.assertIn(sample, [name + end for end in ends])
                    seen.add(name)
            self.assertFalse([name for name, kind in kinds.items() if kind == "counter" and name.endswith("_total")])
            self.assertEqual(kinds["tokamak_generation_tokens"], "counter")
            self.assertGreater(len(seen), 40)
            plain = server.request("GET", "/metrics")
            self.assertIn("text/plain", plain[1]["content-type"])
            self.assertNotIn(b"# EOF", plain[2])
        finally:
            server.stop()

    def test_abort(self):
        server = Server(env={"FAKE_API_KEY": "secret", "FAKE_ADMIN_KEY": "root"})
        answers = {}

        def ask(name, stream, key="secret"):
            answers[name] = server.request("POST", "/v1/completions", {"prompt": "[slow 30]", "max_tokens": 2000, "stream": stream},
                                           {"Authorization": f"Bearer {key}", "X-Request-Id": name})

        def abort(key, **body):
            status, data = server.json("POST", "/abort_request", body, {"Authorization": f"Bearer {key}"})
            return data["aborted"] if status == 200 else status
        try:
            threads = [threading.Thread(target=ask, args=(name, stream)) for name, stream in (("a", True), ("b", False), ("c", True))]
            for thread in threads:
                thread.start()
            server.wait_engine(lambda e: e["running"] == 3)
            self.assertEqual([abort("secret", request_ids=["none"]), abort("secret"), abort("none", abort_all=True)], [0, 400, 401])
            self.assertEqual(abort("secret", rid="a"), 1)
            threads[0].join()
            server.wait_engine(lambda e: e["running"] == 2)
            self.assertIn(b"request_aborted", answers["a"][2])
            self.assertTrue(answers["a"][2].rstrip().endswith(b"data: [DONE]"))
            self.assertEqual(abort("root", abort_all=True), 2)
            for thread in threads:
                thread.join()
            self.assertEqual((answers["b"][0], json.loads(answers["b"][2])["error"]["code"]), (400, "request_aborted"))
            server.wait_engine(lambda e: e["running"] == 0)
            self.assertEqual(abort("root", abort_all=True), 0)
        finally:
            server.stop()

    def test_reset_of_the_cache(self):
        server = Server(env={"FAKE_API_KEY": "secret", "FAKE_ADMIN_KEY": "root"})

        def salt(**body):
            self.assertEqual(server.json("POST", "/v1/completions", {"prompt": "[say x]", **body}, {"Authorization": "Bearer secret"})[0], 200)
            return server.engine()["cache_salt"]

        def reset(key):
            return server.json("POST", "/reset_prefix_cache", {}, {"Authorization": f"Bearer {key}"})[0]
        try:
            salts = [salt(), salt(cache_salt="mine")]
            self.assertEqual((reset("secret"), reset("root")), (401, 200))
            salts += [salt(), salt(cache_salt="mine")]
            self.assertEqual(reset("root"), 200)
            salts += [salt(), salt(cache_salt="mine")]
            self.assertEqual(len(set(salts)), 6)
        finally:
            server.stop()


class Prefixes(unittest.TestCase):
    def test_texts_are_shown_to_their_key_and_the_administrator(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "keys"
            path.write_text("first-key\nsecond-key\n")
            server = Server(env={"FAKE_KEY_FILE": str(path), "FAKE_ADMIN_KEY": "boss"})
            names = set()
            for key, texts in (("first-key", ["You are helpful and always short", "A first question", "Another question, which is long."]), ("second-key", ["A secret prompt."]),
                               ("boss", ["You are helpful and always short", "A first question", "Another question, which is long.", "A secret prompt."])):
                status, tree = server.json("GET", "/prefix_tree/fake", headers={"Authorization": f"Bearer {key}"})
                self.assertEqual((status, tree["unit"], tree["left_out"]), (200, 16, 0))
                self.assertEqual([n["text"] for n in tree["nodes"] if "text" in n], texts)
                self.assertEqual([(n["parent"], n["first"], n["tokens"], n["references"], n["producing"]) for n in tree["nodes"]],
                                 [(None, 0, 0, 0, False), (0, 0, 32, 2, False), (1, 32, 16, 1, False), (1, 32, 32, 1, True), (None, 0, 0, 0, False), (4, 0, 16, 0, False)])
                names.add(tuple(n["hash"] for n in tree["nodes"]))
            self.assertEqual(len(names), 1)  # names are the same for all keys
            self.assertEqual(len(set(*names)), 6)
            self.assertEqual(server.json("GET", "/prefix_tree")[0], 401)
            server.stop()

    def test_one_reader_at_a_time(self):
        """A second reader gets 429 instead of waiting for the engine."""
        server = Server(tree_ms=400)
        for path in ("/prefix_tree", "/timeline/decode"):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda _: server.request("GET", path), range(4)))
            self.assertIn(200, [status for status, _, _ in answers], path)
            refused = [(headers, json.loads(body)) for status, headers, body in answers if status != 200]
            self.assertTrue(refused, path)
            for headers, body in refused:
                self.assertEqual((body["error"]["code"], headers["retry-after"]), ("busy", "1"))
            self.assertEqual(server.request("GET", path)[0], 200)
        server.stop()

    def test_without_keys_no_text_is_shown(self):
        server = Server()
        tree = server.json("GET", "/prefix_tree")[1]
        self.assertEqual((len(tree["nodes"]), [n for n in tree["nodes"] if "text" in n]), (6, []))
        self.assertEqual(server.json("GET", "/prefix_tree/none")[0], 404)
        server.stop()


class Timeline(unittest.TestCase):
    def test_spans_of_each_thread(self):
        server = Server(env={"FAKE_API_KEY": "key"})
        self.assertEqual(server.json("GET", "/timeline/decode")[0], 401)
        own = {"Authorization": "Bearer key"}
        status, trace = server.json("GET", "/timeline/decode/fake", headers=own)
        self.assertEqual((status, trace["model"], trace["function"], trace["tokens"], trace["us"]), (200, "fake", "decode", 1, 100))
        self.assertEqual(trace["calls"][2], {"name": "head", "kernel": "matmul"})
        self.assertEqual([t["busy_us"] for t in trace["threads"]], [90, 40])
        self.assertEqual(trace["threads"][1]["spans"], [[0, 0, 2, 20], [1, 0, 32, 54]])
        self.assertEqual(server.json("GET", "/timeline/step", headers=own)[1]["tokens"], 64)
        for path in ("/timeline/prefill", "/timeline/decode/none"):
            self.assertEqual(server.json("GET", path, headers=own)[0], 404)
        server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
