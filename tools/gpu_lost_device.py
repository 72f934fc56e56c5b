#!/usr/bin/env python3
"""A kernel crashes under the server: requests have to get errors; the server starts itself again and gives the same answers as before.

    tools/gpu_lost_device.py MODEL [--tokamak build/release/tokamak] [--rounds 2]

Needs a GPU and a C compiler. tests/cuda/lost_device.c is put between the server and the CUDA driver; it crashes a kernel on request, for real, so
that the driver answers every later call of the context with an error. Exits with 1 if the server ended, hung, or answered otherwise than it has to.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

KEY = "admin"


def real_driver():
    for line in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines():
        if "libcuda.so.1" in line and "x86-64" in line:
            return line.split("=>")[1].strip()
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") + ["/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/lib64"]:
        if folder and os.path.exists(f"{folder}/libcuda.so.1"):
            return f"{folder}/libcuda.so.1"
    sys.exit("no libcuda.so.1")


def build_driver(folder):
    """The replaced driver depends on the real one by its path, and so has all of its functions."""
    source = pathlib.Path(__file__).parent.parent / "tests/cuda/lost_device.c"
    driver = real_driver()
    empty = folder / "empty.c"
    empty.write_text("")
    subprocess.run(["gcc", "-shared", "-fPIC", empty, "-o", folder / "libreal.so", f"-Wl,-soname,{driver}"], check=True)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f'-DREAL_DRIVER="{driver}"', source, "-o", folder / "libcuda.so.1", "-Wl,--no-as-needed",
                    folder / "libreal.so", "-ldl"], check=True)
    (folder / "libreal.so").unlink()


class Server:
    def __init__(self, args, folder):
        env = dict(os.environ, LOST_DEVICE=str(folder / "now"), LD_LIBRARY_PATH=f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        self.process = subprocess.Popen([args.tokamak, "serve", args.model, "--port", "0", "--backend", "cuda", "--admin-key", KEY,
                                         "--kv-blocks", "256", "--context", "1024"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        text = ""
        while "ready at" not in text:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"no server: {text}")
            text += line
        self.port = int(re.search(r"http://[^:\s]+:(\d+)", text).group(1))
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            if "CUDA" in line or "error" in line.lower():
                print("  server:", line.strip()[:160])

    def post(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
            answer = c.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            c.close()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            c.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
            answer = c.getresponse()
            return answer.status, answer.read().decode()
        finally:
            c.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--rounds", type=int, default=2)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        build_driver(folder)
        server = Server(args, folder)
        try:
            return check(args, server, folder)
        finally:
            server.process.kill()


def check(args, server, folder):
    wrong = []
    model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
    ask = {"model": model, "prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}

    def expect(condition, what):
        print(("ok    " if condition else "WRONG ") + what)
        if not condition:
            wrong.append(what)

    status, first = server.post("/v1/completions", ask)
    expect(status == 200, f"before: status {status}")
    for _ in range(args.rounds):
        background = []

        def run_long():
            background.append(server.post("/v1/completions", {**ask, "max_tokens": 400, "ignore_eos": True}))

        threads = [threading.Thread(target=run_long) for _ in range(8)]
        for t in threads:
            t.start()
        time.sleep(0.1)
        (folder / "now").touch()
        for t in threads:
            t.join()
        failed = [(s, a) for s, a in background if s >= 500]
        expect(failed and len(background) == 8, f"a kernel crashes: {len(failed)} of 8 running requests get an error, e.g. {json.dumps(failed[0][1])[:200] if failed else background}")
        start = time.monotonic()
        status = 503  # the old process stops; connections then wait for the new one
        while status == 503 and time.monotonic() - start < 300:
            status, answer = server.post("/v1/completions", ask)
        same = status == 200 and answer["choices"][0]["text"] == first["choices"][0]["text"]
        expect(same, f"the same answer as before after {time.monotonic() - start:.1f} s: status {status} {'' if status == 200 else json.dumps(answer)[:200]}")
        expect(server.get("/v1/models")[0] == 200 and server.process.poll() is None, "the server is the same process")
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
