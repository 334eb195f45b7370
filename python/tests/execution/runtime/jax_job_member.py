# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A process of a JAX job: ``jax_job_member.py PORT PROCESSES PROCESS FOLDER`` writes its results.

It runs the programs of ``jax_job_programs`` on the engine xla, and one by ``td.to_jax``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tvm_distir as td
from tvm_distir.support.errors.tree import EngineError

PROGRAMS = {
    "uneven": ("gpt", "data_parallel+megatron", {"dp": 2, "tp": 2}),
    "train": ("step", "zero:stage=3+megatron", {"dp": 2, "tp": 2}),
    "sequence": ("gpt", "megatron:sequence=1", {"tp": 4}),
}


def program(name: str) -> tuple[Any, list[Any]]:
    """Return a module of level 5 and its inputs."""
    kind, strategy, mesh = PROGRAMS[name]
    mod = td.zoo.gpt(size="tiny", layers=1, batch=8)
    mod = td.train_step(mod, optimizer="adamw") if kind == "step" else mod
    dist = td.distribute(mod, td.planning.make_plan(mod, strategy, mesh))
    return dist, td.execution.draw_inputs(mod, seed=0)


def even_program() -> tuple[Any, list[Any]]:
    """Return a module with shards of equal size, as ``to_jax`` needs it, and its inputs."""
    mod = td.zoo.gpt(size="tiny", layers=1, batch=8, vocab=512)
    plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    return td.distribute(mod, plan), td.execution.draw_inputs(mod, seed=0)


def main(port: str, processes: int, process: int, folder: Path) -> None:
    """Join the job and run everything."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    results: dict[str, Any] = {}
    for name in PROGRAMS:
        dist, inputs = program(name)
        outputs = td.run(dist, inputs, engine="xla")
        results |= {f"{name}.{i}": array for i, array in enumerate(outputs)}
    dist, inputs = program("uneven")
    (logits,) = td.run(dist, inputs, engine="xla", outputs="sharded")
    results |= {f"part.{rank}": part for rank, part in logits.parts.items()}
    other = dist if process == 0 else program("sequence")[0]
    try:
        td.run(other, inputs, engine="xla")
    except EngineError as error:
        results["refused"] = np.array(str(error))
    try:
        large = td.zoo.mlp(batch=8)
        td.run(td.distribute(large, td.planning.make_plan(large, "data_parallel", {"dp": 8})), [],
               engine="xla")  # fmt: skip
    except EngineError as error:
        results["too few"] = np.array(str(error))
    small = td.zoo.mlp(batch=8)
    pair = td.distribute(small, td.planning.make_plan(small, "data_parallel", {"dp": 2}))
    try:
        td.run(pair, [], engine="xla")
    except EngineError as error:
        results["idle"] = np.array(str(error))
    dist, inputs = even_program()
    function = td.to_jax(dist)
    placed = [
        jax.make_array_from_callback(x.shape, s, lambda index, x=x: x[index])
        for x, s in zip(inputs, function.in_shardings)
    ]
    (logits,) = function(*placed)
    for shard in logits.addressable_shards:
        starts = [dim.start or 0 for dim in shard.index]
        results[f"jax.{'-'.join(map(str, starts))}"] = np.asarray(shard.data)
    np.savez(folder / f"process{process}.npz", **results)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
