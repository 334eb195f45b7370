# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the reasons for a value's label along an axis."""

from __future__ import annotations

from tvm_distir.core.ir import P, placement_text

from .chains import AnnotationChain, Chains
from .findings import AxisReason
from .subject import Subject

MOST_ALSO = 8
"""Further annotations named per axis."""


class Reasons:
    """The reasons for the labels of a value.

    Parameters
    ----------
    subject : Subject
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def of(self, i: int) -> AxisReason:
        """Return why the label along mesh axis ``i`` is what it is."""
        s = self.subject
        chains, axis = Chains(s.index, s.axes[i]), s.decision.axes[s.axes[i]]
        label, node = s.labels[i], s.inst.graph.nodes[s.inst.graph.producer[s.v][0]]
        claims, also = self._claims(chains)
        here = s.index.qualified_name(s.inst, s.v)
        chain: AnnotationChain | None = None
        reason = "cheapest" if claims else "unreached"
        if node.pin is not None and node.pin_on(axis) and node.pin[axis.index] == label:
            chain, reason = AnnotationChain(here, (), True), "annotated"
            if label < 0:
                claims = [(placement_text((label,)), here), *claims]
        elif s.produced[i] == P:
            chain, reason = chains.of_partial(s.inst, s.v), "summed"
        elif label >= 0:
            chain = chains.to(s.inst, s.v, label)
            reason = "followed" if chain is not None and chain.followed else "tied"
        else:
            chain = chains.requested(s.inst, s.v)
            reason = "followed" if chain is not None else reason
        annotation = chain.annotation if chain is not None else ""
        others = [name for name in also.get(label, []) if name != annotation]
        return AxisReason(
            axis=s.axis_name(i),
            size=s.ranks(i),
            label=placement_text((label,)),
            produced=placement_text((s.produced[i],)),
            reason=reason,
            annotation=annotation,
            steps=chain.steps if chain is not None else (),
            also=tuple(others[:MOST_ALSO]),
            claims=tuple(claims),
        )

    def _claims(self, chains: Chains) -> tuple[list[tuple[str, str]], dict[int, list[str]]]:
        """Return labels annotations reach the value with, and all annotations of each."""
        s = self.subject
        claims, every = [], {}
        for d in range(len(s.value.shape)):
            annotations = chains.annotations(s.inst, s.v, d)
            if annotations:
                claims.append((placement_text((d,)), annotations[0]))
                every[d] = annotations
        return claims, every
