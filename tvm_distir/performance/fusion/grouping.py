# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide which ops of a function run as a single kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from tvm_distir.support import lists_by_key

from .dataflow import FLOATS, Dataflow
from .profile import FusionRule, Profile

MOST_APART = 512
"""Ops further apart in a function than this never share a kernel: they seldom touch."""


@dataclass
class Group:
    """Group of ops that a single kernel runs."""

    rule: FusionRule
    anchor: int
    members: set[int] = field(default_factory=set)


class Grouping:
    """Builder of groups: it grows them around anchors, rule by rule.

    Parameters
    ----------
    flow : Dataflow
    profile : Profile
    late : collection of int
        Ops that the backward pass issues.

    Attributes
    ----------
    groups : list of Group
    absorbed : set of int
        Ops that run inside whatever reads them.
    """

    def __init__(self, flow: Dataflow, profile: Profile, late: Collection[int]) -> None:
        self.flow, self.late = flow, late
        ops = flow.fn.ops
        self.absorbed = {
            number
            for number, op in enumerate(ops)
            if op.kind == "compute"
            and number not in flow.views
            and all(flow.fn.values[v].dtype in profile.absorb for v in op.outputs)
            and not (_reads_floats(flow, number) and any(r.begins(op.op) for r in profile.rules))
        }
        self._grouped: set[int] = {*flow.views, *self.absorbed}
        self._grouped.update(n for n, op in enumerate(ops) if op.kind != "compute")
        self.groups: list[Group] = []
        by_name = lists_by_key((op.op, number) for number, op in enumerate(ops))
        for rule in profile.rules:
            begun = [numbers for name, numbers in by_name.items() if rule.begins(name)]
            for number in sorted(itertools.chain.from_iterable(begun)):
                if number not in self._grouped and self._begins(rule, number):
                    self._grow(rule, number)

    def _begins(self, rule: FusionRule, number: int) -> bool:
        return self._issued(rule, number) and _is_multiple(self.flow, rule, number)

    def _issued(self, rule: FusionRule, number: int) -> bool:
        return rule.issue == "any" or (rule.issue == "autograd") == (number in self.late)

    def _grow(self, rule: FusionRule, anchor: int) -> None:
        group = Group(rule, anchor, {anchor})
        refused: set[int] = set()
        todo = [anchor]
        while todo:
            for number in self.flow.neighbours(todo.pop()):
                if number in group.members or number in self._grouped or number in refused:
                    continue
                if self._fits(group, anchor, number):
                    group.members.add(number)
                    todo.append(number)
                    todo.extend(sorted(group.members) if refused else ())
                    refused.clear()
                else:
                    refused.add(number)
        for number in self._siblings(group):
            if number not in self._grouped and not self.flow.closes_circle(group.members, number):
                group.members.add(number)
        if self._has_what_it_needs(group):
            self._grouped.update(group.members)
            self.groups.append(group)

    def _siblings(self, group: Group) -> list[int]:
        """Return the ops that a rule takes because they read what the group reads.

        In a backward pass these are ops that wait for a gradient, as what it computes again of the
        forward pass is launched before.
        """
        flow, names = self.flow, group.rule.siblings
        values = {value for n in group.members for value in flow.reads[n]} if names else ()
        return [
            number
            for value in sorted(values)
            for number in flow.readers[value]
            if flow.fn.ops[number].op in names
            and (number in self.late or not self.late)
            and flow.elements[value] == flow.elements[flow.fn.ops[number].outputs[0]]
        ]

    def _has_what_it_needs(self, group: Group) -> bool:
        ops = (self.flow.fn.ops[number].op for number in group.members)
        return not group.rule.needs or any(op in group.rule.needs for op in ops)

    def _fits(self, group: Group, anchor: int, number: int) -> bool:
        op = self.flow.fn.ops[number]
        return (
            abs(number - anchor) <= MOST_APART
            and not (group.rule.issue == "python" and number in self.late)
            and (
                (self.flow.casts and self.flow.is_cast(number))
                or group.rule.takes(op.op, partial(self.flow.qualifiers, number))
            )
            and not self.flow.closes_circle(group.members, number)
        )


def _reads_floats(flow: Dataflow, number: int) -> bool:
    return any(flow.fn.values[v].dtype in FLOATS for v in flow.fn.ops[number].inputs)


def _is_multiple(flow: Dataflow, rule: FusionRule, number: int) -> bool:
    shape = flow.fn.values[flow.fn.ops[number].inputs[0]].shape
    return math.prod(shape[:-2]) % rule.batch_multiple == 0


def plain(flow: Dataflow, profile: Profile) -> tuple[set[int], int]:
    """Return the casts around ops that a rule does not take because of their shape.

    Returns
    -------
    casts : set of int
    launches : int
        The additional launches by the host.
    """
    result: set[int] = set()
    launches = 0
    for rule in profile.rules:
        if rule.batch_multiple == 1:
            continue
        for anchor, op in enumerate(flow.fn.ops):
            if not rule.begins(op.op) or _is_multiple(flow, rule, anchor):
                continue
            launches += rule.launches_else
            size, seen, todo = flow.elements[op.inputs[0]], {anchor}, [anchor]
            while todo:
                for number in flow.neighbours(todo.pop()):
                    other = flow.fn.ops[number]
                    sizes = {flow.elements[v] for v in (*other.inputs, *other.outputs)}
                    fits = flow.is_cast(number) or rule.takes(
                        other.op, partial(flow.qualifiers, number)
                    )
                    if number not in seen and size in sizes and fits:
                        seen.add(number)
                        todo.append(number)
            result.update(number for number in seen if flow.is_cast(number))
    return result, launches
