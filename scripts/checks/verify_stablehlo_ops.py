# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls that validate sharding rules, written as StableHLO and run by XLA:CPU, against TVM.

``python scripts/checks/verify_stablehlo_ops.py [WORD ...] [--jax-python PYTHON]``: calls whose
name begins
with a word, all without one. Prints what differs and how often which op has no form in StableHLO.
Exits with 1 where a result differs.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.core.ops.rule_cases.all_cases import TABLE

import tvm_distir as td
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.rewriting.calls import leaves_of
from tvm_distir.execution.rule_validation.draws import small
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.xla.process import XlaProcess, running
from tvm_distir.support.errors.tree import DistIRError

_TOLERANCE, _TOLERANCE_HALF = 1e-4, 2e-2


def module_of(case: Any) -> Any:
    """A module whose main is the call of a case."""
    leaves = [leaf for arg in case.call.args for leaf, _, _ in leaves_of(arg)]
    params = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, relax.Var)))
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(case.call)
        builder.emit_func_output(output)
    return builder.get()


def drawn(case: Any, params: Any) -> list[Any]:
    """Inputs as the case draws them."""
    rng, result = np.random.default_rng(0), []
    for index, param in enumerate(params):
        kind = str(getattr(param.ty.dtype, "dtype", param.ty.dtype))
        shape = tuple(int(n) for n in param.ty.shape.values)
        array = np.asarray(case.draws.get(index, small)(rng, shape))
        result.append(array.astype(getattr(ml_dtypes, kind, kind)))
    return result


def gap(matches: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest number."""
    worst = 0.0
    for a, b in zip(matches, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        x, y = a.astype("float64"), b.astype("float64")
        finite = np.isfinite(y)
        if (np.isfinite(x) != finite).any():
            return float("inf")
        if finite.any():
            worst = max(
                worst, float(np.abs(x - y)[finite].max() / (np.abs(y)[finite].max() + 1e-6))
            )
    return worst


def known_type(ty: Any) -> str:
    """Name of the type of a tensor's elements."""
    return str(getattr(ty.dtype, "dtype", ty.dtype))


def outcome(case: Any, worker: XlaProcess) -> tuple[str, str]:
    """What became of a case, and why."""
    mod = module_of(case)
    try:
        text = td.to_stablehlo(mod)
    except DistIRError:
        return "no form", str(case.call.op.name)
    inputs = drawn(case, mod["main"].params)
    try:
        expected = Reference(mod).run(inputs)
    except DistIRError:
        return "no kernel of TVM", case.name
    declared = [known_type(ty) for ty in flat_types(mod["main"].ret_ty)]
    if [str(array.dtype) for array in expected] != declared:
        return "TVM gives another type", case.name
    try:
        result, _ = worker.run(text, inputs, 1, True)
    except DistIRError as error:
        return "ERROR", f"{case.name}: {error}"[:300]
    half = any("16" in str(array.dtype) for array in inputs)
    distance = gap(result, expected)
    if distance <= (_TOLERANCE_HALF if half else _TOLERANCE):
        return "equal", ""
    return "DIFFERS", f"{case.name}: {distance:.1e}"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jax-python", default=sys.executable)
    options = parser.parse_args()
    worker = running(options.jax_python, 1)
    counts: collections.Counter[str] = collections.Counter()
    without: collections.Counter[str] = collections.Counter()
    with tvm.target.Target({"kind": "llvm", "opt-level": 0}):
        for case in TABLE:
            if options.words and not case.name.startswith(tuple(options.words)):
                continue
            kind, why = outcome(case, worker)
            counts[kind] += 1
            if kind in ("ERROR", "DIFFERS"):
                print(f"{kind} {why}", flush=True)
            elif kind == "no form":
                without[why.removeprefix("relax.")] += 1
    print(dict(counts))
    print("no form:", ", ".join(f"{name} {n}" for name, n in without.most_common()))
    return 1 if counts["ERROR"] + counts["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
