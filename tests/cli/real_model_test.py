#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, a real quantised model, through the command line."""
import os
import pathlib
import tempfile
import unittest

from tokamak import run_json

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

    def test_int8_activations_cost_little(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text(TEXT * 3)
            ppl = {a: run_json("eval", "perplexity", MODEL, text, "--window", "128", "--tokens", "256", "--activations", a,
                               "--json", timeout=300)["ppl"] for a in ("f32", "auto")}
        self.assertLess(ppl["f32"], 40)
        self.assertLess(abs(ppl["auto"] / ppl["f32"] - 1), 0.03)


if __name__ == "__main__":
    unittest.main(verbosity=2)
