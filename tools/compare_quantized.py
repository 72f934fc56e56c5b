#!/usr/bin/env python3
"""Compares the tiny quantised checkpoints (tiny_quantized.py) with what the original packages decode from them.

    tools/compare_quantized.py [--gptqmodel FOLDER] [--autoawq FOLDER]

Needs torch, compressed-tensors and bitsandbytes. GPTQModel and AutoAWQ cannot be imported on every machine; given the
folders of their sources, only the functions that unpack are used. Every value must be equal, bit by bit, where the
package computes scale * (code - zero) in float32.
"""
import argparse
import ast
import importlib.util
import pathlib
import sys
import tempfile
import types

import numpy as np
import torch
from safetensors.torch import load_file

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
        strategy = "tensor" if t["weight_scale"].numel() == 1 else "channel"
        args = QuantizationArgs(num_bits=8, type=kind, symmetric="weight_zero_point" not in t, strategy=strategy)
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
    zero = unpack_from_int32(t["weight_zero_point"], args.num_bits, torch.Size([shape[0], groups]), packed_dim=0)
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
    return module.dequantize_gemm(t["qweight"], t["qzeros"], t["scales"].float(), 4, config["group_size"]).T


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gptqmodel", type=pathlib.Path)
    parser.add_argument("--autoawq", type=pathlib.Path)
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
    sys.exit(failed)


if __name__ == "__main__":
    main()
