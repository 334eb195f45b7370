# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find a minimal set of constraints that leaves no mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from .candidates import Enumeration
from .constraints import Constraints

Part = tuple[str, str]
"""Field of :class:`Constraints`, and the name of an axis."""


def contradiction(enumeration: Enumeration) -> tuple[str, ...]:
    """Return the smallest set of constraints that leaves nothing, the first of several, in words.

    Micro-batches that do not divide the batch are part of it where sizes of axes alone leave some.
    """
    rules = enumeration.constraints
    parts: list[Part] = [("most", axis) for axis in rules.most]
    parts += [("fixed", axis) for axis in rules.fixed]
    parts += [("inside_node", axis) for axis in rules.inside_node]
    for count in range(len(parts) + 1):
        for chosen in itertools.combinations(parts, count):
            if not _has_candidate(enumeration, _only(rules, chosen)):
                return (
                    *[_words(rules, rule) for rule in chosen],
                    *_micro_batches_text(enumeration, chosen),
                )
    return ()


def _micro_batches_text(enumeration: Enumeration, chosen: Iterable[Part]) -> tuple[str, ...]:
    """Return the micro-batches in words, if other sizes would leave a candidate."""
    constraints = enumeration.constraints
    rules = replace(_only(constraints, chosen), micro_batches=(1,), counts=())
    if enumeration.batch is None or not _has_candidate(enumeration, rules, any_batch=True):
        return ()
    numbers = ",".join(map(str, constraints.counts or constraints.micro_batches))
    micro_batches = (
        f"{numbers} micro-batches" if constraints.counts else f"micro-batches of {numbers}"
    )
    return (f"{micro_batches} in a batch of {enumeration.batch}",)


def _only(rules: Constraints, parts: Iterable[Part]) -> Constraints:
    chosen = set(parts)
    return replace(
        rules,
        most={a: n for a, n in rules.most.items() if ("most", a) in chosen},
        fixed={a: n for a, n in rules.fixed.items() if ("fixed", a) in chosen},
        inside_node=tuple(a for a in rules.inside_node if ("inside_node", a) in chosen),
    )


def _has_candidate(
    enumeration: Enumeration, rules: Constraints, *, any_batch: bool = False
) -> bool:
    """Return whether some candidate is left."""
    batch = enumeration.devices if any_batch else enumeration.batch  # of which all parts are whole
    trial = Enumeration(
        rules, enumeration.devices, enumeration.system, batch, stages=enumeration.stages
    )
    return next(iter(trial), None) is not None


def _words(rules: Constraints, part: Part) -> str:
    kind, axis = part
    if kind == "inside_node":
        return f"{axis} inside a node"
    if kind == "most":
        return f"{axis} at most {rules.most[axis]}"
    return f"{axis}={rules.fixed[axis]}"
