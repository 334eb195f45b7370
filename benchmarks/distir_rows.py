# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From the file of an exported program to the predicted step: the steps that DistIR was timed on.

A row is a model, on a mesh of data parallelism (D), tensor parallelism (H) and stages (P), in K
micro-batches, as DistIR was timed on them: an MLP of batch 8192, and GPT-2 and GPT-3 175B of
sequence 8, batch 64. Its GPTs run forward, here all rows are training steps, whose programs hold
more. The second table is one model on ever more devices. CPU seconds; modules are made before the
clock starts.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import cpu_seconds, interleaved, parser, print_setting, table

import tvm_distir as td
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.strategies.composition import make_plan

SYSTEM = "dgx-a100"
MOST_S = 0.5
"""What a row may take from loading to result."""
MOST_RATIO = 2.0
"""How many times as long the most devices may take as the fewest."""


@dataclass(frozen=True)
class Row:
    """A model, and degrees of data, tensor and pipeline parallelism, and micro-batches."""

    name: str
    data: int
    tensor: int
    stages: int
    micro_batches: int

    @property
    def title(self) -> str:
        """The row's first cell."""
        return f"{self.name} {self.data},{self.tensor},{self.stages},{self.micro_batches}"

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return self.data * self.tensor * self.stages


ROWS = (
    Row("mlp", 2, 2, 2, 4),
    Row("mlp", 4, 4, 4, 8),
    Row("mlp", 8, 8, 8, 16),
    Row("mlp", 16, 16, 16, 16),
    Row("gpt2", 2, 2, 2, 4),
    Row("gpt2", 4, 4, 4, 8),
    Row("gpt3-175b", 1, 1, 16, 32),
)
DEVICES = (8, 64, 512, 4096, 8192, 65536)
TENSOR = 8
"""Devices of the tensor-parallel axis of the second table."""


def model(name: str, batch: int) -> Any:
    """A model of the zoo whose forward part takes a batch."""
    if name == "mlp":
        return td.zoo.mlp(batch=batch, layers=16, hidden=4096)
    return td.zoo.gpt(size=name, batch=batch, seq=8)


def lowered(row: Row) -> Any:
    """The training step of a row, at level 5."""
    batch = (8192 if row.name == "mlp" else 64) // row.micro_batches
    mod = model(row.name, batch)
    numbers = {"stages": row.stages, "micro_batches": row.micro_batches}
    step = td.train_step(mod, optimizer="sgd", schedule={"kind": "1f1b", **numbers})
    within = "tensor_parallel" if row.name == "mlp" else "megatron"
    spec = f"pipeline:schedule=1f1b,micro_batches={row.micro_batches}+data_parallel+{within}"
    mesh = {"pp": row.stages, "dp": row.data, "tp": row.tensor}
    return td.distribute(step, make_plan(step, spec, mesh))


def on_devices(count: int) -> Any:
    """The forward part of GPT-3 175B with fixed work per device, at level 5."""
    data = count // TENSOR
    mod = td.zoo.gpt(size="gpt3-175b", batch=data, seq=2048)
    return td.distribute(mod, make_plan(mod, "data_parallel+megatron", {"dp": data, "tp": TENSOR}))


def measured(path: str, repeat: int) -> list[float]:
    """Seconds of loading a program's file and of simulating it, in this process."""
    system = td.System.load(SYSTEM)
    program = Program.load(path)

    def simulated() -> None:
        result = td.simulate(program, system)
        if not math.isfinite(result.time_s) or not result.peak_memory_bytes:
            raise ValueError(f"{path} has no result")

    measures = (lambda: Program.load(path), simulated)
    return interleaved([functools.partial(cpu_seconds, each) for each in measures], repeat)


def apart(path: Path, repeat: int) -> list[float]:
    """What :func:`measured` gives in a process that holds nothing but the program."""
    command = [sys.executable, __file__, "--program", str(path), "--repeat", str(repeat)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    load_s, simulate_s = json.loads(done.stdout.splitlines()[-1])
    return [load_s, simulate_s]


def distir_rows(folder: Path, repeat: int) -> Iterator[list[object]]:
    """A row of figures per row of DistIR's table."""
    for number, row in enumerate(ROWS):
        path = folder / f"{number}.json"
        with gc_paused():
            td.export(lowered(row)).save(path)
        load_s, simulate_s = apart(path, repeat)
        whole_s = load_s + simulate_s
        yield [
            row.title, f"{row.devices:,}", f"{path.stat().st_size / 2**20:.2f}",
            f"{load_s:.3f}", f"{simulate_s:.3f}", f"{whole_s:.3f}",
            "yes" if whole_s < MOST_S else "no",
        ]  # fmt: skip


def device_rows(folder: Path, repeat: int) -> Iterator[list[object]]:
    """A row of figures per number of devices."""
    first: list[float] = []
    for count in DEVICES:
        path = folder / f"devices{count}.json"
        with gc_paused():
            local = on_devices(count)
            td.export(local).save(path)
        created = functools.partial(cpu_seconds, functools.partial(td.export, local))
        (export_s,) = interleaved([created], repeat)
        load_s, simulate_s = apart(path, repeat)
        sums = [export_s + simulate_s, load_s + simulate_s]
        first = first or sums
        ratios = [each / least for each, least in zip(sums, first, strict=True)]
        yield [
            f"{count:,}", f"{export_s:.3f}", f"{load_s:.3f}", f"{simulate_s:.3f}",
            *(f"{each:.2f}x" for each in ratios), "yes" if max(ratios) <= MOST_RATIO else "no",
        ]  # fmt: skip


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--program", help="measure one program's file in this process")
    options = arguments.parse_args()
    if options.program is not None:
        print(json.dumps(measured(options.program, options.repeat)))
        return
    print_setting()
    with tempfile.TemporaryDirectory() as name:
        header = ["model D,H,P,K", "devices", "file, MiB", "load, s", "simulate, s", "sum, s"]
        table([*header, f"under {MOST_S} s"], list(distir_rows(Path(name), options.repeat)))
        header = ["devices", "export, s", "load, s", "simulate, s"]
        sums = ["export + simulate", "load + simulate", f"within {MOST_RATIO:g}x"]
        table([*header, *sums], list(device_rows(Path(name), options.repeat)))


if __name__ == "__main__":
    main()
