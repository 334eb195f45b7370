#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the tensor parallelism that MLC-LLM has written by hand with the strategy ``megatron``.

    scripts/peers/mlc_costs.py MLC_LLM [PRESET...] [--system h100]

``MLC_LLM`` is the folder of a checkout of MLC-LLM. Each model has its published sizes, in float16
on two devices. A line per model, entry and plan has the predicted time and the collectives; the
attention with the cache is a packed function without a cost, equal in both.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import tvm
from mlc_families import DEVICES, import_mlc
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.rewriting import keep_entry

PRESETS = ("llama3_1_8b", "mistral_7b", "qwen2_7b")
ENTRIES = {"batch_decode": {"batch_size": 16}, "prefill": {"seq_len": 2048}}
"""Entry points, and the sizes of their dims."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def exported(preset: str, shards: int) -> tuple[ir.IRModule, Any, int]:
    """Return the module of a device that MLC-LLM exports, its parameters, and the vocabulary."""
    from mlc_llm import op
    from mlc_llm.model import MODEL_PRESETS, MODELS
    from mlc_llm.quantization import QUANTIZATION

    config = json.loads(json.dumps(MODEL_PRESETS[preset]))
    config.update(tensor_parallel_shards=shards, context_window_size=4096, prefill_chunk_size=2048)
    target, model = tvm.target.Target("llvm"), MODELS[config["model_type"]]
    with target:
        op.enable(target=target, flashinfer=False, faster_transformer=False, cutlass=False)
        scheme = QUANTIZATION["q0f16"]
        created, _ = model.quantize[scheme.kind](model.config.from_dict(config), scheme)
        mod, params, _ = created.export_tvm(spec=created.get_default_spec(), allow_extern=True)
    return mod, params, int(config["vocab_size"])


def distributed(preset: str, entry: str, local: bool) -> ir.IRModule:
    """Return the program of a device, by MLC-LLM or by the strategy ``megatron``."""
    mod, params, words = exported(preset, DEVICES if local else 1)
    alone = keep_entry(mod, entry)
    known = {str(v.name) for v in relax.analysis.defined_symbolic_vars(alone[entry])}
    sizes = {**ENTRIES[entry], "vocab_size": words}
    alone = td.bind_dims(alone, {name: n for name, n in sizes.items() if name in known})
    if local:
        return td.from_ccl((alone, params), DEVICES)
    return td.distribute(alone, td.planning.make_plan(alone, "megatron", {"tp": DEVICES}))


def main() -> int:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mlc", type=Path)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--system", default="h100")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import_mlc(args.mlc)
    system = td.System.load(args.system)
    for preset in args.presets:
        for entry in ENTRIES:
            for local in (True, False):
                dist = distributed(preset, entry, local)
                result, text = td.simulate(td.export(dist), system), dist.script()
                counts = {kind: text.count(f"R.dist.{kind}(") for kind in KINDS}
                used = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
                plan = "MLC-LLM" if local else "megatron"
                print(f"{preset} {entry} {plan}: {result.time_s * 1e3:.2f} ms, {used}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
