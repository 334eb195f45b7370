# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the limits on sharding a dim of a value further."""

from __future__ import annotations

from tvm_distir.core.ir import ceil_div
from tvm_distir.core.propagation import divisible, fits

from .findings import Dim
from .subject import Subject


class Limits:
    """The limits that sizes and neighboring ops set to sharding a value.

    Parameters
    ----------
    subject : Subject
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def dim(self, d: int) -> Dim:
        """Return size, axes and obstacles of dim ``d``."""
        s = self.subject
        size = s.value.shape[d]
        sharding = tuple(s.axis_name(i) for i, label in enumerate(s.labels) if label == d)
        obstacles = [self.size_obstacle(d, i) for i in range(len(s.axes))]
        for uses, side, verb in (
            (s.producers(s.inst, s.v), "out", "produces"),
            (s.consumers(s.inst, s.v), "in", "requires"),
        ):
            for inst, k, j in uses:
                rule = inst.graph.nodes[k].rule
                why = rule.why_replicated.get(f"{side}{j}.dim{d}") if rule is not None else None
                if why:
                    obstacles.append(f"{s.node_text(inst, k)} {verb} it replicated: {why}")
        return Dim(d, str(size), sharding, tuple(dict.fromkeys(filter(None, obstacles))))

    def size_obstacle(self, d: int, i: int) -> str:
        """Return how the size of a dim limits an axis: not at all, by padding, or always."""
        s = self.subject
        size, ranks, occupied = s.value.shape[d], s.ranks(i), s.other_ranks(d, i)
        if divisible(size, ranks * occupied):
            return ""
        over = f'"{s.axis_name(i)}" ({ranks})'
        if occupied > 1:
            over += f", with {occupied} shards along other axes"
        if not fits(size, ranks, occupied, True):
            return f"{size} is too small for {over}: some devices would have empty shards"
        padded = ceil_div(int(size), ranks * occupied) * ranks * occupied
        return f"{size} is not divisible by {over}: the shards would be padded to {padded} in total"
