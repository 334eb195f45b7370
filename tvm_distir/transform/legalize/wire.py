# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the steps of a redistribution send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir import Labels, local_shape
from ...rules.dims import size_bytes
from .shards import lacking_elements, terms_move
from .steps import Step, exchange_step


@dataclass(frozen=True)
class Wire:
    """What a step is on the wire.

    Attributes
    ----------
    kind : str
        That of the step; ``exchange`` too for a ``reduce_scatter`` that moves terms
        (:func:`.shards.terms_move`).
    axes : tuple of int
        Mesh axes whose product group takes part.
    payload_bytes : int
        Bytes of one rank's result, padding included; of an exchange, the most one receives.
    """

    kind: str
    axes: tuple[int, ...]
    payload_bytes: int


def step_wire(
    shape: Sequence[int], before: Labels, step: Step, mesh: Sequence[int], dtype: str
) -> Wire:
    """Return what a step from a placement sends."""
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
    return Wire(step.kind, step.axes, size_bytes(tuple(result), dtype))


def _exchanging(
    shape: Sequence[int], before: Labels, step: Step, mesh: Sequence[int], dtype: str
) -> Wire:
    elements = lacking_elements(shape, before, step.after, mesh)
    return Wire("exchange", step.axes, size_bytes((elements,), dtype))
