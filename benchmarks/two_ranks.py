# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time programs of two ranks against PyTorch's parallel modules, in one job of torchrun.

A Llama of two layers: inference with tensor parallelism against DTensor, and steps of AdamW against
DistributedDataParallel and FSDP2 (``fully_shard``), with gloo and a thread per process. Ours are
deployed folders whose weights and state stay with the ranks. Both sides run in turn; medians of the
CPU time of both processes, and of wall time. The outputs, or the loss of the first step, are
compared with those of PyTorch on one device, and the losses of the last step with each other. Needs
the extra ``torch``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.engines.job_engine import JobSession

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.distributed as dist
from against_frameworks import weights_of
from framework_models import VOCAB, Llama
from measure import add_rows, parser, print_setting, table
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tvm_distir as td
from tvm_distir.execution.runtime.engines.torch.engine import TorchEngine
from tvm_distir.execution.runtime.program.inputs import bind_inputs

WIDTH, LAYERS, POSITIONS, RANKS = 1024, 2, 128, 2
FOLDER, ROUNDS = "TVM_DISTIR_TWO_RANKS", "TVM_DISTIR_ROUNDS"
"""The variables that tell the processes of the job their folder and the number of rounds."""
TIMEOUT_S, RATE = 120.0, 1e-3
Step = Callable[[], Any]
COLUMNS, ROWS_OF = ("q", "k", "v", "gate", "up"), ("o", "down")
TENSOR_PARALLEL = {
    **{f"*.{name}.weight": td.P("tp", None) for name in COLUMNS},
    **{f"*.{name}.weight": td.P(None, "tp") for name in ROWS_OF},
    "head.weight": td.P("tp", None),
}
"""The plan of the first row: PyTorch's weights are (outputs, inputs)."""


@dataclass(frozen=True)
class Row:
    """A program and its counterpart.

    Attributes
    ----------
    name, peer : str
        The row's name, and PyTorch's.
    strategy : str
        Ours; empty for Megatron-LM's placements of the weights.
    axis : str
        The mesh axis of both ranks.
    batch : int
        Sequences of both ranks.
    """

    name: str
    peer: str
    strategy: str
    axis: str
    batch: int = 2

    @property
    def train(self) -> bool:
        """Whether a step of AdamW is timed."""
        return self.axis == "dp"


ROWS = (
    Row("tensor parallel", "DTensor", "", "tp"),
    Row("data parallel", "DDP", "data_parallel", "dp"),
    Row("ZeRO-1", "FSDP2", "zero:stage=1", "dp"),
    Row("fsdp", "FSDP2", "fsdp", "dp"),
)


def model_and_batch(row: Row) -> tuple[Llama, tuple[torch.Tensor, ...]]:
    """Return the model, and the ids (with targets) of both ranks; equal in all processes."""
    torch.manual_seed(0)
    model = Llama(WIDTH, LAYERS, POSITIONS)
    ids = torch.randint(0, VOCAB, (row.batch, POSITIONS))
    return model, (ids, torch.roll(ids, -1, 1).int()) if row.train else (ids,)


def deploy(row: Row, folder: Path) -> None:
    """Write the program of both ranks."""
    model, batch = model_and_batch(row)
    mod = td.from_exported_program(torch.export.export(model.eval(), batch[:1]))
    if row.train:
        mod = td.train_step(mod, loss="cross_entropy", optimizer="adamw", rate=RATE)
    if row.strategy:
        plan = td.planning.make_plan(mod, row.strategy, {row.axis: RANKS})
    else:
        plan = td.Plan(mesh={row.axis: RANKS}, rules=TENSOR_PARALLEL)
    td.deploy(td.distribute(mod, plan, bucket_bytes="unit" if row.train else None), folder)


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the mean cross entropy of a batch."""
    ids, targets = batch
    return cross_entropy(model(ids).flatten(0, -2), targets.flatten().long())


def peer_step(row: Row, model: Llama, batch: tuple[torch.Tensor, ...]) -> Step:
    """Return a step of PyTorch on this rank."""
    if not row.train:
        _cut_layers(model)
        return torch.inference_mode()(lambda: model(*batch))
    if row.peer == "DDP":
        parallel: torch.nn.Module = DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        parallel = fully_shard(model)
    part = tuple(value.chunk(RANKS)[dist.get_rank()] for value in batch)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=RATE, foreach=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(parallel, part)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _cut_layers(model: Llama) -> None:
    """Shard the layers and the head as Megatron-LM does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.layers:
        columns = dict.fromkeys(COLUMNS, ColwiseParallel())
        rows = dict.fromkeys(ROWS_OF, RowwiseParallel())
        parallelize_module(layer, mesh, {**columns, **rows})
        layer.heads //= RANKS
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


@contextmanager
def our_step(
    folder: Path, state: dict[str, torch.Tensor], batch: tuple[torch.Tensor, ...]
) -> Iterator[Step]:
    """Return a step of the deployed program on this rank; what it returns is taken over."""
    program = td.load(folder)
    inputs: dict[str, Any] = {}
    data = iter(batch)
    for entry in program.entries:
        for port in sorted(entry.inputs, key=lambda p: p.index):
            if port.name not in inputs and port.index not in program.stored:
                value = state.get(port.name)
                value = next(data, None) if value is None else value
                shape = [int(n) for n in port.shape]
                inputs[port.name] = np.zeros(shape, port.dtype) if value is None else value.numpy()
    local = bind_inputs(program.entries, inputs, program.stored)
    with TorchEngine(TIMEOUT_S, "library").member(program) as member:
        member.prepare(program.communication)
        rank = member.rank
        (entry,) = (e for e in program.entries if rank in e.ranks)
        session = JobSession(member, program, entry, None)
        tensors = [session.tensor(array) for array in local.of(entry, rank)]
        slots = {port.index: slot for slot, port in enumerate(entry.inputs)}
        outputs = {port.index: slot for slot, port in enumerate(entry.outputs)}
        kept = [(outputs[o], slots[i]) for o, i in program.state.inputs.items() if o in outputs]

        def step() -> torch.Tensor:
            results = session.call(tensors)
            for output, slot in kept:
                tensors[slot] = results[output]
            return torch.from_dlpack(results[outputs[0]])

        yield step
        member.end()


def timed(step: Step) -> tuple[float, float]:
    """Return the CPU seconds of both processes and the wall seconds of a step."""
    dist.barrier()
    cpu, wall = time.process_time(), time.monotonic()
    step()
    spent = torch.tensor([time.process_time() - cpu, time.monotonic() - wall])
    dist.all_reduce(spent)
    return float(spent[0]), float(spent[1]) / RANKS


def result_of(row: Row, name: str, step: Step) -> torch.Tensor:
    """Return what a step returns: outputs, or the loss of the batch of both ranks."""
    found = step()
    if row.train and name == "peer":  # of this rank's part of the batch
        dist.all_reduce(found)
        found /= RANKS
    return found


def measure_row(row: Row, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the medians of both sides, on each process.

    Raises
    ------
    RuntimeError
        Where a side's outputs, or its first loss, are not those of one device, or the last losses
        of both sides differ.
    """
    model, batch = model_and_batch(row)
    with torch.no_grad():
        expected = loss_of(model, batch) if row.train else model(*batch)
    with our_step(folder, weights_of(model), batch) as ours:
        sides = {"ours": ours, "peer": peer_step(row, model, batch)}
        for name, step in sides.items():
            found = result_of(row, name, step)
            matching = expected
            if found.shape != expected.shape:  # a shard of the vocabulary
                matching = expected.chunk(RANKS, -1)[dist.get_rank()]
            if not torch.allclose(found, matching, rtol=1e-3, atol=1e-3):
                raise RuntimeError(f"{row.name}, {name}: not the result of one device")
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, step in sides.items():
                times[name].append(timed(step))
        last = [result_of(row, name, step) for name, step in sides.items()]
        if row.train and not torch.allclose(*last, rtol=5e-3):
            raise RuntimeError(f"{row.name}: the losses after {rounds + 1} steps are {last}")
    medians = {n: [statistics.median(v) for v in zip(*p, strict=True)] for n, p in times.items()}
    return {"row": row.name, "peer": row.peer, "sides": medians}


def work(folder: Path, rounds: int) -> None:
    """Measure the rows that are deployed, as a process of the job; process 0 prints JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for row in ROWS:
        if (folder / row.name).is_dir():
            result = measure_row(row, folder / row.name, rounds)
            if dist.get_rank() == 0:
                print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Deploy the programs, start the job, and print the table."""
    options = parser(__doc__)
    add_rows(options, ROWS)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-distir-ranks-") as scratch:
        for row in arguments.rows:
            deploy(row, Path(scratch) / row.name)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={RANKS}", __file__]
        paths = os.pathsep.join(path or "." for path in sys.path)
        env = {**os.environ, "PYTHONPATH": paths, FOLDER: scratch, ROUNDS: str(arguments.repeat)}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print_setting()
    table(
        ["two ranks", "peer", "its CPU, ms", "CPU", "wall"],
        [
            [
                row["row"], row["peer"], f"{1e3 * row['sides']['peer'][0]:.0f}",
                *(f"{a / b:.2f}x" for a, b in zip(row["sides"]["ours"], row["sides"]["peer"])),
            ]
            for row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    if FOLDER in os.environ:
        work(Path(os.environ[FOLDER]), int(os.environ[ROUNDS]))
    else:
        main()
