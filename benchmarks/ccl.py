# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Native collectives against the Python ones: median time of an all-reduce, by size and ranks.

Every rank is a thread with a virtual machine of its own that runs a compiled chain of all-reduces,
as the engine ``threads`` does.

Usage: ``python benchmarks/ccl.py [--dtype float32] [--seconds 0.3]``
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_distir.runtime import ccl

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANKS = (2, 4, 8)


def chain(length: int, count: int, elements: int, dtype: str) -> Any:
    """Compile ``length`` all-reduces (max) one after the other over ``count`` ranks."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((elements,), dtype))
    groups = relax.ShapeExpr([tirx.IntImm("int64", r) for r in range(count)])
    args = [tirx.IntImm("int64", n) for n in (count, 3)]
    with bb.function("main", [x]):
        y: Any = x
        for _ in range(length):
            y = bb.emit(
                relax.op.call_dps_packed(ccl.PREFIX + "all_reduce", [y, groups, *args], out_ty=x.ty)
            )
        bb.emit_func_output(y)
    return tvm.compile(bb.finalize(), "llvm")


def median_s(collectives: str, count: int, nbytes: int, dtype: str, limit_s: float) -> float:
    """Median over the runs of a chain of the time of one all-reduce.

    Parameters
    ----------
    collectives : str
        ``native`` or ``python``.
    count : int
        Ranks.
    nbytes : int
        Of one rank's operand.
    dtype : str
    limit_s : float
        About how long to measure.
    """
    length = 50 if nbytes < 1 << 20 else 2
    elements = nbytes // np.dtype(dtype).itemsize
    ccl.register(collectives)
    compiled = chain(length, count, elements, dtype)
    fabric = ccl.FABRICS[collectives](range(count), 60.0)
    gate = threading.Barrier(count)
    times: list[float] = []
    rounds = 2

    def work(rank: int) -> None:
        nonlocal rounds
        x = tvm.runtime.tensor(np.full(elements, rank, dtype))
        with ccl.worker(fabric, rank):
            machine = relax.VirtualMachine(compiled, tvm.cpu())
            for phase in range(2):
                gate.wait()
                for _ in range(rounds):
                    start = time.perf_counter()
                    machine["main"](x)
                    if rank == 0:
                        times.append((time.perf_counter() - start) / length)
                gate.wait()
                if rank == 0 and phase == 0:
                    rounds = max(3, min(500, int(limit_s / (times[-1] * length))))
                    times.clear()
                gate.wait()

    threads = [threading.Thread(target=work, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(times)


def size_text(nbytes: int) -> str:
    """``4 KiB``, ``16 MiB``."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.3)
    options: Any = parser.parse_args()
    print(f"all_reduce of {options.dtype}, median milliseconds")
    print(f"{'ranks':>5} {'size':>8} {'native':>10} {'python':>10} {'ratio':>7}")
    for count in RANKS:
        for nbytes in SIZES_BYTES:
            native, python = (
                1e3 * median_s(c, count, nbytes, options.dtype, options.seconds)
                for c in ("native", "python")
            )
            row = f"{native:10.3f} {python:10.3f} {python / native:6.1f}x"
            print(f"{count:>5} {size_text(nbytes):>8} {row}", flush=True)


if __name__ == "__main__":
    main()
