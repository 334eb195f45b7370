# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write units whose layers run between the collectives of a distributed optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.stage_kind import BACKWARD, FORWARD, GATHER, ROWS, WEIGHT
from tvm_distir.performance.simulation.op_costs import HOSTS


class PhaseCall(NamedTuple):
    """Call of a phase in a unit.

    Attributes
    ----------
    phase, function : str
        The names of the phase and of its function.
    inputs, outputs : tuple of int
        The values of the unit that it reads and makes.
    """

    phase: str
    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


BUCKET_ELEMENTS, ELEMENTS_PER_DEVICE = 40_000_000, 1_000_000
"""A bucket has at least so many elements, and so many for each device of its group
(``bucket_size`` of ``DistributedDataParallelConfig`` in Megatron-LM)."""


class OverlappedUnit:
    """Writer of the ops of a unit that gathers weights or reduces gradients beside its layers.

    Gathers start first, in the order in which layers need them, and are waited for in front of the
    first reader. Sums and reductions of gradients follow the layer that makes the gradient.
    Collectives that follow each other are joined to buckets, as Megatron-LM does
    (:data:`BUCKET_ELEMENTS`). Each reads a result of the bucket before it, since a communicator
    runs one after the other.

    Parameters
    ----------
    functions : mapping of str to Function
    values : list of Value
        The values of the unit, which those of inlined functions are added to.
    """

    def __init__(self, functions: Mapping[str, Function], values: list[Value]) -> None:
        self.functions, self.values = functions, values

    def ops(self, calls: Sequence[PhaseCall]) -> list[Op]:
        """Return the ops of phases, those of forward and backward passes in their order."""
        order: list[Op] = []
        gathers: list[Op] = []
        later: list[Op] = []
        for call in calls:
            layers = call.phase in (ROWS, FORWARD, BACKWARD, WEIGHT)
            ops = self._inlined(call.function, call.inputs, call.outputs, not layers)
            (order if layers else gathers if call.phase == GATHER else later).extend(ops)
        return _chained(self._with_later(self._with_gathers(order, gathers), later))

    def _inlined(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], full: bool
    ) -> Iterator[Op]:
        """Yield the ops of a function at its call, and of callees: those that call, or all."""
        fn = self.functions[name]
        position = dict(zip(fn.params, inputs, strict=True))
        for result, value in zip(fn.results, outputs, strict=True):
            position.setdefault(result, value)
        for op in fn.ops:
            for value in (*op.inputs, *op.outputs):
                if value not in position:
                    self.values.append(fn.values[value])
                    position[value] = len(self.values) - 1
            ends = tuple(position[v] for v in op.inputs), tuple(position[v] for v in op.outputs)
            if op.kind == "call" and (full or self._calls(op.callee)):
                yield from self._inlined(op.callee, *ends, full)
            else:
                yield op._replace(inputs=ends[0], outputs=ends[1])
        for result, value in zip(fn.results, outputs, strict=True):
            if position[result] != value:  # a parameter, or a result that is returned twice
                yield Op(self.values[value].name, "view", "view", (position[result],), (value,))

    def _calls(self, name: str) -> bool:
        """Return whether a function calls others."""
        return any(op.callees for op in self.functions[name].ops)

    def _with_gathers(self, order: Sequence[Op], gathers: Sequence[Op]) -> list[Op]:
        """Return ops behind the starts of gathers, with a wait in front of each first reader."""
        waits = {op.outputs[0]: op for op in gathers if op.kind == "wait"}
        starts = {op.outputs[0]: op for op in gathers if op.kind != "wait"}
        buckets, starting, body = _Buckets(self.values), list[Op](), list[Op]()
        position: dict[int, int] = {}

        def reach(values: Iterable[int]) -> None:
            read = [waits.pop(value) for value in dict.fromkeys(values) if value in waits]
            position.update((wait.inputs[0], len(position) + k) for k, wait in enumerate(read))
            starting.extend(buckets.filled(starts[wait.inputs[0]] for wait in read))
            body.extend(read)

        for op in order:
            if op.kernel_class in HOSTS:  # the host waits for no weight
                op = op._replace(inputs=tuple(value for value in op.inputs if value not in waits))
            reach(op.inputs)
            body.append(op)
        reach(list(waits))
        starting = sorted([*starting, *buckets.rest()], key=lambda op: position[op.outputs[0]])
        return [*starting, *body]

    def _with_later(self, order: Sequence[Op], later: Sequence[Op]) -> list[Op]:
        """Return ops in order, each of the later ones behind the last of what it reads."""
        results = {value for op in (*order, *later) for value in op.outputs}
        readers: dict[int, list[int]] = {}
        missing = []
        for number, op in enumerate(later):
            needed = results.intersection(op.inputs)
            missing.append(len(needed))
            for value in needed:
                readers.setdefault(value, []).append(number)
        ready = [number for number, count in enumerate(missing) if not count]
        ops, buckets = list[Op](), _Buckets(self.values)

        def add(op: Op) -> None:
            ops.append(op)
            for value in op.outputs:
                for number in readers.get(value, ()):
                    missing[number] -= 1
                    if not missing[number]:
                        ready.append(number)

        def add_ready() -> None:
            collectives: list[Op] = []
            while ready:
                op = later[ready.pop(0)]
                if op.channel:
                    collectives.append(op)
                else:
                    add(op)
            for op in buckets.filled(collectives):
                add(op)

        add_ready()
        for op in order:
            add(op)
            add_ready()
        return [*ops, *buckets.rest()]


class _Buckets:
    """Buckets of collectives that are filled in turn, one for each kind and group.

    Parameters
    ----------
    values : sequence of Value
        The values that the collectives read and make.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self._open: dict[tuple[str, tuple[int, ...]], Op] = {}
        self._elements: dict[tuple[str, tuple[int, ...]], int] = {}

    def filled(self, collectives: Iterable[Op]) -> list[Op]:
        """Add collectives of a layer, and return the buckets that these have filled."""
        for op in collectives:
            key = op.op, op.mesh_axes
            known = self._open.get(key)
            self._open[key] = op
            if known is not None:
                self._open[key] = known._replace(
                    inputs=(*known.inputs, *op.inputs),
                    outputs=(*known.outputs, *op.outputs),
                    payload_bytes=known.payload_bytes + op.payload_bytes,
                )
            ends = (sum(self._size(v) for v in side) for side in (op.inputs, op.outputs))
            self._elements[key] = self._elements.get(key, 0) + max(ends)
        return [self._closed(key) for key, op in list(self._open.items()) if self._is_full(key, op)]

    def rest(self) -> list[Op]:
        """Return the other buckets, which the unit ends with."""
        return [self._closed(key) for key in list(self._open)]

    def _is_full(self, key: tuple[str, tuple[int, ...]], op: Op) -> bool:
        return self._elements[key] >= max(BUCKET_ELEMENTS, ELEMENTS_PER_DEVICE * op.group_size)

    def _closed(self, key: tuple[str, tuple[int, ...]]) -> Op:
        del self._elements[key]
        return self._open.pop(key)

    def _size(self, value: int) -> int:
        return math.prod(self.values[value].shape)


def _chained(ops: Sequence[Op]) -> list[Op]:
    """Let each collective of a channel read a result of the collective before it."""
    chained, before = list[Op](), tuple[int, ...]()
    for op in ops:
        if op.channel:
            op = op._replace(inputs=(*op.inputs, *before))
            before = op.outputs[:1]
        chained.append(op)
    return chained
