# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide between several rules for a tensor, and report rules that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_distir.support import PlanError

from .name_patterns import is_pattern
from .schema import PlanRule, labels_text

if TYPE_CHECKING:
    from tvm.ir import Expr

EVERYTHING = "*"
"""The pattern of default rules, which more specific rules override."""


def give(rules: dict[int | Expr, PlanRule], key: int | Expr, rule: PlanRule, location: str) -> None:
    """Add a rule of a tensor, merged with an earlier rule (DIST0239 if they contradict)."""
    other = rules.get(key)
    if other is None or _rank(rule) > _rank(other):
        rules[key] = rule
        return
    if _rank(rule) < _rank(other):
        return
    is_equal = (rule.mesh, rule.stationary, rule.moving) == (
        other.mesh,
        other.stationary,
        other.moving,
    )
    pairs = list(zip(other.placement, rule.placement, strict=False))
    is_equal = is_equal and (not rule.segments or other.segments in ((), rule.segments))
    if not is_equal or any(None not in (old, new) and old != new for old, new in pairs):
        titles = [f'{x.title} "{labels_text(x.placement)}" on "{x.mesh}"' for x in (other, rule)]
        problem = f"the rules {titles[0]} and {titles[1]} contradict each other"
        remedy = "Remove one of them, or name the tensor: a name takes precedence over a pattern."
        raise PlanError("DIST0239", problem, location=location, remedy=remedy)
    merged = tuple(old if new is None else new for old, new in pairs)
    rules[key] = replace(rule, placement=merged, segments=rule.segments or other.segments)


def _rank(rule: PlanRule) -> int:
    """Return the specificity of a rule: highest for a tensor, lowest for everything."""
    if rule.kind == "call":
        return 2 if rule.index is not None else 1
    if not is_pattern(rule.name):
        return 2
    return 0 if rule.name == EVERYTHING else 1
