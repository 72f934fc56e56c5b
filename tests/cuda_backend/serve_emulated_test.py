"""The server on the emulated GPU. It answers as on the cpu backend. When a kernel crashes, running answers end with an error, the server starts itself
again on the same socket, and no connection is refused meanwhile."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import unittest

BINARY = os.environ["TOKAMAK_EMULATED"]
TINY = pathlib.Path(os.environ["TOKAMAK_TINY_MODELS"])
FAMILIES = pathlib.Path(os.environ["TOKAMAK_TINY_FAMILIES"])


class Server:
    def __init__(self, *flags, model=TINY / "llama", backend="cuda"):
        self.lines = []
        self.process = subprocess.Popen([BINARY, "serve", str(model), "--backend", backend, "--port", "0", "--kv-blocks", "64", *flags], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.wait_ready(1)
        self.port = int(re.search(r"http://[^:\s]+:(\d+)", self.text()).group(1))

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def text(self):
        return "".join(self.lines)

    def wait_for(self, text, times=1, seconds=120):
        """Until the server has printed the text so often."""
        end = time.monotonic() + seconds
        while self.text().count(text) < times:
            assert time.monotonic() < end and self.process.poll() is None, self.text()
            time.sleep(0.05)

    def wait_ready(self, times):
        self.wait_for("ready at", times)

    def post(self, **body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            return answer.status, answer.read().decode()
        finally:
            c.close()

    def ask(self, **changes):
        status, text = self.post(**{"prompt": "Once upon", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **changes})
        assert status == 200, text
        return json.loads(text)["choices"][0]["text"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()


class SameAsCpu(unittest.TestCase):
    def compare(self, *flags, names=("",), cpu_flags=None, **model):
        answers = []
        for backend, more in (("cpu", flags if cpu_flags is None else cpu_flags), ("cuda", ("--storage", "f32", *flags))):
            with Server(*more, backend=backend, **model) as server:
                answers.append([server.ask(max_tokens=12, **({"model": name} if name else {})) for name in names])
        self.assertEqual(*answers)
        return answers[0]

    def test_experts_latent_attention_and_states(self):
        for name in ("mixtral", "deepseek2", "mamba2"):
            self.compare(model=FAMILIES / name)

    def test_adapters_beside_the_model(self):
        adapters = [f"{name}={TINY / 'adapters' / ('llama_' + name)}" for name in ("qv", "all")]
        answers = self.compare("--lora-modules", *adapters, names=("llama", "qv", "all"))
        self.assertEqual(len(set(answers)), 3)

    def test_early_exit(self):
        config = {"method": "early_exit", "num_speculative_tokens": 4, "adaptive": False}
        self.compare("--speculative-config", json.dumps(config), cpu_flags=())


class LostDevice(unittest.TestCase):
    def lose(self, server):
        """Loses the device while an answer is streamed, which has to end with an error."""
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        c.request("POST", "/v1/completions", json.dumps({"prompt": "Once upon", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": True}),
                  {"Content-Type": "application/json"})
        answer = c.getresponse()
        self.assertEqual(answer.status, 200)
        self.assertIn(b"data:", answer.readline())
        server.process.send_signal(signal.SIGUSR1)
        rest = answer.read().decode()
        c.close()
        self.assertIn('"error"', rest)
        self.assertIn("can no longer use the GPU", rest)

    def test_the_server_starts_again(self):
        with Server() as server:
            want, process = server.ask(), server.process.pid
            for round in range(2):
                self.lose(server)
                # Asked at once: the old process answers that it cannot, or the connection waits for the new one. None is reset.
                while (status := server.post(prompt="a", max_tokens=1)[0]) in (500, 503):
                    pass
                self.assertEqual(status, 200)
                server.wait_ready(round + 2)
                self.assertEqual(server.ask(), want)
            server.wait_for("the server starts again", 2)
            self.assertIsNone(server.process.poll())
            self.assertEqual(process, server.process.pid)

    def test_a_server_that_was_restarted_often_stays(self):
        with Server() as server:
            for round in range(3):
                self.lose(server)
                server.wait_ready(round + 2)
            self.lose(server)
            status, text = server.post(prompt="a", max_tokens=1)
            self.assertGreaterEqual(status, 500)
            self.assertIn("can no longer use the GPU", text)
            server.wait_for("it was restarted 3 times in the last 10 minutes")
            self.assertEqual(server.text().count("ready at"), 4)

    def test_a_signal_still_stops_the_server(self):
        with Server() as server:
            self.lose(server)
            server.process.terminate()
            self.assertIsNotNone(server.process.wait(30))

    def test_staying_can_be_asked_for(self):
        with Server("--lost-device", "stay") as server:
            self.lose(server)
            status, text = server.post(prompt="a", max_tokens=1)
            self.assertGreaterEqual(status, 500)
            self.assertIn("can no longer use the GPU", json.loads(text)["error"]["message"])
            self.assertEqual(server.text().count("ready at"), 1)


if __name__ == "__main__":
    unittest.main()
