# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shard the residual stream between the blocks along the sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import relax

from tvm_distir.core.ir import is_private, static_shape
from tvm_distir.core.plan import MeshSpec, PlanRule
from tvm_distir.support import PlanError

from .consumers import Consumers, Residual
from .model_info import some_axes
from .transformer_weights import KnownWeight

SEQ_DIM = 1
"""The position of the sequence in (batch, seq, hidden)."""

_MATRIX = 2


def sequence_rules(
    rows: Sequence[KnownWeight],
    consumers: Consumers,
    rule_name: str | None,
    mesh: MeshSpec,
    axes: Sequence[str],
) -> list[PlanRule]:
    """Return the rules that shard the residual stream along the sequence, each target once.

    The results of experts are permuted and weighted before they are added to the stream: where a
    function has stacked weights, the stream is followed from one addition to the next.

    ``axes``: the mesh axes that cut it, all of them; a sequence that they do not divide is padded.
    """
    placement = some_axes(mesh, {mesh.axis_number(axis): SEQ_DIM for axis in axes})
    count = math.prod(mesh.axes[axis] for axis in axes)
    rules: dict[tuple[object, ...], PlanRule] = {}
    for location, residual in _residuals(rows, consumers):
        _check_sequence(residual.total, count, axes[0], location)
        fn = consumers.functions[residual.function]
        where = residual.function if is_private(fn) else rule_name
        if is_private(fn) and residual.before in list(fn.params):
            arg = list(fn.params).index(residual.before)
            for caller in consumers.callers.get(residual.function, ()):
                inside = caller if is_private(consumers.functions[caller]) else rule_name
                rules[caller, residual.function, arg] = PlanRule(
                    "call", residual.function, placement, mesh.name, function=inside, arg=arg
                )
        for value in (residual.before, residual.total):
            if isinstance(value, relax.Var) and value not in list(fn.params):
                name = str(value.name)
                rules[residual.function, name] = PlanRule(
                    "value", name, placement, mesh.name, function=where
                )
    return list(rules.values())


def _residuals(rows: Sequence[KnownWeight], consumers: Consumers) -> Iterator[tuple[str, Residual]]:
    """Yield the additions to the residual stream, each with the place of a weight for messages."""
    unknown: dict[str, str] = {}
    additions: list[tuple[str, Residual]] = []
    for weight in rows:
        location = f"{weight.parameter.location} (megatron:sequence=1)"
        for use in weight.uses:
            residual = consumers.residual(use.function, use.result)
            if residual is not None:
                additions.append((location, residual))
            elif weight.parameter.ndim > _MATRIX:
                unknown[use.function] = location
            else:
                raise _unknown_stream(location)
    for location, residual in additions:
        following: Residual | None = residual
        while following is not None:
            yield location, following
            goes_on = following.function in unknown
            following = consumers.residual(following.function, following.total) if goes_on else None
    left = unknown.keys() - {residual.function for _, residual in additions}
    if left:
        raise _unknown_stream(unknown[min(left)])


def _unknown_stream(location: str) -> PlanError:
    return PlanError(
        "DIST0233",
        "the projection's result is not added to a value of its shape, so that the residual stream "
        "is unknown",
        location=location,
        remedy="Use megatron without sequence=1, or write the plan by hand.",
    )


def _check_sequence(total: Any, count: int, axis: str, location: str) -> None:
    shape = static_shape(total.ty)
    if shape is None or len(shape) != 3:
        raise PlanError(
            "DIST0233", f"the residual stream has the shape {shape}, not (batch, seq, hidden)",
            location=location, remedy="Use megatron without sequence=1.",
        )  # fmt: skip
    if shape[SEQ_DIM] < count:
        problem = f'the sequence {shape[SEQ_DIM]} is shorter than the mesh axis "{axis}" ({count})'
        remedy = "Use fewer devices along it."
        raise PlanError("DIST0234", problem, location=location, remedy=remedy)
