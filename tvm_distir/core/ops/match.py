# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds the factor of a rule that a call follows along a mesh axis, given the labels around it."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.core.ir.placement import P, R
from tvm_distir.support import PropagationError

from .factor import Factor, Rule

Label = int | None


def _fits(label: Label, dim: int | None) -> bool:
    return label is None or label == (R if dim is None else dim)


def follows(factor: Factor, in_labels: Sequence[Label], out_labels: Sequence[Label]) -> bool:
    """Return whether the labels are those of the factor; results of a reduction may be R or P."""
    if not all(map(_fits, in_labels, factor.ins)):
        return False
    return all(
        label in (None, R, P) if factor.leaves_terms(i) else _fits(label, factor.outs[i])
        for i, label in enumerate(out_labels)
    )


def _carries(rule: Rule, in_labels: Sequence[Label]) -> bool:
    """Return whether the partial operands make up a linear group and nothing is sharded."""
    partial = {i for i, label in enumerate(in_labels) if label == P}
    if any(label is not None and label >= 0 for label in in_labels):
        return False
    free = {i for i, label in enumerate(in_labels) if label is None}
    return any(partial <= set(g) and set(g) <= partial | free for g in rule.linear)


def _word(label: Label) -> str:
    if label is None:
        return "any"
    return "R" if label == R else "P" if label == P else f"S({label})"


def _words(labels: Sequence[Label]) -> str:
    return ", ".join(_word(x) for x in labels) or "none"


def describe_factor(factor: Factor) -> str:
    """Format a factor: ``S(0), R -> S(0)``, with ``P(sum)`` for a reduction."""
    ins = _words([R if d is None else d for d in factor.ins])
    outs = [
        f"P({factor.kind})" if factor.leaves_terms(i) else _word(R if d is None else d)
        for i, d in enumerate(factor.outs)
    ]
    return f"{ins} -> {', '.join(outs) or 'none'}"


def match_factor(
    rule: Rule, in_labels: Sequence[Label], out_labels: Sequence[Label], location: str = ""
) -> int | None:
    """Find the factor a call follows along a mesh axis.

    Parameters
    ----------
    rule : Rule
        The rule of the call.
    in_labels, out_labels : sequence of int or None
        The label of each flattened operand and result: a dim, ``R`` (-1) or ``P`` (-2); None where
        any will do (a constant, which is available in every placement).
    location : str
        The place of the call, for the message.

    Returns
    -------
    int or None
        Number of the factor; None when the call is replicated on the axis, or carries partial sums
        through a linear group.

    Raises
    ------
    PropagationError
        DIST0405 when no factor fits.
    """
    counts = (len(rule.in_bytes), len(rule.out_bytes))
    if (len(in_labels), len(out_labels)) != counts:
        raise PropagationError(
            "DIST0405",
            f"{len(in_labels)} operand and {len(out_labels)} result labels for a call "
            f"of {counts[0]} and {counts[1]}",
            location=location or rule.op,
            remedy="Give one label per flattened tensor.",
        )
    if all(x in (None, R) for x in in_labels) and all(x in (None, R) for x in out_labels):
        return None
    for number, factor in enumerate(rule.factors):
        if follows(factor, in_labels, out_labels):
            return number
    if _carries(rule, in_labels) and all(x in (None, R, P) for x in out_labels):
        return None
    known = "; ".join(describe_factor(f) for f in rule.factors) or "none: it must be replicated"
    reasons = [
        f"{key}: {why}"
        for side, labels in (("in", in_labels), ("out", out_labels))
        for i, label in enumerate(labels)
        if label is not None
        and label >= 0
        and (why := rule.why_replicated.get(key := f"{side}{i}.dim{label}")) is not None
    ]
    tail = f" ({'; '.join(reasons)})" if reasons else ""
    raise PropagationError(
        "DIST0405",
        f"operands {_words(in_labels)} and results {_words(out_labels)} fit no factor "
        f"of {rule.op}{tail}",
        location=location or rule.op,
        remedy=f"Redistribute to one of: {known}.",
    )
