#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Verify models under strategies and meshes, and print what each device holds, does and sends.

``scripts/checks/verify_models.py`` runs all; ``--set tensor|megatron|mesh|onnx`` some, ``--only
WORD``
the rows whose model holds the word, ``--no-run`` plans and counts without running. Every row is
one model distributed by one plan, run on the engine ``virtual`` and compared with a single device;
``--engine xla`` runs it by XLA:CPU instead (``--jax-python`` names where jax is).

"Of the bounds": weights a device holds and FLOPs it does, where tensor parallelism promises at most
1.1/n of the weights that have a dim for n devices and of the FLOPs that the rules can shard,
relative to that promise. The set "megatron" shows what the strategy of that name sends beside it;
its larger models are not run. Bytes are those a device sends; s is the time to plan and lower.
Exits 1 when a row is not equal, or over its bounds without a warning that says why.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import onnx
from tests.planning.strategies.weight_bounds import bounds_of
from tvm import ir

import tvm_distir as td
from tvm_distir.core.ops.dims import size_bytes
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.performance.simulation.result import Result
from tvm_distir.planning import strategies as strategy

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TENSOR = (
    ("tensor_parallel", {"tp": 2}),
    ("tensor_parallel", {"tp": 4}),
    ("tensor_parallel", {"tp": 8}),
    ("data_parallel+tensor_parallel", {"dp": 2, "tp": 2}),
)
ZOO = (
    "zoo:gpt?size=tiny,batch=8",
    "zoo:llama?size=tiny,batch=8",
    "zoo:bert?size=tiny,batch=8",
    "zoo:bert?size=tiny,head=classify,batch=8",
    "zoo:vit?size=tiny,batch=8",
    "zoo:moe?size=tiny,batch=8",
    "zoo:unet?size=tiny,batch=8",
    "zoo:resnet?size=tiny,batch=8",
)
DP_TP = "data_parallel+tensor_parallel"
TRANSFORMER = (
    (DP_TP, {"dp": 2, "tp": 2}),
    (DP_TP, {"dp": 3, "tp": 2}),
    ("data_parallel:axis=pod+data_parallel+tensor_parallel", {"pod": 2, "dp": 2, "tp": 2}),
)
EXPERTS = (
    ("data_parallel+expert_parallel", {"dp": 2, "ep": 2}),
    ("data_parallel+expert_parallel", {"dp": 3, "ep": 2}),
    ("expert_parallel+tensor_parallel", {"ep": 2, "tp": 2}),
    ("expert_parallel+tensor_parallel", {"ep": 4, "tp": 2}),
    ("data_parallel+expert_parallel+tensor_parallel", {"dp": 2, "ep": 2, "tp": 2}),
)
IMAGES = (
    (DP_TP, {"dp": 2, "tp": 2}),
    ("data_parallel+spatial_parallel", {"dp": 2, "sp": 2}),
    ("data_parallel+spatial_parallel", {"dp": 3, "sp": 2}),
    ("data_parallel+spatial_parallel+tensor_parallel", {"dp": 2, "sp": 2, "tp": 2}),
    (
        "data_parallel+spatial_parallel:axis=y+spatial_parallel:axis=x,dim=3",
        {"dp": 2, "y": 2, "x": 2},
    ),
)
MESHES = (
    ("zoo:gpt?size=gpt2,layers=2,hidden=192,heads=12,vocab=1009,batch=12,seq=64", TRANSFORMER),
    ("zoo:llama?size=tiny,hidden=128,batch=12,seq=64", TRANSFORMER),
    ("zoo:moe?size=tiny,hidden=128,batch=12,seq=64", EXPERTS),
    ("zoo:vit?size=tiny,hidden=128,image=64,batch=12", TRANSFORMER),
    ("zoo:unet?size=tiny,channels=32,image=32,batch=12", IMAGES),
    ("zoo:resnet?size=resnet50,image=64,classes=100,batch=12", IMAGES),
)
DECODERS = (
    ("zoo:gpt?size=tiny,batch=8", True),
    ("zoo:llama?size=tiny,batch=8", True),
    ("zoo:gpt?size=gpt2,batch=8,seq=1024", False),
    ("zoo:llama?size=8b,layers=4,batch=8,seq=2048", False),
)
"""Models, and whether they are small enough to run."""
AGAINST_MEGATRON = ("tensor_parallel", "tensor_parallel:slack=1", "megatron")
ONNX_BATCH = 4
BOUND = 1.1
SYSTEM = "dgx-a100"


@dataclass(frozen=True)
class Case:
    """One row: a model, a strategy, a mesh."""

    model: str
    strategy: str
    mesh: dict[str, int]
    batch: int | None = None
    run: bool = True


def cases(which: str) -> Iterator[Case]:
    """Yield the rows of a set."""
    if which in ("tensor", "all"):
        yield from (Case(model, *plan) for model in ZOO for plan in TENSOR)
    if which in ("megatron", "all"):
        for model, run in DECODERS:
            yield from (Case(model, text, {"tp": 4}, run=run) for text in AGAINST_MEGATRON)
    if which in ("mesh", "all"):
        yield from (Case(model, *plan) for model, plans in MESHES for plan in plans)
    if which in ("onnx", "all"):
        for path in sorted(LIGHT.glob("light_*.onnx")):
            for text, mesh in TENSOR:
                yield Case(str(path), text, mesh, max(ONNX_BATCH, *mesh.values()))


def held_bytes(mod: ir.IRModule, lowered: ir.IRModule) -> int:
    """Bytes of the weights that a device holds."""
    data = data_positions(mod["main"])
    main = lowered["main"]
    pairs = zip(main.attrs["dist.io"]["inputs"], main.params, strict=True)
    return sum(
        size_bytes(tuple(int(n) for n in param.ty.shape), str(param.ty.dtype))
        for item, param in pairs
        if int(item["index"]) not in data
    )


def shares(
    mod: ir.IRModule, lowered: ir.IRModule, result: Result, mesh: dict[str, int]
) -> tuple[float, float]:
    """Weights held and FLOPs done per device, relative to the bounds of tensor parallelism."""
    bounds = bounds_of(mod, mesh["tp"])
    others = math.prod(mesh.values()) // mesh["tp"]
    whole = sum(bounds.unsharded_flops.values())
    alone = sum(device.flops for device in simulated(mod, "data_parallel", {"dp": 1}).devices)
    allowed = (whole + BOUND * (alone - whole) / mesh["tp"]) / others
    worked = max(device.flops for device in result.devices)
    return held_bytes(mod, lowered) / bounds.param_bytes, worked / allowed


def simulated(mod: ir.IRModule, text: str, mesh: dict[str, int]) -> Result:
    """Simulate a module under a strategy."""
    lowered = td.distribute(mod, strategy.make_plan(mod, text, mesh))
    result: Result = td.simulate(td.export(lowered), td.System.load(SYSTEM))
    return result


def row(case: Case, run: bool, engine: Engine | str) -> tuple[list[str], bool]:
    """Cells of a row, and whether it holds."""
    model = td.load_model(case.model, batch=case.batch)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        plan = strategy.make_plan(model.mod, case.strategy, case.mesh)
    lowered = td.distribute(model.mod, plan)
    built_s = time.perf_counter() - start
    result = td.simulate(td.export(lowered), td.System.load(SYSTEM))
    good, verdict, bound = not result.unmodelled_ops, "not run", "-"
    if run:
        report = td.verify(model.mod, plan, engine=engine, dist=lowered)
        good = good and bool(report.equal)
        verdict = f"equal ({report.max_rel_diff:.0e})" if report.equal else "DIFFERENT"
    if list(case.mesh) in (["tp"], ["dp", "tp"]):
        stored, worked = shares(model.mod, lowered, result, case.mesh)
        good = good and (max(stored, worked) <= 1 or bool(message) or case.strategy == "megatron")
        bound = f"{stored:.1%}, {worked:.1%}" + " (warned)" * bool(message)
    moved = [f"{c.count} {c.kind}/{c.mesh_axis}" for c in result.collectives]
    sent = sum(c.wire_bytes_per_device for c in result.collectives)
    mesh = ", ".join(f"{axis}={size}" for axis, size in case.mesh.items())
    title = Path(case.model).stem if model.kind == "onnx" else case.model.removeprefix("zoo:")
    cells = [title, case.strategy, mesh, verdict, bound, f"{sent:,}", ", ".join(moved)]
    return [*cells, f"{built_s:.1f}"], good


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--set", choices=("tensor", "megatron", "mesh", "onnx", "all"), default="all"
    )
    parser.add_argument("--only", default="", help="rows whose model holds this word")
    parser.add_argument("--no-run", action="store_true", help="plan and count, without running")
    parser.add_argument("--engine", choices=("virtual", "xla"), default="virtual")
    parser.add_argument("--jax-python", default=sys.executable, help="of the engine xla")
    args = parser.parse_args()
    engine = XlaEngine(args.jax_python) if args.engine == "xla" else args.engine
    heads = ("model", "strategy", "mesh", "result", "of the bounds", "bytes sent", "collectives")
    print(f"| {' | '.join(heads)} | s |")
    print("|" + "---|" * (len(heads) + 1))
    wrong, count = [], 0
    for case in cases(args.set):
        if args.only not in case.model:
            continue
        count += 1
        try:
            cells, good = row(case, case.run and not args.no_run, engine)
        except td.support.DistIRError as error:
            cells, good = [case.model, case.strategy, str(case.mesh), f"ERROR {error}"], False
        print(f"| {' | '.join(cells)} |", flush=True)
        wrong += [] if good else [f"{case.model} {case.strategy} {case.mesh}"]
    print(f"\n{count} rows, {len(wrong)} wrong")
    for each in wrong:
        print(f"wrong: {each}")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
