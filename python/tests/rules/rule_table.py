# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""All calls whose rules are proved, and the ops that are not, with the reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import cases_elementwise
import cases_indexing
import cases_layout
import cases_products
import cases_reduced
from rule_harness import Case


def _numbered(cases: list[Case]) -> list[Case]:
    """The same cases under distinct names."""
    seen: Counter[str] = Counter()
    found = []
    for c in cases:
        seen[c.name] += 1
        again = seen[c.name] > 1
        found.append(dataclasses.replace(c, name=f"{c.name} #{seen[c.name]}") if again else c)
    return found


TABLE: tuple[Case, ...] = tuple(
    _numbered(
        [
            *cases_elementwise.CASES,
            *cases_products.CASES,
            *cases_layout.CASES,
            *cases_indexing.CASES,
            *cases_reduced.CASES,
        ]
    )
)

#: Ops with a rule that no case proves, and why not.
UNPROVED = {
    "relax.call_tir": "its kernels are those of test_rules_derived.py, proved there",
    "relax.call_tir_with_grad": "a call_tir with a mark: the same code derives the rule",
    "relax.dist.annotate_sharding": "a mark, taken away before anything runs",
    "relax.dist.redistribute": "moves data between placements: nothing is computed",
    "relax.hint_on_device": "a mark on a value",
    "relax.builtin.stop_lift_params": "a mark on a value",
    "relax.to_vdevice": "a mark on a value",
    "relax.multinomial_from_uniform": "nothing may be cut, and TVM has no CPU kernel of it",
}

#: Ops of which nothing may be cut, whatever the call.
WHOLE = (
    "relax.arange",
    "relax.eye",
    "relax.eye_like",
    "relax.hamming_window",
    "relax.shape_to_tensor",
    "relax.size",
    "relax.vision.all_class_non_max_suppression",
)


def quick() -> list[Case]:
    """The first case of every op, and every sixteenth of the others."""
    first: list[Case] = []
    others: list[Case] = []
    seen: set[str] = set()
    for c in TABLE:
        (others if c.op in seen else first).append(c)
        seen.add(c.op)
    return [*first, *others[::16]]


def chunks(cases: Sequence[Case], size: int = 60) -> list[list[Case]]:
    """Cases compiled together."""
    return [list(cases[i : i + size]) for i in range(0, len(cases), size)]
