#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The power with which each stage of the compiler grows with the number of layers.

CPU seconds at some counts of layers, or with ``--calls`` the calls of Python functions, which do
not depend on the machine. The law is a power of at most 1.15.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm_distir as td
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms import PassSpec, communication_passes, passes_for

LIMIT = 1.15
SIZES = {"hidden": 16, "heads": 2, "batch": 4, "seq": 8, "positions": 8, "vocab": 32}
PIPELINE = {"kind": "1f1b", "stages": 2, "micro_batches": 4}
TRAINED: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "fsdp": ("zero:stage=3", {"dp": 4}, {"recompute": "selective"}),
    "tp": ("megatron:sequence=true", {"tp": 2}, {"recompute": "full"}),
    "pp": ("pipeline:micro_batches=4+megatron", {"pp": 2, "tp": 2}, {"schedule": PIPELINE}),
}
Measure = Callable[[str, Callable[[], Any]], Any]


def run_stages(layers: int, measure: Measure) -> None:
    """Take training steps of a GPT through all stages, each by ``measure(name, stage)``."""
    system = td.System.load("h100")
    mod = measure("zoo", lambda: td.zoo.gpt(layers=layers, **SIZES))
    flat = measure("inline", lambda: PassSpec("inline").make()(mod))
    measure("outline", lambda: PassSpec("outline").make()(flat))
    for kind, (strategy, mesh, options) in TRAINED.items():

        def at(name: str, stage: Callable[[], Any], kind: str = kind) -> Any:
            return measure(f"{kind} {name}", stage)

        def applied(name: str, mod: Any, options: dict[str, Any], at: Measure = at) -> Any:
            return at(name, lambda: PassSpec(name).make(**options)(mod))

        step = at("train_step", lambda: td.train_step(mod, optimizer="adam", **options))
        plan = at("plan", lambda: make_plan(step, strategy, mesh))
        local = step
        passes = [(name, {**given, "system": system}) for name, given in passes_for(plan)]
        for name, given in (*passes, *communication_passes(step, system, ahead_bytes=1 << 20)):
            local = applied(name, local, given)
            if name == "legalize":
                applied("regather", local, {"axes": tuple(mesh)[-1:]})
        program = at("export", lambda: td.export(local))
        result = at("simulate", lambda: td.simulate(program, system))
        at("memory", lambda: result.peak_memory_bytes)
        at("json", program.to_json)


def calls(layers: int) -> dict[str, float]:
    """Return the calls of each stage."""
    counts: dict[str, float] = {}

    def measure(name: str, stage: Callable[[], Any]) -> Any:
        count = 0

        def note(*_: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            return stage()
        finally:
            sys.setprofile(None)
            counts[name] = count

    run_stages(layers, measure)
    return counts


def seconds(layers: int) -> dict[str, float]:
    """Return the CPU seconds of each stage."""
    spent: dict[str, float] = {}

    def measure(name: str, stage: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = stage()
        spent[name] = time.process_time() - start
        return result

    run_stages(layers, measure)
    return spent


def powers(
    small: dict[str, float], large: dict[str, float], ratio: float, least: float
) -> Iterator[tuple[str, float]]:
    """Yield the power of each stage that takes at least so much."""
    for name, value in large.items():
        if value >= least:
            yield name, math.log(value / max(small[name], least / ratio)) / math.log(ratio)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a stage breaks the law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs=2, default=(64, 256))
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args(arguments)
    (low, high), count = options.layers, calls if options.calls else seconds
    count(2)  # what is loaded and cached once
    small, large = count(low), count(high)
    found = dict(powers(small, large, high / low, 1000 if options.calls else 0.1))
    for name, value in large.items():
        power = f"{found[name]:5.2f}" if name in found else "     "
        print(f"{name:22s} {small[name]:12.2f} {value:12.2f} {power}")
    broken = [name for name, power in found.items() if power > LIMIT]
    print(f"above {LIMIT}: {', '.join(broken) or 'none'}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
