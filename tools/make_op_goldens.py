#!/usr/bin/env python3
"""Writes tests/golden/ops/cases.json: inputs and expected outputs of ops, computed in float64 with numpy.

Written from docs/ops.md alone, with whole-array numpy instead of loops, so that it shares no bugs with src/ops.
Run it again only when the documented meaning of an op changes:  python3 tools/make_op_goldens.py
"""
import json
import math
import pathlib

import numpy as np

from keyed_noise import gumbel
from recurrent_goldens import sequence_states

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "ops" / "cases.json"
rng = np.random.default_rng(20261115)
cases = []


def rand(*dims, scale=1.0):
    return np.round(rng.standard_normal(dims) * scale, 3)


def pack(x):
    if isinstance(x, dict):  # a state or a view
        return x
    x = np.asarray(x)
    if x.dtype.kind in "ib":
        return {"dims": list(x.shape), "i": [int(v) for v in x.ravel()]}
    return {"dims": list(x.shape), "f": [float(v) if np.isfinite(v) else str(float(v)) for v in x.ravel()]}


def case(op, inputs, outputs, attrs=None, name=""):
    cases.append({"name": f"{op}{'.' + name if name else ''}", "op": op, "attrs": attrs or {},
                  "in": [pack(x) for x in inputs], "out": [pack(x) for x in outputs]})


def i32(*values):
    return np.array(values, dtype=np.int32)


def elementwise():
    a, b = rand(2, 3, 4), rand(3, 1)
    for op, f in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
                  "maximum": np.maximum, "minimum": np.minimum}.items():
        case(op, [a, b], [f(a, b)], name="broadcast")
        c, d = rand(4), rand(2, 1, 4) + 3
        case(op, [c, d], [f(c, d)], name="left")
    m, n = i32([5, -7, 9], [1, 2, -3]), i32(2, -2, 4)
    case("add", [m, n], [m + n], name="int")
    case("div", [m, n], [np.trunc(m / n).astype(np.int32)], name="int")
    x = rand(3, 5)
    positive = np.abs(x) + 0.1
    for op, f, arg in [("neg", np.negative, x), ("abs", np.abs, x), ("exp", np.exp, x), ("log", np.log, positive),
                       ("sqrt", np.sqrt, positive), ("rsqrt", lambda v: v ** -0.5, positive),
                       ("square", np.square, x), ("sin", np.sin, x), ("cos", np.cos, x), ("tanh", np.tanh, x),
                       ("erf", np.vectorize(math.erf), x), ("sigmoid", lambda v: 0.5 * (1 + np.tanh(v / 2)), x),
                       ("relu", lambda v: np.where(v > 0, v, 0), x)]:
        case(op, [arg], [f(arg)])
    case("scale", [x], [x * 0.125], {"value": 0.125})
    case("cast", [x * 3], [np.trunc(x * 3).astype(np.int32)], {"dtype": "i32"}, "to_int")
    case("cast", [m], [m.astype(np.float64)], {"dtype": "f32"}, "from_int")
    case("cast", [x], [x.astype(np.float32).astype(np.float16).astype(np.float64)], {"dtype": "f16"}, "half")
    y = x.copy()
    y[0] = rand(5)
    for kind, f in {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
                    "ge": np.greater_equal, "gt": np.greater}.items():
        case("compare", [x, y], [f(x, y).astype(np.int32)], {"kind": kind}, kind)
    condition = i32([1], [0], [2])
    case("select", [condition, x, rand(5) * 0 + 9], [np.where(condition != 0, x, 9.0)])


def shapes():
    x = rand(2, 3, 4)
    case("reshape", [x], [x.reshape(6, 4)], {"dims": ["6", "4"], "axes": ["t", "d"]})
    case("transpose", [x], [np.transpose(x, (2, 0, 1))], {"perm": [2, 0, 1]})
    case("slice", [x], [x[:, 1:3]], {"axis": 1, "start": 1, "end": 3})
    case("slice", [x], [x[..., 2:4]], {"axis": -1, "start": 2, "end": "4"}, "last")
    y = rand(2, 1, 4)
    case("concat", [x, y, x], [np.concatenate([x, y, x], 1)], {"axis": 1})
    case("broadcast", [y], [np.broadcast_to(y, (2, 3, 4))], {"dims": [2, 3, 4], "axes": ["a", "b", "c"]})
    case("iota", [], [np.arange(5, dtype=np.int32)], {"n": "5"})
    w, index = rand(5, 3), i32(4, -1, 0, 4)
    rows = w[index]
    rows[1] = 0
    case("gather", [w, index], [rows])
    case("gather", [x, i32([1, 0], [2, 2])], [np.take(x, np.array([[1, 0], [2, 2]]), axis=1)], {"axis": 1}, "axis")
    case("embed", [index, w], [rows])
    values = np.array([[1.0, 5, 5, 2, 5], [0, 0, 0, 0, 0], [-1, -2, 7, -4, 0.5]])
    order = np.argsort(-values, axis=1, kind="stable")[:, :3]
    case("top_k", [values], [np.take_along_axis(values, order, 1), order.astype(np.int32)], {"k": 3}, "ties")
    for axis, keep in [(0, 0), (1, 1), (2, 0), (-1, 1)]:
        for op, f in {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_mean": np.mean}.items():
            case(op, [x], [f(x, axis=axis, keepdims=bool(keep))], {"axis": axis, "keep": keep}, f"{axis}.{keep}")


def products():
    a, b = rand(2, 1, 3, 5), rand(4, 5, 2)
    case("matmul", [a, b], [a @ b], name="batch")
    case("matmul", [a[0, 0], b[0]], [a[0, 0] @ b[0]])
    x, w, bias = rand(2, 3, 19), rand(7, 19), rand(7)
    case("linear", [x, w], [x @ w.T])
    case("linear", [x[0], w, bias], [x[0] @ w.T + bias], name="bias")
    t = rand(4, 6)
    la, lb, adapter = rand(3, 2, 6), rand(3, 5, 2), i32(2, -1, 0, 2)
    y = np.zeros((4, 5))
    for row in (0, 2, 3):
        y[row] = lb[adapter[row]] @ (la[adapter[row]] @ t[row])
    case("lora", [t, la, lb, adapter], [y])
    q = rand(2, 64)
    q[1, :32] = 0
    scale = np.abs(q.reshape(2, 2, 32)).max(-1, keepdims=True) / 127
    safe = np.where(scale == 0, 1, scale)
    case("quantize", [q], [(np.rint(q.reshape(2, 2, 32) / safe) * scale).reshape(2, 64)], {"format": "q8a"})


def norms():
    x, w, bias = rand(3, 10, scale=2), rand(10) + 1, rand(10)
    case("rms_norm", [x, w], [x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-5) * w], {"eps": 1e-5})
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    case("layer_norm", [x, w, bias], [normal * w + bias], {"eps": 1e-5}, "bias")
    case("layer_norm", [x, w], [normal * w], {"eps": 1e-5})
    wild = x * 400
    e = np.exp(wild - wild.max(-1, keepdims=True))
    case("softmax", [wild], [e / e.sum(-1, keepdims=True)])
    case("silu", [x], [x / (1 + np.exp(-x))])
    case("gelu", [x], [0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))], {"approximate": "tanh"},
         "tanh")
    case("gelu", [x], [0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))], {"approximate": "none"}, "none")
    case("softcap", [x * 10], [5 * np.tanh(x * 10 / 5)], {"cap": 5.0})


def sampling():
    """Stages of sampling on rows of logits, with whole-row numpy."""
    params_n, keys_n, stages_n, v = 15, 10, 9, 37
    neutral = np.array([1, 0, 1, 0, 1, 0, 0.1, 1, 0, 0, 0, 1.75, 0, 0, 1])
    (temperature, top_k, top_p, min_p, typical_p, xtc_p, xtc_t, repetition, presence, frequency, dry_m, dry_b, sigma, dyn_range, dyn_exp) = range(params_n)
    (_, _, choice, position, prompt, dry_allowed, dry_last, mask_row, target, tops) = range(keys_n)

    def settings(rows, **columns):
        p, k = np.tile(neutral, (rows, 1)), np.zeros((rows, keys_n), dtype=np.int32)
        k[:, dry_last], k[:, mask_row], k[:, target], k[:, tops] = -1, -1, -1, -1
        for name, values in columns.items():
            index = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p, "xtc_p": xtc_p,
                     "xtc_t": xtc_t, "repetition": repetition, "presence": presence, "frequency": frequency, "dry_m": dry_m, "dry_b": dry_b,
                     "sigma": sigma, "dyn_range": dyn_range, "dyn_exp": dyn_exp}.get(name)
            if index is not None:
                p[:, index] = values
            else:
                k[:, {"prompt": prompt, "dry_allowed": dry_allowed, "dry_last": dry_last, "mask": mask_row, "target": target, "tops": tops,
                      "choice": choice, "position": position, "seed": 0}[name]] = values
        return p, k

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def keep(x, kept):
        return np.where(kept, x, -np.inf)

    x = rand(3, v, scale=3)
    history, starts = i32(4, 4, 9, 4, 30, 9, 1, 2, 3, 1, 2), i32(0, 6, 6, 11)
    p, k = settings(3, repetition=[1.3, 2, 1], presence=[0.5, 1, 0.25], frequency=[0.2, 1, 0.125], prompt=[2, 0, 1])
    y = x.copy()
    for r in range(3):
        all_ids, out = history[starts[r]:starts[r + 1]], history[starts[r]:starts[r + 1]][k[r, prompt]:]
        seen, count = np.isin(np.arange(v), all_ids), np.bincount(out, minlength=v)
        y[r] = np.where(seen, np.where(y[r] > 0, y[r] / p[r, repetition], y[r] * p[r, repetition]), y[r])
        y[r] -= np.where(count > 0, p[r, frequency] * count + p[r, presence], 0)
    case("penalize_tokens", [x, p, k, history, starts], [y])

    history, starts = i32(5, 1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 6, 6, 6, 6, 1, 2, 9, 1, 2), i32(0, 12, 16, 21)
    breakers, breaker_start = i32(9, 8), i32(0, 1, 1, 2)
    p, k = settings(3, dry_m=[0.8, 0.5, 1], dry_b=[1.75, 2, 1.5], dry_allowed=[2, 1, 2], dry_last=[-1, -1, 4])
    y = x.copy()
    for r in range(3):
        ids = list(history[starts[r]:starts[r + 1]])
        if k[r, dry_last] >= 0:
            ids = ids[-k[r, dry_last]:]
        stop = set(breakers[breaker_start[r]:breaker_start[r + 1]])
        best = {}
        for c in range(1, len(ids)):
            n = 0
            while n < c and ids[c - 1 - n] == ids[len(ids) - 1 - n] and ids[len(ids) - 1 - n] not in stop:
                n += 1
            best[ids[c]] = max(best.get(ids[c], 0), n)
        for token, n in best.items():
            if n >= max(1, k[r, dry_allowed]) and token not in stop:
                y[r, token] -= p[r, dry_m] * p[r, dry_b] ** (n - k[r, dry_allowed])
    assert (y != x).any()
    case("penalize_repeats", [x, p, k, history, starts, breakers, breaker_start], [y])

    bias_ids, bias_values, bias_start = i32(3, 3, 0), np.array([1.5, -0.25, -np.inf]), i32(0, 2, 2, 3)
    y = x.copy()
    y[0, 3] += 1.25
    y[2, 0] = -np.inf
    case("bias_tokens", [x, bias_ids, bias_values, bias_start], [y])
    bits = rng.integers(0, 2, (2, v))
    words = np.zeros((2, 2), dtype=np.int64)
    for i in range(v):
        words[:, i // 32] |= bits[:, i] << (i % 32)
    words = words.astype(np.uint32).astype(np.int32)
    p, k = settings(3, mask=[1, -1, 0])
    case("allow_tokens", [x, words, k], [np.stack([keep(x[0], bits[1]), x[1], keep(x[2], bits[0])])])

    t = np.array([0.5, 0.0, 2.0])
    p, k = settings(3, temperature=t)
    case("temper", [x, p, k], [np.stack([x[0] / 0.5, x[1], x[2] / 2])])
    masked = x.copy()
    masked[2, 5:20] = -np.inf
    p, k = settings(3, temperature=[0.5, 1, 1.5], dyn_range=[0.4, 2, 0.7], dyn_exp=[1, 2, 0.5])
    y = masked.copy()
    for r in range(3):  # the temperature as in llama.cpp's temp_ext, rounded to f32
        q = softmax(masked[r])
        q = q[q > 0]
        low, high = max(0, p[r, temperature] - p[r, dyn_range]), p[r, temperature] + p[r, dyn_range]
        share = (-(q * np.log(q)).sum() / np.log(np.isfinite(masked[r]).sum())) ** p[r, dyn_exp]
        y[r] = masked[r] / np.float64(np.float32(low + (high - low) * share))
    case("temper", [masked, p, k], [y], {}, "dynamic")
    p, k = settings(3, sigma=[1, 0, 0.5])
    case("keep_top_n_sigma", [masked, p, k],
         [np.stack([keep(masked[0], masked[0] >= masked[0].max() - masked[0].std()), masked[1],
                    keep(masked[2], masked[2] >= masked[2].max() - 0.5 * masked[2][np.isfinite(masked[2])].std())])])
    p, k = settings(3, min_p=[0.2, 0, 0.9])
    case("keep_min_p", [x, p, k], [np.stack([keep(x[r], softmax(x[r]) >= p[r, min_p] * softmax(x[r]).max() * (1 - 1e-12)) for r in range(3)])])
    tied = np.round(x)
    rank = np.argsort(np.argsort(-tied, axis=1, kind="stable"), axis=1, kind="stable")
    p, k = settings(3, top_k=[5, 0, 40])
    case("keep_top_k", [tied, p, k], [np.stack([keep(tied[0], rank[0] < 5), tied[1], tied[2]])])
    order = np.argsort(-x, axis=1, kind="stable")

    def nucleus(row, wanted):
        by_rank = softmax(row)[np.argsort(-row, kind="stable")]
        n = int(np.searchsorted(np.cumsum(by_rank), wanted)) + 1
        return keep(row, np.isin(np.arange(v), np.argsort(-row, kind="stable")[:n]))
    p, k = settings(3, top_p=[0.9, 1, 0.3])
    case("keep_top_p", [x, p, k], [np.stack([nucleus(x[0], 0.9), x[1], nucleus(x[2], 0.3)])])

    def typical(row, wanted):
        q = softmax(row)
        distance = np.abs(-np.log(q) + (q * np.log(q)).sum())
        by_distance = np.argsort(distance, kind="stable")
        n = int(np.searchsorted(np.cumsum(q[by_distance]), wanted, side="right")) + 1
        return keep(row, np.isin(np.arange(v), by_distance[:n]))
    p, k = settings(3, typical_p=[0.5, 1, 0.9])
    case("keep_typical", [x, p, k], [np.stack([typical(x[0], 0.5), x[1], typical(x[2], 0.9)])])
    p, k = settings(3, xtc_p=[1, 0, 1], xtc_t=[0.05, 0.05, 0.6])  # always, never, and a threshold that cannot hold
    likely = order[0][softmax(x[0])[order[0]] >= 0.05]
    assert len(likely) > 1
    case("exclude_top", [x, p, k], [np.stack([keep(x[0], ~np.isin(np.arange(v), likely[:-1])), x[1], x[2]])])

    stages = np.full((3, stages_n), -1, dtype=np.int32)
    stages[0, :3] = [5, 2, 3]  # top-p before the temperature, then top-k
    stages[1, :1] = [3]
    p, k = settings(3, temperature=[0.5, 0, 1], top_p=0.8, top_k=4)
    first = nucleus(x[0], 0.8) / 0.5
    first = keep(first, np.isin(np.arange(v), order[0][:4]))
    case("run_stages", [x, p, k, i32(0), i32(0, 0, 0, 0), i32(0), i32(0, 0, 0, 0), stages], [np.stack([first, x[1], x[2]])])

    wild = x.copy()
    wild[1, 7] = np.nan
    p, k = settings(6, temperature=0, target=[-1, -1, -2, 5, -1, -1])
    logits = np.stack([x[0], wild[1], x[0], x[1], x[2], tied[2]])
    rows = logits.copy()
    rows[4] = -np.inf
    rows[0, order[0, 0]] = -np.inf
    chosen = [order[0, 1], -3, -1, 5, -2, int(np.argmax(tied[2]))]
    case("choose_token", [rows, logits, p, k], [np.array(chosen, dtype=np.int32)], name="greedy")
    p, k = settings(4, temperature=0.7, seed=i32(7, 7, 8, 9), choice=[0, 1, 0, 0], position=[3, 3, 3, 4])
    noise = np.array([[gumbel(int(k[r, 0]), int(k[r, choice]), int(k[r, position]), token) for token in range(v)] for r in range(4)])
    logits = np.stack([x[0], x[0], x[1], x[2]])
    case("choose_token", [logits, logits, p, k], [np.argmax(logits + noise, axis=1).astype(np.int32)], name="noise")

    p, k = settings(3, tops=[2, -1, 0])
    log_p = np.log(softmax(x))
    ids = i32(4, 5, 6)
    case("token_logprobs", [x, ids, k, i32(0, 2, 1)],
         [np.array([log_p[0, 4], 0, log_p[2, 6]]), i32([order[0, 0], -1, order[0, 1]], [-1] * 3, [-1] * 3),
          np.array([[log_p[0, order[0, 0]], 0, log_p[0, order[0, 1]]], [0] * 3, [0] * 3])])


def rope():
    x, pos = rand(3, 2, 8), i32(0, 7, 1000)
    for half, scale in [(4, 1.0), (3, 1.25)]:
        inv = 10000.0 ** (-np.arange(half) / half)
        z = (x[..., :half] + 1j * x[..., half:2 * half]) * np.exp(1j * pos[:, None, None] * inv) * scale
        y = x.copy()
        y[..., :half], y[..., half:2 * half] = z.real, z.imag
        case("rope", [x, pos, inv], [y], {"scale": scale} if scale != 1 else {}, f"{2 * half}of8")


class Batch:
    """Several sequences of different length in shuffled blocks; the last own[b] slots of each are the step's rows."""
    def __init__(self, kv_len, own, planes, block_size=4, blocks=16, hole=None):
        self.kv_len, self.own, self.planes, self.block_size = kv_len, own, planes, block_size
        self.q_start = np.concatenate([[0], np.cumsum(own)]).astype(np.int32)
        self.seq = np.repeat(np.arange(len(own)), own).astype(np.int32)
        self.slot = np.concatenate([np.arange(n - c, n) for n, c in zip(kv_len, own)]).astype(np.int32)
        self.pos = self.slot.copy()
        stride = max(-(-n // block_size) for n in kv_len) + 1
        free = list(rng.permutation(blocks))
        self.table = -np.ones((len(kv_len), stride), dtype=np.int32)
        for b, n in enumerate(kv_len):
            for j in range(-(-n // block_size)):
                if hole is None or not hole(b, j):
                    self.table[b, j] = free.pop()
        self.data = {name: rand(blocks * block_size, *dims) for name, dims in planes.items()}

    def state(self, data=None):
        data = self.data if data is None else data
        return {"state": [{"name": n, **pack(data[n])} for n in self.planes]}

    def view(self):
        return {"view": {"table": [int(v) for v in self.table.ravel()], "stride": self.table.shape[1],
                         "block_size": self.block_size}}

    def physical(self, b, slots):
        blocks = self.table[b, slots // self.block_size]
        return np.where(blocks < 0, -1, blocks * self.block_size + slots % self.block_size)

    def inputs(self, q):
        return [q, self.state(), self.view(), self.pos, self.seq, self.slot, self.q_start,
                np.array(self.kv_len, dtype=np.int32)]


def attention(batch, q, key=("k",), value="v", scale=0.3, window=0, softcap=0.0, mask=None, sinks=None, chunk=0, slopes=None):
    heads, out = q.shape[1], np.zeros((*q.shape[:2], batch.planes[value][-1]))
    for b, n in enumerate(batch.kv_len):
        rows = np.arange(batch.q_start[b], batch.q_start[b + 1])
        c, keys = len(rows), np.arange(n)
        position = np.concatenate([np.arange(n - c), batch.pos[rows]])
        own = np.concatenate([np.full(n - c, -1), np.arange(c)])
        if mask is None:
            slots = np.concatenate([np.full(n - c, -1), batch.slot[rows]])
            visible = slots[None, :] <= batch.slot[rows][:, None]
        else:
            visible = np.where(own[None, :] < 0, True, mask[rows][:, np.maximum(own, 0)] != 0)
        row = batch.pos[rows][:, None]
        visible &= (row - position < window) if window else (row // chunk == position // chunk) if chunk else True
        at = batch.physical(b, keys)

        def heads_of(name):
            plane = batch.data[name][at]
            plane = plane[:, None, :] if plane.ndim == 2 else plane
            return np.repeat(plane, heads // plane.shape[1], axis=1)

        k = np.concatenate([heads_of(name) for name in key], axis=-1)
        score = np.einsum("rhd,khd->hrk", q[rows], k) * scale
        score = softcap * np.tanh(score / softcap) if softcap else score
        score = score - (0 if slopes is None else slopes[:, None, None] * (row - position))
        score = np.where(visible[None], score, -np.inf)
        with np.errstate(invalid="ignore"):
            e = np.exp(score - score.max(-1, keepdims=True))
            rest = 0 if sinks is None else np.exp(sinks[:, None, None] - score.max(-1, keepdims=True))
            p = np.nan_to_num(e / (e.sum(-1, keepdims=True) + rest))
        out[rows] = np.einsum("hrk,khd->rhd", p, heads_of(value))
    return out


def states():
    kv = {"k": (2, 6), "v": (2, 5)}
    batch = Batch([9, 1, 17, 6], [1, 1, 5, 6], kv)
    rows = len(batch.seq)
    k, v = rand(rows, 2, 6), rand(rows, 2, 5)
    after = {name: plane.copy() for name, plane in batch.data.items()}
    for i in range(rows):
        at = batch.physical(batch.seq[i], np.array([batch.slot[i]]))[0]
        after["k"][at], after["v"][at] = k[i], v[i]
    case("append", [batch.state(), batch.view(), batch.seq, batch.slot, k, v], [batch.state(after)])

    q = rand(rows, 4, 6)
    case("attend", batch.inputs(q), [attention(batch, q)], {"scale": 0.3}, "ragged_gqa")
    case("attend", batch.inputs(q), [attention(batch, q, softcap=1.5)], {"scale": 0.3, "softcap": 1.5}, "softcap")
    case("attend", batch.inputs(q), [attention(batch, q, window=3)], {"scale": 0.3, "window": 3}, "window")
    case("attend_chunk", batch.inputs(q), [attention(batch, q, chunk=4)], {"scale": 0.3, "chunk": 4}, "chunk")

    holes = Batch([19, 12], [3, 1], kv, hole=lambda b, j: j < 2)
    q = rand(4, 2, 6)
    case("attend", holes.inputs(q), [attention(holes, q, window=4)], {"scale": 0.3, "window": 4}, "dropped_blocks")

    tree = Batch([10, 8], [5, 1], kv)
    tree.pos = i32(5, 6, 6, 7, 7, 7)  # a root, two children, one grandchild of each
    mask = i32([1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1], [1, 0, 0, 0, 0])
    q = rand(6, 2, 6)
    case("attend", tree.inputs(q) + [mask], [attention(tree, q, mask=mask)], {"scale": 0.3}, "tree")
    case("attend", tree.inputs(q) + [mask], [attention(tree, q, mask=mask, window=3)], {"scale": 0.3, "window": 3},
         "tree_window")
    case("attend_chunk", tree.inputs(q) + [mask], [attention(tree, q, mask=mask, chunk=6)], {"scale": 0.3, "chunk": 6}, "tree_chunk")
    lonely = Batch([3, 1], [3, 1], kv)
    q = rand(4, 2, 6)
    few = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=np.int32)
    case("attend", lonely.inputs(q) + [few], [attention(lonely, q, mask=few)], {"scale": 0.3}, "no_visible_key")

    latent = Batch([7, 11], [2, 4], {"c": (8,), "kr": (3,)})
    q = rand(6, 4, 11)
    attrs = {"scale": 0.2, "key": ["c", "kr"], "value": "c"}
    case("attend", latent.inputs(q), [attention(latent, q, ("c", "kr"), "c", 0.2)], attrs, "latent")


def experts():
    x, ids, weights = rand(4, 3), i32([2, 0], [0, -1], [2, 1], [0, 2]), rand(4, 2)
    flat = ids.ravel()
    source = np.concatenate([np.flatnonzero(flat == e) for e in range(4)])
    offsets = np.concatenate([[0], np.cumsum([(flat == e).sum() for e in range(4)])]).astype(np.int32)
    rows = np.zeros((8, 3))
    rows[:7] = x[source // 2]
    padded = np.concatenate([source, [-1]]).astype(np.int32)
    case("moe_dispatch", [x, ids], [rows, offsets, padded], {"count": 4})
    w = rand(4, 5, 3)
    y = np.zeros((8, 5))
    for r in range(7):
        y[r] = w[flat[source[r]]] @ rows[r]
    case("grouped_linear", [rows, w, offsets], [y])
    total = np.zeros((4, 5))
    for r in range(7):
        total[source[r] // 2] += weights.ravel()[source[r]] * y[r]
    case("moe_combine", [y, padded, offsets, weights], [total])


def routing():
    x, bias = rand(5, 8), rand(8, scale=0.3)
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    sigmoid = 1 / (1 + np.exp(-x))

    def best(choice, k):
        return np.argsort(-choice, axis=1, kind="stable")[:, :k].astype(np.int32)

    ids = best(soft, 3)
    chosen = np.take_along_axis(soft, ids, 1)
    case("moe_route", [x], [chosen, ids], {"k": 3})
    case("moe_route", [x], [chosen / chosen.sum(1, keepdims=True) * 0.5, ids], {"k": 3, "normalize": 1, "scale": 0.5},
         "normalized")
    ids = best(sigmoid + bias, 2)
    case("moe_route", [x, bias], [np.take_along_axis(sigmoid, ids, 1), ids], {"k": 2, "gate": "sigmoid"}, "biased")
    for gate, scores, added in (("softmax", soft, None), ("sigmoid", sigmoid, bias)):
        choice = scores if added is None else scores + added
        groups = np.sort(choice.reshape(5, 4, 2), 2)
        score = groups.sum(2) if gate == "sigmoid" else groups[..., -1]
        kept = np.argsort(-score, 1, kind="stable")[:, :2]
        mask = np.zeros((5, 4), dtype=bool)
        np.put_along_axis(mask, kept, True, 1)
        ids = best(np.where(np.repeat(mask, 2, 1), choice, -np.inf), 3)
        chosen = np.take_along_axis(scores, ids, 1)
        case("moe_route", [x] if added is None else [x, bias], [chosen / chosen.sum(1, keepdims=True) * 2.5, ids],
             {"k": 3, "gate": gate, "normalize": 1, "scale": 2.5, "groups": 4, "used_groups": 2}, f"groups_{gate}")
    rows, w, b = rand(4, 3), rand(3, 2, 3), rand(3, 2)
    offsets, y = i32(0, 1, 1, 3), np.zeros((4, 2))
    y[0], y[1:3] = w[0] @ rows[0] + b[0], rows[1:3] @ w[2].T + b[2]
    case("grouped_linear", [rows, w, offsets, b], [y], name="bias")
    batch = Batch([9, 5], [2, 5], {"k": (2, 6), "v": (2, 5)})
    q, sinks = rand(7, 4, 6), rand(4)
    case("attend", batch.inputs(q) + [sinks], [attention(batch, q, sinks=sinks)], {"scale": 0.3, "sinks": 1}, "sinks")
    x, w = rand(4, 2, 3), rand(2, 5, 3)
    case("head_linear", [x, w], [np.einsum("thk,hnk->thn", x, w)])


def plain_attention():
    """Attention over plain tensors, and ops left over from training."""
    q, k, v = rand(2, 3, 4), rand(2, 5, 4), rand(2, 5, 3)

    def attend(bias, scale):
        s = scale * q @ k.transpose(0, 2, 1) + bias
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    case("sdpa", [q, k, v], [attend(0, 0.5)], {"scale": 0.5}, "plain")
    bias = rand(3, 5)
    case("sdpa", [q, k, v, bias], [attend(bias, 0.5)], {"scale": 0.5}, "bias")
    hidden = np.where(np.arange(5)[None, :] <= np.arange(3)[:, None] + 2, 0, -np.inf)
    case("sdpa", [q, k, v], [attend(hidden, 2.0)], {"scale": 2.0, "causal": 1}, "causal")
    case("identity", [q], [q])
    case("dropout", [q], [q], {"p": 0.1})


def encoders():
    """Attention inside sequences, and the mean of their rows."""
    starts, heads, groups = i32(0, 3, 4, 9), 4, 2
    q, k, v = rand(9, heads, 6), rand(9, groups, 6), rand(9, groups, 5)
    seq = np.repeat(np.arange(3), np.diff(starts)).astype(np.int32)
    same = seq[:, None] == seq[None, :]
    distance = np.abs(np.arange(9)[:, None] - np.arange(9)[None, :])
    for name, window in [("full", 0), ("window", 2)]:
        seen = same & (distance <= window) if window else same
        score = 0.4 * np.einsum("ihd,jhd->hij", q, np.repeat(k, heads // groups, axis=1))
        power = np.exp(np.where(seen, score, -np.inf))
        power /= power.sum(-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", power, np.repeat(v, heads // groups, axis=1))
        case("attend_rows", [q, k, v, starts], [out], {"scale": 0.4, "window": window}, name)
    x, rows = rand(9, 4), i32(8, 0, 3)
    case("mean_rows", [x, seq, starts, rows], [np.stack([x[seq == b].mean(0) for b in range(3)])[seq[rows]]])


for family in (elementwise, shapes, products, norms, rope, states, experts, plain_attention, sampling, encoders, routing):
    family()
sequence_states(case, rand, pack, rng, Batch, attention)
batch, q, sinks, slopes = Batch([9, 5], [2, 5], {"k": (2, 6), "v": (2, 5)}), rand(7, 4, 6), rand(4), rand(4)  # ALiBi
case("attend", batch.inputs(q) + [slopes], [attention(batch, q, slopes=slopes)], {"scale": 0.3, "slopes": 1}, "slopes")
OUT.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print(f"{len(cases)} cases, {OUT.stat().st_size} bytes -> {OUT}")
