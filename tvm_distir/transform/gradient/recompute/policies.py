# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Policies: what a function keeps for its backward part, and what that makes again.

Each is for a function's forward bindings, what its backward part reads, and its parameters:

- ``none`` keeps all but views of what is at hand anyway;
- ``selective`` makes again what takes few FLOPs per byte (Korthikanti et al. 2022, section 5): all
  but contractions, and of these the ones with at most :data:`CHEAP` of the work per byte of the
  function's densest, as the products of attention have;
- ``full`` keeps nothing: the backward part runs the forward part again (Chen et al. 2016);
- ``cut:SHARE`` keeps at most that share of the bytes that ``none`` keeps, and takes least time by
  a minimum cut (:mod:`.frontier`).

``attention`` also writes what it keeps anew (:mod:`.attention`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir

from ....errors import PropagationError
from ....ir.rewrite import variables
from ....ops import work_of
from ....plan import FULL, SELECTIVE, share_of
from .frontier import Frontier
from .saving import kept_and_again, kept_bytes

Kept = tuple[list[Any], list[Any]]
"""Variables that are kept, and bindings that are made again, in order."""

CHEAP = 1 / 8
"""Most work per byte, relative to the densest contraction of a function, of what is made again."""


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


def full(forward: Sequence[Any], read: Sequence[Any]) -> Kept:
    """Keep nothing."""
    return _again(forward, read, lambda _: True)


def selective(
    forward: Sequence[Any], read: Sequence[Any], params: Sequence[Any], kernels: ir.IRModule
) -> Kept:
    """Make again what is cheap; all as ``none`` has it where that keeps no less."""
    density = {binding.var: _density(binding.value, kernels) for binding in forward}
    most = max((d for d in density.values() if math.isfinite(d)), default=0.0)
    found = _again(forward, read, lambda b: density[b.var] <= CHEAP * most)
    plain = kept_and_again(forward, read, params)
    return found if kept_bytes(found[0]) < kept_bytes(plain[0]) else plain


def _density(value: Any, kernels: ir.IRModule) -> float:
    """FLOPs per byte of what a binding makes; infinite for calls of functions."""
    if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
        return math.inf
    if not isinstance(value, ir.Call):
        return 0.0
    try:
        work = work_of(value, kernels, value.ty)
    except PropagationError:  # an op without a rule: nobody knows what it costs
        return math.inf
    return work.flops / max(sum(work.out_bytes), 1)


def kept_by(
    policy: str,
    forward: Sequence[Any],
    read: Sequence[Any],
    params: Sequence[Any],
    frontier: Frontier,
) -> Kept:
    """What a policy keeps and makes again; ``frontier``: of the same function."""
    share = share_of(policy)
    if policy == FULL:
        return full(forward, read)
    if policy == SELECTIVE:
        return selective(forward, read, params, frontier.times.kernels)
    if share is None:
        return kept_and_again(forward, read, params)
    most = share * kept_bytes(kept_and_again(forward, read, params)[0])
    fits = [point for point in frontier.points if point.size_bytes <= most]
    best = fits[-1] if fits else frontier.points[0]
    return list(best.kept), list(best.again)
