# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One collective done natively, with NumPy and barriers, and by MPI, for ``ccl.py``.

The NumPy side is what one would write without a library: every rank makes its operand known
(threads: a reference; processes: a copy in shared memory), takes or reduces its part of all
operands in rank order, and, where all need everything, copies the whole result, with barriers in
between. Operands are one-dimensional; all sides read and write arrays of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from tvm_distir.execution.runtime.collectives import native_library as native

TURNS = 12

Array = npt.NDArray[Any]
Side = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes
    ----------
    collective : str
        A key of :data:`OPTIONS`.
    count : int
        Ranks.
    size_bytes : int
        Of a rank's operand or result, whichever is larger.
    dtype : str
    seconds : float
        How long each side runs, about.
    """

    collective: str
    count: int
    size_bytes: int
    dtype: str
    seconds: float

    @property
    def elements(self) -> int:
        """Elements of a rank's larger tensor."""
        return self.size_bytes // np.dtype(self.dtype).itemsize // self.count * self.count

    def operand(self, rank: int) -> Array:
        """Operand of a rank; any order of summation gives the same sum."""
        length = self.elements // (self.count if self.collective == "all_gather" else 1)
        return np.random.default_rng(rank).integers(-2, 3, length).astype(self.dtype)

    def result(self) -> Array:
        """Memory for a rank's result."""
        length = self.elements // (self.count if self.collective == "reduce_scatter" else 1)
        return np.empty(length, self.dtype)

    def calls_per_turn(self, most: int) -> int:
        """How often a side is called before the other's turn, the same on every rank."""
        about_s = 30e-6 + 4e-9 * self.elements
        return max(1, min(most, int(self.seconds / TURNS / about_s)))


@dataclass
class Shared:
    """What the ranks of one measurement with NumPy share.

    Attributes
    ----------
    barrier : Barrier
        Of threads or of processes.
    operands : list of array
        One per rank; between processes they lie in shared memory.
    result : array
        Where the NumPy side puts the parts of a sum that all need.
    copies : bool
        Whether an operand must be copied to be seen by others.
    """

    barrier: Any
    operands: list[Array]
    result: Array
    copies: bool


OPTIONS = {
    "all_reduce": (0,),  # sum
    "all_gather": (0,),  # along dim 0
    "reduce_scatter": (0, 0),
    "all_to_all": (0, 0),
}
"""Collectives, and what a native call gets besides tensors and groups."""


def native_side(case: Case, x: Array, out: Array) -> Side:
    """Call of the native library on the tensors."""
    function, options = native.collective(case.collective), OPTIONS[case.collective]
    groups, count = tvm_ffi.Shape(range(case.count)), case.count
    inputs, result = tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(out)
    return lambda: function(inputs, groups, count, *options, result)


# ---- NumPy --------------------------------------------------------------------------------------


def numpy_side(case: Case, shared: Shared, rank: int, x: Array, out: Array) -> Side:
    """The same with NumPy and barriers."""
    count = case.count
    part = slice(case.elements * rank // count, case.elements * (rank + 1) // count)
    shard = case.elements // count

    def add_parts(total: Array) -> None:
        np.add(shared.operands[0][part], shared.operands[1][part], out=total)
        for term in shared.operands[2:]:
            np.add(total, term[part], out=total)

    def all_reduce() -> None:
        add_parts(shared.result[part])
        shared.barrier.wait()
        np.copyto(out, shared.result)

    def reduce_scatter() -> None:
        add_parts(out)

    def all_gather() -> None:
        for i, operand in enumerate(shared.operands):
            np.copyto(out[i * shard : (i + 1) * shard], operand[:shard])

    def all_to_all() -> None:
        for i, operand in enumerate(shared.operands):
            np.copyto(out[i * shard : (i + 1) * shard], operand[part])

    steps = {s.__name__: s for s in (all_reduce, all_gather, reduce_scatter, all_to_all)}
    step = steps[case.collective]

    def call() -> None:
        if shared.copies:
            np.copyto(shared.operands[rank][: len(x)], x)
        else:
            shared.operands[rank] = x
        shared.barrier.wait()
        step()
        shared.barrier.wait()

    return call


# ---- MPI ----------------------------------------------------------------------------------------


def mpi_side(case: Case, communicator: Any, x: Array, out: Array) -> Side:
    """MPI's own collective, which may sum in any order."""
    calls: Mapping[str, Side] = {
        "all_reduce": lambda: communicator.Allreduce(x, out),
        "all_gather": lambda: communicator.Allgather(x, out),
        "reduce_scatter": lambda: communicator.Reduce_scatter_block(x, out),
        "all_to_all": lambda: communicator.Alltoall(x, out),
    }
    return calls[case.collective]


# ---- measuring ----------------------------------------------------------------------------------


def measure(
    case: Case,
    rank: int,
    wait: Callable[[], object],
    make_other: Callable[[Array, Array], Side],
    most_calls: int = 300,
) -> tuple[float, float]:
    """Seconds per call, native and other, in the best round of each on one rank.

    Parameters
    ----------
    case : Case
    rank : int
        The calling rank; all others run this too.
    wait : callable
        Barrier of all ranks.
    make_other : callable
        Side that native takes turns with, of an operand and a result.
    most_calls : int
        Of one side before the other's turn.
    """
    x, ours, theirs = case.operand(rank), case.result(), case.result()
    sides = (native_side(case, x, ours), make_other(x, theirs))
    for call in sides:
        call()
    if not np.array_equal(ours, theirs):
        raise AssertionError(f"rank {rank}: the sides differ in {case}")
    length = case.calls_per_turn(most_calls)
    best = [float("inf"), float("inf")]
    for _ in range(TURNS):
        for i, call in enumerate(sides):
            wait()
            start_s = time.perf_counter()
            for _ in range(length):
                call()
            best[i] = min(best[i], (time.perf_counter() - start_s) / length)
    return best[0], best[1]
