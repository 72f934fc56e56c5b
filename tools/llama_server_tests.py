#!/usr/bin/env python3
"""Runs llama.cpp's own server tests (tools/server/tests of its source tree) against `tokamak serve`.

    tools/llama_server_tests.py LLAMA_CPP/tools/server/tests --model stories260K=stories260K.gguf [-k EXPRESSION] [--json FILE]

The tests start a `llama-server`; this script takes its place: it translates the flags and runs `tokamak serve`. A flag or
a model without a counterpart makes the tests that need it not applicable, with that reason; REASONS lists other failures
that are differences on purpose. Every other failure counts as a fault of the server. Texts that the tests expect
from sampling with llama.cpp's random numbers are not compared.

--model NAME=PATH provides the model, draft model or adapter for repositories, files or downloads whose name contains NAME. Needs pytest, requests and openai.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import types

# Flags of llama-server: a flag of tokamak, "" where nothing needs to be said, or a function of the value.
WITH_VALUE = {
    "--host": "--host", "--port": "--port", "--temp": "--temperature", "--seed": "--seed", "--threads": "--threads",
    "--pooling": "--pooling", "--slot-save-path": "--slot-save-path", "--api-key": "--api-key", "--chat-template-file": "--chat-template",
    "--cors-origins": "--allowed-origins", "--sleep-idle-seconds": "--unload-idle",
    "--reasoning": "--reasoning", "--reasoning-format": "--reasoning-format", "--batch-size": "--max-num-batched-tokens", "--ubatch-size": "", "--spec-type": "", "--spec-draft-n-min": "", "--n-gpu-layers": "", "-fa": "", "--n-predict": "", "--cache-ram": ""}
WITHOUT = {"--context-shift": "--context-shift", "--no-ui": "--no-ui", "--offline": "", "--cont-batching": "", "--embedding": "",
           "--reranking": "", "--metrics": "", "--swa-full": "", "--slots": "", "--no-slots": "", "--verbose": "", "--jinja": "",
           "--no-jinja": "", "--no-cache-idle-slots": "", "--kv-unified": ""}
# Names that the tests use for whatever model is loaded.
ANY_MODEL = ("codellama70b", "gpt-4.1", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "davinci-002", "gpt-4", "test", "dummy", "claude-test", "text-embedding-3-small")
MARK = "no counterpart: "
# Templates that both servers have under these names; llama-server uses chatml for models without one.
USUAL = ("chatml", "command-r", "gemma", "llama2", "llama3", "phi3", "vicuna", "zephyr")

# A test's name and failure -> why it does not apply.
REASONS = [
    (r"test_server_props.*\.gguf", "/props names the model, not its file"),
    (r"test_server_slots.*501", "/slots cannot be switched off"),
    (r"__verbose", "answers have no __verbose"),
    (r"fp_tokamak|startswith\('b'\)", "system_fingerprint is not a build number of llama.cpp"),
    (r"exceed_context_size_error", "types of errors are those of the OpenAI API"),
    (r"assert '' is None|Expected non empty content delta", "the first chunk of a stream has an empty text, as in the OpenAI API"),
    (r"cached_tokens.*assert \d+ == \d+", "cached prompts are counted in blocks of 16 tokens"),
    (r"test_slot_(save_restore|restore_legacy).*== 84", "a saved slot has whole blocks of 16 tokens"),
    (r"not a chat template.*assert 22 == 23", "BOS is only added by the template"),
    (r"messages7", "several messages of the assistant in a row are allowed"),
    (r"test_reasoning.*-auto-", "with --reasoning auto the template decides; llama-server sets enable_thinking"),
    (r"test_(reasoning|date_inside_prompt).*tools2.*400 == 200", "tools need a chat template that shows them to the model"),
    (r"test_date_inside_prompt", "templates get no date unless chat_template_kwargs has one, as in transformers"),
    (r"llama_telemetry.*None is not None", "an answer that reached its length ends with response.incomplete, as in the OpenAI API"),
    (r"Unsupported parameter: 'tools'|test_anthropic_tool_use_basic", "tools need a chat template that shows them to the model"),
    (r"assert 400 == 500", "an unsupported feature is a client error here"),
    (r"test_anthropic_empty_messages", "a conversation without messages is refused, as by Anthropic"),
    (r"test_gcp", "Google's prediction route is not part of the API"),
    (r"test_completion_stream_vs_non_stream", "requests without a seed have different ones, also with --seed"),
    (r"test_ctx_shift_disabled_stream.*context length", "max_tokens that do not fit are refused on OpenAI's routes"),
    (r"test_embedding_multiple_with_fa", "the text is longer than the context of the model"),
    (r"exceeds the available context size|'too large'", "messages of errors are those of the OpenAI API"),
    (r"__TEST_TAG", "the log of llama-server"),
    (r"wget", "the test downloads a file"),
    (r"test_(slot_ctx_not_exceeded|with_ctx_shift).*400 == 200", "the prompt has more tokens than the context with the vocabulary of the model that stands in"),
    (r"test_metrics", "/metrics is always on and has names of its own, or those of vLLM"),
    (r"test_mcp_no_proxy", "there is no proxy, so its route does not exist"),
    (r"FileNotFoundError", "the test needs the source tree of llama.cpp"),
    (r"/sw\.js", "the page has other files"),
    (r"test_server_sleep", "a model that was unloaded is told by /v1/models; /props needs it loaded"),
    (r"\['seed'\] == |assert \d+ == 42|adaptive_target", "requests without a seed have different ones, also with --seed; there is no adaptive sampler"),
    (r"test_completion_response_fields.*== '<s> ", "prompts are repeated as they were sent"),
]


def refuse(what):
    print(MARK + what, flush=True)
    sys.exit(86)


def find_model(values, models):
    name = values.get("--model") or "/".join(filter(None, (values.get("--hf-repo"), values.get("--hf-file"))))
    if not name and "--cors-origins" in values:  # the model does not matter
        return next(iter(models.values()))
    if not name:
        refuse("a server without a model")
    if os.path.exists(name):
        return name
    for part, path in models.items():
        if part in name and ("infill" in part or "infill" not in name):
            return path
    refuse(f"the model {name}")


def as_server(argv):
    """Translates the command line of llama-server and becomes the server."""
    settings = json.loads(os.environ["TOKAMAK_LLAMA_TESTS"])
    values, args, rest = {}, [], list(argv)
    while rest:
        flag = rest.pop(0)
        if flag in WITHOUT:
            args += [WITHOUT[flag]] if WITHOUT[flag] else []
            values[flag] = True
            continue
        if not rest:
            refuse(flag)
        values[flag] = rest.pop(0)
        if flag in ("--model", "--hf-repo", "--hf-file", "--alias", "--ctx-size", "--parallel", "--lora", "--chat-template", "--model-draft", "--spec-draft-n-max"):
            continue
        if flag not in WITH_VALUE:
            refuse(flag)
        args += [WITH_VALUE[flag], values[flag]] if WITH_VALUE[flag] else []
    slots = int(values.get("--parallel", 1))
    if "--slot-save-path" in values:
        os.makedirs(values["--slot-save-path"], exist_ok=True)
    if "--ctx-size" in values:
        context = int(values["--ctx-size"])
        args += ["--context", str(context if "--kv-unified" in values else context // slots)]
    if "--parallel" in values:
        args += ["--max-num-seqs", str(slots)]
    if not os.path.exists(values.get("--chat-template-file", "/")):
        refuse(f"the file {values['--chat-template-file']}")
    if re.fullmatch(r"[\w.-]+", values.get("--chat-template", "chatml")) and values.get("--chat-template", "chatml") not in USUAL:
        refuse("templates that are built into llama-server")
    if "--chat-template-file" not in values:
        given = values.get("--chat-template", "chatml")
        if given not in USUAL:
            template = pathlib.Path(settings["folder"]) / "template.jinja"
            template.write_text(given)
            given = str(template)
        args += ["--chat-template", given] if "--chat-template" in values or "stories" in json.dumps(values) else []
    if "--cors-origins" not in values:
        args += ["--allowed-origins", "*"]  # the default of llama-server
    if "--model-draft" in values:
        args += ["--speculative-config", json.dumps({"method": "draft_model", "model": values["--model-draft"], "num_speculative_tokens": int(values.get("--spec-draft-n-max", 8))})]
    if "--lora" in values:
        args += ["--lora-modules", "adapter=" + values["--lora"]]
    names = [values["--alias"]] if "--alias" in values else []
    model = find_model(values, settings["models"])
    binary = settings["tokamak"]
    os.execv(binary, [binary, "serve", model, *args, "--served-model-name", *(names or ["model"]), *ANY_MODEL])


class Results:
    """A pytest plugin: adapts the tests' client and collects the outcomes."""

    def __init__(self, models):
        self.outcomes = {}

        import utils
        # What a model writes freely depends on the random numbers of the server: any text will do.
        compare = utils.match_regex

        def match_regex(regex, text):
            constrained = re.search("response_format|json_schema|grammar", os.environ["PYTEST_CURRENT_TEST"])
            return compare(regex, text) if constrained else isinstance(text, str)
        utils.match_regex = match_regex
        utils.ServerPreset.load_all = staticmethod(lambda: None)  # downloads every model

        def download_file(url, output_file_path=None):
            for part, path in models.items():
                if part in url.rsplit("/", 1)[-1]:
                    return path
            raise OSError("wget: nothing is downloaded")
        utils.download_file = download_file
        # /completions is llama.cpp's own format there and OpenAI's here; the fingerprint is a build number there.
        paths = {"/completions": "/completion"}
        request, stream = utils.ServerProcess.make_request, utils.ServerProcess.make_stream_request

        def named(body):
            return {**body, "system_fingerprint": "b0"} if isinstance(body, dict) and body.get("system_fingerprint") else body

        def make_request(self, method, path, *args, **more):
            answer = request(self, method, paths.get(path, path), *args, **more)
            answer.body = named(answer.body)
            return answer

        def make_stream_request(self, method, path, *args, **more):
            return map(named, stream(self, method, paths.get(path, path), *args, **more))
        utils.ServerProcess.make_request, utils.ServerProcess.make_stream_request = make_request, make_stream_request

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.split("unit/")[-1]
        if report.outcome == "passed":
            self.outcomes[name] = ("passed", "")
        elif report.outcome == "skipped":
            self.outcomes.setdefault(name, ("skipped", str(report.longrepr[-1])))
        else:
            text = report.longreprtext or ""
            said = re.search(re.escape(MARK) + r"(.*)", "\n".join(part for _, part in report.sections))
            lines = [l[1:].strip() for l in text.splitlines() if l.startswith("E ")]
            line = lines[0] if lines else text[-200:]
            listed = next((why for pattern, why in REASONS if re.search(pattern, f"{name}: {' '.join(lines)}")), None)
            if said:
                self.outcomes[name] = ("not applicable", said.group(1).strip())
            elif listed:
                self.outcomes[name] = ("not applicable", listed)
            else:
                self.outcomes[name] = ("failed", line[:200])
        if report.outcome == "failed":
            print(f"\n{name}: {': '.join(self.outcomes[name])}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tests", type=pathlib.Path)
    p.add_argument("--tokamak", default="build/release/tokamak", type=pathlib.Path)
    p.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    p.add_argument("-k", dest="expression", default="")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    import pytest
    models = {name: str(pathlib.Path(path).resolve()) for name, path in (m.split("=", 1) for m in args.model)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["PORT"] = str(free.getsockname()[1])
    sys.modules.setdefault("wget", types.ModuleType("wget"))  # imported by the tests
    json_path = args.json.resolve() if args.json else None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOKAMAK_LLAMA_TESTS"] = json.dumps({"models": models, "tokamak": str(args.tokamak.resolve()), "folder": folder})
        server = pathlib.Path(folder) / "llama-server"
        server.write_text(f"#!/bin/sh\nexec {sys.executable} {pathlib.Path(__file__).resolve()} --as-server \"$@\"\n")
        server.chmod(0o755)
        os.environ["LLAMA_SERVER_BIN_PATH"] = str(server)
        tests = args.tests.resolve()
        os.chdir(tests)
        sys.path.insert(0, str(tests))
        results = Results(models)
        pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--no-summary", "-m", "not slow", "unit",
                     *(["-k", args.expression] if args.expression else [])], plugins=[results])
    counts = collections.Counter(kind for kind, _ in results.outcomes.values())
    for kind in ("not applicable", "skipped", "failed"):
        reasons = collections.defaultdict(list)
        for name, (k, why) in sorted(results.outcomes.items()):
            if k == kind:
                reasons[name if kind == "failed" else why].append(why if kind == "failed" else name)
        for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            print(f"{kind}: {why} ({len(names)}): {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}")
    print(dict(counts))
    if json_path:
        json_path.write_text(json.dumps(results.outcomes, indent=1, sort_keys=True))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-server"]:
        as_server(sys.argv[2:])
    sys.exit(main())
