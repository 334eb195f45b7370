# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Type inference, printing and parsing of the R.dist ops."""

from __future__ import annotations

import re

import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import labels_of, parse_placement
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.support.errors.tree import MeshError

MESH = td.device_mesh({"a": 2, "b": 3})
OTHER = td.device_mesh({"c": 2}, start=6)
VIEW = td.device_mesh({"b": 3, "a": 2}, device_ids=[0, 3, 1, 4, 2, 5])


def value(placement, shape=(12, 18)):
    """A DTensor variable."""
    ty = relax.TensorType(shape, "float32")
    return relax.Var("x", as_dtensor(ty, MESH, parse_placement(placement)))


def infer(call):
    """Type of a call."""
    return relax.BlockBuilder().normalize(call).ty


MOVES = [
    ("all_gather", "S[0], S[0]", {"mesh_axis": [0, 1], "dim": 0}, "R, R"),
    ("local_slice", "R, R", {"mesh_axis": [0, 1], "dim": 1}, "S[1], S[1]"),
    ("reduce_scatter", "R, R", {"mesh_axis": [1, 0], "dim": 1}, "S[1], S[1]"),
    (
        "all_to_all",
        "S[0], S[0]",
        {"mesh_axis": [0, 1], "gather_dim": 0, "split_dim": 1},
        "S[1], S[1]",
    ),
    ("all_gather", "S[0], R", {"mesh_axis": 0, "dim": 0}, "R, R"),
    ("all_gather", "S[0], S[0]", {"mesh_axis": 1, "dim": 0}, "S[0], R"),
    ("all_gather", "S[0], S[1]", {"mesh_axis": 0, "dim": 0}, "R, S[1]"),
    ("reduce_scatter", "R, S[1]", {"mesh_axis": 0, "dim": 0}, "S[0], S[1]"),
    ("reduce_scatter", "R, S[0]", {"mesh_axis": 0, "dim": 0}, "S[0], S[0]"),
    ("local_slice", "S[0], R", {"mesh_axis": 1, "dim": 0}, "S[0], S[0]"),
    ("local_slice", "S[0], R", {"mesh_axis": 1, "dim": 1}, "S[0], S[1]"),
    ("all_to_all", "R, S[0]", {"mesh_axis": 1, "gather_dim": 0, "split_dim": 1}, "R, S[1]"),
    ("all_to_all", "S[1], S[0]", {"mesh_axis": 1, "gather_dim": 0, "split_dim": 1}, "S[1], S[1]"),
    ("all_reduce", "R, S[0]", {"mesh_axes": [0]}, "R, S[0]"),
    ("partial", "R, S[0]", {"mesh_axes": [0]}, "R, S[0]"),
    ("collective_permute", "S[0], R", {"mesh_axis": 0, "shift": 1}, "S[0], R"),
    ("collective_permute", "S[0], R", {"mesh_axis": 0, "shift": 1, "wrap": True}, "S[0], R"),
]


@pytest.mark.parametrize(("name", "before", "attrs", "after"), MOVES)
def test_placements_of_results(name, before, attrs, after):
    """One label changes, as the op says."""
    ty = infer(ops.CONSTRUCTORS[name](value(before), MESH, **attrs))
    assert labels_of(ty.placement) == parse_placement(after)
    assert [int(n) for n in ty.tensor_ty.shape] == [12, 18]


REFUSED = [
    ("all_gather", "R, R", {"mesh_axis": 0, "dim": 0}, "Redistribute it to the placement"),
    ("all_gather", "S[1], R", {"mesh_axis": 0, "dim": 0}, "Redistribute it to the placement"),
    ("all_gather", "S[0], S[0]", {"mesh_axis": 0, "dim": 0}, "not contiguous"),
    ("local_slice", "R, S[0]", {"mesh_axis": 0, "dim": 0}, "not contiguous"),
    ("all_to_all", "S[0], S[1]", {"mesh_axis": 0, "gather_dim": 0, "split_dim": 1}, "contiguous"),
    ("local_slice", "S[0], R", {"mesh_axis": 0, "dim": 0}, "Redistribute it to the placement"),
    ("local_slice", "R, R", {"mesh_axis": 0, "dim": 2}, "dim 2 of a tensor with 2 dims"),
    ("local_slice", "R, R", {"mesh_axis": 2, "dim": 0}, "mesh axis 2"),
    ("local_slice", "S[0], R", {"mesh_axis": [0, 1], "dim": 0}, "Redistribute it to the placement"),
    (
        "all_to_all",
        "S[0], R",
        {"mesh_axis": 0, "gather_dim": 0, "split_dim": 0},
        "both concatenated",
    ),
    ("local_slice", "S[1], R", {"mesh_axis": [], "dim": 1}, "at least one"),
    ("all_reduce", "S[0], R", {"mesh_axes": [0]}, "sharded along mesh axis 0"),
    ("all_reduce", "R, R", {"mesh_axes": [0], "op": "avg"}, "sum, prod, min or max"),
]


@pytest.mark.parametrize(("name", "before", "attrs", "words"), REFUSED)
def test_what_does_not_fit_is_refused(name, before, attrs, words):
    """DIST0207 with the reason."""
    with pytest.raises(MeshError, match="DIST0207") as caught:
        infer(ops.CONSTRUCTORS[name](value(before), MESH, **attrs))
    assert words in str(caught.value)


def exchange(before, start="S[0], R", end="R, S[0]", axes=(0, 1)):
    return ops.exchange(value(before), MESH, axes, start, end, (12, 18))


EXCHANGES = [
    (("R, R",), "the op requires"),
    (("S[0], R", "S[0], R", "S[2], R"), "dim 2|dims 0 to 1"),
    (("S[0], R", "S[0], R", "R, S[0]", (0,)), "other than"),
]


@pytest.mark.parametrize(("args", "words"), EXCHANGES)
def test_exchanges_that_do_not_fit_are_refused(args, words):
    with pytest.raises(MeshError) as caught:
        infer(exchange(*args))
    assert re.search(words, str(caught.value))


def test_blocks_under_a_later_axis_are_refused():
    """The first axis cuts no blocks that the second has cut; the second cuts those of the first."""
    mesh = td.device_mesh({"a": 2, "b": 3})
    ty = relax.TensorType((8, 6), "float32")
    x = relax.Var("x", as_dtensor(ty, mesh, (0, -1)))
    assert "S[0], S[0]" in str(infer(ops.local_slice(x, mesh, 1, 0)).placement)
    x = relax.Var("x", as_dtensor(ty, mesh, (-1, 0)))
    with pytest.raises(MeshError, match="sharded by mesh axis 1 after axis 0 too"):
        infer(ops.local_slice(x, mesh, 0, 0))


LOCAL = [
    ("all_gather", {"mesh_axis": [0, 1], "dim": 0}, (72, 18)),
    ("all_gather", {"mesh_axis": 1, "dim": 0}, (36, 18)),
    ("reduce_scatter", {"mesh_axis": 1, "dim": 1}, (12, 6)),
    ("local_slice", {"mesh_axis": 0, "dim": 0}, (6, 18)),
    ("all_to_all", {"mesh_axis": 1, "gather_dim": 0, "split_dim": 1}, (36, 6)),
    ("all_reduce", {"mesh_axes": [0, 1]}, (12, 18)),
]


@pytest.mark.parametrize(("name", "attrs", "shape"), LOCAL)
def test_local_shapes(name, attrs, shape):
    """On plain tensors sizes grow or shrink by the group."""
    x = relax.Var("x", relax.TensorType((12, 18), "float32"))
    ty = infer(ops.CONSTRUCTORS[name](x, MESH, **attrs))
    assert tuple(int(n) for n in ty.shape) == shape


def test_a_local_dim_must_divide():
    """12 rows over 5 devices are padded first."""
    x = relax.Var("x", relax.TensorType((12, 18), "float32"))
    mesh = td.device_mesh({"a": 5})
    with pytest.raises(MeshError, match=r"DIST0207.*Pad it to 15"):
        infer(ops.local_slice(x, mesh, 0, 0))


def test_every_op_prints_and_parses_back():
    """At level 4 and, with plain tensors, at level 5."""
    bb = relax.BlockBuilder()
    x = value("S[0], R")
    with bb.function("main", [x], pure=False):
        y = bb.emit(ops.all_gather(x, MESH, 0, 0))
        y = bb.emit(ops.partial(y, MESH, [0, 1]))
        y = bb.emit(ops.all_reduce(y, MESH, [0]))
        y = bb.emit(ops.reduce_scatter(y, MESH, 1, 1))
        y = bb.emit(ops.all_to_all(y, MESH, 1, 1, 0))
        y = bb.emit(ops.local_slice(y, MESH, 0, 1))
        y = bb.emit(ops.collective_permute(y, MESH, 0, -1))
        y = bb.emit(ops.collective_permute(y, MESH, 0, 1, wrap=True))
        shape = (12, 18)
        y = bb.emit(ops.exchange(y, MESH, [0, 1], "S[1], S[0]", "S[0], S[0]", shape))
        y = bb.emit(ops.all_gather(y, MESH, [0, 1], 0))
        y = bb.emit(ops.local_slice(y, MESH, [1, 0], 1))
        y = bb.emit(ops.exchange(y, MESH, [0, 1], "S[1], S[1]", "S[1], S[0]", shape))
        t = bb.emit(ops.send(y, MESH, OTHER, "S[1], S[0]", "S[0]", shape, 3))
        ends = {"placement": "S[0]", "peer_placement": "S[1], S[0]", "shape": shape}
        y = bb.emit(ops.recv(t, device_mesh=OTHER, peer_mesh=MESH, dtype="float32", tag=3, **ends))
        bb.emit(ops.view(x, VIEW))
        bb.emit_func_output(y)
    with bb.function("local", [], pure=False):
        y = bb.emit(ops.recv(device_mesh=OTHER, peer_mesh=MESH, dtype="float32", tag=3, **ends))
        bb.emit(ops.axis_index(OTHER, 0))
        bb.emit_func_output(y)
    mod = bb.get()
    mod.update_global_info("mesh", [MESH, OTHER, VIEW])
    relax.analysis.well_formed(mod)
    text = mod.script(show_meta=True)
    local = [name for name, make in ops.CONSTRUCTORS.items() if make.__module__ == ops.__name__]
    assert len(local) == 12
    assert all(f"R.dist.{name}(" in text for name in local)
    assert tvm_ffi.structural_equal(tvm.script.from_source(text), mod)
    assert [int(n) for n in mod["local"].ret_ty.shape] == [6, 18]
