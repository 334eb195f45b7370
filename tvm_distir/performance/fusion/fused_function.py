# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a function with a single kernel for each group of its ops."""

from __future__ import annotations

import dataclasses
import heapq

from tvm_distir.core.plan import FETCH
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.support import lists_by_key

from .dataflow import Dataflow
from .grouping import Group, Grouping

_BY_ELEMENT = ("memory", "gather", "view")
"""Kernel classes of ops that may compute an operand again; products read what is in memory."""


class Writer:
    """Writer of a grouped function; values inside a kernel have no producer.

    Parameters
    ----------
    flow : Dataflow
    grouping : Grouping
    """

    def __init__(self, flow: Dataflow, grouping: Grouping) -> None:
        self.flow, self.grouping = flow, grouping
        self.narrowed = flow.narrowed()
        self.group_of = {n: group for group in grouping.groups for n in group.members}
        self.recomputed = self._recomputed()

    def run(self) -> Function:
        """Write the function.

        Kernels that wait for each other, as each was grown without the others, cannot run: of
        those the smallest is not fused.
        """
        fn = self.flow.fn
        nodes: list[tuple[int, Op]] = []  # place in the old order, op
        fused = [(max(group.members), self._fused(group)) for group in self.grouping.groups]
        defined = {value for number in self.group_of for value in fn.ops[number].outputs}
        inside = defined.difference(value for _, op in fused for value in op.outputs)
        for number, op in enumerate(fn.ops):
            if number in self.flow.views and self.flow.source[op.inputs[0]] in inside:
                continue
            if number in self.flow.views:
                nodes.append((number, Op(op.name, "view", op.op, op.inputs, op.outputs)))
            elif number not in self.group_of and number not in self.grouping.absorbed:
                nodes.append((number, self._alone(op)))
        nodes.extend((number, fn.ops[number].without_work()) for number in self.grouping.absorbed)
        nodes += fused
        ops, circle = _in_order(nodes)
        if circle:
            numbers = {number for number, _ in circle}
            groups = [group for group in self.grouping.groups if max(group.members) in numbers]
            self.grouping.groups.remove(min(groups, key=lambda group: len(group.members)))
            return Writer(self.flow, self.grouping).run()
        values = list(fn.values)
        for value, (dtype, size) in self.narrowed.items():
            values[value] = values[value]._replace(dtype=dtype, bytes=size)
        for number in self.grouping.absorbed:
            for value in fn.ops[number].outputs:
                if value not in self.flow.returned:
                    values[value] = values[value]._replace(bytes=0)
        return dataclasses.replace(fn, ops=tuple(ops), values=tuple(values))

    def _recomputed(self) -> dict[int, tuple[int, ...]]:
        """Return what kernels read instead of results that they compute again, by result."""
        return {
            value: self.flow.reads[number]
            for number, group in self.group_of.items()
            if self.flow.fn.ops[number].op in group.rule.recomputed
            for value in self.flow.fn.ops[number].outputs
            if value not in self.flow.returned
            and all(
                reader in self.group_of and self.flow.fn.ops[reader].kernel_class in _BY_ELEMENT
                for reader in self.flow.readers.get(value, ())
            )
        }

    def _bytes(self, value: int) -> int:
        if value in self.narrowed:
            return self.narrowed[value][1]
        maker = self.flow.maker.get(value)
        return 0 if maker in self.grouping.absorbed else self.flow.fn.values[value].bytes

    def _saved(self, value: int) -> int:
        """Return the bytes that an op reads less than stated: casts and absorbed ops read none."""
        return self.flow.fn.values[value].bytes - self._bytes(self.flow.source[value])

    def _alone(self, op: Op) -> Op:
        if op.kind != "compute":
            return op
        read = op.bytes_read - sum(map(self._saved, dict.fromkeys(op.inputs)))
        written_bytes = op.bytes_written - sum(map(self._saved, op.outputs))
        return op._replace(bytes_read=max(read, 0), bytes_written=max(written_bytes, 0))

    def _fused(self, group: Group) -> Op:
        fn, flow = self.flow.fn, self.flow
        members = sorted(group.members)
        ops = [fn.ops[n] for n in members]
        defined = {value for op in ops for value in op.outputs}
        inputs = dict.fromkeys(
            operand
            for n in members
            for v in flow.reads[n]
            if v not in defined
            for operand in self.recomputed.get(v, (v,))
        )
        # What nothing reads is launched all the same, and gives what its last op gives.
        outputs = [v for v in sorted(defined) if self._needed(v, group)] or ops[-1].outputs
        limit = sum(op.bytes_read for op in ops)
        extra = group.rule.extra_bytes * max(flow.elements[v] for v in defined)
        heavy = [op for op in ops if op.kernel_class not in _BY_ELEMENT]
        anchor = heavy[0] if heavy else ops[0]
        return Op(
            ops[-1].name, "compute", group.rule.name, tuple(inputs), tuple(outputs),
            sum(op.flops for op in ops), min(limit, sum(map(self._bytes, inputs))) + extra,
            sum(map(self._bytes, outputs)), all(op.modelled for op in ops),
            group.rule.kernel_class or anchor.kernel_class, anchor.dtype,
            next((op.reason for op in ops if not op.modelled), ""),
            anchor=fn.ops[group.anchor].op,
        )  # fmt: skip

    def _needed(self, value: int, group: Group) -> bool:
        readers = self.flow.readers.get(value, ())
        if value in self.recomputed:
            return False
        return value in self.flow.returned or any(n not in group.members for n in readers)


def _in_order(nodes: list[tuple[int, Op]]) -> tuple[list[Op], list[tuple[int, Op]]]:
    """Return the ops in a topological order that otherwise equals the old order.

    What is fetched from the host is fetched before its first reader.

    Returns
    -------
    ops : list of Op
        Those that can run.
    circle : list of tuple of int and Op
        The nodes that wait for each other, of which some have to be split; empty where all can run.
    """
    nodes = sorted(nodes, key=lambda node: node[0])
    maker = {value: k for k, (_, op) in enumerate(nodes) for value in op.outputs}
    fetches = {k for k, (_, op) in enumerate(nodes) if op.collective == FETCH}
    makers = [{maker[v] for v in op.inputs if v in maker} for _, op in nodes]
    waits = [
        (read - fetches).union(*(makers[k] for k in read & fetches)) if k not in fetches else {k}
        for k, read in enumerate(makers)
    ]
    behind = lists_by_key(
        (other, k) for k, predecessors in enumerate(waits) for other in predecessors
    )
    left = [len(predecessors) for predecessors in waits]
    ready = [k for k, count in enumerate(left) if not count]
    order = []
    while ready:
        k = heapq.heappop(ready)
        order += [*sorted(makers[k] & fetches), k]
        fetches -= makers[k]
        for other in behind.get(k, ()):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    order += sorted(fetches)
    stuck = set(range(len(nodes))).difference(order)
    while ends := {k for k in stuck if stuck.isdisjoint(behind.get(k, ()))}:
        stuck -= ends
    return [nodes[k][1] for k in order], [nodes[k] for k in sorted(stuck)]
