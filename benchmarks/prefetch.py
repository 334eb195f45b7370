#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps of ZeRO-3 whose layers gather and reduce by units across calls, and within calls only.

Prints a row of a table in ``docs/optimize.md`` for each: the step, the exposed communication, the
memory of the fullest device, the length of the module's text and the CPU time of the passes.
``within`` has buckets of 25 MiB and overlap within functions; ``across`` is the default.
"""

from __future__ import annotations

import time
from typing import Any

import tvm_distir as td
from tvm_distir.transforms import BucketReductions, ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.distribute import communication_passes
from tvm_distir.transforms.spec import PassSpec

SYSTEM = td.System.load("a100")
HALF: dict[str, Any] = {"dtype": "float16", "seq": 2048, "positions": 2048, "batch": 16}
CASES: list[tuple[str, dict[str, Any], dict[str, int], dict[str, Any], str]] = [
    ("GPT-2 medium, float32", {"size": "gpt2-medium", "seq": 1024, "batch": 32}, {"dp": 8}, {}, ""),
    (
        "GPT 1.3B, all recomputed",
        {"layers": 24, "hidden": 2048, "heads": 16, **HALF},
        {"dp": 8},
        {"master": True, "recompute": "full"},
        "",
    ),
    (
        "GPT-3 6.7B, all recomputed",
        {"size": "gpt3-6.7b", **HALF},
        {"dp": 16},
        {"master": True, "recompute": "full"},
        "",
    ),
    ("GPT-3 6.7B", {"size": "gpt3-6.7b", **HALF}, {"dp": 16}, {"master": True}, ""),
    (
        "GPT of 16 layers, 4 stages",
        {"layers": 16, "hidden": 2048, "heads": 16, **HALF, "batch": 8},
        {"pp": 4, "dp": 8},
        {"master": True, "schedule": {"kind": "1f1b", "stages": 4, "micro_batches": 8}},
        "pipeline:micro_batches=8+",
    ),
]


def main() -> None:
    """Print the rows."""
    for title, model, mesh, options, before in CASES:
        step = td.train_step(td.zoo.gpt(**model), optimizer="adam", **options)
        plan = td.planning.make_plan(step, f"{before}zero", mesh)
        mod = td.distribute(step, plan, system=SYSTEM, bucket_bytes=0, ahead_bytes=0)
        schedule = ScheduleCollectives(SYSTEM, activations=False)
        within = schedule(SplitCollectives()(BucketReductions()(mod)))
        begin = time.process_time()
        across = mod
        for name, arguments in communication_passes(step, SYSTEM):
            across = PassSpec(name).make(**arguments)(across)
        spent_s = time.process_time() - begin
        for name, single, cpu in (("within", within, ""), ("across", across, f"{spent_s:.1f} s")):
            result = td.simulate(td.export(single), SYSTEM)
            exposed_s = max(device.exposed_comm_s for device in result.devices)
            text = len(single.script()) / 1e6
            print(
                f"| {title}, {name} | {1e3 * result.time_s:.1f} ms | {1e3 * exposed_s:.1f} ms "
                f"| {result.peak_memory_bytes / 2**30:.2f} GiB | {text:.2f} MB | {cpu} |"
            )


if __name__ == "__main__":
    main()
