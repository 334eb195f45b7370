#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare what search finds with the strategies, by simulated time, and prices with simulation.

Usage: scripts/checks/compare_search.py [FIRST [LAST]]
Prints a row of a Markdown table for each setting (model, devices, batch): the best of all
strategies on all meshes, the plan found, and of its labels how far price and memory are from what
is simulated (collectives not hidden). Exits with 1 where a strategy is better than the search.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import tvm_distir as td
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.support.errors.tree import DistIRError

SYSTEMS = Path(__file__).parents[2] / "python" / "tests" / "systems"
A100, H100 = (str(SYSTEMS / f"plain-{name}.json") for name in ("a100", "h100"))
"""Rooflines on which each op is a kernel."""

TRAIN = {"optimizer": "adam"}

SETTINGS = (
    ("gpt?size=gpt2,layers=2", A100, 8, 16, True),
    ("gpt?size=gpt2,layers=2", H100, 8, 64, True),
    ("gpt?size=gpt3-6.7b,layers=2", A100, 8, 16, True),
    ("gpt?size=gpt3-6.7b,layers=2", A100, 16, 64, True),
    ("llama?size=8b,layers=2", H100, 8, 16, True),
    ("llama?size=8b,layers=2", H100, 16, 16, True),
    ("llama?size=8b,layers=2", A100, 32, 64, True),
    ("llama?size=70b,layers=1", H100, 16, 16, True),
    ("moe?size=mixtral-8x7b,layers=1", H100, 8, 16, True),
    ("bert?size=bert-large,layers=2", A100, 8, 64, True),
    ("vit?size=vit-l16,layers=2", A100, 8, 64, True),
    ("vit?size=vit-l16,layers=2", H100, 24, 96, True),
    ("gpt?size=gpt3-6.7b,layers=2", A100, 8, 1, False),
    ("gpt?size=gpt3-6.7b,layers=2", A100, 8, 16, False),
    ("llama?size=8b,layers=2", H100, 8, 1, False),
    ("llama?size=8b,layers=2", H100, 8, 32, False),
    ("bert?size=bert-large,layers=2", A100, 8, 32, False),
    ("vit?size=vit-l16,layers=2", A100, 8, 64, False),
    ("resnet", A100, 8, 64, False),
    ("moe?size=mixtral-8x7b,layers=1", H100, 8, 16, False),
)
"""Zoo model, system, devices, batch, whether a step of training with Adam."""

STRATEGIES = (
    "data_parallel",
    "data_parallel+megatron",
    "data_parallel+megatron:sequence=1",
    "data_parallel+tensor_parallel",
    "zero:stage=1",
    "zero:stage=3",
    "zero:stage=1+megatron:sequence=1",
    "zero:stage=3+megatron",
    "data_parallel+complete",
    "data_parallel+megatron+complete",
    "zero:stage=1+complete",
    "zero:stage=1+megatron+complete",
    "zero:stage=3+complete",
    "zero:stage=3+megatron+complete",
)


def meshes(devices: int) -> Iterator[dict[str, int]]:
    """Every dp by tp."""
    for dp in range(1, devices + 1):
        if devices % dp == 0:
            yield {"dp": dp, "tp": devices // dp}


def best_strategy(mod: object, devices: int, system: td.System) -> tuple[float, str]:
    """Time and name of the fastest strategy that fits, on its best mesh."""
    observed = (float("inf"), "none")
    for mesh in meshes(devices):
        for text in STRATEGIES:
            if mesh["tp"] == 1 and ("megatron" in text or "tensor" in text):
                continue
            if mesh["dp"] == 1 and "zero" in text:
                continue
            try:
                plan = td.planning.make_plan(mod, text, mesh, system)
                result = td.simulate(td.export(td.distribute(mod, plan, system=system)), system)
            except DistIRError:  # no strategy is for every model
                continue
            if result.peak_memory_bytes <= system.memory_capacity_bytes:
                name = f"{text}, dp={mesh['dp']} tp={mesh['tp']}"
                observed = min(observed, (result.time_s, name))
    return observed


def main() -> int:
    """Run the command."""
    first, last = ([int(x) for x in sys.argv[1:]] + [1, len(SETTINGS)][len(sys.argv) - 1 :])[:2]
    worse, errors = 0, []
    print("| model | cluster | batch | best strategy | ms | search | ms | | price | peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model, name, devices, batch, trained in SETTINGS[first - 1 : last]:
        system = td.System.load(name)

        def make(size: int, model: str = model) -> object:
            glue = "," if "?" in model else "?"
            return td.load_model(f"zoo:{model}{glue}batch={size}").mod

        train = TRAIN if trained else None
        mod = td.train_step(make(batch), **TRAIN) if trained else make(batch)
        hand_s, hand = best_strategy(mod, devices, system)
        rules = Constraints(("dp", "tp"))
        result = search(make, devices, system, batch=batch, train=train, constraints=rules, top=1)
        best = result.plans[0]
        mesh = best.row.candidate.mesh
        labelled = td.auto_shard(
            mod, mesh, system, gap=0.01, memory_bytes=system.memory_capacity_bytes
        )
        simulated = td.simulate(labelled.program(), system, blocking=True)
        price = labelled.price_s / simulated.time_s - 1
        peak = labelled.peak_bytes / simulated.peak_memory_bytes - 1
        errors.append((abs(price), abs(peak)))
        worse += best.time_s > hand_s
        print(
            f"| {model}{' Adam' if trained else ''} | {devices} {name} | {batch} | {hand} "
            f"| {1e3 * hand_s:.3f} | {best.row.candidate.key} | {1e3 * best.time_s:.3f} "
            f"| {100 * (best.time_s / hand_s - 1):+.1f}% | {100 * price:+.1f}% "
            f"| {100 * peak:+.1f}% |",
            flush=True,
        )
    prices, peaks = zip(*errors, strict=True)
    print(
        f"\n{len(errors)} settings, a strategy better in {worse}; price within 5 % in "
        f"{sum(x <= 0.05 for x in prices)}, most {100 * max(prices):.1f} %; peak within 5 % in "
        f"{sum(x <= 0.05 for x in peaks)}, most {100 * max(peaks):.1f} %; "
        f"{time.process_time():.0f} s of CPU"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
