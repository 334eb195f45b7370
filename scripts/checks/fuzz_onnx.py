#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import random ONNX models of NNSmith, and compare with ONNX Runtime on one device and several.

Usage: scripts/checks/fuzz_onnx.py [--models N] [--seed S] [--jobs J] [--limit-s S] [--keep DIR]
Needs the extra `fuzz`. Model K follows from the seed S + K alone. It runs on one device; where that
gives what ONNX Runtime does, it is distributed by four plans and run on the engine `virtual`.
Prints each failure, then a table: per stage, how many models were equal, refused by each code, or
failed. With --keep, models that failed are written to DIR with their inputs, and all outcomes to
outcomes.jsonl there.

`no proof` means that nothing could be compared: the reference is NaN or Inf where the results
differ, depends on an undefined operation, or is decided by rounding. Exits 1 when a model gave
other numbers, raised anything but a DistIRError, or gave no answer.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from case_workers import run_cases
from fuzz_onnx_models import Array, Example, example, prepare
from tests.models.node_cases import BAD, NodeCase, Outcome, failed, given, share

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.planning import strategies as strategy

RTOLS = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
"""Of an element, and of the largest magnitude of its output."""

SPREADS = 8.0
"""So many times the spread of the reference are allowed."""

LOOSEST = 0.05
"""An element with a wider tolerance, relative to the largest magnitude, proves nothing."""


def plans(mod: Any) -> Iterator[tuple[str, Any]]:
    """Names of plans, and what makes each."""
    tensors = [(str(p.name), tuple(map(int, p.ty.shape))) for p in mod["main"].params]
    placed = [(name, shape) for name, shape in tensors if shape]
    if not placed:
        return
    first, shape = placed[0]
    widest = max(range(len(shape)), key=shape.__getitem__)
    both = [(name, "S[0], S[1]" if len(s) > 1 else "S[0], R") for name, s in placed]
    by_rules = {
        "batch dp=2": ({"dp": 2}, [(first, "S[0]")]),
        "widest dim a=3": ({"a": 3}, [(first, f"S[{widest}]")]),
        "all dp=2,tp=2": ({"dp": 2, "tp": 2}, both),
    }
    for name, (mesh, placements) in by_rules.items():
        rules = [{"param": param, "placement": text} for param, text in placements]
        plan = {"schema_version": 1, "mesh": mesh, "rules": rules}
        yield name, lambda plan=plan: td.Plan.from_dict(plan)
    yield "tensor_parallel tp=2", lambda: strategy.make_plan(mod, "tensor_parallel", {"tp": 2})


def compared(stage: str, want: Example, results: Sequence[Array]) -> Outcome:
    """Judge results: types and shapes, then what of the values can be compared."""
    if len(results) != len(want.outputs):
        return Outcome(stage, "WRONG", "", f"{len(results)} results, not {len(want.outputs)}")
    judged, excuse = 0, ""
    for number, (got, ref) in enumerate(zip(results, want.outputs, strict=True)):
        have, need = f"{got.dtype}{list(got.shape)}", f"{ref.dtype}{list(ref.shape)}"
        if have != need:
            return Outcome(stage, "WRONG", "", f"result {number} is {have}, not {need}")
        a, b = np.asarray(got, "float64"), np.asarray(ref, "float64")
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = RTOLS.get(str(ref.dtype), 0.0) * (np.abs(b) + largest)
            allowed = allowed + SPREADS * want.spreads[number]
            same = (a == b) | (np.abs(a - b) <= allowed) | (np.isnan(a) & np.isnan(b))
        sharp = np.isfinite(b) & (allowed <= LOOSEST * largest)
        if (~same & sharp).any():
            index = tuple(int(i) for i in np.argwhere(~same & sharp)[0])
            message = f"result {number} at {list(index)} is {a[index]:.6g}, not {b[index]:.6g}"
            return Outcome(
                stage, "no proof" if want.undefined else "WRONG", want.undefined, message
            )
        if not same.all():
            excuse = "NaN or Inf" if (~same & ~np.isfinite(b)).any() else excuse or "rounding"
        judged += int(sharp.sum())
    if excuse or not judged:
        return Outcome(stage, "no proof", excuse or "nothing to judge")
    return Outcome(stage, "equal")


def check(seed: int) -> Iterator[Outcome]:
    """Give the outcome of each stage of a model."""
    try:
        case = example(seed)
    except RuntimeError as error:
        yield Outcome("reference", "unusable", "", str(error))
        return
    yield Outcome("reference", "made", "", " ".join(n.op_type for n in case.model.graph.node))
    node_case = NodeCase("", case.model, tuple(case.inputs.values()), case.outputs, 0.0, 0.0)
    quick = tvm.target.Target({"kind": "llvm", "opt-level": 0})  # compiling is what takes time
    with quick, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mod = td.from_onnx(case.model)
            arrays = given(node_case, mod)
            alone = Reference(mod).run(arrays)
            outcome = compared("one device", case, alone)
        except Exception as error:
            outcome = failed("one device", error)
        yield outcome
        if outcome.kind in ("refused", *BAD):
            return
        case = replace(case, outputs=tuple(alone))
        for stage, make in plans(mod):
            try:
                program = td.distribute(mod, make())
                outcome = compared(stage, case, td.run(program, arrays, engine="virtual"))
                if outcome.kind == "equal":
                    outcome = replace(outcome, code=share(program))
                yield outcome
            except Exception as error:
                yield failed(stage, error)


def keep(folder: Path, seed: int, outcomes: Sequence[Outcome]) -> None:
    """Write the model of a seed, its inputs and what became of it."""
    case = example(seed)
    onnx.save(case.model, str(folder / f"{seed}.onnx"))
    np.savez(folder / f"{seed}.npz", **case.inputs)
    text = "".join(f"{' | '.join(outcome.as_dict().values())}\n" for outcome in outcomes)
    (folder / f"{seed}.txt").write_text(text, encoding="utf-8")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", type=int, default=400, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2)
    parser.add_argument("--limit-s", type=float, default=120.0, help="per model")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="for models that failed")
    options = parser.parse_args()
    prepare()
    counts: dict[str, collections.Counter[tuple[str, str]]] = collections.defaultdict(
        collections.Counter
    )
    start, bad = time.monotonic(), 0
    for number, outcomes in run_cases(
        lambda number: check(options.seed + number),
        options.models,
        options.jobs,
        options.limit_s,
        reuse=False,
    ):
        seed = options.seed + number
        if outcomes[0].kind in ("CRASH", "HANG"):  # before any code of ours
            outcomes = [replace(outcomes[0], stage="reference", kind="unusable")]
        failures = [outcome for outcome in outcomes if outcome.kind in BAD]
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            with (options.keep / "outcomes.jsonl").open("a", encoding="utf-8") as log:
                for outcome in outcomes:
                    log.write(json.dumps({"seed": seed, **outcome.as_dict()}) + "\n")
        for outcome in outcomes:
            counts[outcome.stage][outcome.kind, outcome.code] += 1
        for outcome in failures:
            print(seed, *outcome.as_dict().values(), sep=" | ", flush=True)
        bad += bool(failures)
        if failures:
            print(f"{seed} | {outcomes[0].message}", flush=True)
            if options.keep:
                keep(options.keep, seed, outcomes)
    for stage, counted in counts.items():
        print(f"{stage}: {sum(counted.values())}")
        for (kind, code), n in sorted(counted.items()):
            print(f"{n:8d}  {kind} {code}")
    print(f"{options.models} models in {time.monotonic() - start:.0f} s, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
