# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Public functions from eight threads at once, which give what a single thread gives."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax
from tvm.relax.frontend import nn

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

import tvm_distir as td
from tests.models.test_relax_ccl import Mlp, _exported
from tests.plain_systems import PLAIN_A100
from tests.transforms.training.pipeline_models import tower
from tvm_distir.execution.runtime.program import timing
from tvm_distir.execution.runtime.program.cores import one_thread
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models.common.quiet import muted_stderr, warnings_ignored
from tvm_distir.planning.calibration.rows import ProductRow
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.config.atomic import write_atomically
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.support.plugins import registry

pytestmark = pytest.mark.optimized  # the target of the suite is that of the main thread

THREADS = 4
MESH = {"dp": 2}
DECODER = "zoo:llama3?size=tiny,layers=1"
TRACES = Path(__file__).parents[1] / "execution" / "checking" / "traces"
NEEDS = {
    "from_exported_program": "torch",
    "from_jax": "jax",
    "from_onnx": "onnx",
    "jit": "jax",
    "to_jax": "jax",
    "trace_ranks": "torch",
}
"""The packages that calls need beside those of every installation."""

_FOLDER = tempfile.TemporaryDirectory()


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


def _exported_weights() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        td.export_weights({"w": np.arange(6, dtype="float32").reshape(2, 3)}, path)
        return path.read_bytes()


def _analyzed() -> list[Any]:
    found = td.analyze(model(), system=system(), strategy="data_parallel", mesh=MESH)
    data = json.loads(found.to_json())
    return [data[key] for key in ("time_s", "peak_memory_bytes", "fits")]


def _saved() -> ir.IRModule:
    return td.from_tvmscript(model().script(show_meta=True))


@functools.cache
def folder() -> Path:
    """A deployed folder, with files of weights and two traces beside it."""
    path = Path(_FOLDER.name)
    td.deploy(local(), path / "served")
    np.savez(path / "weights.npz", w=np.arange(6.0).reshape(2, 3))
    for name in ("first.json", "second.json"):
        td.simulate(local(), system()).to_perfetto(path / name)
    return path


def _calibrated() -> list[Any]:
    rows = [ProductRow(n, n, n, time_s=n * 1e-7) for n in (512, 1024, 2048, 4096)]
    found = td.calibrate("dgx-a100-megatron", rows, folds=0)
    return sorted(found.values.items())


def _measured() -> list[Any]:
    """The ops that are timed: the times themselves are not the same twice."""
    program = td.measure(local())
    return [
        (op.op, op.measured_ps > 0) for _, fn in sorted(program.functions.items()) for op in fn.ops
    ]


def _onnx_model(op: str, dtype: int, **attributes: int) -> Any:
    onnx = importlib.import_module("onnx")
    nodes = [onnx.helper.make_node(op, ["x"], ["y"], **attributes)]
    ports = [onnx.helper.make_tensor_value_info(*port, [4]) for port in (("x", 1), ("y", dtype))]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, op, ports[:1], ports[1:]))


def _refused() -> str:
    with pytest.raises(ModelError, match="DIST0312") as caught:
        td.from_onnx(_onnx_model("IsInf", 9, detect_negative=0))
    return str(caught.value)


@functools.cache
def torch_files() -> tuple[Any, str]:
    """A program of torch that is to be decomposed, and the archive of another."""
    torch = importlib.import_module("torch")
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    program = torch.export.export(layer, (torch.ones(2, 4),))
    torch.export.save(program, folder() / "layer.pt2")
    return program, str(folder() / "layer.pt2")


def _from_torch() -> list[Any]:
    return [td.from_exported_program(source).script() for source in torch_files()]


def _by_jax() -> list[Any]:
    if len(importlib.import_module("jax").devices()) < 2:
        pytest.skip("JAX was started with one device")
    return [np.asarray(value) for value in td.to_jax(local())(*values())]


def _product(weights: dict[str, Any], x: Any) -> dict[str, Any]:
    return {"y": x @ weights["w"]}


TREES = {"w": np.arange(12, dtype="float32").reshape(4, 3)}, np.ones((2, 4), "float32")


def _learned() -> str:
    """What a trace of a host teaches."""
    names = ("aten::linear", "aten::relu", "aten::linear")
    places = {"ph": "X", "cat": "cpu_op", "tid": 1, "dur": 90}
    events = [{**places, "name": name, "ts": 100 * i} for i, name in enumerate(names)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"traceEvents": events}, file)
        file.flush()
        model = "zoo:mlp?layers=2,hidden=64,batch=8"
        return str(td.learn(file.name, model, system="laptop-cpu").to_text())


def _opened() -> list[Any]:
    weights = td.open_weights(folder() / "weights.npz")
    return [array.read([(0, size) for size in array.shape]) for array in weights.values()]


def _merged() -> str:
    with tempfile.TemporaryDirectory() as new:
        path = Path(new) / "both.json"
        td.merge_traces(path, a=folder() / "first.json", b=folder() / "second.json")
        return path.read_text()


def _swept() -> list[Any]:
    grid = {"dp": [1, 2], "hidden": [32, 64]}
    cache = folder() / "cache"
    found = td.sweep("zoo:gpt?size=tiny,layers=1", grid, system(), cache=cache, workers=1)
    return [(row["status"], row["time_s"], row["peak_memory_bytes"]) for row in found.to_dicts()]


def _searched() -> list[Any]:
    found = td.search("zoo:mlp?layers=1,hidden=8", 2, system(), top=2, workers=1)
    return [(str(plan.plan), plan.row.time_s) for plan in found.plans]


def _served() -> str:
    work = "poisson:4,in=16,out=4,count=8"
    return td.serve_analyze(DECODER, "megatron", {"tp": 1}, "dgx-h100", work).text()


def _serving_found() -> str:
    schedulers = ("continuous:tokens=128",)
    work = "poisson:1,in=16,out=4"
    levels = ServiceLevels(0.02, 0.001)
    return td.search_serving(
        DECODER, 1, "dgx-h100", work, levels, schedulers=schedulers, front=False
    ).text()


def _fleet() -> str:
    work, levels = "poisson:40,in=16,out=4,count=40", ServiceLevels(0.02, 0.001)
    options = {"devices": 1, "schedulers": ("continuous:tokens=128",)}
    return td.search_fleet(DECODER, ["dgx-h100"], work, levels, **options).text()


def _checked() -> str:
    right, reference = (
        ir.load_json((TRACES / f"tensor_and_data_parallel_{name}.json").read_text("utf-8"))
        for name in ("right", "reference")
    )
    hints = {"x": {"dp": 0}, "y": {"dp": 0}, "a": {"tp": 1}, "b": {"tp": 0}}
    return str(td.check(right, reference, hints=hints))


def _traced() -> Any:
    import torch
    import torch.distributed as dist

    def make(rank: int) -> Any:
        def step(parameters: Any, data: Any) -> Any:
            y = data["x"] @ parameters["w"]
            dist.all_reduce(y)
            return {"y": y}

        tensors = torch.empty(4, 3, device="meta"), torch.empty(2, 4, device="meta")
        return step, {"w": tensors[0]}, {"x": tensors[1]}

    return td.trace_ranks(make, 2)


class _Ring:
    """All-reduce by a ring."""

    kinds = ("all_reduce",)

    def steps(self, kind: str, ranks: int) -> int:
        return 2 * (ranks - 1)

    def sent_bytes(self, kind: str, total_bytes: int, ranks: int, copied: bool) -> float:
        return 2 * total_bytes * (1 - 1 / ranks)


class _AllForward:
    """Schedule of all forward passes, then all backward passes."""

    def orders(self, ranks: int, micro_batches: int, chunks: int) -> Any:
        return [[(p, i, 0) for p in "FB" for i in range(micro_batches)]] * ranks

    def rank_of(self, ranks: int, chunks: int) -> list[int]:
        return list(range(ranks))


def _replicated(mod: ir.IRModule, mesh: td.MeshSpec) -> td.Plan:
    """Plan without a rule."""
    return td.Plan((mesh,), ())


def _planned() -> str:
    td.register_strategy("everything_replicated", _replicated)
    return str(make_plan(model(), "everything_replicated", MESH))


@pytest.fixture(autouse=True)
def no_registration_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call registers is known in its test alone."""
    monkeypatch.setattr(registry, "_registrations", {})


@functools.cache
def serving_step() -> tuple[Any, dict[str, Any]]:
    """A compiled serving step, and its weights; LLVM warns of a pragma of its kernels."""
    mod = td.zoo.llama(size="tiny", layers=1, entry="serve", batch=2, seq=1, past=7)
    dist = td.distribute(mod, make_plan(mod, "megatron", {"tp": 2}))
    drawn = zip((str(param.name) for param in mod["main"].params), draw_inputs(mod, seed=0))
    weights = {name: value for name, value in [*drawn][3:] if not name.endswith("_cache")}
    return td.compile(dist), weights


def _generated() -> list[list[int]]:
    step, weights = serving_step()
    return td.generate(step, [[1, 2], [3]], 2, weights, engine="virtual").tokens


CALLS: dict[str, Callable[[], Any]] = {
    "analyze": _analyzed,
    "auto_shard": lambda: str(td.auto_shard(model(), {"tp": 2}, system()).plan()),
    "bind_dims": lambda: td.bind_dims(_symbolic(), {"n": 4}),
    "calibrate": _calibrated,
    "compare": lambda: json.dumps(td.compare(*[td.simulate(local(), system())] * 2).to_dict()),
    "check": _checked,
    "compile": lambda: td.run(td.compile(local()), values()),
    "deploy": _deployed,
    "device_mesh": lambda: str(td.device_mesh({"dp": 2, "tp": 2}, start=4)),
    "distribute": lambda: td.distribute(model(), make_plan(model(), "data_parallel", MESH)),
    "explain": lambda: str(td.explain(model(), make_plan(model(), "data_parallel", MESH), "x")),
    "export": lambda: td.export(local()).to_json(),
    "export_weights": _exported_weights,
    "export_plan": lambda: td.export_plan(
        model(), make_plan(model(), "data_parallel", MESH), "jax"
    ),
    "from_ccl": lambda: td.from_ccl(_exported(Mlp(2), "plain"), 2, dims={"rows": 6}),
    "from_exported_program": _from_torch,
    "from_jax": lambda: td.from_jax(_product, *TREES),
    "from_nn": _symbolic,
    "from_onnx": lambda: td.from_onnx(_onnx_model("Relu", 1)),
    "from_onnx of what is refused": _refused,
    "from_stablehlo": lambda: td.from_stablehlo(td.to_stablehlo(model())),
    "from_tvmscript": _saved,
    "generate": _generated,
    "jit": lambda: [
        td.jit(_product, {"tp": 1}, strategy="tensor_parallel")(*TREES)["y"],
    ],
    "learn": _learned,
    "load": lambda: td.load(folder() / "served", check=True).run(values(), engine="virtual"),
    "load_model": lambda: td.load_model("zoo:gpt?size=tiny,layers=1").mod,
    "measure": _measured,
    "merge_traces": _merged,
    "open_weights": _opened,
    "plan_storage": lambda: str(td.plan_storage(local())),
    "register_collective": lambda: td.register_collective("ring_of_threads", _Ring),
    "register_schedule": lambda: td.register_schedule("all_forward", _AllForward),
    "register_strategy": _planned,
    "run": lambda: td.run(local(), values(), engine="virtual"),
    "search": _searched,
    "search_fleet": _fleet,
    "search_serving": _serving_found,
    "serve_analyze": _served,
    "show": lambda: td.show(local()),
    "simulate": lambda: td.simulate(td.export(local()), system()).time_s,
    "sweep": _swept,
    "to_ccl": lambda: td.to_ccl(local(), emulate=True),
    "to_jax": _by_jax,
    "to_stablehlo": lambda: td.to_stablehlo(model()),
    "trace_ranks": _traced,
    "train_step": lambda: td.train_step(model(), "mse", "adam"),
    "train_step in stages": lambda: td.train_step(
        td.zoo.gpt(size="tiny", layers=2), schedule="1f1b:stages=2,micro_batches=2"
    ),
    "verify": lambda: str(td.verify(model(), make_plan(model(), "data_parallel", MESH)).equal),
    "visualize": lambda: str(td.visualize((8, 6), td.P("dp", "tp"), {"dp": 2, "tp": 2})),
}


SLOW = ("serve_analyze", "search_serving")
CASES = [*((name,) for name in CALLS if name not in SLOW), SLOW]
"""What threads call at once, in turn."""


def comparable(value: Any) -> Any:
    """Return what equal results have in common."""
    if isinstance(value, ir.IRModule):
        return value.script()
    if isinstance(value, list):
        return [np.asarray(v).tobytes() if hasattr(v, "shape") else v for v in value]
    return value


def test_every_public_function_is_called() -> None:
    public = [getattr(td, name) for name in td.__all__]
    called = {getattr(td, name.split()[0]) for name in CALLS}
    assert {f.__name__ for f in public if inspect.isfunction(f) and f not in called} == set()


def _state() -> dict[str, Any]:
    """What calls leave as it is in the process."""
    mask = os.umask(0o22)
    os.umask(mask)
    kept = os.environ.copy(), list(warnings.filters), mask, gc.isenabled(), os.getcwd(), os.fstat(2)
    names = ("environment", "warnings", "umask", "collector", "folder", "standard error")
    return dict(zip(names, kept, strict=True))


@pytest.mark.parametrize("names", CASES, ids=" and ".join)
def test_threads_get_what_one_gets(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Threads are first, so that what they share is not there yet."""
    pytest.importorskip(NEEDS.get(names[0].split()[0], "tvm"))
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    monkeypatch.setattr(timing, "_LEAST_S", 1e-4)
    monkeypatch.setattr(timing, "CACHE", folder())
    if names == ("from_exported_program",):
        torch_files()
    if names == ("generate",):
        serving_step()
    if names == ("trace_ranks",):
        importlib.import_module("torch._inductor.config")  # sets a variable of the environment
    begin, before, out = threading.Barrier(THREADS), _state(), sys.stdout

    def call(number: int) -> Any:
        begin.wait()
        return comparable(CALLS[names[number % len(names)]]())

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(call, range(THREADS)))
    printed = capsys.readouterr().out.splitlines()
    assert (_state(), sys.stdout) == (before, out)
    each = THREADS // len(names)
    assert results == [comparable(CALLS[name]()) for name in names] * each
    assert sorted(printed) == sorted(capsys.readouterr().out.splitlines() * each)


@contextlib.contextmanager
def _written() -> Iterator[None]:
    write_atomically(folder() / "whole", b"")
    yield


@pytest.mark.parametrize("scope", [one_thread, muted_stderr, warnings_ignored, _written])
def test_scopes_of_threads_leave_the_process_as_it_was(
    scope: Callable[[], contextlib.AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    folder()
    before = _state()

    def enter(_: int) -> None:
        with scope():
            time.sleep(1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(enter, range(400)))
    assert _state() == before


def test_builders_of_threads_are_separate() -> None:
    """A thread does not emit into the function that another one writes."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([2], "float32"))
    with builder.function("main", [x]):
        assert relax.BlockBuilder.current() is builder
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(relax.BlockBuilder.current).result() is None
        builder.emit_func_output(x)
    assert relax.BlockBuilder.current() is None
