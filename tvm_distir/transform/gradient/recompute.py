# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recomputation: what the backward part of a function makes again instead of keeping it.

Policies, each for a function's forward bindings, what its backward part reads, and its parameters:

- ``none`` keeps all but views of what is at hand anyway;
- ``selective`` makes again what takes few FLOPs per byte (Korthikanti et al. 2022, section 5): all
  but contractions, and of these the ones with at most :data:`CHEAP` of the work per byte of the
  function's densest, as the products of attention have;
- ``full`` keeps nothing: the backward part runs the forward part again (Chen et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir

from ...errors import ModelError, PropagationError, nearest, shortened
from ...ir import flat_types, known_shape
from ...ir.rewrite import variables
from ...ops import size_bytes, work_of
from ...plan import match_name
from .saving import kept_and_again

Kept = tuple[list[Any], list[Any]]
"""Variables that are kept, and bindings that are made again, in order."""

Policy = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Kept]

CHEAP = 1 / 8
"""Most work per byte, relative to the densest contraction of a function, of what is made again."""

NONE, SELECTIVE, FULL = "none", "selective", "full"


def _again(forward: Sequence[Any], read: Sequence[Any], cheap: Callable[[Any], bool]) -> Kept:
    """Follow what is read back through cheap bindings; keep where that ends."""
    values = {binding.var: binding for binding in forward}
    made: set[Any] = set()
    kept: set[Any] = set()
    waiting = list(read)
    while waiting:
        var = waiting.pop()
        if var not in values or var in made or var in kept:
            continue
        if cheap(values[var]):
            made.add(var)
            waiting.extend(variables(values[var].value))
        else:
            kept.add(var)
    return (
        [binding.var for binding in forward if binding.var in kept],
        [binding for binding in forward if binding.var in made],
    )


def full(forward: Sequence[Any], read: Sequence[Any], params: Sequence[Any]) -> Kept:
    """Keep nothing."""
    return _again(forward, read, lambda _: True)


def selective(forward: Sequence[Any], read: Sequence[Any], params: Sequence[Any]) -> Kept:
    """Make again what is cheap; all as ``none`` has it where that keeps no less."""
    density = {binding.var: _density(binding.value) for binding in forward}
    most = max((d for d in density.values() if math.isfinite(d)), default=0.0)
    found = _again(forward, read, lambda b: density[b.var] <= CHEAP * most)
    plain = kept_and_again(forward, read, params)
    return found if kept_bytes(found[0]) < kept_bytes(plain[0]) else plain


def _density(value: Any) -> float:
    """FLOPs per byte of what a binding makes; infinite for calls of functions."""
    if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
        return math.inf
    if not isinstance(value, ir.Call):
        return 0.0
    try:
        work = work_of(value)
    except PropagationError:  # an op without a rule: nobody knows what it costs
        return math.inf
    return work.flops / max(sum(work.out_bytes), 1)


def kept_bytes(kept: Sequence[Any]) -> int:
    """Bytes of some variables; symbolic sizes count as one."""
    total = 0
    for var in kept:
        for ty in flat_types(var.ty):
            shape = tuple(n if isinstance(n, int) else 1 for n in known_shape(ty) or ())
            total += size_bytes(shape, str(ty.dtype))
    return total


POLICIES: Mapping[str, Policy] = {NONE: kept_and_again, SELECTIVE: selective, FULL: full}


class Recompute:
    """Which policy each function has.

    Parameters
    ----------
    text : str
        A policy, or ``NAME=POLICY,...`` with patterns of names; of several that fit the last
        counts, and functions that none fits keep all.

    Raises
    ------
    ModelError
        DIST0351 for an unknown policy.
    """

    def __init__(self, text: str = NONE) -> None:
        parts = [part.strip() for part in text.split(",")] if "=" in text else [f"*={text}"]
        self.rules = [tuple(map(str.strip, part.rpartition("=")[::2])) for part in parts]
        for _, policy in self.rules:
            if policy not in POLICIES:
                raise ModelError(
                    "DIST0351",
                    f'recompute is "{shortened(policy)}"',
                    place="train_step",
                    remedy=nearest(policy, POLICIES),
                )

    def check(self, names: Sequence[str]) -> None:
        """Refuse a pattern that no function fits (ModelError DIST0351)."""
        for pattern, _ in self.rules:
            if pattern != "*" and not any(match_name(pattern, name) for name in names):
                raise ModelError(
                    "DIST0351",
                    f'recompute names "{shortened(pattern)}", and no private function is called so',
                    place="train_step",
                    remedy=nearest(pattern, names),
                )

    def of(self, name: str) -> Policy:
        """The policy of a function."""
        found = [policy for pattern, policy in self.rules if match_name(pattern, name)]
        return POLICIES[found[-1] if found else NONE]
