# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the pass ``LegalizeRedistribute``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis.levels import has_dtensor
from tvm_distir.core.ir.attributes.readers import stated_orders
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.ir.views.module_views import ModuleViews
from tvm_distir.core.ops.call_view import is_transfer
from tvm_distir.core.ops.class_memo import class_facts, class_memo
from tvm_distir.core.passes.cost_model import CostModel
from tvm_distir.core.passes.declaration import Rewrite, module_pass
from tvm_distir.core.redistribution.planner import Planner
from tvm_distir.core.rewriting.calls import is_redistribute, location_of, op_name
from tvm_distir.core.rewriting.functions import callers_closure, retyped
from tvm_distir.core.rewriting.native.function_index import OP_CALL, Member, read_module
from tvm_distir.core.rewriting.repeated_bindings import Templates
from tvm_distir.support import LevelError

from .call_views import with_call_views
from .collective_calls import TypedCalls
from .local_view import is_local_view, legalize_local_view
from .moves import Moves
from .partial_values import LegalizedValues, TransferTags
from .rewrite import FunctionLegalizer


@module_pass("distributed", "legalized")
def LegalizeRedistribute(
    system: CostModel | str | None = None,
    *,
    memory_bound: float | None = 1.0,
    memory_bytes: int | None = None,
) -> Rewrite:
    """Make every movement of data explicit.

    ``R.dist.redistribute`` becomes collectives along mesh axes (a cheapest sequence, see
    :class:`.planner.Planner`), between meshes a ``send`` and a ``recv``; each reducing call gets
    its ``all_reduce``, unless ``R.dist.partial`` leaves it to a later redistribute. Functions that
    transfer between meshes become impure and lose their dataflow blocks.

    A module in TVM's local-view style is rewritten as TVM's pass of this name does.

    Parameters
    ----------
    system : System, CostModel or str, optional
        System whose bandwidths and latencies determine the cost of collectives; if none is given,
        the number of bytes does.
    memory_bound : float, optional
        Bound of the shards during a redistribution, as a multiple of the larger of source and
        target; None for no bound.
    memory_bytes : int, optional
        Bound of these shards in bytes.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    LevelError
        DIST0451 when the module is not at level 3.
    LoweringError
        DIST0502 to DIST0504 and DIST0509, see :data:`tvm_distir.support.errors.codes.CODES`.
    UsageError
        DIST0150 for a memory bound below 1.
    """
    model = CostModel.resolve(system)
    costs = None if model is None else model.redistribution_costs()
    planner = Planner(costs, memory_bound, memory_bytes)

    return lambda mod: legalize(mod, planner)


def legalize(mod: ir.IRModule, planner: Planner) -> ir.IRModule:
    """Apply :func:`LegalizeRedistribute`."""
    _refuse_stated_orders(mod)
    mod = with_call_views(mod)
    members = read_module(mod, ordered=False)
    transferring = _transferring(members)
    if is_local_view(mod, members):
        return legalize_local_view(mod)
    impure = callers_closure(mod, transferring)
    renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
    for gv, fn, _ in members:
        if str(gv.name_hint) in impure and bool(fn.is_pure):
            renamed[gv] = retyped(gv, relax.FuncType([p.ty for p in fn.params], fn.ret_ty, False))
    tags, builder = TransferTags(), relax.BlockBuilder(mod)
    templates = Templates(class_memo("level 4"), class_memo("states"))
    calls, views = TypedCalls(builder), ModuleViews(mod)
    done: dict[str, relax.Function] = {}
    for gv, fn, reading in members:
        name = str(gv.name_hint)
        if has_dtensor(fn):
            values = LegalizedValues(name, builder, renamed, name in impure)
            moves = Moves(values, planner, tags, calls, views)
            fn = FunctionLegalizer(mod, fn, reading, values, moves, templates).run()
        done[name] = fn
    result = {
        renamed.get(gv, gv): done.get(str(gv.name_hint), fn) for gv, fn in mod.functions.items()
    }
    return views.module(result)


def _refuse_stated_orders(mod: ir.IRModule) -> None:
    """Refuse a module whose parameters have stated orders of axes that it does not have yet."""
    for gv, fn in relax_functions(mod):
        for name, orders in stated_orders(fn).items():
            if any(list(axes) != sorted(axes) for axes in orders):
                raise LevelError(
                    "DIST0451",
                    "the order of mesh axes that its placement states is not applied yet",
                    location=f"{gv.name_hint}/{name}",
                    remedy="Run OrderAxes before LegalizeRedistribute.",
                )


def _transferring(members: Sequence[Member]) -> set[str]:
    """Return the names of the functions that transfer between meshes.

    Raises
    ------
    LevelError
        DIST0451 for an annotation.
    """
    return {
        m.name
        for m in members
        if any(class_facts(m.reading, "transfers", partial(_is_transfer, m)))
    }


def _is_transfer(member: Member, number: int) -> bool:
    if member.reading.kinds[number] != OP_CALL:
        return False
    var, value = member.reading.bound(number), member.reading.values[number]
    if op_name(value) == "dist.annotate_sharding":
        raise LevelError(
            "DIST0451",
            "the module still has an annotation: it is at level 2",
            location=location_of(member.name, var, value),
            remedy="Run PropagateSharding first.",
        )
    if dist_op_name(value) in ("send", "recv"):
        return True
    if is_redistribute(value) and isinstance(value.args[0].ty, DTensorType):
        return is_transfer(value)
    return False
