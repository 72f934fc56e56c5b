#!/usr/bin/env python3
"""A decode step of a dense decoder in PyTorch on the GPU, as a peer: every operation of the step in one CUDA graph.

    bench/torch_decode.py [--shape llama-8b] [--batch 1,16,64] [--context 512] [--prefill 128,1024,4096] [--compile]

Random bf16 weights; norms, products (cuBLAS), rotation, attention over a dense cache (scaled_dot_product_attention), head and argmax. Medians of
CUDA events. Products alone are the same graph without the rest. --compile runs the layer through torch.compile first.
"""
import argparse
import statistics

import torch
import torch.nn.functional as F

SHAPES = {"llama-8b": (4096, 14336, 32, 32, 8, 128, 128256), "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128, 151936)}


class Model:
    def __init__(self, shape, compiled):
        self.hidden, self.ffn, self.layers, self.heads, self.kv, self.dim, self.vocab = SHAPES[shape]
        new = lambda *s: torch.randn(*s, device="cuda", dtype=torch.bfloat16) * s[-1] ** -0.5
        rows = (self.heads + 2 * self.kv) * self.dim
        self.w = [(new(rows, self.hidden), new(self.hidden, self.heads * self.dim), new(2 * self.ffn, self.hidden), new(self.hidden, self.ffn),
                   torch.ones(self.hidden, device="cuda", dtype=torch.bfloat16)) for _ in range(self.layers)]
        self.head, self.embedding = new(self.vocab, self.hidden), new(self.vocab, self.hidden)
        self.run = torch.compile(self.layer) if compiled else self.layer

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def layer(self, x, w, cache, cos, sin):
        qkv_w, out_w, up_w, down_w, gain = w
        tokens = x.shape[1]
        qkv = (F.rms_norm(x, (self.hidden,), gain) @ qkv_w.T).view(x.shape[0], tokens, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv, self.kv), 1)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if cache is None:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            cache[0][:, :, -1:] = k
            cache[1][:, :, -1:] = v
            a = F.scaled_dot_product_attention(q, cache[0], cache[1], enable_gqa=True)
        x = x + a.transpose(1, 2).reshape(x.shape[0], tokens, -1) @ out_w.T
        gate, up = (F.rms_norm(x, (self.hidden,), gain) @ up_w.T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ down_w.T

    def step(self, ids, caches, cos, sin):
        x = self.embedding[ids]
        for i, w in enumerate(self.w):
            x = self.run(x, w, caches[i] if caches else None, cos, sin)
        return (x[:, -1] @ self.head.T).argmax(-1)

    def products(self, x, wide, ffn):
        for qkv_w, out_w, up_w, down_w, _ in self.w:
            x @ qkv_w.T, wide @ out_w.T, x @ up_w.T, ffn @ down_w.T
        x @ self.head.T


def time_graph(f, repeat=20):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    times = []
    for _ in range(repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


@torch.inference_mode()
def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="llama-8b", choices=SHAPES)
    p.add_argument("--batch", default="1,16,64")
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--prefill", default="")
    p.add_argument("--compile", action="store_true")
    args = p.parse_args()
    m = Model(args.shape, args.compile)
    new = lambda *s: torch.randn(*s, device="cuda", dtype=torch.bfloat16)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {args.shape}")
    for b in map(int, args.batch.split(",")):
        caches = [(new(b, m.kv, args.context + 1, m.dim), new(b, m.kv, args.context + 1, m.dim)) for _ in range(m.layers)]
        ids, cos, sin = torch.ones(b, 1, dtype=torch.long, device="cuda"), new(1, m.dim // 2), new(1, m.dim // 2)
        ms = time_graph(lambda: m.step(ids, caches, cos, sin))
        x, wide, ffn = new(b, m.hidden), new(b, m.heads * m.dim), new(b, m.ffn)
        alone = time_graph(lambda: m.products(x, wide, ffn))
        print(f"decode B={b} after {args.context}: {ms:.3f} ms, {b / ms * 1e3:.0f} tokens/s; products alone {alone:.3f} ms", flush=True)
        del caches
    for n in map(int, filter(None, args.prefill.split(","))):
        ids, cos, sin = torch.ones(1, n, dtype=torch.long, device="cuda"), new(n, m.dim // 2), new(n, m.dim // 2)
        print(f"prefill {n}: {time_graph(lambda: m.step(ids, None, cos, sin), 5):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
