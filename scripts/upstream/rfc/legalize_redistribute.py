# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize ``R.dist.redistribute`` on device meshes with any number of axes.

A redistribution within a mesh becomes a sequence of steps, each of which changes how one mesh axis
shards the tensor:

======  =======  =====================================================================
before  after    step
======  =======  =====================================================================
R       S[d]     every worker keeps its part along dim d, without communication
S[d]    R        all-gather along dim d, among the workers of the mesh axis
S[d]    S[e]     all-to-all from dim d to dim e, among the workers of the mesh axis
======  =======  =====================================================================

On a mesh of one axis, the first step is ``R.dist.redistribute_replica_to_shard``. The other steps
are calls of packed functions, because Relax has no operator that names a mesh axis:

- ``relax.dist.local_slice(x, mesh_shape, mesh_axis, dim)``
- ``relax.dist.all_gather(x, mesh_shape, mesh_axis, dim)``
- ``relax.dist.all_to_all(x, mesh_shape, mesh_axis, sharded_before, sharded_after)``

The groups follow from the mesh: the workers that differ in the coordinate of ``mesh_axis`` only,
in the order of this coordinate. If several mesh axes shard one dim, the later axis divides the
parts of the earlier one, so that steps on this dim add and remove the last axis first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement, PlacementSpec
from tvm.relax.op import call_pure_packed
from tvm.relax.op.distributed import redistribute_replica_to_shard

Shards = tuple[int | None, ...]  # per mesh axis the dim that it shards


class Step(NamedTuple):
    """A change of what one mesh axis shards.

    Attributes
    ----------
    axis : int
        The mesh axis.
    before, after : int or None
        The dim that the axis shards, None if the tensor is replicated along the axis.
    """

    axis: int
    before: int | None
    after: int | None


def sharded_dims(placement: Placement) -> Shards:
    """Return the dim that each mesh axis shards, None where it shards none."""
    sharding = PlacementSpec.sharding(0).kind
    specs = placement.dim_specs
    return tuple(int(s.axis) if int(s.kind) == int(sharding) else None for s in specs)


def placement_of(shards: Shards) -> Placement:
    """Return the placement in which each mesh axis shards the given dim."""
    return Placement(
        [PlacementSpec.replica() if d is None else PlacementSpec.sharding(d) for d in shards]
    )


def plan(before: Shards, after: Shards, mesh_shape: Sequence[int]) -> list[Step]:
    """Return the steps from one placement to another that move the fewest elements.

    The search goes over placements (Dijkstra's algorithm). There are ``(k + 1) ** axes`` of them,
    where k is the number of dims that are sharded before or after.

    Parameters
    ----------
    before, after : tuple of int or None
        Per mesh axis the dim that it shards.
    mesh_shape : sequence of int
        The number of workers along each mesh axis.

    Examples
    --------
    >>> plan((0, None), (None, 0), (2, 2))
    [Step(axis=0, before=0, after=None), Step(axis=1, before=None, after=0)]
    >>> plan((0,), (1,), (2,))
    [Step(axis=0, before=0, after=1)]
    """
    dims = sorted({d for d in (*before, *after) if d is not None})
    queue: list[tuple[Fraction, int, int, Shards, list[Step]]] = [(Fraction(0), 0, 0, before, [])]
    pushed, done = 0, set()
    while True:
        moved, count, _, shards, steps = heapq.heappop(queue)
        if shards == after:
            return steps
        if shards in done:
            continue
        done.add(shards)
        for axis, source in enumerate(shards):
            for target in (None, *dims):
                reached = (*shards[:axis], target, *shards[axis + 1 :])
                if target == source or not _is_last(shards, axis, source, target):
                    continue
                pushed += 1
                cost = moved + _moved(shards, source, target, mesh_shape, axis)
                path = [*steps, Step(axis, source, target)]
                heapq.heappush(queue, (cost, count + 1, pushed, reached, path))


def _is_last(shards: Shards, axis: int, *dims: int | None) -> bool:
    """Return whether no later mesh axis than ``axis`` shards one of the dims."""
    return not any(d is not None and d in dims for d in shards[axis + 1 :])


def _moved(
    shards: Shards, source: int | None, target: int | None, mesh_shape: Sequence[int], axis: int
) -> Fraction:
    """Return the share of the whole tensor that a worker receives in a step."""
    if source is None:
        return Fraction(0)
    local = Fraction(1)
    for count, dim in zip(mesh_shape, shards, strict=True):
        local /= 1 if dim is None else count
    others = mesh_shape[axis] - 1
    return local * others if target is None else local * others / mesh_shape[axis]


def _given_type(call: relax.Call, _context: relax.BlockBuilder) -> ir.Type:
    """Return the type that a call of a packed function names."""
    return call.ty_args[0]


# Without this, Relax infers no type for a packed function of DTensors.
tvm.ir.register_op_attr("relax.call_pure_packed", "dist.FInferType", _given_type)


@relax.expr_functor.mutator
class _Legalizer(relax.PyExprMutator):
    """Replaces each redistribution by its steps."""

    def __init__(self, mod: ir.IRModule) -> None:
        super().__init__(mod)
        self.redistribute = ir.Op.get("relax.dist.redistribute")

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return the last step of a redistribution; other calls stay as they are."""
        call = super().visit_call_(call)
        if not isinstance(call.op, ir.Op) or call.op != self.redistribute:
            return call
        (value,) = call.args
        mesh, target = call.attrs.device_mesh, call.attrs.placement
        if not isinstance(value.ty, DTensorType):
            raise TypeError(f"{value}: a redistribution takes a DTensor, not {value.ty}")
        if not tvm_ffi.structural_equal(value.ty.device_mesh, mesh):
            raise ValueError(
                f"{value}: a redistribution from one mesh to another cannot be legalized to "
                "collectives of one mesh"
            )
        before, after = sharded_dims(value.ty.placement), sharded_dims(target)
        _check_extents(value, mesh, (before, after))
        shards = before
        for step in plan(before, after, [int(n) for n in mesh.shape]):
            shards = (*shards[: step.axis], step.after, *shards[step.axis + 1 :])
            if isinstance(value, relax.Call):
                value = self.builder_.emit(value)
            value = _call(value, mesh, step, shards)
        return value


def _check_extents(value: relax.Expr, mesh: DeviceMesh, placements: tuple[Shards, ...]) -> None:
    """Refuse dims that the workers which share them do not divide."""
    for shards in placements:
        for dim in {d for d in shards if d is not None}:
            count = 1
            for axis, sharded in enumerate(shards):
                count *= int(mesh.shape[axis]) if sharded == dim else 1
            extent = value.ty.tensor_ty.shape.values[dim]
            if isinstance(extent, tirx.IntImm) and int(extent) % count:
                raise ValueError(
                    f"{value}: {count} workers do not divide dim {dim} of extent {int(extent)}"
                )


def _call(value: relax.Expr, mesh: DeviceMesh, step: Step, shards: Shards) -> relax.Call:
    """Return the call that carries out a step."""
    if step.before is None and step.after is not None and len(mesh.shape) == 1:
        return redistribute_replica_to_shard(value, int(mesh.shape[0]), step.after)
    name = "all_to_all"
    if step.before is None or step.after is None:
        name = "local_slice" if step.before is None else "all_gather"
    dims = [tirx.IntImm("int64", d) for d in (step.before, step.after) if d is not None]
    arguments = [
        relax.ShapeExpr([int(n) for n in mesh.shape]),
        tirx.IntImm("int64", step.axis),
        *dims,
    ]
    result = DTensorType(value.ty.tensor_ty, mesh, placement_of(shards))
    return call_pure_packed(f"relax.dist.{name}", value, *arguments, ty_args=[result])


@tvm.transform.module_pass(opt_level=1, name="LegalizeRedistribute")
class LegalizeRedistribute:
    """Replace redistributions within a mesh by slices, all-gathers and all-to-alls."""

    def transform_module(
        self, mod: ir.IRModule, _context: tvm.transform.PassContext
    ) -> ir.IRModule:
        """Return the module without redistributions.

        Raises
        ------
        ValueError
            A redistribution goes to another mesh, or the workers do not divide a sharded dim.
        """
        legalizer = _Legalizer(mod)
        for name, function in mod.functions_items():
            if isinstance(function, relax.Function):
                legalizer.builder_.update_func(name, legalizer.visit_expr(function))
        return legalizer.builder_.get()
