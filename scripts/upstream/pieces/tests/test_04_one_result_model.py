# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The search as the wheel has it gives what the wheel gives; repaired, it has one result."""

import itertools
import random
import re

import pytest
import tvm
import tvm.testing
from tvm.relax.distributed import transform
from tvm.relax.distributed.transform.one_result import MIXED, PRIORITY, AxisGraph, graph_of
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Module:
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"),
        a: R.Tensor((4, 4), "float32"),
        b: R.Tensor((4, 4), "float32"),
        c: R.Tensor((4, 4), "float32"),
        d: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
            a0 = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="R")
            b0 = R.dist.annotate_sharding(b, device_mesh="mesh[0]", placement="R")
            y = R.matmul(R.nn.relu(R.matmul(x0, a0)), b0)
            y1 = R.dist.annotate_sharding(y, device_mesh="mesh[1]", placement="R")
            c1 = R.dist.annotate_sharding(c, device_mesh="mesh[1]", placement="R")
            d1 = R.dist.annotate_sharding(d, device_mesh="mesh[1]", placement="R")
            z = R.matmul(R.nn.relu(R.matmul(y1, c1)), d1)
            R.output(z)
        return z


TIED = {"lv3", "lv4", "y"}
"""What the annotations of both meshes reach, and those of the first by the better paths."""


def outcomes(is_repaired, orders):
    """What the search gives for each order of the sources: choices, or the axis of an error."""
    graph = graph_of(Module["main"], AxisGraph(is_repaired))
    results = []
    for order in orders(list(graph.sources)):
        try:
            results.append(tuple(sorted(graph.propagate(order).items())))
        except ValueError as error:
            results.append(re.search(r"\((\w+), -1\)", str(error))[1])
    return results


def shuffled(sources):
    return [random.Random(seed).sample(sources, len(sources)) for seed in range(64)]


def test_the_repaired_search_has_one_result():
    (result,) = set(outcomes(True, itertools.permutations))
    chosen = {name: mesh for (name, dim), (mesh, _) in result if dim == -1}
    first = {name for name, mesh in chosen.items() if "Range(0, 1)" in mesh}
    assert first == {"x", "a", "b", "x0", "a0", "b0", *TIED}


def test_the_search_with_the_faults_has_several():
    found = outcomes(False, shuffled)
    assert len(set(found)) > 2
    (result,) = {each for each in found if not isinstance(each, str)}
    assert result == outcomes(True, lambda sources: [sources])[0]


def test_the_wheel_fails_at_axes_where_the_search_with_the_faults_fails():
    text, errors = Module.script(), set()
    for _ in range(64):
        try:
            transform.PropagateSharding()(tvm.script.from_source(text))
        except Exception as error:
            errors.add(
                re.search(r"multiple possible sharding for axis: \((\w+), -1\)", str(error))[1]
            )
    assert errors and errors <= TIED
    assert {each for each in outcomes(False, shuffled) if isinstance(each, str)} <= TIED


class LastPriority(AxisGraph):
    """The search with the first line of the repair only: the last source decides."""

    def spread(self, axis, spec, mask, visited):
        if axis not in visited and self.sources.get(axis, spec) == spec:
            visited.add(axis)
            self.priorities[axis][spec] = PRIORITY.get(mask, MIXED)
            for target, kind in self.edges[axis]:
                self.spread(target, spec, mask | kind, visited)


@pytest.mark.parametrize("graph_class, count", [(LastPriority, 3), (AxisGraph, 1)])
def test_two_sources_of_a_spec_by_paths_of_different_priority(graph_class, count):
    """`y` is reached from `x0` forward, from `u` both ways; the other mesh reaches it both ways."""

    @I.ir_module
    class Branches:
        I.module_global_infos(
            {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
        )

        @R.function
        def main(x: R.Tensor((4, 4), "float32"), p: R.Tensor((4, 4), "float32")) -> R.Tensor(
            (4, 4), "float32"
        ):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
                v = R.nn.relu(p)
                y = R.add(x0, v)
                u = R.dist.annotate_sharding(v, device_mesh="mesh[0]", placement="R")
                w = R.dist.annotate_sharding(v, device_mesh="mesh[1]", placement="R")
                z = R.nn.relu(y)
                R.output(z, u, w)
            return z

    graph, results = graph_of(Branches["main"], graph_class(is_repaired=True)), set()
    for order in itertools.permutations(graph.sources):
        try:
            results.add(tuple(sorted(graph.propagate(order).items())))
        except ValueError as error:
            results.add(str(error))
    assert len(results) == count


def test_other_operators_are_refused():
    @I.ir_module
    class Sum:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4,), "float32"):
            y = R.sum(x, axis=1)
            return y

    with pytest.raises(NotImplementedError, match="sum"):
        graph_of(Sum["main"], AxisGraph(is_repaired=True))


if __name__ == "__main__":
    tvm.testing.main()
