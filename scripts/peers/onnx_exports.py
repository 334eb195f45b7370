#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export models of PyTorch to ONNX with open dims, and analyse the files.

    scripts/peers/onnx_exports.py [MODEL...] [--full] [--folder DIR] [--json]

Each has the widths of the model it is called by, and with ``--full`` all of its layers, else some
of them, with random weights (nothing is downloaded). The file is read with sizes for its open dims,
its repeated layers are looked for, and it is analysed on four devices by data_parallel,
tensor_parallel and, for transformers, megatron. Needs the extra `torch` and the packages
`transformers` and `onnxscript`.
Exits with 1 where anything is refused.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import onnx_unet
import torch
import transformers as hf
from tvm import relax

import tvm_distir as td
from tvm_distir.support.errors.tree import DistIRError

SYSTEM = "dgx-a100"
MESHES = {"data_parallel": {"dp": 4}, "tensor_parallel": {"tp": 4}, "megatron": {"tp": 4}}


@dataclass(frozen=True)
class Export:
    """A model to export.

    ``make`` builds it; ``inputs`` are example inputs by name; ``open_dims`` the names of open dims
    by input; ``sizes`` what the analysis gives them; ``layers`` how many it has; with ``half`` it
    is one of half precision.
    """

    make: Callable[[], torch.nn.Module]
    inputs: dict[str, torch.Tensor]
    open_dims: dict[str, dict[int, str]]
    sizes: dict[str, int]
    layers: str
    transformer: bool = True
    half: bool = False


class Logits(torch.nn.Module):
    """A model of `transformers`, called by names, that gives its first output only."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """The output of this name."""
        inputs = dict(zip(self.names, args, strict=True))
        return getattr(self.model(**inputs, return_dict=True), self.output)


def _of(cls: str, config: Any, names: tuple[str, ...], output: str = "logits") -> Any:
    config._attn_implementation = "eager"
    return lambda: Logits(getattr(hf, cls)(config), names, output)


def _ids(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(0, 500, (batch, length))


TEXT = {"input_ids": {0: "batch", 1: "seq"}}
IMAGE = {"pixel_values": {0: "batch"}}
BATCH = {"batch": 8}
USUAL = {"batch": 8, "seq": 512}


def _models(full: bool) -> dict[str, Export]:
    def count(few: int, all_of_them: int) -> int:
        return all_of_them if full else few

    images = {"pixel_values": torch.zeros(2, 3, 224, 224)}
    llama = hf.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=count(3, 16),
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, rope_theta=5e5,
        use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    gpt2 = hf.GPT2Config(n_layer=count(2, 12), use_cache=False)
    bert = hf.BertConfig(num_hidden_layers=count(2, 12))
    vit = hf.ViTConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=count(2, 24),
        num_attention_heads=16,
    )  # fmt: skip
    deep = count(2, 12)
    whisper = hf.WhisperConfig(
        d_model=768, encoder_layers=deep, decoder_layers=deep, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
    )  # fmt: skip
    t5 = hf.T5Config(
        d_model=768, d_kv=64, d_ff=3072, num_layers=count(3, 12), num_heads=12, use_cache=False
    )
    unet_sizes = ((320, 640, 1280, 1280), 2) if full else ((320, 640, 1280), 1)
    pair = {0: "batch", 1: "target"}
    two = ("input_ids", "decoder_input_ids")
    sound = ("input_features", "decoder_input_ids")
    both = {"batch": 8, "seq": 512, "target": 128}
    unet = {
        "sample": torch.zeros(2, 4, 64, 64),
        "timestep": torch.zeros(2),
        "context": torch.zeros(2, 77, 768),
    }
    return {
        "gpt2": Export(
            _of("GPT2LMHeadModel", gpt2, ("input_ids",)), {"input_ids": _ids()}, TEXT, USUAL,
            f"{gpt2.n_layer}",
        ),
        "llama-1b": Export(
            _of("LlamaForCausalLM", llama, ("input_ids",)), {"input_ids": _ids()}, TEXT, USUAL,
            f"{llama.num_hidden_layers}", half=full,
        ),
        "vit-l": Export(
            _of("ViTForImageClassification", vit, ("pixel_values",)), images, IMAGE, BATCH,
            f"{vit.num_hidden_layers}",
        ),
        "resnet-50": Export(
            _of("ResNetForImageClassification", hf.ResNetConfig(), ("pixel_values",)), images,
            IMAGE, BATCH, "16", False,
        ),
        "whisper-small": Export(
            _of("WhisperForConditionalGeneration", whisper, sound),
            {"input_features": torch.zeros(2, 80, 3000), "decoder_input_ids": _ids()},
            {"input_features": {0: "batch"}, "decoder_input_ids": pair},
            {"batch": 8, "target": 128}, f"{deep} + {deep}",
        ),
        "t5-base": Export(
            _of("T5ForConditionalGeneration", t5, two),
            {"input_ids": _ids(), "decoder_input_ids": _ids(2, 8)},
            TEXT | {"decoder_input_ids": pair}, both, f"{t5.num_layers} + {t5.num_layers}",
        ),
        "sd-1.5-unet": Export(
            lambda: onnx_unet.UNet(*unet_sizes), unet, {name: {0: "batch"} for name in unet},
            BATCH, f"{len(unet_sizes[0])} levels of {unet_sizes[1]}", False,
        ),
        "bert": Export(
            _of("BertForMaskedLM", bert, ("input_ids",)), {"input_ids": _ids()}, TEXT, USUAL,
            f"{bert.num_hidden_layers}",
        ),
    }  # fmt: skip


def export(single: Export, path: Path) -> None:
    """Write the model as ONNX, its weights beside it."""
    torch.manual_seed(0)
    model = single.make().eval()
    if single.half:
        model.half()
    dims = [
        {d: torch.export.Dim(n) for d, n in single.open_dims.get(name, {}).items()}
        for name in single.inputs
    ]
    several = isinstance(model, Logits)
    torch.onnx.export(
        model,
        tuple(single.inputs.values()),
        str(path),
        input_names=list(single.inputs),
        dynamic_shapes=(tuple(dims),) if several else tuple(dims),
        dynamo=True,
        external_data=True,
        verbose=False,
        optimize=True,
    )


def analyse(path: Path, single: Export) -> dict[str, Any]:
    """Read the file, find its layers, and simulate a step under each strategy."""
    mod = td.load_model(str(path), dims=single.sizes).mod
    weights = len(mod["main"].params) - len(single.inputs)
    nameless = [str(p.name) for p in mod["main"].params if re.match(r"val_\d+", str(p.name))]
    mod = td.transforms.OutlineRepeatedLayers()(mod)
    layers = {
        str(gv.name_hint): sum(
            isinstance(getattr(b.value, "op", None), type(gv)) and b.value.op == gv
            for block in mod["main"].body.blocks
            for b in block.bindings
        )
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function) and gv.name_hint != "main"
    }
    steps: dict[str, Any] = {}
    for strategy, mesh in MESHES.items():
        if strategy == "megatron" and not single.transformer:
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                plan = td.planning.make_plan(mod, strategy, mesh, SYSTEM)
                local = td.distribute(mod, plan, system=SYSTEM)
                result = td.simulate(td.export(local), SYSTEM)
                steps[strategy] = {
                    "time_s": result.time_s,
                    "flops": result.devices[0].flops,
                    "unmodelled": list(result.unmodelled_ops),
                }
            except DistIRError as error:
                steps[strategy] = {"refused": str(error)}
            steps[strategy]["warnings"] = [str(w.message)[:300] for w in caught]
    return {"weights": weights, "nameless": nameless, "layers": layers, "steps": steps}


def main() -> int:
    """Export and analyse; return 1 where anything is refused."""
    parser = argparse.ArgumentParser(description="Export models to ONNX and analyse the files.")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--full", action="store_true", help="all layers")
    parser.add_argument("--folder", type=Path, help="keep the files here, and use what is there")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    models = _models(arguments.full)
    bad = 0
    with tempfile.TemporaryDirectory() as local:
        folder = arguments.folder or Path(local)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.models or models:
            path = folder / f"{name}.onnx"
            start = time.process_time()
            if not path.exists():
                export(models[name], path)
                gc.collect()
            created = time.process_time()
            try:
                result = analyse(path, models[name])
            except DistIRError as error:
                result = {"steps": {"read": {"refused": str(error)}}}
            bad += any("refused" in step for step in result["steps"].values())
            elapsed = {"export_s": created - start, "analysis_s": time.process_time() - created}
            row = {"model": name, "depth": models[name].layers, **result, **elapsed}
            print(json.dumps(row) if arguments.json else _text(row), flush=True)
    return int(bool(bad))


def _text(row: dict[str, Any]) -> str:
    steps = "; ".join(
        f"{name} {step['time_s'] * 1e3:.2f} ms, {step['flops'] / 1e9:.0f} GFLOP"
        if "time_s" in step
        else f"{name}: {step['refused'][:300]}"
        for name, step in row["steps"].items()
    )
    layers = ", ".join(f"{name} x {count}" for name, count in row.get("layers", {}).items())
    return f"{row['model']} ({row['depth']}): {layers or 'no layers'}; {steps}"


if __name__ == "__main__":
    sys.exit(main())
