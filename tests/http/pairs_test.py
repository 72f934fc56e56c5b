"""Pairs of features on a real engine: regardless of other options and concurrent requests, the same prompt gets the
same answer, streams concatenate to it, and usage counts what was sent. One generator covers every pair of feature values."""
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import socket
import tempfile
import threading
import time
import unittest
import urllib.parse

from serve_test import TINY, Serve

# Feature -> values. `pressure` is the server it runs on: with room, or with so few blocks that sequences are preempted.
FEATURES = {
    "stream": (False, True),
    "n": (1, 3),
    "logprobs": (None, 2),
    "stop": (False, True),
    "tools": (None, False, True),  # None: /v1/completions; otherwise chat without and with tools
    "prefix": ("new", "shared"),
    "pressure": (False, True),
    "seed": (None, 7),  # None: greedy
    "beams": (False, True),
    "ids": (False, True),
}
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if tools %}call with <tool_call>{{ tools | length }}</tool_call>\n{% endif %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
OUTPUT = 24


def possible(case):
    """Combinations that the server rejects by design."""
    return not (case["beams"] and (case["stop"] or case["logprobs"]))


def covering_cases(rng):
    """A small set of cases in which every possible pair of values occurs."""
    names = list(FEATURES)
    open_pairs = set()
    for a, b in itertools.combinations(names, 2):
        for x, y in itertools.product(FEATURES[a], FEATURES[b]):
            if {a: x, b: y} != {"beams": True, "stop": True} and {a: x, b: y} != {"logprobs": 2, "beams": True} \
                    and {a: x, b: y} != {"stop": True, "beams": True}:
                open_pairs.add((a, x, b, y))
    cases = []
    while open_pairs:
        best, gain = None, -1
        for _ in range(200):
            case = {name: rng.choice(FEATURES[name]) for name in names}
            if not possible(case):
                continue
            covered = sum((a, case[a], b, case[b]) in open_pairs for a, b in itertools.combinations(names, 2))
            if covered > gain:
                best, gain = case, covered
        cases.append(best)
        open_pairs -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(names, 2)}
    return cases


def words(rng, count):
    return " ".join(rng.choice(("the", "a", "house", "tree", "goes", "sees", "and", "old", "new", "red")) for _ in range(count))


class Case:
    def __init__(self, features, key):
        self.features, self.key = features, key

    def body(self, plain=False, stop=None):
        """The request; plain: without options that must not affect the answer."""
        f = self.features
        rng = random.Random(1 if f["prefix"] == "shared" else 1000 + self.key)
        text = words(rng, 8) + (" " + words(random.Random(self.key), 2) if f["prefix"] == "shared" else "")
        body = {"max_tokens": OUTPUT, "n": f["n"], "ignore_eos": True}
        body |= {"temperature": 0} if f["seed"] is None else {"temperature": 1.0, "seed": f["seed"] + self.key}
        if f["beams"]:
            body |= {"use_beam_search": True, "best_of": 3}
        if f["tools"] is None:
            body["prompt"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
            if f["tools"]:
                body["tools"] = TOOLS
        if stop:
            body["stop"] = stop
        if plain:
            return {**body, "return_token_ids": True}
        if f["stream"]:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if f["logprobs"] is not None:
            body |= {"logprobs": f["logprobs"]} if f["tools"] is None else {"logprobs": True, "top_logprobs": f["logprobs"]}
        if f["ids"]:
            body["return_token_ids"] = True
        return body

    @property
    def path(self):
        return "/v1/completions" if self.features["tools"] is None else "/v1/chat/completions"


def text_of(choice):
    """Of a whole choice or of a chunk."""
    if "text" in choice:
        return choice["text"]
    return (choice.get("message") or choice.get("delta") or {}).get("content") or ""


def logprobs_of(choice):
    scores = choice.get("logprobs")
    if not scores:
        return []
    return scores["token_logprobs"] if "token_logprobs" in scores else [c["logprob"] for c in scores["content"]]


def gather(server, case, body):
    """The answer in canonical form: [(text, finish, logprobs, ids)] by choice, and usage."""
    if not body.get("stream"):
        status, _, data = server.post(case.path, **body)
        assert status == 200, data
        return [(text_of(c), c["finish_reason"], logprobs_of(c), c.get("token_ids")) for c in data["choices"]], data["usage"]
    choices = [["", None, [], []] for _ in range(body["n"])]
    usage = None
    for event in stream(server, case.path, body):
        usage = event.get("usage") or usage
        for c in event["choices"]:
            mine = choices[c["index"]]
            assert mine[1] is None, "text after the end"
            mine[0] += text_of(c)
            mine[1] = c["finish_reason"]
            mine[2] += logprobs_of(c)
            mine[3] += c.get("token_ids") or []
    return [tuple(c) for c in choices], usage


def connect(server):
    address = urllib.parse.urlparse(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def encode(path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def stream(server, path, body):
    import http.client
    address = urllib.parse.urlparse(server.url)
    with contextlib.closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as c:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = c.getresponse()
        assert response.status == 200, response.read()
        for block in response.read().decode().split("\n\n"):
            if block.startswith("data: ") and block != "data: [DONE]":
                event = json.loads(block[6:])
                assert "error" not in event, event
                yield event


class Witnesses:
    """Streams that run alongside everything else; each must always be the same."""

    def __init__(self, server, count):
        self.server, self.seen, self.errors = server, [set() for _ in range(count)], []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.watch, args=(i,)) for i in range(count)]
        for t in self.threads:
            t.start()

    def watch(self, i):
        body = {"prompt": words(random.Random(50 + i), 6), "max_tokens": 90, "ignore_eos": True, "temperature": 1, "seed": i, "stream": True}
        while not self.over.is_set():
            try:
                self.seen[i].add("".join(text_of(e["choices"][0]) for e in stream(self.server, "/v1/completions", body)))
            except Exception as e:  # noqa: BLE001 - reported by the main thread
                self.errors.append(repr(e))
                return

    def check(self, test):
        self.over.set()
        for t in self.threads:
            t.join()
        test.assertEqual(self.errors, [])
        for texts in self.seen:
            test.assertEqual(len(texts), 1, texts)


class Pairs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        folder = pathlib.Path(cls.stack.enter_context(tempfile.TemporaryDirectory())) / "model"
        shutil.copytree(TINY / "llama", folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        cls.room = cls.stack.enter_context(Serve(folder, "--threads", "1", "--context", "256"))
        cls.tight = cls.stack.enter_context(Serve(folder, "--threads", "2", "--context", "256", "--kv-blocks", "24", "--max-num-seqs", "12",
                                                  "--max-num-batched-tokens", "40"))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def idle(self, server):
        """Nothing runs and no block is held."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            used = server.metric("tokamak_kv_blocks_used"), server.metric("tokamak_requests_running"), \
                server.metric("tokamak_api_requests_running")
            if used == (0, 0, 0):
                return
            time.sleep(0.05)
        self.fail(f"blocks, sequences, requests left: {used}")

    def reference(self, case):
        """On an idle server, whole; with a stop string taken from the middle of the first answer."""
        answers, _ = gather(self.room, case, case.body(plain=True))
        text = answers[0][0]
        stop = text[len(text) // 2:len(text) // 2 + 3] if case.features["stop"] and len(text) > 8 else None
        if stop:
            answers, _ = gather(self.room, case, case.body(plain=True, stop=stop))
            self.assertNotIn(stop, answers[0][0])
        scores = None
        if case.features["logprobs"] is not None:
            plain = {**case.body(plain=True, stop=stop)}
            plain |= {"logprobs": 2} if case.features["tools"] is None else {"logprobs": True, "top_logprobs": 2}
            scores = [a[2] for a in gather(self.room, case, plain)[0]]
        return answers, stop, scores

    def try_case(self, case):
        answers, stop, scores = self.reference(case)
        server = self.tight if case.features["pressure"] else self.room
        got, usage = gather(server, case, case.body(stop=stop))
        self.assertEqual([g[0] for g in got], [a[0] for a in answers])
        self.assertEqual([g[1] for g in got], [a[1] for a in answers])
        if scores is not None:
            self.assertEqual([g[2] for g in got], scores)
        if case.features["ids"]:
            self.assertEqual([list(g[3]) for g in got], [a[3] for a in answers])
        self.assertEqual(usage["completion_tokens"], sum(len(a[3]) for a in answers))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertLess(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])
        for a in answers:
            self.assertIn(a[1], ("stop", "length"))

    def test_every_pair(self):
        cases = [Case(f, i) for i, f in enumerate(covering_cases(random.Random(3)))]
        extra = int(os.environ.get("TOKAMAK_PAIRS", "0"))  # for manual runs: random cases beyond the pairs
        rng = random.Random(4)
        while extra > 0:
            features = {name: rng.choice(values) for name, values in FEATURES.items()}
            if possible(features):
                cases.append(Case(features, len(cases)))
                extra -= 1
        witnesses = Witnesses(self.tight, 6)
        try:
            for case in cases:
                with self.subTest(**case.features):
                    self.try_case(case)
        finally:
            witnesses.check(self)
        self.assertGreater(self.tight.metric("tokamak_preemptions_total"), 0)
        self.assertGreater(self.tight.metric("tokamak_prefix_hit_tokens_total"), 0)
        self.idle(self.tight)
        self.idle(self.room)

    def test_leaving_at_every_phase(self):
        whole = encode("/v1/completions", {"prompt": "the old house and", "max_tokens": 60, "ignore_eos": True, "stream": True, "n": 2})
        plain = whole.replace(b'"stream": true', b'"stream":false')
        witnesses = Witnesses(self.tight, 2)
        try:
            head = whole.index(b"\r\n\r\n")
            for cut in (1, head // 2, head + 2, head + 4, head + 10, len(whole) - 1):  # before the request is complete
                with connect(self.tight) as s:
                    s.sendall(whole[:cut])
            for request in (whole, plain):
                for wait in (0, 0.002, 0.01, 0.05):  # queued, in its prompt, decoding, done
                    with connect(self.tight) as s:
                        s.sendall(request)
                        time.sleep(wait)
            for count in (1, 2, 5, 20, 60, 119, 10_000):  # after this many events
                with connect(self.tight) as s:
                    s.sendall(whole)
                    data = b""
                    while data.count(b"data: ") < count and (more := s.recv(512)):
                        data += more
            with connect(self.tight) as s:  # half closed: it still reads
                s.sendall(whole)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
        finally:
            witnesses.check(self)
        self.idle(self.tight)
        self.tight.get("/health")


if __name__ == "__main__":
    unittest.main(verbosity=2)
