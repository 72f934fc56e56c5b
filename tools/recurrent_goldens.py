"""Cases of the ops with a state per sequence and of latent attention, for make_op_goldens.py: each sequence's rows from its first one, in numpy."""
import numpy as np

STARTS = np.array([0, 1, 6, 8, 11, 12], dtype=np.int32)
# A decode, a chunk, a prompt that begins, padding, and a first token.
LENGTHS = np.array([9, 17, 2, 0, 1], dtype=np.int32)
BLOCKS = 7


def sequences(pack, rng):
    """The view of the sequences, and functions for a state and for a case."""
    table = rng.permutation(BLOCKS)[:len(LENGTHS)].astype(np.int32)
    table[3] = -1
    view = {"view": {"table": [int(b) for b in table], "stride": 1, "block_size": 1 << 30}}

    def state(data):
        return {"state": [{"name": "s", **pack(data)}]}

    def run(advance, data, shape):
        """advance(rows, state) gives the results of the rows and the state after them."""
        after, y = data.copy(), np.zeros(shape)
        for b, length in enumerate(LENGTHS):
            rows = np.arange(STARTS[b], STARTS[b + 1])
            if length == 0:
                continue
            before = np.zeros_like(data[0]) if length == len(rows) else data[table[b]]
            y[rows], after[table[b]] = advance(rows, before)
        return [state(after), y]

    return view, state, run


def recurrent(case, rand, pack, rng):
    view, state, run = sequences(pack, rng)
    for taps, with_bias in [(4, True), (2, False)]:
        x, w, bias = rand(12, 5), rand(5, taps), rand(5)
        data = rand(BLOCKS, taps - 1, 5)

        def conv(rows, before):
            all_rows = np.concatenate([before, x[rows]])
            y = np.stack([np.convolve(all_rows[:, c], w[c, ::-1], "valid") for c in range(5)], 1)
            return y + (bias if with_bias else 0), all_rows[len(rows):]

        inputs = [state(data), view, STARTS, LENGTHS, x, w] + ([bias] if with_bias else [])
        case("causal_conv", inputs, run(conv, data, x.shape), {}, f"{taps}_taps")

    heads, width, groups, n = 4, 3, 2, 6
    x, dt, a = rand(12, heads, width), np.abs(rand(12, heads)), -np.abs(rand(heads))
    b, c = rand(12, groups, n), rand(12, groups, n)
    data = rand(BLOCKS, heads, width, n)

    def scan(rows, s):
        out = []
        for i in rows:
            vectors_in, vectors_out = (np.repeat(v[i], heads // groups, axis=0) for v in (b, c))
            s = s * np.exp(dt[i] * a)[:, None, None] + np.einsum("h,hp,hn->hpn", dt[i], x[i], vectors_in)
            out.append(np.einsum("hpn,hn->hp", s, vectors_out))
        return np.stack(out), s

    case("ssm_scan", [state(data), view, STARTS, LENGTHS, x, dt, a, b, c], run(scan, data, x.shape))

    q, k, v, decay, rate = rand(12, groups, n), rand(12, groups, n), rand(12, heads, width), -np.abs(rand(12, heads)), rand(12, heads)
    data = rand(BLOCKS, heads, width, n)

    def delta(rows, s):
        out = []
        for i in rows:
            keys, queries = (np.repeat(x[i], heads // groups, axis=0) for x in (k, q))
            s = s * np.exp(decay[i])[:, None, None]
            error = v[i] - np.einsum("hpn,hn->hp", s, keys)
            s = s + np.einsum("h,hp,hn->hpn", rate[i], error, keys)
            out.append(np.einsum("hpn,hn->hp", s, queries))
        return np.stack(out), s

    case("gated_delta", [state(data), view, STARTS, LENGTHS, q, k, v, decay, rate], run(delta, data, v.shape))


def latent(case, rand, Batch, attention):
    """attend with keys and values that are matrices times what the cache holds."""
    for name, masked in (("plain", False), ("tree", True)):
        batch = Batch([7, 11], [2, 4], {"c": (5,), "kr": (3,)})
        q, wk, wv = rand(6, 4, 9), rand(4, 5, 6), rand(4, 7, 5)
        mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=np.int32)
        whole = Batch([7, 11], [2, 4], {"k": (4, 9), "v": (4, 7)})
        whole.table = batch.table
        keys = np.einsum("sc,hcn->shn", batch.data["c"], wk)
        turned = np.repeat(batch.data["kr"][:, None, :], 4, axis=1)
        whole.data = {"k": np.concatenate([keys, turned], -1), "v": np.einsum("sc,hdc->shd", batch.data["c"], wv)}
        extra = [mask] if masked else []
        case("attend_latent", batch.inputs(q) + extra + [wk, wv],
             [attention(whole, q, mask=mask if masked else None)], {"scale": 0.3}, name)


def channels(case, rand, pack, rng):
    """ssm_scan with a decay for each number of a state (Mamba)."""
    view, state, run = sequences(pack, rng)
    count, n = 5, 6
    x, dt, a = rand(12, count, 1), np.abs(rand(12, count)), -np.abs(rand(count, n))
    b, c, data = rand(12, 1, n), rand(12, 1, n), rand(BLOCKS, count, 1, n)

    def own_decays(rows, s):
        out = []
        for i in rows:
            s = s * np.exp(dt[i][:, None] * a)[:, None] + np.einsum("h,hp,n->hpn", dt[i], x[i], b[i, 0])
            out.append(np.einsum("hpn,n->hp", s, c[i, 0]))
        return np.stack(out), s

    case("ssm_scan", [state(data), view, STARTS, LENGTHS, x, dt, a, b, c], run(own_decays, data, x.shape), {}, "own_decays")


def sequence_states(case, rand, pack, rng, Batch, attention):
    """All of them; new cases come last, so that the numbers of the others stay."""
    recurrent(case, rand, pack, rng)
    latent(case, rand, Batch, attention)
    channels(case, rand, pack, rng)
