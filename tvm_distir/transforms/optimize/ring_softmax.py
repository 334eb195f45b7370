# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find softmaxes over keys, as a single op or written out with maximum and sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.rewriting import op_name

from .function_facts import Row

SOFTMAX = "nn.softmax"


@dataclass(frozen=True)
class Softmax:
    """Softmax over the last dim.

    Attributes
    ----------
    scores : Var
        The operand of the softmax.
    weights : Var
        The result of the softmax.
    top, total : Var or None
        The maximum of the scores, (..., 1), and the sum of their exponentials below it, (..., 1),
        where these are separate values.
    """

    scores: Any
    weights: Any
    top: Any = None
    total: Any = None


def written_softmaxes(
    rows: Iterable[Row], values: Mapping[Any, Any], readers: Mapping[Any, Sequence[Any]]
) -> tuple[dict[Any, Softmax], set[Any]]:
    """Find ``exp(x - max(x)) / sum(exp(x - max(x)))`` over the last dim.

    Returns
    -------
    softmaxes : dict of Var to Softmax
    parts : set of Var
        Maximum, difference, exponential and sum of each.
    """
    softmaxes: dict[Any, Softmax] = {}
    parts: set[Any] = set()
    for _, var, value, _ in rows:
        if op_name(value) != "divide":
            continue
        raised, total = value.args
        moved = _operands(values, raised, "exp")
        summed = _operands(values, total, "sum")
        pair = _operands(values, moved[0], "subtract") if moved else None
        if not pair or not summed or not summed[0].same_as(raised):
            continue
        scores, top = pair
        highest = _operands(values, top, "max")
        if not highest or not highest[0].same_as(scores):
            continue
        last = len(var.ty.shape) - 1
        if not all(_over_last(values[v], last) for v in (top, total)):
            continue
        if len(readers[raised]) == 2 and len(readers[moved[0]]) == 1:
            softmaxes[var] = Softmax(scores, var, top, total)
            parts.update((top, moved[0], raised, total))
    return softmaxes, parts


def _operands(values: Mapping[Any, Any], var: Any, name: str) -> list[Any]:
    """Return the arguments of a call of an op bound to a variable, or none."""
    value: Any = values.get(var)
    return list(value.args) if op_name(value) == name else []


def _over_last(call: Any, last: int) -> bool:
    axes = call.attrs.axis
    named = axes is not None and [int(a) % (last + 1) for a in axes] == [last]
    return named and bool(call.attrs.keepdims)
