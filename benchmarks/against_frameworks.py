# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time models as compiled programs of one device against PyTorch (eager), side by side.

``machine`` is TVM's virtual machine with resident tensors. All run in one process, in turn, with
one thread each; medians of CPU time. Needs the extras ``torch`` and ``huggingface``.
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
from measure import cpu_seconds, parser, print_setting, table

import tvm_distir as td
from tvm_distir.execution.runtime.program.machines import make_machine

MS = 1e3
Work = Callable[[], Any]


def eager(row: Row, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Work:
    """Return a step of PyTorch."""
    if not row.train:
        model.eval()

        def forward() -> Any:
            with torch.inference_mode():
                return model(*inputs)

        return forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    with torch.no_grad():
        outputs = model(*inputs)
    targets = target_of(row, outputs)

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


def target_of(row: Row, outputs: torch.Tensor) -> torch.Tensor:
    """Return random targets: classes of a model of tokens, else values."""
    generator = torch.Generator().manual_seed(1)
    if "llama" in row.name:
        return torch.randint(0, outputs.shape[-1], outputs.shape[:-1], generator=generator).int()
    return torch.randn(outputs.shape, generator=generator)


def module_of(row: Row, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return the distributed module of the model, or of its step, for one device."""
    mod = td.from_exported_program(torch.export.export(model.eval(), inputs))
    if row.train:
        loss = "cross_entropy" if "llama" in row.name else "mse"
        mod = td.train_step(mod, loss=loss, optimizer="adamw")
    return td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 1}))


def machine(
    dist: Any, dispatch: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[Any, list[Any], str]:
    """Return a virtual machine, its tensors, and the function to call."""
    program = td.compile(dist, dispatch=dispatch)
    entry = program.entries[0]
    data = iter(inputs)
    state = {**model.state_dict(), **dict(model.named_buffers())}
    rng = np.random.default_rng(0)
    tensors = []
    for port in entry.inputs:
        if port.name in state:
            value = state[port.name].detach().numpy()
        else:
            example = next(data, None)
            shape = [int(n) for n in port.shape]
            value = np.zeros(shape, port.dtype) if example is None else example.numpy()
            if example is None and port.name == "targets" and "float" in port.dtype:
                value = rng.standard_normal(shape).astype(port.dtype)
        tensors.append(tvm.runtime.tensor(np.array(value, port.dtype, order="C")))
    return make_machine(program.library(entry)), tensors, entry.function


def first(result: Any) -> Any:
    """Return the first tensor of a result."""
    return result if hasattr(result, "numpy") else first(result[0])


def measured(row: Row, dispatches: list[str], rounds: int) -> dict[str, float]:
    """Return median milliseconds by name."""
    torch.manual_seed(0)
    model, inputs = row.make()
    dist = module_of(row, model, inputs)
    works: dict[str, Work] = {"eager": eager(row, model, inputs)}
    expected = works["eager"]()
    for name in dispatches:
        vm, tensors, function = machine(dist, name, model, inputs)
        works[name] = lambda vm=vm, tensors=tensors, function=function: vm[function](*tensors)
        got = first(works[name]()).numpy()
        if not row.train and not np.allclose(got, expected.numpy(), rtol=1e-2, atol=1e-3):
            raise RuntimeError(f"{row.name}, {name}: the results differ from those of PyTorch")
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
    options.add_argument("--rows", default=",".join(row.name for row in ROWS))
    options.add_argument("--dispatch", default="torch,numpy", help="libraries")
    options.add_argument("-o", "--output", type=Path, help="write JSON")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    dispatches = arguments.dispatch.split(",")
    results = {}
    for row in ROWS:
        if row.name in arguments.rows.split(","):
            results[row.name] = measured(row, dispatches, arguments.repeat)
            print(row.name, results[row.name], file=sys.stderr, flush=True)
    print_setting()
    table(
        ["model", "eager, ms", *(f"{name}: machine" for name in dispatches)],
        [
            [
                name,
                f"{found['eager']:.0f}",
                *(f"{found[d] / found['eager']:.2f}x" for d in dispatches),
            ]
            for name, found in results.items()
        ],
    )
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
