# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the peak memory of training steps with PyTorch's, each side in a process of its own.

What a side takes is the most memory of its process above that before the model is made. Ours is a
session of a deployed folder. Needs the extras ``torch`` and ``huggingface``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import torch
from against_frameworks import batch_of, eager, module_of, weights_of
from framework_models import ROWS, Row
from measure import parser, print_setting, table

import tvm_distir as td

STEPS, MIB = 3, 1 << 20
SIDES = ("eager", "session")


def memory_of_process(kind: str) -> int:
    """Return the bytes of this process: now (``VmRSS``), or at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(kind))
    return int(line.split()[1]) * 1024


def run_side(side: str, row: Row, folder: Path) -> None:
    """Run some steps of a side, and print what they take at most, in bytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    load = td.Session  # its modules are imported before memory is read
    before = memory_of_process("VmRSS")
    step: Any
    if side == "eager":
        model, inputs = row.make()
        step = eager(row, model, batch_of(row, model, inputs))
    else:
        batch = torch.load(folder / "batch.pt")
        steps = load(folder / "program", torch.load(folder / "weights.pt", mmap=True))

        def step() -> Any:
            return steps.step(*batch)

    for _ in range(STEPS):
        step()
    print(memory_of_process("VmHWM") - before)


def measured(row: Row) -> list[int]:
    """Return the bytes of both sides."""
    with tempfile.TemporaryDirectory(prefix="tvm-distir-memory-") as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        model, inputs = row.make()
        dist, state = module_of(row, model, inputs), weights_of(model)
        td.deploy(dist, folder / "program")
        names = {port.name for port in td.load(folder / "program").entries[0].inputs}
        torch.save(batch_of(row, model, inputs), folder / "batch.pt")
        torch.save({n: v for n, v in state.items() if n in names}, folder / "weights.pt")
        command = [sys.executable, __file__, row.name, scratch]
        return [int(subprocess.check_output([*command, side])) for side in SIDES]


def main() -> None:
    """Measure the rows of training."""
    parser(__doc__).parse_args()
    rows = [(row.name, *measured(row)) for row in ROWS if row.train]
    print_setting()
    table(
        ["training step", "eager, MiB", "session, MiB", "ratio"],
        [[name, f"{a / MIB:.0f}", f"{b / MIB:.0f}", f"{b / a:.2f}x"] for name, a, b in rows],
    )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        (chosen,) = (row for row in ROWS if row.name == sys.argv[1])
        run_side(sys.argv[3], chosen, Path(sys.argv[2]))
    else:
        main()
