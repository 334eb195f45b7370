#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the simulation of serving at full counts, of which the test suite has a part.

Usage: scripts/checks/serving_laws.py [events] [throughput[:K/N]] [search[:K/N]] [listed[:K/N]]
[surfaces[:K/N]]

``events``: 500 random workloads, the native loop against the reference in Python. ``throughput``:
Little's law for 1 to 512 users, and what is served at loads from a tenth to 100,000 times of what
can be served, for all schedulers and three kinds of lengths. ``search``: the best choice against
exhaustive search in 50 small spaces. ``listed``: ten drawn plans, each of which a search tries, or
cuts by a bound, where an analysis takes it. ``surfaces``: steps of 13 plans against the pipeline,
to the picosecond. All of them by default; ``:K/N`` checks the K-th of N parts. Prints a line
for each, exits 1 when one fails.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

PLANS = (
    *(("llama3", "megatron", {"tp": n}) for n in (2, 4, 8)),
    ("gemma", "megatron", {"tp": 2}),
    ("qwen3", "megatron", {"tp": 1}),
    ("deepseek", "data_parallel", {"dp": 2}),
    ("deepseek,experts=32", "expert_parallel", {"ep": 4}),
    ("mixtral", "expert_parallel", {"ep": 2}),
    ("gpt_oss,experts=16", "megatron", {"tp": 1}),
    ("moe", "expert_parallel", {"ep": 4}),
    ("llama3,layers=18", "pipeline+megatron", {"pp": 3, "tp": 2}),
    ("gpt_oss,layers=8", "pipeline:layers=5/3+megatron", {"pp": 2, "tp": 1}),
    ("mixtral,layers=4", "pipeline+expert_parallel", {"pp": 2, "ep": 2}),
)
POINTS = 20
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 2.0, 4.0, 30.0, 1e5)


def check_events(part: slice) -> str:
    """Compare 500 workloads with the reference."""
    from tests.planning.serving.test_serving_events import compare_with_reference

    numbers = range(500)[part]
    preempted = compare_with_reference(numbers)
    return f"{len(numbers)} workloads equal, {preempted} preemptions"


def check_throughput(part: slice) -> str:
    """Check what closed and open loops of each scheduler are served."""
    from tests.planning.serving import test_serving_throughput as laws

    cases = list(itertools.product(laws.SCHEDULERS, laws.LENGTHS))[part]
    for kind, lengths in cases:
        laws.compare_littles_law(kind, lengths, laws.USERS)
        laws.compare_capacity(kind, lengths, LOADS)
    return f"{len(cases)} cases hold for {len(laws.USERS)} numbers of users, {len(LOADS)} loads"


def check_search(part: slice) -> str:
    """Compare searches in 50 spaces with exhaustive ones."""
    from tests.planning.serving.test_serving_surface import (
        SPACES,
        compare_with_exhaustive,
        fitted_once,
    )

    spaces = SPACES[part]
    with fitted_once():
        return f"{len(spaces)} spaces equal, {compare_with_exhaustive(spaces)} choices cut"


def check_listed(part: slice) -> str:
    """Look for what analyses of ten drawn plans take in searches."""
    from tests.planning.serving.test_serving_choices import compare_with_analyses
    from tests.planning.serving.test_serving_surface import fitted_once

    with fitted_once():
        numbers = range(10)[part]
        return (
            f"{len(numbers)} plans listed, of which {compare_with_analyses(numbers)} are possible"
        )


def check_surfaces(part: slice) -> str:
    """Compare steps of plans with the pipeline."""
    from tests.planning.serving.test_serving_surface import SYSTEM, differing_sizes

    from tvm_distir.hardware import System
    from tvm_distir.planning.serving.served_model import ServedModel

    for model, strategy, mesh in PLANS[part]:
        name, _, keys = model.partition(",")
        layers = "" if "layers=" in keys else ",layers=3"
        text = f"zoo:{name}?size=tiny{layers}" + (f",{keys}" if keys else "")
        served = ServedModel(text, strategy, mesh, System.load(SYSTEM))
        differing = differing_sizes(served, POINTS)
        assert not differing, f"{model} {served.plan_text}: {differing}"
        print(f"  {model}, {served.plan_text}: {2 * POINTS} steps equal", flush=True)
    return f"{len(PLANS[part])} plans equal"


CHECKS: dict[str, Callable[[slice], str]] = {
    "events": check_events,
    "throughput": check_throughput,
    "search": check_search,
    "listed": check_listed,
    "surfaces": check_surfaces,
}


def main(names: list[str]) -> int:
    """Run the checks."""
    warnings.simplefilter("ignore", UserWarning)
    failed = 0
    for name in names or CHECKS:
        check, _, share = name.partition(":")
        number, _, count = (share or "1/1").partition("/")
        try:
            print(f"{name}: {CHECKS[check](slice(int(number) - 1, None, int(count)))}", flush=True)
        except AssertionError as error:
            failed = 1
            print(f"{name}: FAILED {error}", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
