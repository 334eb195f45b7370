# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the calls that validate rules, and the ops without such a call, with the reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from tvm_distir.core import load_entry_points, own_ops, registered_ops, registration_of
from tvm_distir.execution.rule_validation.cases import Case

from . import elementwise, indexing, layout_cases, products, reduced


def _numbered(cases: Sequence[Case]) -> list[Case]:
    """Return the same cases under distinct names."""
    seen: Counter[str] = Counter()
    result = []
    for c in cases:
        seen[c.name] += 1
        again = seen[c.name] > 1
        result.append(dataclasses.replace(c, name=f"{c.name} #{seen[c.name]}") if again else c)
    return result


TABLE: tuple[Case, ...] = tuple(
    _numbered(
        [
            *elementwise.CASES,
            *products.CASES,
            *layout_cases.CASES,
            *indexing.CASES,
            *reduced.CASES,
        ]
    )
)

#: Ops with a rule that no case proves, and why not.
UNPROVED = {
    "relax.call_tir": "its kernels are validated by test_rules_derived.py",
    "relax.call_tir_with_grad": "it is a variant of call_tir, whose rule the same code derives",
    "relax.dist.annotate_sharding": "it is a marker that is removed before a run",
    "relax.dist.redistribute": "it moves data between placements and computes nothing",
    "relax.hint_on_device": "it is a marker on a value",
    "relax.builtin.stop_lift_params": "it is a marker on a value",
    "relax.to_vdevice": "it is a marker on a value",
    "relax.multinomial_from_uniform": "no dim can be sharded, and TVM has no CPU kernel for it",
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
    """Return the first case of every op, and every sixteenth of the others."""
    first: list[Case] = []
    others: list[Case] = []
    seen: set[str] = set()
    for c in TABLE:
        (others if c.op in seen else first).append(c)
        seen.add(c.op)
    return [*first, *others[::16]]


def all_cases() -> tuple[list[Case], dict[str, str]]:
    """Return the cases of all rules, those of packages and users included.

    Returns
    -------
    cases : list of Case
        The cases. Where a rule that ships is replaced, only those of its registration are returned.
    unproved : dict of str to str
        Ops with a hand-written rule that no case proves, and why not.
    """
    load_entry_points()
    shipped = own_ops()
    cases = [c for c in TABLE if c.op in shipped or registration_of(c.op) is None]
    for name in registered_ops():
        registration = registration_of(name)
        if registration is not None and registration.examples is not None and name not in shipped:
            cases += [c for c in registration.examples() if c.op == name]
    named = {c.op for c in cases}
    reasons = {
        name: UNPROVED.get(name, "its registration has no examples")
        for name in (*registered_ops(), *UNPROVED)
        if name not in named
    }
    return _numbered(cases), reasons
