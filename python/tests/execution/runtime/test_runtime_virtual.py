# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``virtual`` on hand-written modules, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5, arrival, draw, ops
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.compiled import KernelCache, _ModuleMap

R = np.random.default_rng


def matmul_module(axes, mesh_axes):
    """(M, K) x (K, N) with K sharded over ``mesh_axes``, completed by an all-reduce."""
    mesh = td.device_mesh(axes)
    word = ["S[1]" if i in mesh_axes else "R" for i in range(len(axes))]
    other = ["S[0]" if i in mesh_axes else "R" for i in range(len(axes))]
    build = Level5(mesh, axes=[list(axes)])
    build.entry(
        [("x", (4, 8), "float32", ", ".join(word)), ("w", (8, 6), "float32", ", ".join(other))],
        [("y", (4, 6), "float32", ", ".join("R" for _ in axes))],
        lambda bb, x, w: bb.emit(
            ops.all_reduce(bb.emit(relax.op.matmul(x, w)), mesh, mesh_axes, "sum")
        ),
    )
    return build.get()


@pytest.mark.parametrize(
    ("axes", "along"),
    [
        ({"tp": 2}, [0]),
        ({"dp": 2, "tp": 2}, [0]),
        ({"dp": 2, "tp": 2}, [1]),
        ({"dp": 2, "tp": 2}, [0, 1]),
    ],
)
def test_contraction_sharded_matmul(axes, along):
    x, w = draw(R(0), (4, 8), "float32"), draw(R(1), (8, 6), "float32")
    engine = VirtualEngine()
    (y,) = engine.run(matmul_module(axes, along), [x, w])
    assert np.array_equal(y, x @ w)
    (count,) = engine.collectives
    size = 2 ** len(along)
    assert (count.kind, count.group_size, count.count) == ("all_reduce", size, 1)
    assert count.mesh_axis == ",".join(list(axes)[a] for a in along)
    assert count.bytes_per_device == 4 * 6 * 4
    assert count.wire_bytes_per_device == 2 * (size - 1) * 96 // size


def test_inputs_by_name():
    x, w = draw(R(0), (4, 8), "float32"), draw(R(1), (8, 6), "float32")
    (y,) = VirtualEngine().run(matmul_module({"tp": 2}, [0]), {"w": w, "x": x})
    assert np.array_equal(y, x @ w)


def test_a_private_function_called_many_times_compiles_once():
    mesh = td.device_mesh({"tp": 2})
    build = Level5(mesh)
    layer = build.private(
        "layer",
        [("x", (2, 4), "float32"), ("w", (4, 4), "float32")],
        lambda bb, x, w: bb.emit(
            relax.op.add(ops_sum(bb, bb.emit(relax.op.matmul(x, w)), mesh), x)
        ),
    )

    def body(bb, x, w):
        for _ in range(3):
            x = bb.emit(relax.Call(layer, [x, w]))
        return x

    build.entry(
        [("x", (2, 4), "float32", "R"), ("w", (8, 4), "float32", "S[0]")],
        [("y", (2, 4), "float32", "R")],
        body,
    )
    x, w = draw(R(2), (2, 4), "float32"), draw(R(3), (8, 4), "float32")
    kernels = KernelCache()
    engine = VirtualEngine(kernels)
    (y,) = engine.run(build.get(), [x, w])
    want = x
    for _ in range(3):
        want = want @ w[:4] + want @ w[4:] + want
    assert np.array_equal(y, want)
    assert kernels.compiled == 2  # the product, and the sum after the collective
    assert engine.collectives[0].count == 3


def test_modules_of_one_hash_keep_their_own_kernels(monkeypatch):
    """TVM's structural hashes of unlike modules meet."""
    monkeypatch.setattr(_ModuleMap, "_key", lambda self, mod: (0, "cpu"))
    mesh, kernels = td.device_mesh({"tp": 2}), KernelCache()
    x = draw(R(3), (4, 4), "float32")
    for op, want in ((relax.op.add, x + x), (relax.op.multiply, x * x), (relax.op.add, x + x)):
        build = Level5(mesh)
        port = ((4, 4), "float32", "R")
        build.entry([("x", *port)], [("y", *port)], lambda bb, v, op=op: bb.emit(op(v, v)))
        (y,) = VirtualEngine(kernels).run(build.get(), [x])
        assert np.array_equal(y, want)
    assert kernels.compiled == 2


def test_tuple_items_do_not_cut_a_segment():
    mesh = td.device_mesh({"tp": 2})
    build = Level5(mesh)

    def body(bb, x):
        for _ in range(3):
            halves = bb.emit(relax.op.split(x, 2, axis=1))
            a, b = (bb.emit(relax.TupleGetItem(halves, i)) for i in range(2))
            x = bb.emit(relax.op.concat(bb.emit(relax.Tuple([b, a])), axis=1))
        return x

    port = ("x", (4, 4), "float32", "S[0]")
    build.entry([port], [port], body)
    x = draw(R(7), (4, 4), "float32")
    kernels = KernelCache()
    (y,) = VirtualEngine(kernels).run(build.get(), [x])
    assert np.array_equal(y, np.concatenate([x[:, 2:], x[:, :2]], 1))
    assert kernels.compiled == 1


def ops_sum(bb, x, mesh):
    """All-reduce over axis 0."""
    return bb.emit(ops.all_reduce(x, mesh, [0], "sum"))


def test_tuples_constants_and_several_outputs():
    mesh = td.device_mesh({"tp": 2})
    build = Level5(mesh)
    ones = relax.const(np.full((2, 2), 3, "float32"))

    def body(bb, x):
        halves = bb.emit(relax.op.split(x, 2, axis=1))
        a = bb.emit(relax.TupleGetItem(halves, 1))
        b = bb.emit(relax.op.add(a, ones))
        gathered = bb.emit(ops.all_gather(b, mesh, 0, 0))
        return [
            gathered,
            bb.emit(ops.partial(ones, mesh, [0], "sum")),
            bb.emit(relax.op.negative(x)),
        ]

    build.entry(
        [("x", (4, 4), "float32", "S[0]")],
        [
            ("a", (4, 2), "float32", "R"),
            ("b", (4, 2), "float32", "S[0]"),
            ("c", (4, 4), "float32", "S[0]"),
        ],
        body,
    )
    x = draw(R(4), (4, 4), "float32")
    a, b, c = VirtualEngine().run(build.get(), [x])
    assert np.array_equal(a, x[:, 2:] + 3)
    assert np.array_equal(b, [[3, 3], [3, 3], [0, 0], [0, 0]])
    assert np.array_equal(c, -x)


@pytest.mark.parametrize("n", [5, 6, 7, 9])
def test_uneven_gather_cuts_the_padding_off(n):
    mesh = td.device_mesh({"tp": 4})
    build = Level5(mesh)

    def body(bb, x):
        whole = bb.emit(ops.all_gather(bb.emit(relax.op.add(x, x)), mesh, 0, 0))
        return [
            bb.emit(relax.op.strided_slice(whole, [0], [0], [n])),
            bb.emit(relax.op.negative(x)),
        ]

    build.entry(
        [("x", (n, 3), "float32", "S[0]")],
        [("y", (n, 3), "float32", "R"), ("z", (n, 3), "float32", "S[0]")],
        body,
    )
    x = draw(R(n), (n, 3), "float32")
    y, z = VirtualEngine().run(build.get(), [x])
    assert np.array_equal(y, 2 * x)
    assert np.array_equal(z, -x)


def two_meshes(shape=(6, 4), src="S[0]", dst="R, S[1]"):
    """mesh0 doubles x and sends it to mesh1, which adds its own input; mesh0 returns x too."""
    first, second = td.device_mesh({"dp": 2}), td.device_mesh({"a": 2, "b": 2}, start=2)
    build = Level5(first, second, axes=[["dp"], ["a", "b"]])

    def stage0(bb, x):
        y = bb.emit(relax.op.add(x, x))
        bb.emit(ops.send(y, first, second, src, dst, shape=shape, tag=7))
        return y

    def stage1(bb, z):
        got = arrival(bb, (second, first), (dst, src), shape, tag=7)
        return bb.emit(relax.op.add(got, z))

    build.entry([("x", shape, "float32", src)], [("y", shape, "float32", src)], stage0, 0, False)
    build.entry(
        [("z", shape, "float32", dst)], [("out", shape, "float32", dst)], stage1, 1, False, [1], [1]
    )
    return build.get()


@pytest.mark.parametrize("src", ["S[0]", "S[1]", "R"])
@pytest.mark.parametrize("dst", ["R, S[1]", "S[0], S[1]", "S[0], S[0]", "R, R", "S[1], R"])
def test_two_meshes_joined_by_a_transfer(src, dst):
    shape = (8, 4)
    x, z = draw(R(5), shape, "float32"), draw(R(6), shape, "float32")
    engine = VirtualEngine()
    y, out = engine.run(two_meshes(shape, src, dst), [x, z])
    assert np.array_equal(y, 2 * x)
    assert np.array_equal(out, 2 * x + z)
    (count,) = engine.collectives
    assert (count.kind, count.mesh_axis, count.count) == ("send", "mesh0->mesh1", 1)


def test_meshes_that_wait_for_each_other_are_named():
    first, second = td.device_mesh({"dp": 2}), td.device_mesh({"dp": 2}, start=2)
    build = Level5(first, second)

    def waits(here, present, tag):
        def body(bb, x):
            how = {"placement": "R", "peer_placement": "R", "shape": (4,), "tag": tag}
            got = bb.emit(ops.recv(device_mesh=here, peer_mesh=present, dtype="float32", **how))
            how["tag"] = 3 - tag
            bb.emit(ops.send(got, here, present, "R", "R", shape=(4,), tag=3 - tag))
            return bb.emit(relax.op.add(got, x))

        return body

    port = [("x", (4,), "float32", "R")]
    build.entry(port, port, waits(first, second, 1), 0, False)
    build.entry(port, port, waits(second, first, 2), 1, False, [1], [1])
    x = np.zeros(4, "float32")
    with pytest.raises(td.support.EngineError, match=r"DIST0610.*ranks \[0, 1\].*ranks \[2, 3\]"):
        VirtualEngine().run(build.get(), [x, x])


def test_a_missing_all_reduce_is_seen_as_differing_replicas():
    mesh = td.device_mesh({"tp": 2})
    build = Level5(mesh)
    build.entry(
        [("x", (2, 4), "float32", "S[1]"), ("w", (4, 2), "float32", "S[0]")],
        [("y", (2, 2), "float32", "R")],
        lambda bb, x, w: bb.emit(relax.op.matmul(x, w)),
    )
    x, w = np.arange(8, dtype="float32").reshape(2, 4), np.ones((4, 2), "float32")
    with pytest.raises(td.support.EngineError, match=r'DIST0604 main/output 0 "y": ranks 0 and 1'):
        VirtualEngine().run(build.get(), [x, w])


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (lambda x, w: [x], "1 inputs are given, 2 are required"),
        (lambda x, w: [x.T, w], r'input 0 "x": shape \(8, 4\) given, \(4, 8\) needed'),
        (lambda x, w: [x, w.astype("float64")], r'input 1 "w": type float64 given, float32'),
        (lambda x, w: {"x": x}, "missing: w"),
        (lambda x, w: {"x": x, "w": w, "v": w}, 'there is no input "v"'),
    ],
)
def test_inputs_that_do_not_fit(inputs, text):
    x, w = np.zeros((4, 8), "float32"), np.zeros((8, 6), "float32")
    with pytest.raises(td.support.EngineError, match="DIST0602.*" + text):
        VirtualEngine().run(matmul_module({"tp": 2}, [0]), inputs(x, w))
