"""Random LoRA adapters for the tiny models, as PEFT saves them: FOLDER/adapters/NAME/ (adapter_config.json,
adapter_model.safetensors), and llama_all also as GGUF in the layout of llama.cpp's converter. tiny_models.py writes them;
tools/make_adapter_goldens.py computes the expected logits with PEFT.
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

import tiny_gguf

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name -> model, and what differs from a plain adapter of rank 4 and alpha 8
ADAPTERS = {
    "llama_qv": {"model": "llama", "target_modules": ["q_proj", "v_proj"]},
    "llama_all": {"model": "llama", "target_modules": ALL, "r": 8, "lora_alpha": 12, "use_rslora": True},
    "llama_patterns": {"model": "llama", "target_modules": ["k_proj", "down_proj"], "rank_pattern": {"mlp.down_proj": 2},
                       "alpha_pattern": {"down_proj": 6}},
    "llama_dora": {"model": "llama", "target_modules": ["q_proj", "o_proj", "up_proj"], "use_dora": True},
    "llama_head": {"model": "llama", "target_modules": ["o_proj", "lm_head"]},
    "llama_saved": {"model": "llama", "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "qwen2_mlp": {"model": "qwen2", "target_modules": ["q_proj", "gate_proj", "down_proj"], "r": 16},
    "phi3_fused": {"model": "phi3", "target_modules": ["qkv_proj", "gate_up_proj"]},
    "gpt2_conv": {"model": "gpt2", "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
}
NO_RUN_TIME = {"llama_dora", "llama_head", "llama_saved"}  # can be merged only


def config_of(name):
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": ADAPTERS[name]["model"], "r": 4,
              "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "fan_in_fan_out": False,
              "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}}
    config.update({k: v for k, v in ADAPTERS[name].items() if k != "model"})
    return config


def tensors_of(name, random_tensor, weights_of):
    """Tensors by their names in adapter_model.safetensors; changes are about a third as large as the weights."""
    config, model = config_of(name), ADAPTERS[name]["model"]
    out = {}
    for tensor, w in weights_of(model).items():
        module = tensor.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] in (config["modules_to_save"] or []):
            out["base_model.model." + tensor] = random_tensor(name, module, w.shape, float(w.std()), float(w.mean()))
        if module == tensor or module.rsplit(".", 1)[-1] not in config["target_modules"]:
            continue
        rows, columns = w.shape[::-1] if config["fan_in_fan_out"] else w.shape
        rank = next((r for end, r in config["rank_pattern"].items() if module.endswith(end)), config["r"])
        prefix = "base_model.model." + ("transformer." if model == "gpt2" else "") + module
        out[prefix + ".lora_A.weight"] = random_tensor(name, module + ".A", (rank, columns), columns ** -0.5)
        out[prefix + ".lora_B.weight"] = random_tensor(name, module + ".B", (rows, rank), 0.3 * rank ** -0.5)
        if config["use_dora"]:
            norms = np.sqrt((w.astype(np.float64) ** 2).sum(axis=1))
            out[prefix + ".lora_magnitude_vector"] = (
                norms * random_tensor(name, module + ".m", (rows,), 0.2, 1.0)).astype(np.float32)
    return out


def write_gguf(path, name, tensors, config):
    """As convert_lora_to_gguf.py: b goes through the same permutation as the weight, the scale stays in alpha."""
    adapter = config_of(name)
    w = gguf.GGUFWriter(path, tiny_gguf.ARCHITECTURE[config["model_type"]])
    w.add_string("general.type", "adapter")
    w.add_string("adapter.type", "lora")
    scale = adapter["lora_alpha"] / (adapter["r"] ** 0.5 if adapter["use_rslora"] else adapter["r"])
    w.add_float32("adapter.lora.alpha", scale * adapter["r"])
    for tensor, x in tensors.items():
        module, part, _ = tensor.removeprefix("base_model.model.").rsplit(".", 2)
        if part == "lora_B":
            x = tiny_gguf.convert_tensor(module + ".weight", x, config)
        w.add_tensor(f"{tiny_gguf.gguf_name(module + '.weight', config['model_type'])}.{part.lower()}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_all(out, random_tensor, weights_of, models):
    for name, adapter in ADAPTERS.items():
        folder = pathlib.Path(out) / "adapters" / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = tensors_of(name, random_tensor, weights_of)
        (folder / "adapter_config.json").write_text(json.dumps(config_of(name), indent=1) + "\n")
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        if name == "llama_all":
            write_gguf(folder.with_suffix(".gguf"), name, tensors, models[adapter["model"]])
