# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower collectives and transfers from level 4 to level 5."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.operators.names import REDUCTIONS
from tvm_distir.core.ir.operators.ops import call_axes
from tvm_distir.core.ir.types import known_shape
from tvm_distir.core.ops.terms import within, without
from tvm_distir.core.redistribution.shards import terms_of
from tvm_distir.core.rewriting.calls import location_of, rebuild

from .collectives import collective, reduced_terms
from .values import LocalValues


class LocalMoves:
    """A lowering of the bindings of ``R.dist`` ops.

    Parameters
    ----------
    values : LocalValues
        The local values of the function that holds the bindings.
    """

    def __init__(self, values: LocalValues) -> None:
        self.values = values

    def transfer(self, var: relax.Var, value: ir.Call, kind: str) -> None:
        """Write a ``send`` or ``recv``."""
        values = self.values
        if kind == "recv":
            call = ops.recv(**dict(value.attrs.items()))
            values.bind(var, values.builder.normalize(call), [()], False)
            return
        source = value.args[0]
        if values.terms_of(source, 0):
            raise values.level_fault("it sends partial sums", var, value)
        call = rebuild(value, value.op, [values.local(source)])
        values.bind(var, values.builder.normalize(call), [()], values.zero_of(source, 0))

    def collective(self, var: relax.Var, value: ir.Call, kind: str) -> None:
        """Write a collective."""
        if kind == "axis_index":
            raise self.values.level_fault("axis_index belongs to level 5", var, value)
        self.move(var, value, kind, value.attrs)

    def move(self, var: relax.Var, value: ir.Call, kind: str, attrs: Any) -> None:
        """Write the movement of the first argument, a tensor, by ``attrs``."""
        values = self.values
        source = value.args[0]
        terms = values.terms_of(source, 0)
        if kind in REDUCTIONS:
            axes = list(call_axes(value))
            known = dict(terms)
            if any(known.get(a) != str(attrs["op"]) for a in axes):
                problem = (
                    f"it reduces ({attrs['op']}) along the mesh axes {axes}, where its operand "
                    f"is {'partial: ' + str(terms) if terms else 'reduced'}"
                )
                remedy = "Reduce each partial axis once, with its own op."
                raise values.fault("DIST0503", problem, var, value, remedy)
            terms = without(terms, axes)
        elif kind == "partial":
            axes = [int(a) for a in attrs["mesh_axes"]]
            if within(terms, axes):
                raise values.level_fault("it wraps a value that is already partial", var, value)
            terms = tuple(sorted((*terms, *((a, str(attrs["op"])) for a in axes))))
        want = values.shard_of(var.ty, location_of(values.name, var, value))
        local, name = values.local(source), str(var.name)
        move = terms_of(value)
        if move is not None and known_shape(source.ty) is None:
            raise values.fault(
                "DIST0502",
                "the shards of the reduction are no parts of the blocks that devices hold: "
                "their sizes must be known",
                var,
                value,
                "Bind the symbolic dims with td.bind_dims, or shard the dim over one mesh axis.",
            )
        if move is None:
            local = collective(values.writer, kind, attrs, local, want.local, name)
        else:
            local = reduced_terms(values.writer, move, attrs, local, name)
        local = values.builder.normalize(local)
        values.expect(local.ty, [want], var, value)
        values.bind(var, local, [terms], values.zero_of(source, 0) and _sum_like(kind, attrs))


def _sum_like(kind: str, attrs: Any) -> bool:
    """Return whether zeros in the padding stay zeros through a collective."""
    return kind not in ("all_reduce", "reduce_scatter", "partial") or str(attrs["op"]) == "sum"
