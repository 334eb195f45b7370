# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time models as compiled programs of one device against PyTorch (eager), side by side.

``machine`` is TVM's virtual machine with resident tensors, ``session`` a step of ``td.Session``.
All run in one process, in turn, with one thread each; medians of CPU time. The outputs of each, or
the loss of its first step, are compared with PyTorch's. Needs the extras ``torch`` and
``huggingface``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch
import tvm
from framework_models import ROWS, Row
from measure import add_rows, cpu_seconds, parser, print_setting, table

import tvm_distir as td
from tvm_distir.execution.runtime.program.machines import make_machine

MS = 1e3
Work = Callable[[], Any]


def eager(row: Row, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> Work:
    """Return a step of PyTorch, whose result is the loss of a training step, else the outputs."""
    if not row.train:
        model.eval()

        def forward() -> Any:
            with torch.inference_mode():
                return model(*batch)

        return forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    *inputs, targets = batch

    def step() -> Any:
        optimizer.zero_grad()
        out = model(*inputs)
        if targets.dtype == torch.int32:
            loss = torch.nn.functional.cross_entropy(out.flatten(0, -2), targets.flatten().long())
        else:
            loss = torch.nn.functional.mse_loss(out, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def batch_of(
    row: Row, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Return what a step reads: inputs, and random targets (classes for a model of tokens)."""
    if not row.train:
        return inputs
    with torch.no_grad():
        outputs = model(*inputs)
    generator = torch.Generator().manual_seed(1)
    if "llama" in row.name:
        shape = outputs.shape[:-1]
        return (*inputs, torch.randint(0, outputs.shape[-1], shape, generator=generator).int())
    return (*inputs, torch.randn(outputs.shape, generator=generator))


def module_of(row: Row, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return the distributed module of the model, or of its step, for one device."""
    mod = td.from_exported_program(torch.export.export(model.eval(), inputs))
    if row.train:
        loss = "cross_entropy" if "llama" in row.name else "mse"
        mod = td.train_step(mod, loss=loss, optimizer="adamw")
    return td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 1}))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the weights and buffers by name: steps of PyTorch change them in place."""
    state = {**model.state_dict(), **dict(model.named_buffers())}
    return {name: value.detach().clone() for name, value in state.items()}


def machine(
    program: Any, state: dict[str, torch.Tensor], batch: tuple[torch.Tensor, ...]
) -> Callable[[], Any]:
    """Return a call of TVM's virtual machine with resident tensors."""
    entry = program.entries[0]
    data = iter(batch)
    tensors = []
    for port in entry.inputs:
        value = state[port.name] if port.name in state else next(data, None)
        shape = [int(n) for n in port.shape]
        array = np.zeros(shape) if value is None else value.numpy()  # state of the optimizer
        tensors.append(tvm.runtime.tensor(np.array(array, port.dtype, order="C")))
    vm, function = make_machine(program.library(entry)), entry.function
    return lambda: vm[function](*tensors)


def session(
    program: Any, state: dict[str, torch.Tensor], batch: tuple[torch.Tensor, ...]
) -> Callable[[], Any]:
    """Return a step of a session."""
    names = {port.name for port in program.entries[0].inputs}
    weights = {name: value.clone() for name, value in state.items() if name in names}
    steps = td.Session(program, weights)
    return lambda: steps.step(*batch)


def first(result: Any) -> Any:
    """Return the first tensor of a result: the outputs, or the loss of a training step."""
    return result if hasattr(result, "numpy") else first(result[0])


def measured(row: Row, dispatches: list[str], rounds: int) -> dict[str, float]:
    """Return median milliseconds by name.

    Raises
    ------
    RuntimeError
        Where the outputs, or the loss of the first step, differ from those of PyTorch.
    """
    torch.manual_seed(0)
    model, inputs = row.make()
    dist, state = module_of(row, model, inputs), weights_of(model)
    batch = batch_of(row, model, inputs)
    works: dict[str, Work] = {"eager": eager(row, model, batch)}
    expected = works["eager"]().numpy()
    for name in dispatches:
        program = td.compile(dist, dispatch=name)
        for kind, work in (("machine", machine), ("session", session)):
            step = works[f"{name}: {kind}"] = work(program, state, batch)
            got = np.asarray(first(step()).numpy())
            if not np.allclose(got, expected, rtol=1e-2, atol=1e-3):
                raise RuntimeError(f"{row.name}, {name}, {kind}: the results are not PyTorch's")
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(cpu_seconds(work))
    return {name: statistics.median(values) * MS for name, values in times.items()}


def main() -> None:
    """Measure the rows that are named."""
    options = parser(__doc__)
    add_rows(options, ROWS)
    options.add_argument("--dispatch", default="torch,numpy", help="libraries")
    options.add_argument("-o", "--output", type=Path, help="write JSON")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    dispatches = arguments.dispatch.split(",")
    results = {}
    for row in arguments.rows:
        results[row.name] = measured(row, dispatches, arguments.repeat)
        print(row.name, results[row.name], file=sys.stderr, flush=True)
    print_setting()
    kinds = [f"{name}: {kind}" for name in dispatches for kind in ("machine", "session")]
    table(
        ["model", "eager, ms", *kinds],
        [
            [name, f"{found['eager']:.0f}", *(f"{found[k] / found['eager']:.2f}x" for k in kinds)]
            for name, found in results.items()
        ],
    )
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
