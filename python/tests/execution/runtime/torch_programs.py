# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that tests start with ``torchrun``: ``torchrun ... torch_programs.py NAME [ARGUMENT]``.

Every process runs the same program, as users' programs do.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi

import tvm_distir as td
from tests.execution.runtime.mpi_cases import CASES
from tests.execution.runtime.mpi_programs import DTYPES, calls, draw, groups_of
from tests.quick_compilation import QUICK_TARGET
from tvm_distir.core.collectives.meaning import apply
from tvm_distir.core.ir.operators import PACKED_ARGS, PACKED_PREFIX
from tvm_distir.core.ir.operators.names import REDUCE_OPS
from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.engines.torch.engine import TorchEngine
from tvm_distir.execution.runtime.engines.torch.torch_fabric import TorchFabric
from tvm_distir.execution.runtime.engines.torch.torch_job import current_job
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

SIZES = ((4, 6), (8, 1100))  # reduced in a single step, and piece by piece
TIMEOUT_S = 30.0


def is_close(got: Any, want: Any, dtype: str) -> bool:
    """Whether sums in another order may differ so much; other values must be equal."""
    tolerance = {"float32": 1e-4, "float64": 1e-10}.get(dtype, 0)
    a, b = got.astype("float64"), want.astype("float64")
    scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def collectives(reduce: str, check: str) -> None:
    """Compare every packed function with the reference, over every group, type and size."""
    job = current_job(TIMEOUT_S, "cpu")
    job.begin(range(job.size), "collectives")
    fabric = TorchFabric(job, range(job.size), reduce, check == "check")
    every = [groups for groups in groups_of(job.size) if len(groups[0]) > 1]
    fabric.prepare(Communication(tuple(g for groups in every for g in groups)))
    ccl.register(messages=True)
    rank, count = job.process, 0
    # The libraries reduce 16-bit floats in 16 bits, where these values overflow.
    dtypes = DTYPES if reduce == "ordered" else ("float32", "float64", "int32", "bool")
    for groups, dtype, shape in itertools.product(every, dtypes, SIZES):
        for call in calls(groups):
            group = call.group_of(rank)
            if call.name in ("reduce_scatter", "all_to_all") and shape[0] % len(group):
                continue
            want = apply(call, [draw(r, shape, dtype) for r in group])[group.index(rank)]
            values = {"wrap": 0, **dict(call.args)}
            codes = [
                REDUCE_OPS.index(values[k]) if k == "op" else values[k]
                for k in PACKED_ARGS[call.name]
            ]
            out = tvm.runtime.empty(want.shape, want.dtype.name)
            ranks = tvm_ffi.Shape([r for g in groups for r in g])
            x = tvm.runtime.tensor(draw(rank, shape, dtype))
            with ccl.worker(fabric, rank):
                tvm.get_global_func(PACKED_PREFIX + call.name)(x, ranks, len(group), *codes, out)
            got = out.numpy()
            right = same_bits(got, want) or (reduce == "library" and is_close(got, want, dtype))
            assert right, f"rank {rank}: {call} of {dtype}{shape} is wrong"
            count += 1
    print(f"rank {rank}: {count} right", flush=True)


def left_open() -> None:
    """Begin a run and end the process; print the threads that are left behind the job's end."""

    def print_threads() -> None:
        names = [thread.name for thread in threading.enumerate() if thread.name == "job failures"]
        print(f"left: {names}", flush=True)

    atexit.register(print_threads)  # it runs behind what is registered later
    job = current_job(TIMEOUT_S, "cpu")
    job.begin(range(job.size), "left open")
    job.begin(range(job.size), "left open again")


def train_step() -> Any:
    """An AdamW step with ZeRO-3 and tensor parallelism, and its inputs."""
    net = td.zoo.gpt(vocab=257, layers=1, hidden=32, heads=4, seq=8, batch=8)
    mod = td.train_step(net, optimizer="adamw")
    plan = strategy.make_plan(mod, "zero:stage=3+megatron", {"dp": 2, "tp": 2})
    return td.distribute(mod, plan, overlap="dgx-a100"), draw_inputs(mod, seed=5)


def pipeline() -> Any:
    """A 1F1B step of two stages, and its inputs."""
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    net = td.zoo.gpt(vocab=64, layers=2, hidden=32, heads=4, seq=8, batch=2)
    mod = td.train_step(net, optimizer="sgd", schedule=schedule)
    plan = strategy.make_plan(mod, "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    return td.distribute(mod, plan), draw_inputs(mod, seed=6)


ALL_CASES = {**CASES, "train_step": train_step, "pipeline": pipeline}


def modules(*names: str) -> None:
    """Run modules as every process of a job; all forms of inputs and outputs."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for name in names:
        mod, inputs = ALL_CASES[name]()
        with QUICK_TARGET:
            _compare(name, mod, inputs, rank)
    torch.distributed.destroy_process_group()


def _compare(name: str, mod: Any, inputs: list[Any], rank: int) -> None:
    """Compare the results with those of ``virtual``, which process 0 computes."""
    ordered = TorchEngine(180.0, check=True)
    got = ordered.run(mod, inputs)
    most = ordered.most_in_flight
    close = TorchEngine(180.0, "library").run(mod, inputs if rank == 0 else None)
    parts = ordered.run(mod, inputs, "sharded")
    assert all(set(p.parts) <= {rank} for p in parts)
    if rank == 0:
        want = td.run(mod, inputs, engine="virtual")
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), name
        assert all(is_close(a, b, "float32") for a, b in zip(close, want, strict=True)), name
        whole = td.run(mod, inputs, engine="virtual", outputs="sharded")
        for mine, all_of in zip(parts, whole, strict=True):
            assert all(same_bits(mine.parts[r], all_of.parts[r]) for r in mine.parts)
    print(f"rank {rank}: {name} right, {most} in flight", flush=True)


def recovers() -> None:
    """A run that fails on one rank, then one that does not, in a job that the program joined."""
    torch.distributed.init_process_group("gloo")
    mod, inputs = CASES["one_mesh"]()
    rank = torch.distributed.get_rank()
    try:
        td.run(mod, inputs if rank != 1 else inputs[:-1], engine=TorchEngine(TIMEOUT_S))
    except td.support.EngineError as err:
        print(f"rank {rank}: {err.code}", flush=True)
    got = td.run(mod, inputs, engine=TorchEngine(TIMEOUT_S))
    want = td.run(mod, inputs, engine="virtual")
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    print(f"rank {rank}: right", flush=True)
    torch.distributed.destroy_process_group()


def other_module() -> None:
    """Process 1 runs another module than the rest."""
    torch.distributed.init_process_group("gloo")
    mod, inputs = CASES["one_mesh" if torch.distributed.get_rank() != 1 else "all_to_all"]()
    td.run(mod, inputs, engine=TorchEngine(TIMEOUT_S))


if __name__ == "__main__":
    PROGRAMS = (collectives, left_open, modules, recovers, other_module)
    {p.__name__: p for p in PROGRAMS}[sys.argv[1]](*sys.argv[2:])
