"""Filling in text with a real engine: a tiny model whose vocabulary has the marks, and the prompt that llama.cpp's server makes."""
import json
import pathlib
import shutil
import tempfile
import unittest

from serve_test import TINY, Serve

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>", "<|fim_pad|>")


def add_marks(folder, marks):
    """Gives tokens that no merge uses other texts."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for old, new in zip("~^`|{}", marks):
        vocabulary[new] = vocabulary.pop(old)
        tokenizer["added_tokens"].append({"id": vocabulary[new], "content": new, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": True})
    path.write_text(json.dumps(tokenizer))
    return vocabulary


class Infill(unittest.TestCase):
    def serve(self, marks):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "llama"
        shutil.copytree(TINY / "llama", folder)
        self.vocabulary = add_marks(folder, marks)
        return self.enterContext(Serve(folder, "--threads", "1"))

    def post(self, path, **body):
        status, _, data = self.server.post(path, temperature=0, **body)
        self.assertEqual(status, 200, data)
        return data

    def test_prompts(self):
        """Marks and order are those of format_prompt_infill() in llama.cpp's tools/server/server-common.cpp."""
        self.server = self.serve(MARKS)
        request = {"input_prefix": "def add(a", "input_suffix": "return a", "prompt": ", b", "n_predict": 8}
        middle = "<|fim_prefix|>def add(a, b<|fim_suffix|>return a<|fim_middle|>"
        files = [{"filename": "x.py", "text": "import the\n"}, {"text": "and"}]
        for extra, before in ((None, "<|file_sep|>filename\n"),
                              (files, "<|file_sep|>x.py\nimport the\n<|file_sep|>tmp\nand<|file_sep|>filename\n")):
            text = "<|repo_name|>myproject\n" + before + middle
            data = self.post("/infill", **request, input_extra=extra)
            self.assertEqual(data["prompt"], text)
            same = self.post("/completion", prompt=text, n_predict=8)  # marks in a prompt are parsed
            self.assertEqual((data["content"], data["tokens_evaluated"]), (same["content"], same["tokens_evaluated"]))
        for path, more in (("/v1/completions", {"max_tokens": 8}), ("/api/generate", {"stream": False, "model": "llama", "options": {"num_predict": 8, "temperature": 0}})):
            data = self.post(path, prompt="def add(a, b", suffix="return a", **more)
            same = self.post("/completion", prompt=middle, n_predict=8)
            self.assertEqual(data["choices"][0]["text"] if "choices" in data else data["response"], same["content"])

    def test_marks_in_the_text_are_text(self):
        self.server = self.serve(MARKS)
        data = self.post("/v1/completions", prompt="a<|fim_middle|>b", suffix="<|fim_suffix|>", max_tokens=1, return_token_ids=True)
        ids = data["choices"][0]["prompt_token_ids"]
        self.assertEqual([ids.count(self.vocabulary[m]) for m in MARKS[:3]], [1, 1, 1])

    def test_the_answer_ends_at_the_next_file(self):
        self.server = self.serve(MARKS)
        for mark in MARKS[3:]:
            bias = [[self.vocabulary[mark], 100]]
            data = self.post("/infill", input_prefix="a", input_suffix="b", n_predict=8, logit_bias=bias)
            self.assertEqual((data["content"], data["stop_type"]), ("", "eos"), mark)
            self.assertEqual(self.post("/completion", prompt="a", n_predict=2, logit_bias=bias)["stop_type"], "limit")

    def test_other_marks(self):
        """A vocabulary without marks for files: llama.cpp's separator."""
        self.server = self.serve(("<PRE>", "<SUF>", "<MID>"))
        data = self.post("/infill", input_prefix="a", input_suffix="b", n_predict=1, input_extra=[{"text": "c"}])
        self.assertEqual(data["prompt"], "\n\n--- snippet ---\n\nc<PRE>a<SUF>b<MID>")


if __name__ == "__main__":
    unittest.main(verbosity=2)
