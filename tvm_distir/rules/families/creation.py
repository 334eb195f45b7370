# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that make tensors from nothing, or draw them."""

from __future__ import annotations

from ..draft import CallShape, Draft
from ..registry import register_sharding_rule


@register_sharding_rule("relax.full", "relax.zeros", "relax.ones")
def filled(call: CallShape) -> Draft:
    """One value everywhere: any dim can be cut."""
    draft = Draft(call)
    for d in range(len(call.outs[0])):
        draft.tie({}, {0: d})
    return draft


@register_sharding_rule("relax.full_like", "relax.zeros_like", "relax.ones_like")
def filled_like(call: CallShape) -> Draft:
    """One value everywhere, cut like the operand (which is not read)."""
    draft = Draft(call)
    for d in range(len(call.outs[0])):
        draft.tie({0: d}, {0: d})
    draft.work(0, in_bytes={0: 0})
    return draft


@register_sharding_rule("relax.arange", "relax.eye", "relax.eye_like", "relax.hamming_window")
def positional(call: CallShape) -> Draft:
    """Values depend on the position: all dims are whole."""
    draft = Draft(call)
    draft.default_why = "its values depend on the position"
    return draft


@register_sharding_rule("relax.multinomial_from_uniform")
def sampled(call: CallShape) -> Draft:
    """Drawn samples: all dims are whole."""
    draft = Draft(call)
    draft.default_why = "samples are drawn: all devices must draw the same"
    draft.per_element()
    return draft
