# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the cost of other placements of a value by solving the module again for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm import ir

from tvm_distir.core.ir import R, handle, placement_text
from tvm_distir.core.plan import OpenLabels
from tvm_distir.core.propagation import Costs, Decision, fits, propagate
from tvm_distir.support import DistIRError

from .findings import AxisReason, ExplainedCollective, OtherPlacement
from .instances import InstanceIndex
from .limits import Limits
from .pinning import annotate_otherwise, annotated_labels, annotation_of
from .subject import Subject
from .traffic import ExecutionTraffic, traffic_cost_bytes, traffic_of

if TYPE_CHECKING:
    from tvm import relax


class PlacementTrials:
    """Solves for other placements of a value.

    Parameters
    ----------
    subject : Subject
    limits : Limits
        Limits of the same value, which exclude placements without solving.
    costs : Costs, optional
        The weights propagation decides with.
    complete : bool
        Whether it may shard anything that annotations leave open.
    """

    def __init__(
        self, subject: Subject, limits: Limits, costs: Costs | None, complete: bool = False
    ) -> None:
        self.subject, self.limits, self.costs, self.complete = subject, limits, costs, complete

    def each(
        self, now: ExecutionTraffic, reasons: tuple[AxisReason, ...]
    ) -> Iterator[OtherPlacement]:
        """Yield the solution of every other label along every axis."""
        s = self.subject
        var = self._variable()
        if var is None:
            return
        fn = s.index.mod[s.target.function]
        binding = annotation_of(fn, var)
        none: OpenLabels = (None,) * len(s.axes)
        labels = none if binding is None else annotated_labels(fn, binding)
        for i in range(len(s.axes)):
            claims = {label for label, _ in reasons[i].claims}
            current = s.labels[i] if labels[i] is None else labels[i]
            choices: list[int | None] = [*range(len(s.value.shape)), R]
            if labels[i] is not None:
                choices.append(None)
            for label in choices:
                if label == current:
                    continue
                if label is not None and label >= 0:
                    ranks, occupied = s.ranks(i), s.other_ranks(label, i)
                    if not fits(s.value.shape[label], ranks, occupied, True):
                        text = placement_text((label,))
                        why = self.limits.size_obstacle(label, i)
                        is_claimed = text in claims
                        yield OtherPlacement(
                            s.axis_name(i), text, text, is_claimed, None, None, impossible=why
                        )
                        continue
                tried_labels = (*labels[:i], label, *labels[i + 1 :])
                yield self._alternative(var, tried_labels, i, now, claims)

    def _variable(self) -> relax.Var | None:
        """Return a variable of the module that holds exactly this value."""
        s = self.subject
        g = s.inst.graph
        known = s.target.var is not None
        if known and g.env.get(handle(s.target.var)) == (s.v,):
            return s.target.var
        keys = (key for key, leaves in g.env.items() if leaves == (s.v,))
        return next((g.variables[key] for key in keys), None)

    def _alternative(
        self, var: relax.Var, labels: OpenLabels, i: int, now: ExecutionTraffic, claims: set[str]
    ) -> OtherPlacement:
        """Solve the module with the value annotated otherwise."""
        s = self.subject
        label, name = labels[i], s.axis_name(i)
        text = "?" if label is None else placement_text((label,))
        try:
            mod, function = s.index.mod, s.target.function
            other = annotate_otherwise(mod, function, var, s.value.mesh, labels)
            decision = propagate(other, self.costs, complete=self.complete)
        except DistIRError as error:  # the answer to what this placement would cost: it cannot be
            why = f"{error.code} {error.what}"
            return OtherPlacement(name, text, text, text in claims, None, None, impossible=why)
        then = traffic_of(decision)
        becomes = text
        if label is None or any(var.same_as(p) for p in other[s.target.function].params):
            becomes = self._found_label(other, decision, i)
        kinds = sorted({*now.counts, *then.counts})
        changes = [
            ExplainedCollective(
                kind,
                axis,
                then.counts[kind, axis] - now.counts[kind, axis],
                then.wire_bytes[kind, axis] - now.wire_bytes[kind, axis],
            )
            for kind, axis in kinds
        ]
        return OtherPlacement(
            name,
            text,
            becomes,
            text in claims or label in (None, R),
            traffic_cost_bytes(then, decision) - traffic_cost_bytes(now, decision),
            cost_bytes(decision) - cost_bytes(s.decision),
            then.total_sent_bytes - now.total_sent_bytes,
            then.flops - now.flops,
            then.memory_bytes - now.memory_bytes,
            then.held_bytes - now.held_bytes,
            tuple(c for c in changes if c.count or c.wire_bytes),
        )

    def _found_label(self, other: ir.IRModule, decision: Decision, i: int) -> str:
        """Return the value's label along axis ``i``; its number is unchanged."""
        s = self.subject
        texts = [
            placement_text((decision.route(inst, s.v).root[i],))
            for inst in InstanceIndex(other, decision).specialisations(s.target.function)
        ]
        return " or ".join(sorted(set(texts)))


def cost_bytes(decision: Decision) -> float:
    """Return the propagation's cost of a decision, in bytes on the wire."""
    costs = decision.conversions.costs
    return (decision.cost << costs.shift) / costs.wire
