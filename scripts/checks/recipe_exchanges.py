# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the exchanges in training steps of forty recipes of several mesh axes.

Two axes that shard one dim have an order, and a redistribution between orders is an exchange over
both. The pass ``OrderAxes`` chooses orders that need none. Models have two layers of real widths.

    python scripts/checks/recipe_exchanges.py [--without] [--execute] [--system h100] [NUMBER ...]

``--without`` leaves the pass out. ``--execute`` runs the steps at tiny sizes, which mesh axes do
not divide in every other recipe, and compares them with one device.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import tvm_distir as td
from tvm_distir.transforms import registry

GPT = "zoo:gpt?layers=2,hidden=4096,heads=32,vocab=65536,positions=2048,seq=2048,dtype=bfloat16"
FUSED = (
    "zoo:gpt?layers=2,hidden=7168,heads=56,vocab=131072,positions=4096,seq=4096,dtype=bfloat16,"
    "fused_qkv=1"
)
LLAMA = "zoo:llama?layers=2,hidden=8192,heads=64,kv_heads=8,vocab=128256,seq=8192,dtype=bfloat16"
SMALL = "zoo:llama?layers=2,hidden=1024,heads=16,vocab=8192,seq=512,dtype=bfloat16"
UNTIED = "zoo:llama?layers=2,hidden=4096,heads=32,kv_heads=8,vocab=32000,seq=4096,dtype=bfloat16"


class Recipe(NamedTuple):
    """A model, its strategy and mesh, and the samples of a step."""

    model: str
    strategy: str
    mesh: dict[str, int]
    batch: int


def recipes() -> list[Recipe]:
    """Return the recipes."""
    dp_tp: list[dict[str, int]] = [{"dp": 4, "tp": 8}, {"tp": 4, "dp": 4}]
    result = [
        Recipe(model, f"zero:stage={stage}+megatron{sequence}", mesh, 16)
        for model in (FUSED, UNTIED)
        for stage in (1, 2, 3)
        for sequence in ("", ":sequence=1")
        for mesh in dp_tp[: 1 + (model is UNTIED)]
    ]
    cp_tp: list[dict[str, int]] = [{"cp": 2, "tp": 4}, {"tp": 4, "cp": 2}]
    result += [
        Recipe(model, "context_parallel+megatron:sequence=1", mesh, 4)
        for model in (LLAMA, UNTIED, GPT)
        for mesh in cp_tp
    ]
    three = {"dp": 2, "cp": 2, "tp": 4}
    result += [
        Recipe(model, f"context_parallel+zero:stage={stage}+megatron:sequence=1", three, 8)
        for model in (LLAMA, UNTIED)
        for stage in (1, 3)
    ]
    pods = {"pod": 2, "dp": 2, "tp": 4}
    result += [
        Recipe(UNTIED, f"data_parallel:axis=pod+zero:stage={stage}+megatron:sequence=1", pods, 16)
        for stage in (1, 3)
    ]
    result += [Recipe(SMALL, "context_parallel+zero:stage=1+megatron:sequence=1", three, 16)]
    result += [
        Recipe(
            GPT,
            f"pipeline:micro_batches=2+zero:stage=1+megatron{s}",
            {"pp": 2, "dp": 2, "tp": 4},
            16,
        )
        for s in ("", ":sequence=1")
    ]
    result += [Recipe(GPT, "fsdp+megatron", mesh, 16) for mesh in dp_tp]
    result += [
        Recipe(
            UNTIED,
            "pipeline:micro_batches=2+context_parallel+megatron:sequence=1",
            {"pp": 2, **mesh},
            8,
        )
        for mesh in cp_tp
    ]
    result += [Recipe(GPT, "fsdp+megatron:sequence=1", mesh, 16) for mesh in dp_tp]
    result += [Recipe(LLAMA, "fsdp+context_parallel", {"dp": 4, "cp": 4}, 8)]
    return result


def executed(number: int, layers: int, system: str) -> bool:
    """Return whether the step of a recipe, at a tiny size, equals one device by execution."""
    recipe, seq = recipes()[number], 15 if number % 2 else 16
    model = f"{recipe.model.split('?')[0]}?layers={layers},hidden=32,heads=16,vocab=50,seq={seq}"
    if "gpt" in model:
        model += f",positions={seq}" + ",fused_qkv=1" * (recipe.model is FUSED)
    else:
        model += ",kv_heads=8,ffn=48"
    analysis = td.analyze(
        model, strategy=recipe.strategy, mesh=recipe.mesh, system=system, batch=recipe.batch,
        train={"optimizer": "adamw"},
    )  # fmt: skip
    return bool(td.verify(analysis.study.step, analysis.plan, dist=analysis.module).equal)


def execute(numbers: Iterable[int], system: str) -> int:
    """Run steps of recipes, print which differ from one device, and return 1 where one does."""
    wrong = 0
    for number in numbers:
        start, is_equal = time.process_time(), executed(number, 2, system)
        wrong += not is_equal
        print(
            f"{number:2d} {'equal' if is_equal else 'DIFFERENT'}  "
            f"{time.process_time() - start:5.1f} CPU s  {recipes()[number].strategy}",
            flush=True,
        )
    print(f"{wrong} steps differ")
    return int(wrong > 0)


def main() -> int:
    """Count exchanges, and print them by recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="store_true", help="Leave OrderAxes out.")
    parser.add_argument("--execute", action="store_true", help="Run tiny steps.")
    parser.add_argument("--system", default="h100")
    parser.add_argument("numbers", nargs="*", type=int, help="Recipes, counted from 0.")
    arguments = parser.parse_args()
    if arguments.without:
        registry.PIPELINE = tuple(name for name in registry.PIPELINE if name != "order")
    known, total = recipes(), 0
    if arguments.execute:
        return execute(arguments.numbers or range(len(known)), arguments.system)
    for number in arguments.numbers or range(len(known)):
        recipe, start = known[number], time.process_time()
        analysis = td.analyze(
            recipe.model, strategy=recipe.strategy, mesh=recipe.mesh, system=arguments.system,
            batch=recipe.batch, train={"optimizer": "adamw"},
        )  # fmt: skip
        text = analysis.module.script()
        calls = Counter(name.removesuffix("_start") for name in re.findall(r"R\.dist\.(\w+)", text))
        total += calls["exchange"]
        print(
            f"{number:2d} {calls['exchange']:3d} exchanges  {analysis.time_s * 1e3:8.2f} ms  "
            f"{analysis.peak_memory_bytes / 2**30:6.2f} GiB  "
            f"{time.process_time() - start:5.1f} CPU s  "
            f"{recipe.strategy} {recipe.mesh}",
            flush=True,
        )
    print(f"{total} exchanges in {len(arguments.numbers or known)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
