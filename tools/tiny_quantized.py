"""Tiny models as quantised checkpoints: each format written with numpy from its published description.

quantize(t, name) replaces the linear layers of a model of tiny_families.py by the tensors that GPTQ, AWQ,
compressed-tensors, fp8 and bitsandbytes checkpoints have, and keeps the values they stand for in t.reference:
transformers computes the expected logits with those, and the test `families` compares every weight with them, bit by bit.
tools/compare_quantized.py compares them with what the original packages decode.
"""
import itertools
import json

import numpy as np

F32 = np.float32
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], dtype=F32)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=F32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def bf16(x):
    """The nearest bfloat16 numbers, as f32."""
    bits = np.asarray(x, dtype=F32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(F32)


def f8_values():
    """f8e4m3 numbers by their bits: no infinities, 0x7f and 0xff are NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    x = np.where(exponent == 0, mantissa / 8.0 * 2.0 ** -6, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7.0))
    x = np.where(code & 0x7f == 0x7f, np.nan, x)
    return np.where(code & 0x80, -x, x).astype(F32)


def to_f8(x):
    """Bits of the nearest f8e4m3 number."""
    values = f8_values()
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")[:-2]
    sorted_values = values[order]
    at = np.clip(np.searchsorted(sorted_values, x), 1, len(order) - 1)
    near = np.where(np.abs(sorted_values[at] - x) < np.abs(sorted_values[at - 1] - x), at, at - 1)
    return order[near].astype(np.uint8)


def pack_bits(codes, bits):
    """Codes of the last axis as a stream of bits, low bits first, in words of 32."""
    stream = (codes[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8) & 1).reshape(*codes.shape[:-1], -1)
    pad = -stream.shape[-1] % 32
    stream = np.concatenate([stream, np.zeros((*stream.shape[:-1], pad), np.uint8)], -1)
    return np.ascontiguousarray(np.packbits(stream, axis=-1, bitorder="little")).view("<i4")


def round_to_groups(w, bits, group, symmetric, rounded):
    """Codes 0 .. 2^bits - 1 [n, k], scales and zeros [n, k / group]; `rounded` makes the scales storable."""
    n, k = w.shape
    group = k if group < 0 else group
    parts, top = w.reshape(n, k // group, group), 2 ** bits - 1
    if symmetric:
        scale = rounded(np.abs(parts).max(-1) / (2 ** (bits - 1) - (1 if bits > 2 else 0.5)))
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scale = rounded((high - low) / top)
        zero = np.clip(np.rint(-low / scale), 1, top - 1).astype(np.int64)
    codes = np.clip(np.rint(parts / scale[..., None]) + zero[..., None], 0, top).astype(np.int64)
    return codes.reshape(n, k), scale.astype(F32), zero


def values_of(codes, scale, zero, group):
    group = codes.shape[1] if group < 0 else group
    return np.repeat(scale, group, 1).astype(F32) * (codes - np.repeat(zero, group, 1)).astype(F32)


def f16(x):
    return x.astype(np.float16).astype(F32)


class Checkpoint:
    """Collects tensors; types: names of safetensors for those that numpy does not have."""

    def __init__(self, t):
        self.t, self.types = t, {}

    def add(self, name, x, kind=None):
        self.t.hf[name] = np.ascontiguousarray(x)
        if kind:
            self.types[name] = kind

    def add_bf16(self, name, x):
        self.add(name, (x.astype(F32).view(np.uint32) >> 16).astype(np.uint16), "BF16")

    def value(self, module, x):
        self.t.reference[module + ".weight"] = np.ascontiguousarray(x.astype(F32))

    def columns(self, module, k):
        """A permutation of the columns: with act-order a group is not of neighbours."""
        return np.argsort(self.t.random(module + ".order", (k,), 1.0), kind="stable")

    def gptq(self, module, w, bits=4, group=128, symmetric=True, act_order=False, version=1):
        n, k = w.shape
        perm = self.columns(module, k) if act_order else np.arange(k)
        codes, scale, zero = round_to_groups(w[:, perm], bits, group, symmetric, f16)
        x, g_idx, stored = np.empty_like(w), np.empty(k, np.int32), np.empty_like(codes)
        x[:, perm] = values_of(codes, scale, zero, group)
        g_idx[perm], stored[:, perm] = np.arange(k) // (group if group > 0 else k), codes
        self.value(module, x)
        self.add(module + ".qweight", pack_bits(stored, bits).T)
        self.add(module + ".qzeros", pack_bits((zero.T - (1 if version == 1 else 0)), bits))
        self.add(module + ".scales", scale.T.astype(np.float16))
        self.add(module + ".g_idx", g_idx)

    def awq(self, module, w, group=64):
        codes, scale, zero = round_to_groups(w, 4, group, False, f16)
        self.value(module, values_of(codes, scale, zero, group))

        def pack(q):  # [rows, n]
            q = q.reshape(q.shape[0], -1, 8)[..., AWQ_ORDER].astype(np.uint32)
            return (q << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1).astype(np.uint32).view(np.int32)
        self.add(module + ".qweight", pack(codes.T))
        self.add(module + ".qzeros", pack(zero.T))
        self.add(module + ".scales", scale.T.astype(np.float16))

    def packed(self, module, w, bits=4, group=128, symmetric=True, act_order=False):
        n, k = w.shape
        perm = self.columns(module, k) if act_order else np.arange(k)
        codes, scale, zero = round_to_groups(w[:, perm], bits, group, symmetric, bf16)
        x, g_idx, stored = np.empty_like(w), np.empty(k, np.int32), np.empty_like(codes)
        x[:, perm] = values_of(codes, scale, zero, group)
        g_idx[perm], stored[:, perm] = np.arange(k) // (group if group > 0 else k), codes
        self.value(module, x)
        self.add(module + ".weight_packed", pack_bits(stored, bits))
        self.add_bf16(module + ".weight_scale", scale)
        self.add(module + ".weight_shape", np.array([n, k], np.int64))
        if not symmetric:
            self.add(module + ".weight_zero_point", pack_bits(zero.T, bits).T)
        if act_order:
            self.add(module + ".weight_g_idx", g_idx)

    def int8(self, module, w, symmetric=True):
        k = w.shape[1]
        codes, scale, zero = round_to_groups(w, 8, k, symmetric, F32)
        self.value(module, values_of(codes, scale, zero, k))
        self.add(module + ".weight", (codes - 128).astype(np.int8))
        self.add(module + ".weight_scale", scale)
        if not symmetric:
            self.add(module + ".weight_zero_point", (zero - 128).astype(np.int8))

    def fp8(self, module, w, rows, columns, name="weight_scale", kind="F32"):
        """A scale per rows x columns values."""
        n, k = w.shape
        rows, columns = min(rows, n), min(columns, k)
        scale = np.stack([[np.abs(w[i:i + rows, j:j + columns]).max() for j in range(0, k, columns)]
                          for i in range(0, n, rows)]).astype(F32) / F32(448)
        scale = bf16(scale) if kind == "BF16" else scale
        every = np.repeat(np.repeat(scale, rows, 0)[:n], columns, 1)[:, :k]
        codes = to_f8(w / every)
        self.value(module, every * f8_values()[codes])
        self.add(module + ".weight", codes, "F8_E4M3")
        scale = scale.reshape(1) if scale.size == 1 else scale
        self.add_bf16(f"{module}.{name}", scale) if kind == "BF16" else self.add(f"{module}.{name}", scale)

    def nf4(self, module, w, nested, block=64):
        blocks = w.reshape(-1, block)
        absmax = np.abs(blocks).max(-1).astype(F32)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": list(w.shape)}
        at = module + ".weight"
        if nested:  # absmax less its mean, as 8-bit numbers of a table
            table = np.linspace(-1, 1, 256).astype(F32)
            offset = F32(absmax.mean())
            rest = (absmax - offset).astype(F32)
            scale = np.array([np.abs(rest[i:i + 256]).max() for i in range(0, len(rest), 256)], F32)
            every = np.repeat(scale, 256)[:len(rest)]
            index = np.abs(table[None] - (rest / every)[:, None]).argmin(1).astype(np.uint8)
            absmax = (table[index] * every).astype(F32) + offset
            state.update({"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)})
            self.add(at + ".absmax", index)
            self.add(at + ".nested_absmax", scale)
            self.add(at + ".nested_quant_map", table)
        else:
            self.add(at + ".absmax", absmax)
        codes = np.abs(NF4[None, None] - (blocks / absmax[:, None])[..., None]).argmin(-1).astype(np.uint8)
        self.value(module, (NF4[codes] * absmax[:, None]).reshape(w.shape))
        codes = codes.reshape(-1, 2)
        self.add(at, (codes[:, 0] << 4 | codes[:, 1])[:, None])
        self.add(at + ".quant_map", NF4)
        self.add(at + ".quant_state.bitsandbytes__nf4", np.frombuffer(json.dumps(state).encode(), np.uint8))

    def bnb8(self, module, w):
        scb = np.abs(w).max(-1).astype(F32)
        scale = (scb * F32(1 / 127)).astype(F32)
        codes = np.clip(np.rint(w / scale[:, None]), -127, 127).astype(np.int8)
        self.value(module, scale[:, None] * codes.astype(F32))
        self.add(module + ".weight", codes)
        self.add(module + ".SCB", scb)
        self.add(module + ".weight_format", np.array(0, np.uint8))

    def nvfp4(self, module, w, whole=1024.0, modelopt=False):
        """Scales of 16 values in fp8, times one of the whole matrix (a power of two, so that no value is rounded)."""
        n, k = w.shape
        parts = w.reshape(n, k // 16, 16)
        scales = to_f8(np.abs(parts).max(-1).astype(F32) / F32(6) * F32(whole))
        every = f8_values()[scales] / F32(whole)
        scaled = parts / np.maximum(every, F32(1e-30))[..., None]
        codes = np.abs(FP4[None, None, None] - scaled[..., None]).argmin(-1).astype(np.uint8).reshape(n, k)
        self.value(module, FP4[codes] * np.repeat(every, 16, 1))
        self.add(module + (".weight" if modelopt else ".weight_packed"), codes[:, 0::2] | codes[:, 1::2] << 4)
        self.add(module + ".weight_scale", scales, "F8_E4M3")
        if modelopt:  # a factor, not a divisor, and a scale of activations that is not needed
            self.add(module + ".weight_scale_2", np.array(1 / whole, F32))
            self.add(module + ".input_scale", np.array(0.01, F32))
        else:
            self.add(module + ".weight_global_scale", np.array([whole], F32))

    def mxfp4(self, module, w):
        n, k = w.shape
        parts = w.reshape(n, k // 32, 32)
        exponent = np.frexp(np.abs(parts).max(-1))[1].astype(np.int64) - 3
        scaled = parts / np.exp2(exponent.astype(np.float64))[..., None]
        codes = np.abs(FP4[None, None, None] - scaled[..., None]).argmin(-1).astype(np.uint8).reshape(n, k)
        self.value(module, FP4[codes] * np.repeat(np.exp2(exponent.astype(np.float64)), 32, 1).astype(F32))
        self.add(module + ".weight_packed", codes[:, 0::2] | codes[:, 1::2] << 4)
        self.add(module + ".weight_scale", (exponent + 127).astype(np.uint8))


def gptq_config(**changes):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, **changes}


def compressed(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True, **weights}}}}


def by_part(cases):
    """One way per kind of layer: the first whose key is part of its name."""
    def write(p, module, w):
        method, options = next(case for key, case in cases.items() if key in module)
        getattr(p, method)(module, w, **options)
    return write


# name -> (base model, quantization_config, how each layer is written)
QUANTIZED = {
    "gptq": ("llama", gptq_config(), by_part({"": ("gptq", {})})),
    "gptq_act_order": ("llama", gptq_config(group_size=32, desc_act=True, sym=False, checkpoint_format="gptq_v2"),
                       by_part({"": ("gptq", {"group": 32, "symmetric": False, "act_order": True, "version": 2})})),
    "gptq_bits": ("llama", gptq_config(bits=3, group_size=64, sym=False, checkpoint_format="gptq", dynamic={}), by_part({
        "q_proj": ("gptq", {"bits": 2, "group": 32, "symmetric": False}),
        "v_proj": ("gptq", {"bits": 8, "group": 128, "symmetric": False}),
        "o_proj": ("gptq", {"bits": 8, "group": 64, "symmetric": False}),
        "mlp.up_proj": ("gptq", {"bits": 4, "group": 64, "symmetric": False}),
        "": ("gptq", {"bits": 3, "group": 64, "symmetric": False, "act_order": True})})),
    "gptq_experts": ("mixtral", gptq_config(group_size=64), by_part({"": ("gptq", {"group": 64})})),
    "awq": ("glm4", {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"},
            by_part({"": ("awq", {})})),
    "compressed_pack": ("llama", compressed("pack-quantized", strategy="group", group_size=128), by_part({
        "down_proj": ("packed", {"group": 64, "symmetric": False, "act_order": True}),
        "v_proj": ("packed", {"bits": 8, "symmetric": False}), "": ("packed", {})})),
    "compressed_int8": ("llama", compressed("int-quantized", num_bits=8, strategy="channel"), by_part({
        "down_proj": ("int8", {"symmetric": False}), "": ("int8", {})})),
    "compressed_fp8": ("llama", compressed("float-quantized", num_bits=8, type="float", strategy="channel"), by_part({
        "down_proj": ("fp8", {"rows": 10 ** 9, "columns": 10 ** 9}),
        "": ("fp8", {"rows": 1, "columns": 10 ** 9, "kind": "BF16"})})),
    "mxfp4_packed": ("llama", compressed("mxfp4-pack-quantized", type="float", strategy="group", group_size=32),
                         by_part({"": ("mxfp4", {})})),
    "nvfp4_packed": ("starcoder2", compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16),
                     by_part({"c_proj": ("nvfp4", {"whole": 4096.0}), "": ("nvfp4", {})})),
    "modelopt": ("llama", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, by_part({
        "down_proj": ("fp8", {"rows": 10 ** 9, "columns": 10 ** 9}), "": ("nvfp4", {"modelopt": True})})),
    "fp8_blocks": ("llama", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                             "weight_block_size": [128, 128]},
                   by_part({"": ("fp8", {"rows": 128, "columns": 128, "name": "weight_scale_inv"})})),
    # Latent attention: the keys' half of kv_b is used transposed.
    "fp8_latent": ("deepseek3", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                 "weight_block_size": [32, 32]},
                   by_part({"": ("fp8", {"rows": 32, "columns": 32, "name": "weight_scale_inv"})})),
    "bnb_nf4": ("llama", {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                          "bnb_4bit_use_double_quant": True}, by_part({
                              "down_proj": ("nf4", {"nested": False}), "": ("nf4", {"nested": True})})),
    "bnb_int8": ("llama", {"quant_method": "bitsandbytes", "load_in_8bit": True}, by_part({"": ("bnb8", {})})),
}


def variants():
    """name -> (base model, quantization_config, how each layer is written): every combination of settings that publishers use."""
    out = {}

    def add(label, config, method, **options):
        out[label] = ("llama", config, by_part({"": (method, options)}))
    both = (False, True)
    for bits, group, symmetric, order, version in itertools.product((2, 3, 4, 8), (32, 64, 128, -1), both, both, (1, 2)):
        name = f"gptq{bits} v{version} group {group}{' sym' * symmetric}{' act-order' * order}"
        add(name, gptq_config(bits=bits, group_size=group, sym=symmetric, desc_act=order, checkpoint_format="gptq_v2" if version == 2 else "gptq"),
            "gptq", bits=bits, group=group, symmetric=symmetric, act_order=order, version=version)
    for group in (32, 64, 128, -1):
        add(f"awq group {group}", {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}, "awq", group=group)
    for bits, group, symmetric, order in itertools.product((4, 8), (32, 64, 128, -1), both, both):
        add(f"packed int{bits} group {group}{' sym' * symmetric}{' act-order' * order}",
            compressed("pack-quantized", num_bits=bits, symmetric=symmetric, group_size=group, strategy="channel" if group < 0 else "group"),
            "packed", bits=bits, group=group, symmetric=symmetric, act_order=order)
    for symmetric in both:
        add(f"W8A8 int8{' sym' * symmetric}", compressed("int-quantized", num_bits=8, symmetric=symmetric, strategy="channel"), "int8",
            symmetric=symmetric)
    whole = 10 ** 9
    for label, rows, columns, strategy in (("tensor", whole, whole, "tensor"), ("channel", 1, whole, "channel"), ("block", 128, 128, "block")):
        for kind in ("F32", "BF16"):
            block = {"block_structure": [rows, columns]} if strategy == "block" else {}
            add(f"compressed fp8 {label} {kind}", compressed("float-quantized", num_bits=8, type="float", strategy=strategy, **block), "fp8",
                rows=rows, columns=columns, kind=kind)
    for block in ([128, 128], [64, 128], [32, 32], [64, 64]):
        add(f"fp8 blocks of {block[0]} x {block[1]}",
            {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}, "fp8", rows=block[0],
            columns=block[1], name="weight_scale_inv")
    add("fbgemm_fp8", {"quant_method": "fbgemm_fp8"}, "fp8", rows=1, columns=whole)
    for nested, block in itertools.product(both, (64, 128)):
        add(f"NF4 blocks of {block}{' nested' * nested}", {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "nf4", nested=nested, block=block)
    add("LLM.int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb8")
    return out


def quantize(t, name):
    """Replaces the matrices of layers, except routers, by quantised ones; gives the types of tensors."""
    p = Checkpoint(t)
    write = QUANTIZED[name][2]
    for tensor, w in list(t.hf.items()):
        if ".layers." not in tensor or w.ndim != 2 or tensor.endswith(".gate.weight"):
            t.reference[tensor] = w
            continue
        del t.hf[tensor]
        write(p, tensor.removesuffix(".weight"), w)
    return p.types
