#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every zoo model at every level, written in every form and read again.

``python scripts/checks/round_trip.py [NAME ...]``. TVMScript and TVM's JSON hold a module of any
level: what is read must be structurally equal to what was written. So must StableHLO with
shardings of Shardy (``sdy``) and in MLIR's dialect ``shard`` at levels 1 and 2, rebindings
(``lv1 = lv``) and the notes of the compiler ``dist.stationary``, ``dist.open_axes`` and
``dist.partial`` apart. At the other levels StableHLO holds less:

* Modules of levels 3 and 4 are read as level 2: the texts have placements of values, not the steps
  that lead to them. Without placements all that is computed must be equal, and what is read must
  be read as itself once more.
* Modules of level 5, in the dialect ``shard`` and as ``manual`` computations where shards are
  even, are compared by their results, which must have the same bits.

Exits with 1 where something differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import level_of
from tvm_distir.core.analysis.names import LEVELS
from tvm_distir.core.ir.attributes.keys import (
    FRONTEND_ATTR,
    OPEN_AXES_ATTR,
    PARTIAL_ATTR,
    STATIONARY_ATTR,
)
from tvm_distir.core.ir.types import is_private, relax_functions, tensor_type
from tvm_distir.core.rewriting.calls import op_name
from tvm_distir.core.rewriting.functions import callees_first
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.interface.command.opt import script
from tvm_distir.models.model import load_model
from tvm_distir.support import GenericConst
from tvm_distir.support.errors.tree import DistIRError

MESH = {"dp": 2, "tp": 2}
SIZES = {"mlp": {"batch": "8", "layers": "3", "hidden": "64"}}
"""What StableHLO is called, and the form it is; of level 5."""
UNSAID = (STATIONARY_ATTR, OPEN_AXES_ATTR, PARTIAL_ATTR)
"""Attributes of functions that they do not say."""


def levels(name: str) -> Iterator[tuple[int, Any]]:
    """A model at all levels."""
    mod = td.zoo.build(name, SIZES.get(name, {"size": "tiny", "batch": "4"}))
    plan = td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH)
    annotated = transform.AnnotateSharding(plan)(mod)
    placed = transform.PropagateSharding()(annotated)
    yield from ((1, mod), (2, annotated), (3, placed))
    yield 4, transform.LegalizeRedistribute()(placed)
    yield 5, td.distribute(mod, plan)


def in_files(mod: Any, folder: Path) -> dict[str, bool]:
    """Whether TVMScript and JSON hold the module."""
    (folder / "m.py").write_text(script(mod), encoding="utf-8")
    (folder / "m.json").write_text(str(tvm.ir.save_json(mod)), encoding="utf-8")
    kinds = ("py", "json")
    return {k: tvm_ffi.structural_equal(load_model(f"{folder}/m.{k}").mod, mod) for k in kinds}


def known(mod: Any) -> Any:
    """A module without what StableHLO cannot say, and without rebindings."""
    public = [str(gv.name_hint) for gv, fn in relax_functions(mod) if not is_private(fn)]
    mod = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(public)]
    )(mod)
    functions = dict(mod.functions)
    for gv in functions:
        for name in UNSAID:
            functions[gv] = functions[gv].without_attr(name)
    return unmarked(tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos))


def unmarked(mod: Any) -> Any:
    """A module that does not say where it comes from."""
    attrs = {k: v for k, v in dict(mod.attrs or {}).items() if k != FRONTEND_ATTR}
    return tvm.IRModule(
        dict(mod.functions),
        attrs=tvm.ir.make_node("ir.DictAttrs", **attrs),
        global_infos=mod.global_infos,
    )


def computed(mod: Any) -> Any:
    """What a module of level 3 or 4 computes, on whole tensors; equal functions are one."""
    root = relax.BlockBuilder()
    created: dict[str, Any] = {}
    for gv, fn in callees_first(mod):
        env: dict[Any, Any] = {}

        def full(expr: Any, env: Any = env) -> Any:
            if isinstance(expr, relax.Tuple):
                return relax.Tuple([full(field) for field in expr.fields])
            if isinstance(expr, relax.TupleGetItem):
                return relax.TupleGetItem(full(expr.tuple_value), expr.index)
            if isinstance(expr, GenericConst):
                return relax.const(expr.value.numpy(), str(tensor_type(expr.ty).dtype.dtype))
            if not isinstance(expr, tvm.ir.Call):
                return env.get(expr, expr)
            if op_name(expr).startswith("dist."):
                return full(expr.args[0])
            op = created[expr.op.name_hint] if isinstance(expr.op, tvm.ir.GlobalVar) else expr.op
            return relax.Call(op, [full(arg) for arg in expr.args], expr.attrs)

        for param in fn.params:
            kind = tensor_type(param.ty)
            ty = relax.TensorType(kind.shape, str(kind.dtype.dtype))
            env[param] = relax.Var(param.name, ty)
        builder = relax.BlockBuilder()
        with builder.function("main", list(env.values()), attrs=dict(fn.attrs or {})):
            with builder.dataflow():
                for binding in all_bindings(fn.body):
                    env[binding.var] = builder.emit(full(binding.value))
                output = builder.emit_output(full(fn.body.body))
            builder.emit_func_output(output)
        name = str(gv.name_hint)
        done = known(builder.get())["main"].without_attr("global_symbol")
        created[name] = root.add_func(done, name)
        if not is_private(fn):
            root.update_func(created[name], done.with_attr("global_symbol", name))
    return root.get()


def in_stablehlo(mod: Any, level: int, form: str, inputs: Sequence[Any]) -> bool:
    """Whether what is read is what was written, as far as the text can say it."""
    text = td.to_stablehlo(mod, form)
    result = td.from_stablehlo(text, inline=0)
    if level == 5:
        results = (td.run(each, inputs, engine="virtual") for each in (result, mod))
        pairs = zip(*results, strict=True)
        return level_of(result) == LEVELS[5] and all(np.array_equal(*pair) for pair in pairs)
    if level <= 2:
        return level_of(result) == LEVELS[level] and equal(known(result), known(mod))
    plain = td.from_stablehlo(text, inline=0, shardings=False)
    again = td.from_stablehlo(td.to_stablehlo(result, form), inline=0)
    pair = [tvm.IRModule(dict(known(each).functions)) for each in (plain, computed(mod))]
    same = equal(*pair)  # meshes apart, which nothing uses
    return level_of(result) == LEVELS[2] and same and equal(result, again)


def equal(single: Any, other: Any) -> bool:
    """Whether two modules are structurally equal."""
    return bool(tvm_ffi.structural_equal(single, other))


def main() -> int:
    """Run the command."""
    bad = count = 0
    for name in sys.argv[1:] or td.zoo.NAMES:
        inputs: list[Any] = []
        for level, mod in levels(name):
            inputs = inputs or draw_inputs(mod, 0)
            with tempfile.TemporaryDirectory() as folder:
                stored = in_files(mod, Path(folder))
            partitioning = "manual" if level == 5 else "auto"
            try:
                stored["stablehlo"] = in_stablehlo(mod, level, partitioning, inputs)
            except DistIRError as error:
                written = "equal shards" not in str(error)
                if written:
                    stored["stablehlo"] = False
                print(f"  {name} {level}: {'' if written else 'not written, '}{error}"[:300])
            bad += sum(not good for good in stored.values())
            count += len(stored)
            print(f"{name} {level}", *(f"{k}={'yes' if v else 'NO'}" for k, v in stored.items()))
    print(f"{count} round trips, {bad} differ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
