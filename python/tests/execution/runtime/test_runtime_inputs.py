# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The forms of inputs and outputs that every engine knows."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5, ops
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import EngineError

ENGINES = ["virtual", "threads"]


def module():
    """``x @ w``, the contraction over tp; rows uneven over dp."""
    mesh = td.device_mesh({"dp": 2, "tp": 2})
    build = Level5(mesh)
    build.entry(
        [("x", (5, 6), "float32", "S[0], S[1]"), ("w", (6, 6), "float32", "R, S[0]")],
        [("y", (5, 6), "float32", "S[0], R")],
        lambda bb, x, w: bb.emit(ops.all_reduce(bb.emit(relax.op.matmul(x, w)), mesh, [1], "sum")),
    )
    return build.get()


def resharded():
    """Takes what :func:`module` gives, laid out over tp as well."""
    mesh = td.device_mesh({"dp": 2, "tp": 2})
    build = Level5(mesh)
    build.entry(
        [("y", (5, 6), "float32", "S[0], R")],
        [("z", (5, 6), "float32", "S[0], R")],
        lambda bb, y: bb.emit(relax.op.add(y, y)),
    )
    return build.get()


RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(s).astype("float32") for s in ((5, 6), (6, 6)))


class Counted:
    """A stored array that counts what is read of it."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.boxes = []

    def read(self, bounds):
        self.boxes.append(bounds)
        return self.array[tuple(slice(a, b) for a, b in bounds)].copy()


def parts(array, boxes, size):
    """Local arrays of boxes, padded with zeros."""
    matches = {}
    for rank, box in boxes.items():
        matches[rank] = np.zeros(size, array.dtype)
        part = array[tuple(slice(a, b) for a, b in box)]
        matches[rank][tuple(slice(0, n) for n in part.shape)] = part
    return matches


X_BOXES = {
    0: ((0, 3), (0, 3)),
    1: ((0, 3), (3, 6)),
    2: ((3, 5), (0, 3)),
    3: ((3, 5), (3, 6)),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_form_gives_the_same(engine):
    (want,) = td.run(module(), [X, W], engine="virtual")
    sharded = td.ShardedArray(parts(X, X_BOXES, (3, 3)))
    for x in (X, Counted(X), sharded):
        (got,) = td.run(module(), {"x": x, "w": Counted(W)}, engine=engine)
        assert same_bits(got, want)


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_stay_where_they_are_and_are_taken_as_they_lie(engine):
    (want,) = td.run(module(), [X, W], engine="virtual")
    (y,) = td.run(module(), [X, W], engine=engine, outputs="sharded")
    assert y.shape == (5, 6)
    assert {r: p.shape for r, p in y.parts.items()} == dict.fromkeys(range(4), (3, 6))
    assert y.boxes[3] == ((3, 5), (0, 6))
    assert same_bits(y.whole(), want)
    (z,) = td.run(resharded(), [y], engine=engine)
    assert same_bits(z, want + want)


def test_no_box_is_read_twice():
    """Replicas share what is read: w is whole on dp."""
    x, w = Counted(X), Counted(W)
    td.run(module(), [x, w], engine="virtual")
    assert sorted(x.boxes) == sorted(X_BOXES.values())
    assert sorted(w.boxes) == [((0, 3), (0, 6)), ((3, 6), (0, 6))]


def test_a_part_of_another_box_is_refused():
    swapped = {**X_BOXES, 0: X_BOXES[1], 1: X_BOXES[0]}
    x = td.ShardedArray(parts(X, swapped, (3, 3)), (5, 6), swapped)
    with pytest.raises(EngineError, match=r"rank 0 holds \[0:3, 3:6\] .* requires \[0:3, 0:3\]"):
        td.run(module(), [x, W], engine="virtual")


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (td.ShardedArray({0: np.zeros((3, 3), "float32")}), r"rank 1 has no shard, ranks \[0\]"),
        (
            td.ShardedArray(dict.fromkeys(range(4), np.zeros((3, 2), "float32"))),
            r"rank 0 holds float32\[3, 2\], it needs float32\[3, 3\]",
        ),
        (
            td.ShardedArray(dict.fromkeys(range(4), np.zeros((3, 3), "int32"))),
            r"rank 0 holds int32\[3, 3\], it needs float32",
        ),
        (Counted(X.T), r"shape \(6, 5\) given"),
        (Counted(X.astype("float64")), "type float64 given"),
    ],
)
def test_what_does_not_fit_is_refused(x, says):
    with pytest.raises(EngineError, match=f'DIST0602 input 0 "x": .*{says}'):
        td.run(module(), [x, W], engine="threads")


def test_names_with_dots_and_names_given_twice():
    build = Level5(td.device_mesh({"a": 1}))
    port = ("a_x", (4,), "float32", "R")
    build.entry([port], [port], lambda bb, x: bb.emit(relax.op.add(x, x)))
    ones = np.ones(4, "float32")
    (y,) = td.run(build.get(), {"a.x": ones}, engine="virtual")
    assert np.array_equal(y, ones + ones)
    with pytest.raises(EngineError, match='DIST0602 inputs: "a_x" is given twice'):
        td.run(build.get(), {"a.x": ones, "a_x": ones}, engine="virtual")


def test_an_unknown_form_of_outputs():
    with pytest.raises(EngineError, match='DIST0607 outputs: there is no form of outputs "half"'):
        td.run(module(), [X, W], outputs="half")


def test_parts_that_cannot_be_joined():
    with pytest.raises(EngineError, match="the index range of each shard is unknown"):
        td.ShardedArray({0: X}).whole()
    with pytest.raises(EngineError, match=r"the ranks \[0\] do not hold the full tensor"):
        td.ShardedArray({0: X[:3, :3]}, (5, 6), {0: X_BOXES[0]}).whole()


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (
            {"x": X.T.astype("int32"), "v": W},
            [
                ("inputs", 'there is no input "v"'),
                ('input 1 "w"', "missing: w; float32[6, 6] is required"),
                ('input 0 "x"', "shape (6, 5) given, (5, 6) needed"),
                ('input 0 "x"', "type int32 given, float32 needed"),
            ],
        ),
        (
            [X[:2], W.astype("float64")],
            [
                ('input 0 "x"', "shape (2, 6) given, (5, 6) needed"),
                ('input 1 "w"', "type float64 given, float32 needed"),
            ],
        ),
        ({}, [(f'input {i} "{n}"', f"missing: {n}") for i, n in enumerate("xw")]),
    ],
)
def test_all_that_does_not_fit_is_told_at_once(inputs, told):
    with pytest.raises(EngineError) as caught:
        td.run(module(), inputs, engine="virtual")
    result = caught.value
    assert (result.code, result.location, result.what) == (
        "DIST0602",
        "inputs",
        f"{len(told)} faults",
    )
    assert all(v.code == "DIST0602" and v.remedy for v in result.violations)
    for each, (place, label) in zip(result.violations, told, strict=True):
        assert each.location == place
        assert each.what.startswith(label)
        assert str(each) in str(result)


def test_what_is_no_array_is_refused():
    with pytest.raises(EngineError, match=r'DIST0602 input 0 "x": it is not an array: '):
        td.run(module(), [[[1.0], [1.0, 2.0]], W], engine="virtual")
