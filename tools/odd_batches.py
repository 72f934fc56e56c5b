"""Odd forms, damaged batch files, and batch folders that are damaged between two starts: cases of odd_clients.py."""
import json
import pathlib
import random
import shutil
import signal
import tempfile
import time

from odd_clients import Server, completion, is_in

def form(parts, mark=b"B", end=True, newline=b"\r\n"):
    return b"".join(b"--" + mark + newline + head + newline * 2 + body + newline for head, body in parts) + (b"--" + mark + b"--" + newline if end else b"")


PURPOSE = (b'Content-Disposition: form-data; name="purpose"', b"batch")


def upload(server, body, kind="multipart/form-data; boundary=B"):
    return server.post("/v1/files", body, content_type=kind)


def odd_forms(server):
    file = lambda name, body=b"x", more=b"": (b'Content-Disposition: form-data; name="file"; filename="' + name + b'"' + more, body)
    good = [form([PURPOSE, file(b"a.jsonl")]), form([file(b"a"), PURPOSE]), form([PURPOSE, file(b"\xe4\xff\xfe.jsonl")]), form([PURPOSE, file(b"\xe2\x82")]), form([PURPOSE, file(b"a\x00b\x01\x7f")]), form([PURPOSE, file(b"../../etc/passwd")]), form([PURPOSE, file(b"x" * 5000)]),
            form([PURPOSE, file(b"a", more=b"; filename*=UTF-8''%e2%82%ac.jsonl")]), form([PURPOSE, file(b"")]), form([PURPOSE, file(b"a", b"")]), form([PURPOSE, PURPOSE, file(b"a")]), form([PURPOSE, file(b"a"), file(b"b")]), form([PURPOSE, file(b"a", b"\r\n--B\r\nnot the end")])]
    wrong = [b"", b"--B", b"--B--", b"--B\r\n\r\n--B--", form([PURPOSE]), form([file(b"a")]), form([PURPOSE, file(b"a")], end=False), form([PURPOSE, file(b"a")], newline=b"\n"), form([PURPOSE, file(b"a")], mark=b"C"), form([(b"no header", b"x")]), form([(b"Content-Disposition: form-data; name=", b"x")]), form([(b'Content-Disposition: form-data; name="', b"x")]),
             form([(b"", b"x")]), b"--B\r\n" * 1000, b"\r\n--B" * 100000]
    seen = []
    for body in good:
        status, card = upload(server, body)
        is_in(status, 200, 400)
        seen.append(status)
        if status == 200:
            is_in(server.request("GET", f"/v1/files/{card['id']}")[0], 200)
            is_in(server.request("DELETE", f"/v1/files/{card['id']}")[0], 200)
    for body in wrong:
        is_in(upload(server, body)[0], 400)
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="B', "multipart/mixed; boundary=B", "multipart/form-data; boundary=" + "B" * 71, "multipart/form-data; charset=x; BOUNDARY=B", 'multipart/form-data; boundary="B"; x=y'):
        is_in(upload(server, good[0], kind)[0], 200, 400)
    is_in(server.request("GET", "/v1/files")[0], 200)
    return f"{seen.count(200)} of {len(good)} odd forms taken"


def batch_line(n, **body):
    return json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": completion(4, **body)}).encode()


def start_batch(server, lines):
    status, card = upload(server, form([PURPOSE, (b'Content-Disposition: form-data; name="file"; filename="a"', b"\n".join(lines))]))
    is_in(status, 200)
    status, batch = server.post("/v1/batches", {"input_file_id": card["id"], "endpoint": "/v1/completions", "completion_window": "24h"})
    is_in(status, 200)
    return batch["id"]


def wait_batch(server, batch, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, card = server.request("GET", f"/v1/batches/{batch}")
        if status != 200 or card["status"] in ("completed", "failed", "expired", "cancelled"):
            return status, card
        time.sleep(0.1)
    raise AssertionError(f"{batch} does not end: {card}")


def damaged_batch_input(server):
    for lines in ([b"\xff\xfe"], [batch_line(0), b"{"], [batch_line(0).replace(b"upon", b"\xe2\x82")], [batch_line(0), batch_line(0)], [b"[]"], [b"null"], [b"\x00" * 1000], [batch_line(0)[:-3]], [b'{"custom_id":"\\ud800","method":"POST","url":"/v1/completions","body":{}}'], [b"[" * 100000], [b"\xef\xbb\xbf" + batch_line(0)]):
        status, card = wait_batch(server, start_batch(server, lines))
        is_in(card["status"], "failed", "completed")
        assert card["status"] == "completed" or card["errors"]["data"][0]["message"], card
    card = wait_batch(server, start_batch(server, [batch_line(0), batch_line(1, max_tokens=-5), batch_line(2, temperature="hot"), batch_line(3, model="none")]))[1]
    is_in(json.dumps(card["request_counts"]), json.dumps({"total": 4, "completed": 1, "failed": 3}))


def damaged_folders(args):
    """Batches across restarts with records, files and results that are damaged on disk: the server starts, answers, and never ends by itself."""
    rng, ends = random.Random(5), {}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, folder, "--batch-concurrency", "1")
        done = start_batch(server, [batch_line(i) for i in range(3)])
        wait_batch(server, done)
        batch = start_batch(server, [batch_line(i, max_tokens=60) for i in range(200)])
        while server.request("GET", f"/v1/batches/{batch}")[1]["request_counts"]["completed"] < 3:
            time.sleep(0.05)
        server.stop(signal.SIGKILL)
        kept = pathlib.Path(folder) / "kept"
        shutil.copytree(pathlib.Path(folder) / "batch", kept)
        record = json.loads(next(kept.rglob(f"{batch}.json")).read_text())
        damages = [("record", {**record, key: value}) for key in record for value in (None, 3, "x", [], {}, -1e300)]
        damages += [("record without", {k: v for k, v in record.items() if k != key}) for key in record]
        damages = rng.sample(damages, 22) + [("bytes", name) for name in (f"{batch}.json", f"{batch}.output", record["input_file_id"], record["input_file_id"] + ".json")] + [("cut", name) for name in (f"{batch}.json", f"{batch}.output", record["input_file_id"])] + [("gone", name) for name in (f"{batch}.output", record["input_file_id"], record["input_file_id"] + ".json")]
        for kind, what in damages:
            shutil.rmtree(pathlib.Path(folder) / "batch")
            shutil.copytree(kept, pathlib.Path(folder) / "batch")
            path = next((pathlib.Path(folder) / "batch").rglob(f"{batch}.json" if isinstance(what, dict) else what))
            if isinstance(what, dict):
                path.write_text(json.dumps(what))
            elif kind == "gone":
                path.unlink()
            else:
                data = bytearray(path.read_bytes())
                for _ in range(20):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                path.write_bytes(bytes(data[:len(data) // 2]) if kind == "cut" else bytes(data))
            server = Server(args, folder)
            try:
                for _ in range(3):
                    is_in(server.request("GET", "/v1/batches")[0], 200)
                    is_in(server.request("GET", "/v1/files")[0], 200)
                    status, card = server.request("GET", f"/v1/batches/{batch}")
                    is_in(status, 200, 404)
                    time.sleep(0.1)
                ends[card.get("status", "not listed")] = ends.get(card.get("status", "not listed"), 0) + 1
                is_in(server.request("POST", f"/v1/batches/{batch}/cancel")[0], 200, 404)
                is_in(wait_batch(server, done)[0], 200)
                assert server.process.poll() is None
                is_in(server.stop(), 0)
            except (AssertionError, ConnectionError, OSError) as e:
                server.process.kill()
                changed = next((k for k in record if isinstance(what, dict) and what.get(k, "-") != record[k]), what if isinstance(what, str) else "")
                raise AssertionError(f"{kind} {changed} {what.get(changed) if isinstance(what, dict) else ''}: {e}")
    return f"{len(damages)} damages: " + ", ".join(f"{v} {k}" for k, v in sorted(ends.items()))


CASES = [odd_forms, damaged_batch_input]
