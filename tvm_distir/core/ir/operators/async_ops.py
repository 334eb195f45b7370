# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split collectives into ``R.dist.<collective>_start`` and ``R.dist.collective_done`` (level 5).

A start takes the operand and attributes of its collective and has the type of its result. The
result of a start is *in flight*: a single ``collective_done`` may read it and returns the value, in
the same function, or in another function where :data:`.attributes.IN_FLIGHT_ATTR` of both says so.
Between the two the collective may overlap with other work; an engine may also run it at once. The
order of the bindings is the order in which a device issues them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.support import MeshError

from .compute_ops import register_compute_ops
from .infer import INFER
from .names import COLLECTIVES

DONE = "collective_done"
_SUFFIX = "_start"


def start_name(kind: str) -> str:
    """Return the name of the op that starts a collective."""
    return f"{kind}{_SUFFIX}"


def started_op(expr: ir.Expr) -> str | None:
    """Return the collective that a call starts, None for every other expression."""
    name = ops.dist_op_name(expr)
    return name.removesuffix(_SUFFIX) if name is not None and name.endswith(_SUFFIX) else None


def started_ops(bindings: Iterable[relax.Binding]) -> dict[relax.Var, str]:
    """Return the collectives that bindings start, by the variables of these bindings."""
    kinds = ((binding.var, started_op(binding.value)) for binding in bindings)
    return {var: kind for var, kind in kinds if kind is not None}


def collective_op(expr: ir.Expr) -> str | None:
    """Return the short name of an ``R.dist`` op; of a start, that of its collective."""
    return started_op(expr) or ops.dist_op_name(expr)


def collectives(values: Iterable[ir.Expr]) -> list[ir.Call]:
    """Return the collectives and their starts among some values."""
    return [value for value in values if collective_op(value) in COLLECTIVES]


def is_done(expr: ir.Expr) -> bool:
    """Return whether an expression is a ``collective_done``."""
    return ops.dist_op_name(expr) == DONE


def start(call: ir.Call) -> ir.Call:
    """Return the start of a collective."""
    name = ops.PREFIX + start_name(str(ops.dist_op_name(call)))
    return ir.Call(ir.Op.get(name), list(call.args), call.attrs)


def collective_done(x: ir.Expr) -> ir.Call:
    """Wait for the collective that ``x``, the result of a start, belongs to; typed as ``x``."""
    return ir.Call(ir.Op.get(ops.PREFIX + DONE), [x])


def _starter(kind: str) -> Callable[..., ir.Call]:
    base = ops.CONSTRUCTORS[kind]

    def make(*args: Any, **attrs: Any) -> ir.Call:
        return start(base(*args, **attrs))

    make.__name__ = start_name(kind)
    make.__doc__ = f"Start an ``{kind}``; the result is in flight until ``{DONE}``."
    return make


def _local(name: str, infer: Callable[[ir.Call, Any], Any]) -> Callable[[ir.Call, Any], Any]:
    def check(call: ir.Call, builder: relax.BlockBuilder) -> ir.Type:
        if len(call.args) != 1 or not isinstance(call.args[0].ty, relax.TensorType):
            problem = "its operand is not a single local tensor"
            remedy = "Split collectives at level 5, with SplitCollectives."
            raise MeshError("DIST0207", problem, location=f"R.dist.{name}", remedy=remedy)
        return infer(call, builder)

    return check


def register_ops() -> None:
    """Add the ops of this wing to TVM's registry and to its parser."""
    for kind in COLLECTIVES:
        name = start_name(kind)
        ops.CONSTRUCTORS[name] = _starter(kind)
        INFER[name] = _local(name, INFER[kind])
    ops.CONSTRUCTORS[DONE] = collective_done
    INFER[DONE] = _local(DONE, lambda call, _: call.args[0].ty)
    ops.register()
    register_compute_ops()
