# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX through our reader, passes, writer and XLA:CPU, all against JAX's results.

``python scripts/checks/verify_stablehlo.py FOLDER [NAME ...] [--jax-python PYTHON]``, where
FOLDER is what
``jax_programs.py`` wrote. Each program is read and run by TVM on one device, distributed over
(dp=2, tp=2), written at the levels 1, 2, 3 and 5 (5m: as a manual computation) and run by XLA. Ends
with a table: our collectives, those that XLA compiled from them, and those that XLA's partitioner
chose for the annotated module, counted as all-gather / all-reduce / reduce-scatter / all-to-all /
collective-permute, and the KiB that a device sends for them, by one formula for all three
(``tvm_distir.core.collectives.volume.sent_bytes``). Exits with 1 where a result differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.collectives.volume import sent_bytes
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.execution.runtime.engines.xla.process import XlaCollective, running
from tvm_distir.models.mlir.parser import parse_module
from tvm_distir.models.stablehlo.argument_names import ArgumentNames
from tvm_distir.support.errors.tree import DistIRError

_MESH = {"dp": 2, "tp": 2}
_STRATEGIES = ("data_parallel+tensor_parallel", "data_parallel", "tensor_parallel")
_DATA = ("data", "ids", "x", "token", "place", "t", "cache")
_QUICK = {"kind": "llvm", "opt-level": 0}
_KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")
_TOLERANCE, _TOLERANCE_HALF = 5e-4, 4e-2


def titles_of(text: str) -> list[str]:
    """Names of a program's arguments, in order."""
    tree = parse_module(text)
    main = next(op for op in tree.operations if op.attributes.get("sym_name") == "main")
    return ArgumentNames(tree.locations, None, "").of(main).titles


def difference(matches: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference, as a share of the largest number of each result."""
    worst = 0.0
    for left, other in zip(matches, expected, strict=True):
        a, b = np.asarray(left, "float64"), np.asarray(other, "float64")
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        if a.size:
            worst = max(worst, float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) + 1e-6)))
    return worst


def planned(mod: Any) -> Any:
    """The plan of the first strategy that finds in the module what it needs."""
    for name in _STRATEGIES:
        axes = {k: n for k, n in _MESH.items() if k == "dp" or "tensor" in name}
        axes = {k: n for k, n in axes.items() if k == "tp" or "data" in name}
        try:
            plan = td.planning.make_plan(mod, name, axes)
            transform.AnnotateSharding(plan)(mod)
            return plan
        except DistIRError:
            continue
    raise SystemExit("no strategy")


def ours(local: Any) -> str:
    """Cells of the collectives of a lowered module."""
    result = td.simulate(td.export(local), td.System.load("dgx-a100")).collectives
    counts: Counter[str] = Counter()
    for each in result:
        counts[each.kind] += each.count
    return cells(counts, sum(each.wire_bytes_per_device for each in result))


def theirs(matches: Sequence[XlaCollective]) -> str:
    """Cells of what XLA compiled."""
    kinds = [each.kind.replace("-", "_") for each in matches]
    sizes = [sent_bytes(k, o.result_bytes, o.ranks) for k, o in zip(kinds, matches, strict=True)]
    return cells(Counter(kinds), sum(sizes))


def cells(counts: Mapping[str, int], sent_bytes: int) -> str:
    """Counts by kind, and what a device sends."""
    rest = sorted(set(counts) - set(_KINDS))
    reported = " / ".join(str(counts.get(kind, 0)) for kind in (*_KINDS, *rest))
    return f"{reported}{f' ({rest})' if rest else ''} | {sent_bytes / 1024:.1f}"


def check(folder: Path, name: str, python: str) -> tuple[bool, str]:
    """Check one program; whether all is equal, and its row of the table."""
    text = (folder / f"{name}.mlir").read_text(encoding="utf-8")
    titles = titles_of(text)
    data = [title for title in titles if title.partition(".")[0] in _DATA]
    mod = td.from_stablehlo(text, data=data)
    with np.load(folder / f"{name}.npz") as stored:
        arrays = dict(stored)
    order = [titles.index(str(n)) for n in mod["main"].attrs["dist.param_names"]]
    inputs = []
    for index, param in zip(order, mod["main"].params, strict=True):
        kind = str(getattr(param.ty.dtype, "dtype", param.ty.dtype))
        inputs.append(arrays[f"in:{index}"].astype(getattr(ml_dtypes, kind, kind)))
    expected = [arrays[f"out:{i}"] for i in range(len(arrays) - len(inputs))]
    plan = planned(mod)
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
    matches = {"tvm": difference(Reference(mod).run(inputs), expected)}
    chosen: dict[str, list[XlaCollective]] = {}
    for level, (module, form) in forms.items():
        try:
            output = td.to_stablehlo(module, form)
        except DistIRError as error:
            if level == "5m" and "equal shards" in str(error):
                continue  # uneven shards have the form of replicas only
            raise
        count = 1 if level == "1" else int(devices)
        results, chosen[level] = worker.run(output, inputs, count, level == "1")
        matches[level] = difference(results, expected)
    matches["5"] = difference(engine.run(local, inputs), expected)
    tolerance = _TOLERANCE_HALF if "half" in name else _TOLERANCE
    bad = [level for level, gap in matches.items() if not gap <= tolerance]
    reported = " ".join(f"{level} {gap:.0e}" for level, gap in matches.items())
    print(f"{name:24s} {'DIFFERS ' + str(bad) if bad else 'equal'}: {reported}", flush=True)
    found_cells = [ours(local), theirs(engine.ran), theirs(chosen["2"])]
    return not bad, f"| `{name}` | {' | '.join(found_cells)} |"


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
    titles = "program", "ours", "ours, as XLA compiled them", "XLA's partitioner"
    print(f"\n| {' | KiB | '.join(titles).replace('KiB | ', '', 1)} | KiB |")
    print("|---|---|--:|---|--:|---|--:|", *rows, sep="\n")
    elapsed = time.process_time() - begin
    print(f"\n{len(names)} programs, {len(wrong)} wrong {wrong}, {elapsed:.0f} s of CPU here")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
