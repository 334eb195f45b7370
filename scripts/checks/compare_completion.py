#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare what propagation makes of hand-made weights with their best completion.

Usage: scripts/checks/compare_completion.py
The weights are those of strategies; nothing else of their plans is kept. Prints a row of a
Markdown table for each model and strategy: the best completion (labels whose price is proved to be
least, simulated, collectives not hidden), and how far above it propagation is, with the plan
completed and by the rules alone. Exits with 1 where a completed plan is more than 2 % above.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm_distir as td
from tvm_distir.planning.strategies.training_parts import new_names
from tvm_distir.support.errors.tree import DistIRError

SYSTEMS = Path(__file__).parents[2] / "python" / "tests" / "systems"
A100, H100 = (str(SYSTEMS / f"plain-{name}.json") for name in ("a100", "h100"))
"""Rooflines on which each op is a kernel."""

SETTINGS = (
    ("llama?size=8b,layers=2,batch=16", {"dp": 2, "tp": 4}, A100),
    ("llama?size=8b,layers=4,batch=64", {"dp": 8, "tp": 8}, H100),
    ("gpt?size=gpt3-6.7b,layers=2,batch=16", {"dp": 2, "tp": 4}, A100),
    ("bert?size=bert-large,layers=2,batch=32", {"dp": 4, "tp": 2}, A100),
)
"""Zoo model, mesh, system."""

STRATEGIES = (
    "data_parallel+megatron",
    "zero:stage=1+megatron",
    "zero:stage=3+megatron",
)
MOST = 0.02


def weights_of(mod: Any, plan: td.Plan) -> td.Plan:
    """The rules of a plan that place inputs and what replaces them, none of them stationary."""
    updated = new_names(mod)
    remaining = [rule for rule in plan.rules if rule.kind == "param" or rule.name in updated]
    return td.Plan(
        plan.meshes, tuple(replace(rule, stationary=False, moving=()) for rule in remaining)
    )


def main() -> int:
    """Run the command."""
    apart: list[tuple[float, float]] = []
    print("| model | mesh | weights of | best completion, ms | completed | rules alone |")
    print("|---|---|---|--:|--:|--:|")
    for model, mesh, name in SETTINGS:
        system = td.System.load(name)
        for trained in (False, True):
            mod = td.load_model(f"zoo:{model}").mod
            if trained:
                mod = td.train_step(mod, optimizer="adam")
            for text in STRATEGIES:
                try:
                    plan = weights_of(mod, td.planning.make_plan(mod, text, mesh, system))
                except DistIRError:  # no strategy is for every model
                    continue
                best = td.auto_shard(mod, mesh, system, fixed=plan, gap=0.0005).distribute()
                plain: dict[str, Any] = {"system": system, "bucket_bytes": 0, "ahead_bytes": 0}
                matches = [
                    td.distribute(mod, each, **plain)
                    for each in (replace(plan, complete=True), plan)
                ]
                least, completed, alone = (
                    td.simulate(td.export(each), system, blocking=True).time_s
                    for each in (best, *matches)
                )
                apart.append((completed / least - 1, alone / least - 1))
                print(
                    f"| {model}{' Adam' if trained else ''} | {mesh} of {name} | {text} "
                    f"| {1e3 * least:.3f} | {apart[-1][0]:+.1%} | {apart[-1][1]:+.1%} |",
                    flush=True,
                )
    far = sum(each > MOST for each, _ in apart)
    for label, column in zip(("completed", "by the rules alone"), zip(*apart), strict=True):
        print(
            f"{len(column)} plans {label}: {sum(column) / len(column):.1%} above the best "
            f"completion on average, at most {max(column):.1%}"
        )
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
