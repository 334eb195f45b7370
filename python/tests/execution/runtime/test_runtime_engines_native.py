# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``threads`` with native collectives and with their oracle: same bits, same counts."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5, arrival, draw, ops
from tests.references.thread_fabric import ReferenceThreads
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.groups import axes_of_groups
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native.loader import LIBRARY_VARIABLE


def several_collectives():
    """All-reduces along one and both axes, a gather, a scatter and a permute."""
    mesh = td.device_mesh({"dp": 2, "tp": 2, "one": 1})
    build = Level5(mesh)

    def body(bb, x):
        y = bb.emit(ops.all_reduce(x, mesh, [1]))
        y = bb.emit(ops.all_reduce(y, mesh, [0, 1]))
        y = bb.emit(ops.all_reduce(y, mesh, [0, 2]))
        z = bb.emit(ops.reduce_scatter(y, mesh, 1, 0))
        z = bb.emit(ops.collective_permute(z, mesh, 1, 1))
        w = bb.emit(ops.all_gather(z, mesh, 1, 0))
        return bb.emit(relax.op.add(w, y))

    build.entry([("x", (4, 6), "float32", "R, R, R")], [("y", (4, 6), "float32", "R, R, R")], body)
    return build.get()


def two_meshes():
    first, second = td.device_mesh({"dp": 2}), td.device_mesh({"a": 2, "b": 2}, start=2)
    build = Level5(first, second)
    shape, src, dst = (5, 6), "S[0]", "R, S[1]"

    def stage0(bb, x):
        bb.emit(ops.send(x, first, second, src, dst, shape=shape, tag=0))
        return bb.emit(relax.op.add(x, x))

    def stage1(bb):
        got = arrival(bb, (second, first), (dst, src), shape)
        return bb.emit(ops.all_reduce(got, second, [0]))

    build.entry([("x", shape, "float32", src)], [("y", shape, "float32", src)], stage0, 0, False)
    build.entry([], [("z", shape, "float32", dst)], stage1, 1, False, [], [1])
    return build.get()


@pytest.mark.parametrize(
    ("make", "shape"), [(several_collectives, (4, 6)), (two_meshes, (5, 6))], ids=["one", "two"]
)
def test_both_implementations_give_the_bits_and_counts_of_virtual(make, shape):
    mod, x = make(), draw(np.random.default_rng(0), shape, "float32")
    virtual = VirtualEngine()
    want = virtual.run(mod, [x])
    assert virtual.collectives
    for engine in (ThreadsEngine(20), ReferenceThreads(20), ThreadsEngine(20)):
        got = engine.run(mod, [x])
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
        assert engine.collectives == virtual.collectives


def test_groups_that_belong_to_no_call_get_the_smallest_axes():
    table = axes_of_groups(several_collectives())
    assert table[0, ((0, 1), (2, 3))] == (1,)
    assert table[0, ((0, 2), (1, 3))] == (0,)  # whatever axes of one device a call names too
    assert table[0, ((0, 1, 2, 3),)] == (0, 1)


def test_a_compiled_program_requires_the_library_but_with_the_oracle(monkeypatch, tmp_path):
    program, x = td.compile(several_collectives()), np.ones((4, 6), "float32")
    assert program.overwritten == frozenset()  # by native code, before it is taken away
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(DependencyError, match="DIST0110"):
        ThreadsEngine(20).run(program, [x])
    assert len(ReferenceThreads(20).run(program, [x])) == 1
