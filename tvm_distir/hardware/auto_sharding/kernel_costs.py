# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes the least time of the kernels of a step under any sharding."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tvm import ir

from tvm_distir.core.ir.attributes import training_notes
from tvm_distir.core.ops import VIEWS
from tvm_distir.core.plan import data_positions
from tvm_distir.core.propagation import Graph, Node, PlacedModule
from tvm_distir.hardware.systems.clock import PICOSECONDS, Clock
from tvm_distir.support import Steps, memoized_steps, unrolled


class UnshardedKernel(NamedTuple):
    """A kernel as a device with full operands runs it."""

    flops: int
    moved_bytes: int
    kernel_class: str
    dtype: str


class StepKernels(NamedTuple):
    """Kernels of a step, with how often each runs.

    Attributes
    ----------
    each : Counter of UnshardedKernel
        The kernels that every micro-batch needs: they follow from data, and no gradient of a weight
        comes before them. The counts are of all micro-batches together.
    once : Counter of UnshardedKernel
        The kernels that may run once for all micro-batches.
    """

    each: Counter[UnshardedKernel]
    once: Counter[UnshardedKernel]

    def least_s(
        self, clock: Clock, devices: int, stages: int = 1, micro_batches: int = 1, chunks: int = 1
    ) -> float:
        """Return a lower bound in seconds for all plans of so many devices, stages, micro-batches.

        A device does its part of the arithmetic and of the bytes of every kernel at least, and
        runs kernels in sequence; all communication may overlap. Where rank r has the work
        ``w_r`` of a micro-batch and ``o_r`` once, it waits for those before it, so the step takes
        ``sum(w_s, s < r) + M w_r + o_r`` or more; with ``q = 1 - 1 / M`` these, weighed by
        ``q^(P - 1 - r)``, are ``(M sum(w) + q^(P - 1) sum(o)) / (M (1 - q^P))``, whatever the
        cuts. With several stages per rank only ``(M sum(w) + sum(o)) / P`` is sure.

        Parameters
        ----------
        clock : Clock
        devices : int
            The number of devices of all stages together.
        stages, micro_batches, chunks : int
        """
        stage_devices = devices // stages
        each = micro_batches * _time_ps(self.each, clock, stage_devices * micro_batches)
        once = _time_ps(self.once, clock, stage_devices)
        if chunks > 1 or stages == 1:
            return (each + once) / stages / PICOSECONDS
        rest = 1 - 1 / micro_batches
        weight = micro_batches * (1 - rest**stages)
        return (each + rest ** (stages - 1) * once) / weight / PICOSECONDS


def _time_ps(kernels: Mapping[UnshardedKernel, int], clock: Clock, parts: int) -> int:
    """Return the time of kernels of which each device does its part."""
    return sum(
        count * clock.kernel(-(-k.flops // parts), k.moved_bytes // parts, *k[2:]).duration_ps
        for k, count in kernels.items()
    )


def work_of_step(mod: ir.IRModule) -> StepKernels:
    """Return the kernels of a run of a module's public functions."""
    module = PlacedModule.of(mod, ())
    work = StepKernels(Counter(), Counter())
    reader = _Reader(module)
    for name, key in module.entries.items():
        g = module.graphs[key]
        data = set(data_positions(g.fn, name))
        follows = tuple([i in data for i in range(len(g.params))])
        names = set(map(str, training_notes(g.fn, "gradients").values()))
        of_names = [g.env[at] for at, var in g.variables.items() if str(var.name) in names]
        gradients = frozenset(itertools.chain.from_iterable(of_names))
        for mine, more in zip(work, unrolled(reader.of(key, follows, gradients))[0]):
            mine.update(more)
    return work


class _Reader:
    """Reader of functions, once for each set of parameters that follow from data."""

    def __init__(self, module: PlacedModule) -> None:
        self.module = module

    @memoized_steps
    def of(
        self, key: str, follows: tuple[bool, ...], gradients: frozenset[int] = frozenset()
    ) -> Steps[tuple[StepKernels, tuple[bool, ...]]]:
        """Return the kernels of a function, and which of its results follow from data.

        Nothing behind any of the values ``gradients`` counts as following from data.
        """
        g = self.module.graphs[key]
        work = StepKernels(Counter(), Counter())
        marked = [False] * len(g.values)
        for v, yes in zip(g.param_values, follows):
            marked[v] = yes
        for node in g.nodes[len(g.params) :]:
            operands = tuple([v >= 0 and marked[v] for v in node.operands])
            results = (any(operands),) * len(node.results)
            if node.kind == "call":
                inner, results = yield self.of(node.callee, operands)
                for mine, more in zip(work, inner):
                    mine.update(more)
            elif node.rule is not None and node.rule.op not in VIEWS and not in_place(g, node):
                (work.each if any(operands) else work.once)[kernel_of(g, node)] += 1
            for v, yes in zip(node.results, results):
                marked[v] = yes and v not in gradients
        return work, tuple([v >= 0 and marked[v] for v in g.result_values])


def kernel_of(g: Graph, node: Node) -> UnshardedKernel:
    """Return the kernel of an op's node, on a device with full operands."""
    rule = node.rule
    assert rule is not None
    work, dtype = rule.work, arithmetic_type(g, node)
    is_view = work.kernel_class == "view"
    moved, kind = (rule, "memory") if is_view else (work, work.kernel_class)
    return UnshardedKernel(work.flops, sum(moved.in_bytes) + sum(moved.out_bytes), kind, dtype)


def in_place(g: Graph, node: Node) -> bool:
    """Return whether a node is a transpose that only products read: it costs no work."""
    if node.rule is None or node.rule.op != "relax.permute_dims":
        return False
    readers = [g.nodes[k].rule for k, _ in g.uses[node.results[0]]]
    return all(r is not None and r.op == "relax.matmul" for r in readers)


def arithmetic_type(g: Graph, node: Node) -> str:
    """Return the dtype of a node's arithmetic: of its first floating operand or result."""
    for v in (*node.operands, *node.results):
        if v >= 0 and g.values[v].ty is not None:
            dtype = str(g.values[v].ty.dtype)
            if dtype.startswith(("float", "bfloat")):
                return dtype
    return "float32"
