"""Answers of the Responses API in the background: created, asked for, followed, cancelled, deleted, forgotten."""
import contextlib
import json
import time
import unittest

from compat_test import named_events
from harness import Server, encode, parse, read_until

PATH = "/v1/responses"


class Background(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ping_ms=100000)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def create(self, text, status=200, **more):
        got, data = self.server.json("POST", PATH, {"input": text, "background": True, **more})
        self.assertEqual(got, status, data)
        return data

    def get(self, answer, status=200, headers=None):
        got, data = self.server.json("GET", f"{PATH}/{answer['id']}", headers=headers)
        self.assertEqual(got, status, data)
        return data

    def wait(self, answer, *statuses):
        end = time.monotonic() + 20
        while (data := self.get(answer))["status"] not in statuses and time.monotonic() < end:
            time.sleep(0.02)
        self.assertIn(data["status"], statuses, data)
        return data

    def events(self, answer, query=""):
        status, headers, body = self.server.request("GET", f"{PATH}/{answer['id']}?stream=true{query}")
        self.assertEqual(status, 200, body)
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        return named_events(body)

    def test_an_answer(self):
        first = self.create("[hold][say One]", metadata={"a": "b"})
        self.assertEqual((first["status"], first["background"], first["output"], first["usage"], first["model"], first["metadata"]),
                         ("queued", True, [], None, "fake", {"a": "b"}))
        self.assertIn(self.get(first)["status"], ("queued", "in_progress"))
        got, refused = self.server.json("POST", PATH, {"input": "x", "previous_response_id": first["id"]})
        self.assertEqual((got, refused["error"]["param"]), (400, "previous_response_id"))  # it has not been stored yet
        self.server.json("POST", f"{PATH}/{first['id']}/cancel")
        done = self.wait(self.create("[say One]"), "completed")
        plain = self.server.json("POST", PATH, {"input": "[say One]"})[1]
        self.assertEqual([i["content"] for i in done["output"]], [i["content"] for i in plain["output"]])
        self.assertEqual(done["usage"]["output_tokens"], 3)
        self.assertEqual({k for k in done if k not in plain}, set())
        items = self.server.json("GET", f"{PATH}/{done['id']}/input_items")[1]["data"]
        self.assertEqual(items[0]["content"][0]["text"], "[say One]")
        second = self.server.json("POST", PATH, {"input": "again", "previous_response_id": done["id"]})[1]
        self.assertEqual(second["output"][0]["content"][0]["text"], "One")
        short = self.wait(self.create("[say One]", max_output_tokens=2), "completed", "incomplete")
        self.assertEqual((short["status"], short["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))

    def test_it_starts(self):
        answer = self.create("[slow 100][say One two three]")
        self.wait(answer, "in_progress")
        self.wait(answer, "completed")

    def test_cancel(self):
        answer = self.create("[hold]")
        self.assertEqual(self.server.engine()["running"], 1)
        for _ in range(2):  # again: nothing changes
            got, data = self.server.json("POST", f"{PATH}/{answer['id']}/cancel")
            self.assertEqual((got, data["status"], data["id"]), (200, "cancelled", answer["id"]))
        self.assertEqual(self.server.wait_engine(lambda e: e["running"] == 0)["running"], 0)
        self.assertEqual(self.get(answer)["status"], "cancelled")
        done = self.wait(self.create("[say One]"), "completed")  # too late: it stays as it is
        self.assertEqual(self.server.json("POST", f"{PATH}/{done['id']}/cancel"), (200, done))
        plain = self.server.json("POST", PATH, {"input": "[say One]"})[1]
        self.assertEqual(self.server.json("POST", f"{PATH}/{plain['id']}/cancel")[0], 400)
        self.assertEqual(self.server.json("POST", f"{PATH}/resp_x/cancel")[0], 404)

    def test_delete_ends_it(self):
        answer = self.create("[hold]")
        self.assertEqual(self.server.json("DELETE", f"{PATH}/{answer['id']}")[1]["deleted"], True)
        self.assertEqual(self.server.wait_engine(lambda e: e["running"] == 0)["running"], 0)
        self.get(answer, 404)

    def test_errors(self):
        self.assertEqual(self.create("x", 400, store=False)["error"]["param"], "background")
        self.assertEqual(self.create("x", 400, temperature=9)["error"]["param"], "temperature")  # known at once
        self.assertEqual(self.create("[full]", 429)["error"]["code"], "queue_full")
        failed = self.wait(self.create("[error]"), "failed")
        self.assertEqual((failed["error"]["code"], failed["output"]), ("server_error", []))
        self.assertTrue(failed["error"]["message"])
        answer = self.create("[say One]")
        for query, param in (("stream=true", "stream"),):
            got, data = self.server.json("GET", f"{PATH}/{answer['id']}?{query}")
            self.assertEqual((got, data["error"]["param"]), (400, param))

    def test_a_stream_goes_on_without_its_client(self):
        body = {"input": "[slow 20][say One two three]", "background": True, "stream": True}
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(encode("POST", PATH, body))
            begun = read_until(s, b"output_text.delta")
        answer = {"id": "resp_" + begun.split(b"resp_")[1][:32].decode()}
        events = self.events(answer)  # from the beginning, and then as they come
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual((events[0]["type"], events[-1]["type"]), ("response.created", "response.completed"))
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), "One two three")
        self.assertEqual(self.get(answer), events[-1]["response"])
        for after in (0, 3, len(events) - 2, len(events) - 1):
            rest = self.events(answer, f"&starting_after={after}") if after < len(events) - 1 else []
            self.assertEqual(rest, events[after + 1:])
        for bad in ("x", "-1", "99999999999999999999"):
            got, data = self.server.json("GET", f"{PATH}/{answer['id']}?stream=true&starting_after={bad}")
            self.assertEqual((got, data["error"]["param"]), (400, "starting_after"))
        status, _, whole = self.server.request("POST", PATH, {**body, "input": "[say One]"})  # a client that stays
        self.assertEqual((status, named_events(whole)[-1]["type"]), (200, "response.completed"))
        failed = named_events(self.server.request("POST", PATH, {**body, "input": "[error]"})[2])[-1]
        self.assertEqual(failed["type"], "response.failed")
        self.assertEqual(self.get(failed["response"])["status"], "failed")

    def test_cancelling_ends_the_stream(self):
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(encode("POST", PATH, {"input": "[hold]", "background": True, "stream": True}, {"Connection": "close"}))
            begun = read_until(s, b"response.in_progress")
            answer = {"id": "resp_" + begun.split(b"resp_")[1][:32].decode()}
            self.assertEqual(self.server.json("POST", f"{PATH}/{answer['id']}/cancel")[1]["status"], "cancelled")
            while more := s.recv(65536):
                begun += more
        self.assertEqual(named_events(parse(begun)[2])[-1]["type"], "response.failed")
        self.assertEqual(self.get(answer)["status"], "cancelled")


class Others(unittest.TestCase):
    def test_stopping_does_not_wait_for_them(self):
        server = Server(leaks=True)
        for stream in (False, True):
            with contextlib.closing(server.connect()) as s:
                s.sendall(encode("POST", PATH, {"input": "[hold]", "background": True, "stream": stream}))
                read_until(s, b"in_progress" if stream else b"queued")
        self.assertEqual(server.engine()["running"], 2)
        server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
