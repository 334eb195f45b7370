# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Align the calls of a traced step with the ops of the predicted one.

Matrix products, convolutions and attention are aligned by their order, their family and, where the
trace states shapes, their FLOPs. Other work is aligned by what it stands between: kernels of a
backend and ops of a program correspond in groups there, not one by one.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tvm import ir, relax

from tvm_distir.core.rewriting import entry_of
from tvm_distir.performance import (
    BACKWARD,
    FORWARD,
    HOST,
    HOSTS,
    OPTIMIZER,
    DeviceGroupResult,
    TracedCall,
    family_of,
)
from tvm_distir.support import lists_by_key

Item = TypeVar("Item", TracedCall, "PredictedOp")
_ANCHORS = ("product", "convolution", "attention")
BETWEEN = "between products"
_SAME_FLOPS = 0.1
"""Relative difference up to which FLOPs are the same: a bias may count, or not."""


class PredictedOp(NamedTuple):
    """An op of the predicted step, or one run of it.

    Attributes
    ----------
    name : str
    args : mapping of str to value
        Its properties, as in :class:`~tvm_distir.performance.Event`.
    start_s, duration_s : float
    """

    name: str
    args: Mapping[str, Any]
    start_s: float
    duration_s: float

    @property
    def is_collective(self) -> bool:
        """Return whether it is a collective."""
        return "payload_bytes" in self.args

    @property
    def family(self) -> str:
        """Return the family of the op, by the words of traced kernels."""
        return family_of(self.name, table="collectives" if self.is_collective else "families")

    @property
    def phase(self) -> str:
        """Return the pass of the op."""
        return str(self.args["pass"] or FORWARD)

    @property
    def flops(self) -> int:
        """Return the FLOPs of the op."""
        return int(self.args.get("flops", 0))


class AlignedWork(NamedTuple):
    """Calls and the ops that correspond to them; either may be missing.

    Attributes
    ----------
    phase : str
    family : str
        A family of products, ``between products``, ``optimizer``, or the kind of a collective.
    calls : sequence of TracedCall
    ops : sequence of PredictedOp
    is_collective : bool
    """

    phase: str
    family: str
    calls: Sequence[TracedCall]
    ops: Sequence[PredictedOp]
    is_collective: bool = False

    @property
    def measured_s(self) -> float:
        """Return the seconds of the calls."""
        return sum(call.duration_s for call in self.calls)

    @property
    def predicted_s(self) -> float:
        """Return the seconds of the ops."""
        return sum(op.duration_s for op in self.ops)


def predicted_ops(lane: DeviceGroupResult, model: ir.IRModule) -> list[PredictedOp]:
    """Return the ops of a device, in the order of the model.

    The compiler reorders ops beside collectives, and a trainer does not: ops that are named as
    those of the model follow it, and others the op before them.
    """
    ops = [
        PredictedOp(kind.name, kind.args, start * 1e-12, (end - start) * 1e-12)
        for sheet in lane.traced().sheets()
        for starts, ends in zip(sheet.start.tolist(), sheet.end.tolist(), strict=True)
        for kind, start, end in zip(sheet.kinds, starts, ends, strict=True)
        if "payload_bytes" in kind.args or kind.args.get("class")
    ]
    names, seen = _bindings(model, entry_of(model)), Counter[str]()
    numbers = lists_by_key((name, number) for number, name in enumerate(names))
    keys, key = [], (0, 0)
    for op in sorted(ops, key=lambda op: op.start_s):
        binding = str(op.args["binding"])
        if op.phase == FORWARD and (known := numbers.get(binding)):
            key = seen[binding] // len(known), known[seen[binding] % len(known)]
            seen[binding] += 1
        keys.append((key, op))
    return [op for _, op in sorted(keys, key=lambda item: item[0])]


def _bindings(model: ir.IRModule, function: str | ir.GlobalVar) -> Iterator[str]:
    """Yield the names of the bindings of a function and of those that it calls, as they run."""
    for block in model[function].body.blocks:
        for binding in block.bindings:
            callee = getattr(binding.value, "op", None)
            if isinstance(callee, ir.GlobalVar) and isinstance(model[callee], relax.Function):
                yield from _bindings(model, callee)
            else:
                yield str(binding.var.name)


def align(calls: Sequence[TracedCall], ops: Sequence[PredictedOp]) -> list[AlignedWork]:
    """Return the matches of all calls and all ops; each is in exactly one of them.

    Work of the host among the ops has no counterpart, and is in none.
    """
    matches = list(_collectives(calls, ops))
    forward: Sequence[Sequence[PredictedOp]] = ()
    for phase in (FORWARD, BACKWARD, OPTIMIZER):
        own_calls = [c for c in calls if c.phase == phase and not c.is_collective]
        own_ops = [
            op for op in ops if op.phase == phase and op.args.get("class", HOST) not in HOSTS
        ]
        anchors = [op for op in own_ops if op.family in _ANCHORS]
        if phase == OPTIMIZER:
            matches.append(AlignedWork(phase, phase, own_calls, own_ops))
            break
        forward = [[op] for op in anchors] if phase == FORWARD else _backward(forward, anchors)
        matches += _of_phase(phase, own_calls, own_ops, forward)
    return matches


def _backward(
    forward: Sequence[Sequence[PredictedOp]], anchors: Sequence[PredictedOp]
) -> list[list[PredictedOp]]:
    """Return the backward ops of each forward product, from the last to the first.

    A node of PyTorch's automatic gradient computes both gradients of a product, each of the FLOPs
    of the product itself; what has other FLOPs goes to the product with the fewest ops so far.
    """

    def key(op: PredictedOp) -> Hashable:
        return op.family, 0 if op.family == "attention" else op.flops

    left, queues = Counter(key(op) for (op,) in forward), defaultdict[Hashable, list[int]](list)
    for number, op in enumerate(anchors):
        queues[key(op)].append(number)
    groups: list[tuple[str, list[int]]] = []
    for (op,) in reversed(forward):
        queue = queues[key(op)]
        share = -(-len(queue) // left[key(op)])
        groups.append((op.family, [queue.pop(0) for _ in range(share)]))
        left[key(op)] -= 1
    for number in sorted(number for queue in queues.values() for number in queue):
        same = [group for family, group in groups if family == anchors[number].family]
        if same:
            min(same, key=len).append(number)
    return [[anchors[number] for number in group] for _, group in groups if group]


def _of_phase(
    phase: str,
    calls: Sequence[TracedCall],
    ops: Sequence[PredictedOp],
    groups: Sequence[Sequence[PredictedOp]],
) -> Iterator[AlignedWork]:
    """Yield the matches of a forward or backward pass."""
    traced = [call for call in calls if call.family in _ANCHORS]
    sizes = [sum(op.flops for op in group) for group in groups]
    known = all(call.flops for call in traced if call.family == "product")

    def token(family: str, flops: int) -> Hashable:
        near = (size for size in sizes if abs(size - flops) <= _SAME_FLOPS * flops)
        return family, min(near, default=flops) if known and family == "product" else 0

    called = [token(call.family, call.flops) for call in traced]
    planned = [token(g[0].family, size) for g, size in zip(groups, sizes, strict=True)]
    families: list[Hashable] = [call.family for call in traced]
    others: list[Hashable] = [group[0].family for group in groups]
    if families == others or not set(called) & set(planned):
        called, planned = families, others  # by order alone, whatever the sizes are
    segments: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, called, planned, autojunk=False)
    for first, second, length in matcher.get_matching_blocks():
        for number in range(length):
            call, group = traced[first + number], groups[second + number]
            yield AlignedWork(phase, call.family, [call], group)
            segments |= dict.fromkeys([id(call), *map(id, group)], len(segments) + 1)
    calls_after, ops_after = _between(calls, segments), _between(ops, segments)
    for segment in calls_after | ops_after:
        some_calls, some_ops = calls_after.get(segment, []), ops_after.get(segment, [])
        yield AlignedWork(phase, BETWEEN, some_calls, some_ops)


def _between(items: Sequence[Item], segments: Mapping[int, int]) -> dict[int, list[Item]]:
    """Return the items that are in no match, by the number of the last match before them."""
    numbers = (segments.get(id(item), 0) for item in items)  # of matches, from 1
    last: Iterator[int] = itertools.accumulate(numbers, lambda before, number: number or before)
    pairs = zip(last, items, strict=True)
    return lists_by_key((number, item) for number, item in pairs if id(item) not in segments)


def _collectives(calls: Sequence[TracedCall], ops: Sequence[PredictedOp]) -> Iterator[AlignedWork]:
    """Yield a match for each kind of collective, or for each one where their numbers agree."""
    traced = lists_by_key((call.family, call) for call in calls if call.is_collective)
    predicted = lists_by_key((op.family, op) for op in ops if op.is_collective)
    for kind in {**traced, **predicted}:
        some, others = traced.get(kind, []), predicted.get(kind, [])
        phase = some[0].phase if some else others[0].phase
        if len(some) == len(others):
            for call, op in zip(some, others, strict=True):
                yield AlignedWork(op.phase, kind, [call], [op], True)
        else:
            yield AlignedWork(phase, kind, some, others, True)
