# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Change programs at a value: reduce it, scale it, or communicate along other axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import mesh_shape, ops
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.rewriting import make_binding, scalar, typed, variables

from .traced_module import Code

PERMUTE = "collective_permute"
"""The collective along a single axis."""
REDUCE, SCALE, REGROUP, DELETE = "reduce", "scale", "regroup", "delete"


@dataclass(frozen=True)
class ValueChange:
    """A change of a value.

    Attributes
    ----------
    kind : str
        REDUCE, SCALE, REGROUP (a collective that communicates along other axes) or DELETE (a
        collective whose result has the shape of its operand).
    axes : tuple of int
        The mesh axes of REDUCE and REGROUP.
    op : str
        The reduction.
    factor : float
        Of SCALE, and besides a reduction.
    """

    kind: str
    axes: tuple[int, ...] = ()
    op: str = "sum"
    factor: float = 1.0


Changes = Mapping[str, ValueChange]
"""Changes by the names of values."""


def changed(codes: Sequence[Code], changes: Changes, mesh: Any) -> list[Code]:
    """Return programs whose values of some names are changed, in all of them."""
    return [_changed(code, changes, mesh) for code in codes]


def _changed(code: Code, changes: Changes, mesh: Any) -> Code:
    if not changes.keys() & {str(b.var.name) for b in code.bindings}:
        return code
    bindings: list[relax.VarBinding] = []
    late: dict[str, list[relax.VarBinding]] = {}  # reductions before the first use, or at the end
    for binding in code.bindings:
        for name in [str(v.name) for v in variables(binding.value) if str(v.name) in late]:
            bindings += late.pop(name, [])
        change = changes.get(str(binding.var.name))
        if change is None:
            bindings.append(binding)
        elif change.kind == DELETE:
            bindings.append(make_binding(binding.var, binding.value.args[0]))
        else:
            first, *late[str(binding.var.name)] = _with_change(binding, change, mesh)
            bindings.append(first)
    return replace(code, bindings=[*bindings, *itertools.chain(*late.values())])


def _with_change(
    binding: relax.VarBinding, change: ValueChange, mesh: Any
) -> list[relax.VarBinding]:
    var, value = binding.var, binding.value
    steps: list[relax.Expr] = []
    if change.kind == REGROUP:
        value = _regrouped(value, change, mesh)
    if change.kind == REDUCE:
        steps.append(lambda x: ops.all_reduce(x, mesh, list(change.axes), change.op))
    if change.factor != 1:
        factor = scalar(change.factor, str(var.ty.dtype))
        steps.append(lambda x: relax.op.multiply(x, factor))
    names = [f"{var.name}_{number}" for number in range(len(steps))]
    targets = [*(relax.Var(name, var.ty) for name in names), var]
    result = [make_binding(targets[0], value)]
    for make, source, target in zip(steps, targets, targets[1:]):
        result.append(make_binding(target, typed(make(source), var.ty)))
    return result


def _regrouped(call: ir.Call, change: ValueChange, mesh: Any) -> ir.Call:
    """Return a collective along other axes, with the type that it had."""
    attrs = {str(k): call.attrs[k] for k in call.attrs.keys()}
    key = "mesh_axes" if "mesh_axes" in attrs else "mesh_axis"
    op = str(dist_op_name(call))
    axes = list(change.axes) if op != PERMUTE else change.axes[0]
    make, values = getattr(ops, op), {**attrs, "device_mesh": mesh, key: axes}
    return typed(make(call.args[0], **values), call.ty)


def group_size(call: ir.Call) -> int:
    """Return the number of ranks in each group of a collective."""
    shape = mesh_shape(call.attrs["device_mesh"])
    return math.prod(shape[a] for a in call_axes(call))
