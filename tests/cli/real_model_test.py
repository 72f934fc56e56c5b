#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, a real quantised model, through the command line."""
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request
from typing import Literal

from tokamak import BINARY, run, run_json

# The model's own template does not show tools.
TOOL_TEMPLATE = """{% if tools %}<|im_start|>system
Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>. The tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MODEL = os.environ["TOKAMAK_TEST_MODEL"]
TEXT = """The history of the steam engine begins with simple devices that used the pressure of steam to lift water out of
mines. Over time, engineers added pistons, separate condensers and governors, and the machines became strong enough to
drive mills, ships and locomotives. Railways changed how people travelled and how goods were sold, and towns grew around
their stations. Later the steam turbine took over the work of making electricity, and it still does so in most power
stations today, whether the heat comes from coal, gas, the sun or the splitting of atoms. """


class RealModel(unittest.TestCase):
    def test_knows_the_capital_of_france(self):
        out = run_json("run", MODEL, "The capital of France is", "--temperature", "0", "--max-tokens", "8", "--json")
        self.assertEqual(out["prompt_ids"], [504, 3575, 282, 4649, 314])
        self.assertTrue(out["text"].startswith(" Paris"), out["text"])

    def test_chat_ends_its_turn(self):
        out = run_json("run", MODEL, "What is the capital of France?", "--chat", "--temperature", "0", "--max-tokens", "40",
                       "--activations", "f32", "--json")
        self.assertEqual((out["text"], out["finish_reason"]), ("The capital of France is Paris.", "stop"))

    def test_an_answer_that_ends_at_once_is_explained(self):
        question = "What is the area of the triangle with the vertices (0, 0), (-1, 1) and (3, 3)?"
        flags = ("--temperature", "0", "--max-tokens", "4")
        raw, chat = run("run", MODEL, question, *flags), run("run", MODEL, question, *flags, "--chat")
        self.assertEqual((raw.stdout, "--chat wraps the prompt" in raw.stderr), ("\n", True))
        self.assertEqual((chat.stdout.startswith("The area"), "note:" in chat.stderr), (True, False))
        out = run_json("run", MODEL, question, *flags, "--json")
        self.assertEqual((out["ids"], out["finish_reason"], out["timings"]["prefill_seconds"] > 0), ([], "stop", True))

    def test_a_terminated_conversion_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([BINARY, "convert", MODEL, pathlib.Path(folder, "out"), "--threads", "1"], stderr=subprocess.DEVNULL)
            used = 0  # ticks of processor time
            while used < 40 and process.poll() is None:
                used = int(pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
                time.sleep(0.01)
            process.terminate()
            self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
            self.assertEqual(os.listdir(folder), [])

    def test_int8_activations_cost_little(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text(TEXT * 3)
            ppl = {a: run_json("eval", "perplexity", MODEL, text, "--window", "128", "--tokens", "256", "--activations", a,
                               "--json", timeout=300)["ppl"] for a in ("f32", "auto")}
        self.assertLess(ppl["f32"], 40)
        self.assertLess(abs(ppl["auto"] / ppl["f32"] - 1), 0.03)

    def test_int8_kv_costs_little(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text(TEXT * 3)
            ppl = {k: run_json("eval", "perplexity", MODEL, text, "--window", "128", "--tokens", "256", "--kv-dtype", k,
                               "--json", timeout=300)["ppl"] for k in ("f32", "f16", "int8")}
        self.assertLess(abs(ppl["f16"] / ppl["f32"] - 1), 0.001)
        self.assertLess(abs(ppl["int8"] / ppl["f32"] - 1), 0.03)
        self.assertNotEqual(ppl["int8"], ppl["f32"])

    @unittest.skipIf(importlib.util.find_spec("langchain_openai") is None, "langchain-openai is not installed")
    def test_langchain_with_structured_output(self):
        from langchain_openai import ChatOpenAI
        from pydantic import BaseModel, Field

        class Weather(BaseModel):
            """Weather of a city."""
            city: Literal["Ulm", "Bern", "Paris"]
            degrees: int = Field(ge=-50, le=60)
            sky: Literal["clear", "cloudy", "rain"]

        ask = 'The weather in Ulm is rain. Answer in JSON with these keys: {"city": "Bern", "degrees": 20, "sky": "clear"}'
        template = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "tools.jinja"
        template.write_text(TOOL_TEMPLATE)
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", "--context", "1024", "--chat-template", template],
                                   stdout=subprocess.PIPE, text=True)
        try:
            output = ""
            while "ready at" not in output:
                line = process.stdout.readline()
                self.assertTrue(line, output)
                output += line
            url = re.search(r"http://\S+", output).group() + "/v1"
            name = json.load(urllib.request.urlopen(url + "/models"))["data"][0]["id"]
            # The schema holds at any temperature; JSON mode promises JSON only, so it is asked greedily.
            for method, temperature in (("json_schema", 0), ("json_schema", 1.5), ("function_calling", 0), ("function_calling", 1.5), ("json_mode", 0)):
                with self.subTest(method=method, temperature=temperature):
                    model = ChatOpenAI(base_url=url, api_key="none", model=name, temperature=temperature, seed=3, max_tokens=200, max_retries=0)
                    out = model.with_structured_output(Weather, method=method, include_raw=True).invoke(ask)
                    self.assertIsNone(out["parsing_error"], out)
                    self.assertIsInstance(out["parsed"], Weather, out)
                    self.assertEqual(len(out["raw"].tool_calls), 1 if method == "function_calling" else 0)
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()

    def test_the_ledger_knows_where_the_memory_is(self):
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", "--context", "1024", "--kv-blocks", "256"], stdout=subprocess.PIPE, text=True)
        try:
            output = ""
            while "ready at" not in output:
                line = process.stdout.readline()
                self.assertTrue(line, output)
                output += line
            url = re.search(r"http://\S+", output).group()
            def post(**body):
                request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
                urllib.request.urlopen(request, timeout=120).read()

            def check(when):
                metrics = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
                value = lambda name: sum(float(v) for v in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)", metrics, re.M))
                counted = value("tokamak_memory_bytes") + value("tokamak_process_memory_bytes") - value("tokamak_memory_untouched_bytes")
                resident = value("process_resident_memory_bytes")
                self.assertGreater(counted, 100e6)
                self.assertLess(abs(counted / resident - 1), 0.01, f"{when}: {counted / 2**20:.1f} MiB counted, {resident / 2**20:.1f} resident")
                return value("tokamak_memory_untouched_bytes"), value("tokamak_memory_bytes")

            self.assertGreater(check("at start")[0], 80e6)  # of 90 MB of KV
            for salt in "abcdef":  # until every KV block has been used
                post(prompt="word " * 900, max_tokens=8, cache_salt=salt)
            check("with a full cache")
            post(prompt="x", max_tokens=8, n=64, ignore_eos=True)
            untouched, engine = check("after the largest batch")
            self.assertLess(untouched, 0.02 * engine)
        finally:
            process.terminate()
            self.assertEqual(process.wait(timeout=60), 0)
            process.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
