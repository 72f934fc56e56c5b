"""llama.cpp's fields and routes that need a real engine: slots that are saved to files, min_keep, a vector of each token."""
import concurrent.futures
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_test import LLAMA, TINY, Serve  # noqa: E402

PROMPT = [3 + 7 * i % 60 for i in range(50)]


class Slots(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.flags = (LLAMA, "--slot-save-path", self.folder, "--kv-blocks", "64")

    def ask(self, server, **more):
        status, _, answer = server.post("/completion", **{"prompt": PROMPT, "n_predict": 8, "temperature": 0, "ignore_eos": True, **more})
        self.assertEqual(status, 200, answer)
        return answer["content"], answer["timings"]["cache_n"], answer["id_slot"]

    def test_a_slot_outlives_the_server(self):
        with Serve(*self.flags) as s:
            text, cached, slot = self.ask(s, id_slot=1)
            self.assertEqual((cached, slot), (0, 1))
            status, _, saved = s.post("/slots/1?action=save", filename="one.bin")
            self.assertEqual((status, saved["id_slot"], saved["filename"], saved["n_saved"]), (200, 1, "one.bin", 48), saved)
            self.assertEqual(saved["n_written"], (self.folder / "one.bin").stat().st_size)
            self.assertGreaterEqual(saved["timings"]["save_ms"], 0)
        with Serve(*self.flags) as s:
            status, _, restored = s.post("/slots/0?action=restore", filename="one.bin")
            self.assertEqual((status, restored["n_restored"], restored["n_read"]), (200, 48, saved["n_written"]), restored)
            self.assertEqual(self.ask(s)[:2], (text, 48))
            longer = PROMPT + [5] * 5
            warm = self.ask(s, prompt=longer)
            self.assertGreaterEqual(warm[1], 48)
            self.assertEqual(self.ask(s, prompt=longer, cache_prompt=False)[:2], (warm[0], 0))

    def test_answers_go_on_while_slots_are_copied(self):
        prompts = [[3 + (7 + i) * j % 60 for j in range(300)] for i in range(3)]  # each has more blocks than are copied at once
        with Serve(LLAMA, "--slot-save-path", self.folder, "--kv-blocks", "160", "--context", "512") as s:
            texts = [self.ask(s, prompt=p, id_slot=i)[0] for i, p in enumerate(prompts)]
            with concurrent.futures.ThreadPoolExecutor(5) as pool:
                answers = [pool.submit(self.ask, s, prompt=p) for _ in range(6) for p in prompts]
                for i in range(6):
                    saved = s.post("/slots/0?action=save", filename="busy.bin")[2]
                    self.assertEqual(s.post("/slots/1?action=restore", filename="busy.bin")[2]["n_restored"], saved["n_saved"])
                for i, answer in enumerate(answers):
                    self.assertEqual(answer.result()[0], texts[i % 3])
            self.assertEqual(s.post("/slots/0?action=save", filename="busy.bin")[2]["n_saved"], 304)
            self.assertEqual(s.metric("tokamak_kv_blocks_used"), 0)

    def test_erase_forgets_what_no_other_text_shares(self):
        with Serve(*self.flags) as s:
            self.ask(s, id_slot=0)
            self.assertGreater(self.ask(s)[1], 0)
            status, _, erased = s.post("/slots/0?action=erase")
            self.assertEqual((status, erased), (200, {"id_slot": 0, "n_erased": 58}))
            self.assertEqual(self.ask(s, id_slot=0)[1], 0)
            self.ask(s, prompt=PROMPT[:32] + [9] * 18, id_slot=1)
            self.assertEqual(s.post("/slots/0?action=erase")[0], 200)
            self.assertEqual(self.ask(s)[1] // 16, 2)  # the blocks that slot 1 shares

    def test_what_is_refused(self):
        with Serve(*self.flags) as s:
            for name in ("", ".", "..", "a/b", "/etc/x", "..\\x", ".hidden", "a\0b", "x" * 300, 7):
                status, _, answer = s.post("/slots/0?action=restore", filename=name)
                self.assertEqual((status, answer["error"]["param"]), (400, "filename"), name)
            for path, status in (("/slots/0?action=restore", 404), ("/slots/0?action=save", 404), ("/slots/0?action=erase", 404), ("/slots/0?action=x", 400),
                                 ("/slots/0", 400), ("/slots/x?action=save", 404), ("/slots/9999?action=save", 404), ("/slots/-1?action=save", 404)):
                self.assertEqual(s.post(path, filename="none")[0], status, path)
            self.assertEqual(s.post("/completion", prompt="x", id_slot=9999)[0], 400)
            short = self.ask(s, prompt=[5] * 4, n_predict=2, id_slot=3)
            self.assertEqual(s.post("/slots/3?action=save", filename="short")[0], 404)  # it has no whole block
            self.assertEqual(self.ask(s, prompt=[5] * 4, n_predict=2, id_slot=3)[0], short[0])
            self.ask(s, id_slot=0)
            self.assertEqual(s.post("/slots/0?action=save", filename="x")[0], 200)
            self.assertEqual(s.post("/slots/0?action=restore", filename="x", cache_salt="other")[0], 400)
            whole = (self.folder / "x").read_bytes()
            head, rest = whole.index(b"\n", 8) + 1, len(whole) - 4
            broken = (b"", b"TKSLOT1\n", whole[:head], whole[:rest], whole + b"1234", whole[:rest] + bytes(b ^ 1 for b in whole[rest:]),
                      whole[:head] + b"\xff\xff\xff\x7f" + whole[head + 4:], whole.replace(b'"layout":"', b'"layout":"other '), whole.replace(b'"tokens":48', b'"tokens":32'),
                      whole.replace(b'"tokens":48', b'"tokens":64000000000'))
            for content in broken:
                (self.folder / "y").write_bytes(content)
                status, _, answer = s.post("/slots/0?action=restore", filename="y")
                self.assertEqual(status, 400, answer)
            self.assertEqual(s.post("/slots/0?action=restore", filename="x")[0], 200)
        with Serve(LLAMA, "--kv-blocks", "8") as s:
            self.assertEqual(s.post("/slots/0?action=save", filename="x")[2]["error"]["code"], "not_supported")
        with Serve(LLAMA, "--slot-save-path", self.folder, "--kv-blocks", "2", "--context", "32") as s:
            self.assertEqual(s.post("/slots/0?action=restore", filename="x")[0], 429)
            self.assertEqual(s.metric("tokamak_kv_blocks_used"), 0)

    def test_keys_do_not_share_slots(self):
        with Serve(*self.flags, "--api-key", "first", "--api-key", "second") as s:
            def post(key, path, **body):
                import urllib.error
                import urllib.request
                request = urllib.request.Request(s.url + path, json.dumps(body).encode(), {"content-type": "application/json", "authorization": "Bearer " + key})
                try:
                    with urllib.request.urlopen(request, timeout=60) as r:
                        return r.status
                except urllib.error.HTTPError as e:
                    with e:
                        return e.code
            self.assertEqual(post("first", "/completion", prompt=PROMPT, n_predict=2, id_slot=0), 200)
            self.assertEqual(post("second", "/slots/0?action=save", filename="k"), 404)
            self.assertEqual(post("first", "/slots/0?action=save", filename="k"), 200)
            self.assertEqual(post("second", "/slots/0?action=restore", filename="k"), 400)
            self.assertEqual(post("second", "/slots/0?action=erase"), 404)
            self.assertNotIn(b"first", (self.folder / "k").read_bytes())


class MinKeep(unittest.TestCase):
    def test_filters_leave_that_many_tokens(self):
        with Serve(LLAMA, "--kv-blocks", "64") as s:
            best = [t["id"] for t in s.post("/completion", prompt=PROMPT, n_predict=1, n_probs=8, temperature=0)[2]["completion_probabilities"][0]["top_logprobs"]]
            for filters in ({"top_p": 1e-6}, {"min_p": 1.0}, {"top_p": 1e-6, "samplers": ["temperature", "top_p"]}):
                for keep, expected in ((0, 1), (1, 1), (4, 4)):
                    chosen = {s.post("/completion", prompt=PROMPT, n_predict=1, temperature=2, seed=seed, min_keep=keep, return_tokens=True, **filters)[2]["tokens"][0]
                              for seed in range(60)}
                    self.assertEqual(chosen, set(best[:expected]), (filters, keep))
            settings = s.post("/completion", prompt="x", n_predict=1, min_keep=3)[2]["generation_settings"]
            self.assertEqual(settings["min_keep"], 3)
            self.assertEqual(s.post("/completion", prompt="x", n_predict=1, min_keep=-1)[0], 400)


class TokenVectors(unittest.TestCase):
    def check(self, model, pooled, row):
        ids = [5, 9, 11, 7, 20, 6, 8]
        with Serve(TINY / model, "--pooling", pooled) as s:
            self.assertEqual(len(s.post("/embedding", input=ids)[2][0]["embedding"]), 1)
            expected = s.post("/embedding", input=ids, embd_normalize=-1)[2][0]["embedding"][0]
        with Serve(TINY / model, "--pooling", "none") as s:
            for path, field in (("/embedding", "input"), ("/embeddings", "input"), ("/embedding", "content")):
                status, _, answer = s.post(path, **{field: [ids, ids * 4]})
                self.assertEqual((status, [a["index"] for a in answer]), (200, [0, 1]), answer)
                self.assertEqual([len(a["embedding"]) for a in answer], [len(ids), 4 * len(ids)])
                for x, y in zip(answer[0]["embedding"][row], expected):
                    self.assertAlmostEqual(x, y, places=4)
            for path in ("/v1/embeddings", "/api/embed"):
                self.assertEqual(s.post(path, input="text")[0], 400)

    def test_an_encoder(self):
        self.check("bert", "cls", 0)

    def test_a_decoder(self):
        self.check("llama.gguf", "last", -1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
