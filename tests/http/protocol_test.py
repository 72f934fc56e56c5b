"""HTTP itself: framing, limits, timeouts, methods, keep-alive, shutdown."""
import contextlib
import json
import socket
import threading
import time
import unittest

from harness import Server, chat, chunks, encode, events, parse, read_all, read_response, read_until


class Protocol(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(max_header=8192, max_body=100_000, io_threads=2, leaks=True)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tearDown(self):
        self.assertEqual(self.server.json("GET", "/health"), (200, {"status": "ok"}))

    def assert_error(self, answer, status, kind="invalid_request_error"):
        got, headers, body = answer
        self.assertEqual(got, status, body)
        error = json.loads(body)["error"]
        self.assertEqual(sorted(error), ["code", "message", "param", "type"])
        self.assertEqual(error["type"], kind)
        self.assertTrue(error["message"])
        self.assertEqual(headers["content-type"], "application/json")

    def test_unknown_route_and_wrong_method(self):
        self.assert_error(self.server.request("GET", "/nope"), 404)
        answer = self.server.request("GET", "/v1/chat/completions")
        self.assert_error(answer, 405)
        self.assertEqual(answer[1]["allow"], "POST, OPTIONS")
        answer = self.server.request("DELETE", "/v1/models")
        self.assert_error(answer, 405)
        self.assertEqual(answer[1]["allow"], "GET, HEAD, OPTIONS")
        self.assert_error(self.server.request("BREW", "/health"), 405)

    def test_head_has_the_head_of_get(self):
        status, headers, body = self.server.request("GET", "/health")
        status2, headers2, body2 = self.server.request("HEAD", "/health")
        self.assertEqual((status, headers["content-length"], len(body)), (status2, headers2["content-length"], 15))
        self.assertEqual(body2, b"")

    def test_options(self):
        status, headers, body = self.server.request("OPTIONS", "/v1/chat/completions")
        self.assertEqual((status, body, headers["allow"]), (200, b"", "POST, OPTIONS"))
        self.assertNotIn("access-control-allow-origin", headers)
        self.assertEqual(self.server.request("OPTIONS", "*")[0], 200)
        self.assert_error(self.server.request("OPTIONS", "/nope"), 404)

    def test_keep_alive_and_pipelining(self):
        with self.server.connect() as s:
            for _ in range(3):
                s.sendall(encode("GET", "/health"))
                status, _, body, rest = read_response(s)
                self.assertEqual((status, body, rest), (200, b'{"status":"ok"}', b""))
            # Three at once: answers come in request order, regardless of how long each takes.
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[say one][slow 20]", "max_tokens": 9}) +
                      encode("GET", "/health") + encode("GET", "/nope"))
            status, _, body, rest = read_response(s)
            self.assertEqual(json.loads(body)["choices"][0]["text"], "one")
            status, _, body, rest = read_response(s, rest=rest)
            self.assertEqual(body, b'{"status":"ok"}')
            status, _, body, rest = read_response(s, rest=rest)
            self.assertEqual((status, rest), (404, b""))
            # A stream leaves the connection usable.
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[say two]", "stream": True}))
            status, _, body, rest = read_response(s)
            self.assertTrue(body.endswith(b"data: [DONE]\n\n"))
            s.sendall(encode("GET", "/health"))
            self.assertEqual(read_response(s)[0], 200)

    def test_http10(self):
        answer = self.server.raw(b"GET /health HTTP/1.0\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.0 200 OK\r\n"))
        self.assertIn(b"Connection: close\r\n", answer)
        body = json.dumps({"prompt": "[say old]", "stream": True}).encode()
        answer = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                                 % len(body) + body)
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)  # closing the connection ends the stream
        self.assertEqual(events(body)[-1], b"[DONE]")
        answer = self.server.raw(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /health HTTP/1.0\r\n\r\n")
        self.assertEqual(answer.count(b"200 OK"), 2)
        self.assertIn(b"Connection: keep-alive", answer)

    def test_expect_continue(self):
        body = json.dumps({"prompt": "[say ok]"}).encode()
        head = encode("POST", "/v1/completions", headers={"Expect": "100-continue", "Content-Length": len(body),
                                                          "Content-Type": "application/json"})
        with self.server.connect() as s:
            s.sendall(head)
            data = read_until(s, b"\r\n\r\n")
            self.assertEqual(data, b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(body)
            self.assertEqual(read_response(s)[0], 200)
        big = encode("POST", "/v1/completions", headers={"Expect": "100-continue", "Content-Length": 10**9})
        self.assertTrue(self.server.raw(big).startswith(b"HTTP/1.1 413 "))  # rejected before it is sent
        strange = encode("POST", "/v1/completions", headers={"Expect": "miracles", "Content-Length": 2})
        self.assertTrue(self.server.raw(strange).startswith(b"HTTP/1.1 417 "))

    def test_chunked_request(self):
        body = json.dumps({"prompt": "[say chunky]"}).encode()
        pieces = b"".join(b"%x;ext=1\r\n%s\r\n" % (1, body[i:i + 1]) for i in range(len(body))) + b"0\r\nTrailer: x\r\n\r\n"
        data = encode("POST", "/v1/completions",
                      headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json", "Connection": "close"})
        status, _, answer = parse(self.server.raw(data + pieces))
        self.assertEqual((status, json.loads(answer)["choices"][0]["text"]), (200, "chunky"))

    def test_a_rejected_request_may_be_sent_to_its_end(self):
        def send(pieces, size, pause):
            """The status, or None if this process stood still for so long that the server may have closed the connection."""
            longest, last = 0, time.monotonic()
            with self.server.connect() as s:
                try:
                    s.sendall(encode("POST", "/v1/completions", headers={"Content-Length": 10**9}))
                    for _ in range(pieces):
                        s.sendall(bytes(size))
                        time.sleep(pause)
                        longest, last = max(longest, time.monotonic() - last), time.monotonic()
                    status = read_response(s)[0]
                except OSError:
                    status = "closed"
                longest = max(longest, time.monotonic() - last)
            return status if longest < 1 else None

        # A large one, and one that takes longer than the server waits for a client that sends nothing.
        for case in ((40, 1_000_000, 0), (25, 1000, 0.1)):
            status = next((got for got in (send(*case) for _ in range(5)) if got is not None), None)
            if status is None:
                self.skipTest("the machine stood still in each of five attempts")
            self.assertEqual(status, 413, case)

    def test_limits(self):
        self.assert_error(self.server.request("GET", "/health", headers={"X-Big": "x" * 20000}), 431)
        self.assert_error(self.server.request("GET", "/" + "a" * 20000), 431)
        self.assert_error(self.server.request("POST", "/v1/completions", b"x" * 200_000), 413)
        data = encode("POST", "/v1/completions", headers={"Transfer-Encoding": "chunked"})
        self.assert_error(parse(self.server.raw(data + b"186a1\r\n" + b"x" * 100_001 + b"\r\n0\r\n\r\n")), 413)
        for endless in (b"1;" + b"x" * 500_000, b"1\r\n{\r\n0\r\nX: " + b"y" * 500_000, b"1\r\n{\r\n0\r\n" + b"X: y\r\n" * 90_000):
            self.assert_error(parse(self.server.raw(data + endless)), 431)  # heads of chunks and trailers

    def test_ambiguous_framing_is_refused(self):
        for headers in ("Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\nTransfer-Encoding: chunked",
                        "Transfer-Encoding: chunked\r\nContent-Length: 5", "Content-Length: -1", "Content-Length: 0x10",
                        "Content-Length: 99999999999999999999999", "Content-Length: "):
            answer = self.server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\nhello".encode())
            self.assertTrue(answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), (headers, answer))
            self.assertEqual(answer.count(b"HTTP/1.1"), 1, headers)  # none of it was parsed as a second request
        for coding in ("gzip, chunked", "identity", "xchunked", "chunked, chunked", "chunked\r\nTransfer-Encoding: chunked"):
            answer = self.server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n"
                                     "0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            self.assertTrue(answer.startswith((b"HTTP/1.1 501 ", b"HTTP/1.1 400 ")), (coding, answer))
            self.assertEqual(answer.count(b"HTTP/1.1"), 1, coding)

    def test_one_host(self):
        self.assert_error(parse(self.server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n")), 400)
        self.assert_error(parse(self.server.raw(b"GET /health HTTP/1.1\r\n\r\n")), 400)

    def test_empty_lines_before_a_request(self):
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        with self.server.connect() as s:
            for before in (b"\r\n", b"\r\n\r\n", b""):
                s.sendall(before + request)
                self.assertEqual(read_response(s)[0], 200)
            s.sendall(b"\r\n")  # alone: still waiting for a request
            time.sleep(0.05)
            s.sendall(request)
            self.assertEqual(read_response(s)[0], 200)

    def test_malformed_requests(self):
        for data in (b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
                     b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/1.1\r\n\x00: x\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
                     b"\x00" * 500, b"\xff" * 500, b"GET /a b HTTP/1.1\r\n\r\n", b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with self.subTest(data=data[:40]):
                with self.server.connect() as s:
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                    answer = read_all(s)
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer)
        answer = self.server.raw(b"GET http://test/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)  # absolute form is legal
        self.assert_error(self.server.request("GET", "/%F0%9F%92%A9/%00"), 404)

    def test_half_closed_clients_get_their_answers(self):
        """A client that sends no more still reads, as `nc -N` does."""
        tokens = encode("POST", "/tokenize", {"prompt": "a b"})
        ask = lambda stream: encode("POST", "/v1/completions", {"prompt": "[slow 30] [say hello]", "stream": stream})
        for stream in (False, True):
            for version in (b"1.0", b"1.1"):
                with self.subTest(stream=stream, version=version), contextlib.closing(self.server.connect()) as s:
                    s.sendall(ask(stream).replace(b"HTTP/1.1", b"HTTP/" + version))
                    s.shutdown(socket.SHUT_WR)
                    answer = read_all(s)
                    self.assertTrue(answer.startswith(b"HTTP/" + version + b" 200 OK\r\n"), answer)
                    self.assertEqual(answer.count(b"HTTP/"), 1)
                    status, _, body = parse(answer)
                    texts = [e["choices"][0]["text"] for e in chunks(body)] if stream else [json.loads(body)["choices"][0]["text"]]
                    self.assertEqual("".join(texts), "hello")
        with contextlib.closing(self.server.connect()) as s:  # lines of JSON: in the middle of a stream that has no pings
            s.sendall(encode("POST", "/api/chat", chat("[slow 30] [say hello]")))
            head = read_until(s, b"\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
            lines = parse(head + read_all(s))[2].splitlines()
            self.assertEqual("".join(json.loads(line)["message"]["content"] for line in lines), "hello")
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(ask(False) + tokens + ask(True))
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(read_all(s).count(b"HTTP/1.1 200 OK"), 3)
        for requests, answers in ((tokens, 1), (tokens + encode("GET", "/health") + tokens, 3), (tokens + tokens[:-4], 1),
                                  (encode("GET", "/v1/models") * 20, 20)):
            with self.subTest(requests=requests[:200]), contextlib.closing(self.server.connect()) as s:
                s.sendall(requests)
                s.shutdown(socket.SHUT_WR)
                self.assertEqual(read_all(s).count(b"HTTP/1.1 200 OK"), answers)

    def test_header_injection(self):
        body = chat("[say hi]", model="x\r\nSet-Cookie: a=b")
        status, headers, _ = self.server.request("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 404)
        self.assertNotIn("set-cookie", headers)

    def test_bytes_arrive_one_by_one(self):
        data = encode("POST", "/v1/completions", {"prompt": "[say slow]"}, {"Connection": "close"})
        with self.server.connect() as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(len(data)):
                s.sendall(data[i:i + 1])
            self.assertEqual(parse(read_all(s))[0], 200)


class Timeouts(unittest.TestCase):
    def test_slow_senders_are_cut(self):
        server = Server(read_ms=300, idle_ms=1500)
        try:
            with server.connect() as s:  # a request that never ends
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
                self.assertTrue(read_all(s).startswith(b"HTTP/1.1 408 "))
            with server.connect() as s:  # slowloris: sending a byte now and then does not help
                answer, start = b"", time.monotonic()
                s.settimeout(0.05)
                while not answer and time.monotonic() - start < 60:
                    try:
                        s.sendall(b"G")
                        answer = s.recv(1000)
                    except TimeoutError:
                        pass
                    except OSError:
                        break
                self.assertLess(time.monotonic() - start, 60)
            with server.connect() as s:  # an idle connection is not an error
                self.assertEqual(read_all(s), b"")
            with server.connect() as s:  # also between two requests
                s.sendall(encode("GET", "/health"))
                self.assertEqual(read_response(s)[0], 200)
                self.assertEqual(read_all(s), b"")
        finally:
            server.stop()

    def test_connection_limit(self):
        server = Server(max_connections=3)
        try:
            held = [server.connect() for _ in range(3)]
            for s in held:  # make sure that all three are accepted
                s.sendall(encode("GET", "/health"))
                self.assertEqual(read_response(s)[0], 200)
            for method, path, data in (("GET", "/v1/models", None), ("POST", "/v1/completions", {"prompt": "x" * 50_000})):
                status, headers, body = server.request(method, path, data)
                self.assertEqual((status, headers["retry-after"]), (503, "1"))
                self.assertEqual(json.loads(body)["error"]["type"], "unavailable_error")
            for path in ("/health", "/ready", "/metrics"):  # probes still get an answer
                status, headers, _ = server.request("GET", path, headers={"Connection": "keep-alive"})
                self.assertEqual((status, headers["connection"]), (200, "close"), path)
            silent = [server.connect() for _ in range(40)]  # more than there is room for
            self.assertTrue(any(b" 503 " in read_all(s) for s in silent[-4:]))
            for s in held + silent:
                s.close()
            end = time.monotonic() + 10
            while server.request("GET", "/v1/models")[0] != 200 and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(server.request("GET", "/v1/models")[0], 200)
        finally:
            server.stop()


class Shutdown(unittest.TestCase):
    def test_drains_answers_under_way(self):
        server = Server(drain_ms=20000)
        idle = server.connect()
        answers = []

        def ask(stream):
            answers.append(server.request("POST", "/v1/completions",
                                          {"prompt": "[slow 20]", "max_tokens": 40, "stream": stream}))

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for t in threads:
            t.start()
        self.assertEqual(server.wait_engine(lambda e: e["submitted"] == 2)["submitted"], 2)
        server.stop()
        for t in threads:
            t.join()
        self.assertEqual([a[0] for a in answers], [200, 200])
        for _, headers, body in answers:
            if "chunked" in headers.get("transfer-encoding", ""):
                self.assertEqual(events(body)[-1], b"[DONE]")
            else:
                self.assertEqual(json.loads(body)["usage"]["completion_tokens"], 40)
        self.assertEqual(read_all(idle), b"")
        idle.close()

    def test_gives_up_after_the_drain_time(self):
        server = Server(drain_ms=300)
        with server.connect() as s:
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[hold]", "stream": True}))
            head = read_until(s, b"\r\n\r\n")
            server.stop()
            data = events(parse(head + read_all(s))[2])
        self.assertEqual(json.loads(data[-2])["error"]["message"], "The server is shutting down.")
        self.assertEqual((json.loads(data[-2])["error"]["type"], data[-1]), ("unavailable_error", b"[DONE]"))

    def test_an_answer_that_takes_too_long_for_the_shutdown_is_503(self):
        server = Server(drain_ms=300)
        with server.connect() as s:
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[hold]"}))
            server.wait_engine(lambda e: e["submitted"] == 1)
            server.stop()
            status, _, body = parse(read_all(s))
        self.assertEqual((status, json.loads(body)["error"]["message"]), (503, "The server is shutting down."))

    def test_a_client_that_does_not_read_delays_the_shutdown_little(self):
        server = Server(drain_ms=200, send_buffer=8192)
        with server.connect(receive_buffer=4096) as s:
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[slow 1][burst 4]", "max_tokens": 4000, "logprobs": 20, "stream": True}))
            server.wait_engine(lambda e: e["tokens"] > 1000)
            start = time.monotonic()
            server.stop()
            self.assertLess(time.monotonic() - start, 20)

    def test_port_in_use(self):
        server = Server()
        try:
            with self.assertRaisesRegex(RuntimeError, "already in use"):
                Server(port=server.port)
        finally:
            server.stop()

    def test_idle_server_sleeps(self):
        server = Server()
        try:
            self.assertEqual(server.request("GET", "/health")[0], 200)
            time.sleep(0.3)
            before = server.cpu_seconds()
            time.sleep(2)
            self.assertLess(server.cpu_seconds() - before, 0.05)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
