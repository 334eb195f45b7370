#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every zoo model at every level, written in every form and read again.

``python scripts/checks/round_trip.py [NAME ...]``. What is read must be structurally equal to
what was
written, names of variables and rebindings (``lv1 = lv``) apart: TVMScript, TVM's JSON, StableHLO
(``sdy``; of level 5 ``replicas``, and ``manual`` where shards are even) and StableHLO in MLIR's
dialect ``shard``. StableHLO cannot say these, which are left out of the comparison:

* ``dist.stationary`` and ``dist.open_axes`` (level 2), ``dist.partial`` (levels 2 and 5):
  notes of the compiler's own on variables;
* levels 3 and 4 in MLIR's dialect ``shard``, which are read as level 2: what a text says there is
  how values lie, not which steps bring them there. Without them all that is computed must be
  equal, and what is read must be read as itself once more.

Exits with 1 where something differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import level_of
from tvm_distir.core.analysis.names import LEVELS
from tvm_distir.core.ir.attributes import (
    FRONTEND_ATTR,
    OPEN_AXES_ATTR,
    PARTIAL_ATTR,
    STATIONARY_ATTR,
)
from tvm_distir.core.ir.types import is_private, relax_functions, tensor_type
from tvm_distir.core.rewriting.calls import op_name
from tvm_distir.core.rewriting.functions import callees_first
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute, variables
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.interface.command.opt import script
from tvm_distir.models.model import load_model
from tvm_distir.support.errors.tree import DistIRError

MESH = {"dp": 2, "tp": 2}
SIZES = {"mlp": {"batch": "8", "layers": "3", "hidden": "64"}}
SAID = {3: "annotated", 4: "annotated"}
"""What texts in the dialect ``shard`` say of a level, where that is less."""
FORMS = {"sdy": "auto", "shard": "shard"}
LOCAL_FORMS = {"manual": "manual", "replicas": "replicas", "shard": "shard"}
"""What StableHLO is called, and the form it is; of level 5."""
UNSAID = (STATIONARY_ATTR, OPEN_AXES_ATTR, PARTIAL_ATTR)
"""Attributes of functions that they do not say."""


def levels(name: str) -> Iterator[tuple[int, Any]]:
    """A model at all levels."""
    mod = td.zoo.build(name, SIZES.get(name, {"size": "tiny", "batch": "4"}))
    plan = td.strategy.make_plan(mod, "data_parallel+tensor_parallel", MESH)
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


def noted(mod: Any) -> Any:
    """A module of level 3 or 4 with all that it says, without rebindings and what nothing reads.

    TVM's passes that remove them lose what functions of DTensors return.
    """
    mod = unmarked(mod)
    functions = dict(mod.functions)
    for gv, fn in relax_functions(mod):
        env: dict[Any, Any] = {}

        def read(expr: Any, env: Any = env) -> Any:
            return env.get(expr, expr) if type(expr) in VARIABLES else substitute(expr, env)

        live = set(variables(fn.body.body))
        for binding in reversed(list(all_bindings(fn.body))):
            if binding.var in live:
                live.update(variables(binding.value))
        blocks = []
        for block in fn.body.blocks:
            kept = []
            for binding in block.bindings:
                if binding.var not in live:
                    continue
                value = read(binding.value)
                if type(value) in VARIABLES:
                    env[binding.var] = value
                else:
                    env[binding.var] = relax.DataflowVar(binding.var.name, binding.var.ty)
                    kept.append(relax.VarBinding(env[binding.var], value))
            blocks.append(type(block)(kept))
        functions[gv] = with_body(fn, fn.params, blocks, read(fn.body.body), bool(fn.is_pure))
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def computed(mod: Any) -> Any:
    """What a module of level 3 or 4 computes, on whole tensors; equal functions are one."""
    root = relax.BlockBuilder()
    made: dict[str, Any] = {}
    for gv, fn in callees_first(mod):
        env: dict[Any, Any] = {}

        def whole(expr: Any, env: Any = env) -> Any:
            if isinstance(expr, relax.Tuple):
                return relax.Tuple([whole(field) for field in expr.fields])
            if isinstance(expr, relax.TupleGetItem):
                return relax.TupleGetItem(whole(expr.tuple_value), expr.index)
            if isinstance(expr, tvm.ir.GenericConst):
                return relax.const(expr.value.numpy(), str(tensor_type(expr.ty).dtype.dtype))
            if not isinstance(expr, tvm.ir.Call):
                return env.get(expr, expr)
            if op_name(expr).startswith("dist."):
                return whole(expr.args[0])
            op = made[expr.op.name_hint] if isinstance(expr.op, tvm.ir.GlobalVar) else expr.op
            return relax.Call(op, [whole(arg) for arg in expr.args], expr.attrs)

        for param in fn.params:
            kind = tensor_type(param.ty)
            ty = relax.TensorType(kind.shape, str(kind.dtype.dtype))
            env[param] = relax.Var(param.name, ty)
        builder = relax.BlockBuilder()
        with builder.function("main", list(env.values()), attrs=dict(fn.attrs or {})):
            with builder.dataflow():
                for binding in all_bindings(fn.body):
                    env[binding.var] = builder.emit(whole(binding.value))
                output = builder.emit_output(whole(fn.body.body))
            builder.emit_func_output(output)
        name = str(gv.name_hint)
        done = known(builder.get())["main"].without_attr("global_symbol")
        made[name] = root.add_func(done, name)
        if not is_private(fn):
            root.update_func(made[name], done.with_attr("global_symbol", name))
    return root.get()


def in_stablehlo(mod: Any, level: int, form: str) -> bool:
    """Whether what is read is what was written, as far as the text can say it."""
    text = td.to_stablehlo(mod, form)
    found = td.from_stablehlo(text, inline=0)
    if level not in SAID or form != "shard":
        bare = noted if level in SAID else known
        return level_of(found) == LEVELS[level] and equal(bare(found), bare(mod))
    plain = td.from_stablehlo(text, inline=0, shardings=False)
    again = td.from_stablehlo(td.to_stablehlo(found, form), inline=0)
    pair = [tvm.IRModule(dict(known(one).functions)) for one in (plain, computed(mod))]
    same = equal(*pair)  # meshes apart, which nothing uses
    return level_of(found) == SAID[level] and same and equal(found, again)


def equal(one: Any, other: Any) -> bool:
    """Whether two modules are structurally equal."""
    return bool(tvm_ffi.structural_equal(one, other))


def main() -> int:
    """Run the command."""
    bad = count = 0
    for name in sys.argv[1:] or td.zoo.NAMES:
        for level, mod in levels(name):
            with tempfile.TemporaryDirectory() as folder:
                held = in_files(mod, Path(folder))
            for title, form in (LOCAL_FORMS if level == 5 else FORMS).items():
                try:
                    held[title] = in_stablehlo(mod, level, form)
                except DistIRError as error:
                    if "equal shards" in str(error):
                        print(f"  {name} {level} {title}: not written, {error}"[:300])
                        continue
                    held[title] = False
                    print(f"  {name} {level} {title}: {error}"[:300])
            bad += sum(not good for good in held.values())
            count += len(held)
            print(f"{name} {level}", *(f"{k}={'yes' if v else 'NO'}" for k, v in held.items()))
    print(f"{count} round trips, {bad} differ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
