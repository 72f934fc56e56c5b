#!/usr/bin/env python3
"""Embedding throughput next to sentence-transformers: 1,000 texts of 8 to 256 tokens, float32, on the CPU.

    bench/embed_peers.py [--model FOLDER] [--texts 1000] [--skip 0] [--rounds 3] [--threads N] [--activations f32,bf16]

The engines run in turn, one after the other, as often as --rounds says; the best time of each counts, and the least processor time (user and
system), which a busy machine changes little. The server is started once and receives the texts
over HTTP in batches (tokenising and JSON are part of its time); sentence-transformers runs in this process with its own batches sorted by
length. Needs torch and sentence-transformers in the Python that runs it, and a release build.
"""
import argparse
import base64
import concurrent.futures
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time
import urllib.request

import served

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = ("time year people way day man thing woman life child world school state family student group country problem hand part place "
         "case week company system program question work government number night point home water room mother area money story fact "
         "month lot right study book eye job word business issue side kind head house service friend father power hour game line").split()


def texts_of(count):
    """Lengths are spread evenly over 8 to 256 tokens; nearly every word is one token."""
    rng = random.Random(1)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(6, 254))) for _ in range(count)]


class Tokamak:
    def __init__(self, binary, model, threads, batch, activations):
        self.name = f"tokamak {activations}"
        self.batch = batch
        self.server = served.Server(binary, model, "--threads", threads, "--activations", activations)
        self.url = self.server.url + "/v1/embeddings"

    def post(self, texts):
        body = json.dumps({"input": texts, "encoding_format": "base64", "truncate_prompt_tokens": -1}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            data = json.load(answer)["data"]
        raw = [base64.b64decode(d["embedding"]) for d in data]
        return [struct.unpack(f"<{len(r) // 4}f", r) for r in raw]

    def encode(self, texts):
        parts = [texts[i:i + self.batch] for i in range(0, len(texts), self.batch)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return [v for part in pool.map(self.post, parts) for v in part]

    def cpu_seconds(self):
        return self.server.cpu_seconds()

    def close(self):
        self.server.stop()


class SentenceTransformers:
    name = "sentence-transformers"

    def __init__(self, model, threads):
        import sentence_transformers
        import torch
        torch.set_num_threads(threads)
        self.model = sentence_transformers.SentenceTransformer(model, device="cpu")

    def encode(self, texts):
        return self.model.encode(texts, batch_size=32, show_progress_bar=False).tolist()

    def cpu_seconds(self):
        return time.process_time()

    def close(self):
        pass


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-minilm-l6-v2", help="a folder, or a name that tools/get_model.py knows")
    parser.add_argument("--binary", default=str(ROOT / "build" / "release" / "tokamak"))
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0, help="texts before the first one, to measure all of them in several runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--activations", default="f32,bf16", help="servers to start, by their --activations; sentence-transformers has float32")
    parser.add_argument("--batch", type=int, default=64, help="texts per HTTP request")
    args = parser.parse_args()
    model = args.model
    if not pathlib.Path(model).exists():
        model = subprocess.run([sys.executable, ROOT / "tools" / "get_model.py", "--model", model], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.strip().splitlines()[-1]
    texts = texts_of(args.skip + args.texts)[args.skip:]
    engines = [Tokamak(args.binary, model, args.threads, args.batch, a) for a in args.activations.split(",")]
    peer = SentenceTransformers(model, args.threads)
    engines.append(peer)
    times, cpu, vectors = {e.name: [] for e in engines}, {e.name: [] for e in engines}, {}
    for engine in engines:
        engine.encode(texts[:64])  # warm up
    for _ in range(args.rounds):
        for engine in engines:
            start, cpu_start = time.perf_counter(), engine.cpu_seconds()
            vectors[engine.name] = engine.encode(texts)
            times[engine.name].append(time.perf_counter() - start)
            cpu[engine.name].append(engine.cpu_seconds() - cpu_start)
    for engine in engines:
        engine.close()
    for engine in engines:
        best, rounds = min(times[engine.name]), ", ".join(f"{t:.2f}" for t in times[engine.name])
        print(f"{engine.name:24} {args.texts / best:8.1f} texts/s   best of {rounds} s   processor time {min(cpu[engine.name]):.2f} s")
    for engine in engines[:-1]:
        ratio, saved = (min(of[peer.name]) / min(of[engine.name]) for of in (times, cpu))
        worst = min(cosine(a, b) for a, b in zip(vectors[engine.name], vectors[peer.name]))
        print(f"{engine.name}: ratio {ratio:.2f}, of processor time {saved:.2f}, worst cosine {worst:.7f}, {args.threads} threads")


if __name__ == "__main__":
    main()
