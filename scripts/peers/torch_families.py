#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import families of models of `transformers` and distribute them.

    scripts/peers/torch_families.py [FAMILY...] [--decode] [--prefill] [--archive] [--no-plans]
                                    [--markdown]

Each is built from a small configuration with random weights (nothing is downloaded), exported,
imported, compared with torch, and distributed over four devices by data_parallel, tensor_parallel
and both, each verified. ``--decode``: also one token behind a cache, for those that generate, whose
logits are those of the model without a cache; alone without ``--prefill``. ``--archive``: the model
itself, without a wrapper, by ``torch.export.save`` and back from the file, with all tensors of its
output, as the documentation of `transformers` says; alone too. ``--markdown`` prints
the table of `docs/torch.md`. Needs the extra `torch` and the package `transformers`. Exits with 1
where anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from torch_family_models import DECODES, FAMILIES, build, decode, prefill, sample_inputs
from tvm.relax import Function

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.models.frontends import load_weights
from tvm_distir.support.errors.tree import DistIRError

PLANS = {
    "data_parallel": {"dp": 4},
    "tensor_parallel": {"tp": 4},
    "data_parallel+tensor_parallel": {"dp": 2, "tp": 2},
}
TOLERANCE = 1e-5
QUICK = {"kind": "llvm", "opt-level": 0}
HEADS = ("family", "form", "import", "bindings", "layers", "error", *PLANS)


def judge(name: str, form: str, plans: bool) -> tuple[bool, list[str]]:
    """Import, compare and distribute one family; whether all is equal, and its row."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "archive":
            model, passed = build(name), sample_inputs(name)
            options = {"use_cache": False} if name in DECODES else {}
            values = tuple(passed.values())
            output = model(**passed, **options)
            leaves = torch.utils._pytree.tree_leaves(tuple(output.values()))
            expected = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            program = torch.export.export(model, (), {**passed, **options})
        else:
            model, values = (prefill if form == "prefill" else decode)(name)
            expected = model(*values)
            program = torch.export.export(model, values)
    source: Any = program
    if form == "archive":
        source = Path(tempfile.mkdtemp()) / f"{name}.pt2"
        torch.export.save(program, source)
    start_s = time.process_time()
    flat = td.from_exported_program(source)
    took_s = time.process_time() - start_s
    mod = td.transforms.OutlineRepeatedLayers()(flat)
    weights = load_weights(source)
    names = [str(n) for n in flat["main"].attrs["dist.param_names"]][len(values) :]
    inputs = [value.numpy() for value in values] + [weights[n] for n in names]
    expected = expected if isinstance(expected, tuple) else (expected,)
    result = Reference(flat).run(inputs)
    error = max(_distance(a, b.numpy()) for a, b in zip(result, expected, strict=True))
    good, verdicts = error <= TOLERANCE, []
    for text, mesh in PLANS.items() if plans else ():
        try:
            plan = td.planning.make_plan(mod, text, mesh)
            equal = td.verify(mod, plan, inputs=inputs, locate=False).equal
            verdicts.append("equal" if equal else "DIFFERS")
        except DistIRError as fault:
            equal = False
            verdicts.append(f"{fault.code} {fault.location}")
        good &= equal
    row = [name, form, f"{took_s:.1f} s", str(count(flat["main"])), layers(mod), f"{error:.0e}"]
    return bool(good), [*row, *verdicts]


def _distance(matches: Any, expected: Any) -> float:
    scale = max(float(np.abs(expected).max()), 1e-6)
    return float(np.abs(np.asarray(matches) - expected).max()) / scale


def layers(mod: Any) -> str:
    """Functions of a module beside ``main``: calls of each, and its bindings."""
    functions = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
    calls = [
        str(b.value.op.name_hint)
        for fn in functions.values()
        if isinstance(fn, Function)
        for block in fn.body.blocks
        for b in block.bindings
        if isinstance(b.value, tvm.ir.Call) and isinstance(b.value.op, tvm.ir.GlobalVar)
    ]
    matches = [n for n, fn in functions.items() if n != "main" and isinstance(fn, Function)]
    return ", ".join(f"{calls.count(n)} x {n} ({count(functions[n])})" for n in matches) or "-"


def count(fn: Any) -> int:
    """How many bindings a function has."""
    return sum(len(block.bindings) for block in fn.body.blocks)


def main() -> int:
    """Judge the families asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--decode", action="store_true", help="one token behind a cache")
    parser.add_argument("--prefill", action="store_true", help="all tokens; without --decode too")
    parser.add_argument("--archive", action="store_true", help="models without a wrapper, as .pt2")
    parser.add_argument("--no-plans", action="store_true", help="import and compare only")
    parser.add_argument("--markdown", action="store_true", help="rows of a table in Markdown")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.families if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; known: {', '.join(FAMILIES)}")
    names = arguments.families or list(FAMILIES)
    others = arguments.decode or arguments.archive
    forms = [(n, "prefill") for n in names if arguments.prefill or not others]
    if arguments.archive:
        forms += [(n, "archive") for n in names]
    if arguments.decode:
        forms += [(n, "decode") for n in names if n in DECODES]
    edge = "| {} |" if arguments.markdown else "{}"
    print(edge.format(" | ".join(HEADS)))
    if arguments.markdown:
        print("|" + "---|" * len(HEADS))
    good = True
    with tvm.target.Target(QUICK):
        for name, form in sorted(forms, key=lambda single: names.index(single[0])):
            equal, row = judge(name, form, not arguments.no_plans)
            good &= equal
            print(edge.format(" | ".join(row)), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
