#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile models for sm_90 in three types and with two libraries, and count their kernels.

Usage: scripts/checks/gpu_kernel_counts.py [--target cuda:sm_90] [--types float32 float16 bfloat16]
           [--dispatch torch tvm] [--models Llama GPT U-Net]
Needs no GPU: without the CUDA runtime the programs hold CUDA source. A kernel is left on the host
where the bytecode calls a function that launches no kernel of the source. Prints a row of a table
per program. Exits 1 when a program does not compile, has a kernel on the host, or sums half
precision in half precision on tensor cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.execution.deployment.kernel_counts import KernelCounts, count_kernels

import tvm_distir as td

LLAMA = "zoo:llama?size=tiny,layers=1,hidden=2048,heads=32,kv_heads=8,ffn=5632,seq=512,batch=2"
GPT = "zoo:gpt?size=tiny,layers=1,hidden=256,heads=4,positions=128,seq=128,batch=4"
GPT += ",attention=flash,fused_qkv=1"
MODELS = {
    "Llama, a layer of width 2048, tp=2": (f"{LLAMA},dtype={{}}", "megatron", {"tp": 2}),
    "GPT, AdamW step, dp=2": (
        f"{GPT},dtype={{}}",
        "data_parallel",
        {"dp": 2},
    ),
    "U-Net, dp=2": ("zoo:unet?size=tiny,batch=2,dtype={}", "data_parallel", {"dp": 2}),
}
COLUMNS = (
    *("program", "type", "`dispatch`", "kernels", "products: library", "tensor cores", "neither"),
    *("accumulators", "attention: calls", "softmax kernels", "transposes", "on the host"),
    "compiled, s",
)


def compiled(model: str, plan: str, mesh: dict[str, int], target: str, library: str) -> Any:
    """Return a compiled program; of a GPT, its training step."""
    mod = td.load_model(model).mod
    mod = td.train_step(mod, optimizer="adamw") if "gpt" in model else mod
    dist = td.distribute(mod, td.planning.make_plan(mod, plan, mesh))
    return td.compile(dist, target=target, dispatch=library)


def row(counts: KernelCounts, took_s: float) -> list[object]:
    """Return the cells of a program."""
    c = counts
    return [
        *(c.kernels, c.library, c.tensor_cores, c.other_products),
        ", ".join(sorted(c.accumulators)) or "-",
        *(c.attention, c.softmax, c.transposes, len(c.host), f"{took_s:.1f}"),
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--types", nargs="*", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--dispatch", nargs="*", default=["torch", "tvm"])
    parser.add_argument("--models", nargs="*", default=[""], help="beginnings of their names")
    options = parser.parse_args()
    chosen = [name for name in MODELS if name.startswith(tuple(options.models))]
    failed = 0
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * 3}{'--:|' * (len(COLUMNS) - 3)}")
    for name in chosen:
        for dtype in options.types:
            for library in options.dispatch:
                begun_s, (model, *rest) = time.process_time(), MODELS[name]
                cells: list[object]
                try:
                    program = compiled(model.format(dtype), *rest, options.target, library)
                    counts = count_kernels(program)
                    cells = row(counts, time.process_time() - begun_s)
                    wrong = counts.host or counts.accumulators - {"float"}
                    failed += bool(wrong)
                except td.support.DistIRError as error:
                    cells = [error]
                    failed += 1
                print(f"| {' | '.join(map(str, (name, dtype, library, *cells)))} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
