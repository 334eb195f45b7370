# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the bytes that redistribution steps and the collectives of a module send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.placement import Labels, labels_of, local_shape, parse_placement
from tvm_distir.core.ir.types import element_type, static_shape, tensor_type
from tvm_distir.core.ops.dims import size_bytes

from .shards import lacking_elements, terms_move, terms_of
from .steps import Step, exchange_step


@dataclass(frozen=True)
class StepTraffic:
    """The communication of a step.

    Attributes
    ----------
    kind : str
        The kind of the step; ``exchange`` too for a ``reduce_scatter`` that moves terms
        (:func:`.shards.terms_move`).
    axes : tuple of int
        Mesh axes whose product group takes part.
    payload_bytes : int
        The bytes of a rank's result, padding included; of an exchange, the most bytes that a rank
        receives.
    """

    kind: str
    axes: tuple[int, ...]
    payload_bytes: int


def step_transfer(
    shape: Sequence[int], before: Labels, step: Step, mesh: Sequence[int], dtype: str
) -> StepTraffic:
    """Return the communication of a step from a placement."""
    if step.kind == "exchange":
        return _exchanging(shape, before, step, mesh, dtype)
    if step.kind == "reduce_scatter" and step.split_dim is not None:
        move = terms_move(shape, before, step.axes, step.split_dim, mesh)
        if move is not None:
            moving = exchange_step(move.before, move.after)
            return _exchanging(move.shape, move.before, moving, mesh, dtype)
    result = [int(n) for n in local_shape(shape, step.after, mesh)]
    if step.gather_dim is not None:
        count = math.prod(mesh[a] for a in step.axes)
        result[step.gather_dim] = count * int(local_shape(shape, before, mesh)[step.gather_dim])
    return StepTraffic(step.kind, step.axes, size_bytes(tuple(result), dtype))


def _exchanging(
    shape: Sequence[int], before: Labels, step: Step, mesh: Sequence[int], dtype: str
) -> StepTraffic:
    elements = lacking_elements(shape, before, step.after, mesh)
    return StepTraffic("exchange", step.axes, size_bytes((elements,), dtype))


def local_bytes(ty: ir.Type) -> int:
    """Return the bytes of a device's (padded) part of a tensor; symbolic dims count as 1."""
    tensor, shape = tensor_type(ty), static_shape(ty)
    if tensor is None or shape is None:
        return 0
    if isinstance(ty, DTensorType):
        shape = tuple(local_shape(shape, labels_of(ty.placement), mesh_shape(ty.device_mesh)))
    return size_bytes(tuple(n if isinstance(n, int) else 1 for n in shape), str(tensor.dtype))


def payload_bytes(kind: str, call: ir.Call, ty: ir.Type) -> int:
    """Return the bytes of a device's result; of an exchange, the most that a device receives."""
    if kind != "exchange":
        return local_bytes(ty)
    if (move := terms_of(call)) is not None:
        shape, before, after = move.shape, move.before, move.after
    else:
        shape = tuple(int(n) for n in call.attrs["shape"])
        before, after = (
            parse_placement(str(call.attrs[key])) for key in ("placement", "peer_placement")
        )
    elements = lacking_elements(shape, before, after, mesh_shape(call.attrs["device_mesh"]))
    return size_bytes((elements,), element_type(ty))
