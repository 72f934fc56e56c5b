"""Files and batches: what is uploaded, what is answered, and that a crash neither loses nor repeats an answer."""
import json
import os
import tempfile
import time
import unittest

from harness import Server, chat

BOUNDARY = "----edge of the form"
FORM = {"Content-Type": f'multipart/form-data; boundary="{BOUNDARY}"'}


def form(content, name="in;put\\\".jsonl", purpose="batch", **fields):
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    parts = [b'Content-Disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode(),
             f'Content-Type: application/jsonl\r\ncontent-disposition: form-data; name="file"; filename="{quoted}"\r\n\r\n'.encode() + content]
    parts += [f'Content-Disposition: form-data; name="{k}"\r\n\r\n{v}'.encode() for k, v in fields.items()]
    mark = b"--" + BOUNDARY.encode()
    return b"preamble\r\n" + b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"


def line(custom_id, text, url="/v1/chat/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {**chat(text), **more}})


class Client:
    def __init__(self, server, key=None):
        self.server, self.headers = server, {"Authorization": f"Bearer {key}"} if key else {}

    def json(self, method, path, body=None, headers=None):
        return self.server.json(method, path, body, {**self.headers, **(headers or {})})

    def upload(self, lines, **more):
        content = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
        status, card = self.json("POST", "/v1/files", form(content, **more), FORM)
        assert status == 200, card
        return card

    def create(self, file, endpoint="/v1/chat/completions", window="24h", **more):
        return self.json("POST", "/v1/batches", {"input_file_id": file, "endpoint": endpoint, "completion_window": window, **more})

    def wait(self, batch, statuses=("completed", "failed", "cancelled", "expired"), seconds=60):
        end = time.monotonic() + seconds
        while True:
            card = self.json("GET", f"/v1/batches/{batch}")[1]
            if card["status"] in statuses:
                return card
            assert time.monotonic() < end, card
            time.sleep(0.02)

    def content(self, file):
        status, _, data = self.server.request("GET", f"/v1/files/{file}/content", headers=self.headers)
        assert status == 200, data
        return data

    def results(self, file):
        return [json.loads(row) for row in self.content(file).decode().splitlines()] if file else []


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(env={"FAKE_BATCH_DIR": cls.folder.name, "FAKE_REQUEST_LOG": os.path.join(cls.folder.name, "log")})
        cls.client = Client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def test_expiry_is_what_the_client_asked_for(self):
        after = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
        card = self.client.upload([line("a", "[say x]")], **after)
        self.assertEqual(card["expires_at"] - card["created_at"], 7200)
        status, batch = self.client.create(card["id"], output_expires_after={"anchor": "created_at", "seconds": 3600})
        self.assertEqual(status, 200)
        output = self.client.json("GET", f"/v1/files/{self.client.wait(batch['id'])['output_file_id']}")[1]
        self.assertEqual(output["expires_at"] - output["created_at"], 3600)
        for wrong in ({"expires_after[seconds]": "7200"}, {**after, "expires_after[seconds]": "60"}, {**after, "expires_after[seconds]": "x"}):
            self.assertEqual(self.client.json("POST", "/v1/files", form(b"x", **wrong), FORM)[0], 400)
        self.assertEqual(self.client.create(card["id"], output_expires_after={"anchor": "created_at", "seconds": 1})[0], 400)

    def test_files(self):
        content = b'{"any": "bytes"}\r\n--' + BOUNDARY.encode()[:5] + b"\r\n\r\n\xff\0"
        card = self.client.upload(content)
        self.assertEqual((card["object"], card["bytes"], card["filename"], card["purpose"]), ("file", len(content), 'in;put\\".jsonl', "batch"))
        self.assertEqual(self.client.json("GET", f"/v1/files/{card['id']}"), (200, card))
        self.assertEqual(self.client.content(card["id"]), content)
        self.assertIn(card, self.client.json("GET", "/v1/files?purpose=batch")[1]["data"])
        self.assertEqual(self.client.json("DELETE", f"/v1/files/{card['id']}")[1], {"id": card["id"], "object": "file", "deleted": True})
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            self.assertEqual(self.client.json(method, f"/v1/files/{card['id']}{path}")[0], 404)
        for path in ("../lock", "%2e%2e%2flock", "../batches/x.json", "x" * 5000, "a/b/c/content"):
            self.assertEqual(self.client.json("GET", f"/v1/files/{path}")[0], 404, path)

    def test_wrong_forms(self):
        good = form(b"x")
        mark = b"--" + BOUNDARY.encode()
        nameless = mark + b"\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + mark + b"--"
        for body, headers, expected in ((good, {"Content-Type": "application/json"}, "multipart/form-data"), (good, {"Content-Type": "multipart/form-data"}, "boundary"),
                                        (good[:-6], FORM, "closing boundary"), (b"", FORM, "boundary"), (mark, FORM, "closing boundary"), (nameless, FORM, "no name"),
                                        (form(b"x", purpose="fine-tune"), FORM, "'batch' only"), (mark + b"--", FORM, "no 'file'"),
                                        (b"".join(mark + b'\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' for _ in range(100)) + mark + b"--", FORM, "more than")):
            status, data = self.client.json("POST", "/v1/files", body, headers)
            self.assertEqual(status, 400, data)
            self.assertIn(expected, data["error"]["message"])
        for cut in range(0, len(good) - 2, 7):  # any cut is an error, never a crash
            self.assertEqual(self.client.json("POST", "/v1/files", good[:cut], FORM)[0], 400)

    def test_answers(self):
        file = self.client.upload([line("a", "[say one]"), "", line("b", "[say two]", temperature=9), line("c", "[error]"), line("d", "[say four]") + "\r"])
        status, batch = self.client.create(file["id"], metadata={"for": "test"})
        self.assertEqual((status, batch["status"], batch["object"], batch["metadata"]), (200, "validating", "batch", {"for": "test"}))
        done = self.client.wait(batch["id"])
        self.assertEqual((done["status"], done["request_counts"]), ("completed", {"total": 4, "completed": 2, "failed": 2}))
        self.assertLessEqual(done["created_at"], done["in_progress_at"])
        self.assertLessEqual(done["in_progress_at"], done["completed_at"])
        good = {r["custom_id"]: r["response"] for r in self.client.results(done["output_file_id"])}
        self.assertEqual({k: v["body"]["choices"][0]["message"]["content"] for k, v in good.items()}, {"a": "one", "d": "four"})
        bad = {r["custom_id"]: r["response"] for r in self.client.results(done["error_file_id"])}
        self.assertEqual({k: v["status_code"] for k, v in bad.items()}, {"b": 400, "c": 500})
        self.assertIn(done, self.client.json("GET", "/v1/batches?limit=100")[1]["data"])
        self.assertEqual(self.client.json("POST", f"/v1/batches/{batch['id']}/cancel")[1], done)

    def test_other_endpoints(self):
        body = {"model": "fake", "prompt": "[say p]"}
        row = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body}
        done = self.client.wait(self.client.create(self.client.upload([json.dumps(row)])["id"], "/v1/completions")[1]["id"])
        self.assertEqual(self.client.results(done["output_file_id"])[0]["response"]["body"]["choices"][0]["text"], "p")

    def test_wrong_input(self):
        for rows, expected in ((["{"], "the line"), (["[]"], "not an object"), ([line("", "x")], "custom_id"), ([line("a", "x", url="/v1/completions")], "endpoint"),
                               ([line("a", "x"), line("a", "y")], "used twice"), ([line("a", "x").replace("POST", "GET")], "method"), ([line("a", "x", stream=True)], "streamed"),
                               ([json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"})], "body"), ([], "no requests"), (["\xff" * 10], "the line")):
            done = self.client.wait(self.client.create(self.client.upload(rows)["id"])[1]["id"])
            self.assertEqual((done["status"], done["output_file_id"]), ("failed", None))
            self.assertIn(expected, done["errors"]["data"][0]["message"])
        many = self.client.wait(self.client.create(self.client.upload(["{"] * 1000)["id"])[1]["id"])
        self.assertEqual((len(many["errors"]["data"]), many["errors"]["data"][99]["line"]), (100, 100))

    def test_wrong_requests(self):
        file = self.client.upload([line("a", "x")])["id"]
        for change, status in (({"input_file_id": "file-x"}, 404), ({"input_file_id": 3}, 400), ({"endpoint": "/metrics"}, 400), ({"completion_window": "soon"}, 400),
                               ({"completion_window": "24"}, 400), ({"metadata": {"a": 1}}, 400), ({"metadata": {str(i): "" for i in range(20)}}, 400), ({"endpoint": None}, 400)):
            body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
            self.assertEqual(self.client.json("POST", "/v1/batches", body)[0], status, change)
        self.assertEqual(self.client.json("GET", "/v1/batches/batch_x")[0], 404)
        self.assertEqual(self.client.json("POST", "/v1/batches/batch_x/cancel")[0], 404)
        self.assertEqual(self.client.json("GET", "/v1/batches?limit=x")[0], 400)
        self.assertEqual(self.client.json("GET", "/v1/batches?after=x")[0], 400)

    def test_cancel_and_pages(self):
        file = self.client.upload([line(f"r{i}", f"[slow {i * 40}][say x]") for i in range(200)])
        batch = self.client.create(file["id"])[1]["id"]
        waiting = self.client.create(file["id"])[1]["id"]
        self.assertEqual(self.client.json("DELETE", f"/v1/files/{file['id']}")[0], 409)
        while self.client.json("GET", f"/v1/batches/{batch}")[1]["request_counts"]["completed"] < 3:
            time.sleep(0.01)
        before = self.server.engine()["cancelled"]
        self.assertIn(self.client.json("POST", f"/v1/batches/{batch}/cancel")[1]["status"], ("cancelling", "cancelled"))
        self.client.json("POST", f"/v1/batches/{waiting}/cancel")
        done = self.client.wait(batch)
        self.assertEqual(done["status"], "cancelled")
        rows = self.client.results(done["output_file_id"]) + self.client.results(done["error_file_id"])
        self.assertEqual(sorted(r["custom_id"] for r in rows), sorted(f"r{i}" for i in range(200)))
        self.assertEqual(done["request_counts"]["total"], 200)
        self.assertGreater(self.server.wait_engine(lambda state: state["cancelled"] > before)["cancelled"], before)
        self.assertEqual(self.client.wait(waiting)["request_counts"], {"total": 200, "completed": 0, "failed": 200})
        seen, after = [], ""
        while True:
            page = self.client.json("GET", f"/v1/batches?limit=1{after}")[1]
            seen += [b["id"] for b in page["data"]]
            if not page["has_more"]:
                break
            after = "&after=" + page["last_id"]
        self.assertEqual(len(seen), len(set(seen)))
        self.assertLessEqual({batch, waiting}, set(seen))


class Restart(unittest.TestCase):
    def test_a_killed_server_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = [f"r{i}" for i in range(150)]
            server = Server(env={"FAKE_BATCH_DIR": folder})
            with self.assertRaisesRegex(RuntimeError, "another server uses this folder"):
                Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            file = client.upload([line(i, f"[slow 10][say {i}]") for i in ids])
            batch = client.create(file["id"])[1]["id"]
            for reached in (20, 60):
                while client.json("GET", f"/v1/batches/{batch}")[1]["request_counts"]["completed"] < reached:
                    time.sleep(0.005)
                server.process.kill()
                server.process.communicate()
                with open(os.path.join(folder, "batches", f"{batch}.output"), "a") as f:
                    f.write('{"custom_id": "r14')  # a line that a crash cut
                server = Server(env={"FAKE_BATCH_DIR": folder})
                client = Client(server)
            done = client.wait(batch)
            self.assertEqual((done["status"], done["request_counts"]["completed"]), ("completed", 150))
            rows = client.results(done["output_file_id"])
            self.assertEqual(sorted(r["custom_id"] for r in rows), sorted(ids))
            self.assertTrue(all(r["response"]["body"]["choices"][0]["message"]["content"] == r["custom_id"] for r in rows))
            # An orderly stop in the middle of a batch; then the finished one is still there.
            second = client.create(file["id"])[1]["id"]
            client.wait(second, ("in_progress",))
            server.stop()
            server = Server(env={"FAKE_BATCH_DIR": folder}, leaks=True)
            client = Client(server)
            self.assertEqual(client.json("GET", f"/v1/batches/{batch}")[1], done)
            self.assertEqual(len(client.results(client.wait(second)["output_file_id"])), 150)
            server.stop()
            # Damaged records are left out, also of a batch that would go on; the others are listed.
            path = os.path.join(folder, "batches", f"{second}.json")
            with open(path) as f:
                record = {**json.load(f), "status": "validating"}
            with open(os.path.join(folder, "files", "file-0.json"), "w") as f:
                f.write("[1]")
            os.remove(path)
            changes = {"batch_1": {"times": "x"}, "batch_2": {"times": {"validating_at": "x"}}, "batch_3": {"id": "batch_0"}, "batch_4": {"order": 1e300}}
            for name, damaged in {"batch_5": "{", **{name: json.dumps({**record, "id": name, **change}) for name, change in changes.items()}}.items():
                with open(os.path.join(folder, "batches", f"{name}.json"), "w") as f:
                    f.write(damaged)
            server = Server(env={"FAKE_BATCH_DIR": folder})
            self.assertEqual([b["id"] for b in Client(server).json("GET", "/v1/batches")[1]["data"]], [batch])
            server.stop()

    def test_results_survive_a_batch_that_cannot_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            file = client.upload([line("a", "[say a]"), line("b", "[hold]")])
            batch = client.create(file["id"])[1]["id"]
            while client.json("GET", f"/v1/batches/{batch}")[1]["request_counts"]["completed"] < 1:
                time.sleep(0.005)
            server.stop()
            os.remove(os.path.join(folder, "files", file["id"]))
            server = Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            done = client.wait(batch)
            self.assertEqual((done["status"], [r["custom_id"] for r in client.results(done["output_file_id"])]), ("failed", ["a"]))
            self.assertIn("cannot open", done["errors"]["data"][0]["message"])
            server.stop()

    def test_full_queue_is_tried_again(self):
        """A refused request waits; the batch expires at last."""
        with tempfile.TemporaryDirectory() as folder:
            server = Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            batch = client.create(client.upload([line("a", "[full]"), line("b", "[say b]")])["id"], window="1m")[1]
            while client.json("GET", f"/v1/batches/{batch['id']}")[1]["request_counts"]["completed"] < 1:
                time.sleep(0.01)
            self.assertEqual(client.json("GET", f"/v1/batches/{batch['id']}")[1]["status"], "in_progress")
            server.stop()
            path = os.path.join(folder, "batches", batch["id"] + ".json")
            with open(path) as f:
                record = json.load(f)
            record["expires_at"] = record["created_at"]  # as if a minute had passed
            with open(path, "w") as f:
                json.dump(record, f)
            server = Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            done = client.wait(batch["id"])
            self.assertEqual((done["status"], done["request_counts"]), ("expired", {"total": 2, "completed": 1, "failed": 1}))
            self.assertEqual([(r["custom_id"], r["error"]["code"]) for r in client.results(done["error_file_id"])], [("a", "batch_expired")])
            server.stop()


class Keys(unittest.TestCase):
    def test_a_batch_without_a_key_ends_when_keys_are_required(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(env={"FAKE_BATCH_DIR": folder})
            client = Client(server)
            batch = client.create(client.upload([line("a", "[say a]"), line("b", "[hold]"), line("c", "[hold]")])["id"])[1]["id"]
            while client.json("GET", f"/v1/batches/{batch}")[1]["request_counts"]["completed"] < 1:
                time.sleep(0.005)
            server.process.kill()
            server.process.communicate()
            record = os.path.join(folder, "batches", batch + ".json")
            server = Server(env={"FAKE_BATCH_DIR": folder, "FAKE_API_KEY": "secret"})
            end = time.monotonic() + 60
            status = ""
            while status != "failed" and time.monotonic() < end:
                with open(record) as f:
                    status = json.load(f)["status"]
                time.sleep(0.02)
            self.assertEqual(status, "failed")
            self.assertEqual((Client(server).json("GET", f"/v1/batches/{batch}")[0], Client(server, "secret").json("GET", f"/v1/batches/{batch}")[0]), (401, 404))
            server.stop()
            server = Server(env={"FAKE_BATCH_DIR": folder})  # it belongs to all who use a server without keys
            client = Client(server)
            done = client.wait(batch)
            self.assertEqual([r["custom_id"] for r in client.results(done["output_file_id"])], ["a"])
            self.assertEqual([(r["custom_id"], r["error"]["code"]) for r in client.results(done["error_file_id"])], [("b", "invalid_api_key"), ("c", "invalid_api_key")])
            server.stop()

    def test_tenants_do_not_see_each_other(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w") as f:
                f.write("first-key running=1\nsecond-key\n")
            env = {"FAKE_KEY_FILE": keys, "FAKE_BATCH_DIR": os.path.join(folder, "data")}
            server = Server(env=env)
            first, second, stranger = Client(server, "first-key"), Client(server, "second-key"), Client(server)
            file = first.upload([line(f"r{i}", "[slow 20][say x]") for i in range(12)])
            self.assertEqual(stranger.json("GET", "/v1/files")[0], 401)
            self.assertEqual(second.json("GET", "/v1/files")[1]["data"], [])
            self.assertEqual(second.json("GET", f"/v1/files/{file['id']}")[0], 404)
            self.assertEqual(second.create(file["id"])[0], 404)
            batch = first.create(file["id"])[1]["id"]
            self.assertEqual(second.json("POST", f"/v1/batches/{batch}/cancel")[0], 404)
            # One at a time is the key's limit: refused requests are sent again.
            self.assertEqual(first.wait(batch)["request_counts"], {"total": 12, "completed": 12, "failed": 0})
            # The key itself is not on disk; without it the batch cannot go on.
            late = first.create(first.upload([line(f"r{i}", "[slow 500][say x]") for i in range(20)])["id"])[1]["id"]
            server.stop()
            for path, _, names in os.walk(env["FAKE_BATCH_DIR"]):
                for name in names:
                    with open(os.path.join(path, name), "rb") as f:
                        self.assertNotIn(b"first-key", f.read(), name)
            with open(keys, "w") as f:
                f.write("second-key\nthird-key\n")
            server = Server(env=env)
            state = Client(server, "second-key").json("GET", f"/v1/batches/{late}")
            self.assertEqual(state[0], 404)
            record = os.path.join(env["FAKE_BATCH_DIR"], "batches", late + ".json")
            for _ in range(500):
                with open(record) as f:
                    status = json.load(f)["status"]
                if status == "failed":
                    break
                time.sleep(0.02)
            self.assertEqual(status, "failed")
            server.stop()

    def test_old_files_and_batches_are_deleted(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(env={"FAKE_BATCH_DIR": folder}, batch_retention=1)
            client = Client(server)
            client.create(client.upload([line("a", "[say x]")])["id"])
            left = None
            for _ in range(1000):
                client.json("GET", "/v1/batches")
                client.json("GET", "/v1/files")
                left = [name for _, _, names in os.walk(folder) for name in names]
                if left == ["lock"]:
                    break
                time.sleep(0.02)
            self.assertEqual(left, ["lock"])
            server.stop()

    def test_the_number_of_files_is_bounded(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(env={"FAKE_BATCH_DIR": folder}, batch_max_files=2)
            client = Client(server)
            files = [client.upload([line("a", "[say x]")])["id"] for _ in range(2)]
            for status, answer in (client.json("POST", "/v1/files", form(b"x"), FORM), client.create(files[0])):
                self.assertEqual((status, answer["error"]["code"]), (429, "too_many_files"))
            client.json("DELETE", f"/v1/files/{files[1]}")
            client.wait(client.create(files[0])[1]["id"])
            self.assertEqual(len(client.json("GET", "/v1/files")[1]["data"]), 2)
            server.stop()

    def test_without_a_folder(self):
        server = Server()
        status, data = server.json("POST", "/v1/batches", {})
        self.assertEqual(status, 404)
        self.assertIn("--batch-dir", data["error"]["message"])
        server.stop()


if __name__ == "__main__":
    unittest.main()
