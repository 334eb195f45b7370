# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The pass ``LegalizeRedistribute``."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError
from ...ir import flat_types, mesh_key
from ...ir.ops import dist_op_name
from ...ir.types import relax_functions
from ...system import System
from .emit import bindings_of, op_name, place_of
from .local_view import is_local_view, legalize_local_view
from .moves import is_redistribute
from .planner import Planner
from .rewrite import FunctionLegalizer
from .steps import CCL_KINDS, KINDS
from .values import Counter


def LegalizeRedistribute(
    system: System | None = None,
    *,
    memory_bound: float | None = 1.0,
    memory_bytes: int | None = None,
    ccl: bool = False,
) -> Any:
    """Make every movement of data explicit: level 3 to level 4.

    ``R.dist.redistribute`` becomes collectives along mesh axes (a cheapest sequence, see
    :class:`.planner.Planner`), between meshes a ``send`` and a ``recv``; each reducing call gets
    its ``all_reduce``, unless ``R.dist.partial`` leaves it to a later redistribute. Functions that
    transfer between meshes become impure and lose their dataflow blocks.

    A module in TVM's local-view style is rewritten as TVM's pass of this name does.

    Parameters
    ----------
    system : System, optional
        Prices collectives by its bandwidths and latencies; without one, bytes count.
    memory_bound : float, optional
        No shard between the ends of a redistribution is larger than this times the larger end;
        None for no bound.
    memory_bytes : int, optional
        Nor larger than this.
    ccl : bool
        Use only collectives that TVM's ``R.ccl`` ops can express (``all_reduce`` and
        ``all_gather`` along the innermost axes, and slices), see
        :func:`tvm_distir.transform.UseStockCollectives`. ``memory_bound`` then does not count:
        these need not find a way within one.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    LevelError
        DIST0451 when the module is not at level 3.
    LoweringError
        DIST0502 to DIST0504 and DIST0509, see :data:`tvm_distir.errors.CODES`.
    UsageError
        DIST0150 for a memory bound below 1.
    """
    planner = Planner(
        system,
        None if ccl else memory_bound,
        memory_bytes,
        CCL_KINDS if ccl else KINDS,
        innermost=ccl,
    )

    @tvm.transform.module_pass(  # type: ignore[untyped-decorator]
        opt_level=0, name="tvm_distir.LegalizeRedistribute"
    )
    def legalize_redistribute(mod: ir.IRModule, _: Any) -> ir.IRModule:
        return legalize(mod, planner)

    return legalize_redistribute


def has_dtensor(fn: relax.Function) -> bool:
    """Whether a parameter, a bound variable or the result of a function is a DTensor."""
    for ty in (*(param.ty for param in fn.params), fn.ret_ty):
        if any(isinstance(t, DTensorType) for t in flat_types(ty)):
            return True
    return any(
        isinstance(t, DTensorType)
        for block in fn.body.blocks
        for binding in block.bindings
        for t in flat_types(binding.var.ty)
    )


def callees_of(fn: relax.Function, name: str) -> list[Any]:
    """Functions of the module that a function calls, in order, with repeats."""
    return [
        value.op
        for _, value in bindings_of(fn, name)
        if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar)
    ]


def callers_closure(mod: ir.IRModule, first: set[str]) -> set[str]:
    """Names of functions that are in ``first`` or call such a function."""
    callers: dict[str, list[str]] = {}
    for gv, fn in relax_functions(mod):
        for callee in callees_of(fn, str(gv.name_hint)):
            callers.setdefault(str(callee.name_hint), []).append(str(gv.name_hint))
    found, waiting = set(first), sorted(first)
    while waiting:
        for caller in callers.get(waiting.pop(), []):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return found


def _transfers(fn: relax.Function, name: str) -> bool:
    for _, value in bindings_of(fn, name):
        if dist_op_name(value) in ("send", "recv"):
            return True
        if is_redistribute(value) and isinstance(value.args[0].ty, DTensorType):
            if mesh_key(value.args[0].ty.device_mesh) != mesh_key(value.attrs.device_mesh):
                return True
    return False


def _check_level(mod: ir.IRModule) -> None:
    for gv, fn in relax_functions(mod):
        for var, value in bindings_of(fn, str(gv.name_hint)):
            if isinstance(value, ir.Call) and op_name(value) == "dist.annotate_sharding":
                raise LevelError(
                    "DIST0451",
                    "an annotation is still there: the module is at level 2",
                    place=place_of(str(gv.name_hint), var, value),
                    remedy="Run PropagateSharding first.",
                )


def retyped(gv: Any, ty: Any) -> Any:
    """Make a global variable of the same name and another type."""
    new = ir.GlobalVar(gv.name_hint)
    relax.expr._update_type(new, ty)
    return new


def legalize(mod: ir.IRModule, planner: Planner) -> ir.IRModule:
    """Apply :func:`LegalizeRedistribute`."""
    _check_level(mod)
    if is_local_view(mod):
        return legalize_local_view(mod)
    functions = relax_functions(mod)
    own = {str(gv.name_hint) for gv, fn in functions if _transfers(fn, str(gv.name_hint))}
    impure = callers_closure(mod, own)
    renamed: dict[Any, Any] = {}
    for gv, fn in functions:
        if str(gv.name_hint) in impure and bool(fn.is_pure):
            params = [p.ty for p in fn.params]
            renamed[gv] = retyped(gv, relax.FuncType(params, fn.ret_ty, False))
    tags = Counter()
    done = {
        str(gv.name_hint): FunctionLegalizer(
            mod, str(gv.name_hint), fn, renamed, str(gv.name_hint) in impure, tags, planner
        ).run()
        if has_dtensor(fn)
        else fn
        for gv, fn in functions
    }
    result = {
        renamed.get(gv, gv): done.get(str(gv.name_hint), fn) for gv, fn in mod.functions.items()
    }
    return ir.IRModule(result, attrs=mod.attrs, global_infos=mod.global_infos)
