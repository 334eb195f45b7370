# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that tests start under ``mpiexec``: ``python mpi_programs.py NAMES [ARGUMENT ...]``.

Every process runs the same programs, as users' programs do. ``NAMES`` are joined by ``+``: they run
one after the other in the same job, and only the last one takes the arguments.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from tvm_distir.core.collectives.meaning import Collective, apply
from tvm_distir.core.collectives.tiles import Transfer
from tvm_distir.core.ir.operators.names import REDUCE_OPS
from tvm_distir.execution.runtime.collectives.fabric import Aborted
from tvm_distir.execution.runtime.engines.mpi import world as mpi_world
from tvm_distir.execution.runtime.engines.mpi.fabric import MpiFabric
from tvm_distir.execution.runtime.engines.mpi.shared_memory import mapped_segments
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.joining import same_bits

DTYPES = ("float32", "bfloat16", "float16", "bool", "float64", "int8", "int32", "int64", "uint8")
SIZES = ((4, 6), (8, 1100))  # with their header, and after it
TIMEOUT_S = 20.0


def compilation() -> contextlib.AbstractContextManager[None]:
    """Compile quickly, in processes that can compile."""
    if os.environ.get("TVM_USE_RUNTIME_LIB") == "1":
        return contextlib.nullcontext()
    from tests.quick_compilation import quick_compilation

    return quick_compilation()


def say(text: str) -> None:
    """Print a line by a single write, so that lines of ranks do not run into each other."""
    sys.stdout.flush()
    os.write(1, f"{text}\n".encode())


def draw(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Inexact values: another order of summation gives other bits."""
    rng = np.random.default_rng([rank, *shape])
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    return (values > 0) if dtype == "bool" else values.astype(np_dtype(dtype))


def groups_of(size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Groups of a mesh of axes of 2, over every set of axes; and groups out of order."""
    ids = np.arange(size).reshape([2] * (size.bit_length() - 1))
    matches = []
    for count in range(1, ids.ndim + 1):
        for axes in itertools.combinations(range(ids.ndim), count):
            rest = [a for a in range(ids.ndim) if a not in axes]
            table = ids.transpose(rest + list(axes)).reshape(-1, 2**count)
            matches.append(tuple(tuple(int(r) for r in row) for row in table))
    return [*matches, (tuple(reversed(range(size))),)]


def calls(groups: tuple[tuple[int, ...], ...]) -> list[Collective]:
    """Every collective with traffic."""
    reduces = [Collective("all_reduce", groups, (("op", op),)) for op in REDUCE_OPS]
    return [
        *reduces,
        Collective("reduce_scatter", groups, (("dim", 0), ("op", "sum"))),
        Collective("all_gather", groups, (("dim", 1),)),
        Collective("all_to_all", groups, (("gather_dim", 1), ("split_dim", 0))),
        Collective("collective_permute", groups, (("shift", 1),)),
        Collective("collective_permute", groups, (("shift", -2),)),
        Collective("collective_permute", groups, (("shift", -2), ("wrap", 1))),
    ]


def collectives() -> None:
    """Compare every collective with the reference, over every group, type and size."""
    mpi_world.CHUNK_BYTES = 20_000  # large data in several messages
    world = mpi_world.world(TIMEOUT_S)
    fabric = MpiFabric(world, range(world.size))
    rank, count = world.rank, 0
    dtypes = DTYPES if world.size <= 4 else DTYPES[:4]
    for groups, dtype, shape in itertools.product(groups_of(world.size), dtypes, SIZES):
        for call in calls(groups):
            group = call.group_of(rank)
            if call.name in ("reduce_scatter", "all_to_all") and shape[0] % len(group):
                continue
            got = fabric.collective(rank, call, draw(rank, shape, dtype))
            want = apply(call, [draw(r, shape, dtype) for r in group])[group.index(rank)]
            if not same_bits(got, want):
                raise AssertionError(f"rank {rank}: {call} of {dtype}{shape} is wrong")
            count += 1
        if dtype == dtypes[0]:
            _in_flight(fabric, rank, groups, shape)
    world.exchange(b"", fabric.check, lambda late: f"the end for {late}")
    say(f"rank {rank}: {count} right")


def _in_flight(
    fabric: MpiFabric, rank: int, groups: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> None:
    """Start every collective twice, and complete them from the last to the first."""
    size = len(groups[0])
    started = [call for call in calls(groups) if not shape[0] % size] * 2
    got: dict[int, Any] = {}
    for number, call in enumerate(started):
        x = draw(rank + 100 * number, shape, "float32")
        fabric.start(rank, call, x, number, functools.partial(got.__setitem__, number))
        x.fill(np.nan)
    for number, call in reversed(list(enumerate(started))):
        fabric.complete(rank, number)
        group = call.group_of(rank)
        terms = [draw(r + 100 * number, shape, "float32") for r in group]
        if not same_bits(got[number], apply(call, terms)[group.index(rank)]):
            raise AssertionError(f"rank {rank}: {call} of {shape} is wrong when completed later")


def messages() -> None:
    """Move a tensor between two meshes, uneven shards and replicas among them, there and back."""
    world = mpi_world.world(TIMEOUT_S)
    fabric = MpiFabric(world, range(world.size))
    half, rank = world.size // 2, world.rank
    shape = (7, 5000)
    whole = draw(99, shape, "bfloat16")
    first = ((half,), tuple(range(half)), (0,))
    second = ((2, half // 2), tuple(range(half, world.size)), (-1, 1))
    there, back = Transfer(0, shape, first, second), Transfer(1, shape, second, first)
    rows = -(-shape[0] // half)
    if rank < half:
        mine = np.zeros((rows, shape[1]), whole.dtype)
        part = whole[rows * rank : rows * (rank + 1)]
        mine[: len(part)] = part
        fabric.send(rank, there, mine)
        got = fabric.receive(rank, back, whole.dtype)
    else:
        got = fabric.receive(rank, there, whole.dtype)
        fabric.send(rank, back, got)
        width = shape[1] // (half // 2)
        column = (rank - half) % (half // 2)
        mine = whole[:, width * column : width * (column + 1)]
    if not same_bits(got, mine):
        raise AssertionError(f"rank {rank} got other bits")
    world.exchange(b"", fabric.check, lambda late: f"the end for {late}")
    say(f"rank {rank}: messages right")


def faults(*kinds: str) -> None:
    """Let rank 2 of 4 go wrong in one way after the other; the last one ends the job."""
    *first, last = kinds
    for kind in first:
        try:
            fault(kind)
        except Exception as err:
            say(f"rank {mpi_world.world(TIMEOUT_S).rank} {kind}: {err!r}")
    fault(last)


def fault(kind: str) -> None:
    """Let rank 2 of 4 go wrong in a collective of all; the others wait for it."""
    world = mpi_world.world(1.5 if kind == "absent" else TIMEOUT_S)
    say(" ".join(["maps", *mapped_segments()]))
    fabric = MpiFabric(world, range(world.size))
    group = (tuple(range(world.size)),)
    call, x = Collective("all_reduce", group, (("op", "sum"),)), np.ones((4, 4), "float32")
    fabric.collective(world.rank, call, x)
    try:
        if world.rank == 2:
            call, x = _go_wrong(kind, world, call, x)
        fabric.collective(world.rank, call, x)
    except BaseException as err:
        fabric.fail(world.rank, err)
        mpi_world.forget_world()
        if isinstance(err, Aborted) and fabric.failure:
            say(f"rank {world.rank} heard of rank {fabric.failure[0]}")
            raise fabric.failure[1] from None
        raise


def _go_wrong(kind: str, world: Any, call: Collective, x: Any) -> tuple[Collective, Any]:
    if kind == "raises":
        raise ValueError("the cat walked over the keyboard")
    if kind == "memory":
        raise MemoryError
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exits":
        os._exit(7)
    if kind == "absent":
        time.sleep(60)
    if kind == "ended":
        world.exchange(b"", lambda: None, lambda late: "the end")
    if kind == "op":
        return Collective("all_gather", call.groups, (("dim", 0),)), x
    if kind == "dtype":
        return call, x.astype("int32")
    if kind == "shape":
        return call, np.ones((4, 5), "float32")
    if kind == "groups":
        return Collective("all_reduce", ((0, 1, 3, 2),), call.args), x
    raise SystemExit(f"no fault {kind}")


def run_modules(*cases: str) -> None:
    """Run modules as every process of a job; all forms of inputs and outputs."""
    for case in cases:
        _run_module(case)


def _run_module(case: str) -> None:
    import tvm_distir as td
    from tests.execution.runtime.mpi_cases import CASES
    from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine

    mod, inputs = CASES[case]()
    want = td.run(mod, inputs, engine="virtual")
    engine = MpiEngine(60)
    rank = mpi_world.world(60).rank
    for passed in (inputs, inputs if rank == 0 else None):
        got = engine.run(mod, passed)
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    parts = engine.run(mod, inputs, "sharded")
    assert all(set(p.parts) <= {rank} for p in parts)
    virtual = td.run(mod, inputs, engine="virtual", outputs="sharded")
    for mine, all_of in zip(parts, virtual, strict=True):
        assert all(same_bits(mine.parts[r], all_of.parts[r]) for r in mine.parts)
    say(f"rank {rank}: {case} right, {len(engine.collectives)} collectives")


def recovers() -> None:
    """A run that fails on one rank, then one that does not."""
    import tvm_distir as td
    from tests.execution.runtime.mpi_cases import CASES
    from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine

    mod, inputs = CASES["one_mesh"]()
    rank = mpi_world.world(60).rank
    try:
        MpiEngine(60).run(mod, inputs if rank != 1 else inputs[:-1])
    except td.support.EngineError as err:
        say(f"rank {rank}: {err.code}")
    got = MpiEngine(60).run(mod, inputs)
    want = td.run(mod, inputs, engine="virtual")
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    say(f"rank {rank}: recovers right")


def other_module() -> None:
    """Process 1 runs another module than the rest."""
    import tvm_distir as td
    from tests.execution.runtime.mpi_cases import CASES

    rank = mpi_world.world(60).rank
    mod, inputs = CASES["one_mesh" if rank != 1 else "all_to_all"]()
    td.run(mod, inputs, engine="mpi")


if __name__ == "__main__":
    PROGRAMS = (collectives, messages, fault, faults, run_modules, recovers, other_module)
    *FIRST, LAST = sys.argv[1].split("+")
    BY_NAME = {program.__name__: program for program in PROGRAMS}
    with compilation():
        for NAME in FIRST:
            BY_NAME[NAME]()
        BY_NAME[LAST](*sys.argv[2:])
