# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run in a process of its own, with allocator_log.c preloaded: logs and storage plans as JSON.

Each program runs once to be compiled, then once with the log; TVM's machine takes its memory block
by block (``naive``). The blocks that the thread of rank 0 takes count; inputs are made by another.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import threading
from pathlib import Path

from tvm.ir.transform import PassContext
from tvm.runtime.vm import VirtualMachine
from tvm.target import Target

import tvm_distir as td
from tvm_distir.execution.runtime.engines.threads import engine
from tvm_distir.execution.runtime.program import machines
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.planning import plan_storage
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline

LOG = ctypes.CDLL(None)
threads: dict[int, int] = {}
work = engine.work


def noted(job, rank):
    threads[rank] = threading.get_native_id()
    work(job, rank)


engine.work = noted
machines.VirtualMachine = lambda library, device: VirtualMachine(
    library, device, memory_cfg="naive"
)


def logged(call) -> list[int]:
    """Sizes that rank 0 takes, negative where they are freed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        LOG.log_begin()
        call()
        LOG.log_end(str(path).encode())
        rows = [line.split() for line in path.read_text().splitlines()]
    mine, result = {}, []
    for thread, place, size in rows:
        if size != "0":
            mine.pop(place, None)  # another thread's now
            if int(thread) == threads[0]:
                mine[place] = int(size)
                result.append(mine[place])
        elif place in mine:
            result.append(-mine.pop(place))
    return [size for size in result if size]


def measure(name: str, mesh: str, strategy: str, train: str) -> dict[str, list[int]]:
    """Log a program, and plan it."""
    axes = {key: int(size) for key, size in (part.split("=") for part in mesh.split(","))}
    mod = getattr(td.zoo, name)(size="tiny", batch=4)
    if train:
        mod = td.train_step(mod, schedule=None if train == "step" else train)
    local = td.distribute(mod, make_plan(mod, strategy, axes))
    plain = mod if train in ("", "step") else SerializePipeline()(mod)
    values = draw_inputs(plain)

    def run_threads() -> None:
        td.run(local, values, engine="threads", dispatch="tvm")

    run_threads()
    storage = plan_storage(local)
    program = LoweredProgram(local)
    entry = next(each for each in program.entries if 0 in each.ranks)
    return {"log": logged(run_threads), "plan": storage.walk(entry.function).sizes}


if __name__ == "__main__":
    # Storage does not depend on LLVM's optimizations or on checks of arguments, which take most of
    # the time.
    checks = PassContext(config={"tirx.disable_assert": True})
    with Target({"kind": "llvm", "opt-level": 0}), checks:
        for line in sys.stdin:
            name, mesh, strategy, train = line.rstrip("\n").split(";")
            print("FOUND" + json.dumps(measure(name, mesh, strategy, train)), flush=True)
