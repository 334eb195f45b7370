# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured time of lowered programs on this machine, kernels timed one by one.

Each model runs on one and on two workers of the engine ``threads``, a core each, steps in turn on
machines that stay; what ``td.measure`` and the system ``laptop-cpu`` (for its links) predict stands
beside it. Wants a quiet machine with two cores.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import Any

import numpy as np
import tvm
from measure import parser, print_setting, table
from tvm import relax

import tvm_distir as td
from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.program.cores import THREADS_VARIABLE
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.planning.strategies.composition import make_plan

CASES = [
    ("gpt", "zoo:gpt?size=tiny,layers=4,hidden=256,batch=4,seq=128,positions=128", "megatron:tp"),
    ("gpt, training", "zoo:gpt?size=tiny,layers=2,hidden=256,batch=4,seq=64", "data_parallel:dp"),
    ("llama", "zoo:llama?size=tiny,layers=4,hidden=512,batch=2,seq=128", "megatron:tp"),
    ("bert", "zoo:bert?size=tiny,layers=4,hidden=512,batch=2,seq=64", "megatron:tp"),
    ("vit", "zoo:vit?size=tiny,layers=4,hidden=256,batch=8,image=64", "data_parallel:dp"),
    ("moe", "zoo:moe?size=tiny,layers=2,hidden=256,batch=4,seq=64", "expert_parallel:ep"),
    ("resnet18", "zoo:resnet?size=resnet18,batch=2,image=112", "data_parallel:dp"),
    ("u-net", "zoo:unet?size=tiny,batch=2", "data_parallel:dp"),
    ("mlp", "zoo:mlp?layers=8,hidden=1024,batch=64", "tensor_parallel:tp"),
    ("mlp, training", "zoo:mlp?layers=4,hidden=1024,batch=64", "data_parallel:dp"),
]
STEPS = 9
SMALL = 0.05
"""Of weights, so that activations stay normal numbers."""


def lowered(spec: str, strategy: str, train: bool, workers: int) -> Any:
    """The level-5 module of a case on so many workers."""
    name, axis = strategy.split(":")
    mod = td.load_model(spec).mod
    if train:
        mod = td.train_step(mod, "mse" if "mlp" in spec else "cross_entropy")
    return td.distribute(mod, make_plan(mod, name, {axis: workers}))


def steps_s(mod: Any) -> list[float]:
    """Seconds of each step, of the slowest worker, on machines that stay."""
    program = LoweredProgram(mod)
    ranks = [rank for entry in program.entries for rank in entry.ranks]
    fabric, together = NativeFabric(ranks, 120.0), threading.Barrier(len(ranks))
    times: dict[int, list[float]] = {rank: [] for rank in ranks}

    def run(rank: int, library: Any, function: str) -> None:
        rng = np.random.default_rng(0)
        with ccl.worker(fabric, rank):
            machine = relax.VirtualMachine(library, tvm.cpu())
            operands = []
            for param in mod[function].params:
                shape = tuple(int(n) for n in param.ty.shape)
                dtype = np_dtype(str(param.ty.dtype))
                value = SMALL * rng.standard_normal(shape)
                value = value if np.issubdtype(dtype, np.floating) else np.zeros(shape)
                operands.append(tvm.runtime.tensor(value.astype(dtype)))
            for _ in range(STEPS):
                together.wait()
                begin_s = time.perf_counter()
                machine[function](*operands)
                times[rank].append(time.perf_counter() - begin_s)

    workers = [
        threading.Thread(target=run, args=(rank, program.library(entry), entry.function))
        for entry in program.entries
        for rank in entry.ranks
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [max(times[rank][n] for rank in ranks) for n in range(STEPS)]


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__).parse_args()
    del arguments
    os.environ[THREADS_VARIABLE] = "1"
    print_setting()
    rows, errors = [], []
    for name, spec, strategy in CASES:
        row = [name]
        for workers in (1, 2):
            mod = lowered(spec, strategy, "training" in name, workers)
            predicted_s = td.simulate(td.measure(mod), "laptop-cpu", blocking=True).time_s
            measured_s = statistics.median(steps_s(mod)[2:])
            error = predicted_s / measured_s - 1
            errors.append(abs(error))
            row += [f"{predicted_s * 1e3:.1f}", f"{measured_s * 1e3:.1f}", f"{100 * error:+.0f}"]
        rows.append(row)
    head = ["model", "1: predicted, ms", "measured", "%", "2: predicted, ms", "measured", "%"]
    table(head, rows)
    print(f"mean error {100 * statistics.mean(errors):.1f} %")


if __name__ == "__main__":
    main()
