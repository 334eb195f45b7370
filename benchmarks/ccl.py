# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Native all-reduces against NumPy with a barrier, between threads and between processes.

The NumPy side is what one would write without a library: every rank makes its operand known
(threads: a reference; processes: a copy in shared memory), reduces its part of all operands in
rank order, and copies the whole result, with barriers in between. Native and NumPy rounds take
turns in the same ranks; the best round of each counts, as other work disturbs.

Usage: ``python benchmarks/ccl.py [--dtype float32] [--seconds 0.3] [--ranks 2 4 8]``
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

from tvm_distir.native import ccl as native

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANKS = (2, 4, 8)
TIMEOUT_S = 120.0
TURNS = 12

Array = npt.NDArray[Any]


@dataclass
class Shared:
    """What the ranks of one measurement share.

    Attributes
    ----------
    barrier : Barrier
        Of threads or of processes.
    operands : list of array
        One per rank; between processes they lie in shared memory.
    result : array
        Where the NumPy side puts the parts of the result.
    copies : bool
        Whether an operand must be copied to be seen by others.
    """

    barrier: Any
    operands: list[Array]
    result: Array
    copies: bool


def numpy_all_reduce(shared: Shared, rank: int, x: Array, out: Array) -> None:
    """Sum over the ranks with NumPy and barriers."""
    if shared.copies:
        np.copyto(shared.operands[rank], x)
    else:
        shared.operands[rank] = x
    shared.barrier.wait()
    count = len(shared.operands)
    part = slice(len(x) * rank // count, len(x) * (rank + 1) // count)
    total = shared.result[part]
    np.add(shared.operands[0][part], shared.operands[1][part], out=total)
    for term in shared.operands[2:]:
        np.add(total, term[part], out=total)
    shared.barrier.wait()
    np.copyto(out, shared.result)
    shared.barrier.wait()


def calls(shared: Shared, rank: int, elements: int, dtype: str) -> dict[str, Callable[[], None]]:
    """One call of either side, and the check that both give the same bits."""
    count = len(shared.operands)
    x = np.random.default_rng(rank).standard_normal(elements).astype(dtype)
    tensor, out = tvm.runtime.tensor(x), tvm.runtime.empty((elements,), dtype)
    groups, other = tvm_ffi.Shape(range(count)), np.empty_like(x)
    all_reduce = native.collective("all_reduce")
    sides: dict[str, Callable[[], None]] = {
        "native": lambda: all_reduce(tensor, groups, count, 0, out),
        "numpy": lambda: numpy_all_reduce(shared, rank, x, other),
    }
    for call in sides.values():
        call()
    if not np.array_equal(out.numpy(), other):
        raise AssertionError(f"rank {rank}: the sides differ")
    return sides


def measure(
    shared: Shared, rank: int, elements: int, dtype: str, seconds: float
) -> dict[str, float]:
    """Seconds per call of either side in its best round, on one rank that all others run with."""
    sides = calls(shared, rank, elements, dtype)
    # The same number of calls on every rank, from the size alone; no agreement is needed.
    length = max(1, min(300, int(seconds / TURNS / (30e-6 + 4e-9 * elements))))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, call in sides.items():
            shared.barrier.wait()
            start_s = time.perf_counter()
            for _ in range(length):
                call()
            times[name].append((time.perf_counter() - start_s) / length)
    return {name: min(row) for name, row in times.items()}


def on_threads(count: int, elements: int, dtype: str, seconds: float) -> dict[str, float]:
    """Measure between threads of this process."""
    fabric = native.NativeFabric(range(count), TIMEOUT_S)
    empty = np.empty(elements, dtype)
    shared = Shared(threading.Barrier(count), [empty] * count, empty, copies=False)
    told: dict[int, dict[str, float]] = {}

    def work(rank: int) -> None:
        with fabric.worker(rank):
            told[rank] = measure(shared, rank, elements, dtype, seconds)

    threads = [threading.Thread(target=work, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told[0]


def on_processes(count: int, elements: int, dtype: str, seconds: float) -> dict[str, float]:
    """Measure between processes forked from this one, which has no other threads."""
    fork = multiprocessing.get_context("fork")
    fabric = native.NativeFabric(range(count), TIMEOUT_S, shared=True)
    size = elements * np.dtype(dtype).itemsize
    memory = np.frombuffer(mmap.mmap(-1, size * (count + 1)), dtype).reshape(count + 1, elements)
    shared = Shared(fork.Barrier(count), list(memory[:count]), memory[count], copies=True)
    results = fork.SimpleQueue()

    def work(rank: int) -> None:
        with native.NativeFabric.open(fabric.descriptor).worker(rank):
            told = measure(shared, rank, elements, dtype, seconds)
        if rank == 0:
            results.put(told)

    ranks = [fork.Process(target=work, args=(r,)) for r in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a rank ended with {process.exitcode}")
    found: dict[str, float] = results.get()
    return found


PLACES = {"threads": on_threads, "processes": on_processes}


def size_text(nbytes: int) -> str:
    """``4 KiB``, ``16 MiB``."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--places", nargs="*", default=sorted(PLACES), choices=sorted(PLACES))
    options: Any = parser.parse_args()
    print(f"all_reduce (sum) of {options.dtype}, best milliseconds per call\n")
    print("| between | ranks | size | native | numpy + barrier | ratio |")
    print("|--|--:|--:|--:|--:|--:|")
    for place in options.places:
        for count in options.ranks:
            for nbytes in SIZES_BYTES:
                elements = nbytes // np.dtype(options.dtype).itemsize
                got = PLACES[place](count, elements, options.dtype, options.seconds)
                times = " | ".join(f"{1e3 * got[side]:.3f}" for side in ("native", "numpy"))
                ratio = got["numpy"] / got["native"]
                cells = f"{place} | {count} | {size_text(nbytes)} | {times} | {ratio:.1f}x"
                print(f"| {cells} |", flush=True)


if __name__ == "__main__":
    main()
