# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX through our reader, passes, writer and XLA:CPU, all against JAX's results.

``python scripts/verify_stablehlo.py FOLDER [NAME ...] [--jax-python PYTHON]``, where FOLDER is what
``jax_programs.py`` wrote. Each program is read and run by TVM on one device, distributed over
(dp=2, tp=2), written at the levels 1, 2, 3 and 5 (5m: as a manual computation) and run by XLA. Ends
with a table: our collectives, those that XLA compiled from them, and those that XLA's partitioner
chose for the annotated module. Exits with 1 where a result differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm

import tvm_distir as td
from tvm_distir import transform
from tvm_distir.errors import DistIRError
from tvm_distir.frontend.mlir import parse_module
from tvm_distir.frontend.stablehlo.names import Names
from tvm_distir.runtime import Reference
from tvm_distir.runtime.engines.xla import XlaEngine
from tvm_distir.runtime.engines.xla.process import running
from tvm_distir.verification import claimed_collectives

_MESH = {"dp": 2, "tp": 2}
_STRATEGIES = ("data_parallel+tensor_parallel", "data_parallel", "tensor_parallel")
_DATA = ("data", "ids", "x", "token", "place", "t", "cache")
_QUICK = {"kind": "llvm", "opt-level": 0}
_TOLERANCE, _TOLERANCE_HALF = 5e-4, 4e-2


def titles_of(text: str) -> list[str]:
    """Names of a program's arguments, in order."""
    tree = parse_module(text)
    main = next(op for op in tree.operations if op.attributes.get("sym_name") == "main")
    return Names(tree.locations, None, "").of(main).titles


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference, as a share of the largest number of each result."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        a, b = np.asarray(one, "float64"), np.asarray(other, "float64")
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        if a.size:
            worst = max(worst, float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) + 1e-6)))
    return worst


def planned(mod: Any) -> tuple[str, Any]:
    """The first strategy that finds in the module what it needs, and its plan."""
    for name in _STRATEGIES:
        axes = {k: n for k, n in _MESH.items() if k == "dp" or "tensor" in name}
        axes = {k: n for k, n in axes.items() if k == "tp" or "data" in name}
        try:
            plan = td.strategy.make_plan(mod, name, axes)
            transform.AnnotateSharding(plan)(mod)
            return name, plan
        except DistIRError:
            continue
    raise SystemExit("no strategy")


def summed(claims: Sequence[Any]) -> dict[str, int]:
    """Our collectives by the names of XLA's."""
    found: dict[str, int] = {}
    for claim in claims:
        kind = claim.kind.replace("_", "-")
        found[kind] = found.get(kind, 0) + claim.count[1]
    return found


def listed(counts: dict[str, int]) -> str:
    """Counts in a line."""
    return ", ".join(f"{kind} {counts[kind]}" for kind in sorted(counts)) or "none"


def check(folder: Path, name: str, python: str) -> tuple[bool, str]:
    """Check one program; whether all is equal, and its row of the table."""
    text = (folder / f"{name}.mlir").read_text(encoding="utf-8")
    titles = titles_of(text)
    data = [title for title in titles if title.partition(".")[0] in _DATA]
    mod = td.from_stablehlo(text, data=data)
    with np.load(folder / f"{name}.npz") as held:
        arrays = dict(held)
    order = [titles.index(str(n)) for n in mod["main"].attrs["dist.param_names"]]
    inputs = []
    for index, param in zip(order, mod["main"].params, strict=True):
        kind = str(getattr(param.ty.dtype, "dtype", param.ty.dtype))
        inputs.append(arrays[f"in:{index}"].astype(getattr(ml_dtypes, kind, kind)))
    wanted = [arrays[f"out:{i}"] for i in range(len(arrays) - len(inputs))]
    strategy, plan = planned(mod)
    annotated = transform.AnnotateSharding(plan)(mod)
    local = td.distribute(mod, plan)
    forms: dict[str, tuple[Any, str]] = {
        "1": (mod, "auto"),
        "2": (annotated, "auto"),
        "3": (transform.PropagateSharding()(annotated), "auto"),
        "5m": (local, "manual"),
    }
    devices = plan.meshes[0].device_mesh().device_range.extent
    worker, engine = running(python, int(devices)), XlaEngine(python)
    found = {"tvm": difference(Reference(mod).run(inputs), wanted)}
    chosen: dict[str, dict[str, int]] = {}
    for level, (module, form) in forms.items():
        try:
            written = td.to_stablehlo(module, form)
        except DistIRError as error:
            if level == "5m" and "equal shards" in str(error):
                continue  # uneven shards have the form of replicas only
            raise
        count = 1 if level == "1" else int(devices)
        results, chosen[level] = worker.run(written, inputs, count, level == "1")
        found[level] = difference(results, wanted)
    found["5"] = difference(engine.run(local, inputs), wanted)
    tolerance = _TOLERANCE_HALF if "half" in name else _TOLERANCE
    bad = [level for level, gap in found.items() if not gap <= tolerance]
    told = " ".join(f"{level} {gap:.0e}" for level, gap in found.items())
    print(f"{name:24s} {'DIFFERS ' + str(bad) if bad else 'equal'}: {told}", flush=True)
    ours = listed(summed(claimed_collectives(td.export(local))))
    row = f"| {name} | {strategy} | {ours} | {listed(engine.compiled)} | {listed(chosen['2'])} |"
    return not bad, row


def main() -> int:
    """Check all programs of a folder, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jax-python", default=sys.executable)
    arguments = parser.parse_args()
    names = arguments.names or sorted(path.stem for path in arguments.folder.glob("*.mlir"))
    rows, wrong, begin = [], [], time.process_time()
    with tvm.target.Target(_QUICK):
        for name in names:
            try:
                good, row = check(arguments.folder, name, arguments.jax_python)
                rows.append(row)
            except DistIRError as error:
                good = False
                print(f"{name:24s} REFUSED: {error}", flush=True)
            if not good:
                wrong.append(name)
    titles = "program", "strategy", "ours", "ours, compiled by XLA", "XLA's partitioner"
    print(f"\n| {' | '.join(titles)} |\n|---|---|---|---|---|", *rows, sep="\n")
    took = time.process_time() - begin
    print(f"\n{len(names)} programs, {len(wrong)} wrong {wrong}, {took:.0f} s of CPU here")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
