# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the calls that validate the rules that ship, and the ops without a call, with the reason."""

from __future__ import annotations

from tvm_distir.execution.rule_validation.cases import Case, numbered

from . import elementwise, indexing, layout_cases, products, reduced

TABLE: tuple[Case, ...] = tuple(
    numbered(
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
