#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random modules, meshes and plans of the campaign on the engine torch, against virtual.

Usage: torchrun --nproc-per-node 4 scripts/checks/campaign_torch.py [--programs 40] [--first 0]
All processes draw the same programs. Those whose meshes need more devices than there are processes,
or that have no collective, are passed over. Process 0 prints each program whose results differ in a
bit, and the counts. Exits 1 when one differs or fails.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch
from tests.campaign import campaign_modules
from tests.campaign.campaign_check import Case
from tests.quick_compilation import QUICK_TARGET

import tvm_distir as td
from tvm_distir.execution.runtime.engines.torch.engine import TorchEngine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.support.errors.tree import DistIRError


def outcome(seed: int, engine: TorchEngine) -> tuple[str, str]:
    """What became of a case, and why; the same on all processes unless it differs."""
    dist = torch.distributed
    case = Case.of_seed(seed)
    try:
        local = td.distribute(case.mod, td.Plan.from_dict(case.plan))
        program = LoweredProgram(local)
    except DistIRError as error:
        return "plan refused", error.code
    ranks = [rank for entry in program.entries for rank in entry.ranks]
    if len(ranks) > dist.get_world_size():
        return "too many devices", ""
    if not program.communication.groups and not program.communication.transfers:
        return "no collective", ""
    inputs = campaign_modules.inputs_of(case.mod, seed, case.values)
    try:
        expected = td.run(local, inputs, engine="virtual")
    except DistIRError as error:
        return "not run by virtual", error.code
    try:
        results = engine.run(local, inputs)
    except DistIRError as error:
        return "ERROR", f"seed {seed}: {error}"[:400]
    if all(same_bits(a, b) for a, b in zip(results, expected, strict=True)):
        return "same bits", ""
    return "DIFFERS", f"seed {seed}"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    speaks = torch.distributed.get_rank() == 0
    counts: collections.Counter[str] = collections.Counter()
    collectives: collections.Counter[str] = collections.Counter()
    engine, seed = TorchEngine(60.0, check=True), options.first
    with QUICK_TARGET:
        while sum(counts[kind] for kind in ("same bits", "DIFFERS", "ERROR")) < options.programs:
            kind, why = outcome(seed, engine)
            counts[kind] += 1
            if kind == "same bits":
                collectives.update({c.kind: c.count for c in engine.collectives})
            if speaks and why and kind in ("ERROR", "DIFFERS"):
                print(f"{kind} {why}", flush=True)
            seed += 1
    if speaks:
        print(f"seeds {options.first} to {seed - 1}: {dict(counts)}")
        print(f"collectives of rank 0: {dict(sorted(collectives.items()))}")
    torch.distributed.destroy_process_group()
    return int(counts["ERROR"] + counts["DIFFERS"] > 0)


if __name__ == "__main__":
    sys.exit(main())
