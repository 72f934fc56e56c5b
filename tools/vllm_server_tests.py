#!/usr/bin/env python3
"""Runs vLLM's own tests of its OpenAI server (tests/entrypoints of its source tree) against `tokamak serve`.

    tools/vllm_server_tests.py VLLM --model MODEL.gguf [--tokenizer tokenizer.json] [FILES ...] [-k EXPRESSION] [--json FILE]

The tests start `vllm serve` through a helper class; this script takes its place and runs `tokamak serve` with MODEL, whatever model the
test names. Everything else of the package `vllm` is a stub, and tests that talk to no server are left out.
Texts and counts that depend on the model of a test are told by REASONS. Every other failure counts as a fault of the server.
Needs pytest, pytest-asyncio, openai, anthropic, requests, regex, jsonschema, numpy, pybase64 and, for some tests, tokenizers.
"""
import argparse
import collections
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import types
import unittest.mock

FILES = """openai/completion/test_completion.py openai/completion/test_prompt_validation.py openai/completion/test_token_in_token_out.py
openai/chat_completion/test_chat.py openai/chat_completion/test_chat_completion.py openai/chat_completion/test_chat_echo.py
openai/chat_completion/test_chat_logit_bias_validation.py openai/chat_completion/test_enable_force_include_usage.py
openai/chat_completion/test_extra_content_fields.py openai/chat_completion/test_logprob_token_ids.py
openai/chat_completion/test_batched_chat_completions.py openai/chat_completion/test_non_object_body_validation.py
openai/test_stop_token_ids.py openai/test_return_token_ids.py openai/test_return_tokens_as_ids.py openai/test_chunked_prompt.py
openai/test_session_id.py openai/models/test_models.py openai/responses/test_simple.py openai/responses/test_basic.py
openai/responses/test_stateful.py openai/responses/test_errors.py openai/responses/test_sampling_params.py
openai/responses/test_structured_output.py openai/responses/test_streaming_events.py
serve/tokenize/test_tokenization.py serve/instrumentator/test_basic.py serve/middleware/test_optional_middleware.py anthropic/test_messages.py""".split()

# Flags of `vllm serve` that mean something here: with a value, or without.
WITH_VALUE = {"--max-model-len": "--context", "--max-num-seqs": "--max-num-seqs", "--chat-template": "--chat-template", "--api-key": "--api-key",
              "--served-model-name": "--served-model-name", "--seed": "--seed"}
# A test's name and failure -> why it does not apply.
REASONS = [
    (r"assert 5 == 6|test_single_chat_session.*CompletionUsa", "numbers of tokens of another model; the usage also tells what was cached"),
    (r"assert 'stop' == 'length'|completion_tokens=0|like Spanish|'1 \+ 1 = 2'|response_format_json_object|outputs_regex_chat|more_than_one_prompt_logprobs"
     r"|assert '(TypeScript|John)' != |assert '(30|312|John)' in|test_structured_output|test_comparison_with_prompt.* == \[\]", "what another model answers"),
    (r"has no attribute 'prompt_logprobs'|assert 'prompt_token_ids' in", "members that were not asked for are left out"),
    (r"test_chat_streaming.*assert None|test_chat_completion_stream_options", "the last chunk of a choice has no text, as in the OpenAI API"),
    (r"logprob_token_ids", "logprob_token_ids is refused"),
    (r"test_custom_role", "roles are those of the OpenAI API"),
    (r"Regex pattern did not match", "texts of errors are those of the OpenAI API"),
    (r"kv_transfer_params", "KV transfer between servers is refused"),
    (r"/invocations|/chat/completions/batch|/tokenizer_info|test_v2_endpoint", "routes that only vLLM has"),
    (r"test_chat_session_with_echo|test_chat_echo.*(prompt|top)_logprobs", "a chat has no echo, and at most 20 alternatives"),
    (r"force_include_usage|enable_request_id_header|enable_response_messages", "flags that only vLLM has"),
    (r"test_reasoning_item|reasoning_tokens_e2e", "the test needs a model with thoughts"),
    (r"MagicMock", "the test needs vLLM's own classes"),
    (r"test_check_models.*IndexError", "the test needs adapters of vLLM's"),
    (r"Unsupported parameter: 'tools'", "tools need a chat template that shows them to the model"),
    (r"Unsupported parameter: 'background'", "answers are computed while the client waits"),
    (r"unexpected keyword argument", "the installed client has no such argument"),
    (r"assert 'bad2' in", "an error names the first wrong key"),
    (r"\(os error 2\)", "the test needs --tokenizer"),
]


class Stub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules whose members are mocks."""
    names = ("vllm", "torch", "transformers", "tests", "huggingface_hub")

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: unittest.mock.MagicMock(name=name) if not name.startswith("__") else (_ for _ in ()).throw(AttributeError(name))
        return module

    def exec_module(self, module):
        if module.__name__ == "tests.utils":
            module.RemoteOpenAIServer = Server
            module.VLLM_PATH = pathlib.Path("/")
        if module.__name__ == "vllm.tokenizers":
            module.get_tokenizer = lambda *args, **kwargs: Tokenizer()


class Tokenizer:
    def __init__(self):
        import tokenizers
        self.inner = tokenizers.Tokenizer.from_file(os.environ["VLLM_TESTS_TOKENIZER"])

    def encode(self, text, add_special_tokens=True):
        return self.inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens=False):
        return self.inner.decode(ids if isinstance(ids, list) else [ids], skip_special_tokens=skip_special_tokens)

    def __call__(self, text, add_special_tokens=True):
        return types.SimpleNamespace(input_ids=self.encode(text, add_special_tokens))

    def convert_ids_to_tokens(self, ids):
        return [self.inner.id_to_token(i) for i in ids] if isinstance(ids, list) else self.inner.id_to_token(ids)

    def convert_tokens_to_ids(self, tokens):
        return [self.inner.token_to_id(t) for t in tokens] if isinstance(tokens, list) else self.inner.token_to_id(tokens)

    def get_vocab(self):
        return self.inner.get_vocab()

    vocab_size = property(lambda self: self.inner.get_vocab_size(False))

    def __len__(self):
        return self.inner.get_vocab_size()


class Server:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, args=(), *, env_dict=None, override_hf_configs=None, **more):
        settings = json.loads(os.environ["VLLM_TESTS"])
        flags, rest, names, adapters = [], [str(a) for a in args], [], []
        while rest:
            flag, _, value = rest.pop(0).partition("=")
            values = [value] if value else []
            while rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            if flag == "--served-model-name":
                names += values
            elif flag == "--lora-modules":  # the model itself stands in
                adapters += [v.split("=")[0] for v in values]
            elif flag in WITH_VALUE:
                flags += [WITH_VALUE[flag], *values[:1]]
        self.process = subprocess.Popen([settings["tokamak"], "serve", settings["model"], "--port", "0", *flags, "--served-model-name", *(names or [model]), *adapters],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env_dict or {})})
        output = ""
        while "ready at" not in output:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the server did not start: " + output[-500:])
            output += line
        self.base = re.search(r"http://[^\s]+", output).group()
        self.host, self.port = "127.0.0.1", int(self.base.rsplit(":", 1)[1])
        self.uds = None

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    @property
    def url_root(self):
        return self.base

    def url_for(self, *parts):
        return self.base + "/" + "/".join(parts)

    def get_client(self, **kwargs):
        import openai
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **kwargs})

    def get_async_client(self, **kwargs):
        import openai
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **kwargs})

    def get_client_anthropic(self, **kwargs):
        import anthropic
        return anthropic.Anthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **kwargs})

    def get_async_client_anthropic(self, **kwargs):
        import anthropic
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 120, **kwargs})


class Results:
    """A pytest plugin that collects the outcomes."""

    def __init__(self):
        self.outcomes = {}

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if any("client" in name or "server" in name for name in item.fixturenames)]

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.split("entrypoints/")[-1]
        if report.outcome in ("passed", "skipped"):
            self.outcomes.setdefault(name, (report.outcome, ""))
            return
        text = report.longreprtext or ""
        lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        listed = next((why for pattern, why in REASONS if re.search(pattern, f"{name}: {' '.join(lines)}")), None)
        self.outcomes[name] = ("not applicable", listed) if listed else ("failed", " ".join(lines)[:300])
        if not listed:
            print(f"\n{name}: {self.outcomes[name][1]}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("vllm", type=pathlib.Path)
    p.add_argument("files", nargs="*", default=FILES)
    p.add_argument("--tokamak", default="build/release/tokamak", type=pathlib.Path)
    p.add_argument("--model", required=True, type=pathlib.Path)
    p.add_argument("--tokenizer", default="")
    p.add_argument("-k", dest="expression", default="")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    import pytest
    json_path = args.json.resolve() if args.json else None
    os.environ["VLLM_TESTS"] = json.dumps({"tokamak": str(args.tokamak.resolve()), "model": str(args.model.resolve())})
    os.environ["VLLM_TESTS_TOKENIZER"] = args.tokenizer
    sys.meta_path.insert(0, Stub())
    folder = args.vllm.resolve() / "tests/entrypoints"
    os.chdir(folder)
    results = Results()
    begin = time.monotonic()
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--no-summary", "--continue-on-collection-errors", "--import-mode=importlib", "--rootdir", str(folder),
                 "-c", os.devnull, "-o", "asyncio_mode=auto", *args.files, *(["-k", args.expression] if args.expression else [])], plugins=[results])
    counts = collections.Counter(kind for kind, _ in results.outcomes.values())
    for kind in ("not applicable", "failed"):
        reasons = collections.defaultdict(list)
        for name, (k, why) in sorted(results.outcomes.items()):
            if k == kind:
                reasons[why].append(name)
        for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            print(f"{kind}: {why} ({len(names)}): {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}")
    print(dict(counts), f"{time.monotonic() - begin:.0f} s")
    if json_path:
        json_path.write_text(json.dumps(results.outcomes, indent=1, sort_keys=True))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
