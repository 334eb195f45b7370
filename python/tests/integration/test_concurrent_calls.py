# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Public functions from eight threads at once, which give what a single thread gives."""

from __future__ import annotations

import functools
import json
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax
from tvm.relax.frontend import nn

import tvm_distir as td
from tests.plain_systems import PLAIN_A100
from tests.transforms.training.pipeline_models import tower
from tvm_distir.planning.strategies.composition import make_plan

pytestmark = pytest.mark.optimized  # the target of the suite is that of the main thread

THREADS = 8
MESH = {"dp": 2}


class Layers(nn.Module):  # type: ignore[misc]
    """Two linear layers."""

    def __init__(self) -> None:
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the second layer of the first."""
        return self.last(nn.op.relu(self.first(x)))


@functools.cache
def model() -> ir.IRModule:
    """A model of two layers."""
    return tower(2, 4)


@functools.cache
def local() -> ir.IRModule:
    """The model on two devices."""
    return td.distribute(model(), make_plan(model(), "data_parallel", MESH))


def values() -> list[Any]:
    """Inputs of the model."""
    shapes = [tuple(map(int, param.ty.shape)) for param in model()["main"].params]
    return [np.linspace(-1, 1, int(np.prod(s)), dtype="float32").reshape(s) for s in shapes]


def system() -> Any:
    """The system whose times are asked for."""
    return td.System.load(PLAIN_A100)


def _symbolic() -> ir.IRModule:
    return td.from_nn(Layers(), {"forward": {"x": nn.spec.Tensor(("n", 8), "float32")}})


def _deployed() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        td.deploy(local(), Path(folder) / "model")
        return sorted(path.name for path in (Path(folder) / "model").iterdir())


def _analyzed() -> list[Any]:
    found = td.analyze(model(), system=system(), strategy="data_parallel", mesh=MESH)
    data = json.loads(found.to_json())
    return [data[key] for key in ("time_s", "peak_memory_bytes", "fits")]


def _saved() -> ir.IRModule:
    return td.from_tvmscript(model().script(show_meta=True))


CALLS: dict[str, Callable[[], Any]] = {
    "analyze": _analyzed,
    "auto_shard": lambda: str(td.auto_shard(model(), {"tp": 2}, system()).plan()),
    "bind_dims": lambda: td.bind_dims(_symbolic(), {"n": 4}),
    "compile": lambda: td.run(td.compile(local()), values()),
    "deploy": _deployed,
    "distribute": lambda: td.distribute(model(), make_plan(model(), "data_parallel", MESH)),
    "export": lambda: td.export(local()).to_json(),
    "from_nn": _symbolic,
    "from_stablehlo": lambda: td.from_stablehlo(td.to_stablehlo(model())),
    "from_tvmscript": _saved,
    "load_model": lambda: td.load_model("zoo:gpt?size=tiny,layers=1").mod,
    "plan_storage": lambda: str(td.plan_storage(local())),
    "run": lambda: td.run(local(), values(), engine="virtual"),
    "simulate": lambda: td.simulate(td.export(local()), system()).time_s,
    "to_stablehlo": lambda: td.to_stablehlo(model()),
    "train_step": lambda: td.train_step(model(), "mse", "adam"),
    "train_step in stages": lambda: td.train_step(
        td.zoo.gpt(size="tiny", layers=2), schedule="1f1b:stages=2,micro_batches=2"
    ),
    "verify": lambda: str(td.verify(model(), make_plan(model(), "data_parallel", MESH)).equal),
}


def comparable(value: Any) -> Any:
    """Return what equal results have in common."""
    if isinstance(value, ir.IRModule):
        return value.script()
    if isinstance(value, list):
        return [np.asarray(v).tobytes() if hasattr(v, "shape") else v for v in value]
    return value


@pytest.mark.parametrize("name", CALLS)
def test_threads_get_what_one_gets(name: str) -> None:
    expected = comparable(CALLS[name]())
    begin = threading.Barrier(THREADS)

    def call(_: int) -> Any:
        begin.wait()
        return comparable(CALLS[name]())

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(call, range(THREADS))) == [expected] * THREADS


def test_builders_of_threads_are_separate() -> None:
    """A thread does not emit into the function that another one writes."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([2], "float32"))
    with builder.function("main", [x]):
        assert relax.BlockBuilder.current() is builder
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(relax.BlockBuilder.current).result() is None
        builder.emit_func_output(x)
    assert relax.BlockBuilder.current() is None
