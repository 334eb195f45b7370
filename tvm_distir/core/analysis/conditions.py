# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check at level 5 that the devices that communicate in a branch all take the same side.

The mesh axes along which a value may differ between devices follow from its source: an input
differs along the axes that shard it, and ``axis_index`` along its axis; a collective makes its
result equal along its axes or different; other ops pass on the axes of their operands. The
condition of an ``If`` may differ along no axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.ir.mesh import MeshKey, mesh_key, meshes
from tvm_distir.core.ir.operators.async_ops import collective_op, is_done
from tvm_distir.core.ir.operators.ops import call_axes, dist_op_name
from tvm_distir.core.ir.placement import parse_placement
from tvm_distir.core.ir.views.tilings import (
    first_views,
)
from tvm_distir.support import Steps, unrolled

Axis = tuple[Any, int]
"""A mesh, as its key, and the number of an axis."""
Axes = frozenset[Axis]
NONE: Axes = frozenset()

SAME = ("all_reduce", "all_gather")
"""Collectives whose result is the same along their axes."""


class Differing:
    """Mesh axes along which the values of the functions of a module differ between devices.

    Results are kept per function and what its arguments have; a tuple has a tuple of them.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod, self._first = mod, first_views(meshes(mod))
        self.known: dict[Any, Any] = {}
        self.differing: list[tuple[str, Any, Axes]] = []

    def conditions(self) -> list[tuple[str, Any, Axes]]:
        """Return the conditions that differ: function, variable of the ``If`` and axes."""
        for gv, fn in sorted(self.mod.functions.items(), key=lambda item: str(item[0].name_hint)):
            if isinstance(fn, relax.Function) and fn.attrs and IO_ATTR in fn.attrs:
                unrolled(self._function(str(gv.name_hint), fn, self._inputs(fn)))
        return self.differing

    def _inputs(self, fn: relax.Function) -> tuple[Any, ...]:
        io, here = fn.attrs[IO_ATTR], meshes(self.mod)
        home = mesh_key(here[int(io["mesh"])])
        inputs = []
        for item in io["inputs"]:
            other = item["mesh"] if "mesh" in item else None
            key = home
            if other is not None:
                key = tuple(int(n) for n in other["shape"]), tuple(int(d) for d in other["devices"])
            inputs.append(self._cut(key, str(item["placement"])))
        return tuple(inputs)

    def _function(self, name: str, fn: relax.Function, arguments: tuple[Any, ...]) -> Steps[Any]:
        key = (name, arguments)
        if key not in self.known:
            self.known[key] = NONE  # of a recursive call
            self.known[key] = yield self._body(name, fn.body, dict(zip(fn.params, arguments)))
        return self.known[key]

    def _body(self, name: str, seq: relax.SeqExpr, state: dict[Any, Any]) -> Steps[Any]:
        for block in seq.blocks:
            for b in block.bindings:
                state[b.var] = yield from self._value(name, b.var, b.value, state)
        return self._of(seq.body, state)

    def _of(self, expr: ir.Expr, state: dict[Any, Any]) -> Any:
        """Return the axes along which an operand differs."""
        if isinstance(expr, relax.Tuple):
            return tuple(self._of(item, state) for item in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            source = self._of(expr.tuple_value, state)
            return source[int(expr.index)] if isinstance(source, tuple) else source
        return state.get(expr, NONE) if isinstance(expr, ir.Var) else NONE

    def _value(self, name: str, var: relax.Var, value: Any, state: dict[Any, Any]) -> Steps[Any]:
        if isinstance(value, relax.If):
            axes = _all_axes(self._of(value.cond, state))
            if axes:
                self.differing.append((name, var, axes))
            sides = []
            for seq in (value.true_branch, value.false_branch):
                sides.append((yield self._body(name, seq, dict(state))))
            return _union_axes(sides)
        if not isinstance(value, ir.Call):
            return self._of(value, state)
        operand_axes = tuple(self._of(arg, state) for arg in value.args)
        if isinstance(value.op, ir.GlobalVar) and isinstance(self.mod[value.op], relax.Function):
            callee = self.mod[value.op]
            return (yield self._function(str(value.op.name_hint), callee, operand_axes))
        if dist_op_name(value) is not None:
            return self._collective(value, _all_axes(operand_axes))
        return _all_axes(operand_axes)

    def _axes(self, key: MeshKey, axes: Iterable[int]) -> Axes:
        """Return mesh axes of more than a single device, as those of the first view of the mesh."""
        first, numbers = self._first.get(key, (key, range(len(key[0]))))
        return frozenset((first, numbers[a]) for a in axes if key[0][a] > 1)

    def _cut(self, key: MeshKey, placement: str) -> Axes:
        """Return the mesh axes along which a placement shards."""
        labels = parse_placement(placement)
        return self._axes(key, [a for a, label in enumerate(labels) if label >= 0])

    def _collective(self, call: ir.Call, operand_axes: Axes) -> Axes:
        """Return the axes along which the result of an ``R.dist`` op differs."""
        if is_done(call):
            return operand_axes
        kind = collective_op(call) or str(dist_op_name(call))
        key = mesh_key(call.attrs["device_mesh"])
        if kind in ("send", "recv"):
            return operand_axes if kind == "send" else self._cut(key, str(call.attrs["placement"]))
        axes = self._axes(key, call_axes(call))
        if kind in SAME:
            return operand_axes - axes
        if kind == "exchange":
            return (operand_axes - axes) | self._cut(key, str(call.attrs["peer_placement"]))
        return operand_axes | axes


def _all_axes(tree: Any) -> Axes:
    """Return all axes of a (nested) tuple."""
    return NONE.union(*map(_all_axes, tree)) if isinstance(tree, tuple) else tree


def _union_axes(trees: Sequence[Any]) -> Any:
    """Return the union of the axes of two values, field by field for tuples."""
    left, other = trees
    if isinstance(left, tuple) and isinstance(other, tuple):
        return tuple(_union_axes(pair) for pair in zip(left, other))
    return _all_axes(left) | _all_axes(other)
