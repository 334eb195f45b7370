# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The pass ``LowerDistIR`` and the order in which a module's functions are lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import ir, relax

from ...errors import LevelError, LoweringError
from ...ir import (
    is_private,
    labels_of,
    mesh_key,
    meshes,
    placement_text,
    static_shape,
)
from ...ir.attributes import INPUTS_ATTR, IO_ATTR
from ...ir.branches import branch_of
from ...ir.types import relax_functions
from ..branches.restore import restore_branches
from ..legalize.emit import bindings_of
from ..legalize.local_view import has_local_view
from ..legalize.passes import callees_of, has_dtensor, retyped
from . import combining, shaping, sliding  # noqa: F401 (they register their handlers)
from .function import LocalFunction
from .inlining import inline_functions
from .local_view import lower_local_view
from .sharing import device_classes, entry_names, merged, transfer_order
from .values import Context


def LowerDistIR() -> Any:
    """Give every device its own program: level 4 to level 5.

    Each DTensor becomes a Tensor of the shape of one (padded) shard, each public function one
    entry function per mesh it works on, with the attribute ``dist.io``; where meshes share
    devices, one for all devices that belong to the same meshes (:mod:`.sharing`). Private
    functions stay, unless they work on several meshes: those are inlined first.

    A module in TVM's local view (``call_tir_local_view``, 1-D meshes) is lowered as TVM's pass
    of this name does: inputs are scattered or broadcast from worker 0.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    LevelError
        DIST0451 when the module is not at level 4.
    LoweringError
        DIST0502 to DIST0508, see :data:`tvm_distir.errors.CODES`.
    """

    @tvm.transform.module_pass(  # type: ignore[untyped-decorator]
        opt_level=0, name="tvm_distir.LowerDistIR"
    )
    def lower_dist_ir(mod: ir.IRModule, _: Any) -> ir.IRModule:
        return lower(mod)

    return lower_dist_ir


def callees_first(mod: ir.IRModule) -> list[tuple[Any, relax.Function]]:
    """Relax functions, every callee before its callers.

    Raises
    ------
    LoweringError
        DIST0504 when functions call each other in a circle.
    """
    functions = {str(gv.name_hint): (gv, fn) for gv, fn in relax_functions(mod)}
    calls = {
        name: sorted({str(c.name_hint) for c in callees_of(fn, name)} & set(functions))
        for name, (_, fn) in functions.items()
    }
    order: list[str] = []
    state: dict[str, int] = {}
    for root in functions:
        stack = [(root, iter(calls[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            callee = next((c for c in rest if state.get(c) != 2), None)
            if callee is None:
                stack.pop()
                if state[name] != 2:
                    state[name] = 2
                    order.append(name)
            elif state.get(callee) == 1:
                raise LoweringError(
                    "DIST0504",
                    f'"{name}" and "{callee}" call each other in a circle',
                    place=name,
                    remedy="Remove the recursion.",
                )
            else:
                state[callee] = 1
                stack.append((callee, iter(calls[callee])))
    return [functions[name] for name in order]


def _meshes_of(fn: relax.Function, name: str, context: Context) -> list[int]:
    found = {m for p in fn.params for m in context.meshes_of(p.ty)}
    for var, _ in bindings_of(fn, name):
        found.update(context.meshes_of(var.ty))
    found.update(context.meshes_of(fn.ret_ty))
    return sorted(found)


def _mixed(functions: Sequence[tuple[Any, relax.Function]], context: Context) -> list[str]:
    """Private functions that work on several meshes, themselves or in what they call."""
    where: dict[str, set[int]] = {}
    for gv, fn in functions:
        name = str(gv.name_hint)
        if is_private(fn):
            called = [where.get(str(c.name_hint), set()) for c in callees_of(fn, name)]
            where[name] = set(_meshes_of(fn, name, context)).union(*called)
    return [name for name, numbers in where.items() if len(numbers) > 1]


def lower(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`LowerDistIR`."""
    if has_local_view(mod):
        return lower_local_view(mod)
    functions = callees_first(mod)
    if not any(has_dtensor(fn) for _, fn in functions):
        raise LevelError(
            "DIST0451",
            "the module holds no DTensor",
            place="LowerDistIR",
            remedy="Run PropagateSharding and LegalizeRedistribute first.",
        )
    context = _context(mod)
    mixed = _mixed(functions, context)
    for name in mixed:
        if branch_of(mod[name]):
            raise LoweringError(
                "DIST0504",
                "a branch of an If works on several meshes: one would decide for the other",
                place=name,
                remedy="Place all of the branch on one mesh.",
            )
    if mixed:
        mod = inline_functions(mod, functions, mixed)
        functions, context = callees_first(mod), _context(mod)
    infos = meshes(mod)
    result: dict[Any, Any] = {}
    for gv, fn in functions:
        name = str(gv.name_hint)
        if not has_dtensor(fn):
            result[gv] = fn
            context.callees[gv] = gv
            continue
        where = _meshes_of(fn, name, context)
        if is_private(fn):
            lowered = LocalFunction(context, name, fn, where[0], entry=False)
            new = lowered.run(infos[where[0]])
            context.callees[gv] = retyped(gv, _function_type(new))
            result[context.callees[gv]] = new
            continue
        result.update(_entries(context, name, fn, where, infos))
    for gv, fn in mod.functions.items():
        if not isinstance(fn, relax.Function):
            result[gv] = fn
    result.update(context.prim_funcs.values())
    lowered = ir.IRModule(result, attrs=mod.attrs, global_infos=mod.global_infos)
    return restore_branches(_without_unused(lowered))


def _context(mod: ir.IRModule) -> Context:
    return Context(mod, [mesh_key(m) for m in meshes(mod)], {})


def _function_type(fn: relax.Function) -> Any:
    return relax.FuncType([p.ty for p in fn.params], fn.ret_ty, bool(fn.is_pure))


def _entries(
    context: Context, name: str, fn: relax.Function, where: Sequence[int], infos: Sequence[Any]
) -> dict[Any, relax.Function]:
    """Entries of a public function, one for each class of devices."""
    parts = {number: _part(context, name, fn, number, infos[number]) for number in where}
    classes = device_classes(infos, where)
    order = transfer_order(fn, name)
    found = {}
    for one, entry in zip(classes, entry_names(name, infos, classes)):
        new = merged([parts[n] for n in one.meshes], infos, one, order, entry)
        gv = ir.GlobalVar(entry)
        relax.expr._update_type(gv, _function_type(new))
        found[gv] = new
    return found


def _part(
    context: Context, name: str, fn: relax.Function, number: int, mesh: Any
) -> relax.Function:
    """What a public function does on one mesh, with ``dist.io``."""
    lowered = LocalFunction(context, name, fn, number, entry=True)
    new = lowered.run(mesh)
    attrs = {k: v for k, v in (fn.attrs or {}).items() if k not in ("global_symbol", "num_input")}
    data = [str(n) for n in attrs[INPUTS_ATTR]] if INPUTS_ATTR in attrs else None
    inputs = []
    for position, label, ty in lowered.param_leaves:
        item = {"index": position, "name": label, **_described(ty)}
        if data is not None:
            item["role"] = "data" if str(fn.params[position].name) in data else "weight"
        inputs.append(item)
    outputs = [{"index": o.index, **_described(o.ty)} for o in lowered.outputs]
    if "num_input" in (fn.attrs or {}):
        first = int(fn.attrs["num_input"])
        attrs["num_input"] = sum(1 for position, _, _ in lowered.param_leaves if position < first)
    attrs["global_symbol"] = name
    attrs[IO_ATTR] = {"mesh": number, "inputs": inputs, "outputs": outputs}
    dictionary = ir.make_node("ir.DictAttrs", **attrs)
    return relax.Function(list(new.params), new.body, new.ret_ty, bool(new.is_pure), dictionary)


def _described(ty: Any) -> dict[str, Any]:
    shape = static_shape(ty)
    return {
        "shape": [int(n) for n in shape or ()],
        "dtype": str(ty.tensor_ty.dtype),
        "placement": placement_text(labels_of(ty.placement)),
    }


def _without_unused(mod: ir.IRModule) -> ir.IRModule:
    """Drop private functions that no entry reaches."""
    roots = [
        str(gv.name_hint)
        for gv, fn in mod.functions.items()
        if not (isinstance(fn, relax.Function) and is_private(fn))
        and "global_symbol" in (fn.attrs or {})
    ]
    by_name = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
    reached, waiting = set(roots), sorted(roots)
    while waiting:
        fn = by_name[waiting.pop()]
        if not isinstance(fn, relax.Function):
            continue
        for _, value in bindings_of(fn, ""):
            for used in _functions_in(value):
                if used not in reached:
                    reached.add(used)
                    waiting.append(used)
    kept = {gv: fn for gv, fn in mod.functions.items() if str(gv.name_hint) in reached}
    return ir.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)


def _functions_in(value: Any) -> list[str]:
    if not isinstance(value, ir.Call):
        return []
    found = [value.op, *value.args]
    return [str(x.name_hint) for x in found if isinstance(x, ir.GlobalVar)]


__all__ = ["LowerDistIR", "lower"]
