#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random modules, meshes and plans of the campaign, lowered and run by XLA:CPU, against one device.

Usage: scripts/checks/campaign_xla.py A:B [--jax-python PYTHON]
Prints the outcomes counted, what has no form in StableHLO, and each case that differs. Exits 1 when
one does.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.campaign import campaign_modules
from tests.campaign.campaign_check import Case, Original
from tests.quick_compilation import QUICK_TARGET

import tvm_distir as td
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.support.errors.tree import DistIRError

MOST_RANKS = 16
"""Ranks of the largest mesh of a plan."""


def outcome(seed: int, engine: XlaEngine) -> tuple[str, str]:
    """What became of a case, and why."""
    case = Case.of_seed(seed)
    inputs = campaign_modules.inputs_of(case.mod, seed, case.values)
    try:
        original = Original(case, inputs)
    except DistIRError as error:
        return "unusable", str(error)[:80]
    if not original.finite():
        return "unusable", "the results are not finite"
    try:
        local = td.distribute(case.mod, td.Plan.from_dict(case.plan))
    except DistIRError as error:
        return "plan refused", error.code
    try:
        observed = engine.run(local, inputs)
    except DistIRError as error:
        if error.code in ("DIST0380", "DIST0605"):
            return "not written", str(error).partition(": ")[2].partition(" [")[0][:70]
        return "ERROR", f"seed {seed}: {error}"[:400]
    result = original.compared("xla", observed, MOST_RANKS)
    if result.kind == "ok":
        return "equal", ""
    return "DIFFERS", f"seed {seed}: {result}"[:300]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("seeds", metavar="A:B")
    parser.add_argument("--jax-python", default=sys.executable)
    options = parser.parse_args()
    first, last = (int(word) for word in options.seeds.split(":"))
    engine = XlaEngine(options.jax_python)
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    with QUICK_TARGET:
        for seed in range(first, last):
            kind, why = outcome(seed, engine)
            counts[kind] += 1
            if kind in ("ERROR", "DIFFERS"):
                print(f"{kind} {why}", flush=True)
            elif kind == "not written":
                reasons[why] += 1
    print(dict(counts))
    for why, count in reasons.most_common():
        print(f"{count:5d}  {why}")
    return 1 if counts["ERROR"] + counts["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
