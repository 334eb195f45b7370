# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From a model of the zoo to the predicted training step in stages: CPU seconds and memory.

Every case runs in a process of its own, import included. The same step written out, one program
per rank, is the other side of the first table.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from measure import parser, print_setting, table

STEPS = ("import", "zoo", "train_step", "plan", "distribute", "export", "simulate")


@dataclass(frozen=True)
class Case:
    """A model and how it is cut: pp ranks, micro-batches, tp and dp inside each rank."""

    name: str
    size: dict[str, Any]
    mesh: dict[str, int]
    micro_batches: int
    kind: str = "1f1b"
    chunks: int = 1


def _layers(ranks: int) -> Case:
    size = {"layers": 64, "hidden": 4096, "heads": 32, "batch": 4, "seq": 2048}
    more = {"positions": 2048, "vocab": 51200}
    return Case(f"64 layers, {ranks} stages", size | more, {"pp": ranks, "dp": 4, "tp": 8}, 64)


GPT3 = Case("GPT-3 175B", {"size": "gpt3-175b", "batch": 8}, {"pp": 8, "dp": 8, "tp": 8}, 64)
TRILLION = Case(
    "1T parameters",
    {
        "layers": 128, "hidden": 25600, "heads": 160, "batch": 6, "seq": 2048,
        "positions": 2048, "vocab": 51200,
    },
    {"pp": 64, "dp": 6, "tp": 8},
    512,
)  # fmt: skip
KINDS = [
    Case(f"GPT-3 175B, {kind}", GPT3.size, GPT3.mesh, 64, kind, chunks)
    for kind, chunks in (("gpipe", 1), ("interleaved", 2), ("zero_bubble", 1), ("zero_bubble_v", 2))
]
CASES = [GPT3, *KINDS, *(_layers(ranks) for ranks in (16, 32, 64)), TRILLION]


def measured(case: Case, written_out: bool) -> dict[str, Any]:
    """CPU seconds of each step, in this process, and what the step takes."""
    clock, times_s = 0.0, dict[str, float]()

    def lap(step: str) -> None:
        nonlocal clock
        now = time.process_time()
        times_s[step], clock = now - clock, now

    import tvm_distir as td
    from tvm_distir.core.rewriting.collector import gc_paused
    from tvm_distir.planning.strategies.composition import make_plan
    from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

    lap("import")
    numbers = {"micro_batches": case.micro_batches}
    numbers |= {"chunks": case.chunks} if case.chunks > 1 else {}
    options = ",".join(f"{key}={value}" for key, value in numbers.items())
    with gc_paused():
        mod = td.zoo.gpt(**case.size)
        lap("zoo")
        schedule = {"kind": case.kind, "stages": case.mesh["pp"], **numbers}
        step = td.train_step(mod, optimizer="adam", schedule=schedule)
        lap("train_step")
        spec = f"pipeline:schedule={case.kind},{options}+data_parallel+megatron"
        plan = make_plan(step, spec, case.mesh)
        lap("plan")
        local = td.distribute(step, plan)
        lap("distribute")
        if written_out:
            local = ExpandSchedule()(local)
            lap("expand")
        program = td.export(local)
        lap("export")
        result = td.simulate(program, td.System.load("dgx-a100"))
        lap("simulate")
    return {
        "times_s": times_s,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "time_s": result.time_s,
        "bubble": result.pipeline.bubble if result.pipeline else None,
        "peak_gib": result.peak_memory_bytes / 2**30,
        "devices": len(result.devices),
        "json_mib": len(program.to_json()) / 2**20 if not written_out else None,
    }


def apart(number: int, written_out: bool, repeat: int) -> dict[str, Any]:
    """Measure a case in processes of its own; the best of several."""
    command = [sys.executable, __file__, "--case", str(number)]
    command += ["--written-out"] if written_out else []
    matches = []
    for _ in range(repeat):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        matches.append(json.loads(done.stdout.splitlines()[-1]))
    return min(matches, key=lambda single: sum(single["times_s"].values()))


def rows(cases: Sequence[tuple[int, Case]], repeat: int) -> Iterator[list[object]]:
    """A row of figures per case."""
    for number, case in cases:
        single = apart(number, False, repeat)
        times = single["times_s"]
        yield [
            case.name, f"{single['devices']:,}", case.mesh["pp"] * case.chunks, case.micro_batches,
            *(f"{times[step]:.2f}" for step in STEPS), f"{sum(times.values()):.1f}",
            f"{single['rss_mib']:,.0f}", f"{single['time_s']:.2f}",
            f"{100 * single['bubble']:.1f} %",
            f"{single['peak_gib']:.1f}",
        ]  # fmt: skip


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--case", type=int, help="measure one case in this process")
    arguments.add_argument("--written-out", action="store_true")
    options = arguments.parse_args()
    if options.case is not None:
        print(json.dumps(measured(CASES[options.case], options.written_out)))
        return
    print_setting()
    short, whole = (apart(0, out, options.repeat) for out in (False, True))
    table(
        ["GPT-3 175B, CPU s", *STEPS[:5], "expand", "export", "simulate", "all", "peak MiB"],
        [
            [
                name,
                *(f"{single['times_s'].get(s, 0):.2f}" for s in (*STEPS[:5], "expand", *STEPS[5:])),
                f"{sum(single['times_s'].values()):.1f}",
                f"{single['rss_mib']:,.0f}",
            ]
            for name, single in (("stages and schedule kept", short), ("written out", whole))
        ],
    )
    print(f"Step: {short['time_s']!r} s and {whole['time_s']!r} s\n")
    header = ["model", "devices", "stages", "micro-batches", *STEPS, "all", "peak MiB"]
    numbered = list(enumerate(CASES))
    table([*header, "step, s", "bubble", "memory, GiB"], list(rows(numbered, options.repeat)))


if __name__ == "__main__":
    main()
