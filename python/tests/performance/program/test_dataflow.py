# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Readers and producers in random functions, against a search of the graph of their ops."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import Build
from tvm_distir.performance.fusion.dataflow import Dataflow
from tvm_distir.performance.fusion.fused_function import Writer
from tvm_distir.performance.fusion.grouping import Grouping
from tvm_distir.performance.fusion.profile import FusionRule, Profile
from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.simulation.op_records import all_seconds


def random_function(seed: int) -> Function:
    rng = random.Random(seed)
    build, names = Build().param("p", 64).param("q", 64), ["p", "q"]
    for number in range(12):
        name = f"v{number}"
        if rng.random() < 0.35:
            build.view(name, rng.choice(names))
        else:
            build.compute(name, " ".join(rng.sample(names, min(2, len(names)))), 1, 64)
        names.append(name)
    return build.done(names[-1])


def has_circle(fn: Function, group: set[int], views: set[int]) -> bool:
    """Whether a path leaves the group and comes back, through any ops."""
    reads = {n: set(op.inputs) for n, op in enumerate(fn.ops)}
    after = {
        n: {m for m in reads if reads[m].intersection(op.outputs)} for n, op in enumerate(fn.ops)
    }

    def group_behind(start: int) -> bool:
        todo, seen = [start], set()
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if number in group:
                return True
            todo.extend(after[number])
        return False

    def first_outside(number: int) -> set[int]:
        """The ops behind one, through views, which show memory and are no ops outside."""
        found: set[int] = set()
        for other in after[number]:
            found |= first_outside(other) if other in views else {other}
        return found

    outside = {other for member in group for other in first_outside(member)} - group
    return any(group_behind(other) for other in outside)


@pytest.mark.parametrize("seed", range(12))
def test_a_group_closes_a_circle_where_a_path_comes_back(seed: int) -> None:
    fn = random_function(seed)
    flow = Dataflow(fn, False)
    plain = [n for n in range(len(fn.ops)) if n not in flow.views]
    for pair in itertools.combinations(plain, 2):
        assert flow.closes_circle({pair[0]}, pair[1]) == has_circle(fn, set(pair), flow.views)
    for some in itertools.combinations(plain, 3):
        if not has_circle(fn, set(some[:2]), flow.views):
            expected = has_circle(fn, set(some), flow.views)
            assert flow.closes_circle(set(some[:2]), some[2]) == expected


@pytest.mark.parametrize("between", [8, 64])
def test_ops_that_do_not_follow_from_a_group_are_not_looked_at(between: int) -> None:
    """Ops between those of a group, such as updates of other weights, cost nothing."""
    build = Build().param("p", 64).param("q", 64).compute("a", "p", 1, 64)
    for number in range(between):
        build.compute(f"other{number}", "q", 1, 64)
    flow = Dataflow(build.compute("b", "a p", 1, 64).done("b"), False)
    looked: list[int] = []

    class Readers(dict[int, list[int]]):
        def get(self, key: int, default: Any = None) -> Any:
            looked.append(key)
            return super().get(key, default)

    flow.readers = Readers(flow.readers)
    assert not flow.closes_circle({0}, between + 1)
    assert len(looked) == 2


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_mutual_and_share_memory(seed: int) -> None:
    fn = random_function(seed)
    flow = Dataflow(fn, False)
    for number in range(len(fn.ops)):
        if number in flow.views:
            continue
        for other in flow.neighbours(number):
            assert number in flow.neighbours(other)
            shared = {flow.source[v] for v in (*fn.ops[number].inputs, *fn.ops[number].outputs)}
            assert shared & {
                flow.source[v] for v in (*fn.ops[other].inputs, *fn.ops[other].outputs)
            }


@pytest.mark.parametrize("seed", range(10))
def test_values_are_narrowed_to_the_smallest_of_their_casts(seed: int) -> None:
    """But those that the function takes or returns, and what is only cast to wider types."""
    rng = random.Random(seed)
    sizes = {"float64": 8, "float32": 4, "float16": 2}
    values = [Value("p", (4,), "float32", 16, "input")]
    ops, casts = [], {}
    for number in range(14):
        source, dtype = rng.randrange(len(values)), rng.choice(list(sizes))
        is_cast = rng.random() < 0.5 and source not in {v for v, _ in casts.values()}
        values.append(Value(f"v{number}", (4,), dtype, 4 * sizes[dtype], "activation"))
        if is_cast:
            casts[number] = len(values) - 1, source
        op = "relax.astype" if is_cast else "relax.add"
        ops.append(Op(f"v{number}", "compute", op, (source,), (len(values) - 1,)))
    fn = Function(0, (0,), tuple(ops), (len(values) - 1,), tuple(values))
    flow = Dataflow(fn, True)
    expected: dict[int, tuple[str, int]] = {}
    for _, (target, source) in sorted(casts.items()):
        at = flow.source[source]
        if at in (0, flow.source[len(values) - 1]):
            continue
        smallest = expected.get(at, ("", values[at].bytes))[1]
        if values[target].bytes < smallest:
            expected[at] = values[target].dtype, values[target].bytes
    assert flow.narrowed() == expected


def test_picoseconds_are_seconds_to_the_last_bit() -> None:
    """As Python divides integers, which rounds once; above 2^53 a float would be rounded twice."""
    rng = random.Random(0)
    for bits in (20, 52, 53, 54, 60):
        times = [rng.randrange(1 << (bits - 1), 1 << bits) for _ in range(200)]
        for some in (times, times[:1]):
            assert all_seconds(np.array(some, np.int64)) == [time / 10**12 for time in some]
    assert all_seconds(np.zeros(0, np.int64)) == []


def test_kernels_that_would_wait_for_each_other_are_not_both_fused() -> None:
    """Each is right alone; together each reads what the other writes."""
    build = Build().param("p", 64)
    build.compute("a1", "p", 1, 64, op="relax.a").compute("b1", "p", 1, 64, op="relax.b")
    build.compute("b2", "a1 b1", 1, 64, op="relax.b").compute("a2", "a1 b1", 1, 64, op="relax.a")
    fn = build.compute("out", "a2 b2", 1, 64, op="relax.c").done("out")
    rules = tuple(FusionRule(name, (f"relax.{name}",), (f"relax.{name}",)) for name in "ab")
    flow = Dataflow(fn, False)
    grouping = Grouping(flow, Profile("two", rules=rules), ())
    assert [group.members for group in grouping.groups] == [{0, 3}, {1, 2}]
    fused = Writer(flow, grouping).run()
    assert sorted(op.op for op in fused.ops) == ["b", "relax.a", "relax.a", "relax.c"]
    assert sum(op.flops for op in fused.ops) == sum(op.flops for op in fn.ops)
    known = {*fn.params}
    for op in fused.ops:
        assert known.issuperset(op.inputs)
        known.update(op.outputs)
