#!/usr/bin/env python3
"""Computes the logits of the adapters of tools/tiny_adapters.py with PEFT and writes tests/golden/adapters/NAME.json.

Run by hand, not by `make test`: it needs torch, transformers 5, accelerate and peft. The goldens are committed; their form
is that of tools/make_goldens.py.
"""
import pathlib
import sys
import tempfile

import peft
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_goldens  # noqa: E402
import tiny_adapters  # noqa: E402
import tiny_models  # noqa: E402


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "adapters"
    out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        models = pathlib.Path(scratch)
        tiny_adapters.write_all(models, tiny_models.random_tensor, tiny_models.weights_of, tiny_models.MODELS)
        for name, adapter in tiny_adapters.ADAPTERS.items():
            tiny_models.write_model(adapter["model"], models)
            base = make_goldens.load(models / adapter["model"])
            ids = make_goldens.sequences()[0]
            plain = make_goldens.logits_of(base, ids)
            model = peft.PeftModel.from_pretrained(base, models / "adapters" / name).double().eval()
            tensors = tiny_adapters.tensors_of(name, tiny_models.random_tensor, tiny_models.weights_of)
            golden = make_goldens.golden_of(adapter["model"], model, True, tensors, [20, 13], [0, 4, 9])
            change = make_goldens.nmse(make_goldens.logits_of(model, ids), plain)
            assert change > 1e-3, f"{name} changes too little: {change}"
            tiny_models.write_golden(out / f"{name}.json", golden)
            print(f"{name}: changes the logits by NMSE {change:.2g}")


if __name__ == "__main__":
    main()
