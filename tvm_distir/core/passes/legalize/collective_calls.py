# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the steps of a plan as calls of collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Call
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import Labels, P, R, placement_text
from tvm_distir.core.redistribution.steps import Step
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.nodes import make_call


def step_call(
    x: ir.Expr, mesh: DeviceMesh, step: Step, before: Labels, shape: Sequence[int], op: str = "sum"
) -> Call:
    """Write a step of a plan as a call.

    Parameters
    ----------
    x : expression
        The operand.
    mesh : DeviceMesh
    step : Step
    before : Labels
        The placement of the operand.
    shape : sequence of int
        Whole shape of the tensor.
    op : str
        Reduction of its partial axes.
    """
    axes = step.axes
    if step.kind == "all_reduce":
        return ops.all_reduce(x, mesh, axes, op)
    if step.kind == "partial":
        return ops.partial(x, mesh, axes, op)
    if step.kind == "reduce_scatter":
        return ops.reduce_scatter(x, mesh, axes, step.split_dim, op)
    if step.kind == "all_gather":
        return ops.all_gather(x, mesh, axes, step.gather_dim)
    if step.kind == "all_to_all":
        return ops.all_to_all(x, mesh, axes, step.gather_dim, step.split_dim)
    if step.kind == "exchange":
        # Along axes that take no part, what is partial is typed R.
        ends = [placement_text([R if y == P else y for y in x]) for x in (before, step.after)]
        return ops.exchange(x, mesh, axes, *ends, shape)
    return ops.local_slice(x, mesh, axes, step.split_dim)


class TypedCalls:
    """A cache of typed collective calls with a single operand.

    Parameters
    ----------
    builder : BlockBuilder
        Infers types.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self.builder = builder
        self._cache: dict[Any, tuple[Any, Any, Call]] = {}

    def step(
        self,
        x: ir.Expr,
        mesh: DeviceMesh,
        step: Step,
        before: Labels,
        shape: Sequence[int],
        op: str = "sum",
    ) -> Call:
        """Return the typed call of a step (see :func:`step_call`)."""
        key, normalize = (step, before, tuple(shape), op), self.builder.normalize
        make = functools.partial(step_call, x, mesh, step, before, shape, op)
        return self._like(key, x, mesh, lambda: normalize(make()))

    def all_reduce(self, x: ir.Expr, mesh: DeviceMesh, axes: Sequence[int], op: str) -> Call:
        """Return the typed call of an ``all_reduce``."""
        key = (tuple(axes), op)
        return self._like(key, x, mesh, lambda: typed(ops.all_reduce(x, mesh, axes, op), x.ty))

    def _like(self, key: Hashable, x: ir.Expr, mesh: DeviceMesh, make: Callable[[], Call]) -> Call:
        """Return a call like the first with this key, mesh and type of its operand."""
        # By handles: the nodes stay alive, so that no other node takes their place.
        key = (key, handle(mesh), handle(x.ty))
        cached = self._cache.get(key)
        if cached is None:
            call = make()
            self._cache[key] = (mesh, x.ty, call)
            return call
        like = cached[2]
        return make_call(like.op, [x], like.attrs, like.ty_args, like.ty)
