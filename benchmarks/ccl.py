# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Native collectives against NumPy with a barrier and against MPI, side by side.

Between threads and between forked processes native and NumPy take turns; in an MPI job, native
(through shared memory of the processes) and MPI's own collective. The best round of each
counts, as other work disturbs.

Usage: ``python benchmarks/ccl.py [--collectives all_reduce] [--dtype float32] [--seconds 0.3]
[--ranks 2 4 8] [--kib 4 64 1024 16384 65536] [--places threads processes mpi]``
"""

from __future__ import annotations

import argparse
import functools
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from ccl_sides import OPTIONS, Case, Shared, measure, mpi_side, numpy_side
from tests.performance.native.shared_fabric import SharedFabric

from tvm_distir.execution.runtime.collectives import native_library as native
from tvm_distir.execution.runtime.engines.mpi.launch import find_launcher

TIMEOUT_S = 120.0
MPI_CALLS = 50
RANK = "TVM_DISTIR_BENCHMARK_CASES"
"""Names, to the ranks of an MPI job, what they measure."""

Pair = tuple[float, float]


def on_threads(cases: Sequence[Case]) -> list[Pair]:
    """Measure between threads of this process."""
    return [_on_threads(case) for case in cases]


def _on_threads(case: Case) -> Pair:
    fabric = native.CclFabric(range(case.count), TIMEOUT_S)
    empty = np.empty(case.elements, case.dtype)
    shared = Shared(threading.Barrier(case.count), [empty] * case.count, empty, copies=False)
    reported: dict[int, Pair] = {}

    def work(rank: int) -> None:
        with fabric.worker(rank):
            reported[rank] = measure_numpy(case, shared, rank)

    threads = [threading.Thread(target=work, args=(r,)) for r in range(case.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reported[0]


def measure_numpy(case: Case, shared: Shared, rank: int) -> Pair:
    """Take turns with NumPy."""
    return measure(
        case, rank, shared.barrier.wait, lambda x, out: numpy_side(case, shared, rank, x, out)
    )


def on_processes(cases: Sequence[Case]) -> list[Pair]:
    """Measure between processes forked from this one, which has no other threads."""
    return [_on_processes(case) for case in cases]


def _on_processes(case: Case) -> Pair:
    fork, count = multiprocessing.get_context("fork"), case.count
    fabric = SharedFabric(range(count), TIMEOUT_S)
    memory = mmap.mmap(-1, case.size_bytes * (count + 1))
    lanes = np.frombuffer(memory, case.dtype).reshape(count + 1, -1)[:, : case.elements]
    shared = Shared(fork.Barrier(count), list(lanes[:count]), lanes[count], copies=True)
    results = fork.SimpleQueue()

    def work(rank: int) -> None:
        with SharedFabric.open(fabric.descriptor).worker(rank):
            reported = measure_numpy(case, shared, rank)
        if rank == 0:
            results.put(reported)

    ranks = [fork.Process(target=work, args=(r,)) for r in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a rank ended with {process.exitcode}")
    matches: Pair = results.get()
    return matches


# ---- MPI: one job for all cases of a number of ranks --------------------------------------------


def in_mpi_job(cases: Sequence[Case]) -> list[Pair]:
    """Measure in an MPI job of this host."""
    reported = json.dumps([asdict(case) for case in cases])
    command = [*find_launcher(), "-n", str(cases[0].count), sys.executable, __file__]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, RANK: reported}
    )
    rows: list[Pair] = [(ours, theirs) for ours, theirs in json.loads(done.stdout)]
    return rows


def be_mpi_rank(cases: Sequence[Case]) -> None:
    """Be one rank of the job; rank 0 prints what it measured."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    fabric = share_fabric(world)
    rows = []
    with fabric.worker(world.rank):
        for case in cases:
            other = functools.partial(mpi_side, case, world)
            rows.append(measure(case, world.rank, world.Barrier, other, MPI_CALLS))
    if world.rank == 0:
        print(json.dumps(rows), flush=True)


def share_fabric(world: Any) -> SharedFabric:
    """A fabric for the processes of a job on one host: the memory of rank 0, opened by the rest."""
    if world.rank == 0:
        fabric = SharedFabric(range(world.size), TIMEOUT_S)
        world.bcast((os.getpid(), fabric.descriptor))
    else:
        process, number = world.bcast(None)
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        fabric = SharedFabric.open(descriptor)
        os.close(descriptor)
    world.Barrier()
    return fabric


PLACES: dict[str, tuple[str, Callable[[Sequence[Case]], list[Pair]]]] = {
    "threads": ("NumPy", on_threads),
    "processes": ("NumPy", on_processes),
    "mpi": ("MPI", in_mpi_job),
}
"""Per place the other side, and how to measure."""


def size_text(nbytes: int) -> str:
    """``4 KiB``, ``16 MiB``."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def time_text(seconds: float) -> str:
    """Milliseconds, to three digits."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{max(0, min(3, 2 - int(np.floor(np.log10(milliseconds)))))}f}"


def print_table(collective: str, options: Any) -> None:
    """Print the table of one collective."""
    print(f"\n{collective} of {options.dtype}, best milliseconds per call\n")
    heads = [f"{place}: native | {PLACES[place][0]} | ratio" for place in options.places]
    print(f"| ranks | size | {' | '.join(heads)} |")
    print("|--:|--:|" + "--:|--:|--:|" * len(heads))
    for count in options.ranks:
        sizes = [kib << 10 for kib in options.kib]
        cases = [Case(collective, count, size, options.dtype, options.seconds) for size in sizes]
        columns = [PLACES[place][1](cases) for place in options.places]
        for size, *pairs in zip(sizes, *columns):
            cells = [f"{time_text(a)} | {time_text(b)} | {b / a:.1f}x" for a, b in pairs]
            print(f"| {count} | {size_text(size)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables, or be a rank of an MPI job."""
    if RANK in os.environ:
        be_mpi_rank([Case(**fields) for fields in json.loads(os.environ[RANK])])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collectives", nargs="*", default=["all_reduce"], choices=list(OPTIONS))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--kib", type=int, nargs="*", default=[4, 64, 1024, 16384, 65536])
    parser.add_argument("--places", nargs="*", default=list(PLACES), choices=list(PLACES))
    options: Any = parser.parse_args()
    for collective in options.collectives:
        print_table(collective, options)


if __name__ == "__main__":
    main()
