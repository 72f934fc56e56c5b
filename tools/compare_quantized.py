#!/usr/bin/env python3
"""Compares the tiny quantised checkpoints (tiny_quantized.py) with what the original packages decode from them.

    tools/compare_quantized.py [--gptqmodel FOLDER] [--autoawq FOLDER] [--tokamak BINARY]

--tokamak: also writes every variant of the formats (tiny_quantized.variants(), some in two files) and compares what the packages decode with
what `tokamak convert --type f32` does.
Needs torch, compressed-tensors and bitsandbytes. GPTQModel and AutoAWQ cannot be imported on every machine; given the
folders of their sources, only the functions that unpack are used. Every value must be equal, bit by bit, where the
package computes scale * (code - zero) in float32.
"""
import argparse
import ast
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import zlib

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_families  # noqa: E402
import tiny_models  # noqa: E402
import tiny_quantized  # noqa: E402


def modules_of(tensors):
    ends = (".qweight", ".weight_packed", ".weight")
    names = {k[:-len(e)] for k in tensors for e in ends if k.endswith(e)}
    return sorted(n for n in names if ".layers." in n and "norm" not in n and not n.endswith(".gate"))


def part(tensors, module):
    return {k[len(module) + 1:]: v for k, v in tensors.items() if k.startswith(module + ".")}


def compressed(t, config):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    t = dict(t)
    form = config["format"]
    if form == "pack-quantized":
        k = int(t["weight_shape"][1])
        bits, groups = t["weight_packed"].shape[1] * 32 // k, t["weight_scale"].shape[1]
        args = QuantizationArgs(num_bits=bits, type="int", symmetric="weight_zero_point" not in t, strategy="group",
                                group_size=k // groups)
    elif form.startswith("mxfp4"):
        args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32,
                                scale_dtype=torch.uint8)
    elif form.startswith("nvfp4"):
        args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    else:
        kind = "float" if t["weight"].dtype == torch.float8_e4m3fn else "int"
        scale = t["weight_scale"]
        block = config["config_groups"]["group_0"]["weights"].get("block_structure")
        strategy = "tensor" if scale.numel() == 1 else "block" if block else "channel"
        args = QuantizationArgs(num_bits=8, type=kind, symmetric="weight_zero_point" not in t, strategy=strategy,
                                block_structure=block if strategy == "block" else None)
    order = t.pop("weight_g_idx", None)
    if t["weight_scale"].dtype != torch.uint8:
        t["weight_scale"] = t["weight_scale"].float()
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    if order is None:
        return BaseCompressor.get_value_from_registry(form).decompress(t, scheme)["weight"].float()
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    shape = torch.Size(t["weight_shape"].tolist())
    codes = unpack_from_int32(t["weight_packed"], args.num_bits, shape)
    zero = None if args.symmetric else unpack_from_int32(t["weight_zero_point"], args.num_bits, torch.Size([shape[0], groups]), packed_dim=0)
    columns = torch.argsort(order, stable=True)
    out = torch.empty(shape)
    out[:, columns] = dequantize(codes[:, columns], t["weight_scale"], zero, args=args).float()
    return out


def bnb(t):
    import bitsandbytes.functional as f
    if "SCB" in t:  # bitsandbytes multiplies by SCB first, which rounds twice
        return t["weight"].float() * (t["SCB"] * np.float32(1 / 127))[:, None]
    state = f.QuantState.from_dict({k: v for k, v in t.items() if k != "weight"}, device=torch.device("cpu"))
    return f.dequantize_4bit(t["weight"], state).float()


def gptq(t, config, folder):
    """Runs dequantize_weight of GPTQModel's source on plain tensors."""
    source = (folder / "gptqmodel/nn_modules/qlinear/__init__.py").read_text()
    method = next(n for n in ast.walk(ast.parse(source)) if getattr(n, "name", "") == "dequantize_weight"
                  and "wf_unsqueeze_zero" in ast.unparse(n))
    scope = {"t": torch, "torch": torch, "_torch_right_shift": torch.bitwise_right_shift,
             "_torch_left_shift": torch.bitwise_left_shift}
    exec(ast.unparse(method), scope)
    k = t["g_idx"].shape[0]
    bits = t["qweight"].shape[0] * 32 // k
    one = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}.get(bits, 0)
    v1 = config.get("checkpoint_format", "gptq") == "gptq"
    wf = torch.arange(0, 32, bits, dtype=torch.int32)[None] if bits != 3 else torch.tensor(
        [[0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0], [0, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31],
         [0, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0]], dtype=torch.int32).reshape(1, 3, 12)
    group, scales = t["g_idx"].long(), t["scales"].float()

    def values(codes, zeros, num_itr=1):
        zeros = (zeros + 1) & 7 if v1 and bits == 3 else zeros
        return scales[group] * (codes - zeros[group]).float()
    layer = types.SimpleNamespace(
        planar=False, bits=bits, qweight=t["qweight"], qzeros=t["qzeros"] + (one if v1 else 0), scales=t["scales"],
        maxq=2 ** bits - 1, pack_factor=32 // bits, dequant_dtype=torch.int32, wf_unsqueeze_zero=wf.unsqueeze(0) if bits != 3 else wf[None],
        wf_unsqueeze_neg_one=wf.unsqueeze(-1), in_features=k, _dequantize_from_codes=values,
        _init_wf_unsqueeze_buffers=lambda: None)
    return scope["dequantize_weight"](layer).T


def awq(t, config, folder):
    spec = importlib.util.spec_from_file_location("packing_utils", folder / "awq/utils/packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    group = config["group_size"] if config["group_size"] > 0 else t["qweight"].shape[0]
    return module.dequantize_gemm(t["qweight"], t["qzeros"], t["scales"].float(), 4, group).T


def decode(t, config, args):
    method = config["quant_method"]
    if method == "compressed-tensors":
        return compressed(t, config)
    if method == "bitsandbytes":
        return bnb(t)
    if method == "gptq" and args.gptqmodel:
        return gptq(t, config, args.gptqmodel)
    if method == "awq" and args.autoawq:
        return awq(t, config, args.autoawq)
    return None


def shard(folder):
    """model.safetensors as two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names, index = sorted(tensors), {}
    for i, part_names in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part_names}, folder / file)
        index.update(dict.fromkeys(part_names, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "model.safetensors").unlink()


def compare_variant(name, base, config, folder, args):
    """(matrices decoded by the package, by tokamak, and how many of both differ from what was written)."""
    tiny_families.MODELS[name] = {**tiny_families.MODELS[base], "quantization_config": config}
    tiny_families.NOT_AS_GGUF.add(name)
    reference = tiny_models.write_family(name, folder).reference
    tensors = load_file(folder / name / "model.safetensors")
    modules = modules_of(tensors)
    packaged = [(m, decode(part(tensors, m), config, args)) for m in modules]
    packaged = {m: x.numpy() for m, x in packaged if x is not None}
    if zlib.crc32(name.encode()) % 4 == 0:
        shard(folder / name)
    done = subprocess.run([args.tokamak, "convert", folder / name, folder / "out", "--type", "f32"], capture_output=True, text=True)
    if done.returncode:
        return f"refused: {done.stderr.strip()}"
    ours = load_file(folder / "out" / "model.safetensors")
    wrong = sum(not np.array_equal(x, reference[m + ".weight"]) for m, x in packaged.items())
    wrong += sum(not np.array_equal(ours[m + ".weight"].numpy(), reference[m + ".weight"]) for m in modules)
    return f"{len(packaged)} by the package, {len(modules)} by tokamak, {wrong} differ"


def sweep(args):
    failed = False
    found = tiny_quantized.variants()
    tiny_quantized.QUANTIZED.update(found)
    for name, (_, config, _) in found.items():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            said = compare_variant(name, "gptq", config, pathlib.Path(folder), args)
        failed |= not said.endswith(" 0 differ")
        print(f"{name}: {said}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptqmodel", type=pathlib.Path)
    parser.add_argument("--autoawq", type=pathlib.Path)
    parser.add_argument("--tokamak", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only variants whose name has this text")
    args = parser.parse_args()
    failed = False
    for name in tiny_quantized.QUANTIZED:
        config = tiny_families.MODELS[name]["quantization_config"]
        with tempfile.TemporaryDirectory() as folder:
            reference = tiny_models.write_family(name, pathlib.Path(folder)).reference
            tensors = load_file(pathlib.Path(folder) / name / "model.safetensors")
        checked = different = 0
        for module in modules_of(tensors):
            got = decode(part(tensors, module), config, args)
            if got is None:
                continue
            checked += 1
            different += not np.array_equal(got.numpy(), reference[module + ".weight"])
        failed |= different > 0
        print(f"{name}: {checked} matrices decoded by the package, {different} differ" if checked else f"{name}: no package")
    sys.exit(failed | (sweep(args) if args.tokamak else False))


if __name__ == "__main__":
    main()
