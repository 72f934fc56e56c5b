"""Spans for an OpenTelemetry collector: their content, sampling, and a collector that is slow, away or refuses."""
import http.server
import json
import socket
import threading
import time
import unittest

from harness import Server


class Collector:
    """Answers with the given statuses in turn, then 200; keeps the spans that it accepted."""

    def __init__(self, statuses=(), delay=0):
        self.spans, self.paths, self.bodies, statuses = [], [], [], list(statuses)
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(delay)
                status = statuses.pop(0) if statuses else 200
                collector.paths.append((self.path, self.headers["Content-Type"], status))
                if status == 200:
                    collector.bodies.append(body)
                    for resource in body["resourceSpans"]:
                        for scope in resource["scopeSpans"]:
                            collector.spans += scope["spans"]
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def wait(self, count, seconds=30):
        end = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.01)
        return self.spans


def plain(span):
    """The attributes as a dictionary."""
    out = {}
    for entry in span["attributes"]:
        (kind, value), = entry["value"].items()
        out[entry["key"]] = int(value) if kind == "intValue" else value
    return out


def spans_total(server, result):
    for line in server.request("GET", "/metrics")[2].decode().splitlines():
        if line.startswith(f'tokamak_trace_spans_total{{result="{result}"}}'):
            return float(line.split()[-1])


class Traces(unittest.TestCase):
    def test_spans(self):
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        with Collector() as collector:
            server = Server(env={"FAKE_COLLECTOR": collector.url})
            begin = time.time()
            for body, flags in (({"prompt": "[cached 3][say abc]"}, "01"), ({"prompt": "[say abc]", "stream": True}, "03"),
                                ({"prompt": "x", "n": "many"}, "01"), ({"prompt": "[say abc]"}, "00")):
                server.request("POST", "/v1/completions", body, {"traceparent": f"00-{trace}-{parent}-{flags}"})
            server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "[say hi]"}]})
            spans = collector.wait(4)
            self.assertEqual(len(spans), 4)
            while spans_total(server, "sent") != 4:  # the answer of the collector may still be on its way
                time.sleep(0.01)
            self.assertEqual(spans_total(server, "discarded"), 0)
            server.stop()
        self.assertEqual(collector.paths[0], ("/v1/traces", "application/json", 200))
        self.assertEqual(collector.bodies[0]["resourceSpans"][0]["resource"]["attributes"], [{"key": "service.name", "value": {"stringValue": "tokamak"}}])
        for span in spans:
            self.assertRegex(span["traceId"] + span["spanId"], "^[0-9a-f]{48}$")
            start, end = int(span["startTimeUnixNano"]) * 1e-9, int(span["endTimeUnixNano"]) * 1e-9
            self.assertTrue(begin - 1 < start <= end < time.time() + 1, (begin, start, end))
            self.assertEqual(span["kind"], 2)
        self.assertEqual([s.get("parentSpanId") for s in spans], [parent] * 3 + [None])
        self.assertEqual([s["traceId"] == trace for s in spans], [True] * 3 + [False])
        self.assertEqual([s["name"] for s in spans], ["POST /v1/completions"] * 3 + ["POST /v1/chat/completions"])
        first, streamed, refused, chat = map(plain, spans)
        self.assertEqual((first["gen_ai.usage.cached_tokens"], first["gen_ai.usage.output_tokens"], first["gen_ai.request.model"]), (3, 3, "fake"))
        self.assertEqual((first["gen_ai.usage.input_tokens"], first["gen_ai.usage.completion_tokens"]), (first["gen_ai.usage.prompt_tokens"], 3))
        self.assertEqual((first["gen_ai.operation.name"], chat["gen_ai.operation.name"]), ("text_completion", "chat"))
        self.assertTrue(0 < streamed["gen_ai.latency.time_to_first_token"] <= streamed["gen_ai.latency.e2e"])
        self.assertEqual(spans[1]["events"][0]["name"], "first token")
        self.assertEqual((refused["http.response.status_code"], spans[2]["status"]["code"]), (400, 2))
        self.assertIn("n", spans[2]["status"]["message"])
        self.assertNotIn("status", spans[0])

    def test_a_collector_that_recovers_gets_everything(self):
        with Collector([503, 429]) as collector:
            server = Server(env={"FAKE_COLLECTOR": collector.url + "/other/path"})
            for _ in range(3):
                self.assertEqual(server.json("POST", "/v1/completions", {"prompt": "[say x]"})[0], 200)
            self.assertEqual(len(collector.wait(3)), 3)
            server.stop()
        self.assertEqual([(p, s) for p, _, s in collector.paths], [("/other/path", 503), ("/other/path", 429), ("/other/path", 200)])

    def test_what_a_collector_refuses_is_discarded(self):
        with Collector([400]) as collector:
            server = Server(env={"FAKE_COLLECTOR": collector.url})
            server.json("POST", "/v1/completions", {"prompt": "[say x]"})
            end = time.monotonic() + 30
            while spans_total(server, "discarded") != 1 and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual((spans_total(server, "discarded"), spans_total(server, "sent")), (1, 0))
            server.json("POST", "/v1/completions", {"prompt": "[say x]"})
            self.assertEqual(len(collector.wait(1)), 1)
            server.stop()

    def test_requests_do_not_wait(self):
        """The collector is away, or accepts connections and never answers; the server also stops."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            for port in (1, silent.getsockname()[1]):
                server = Server(env={"FAKE_COLLECTOR": f"http://127.0.0.1:{port}"})
                for _ in range(20):
                    self.assertEqual(server.json("POST", "/v1/completions", {"prompt": "[say x]"})[0], 200)
                begin = time.monotonic()
                server.stop()
                self.assertLess(time.monotonic() - begin, 30)

    def test_bad_addresses(self):
        for url in ("https://localhost:4318", "localhost:4318", "http://", "grpc://x:1"):
            with self.assertRaisesRegex(RuntimeError, "write it as http://host:port"):
                Server(env={"FAKE_COLLECTOR": url})

    def test_spans_that_wait_are_sent_at_the_end(self):
        with Collector() as collector:
            server = Server(env={"FAKE_COLLECTOR": collector.url})
            server.json("POST", "/v1/completions", {"prompt": "[say x]"})
            server.stop()
            self.assertEqual(len(collector.spans), 1)


if __name__ == "__main__":
    unittest.main()
