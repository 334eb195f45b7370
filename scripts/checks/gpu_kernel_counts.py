#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile models for sm_90 in three types, and count the kernels and those left on the host.

Usage: scripts/checks/gpu_kernel_counts.py [--target cuda:sm_90] [--types float32 float16 bfloat16]
Needs no GPU: without the CUDA runtime the programs hold CUDA source. A kernel is left on the host
where the bytecode calls a function that launches no kernel of the source. Prints a row of a table
per program. Exits 1 when a program does not compile, or has a kernel on the host.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.execution.deployment.test_gpu_targets import called_kernels, kernel_names

import tvm_distir as td

GPT = "zoo:gpt?size=tiny,layers=2,dtype={}"
MODELS = {
    "GPT, megatron": (GPT, "megatron", {"tp": 2}),
    "Llama, megatron": ("zoo:llama?size=tiny,layers=2,dtype={}", "megatron", {"tp": 2}),
    "ResNet-18, data parallel": (
        "zoo:resnet?size=resnet18,image=64,batch=4,dtype={}",
        "data_parallel",
        {"dp": 2},
    ),
    "GPT, AdamW step, ZeRO-3": (GPT, "zero:stage=3", {"dp": 2}),
}


def compiled(model: str, plan: str, mesh: dict[str, int], target: str, train: bool) -> Any:
    """Return a compiled program."""
    mod = td.load_model(model).mod
    mod = td.train_step(mod, optimizer="adamw") if train else mod
    return td.compile(td.distribute(mod, td.planning.make_plan(mod, plan, mesh)), target=target)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--types", nargs="*", default=["float32", "float16", "bfloat16"])
    options = parser.parse_args()
    failed = 0
    print("| program | type | kernels | on the host | compiled, s |\n|---|---|--:|--:|--:|")
    for dtype in options.types:
        for name, (model, plan, mesh) in MODELS.items():
            begun_s = time.process_time()
            try:
                program = compiled(model.format(dtype), plan, mesh, options.target, "step" in name)
            except td.support.DistIRError as error:
                print(f"| {name} | {dtype} | {error} | | |", flush=True)
                failed += 1
                continue
            kernels = kernel_names(program.kernel_source(program.entries[0]))
            starts = tuple(kernel.partition("_kernel")[0] for kernel in kernels)
            host = called_kernels(program).difference(starts)
            failed += bool(host)
            took_s = time.process_time() - begun_s
            print(f"| {name} | {dtype} | {len(kernels)} | {len(host)} | {took_s:.0f} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
