# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives against independent formulas, transfers and layouts against brute force."""

from __future__ import annotations

import collections
import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import tvm_distir as td
from tests.execution.runtime.level5_modules import draw
from tvm_distir.core.collectives import meaning as cc
from tvm_distir.core.collectives.tiles import Transfer, transfer_tiles
from tvm_distir.core.ir.mesh import mesh_devices, mesh_shape
from tvm_distir.core.ir.operators.names import REDUCE_OPS
from tvm_distir.core.ir.placement import parse_placement
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port
from tvm_distir.execution.runtime.program.joining import gather_outputs, same_bits
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"]
NUMPY = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_of_exact_values(op, dtype):
    rng = np.random.default_rng(0)
    terms = [draw(rng, (3, 4), dtype) for _ in range(4)]
    got = cc.all_reduce(terms, op)
    assert got.dtype == terms[0].dtype
    if dtype == "bool":
        want = np.any(terms, axis=0) if op in ("sum", "max") else np.all(terms, axis=0)
    else:
        wide = np.float64 if np.dtype(terms[0].dtype).kind not in "iu" else terms[0].dtype
        want = NUMPY[op](np.stack([t.astype(wide) for t in terms]), axis=0).astype(got.dtype)
    assert same_bits(got, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_reduced_in_single_precision_and_rounded_once(dtype):
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(1)
    terms = [rng.standard_normal(64).astype(kind) for _ in range(8)]
    want = np.zeros(64, np.float32)
    for term in terms:
        want = want + term.astype(np.float32)
    assert same_bits(cc.all_reduce(terms, "sum"), want.astype(kind))
    # Rounding at every step gives other bits: the test can fail.
    stepwise = terms[0]
    for term in terms[1:]:
        stepwise = (stepwise + term).astype(kind)
    assert not same_bits(cc.all_reduce(terms, "sum"), stepwise)


def test_sums_run_in_rank_order():
    terms = [np.array([v], np.float32) for v in (1e8, 1.0, -1e8)]
    assert cc.all_reduce(terms, "sum")[0] == 0.0
    assert cc.all_reduce([terms[0], terms[2], terms[1]], "sum")[0] == 1.0


@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_partial_terms_reduce_to_the_value(op, dtype):
    x = draw(np.random.default_rng(2), (2, 3), dtype)
    terms = [cc.partial(x, i, op) for i in range(3)]
    assert same_bits(cc.all_reduce(terms, op), x)
    assert same_bits(terms[0], x)


def test_neutral_elements():
    assert cc.neutral("min", np.dtype("float32")) == np.inf
    assert cc.neutral("max", np.dtype("int8")) == -128
    assert cc.neutral("prod", np.dtype("float16")) == 1
    assert not cc.neutral("max", np.dtype(bool))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_movement(dim, count):
    whole = np.arange(8 * 12, dtype=np.int64).reshape(8, 12)
    parts = np.split(whole, count, axis=dim)
    assert np.array_equal(cc.all_gather(parts, dim), whole)
    for i in range(count):
        assert np.array_equal(cc.local_slice(whole, i, count, dim), parts[i])
        assert np.array_equal(cc.reduce_scatter([whole] * count, dim, "sum")[i], count * parts[i])
        other = np.split(whole, count, axis=1 - dim)
        assert np.array_equal(cc.all_to_all(parts, dim, 1 - dim)[i], other[i])


def test_permute_wraps_when_asked_to():
    xs = [np.full(2, i + 1) for i in range(3)]
    assert [int(x[0]) for x in cc.collective_permute(xs, 1)] == [0, 1, 2]
    assert [int(x[0]) for x in cc.collective_permute(xs, -1)] == [2, 3, 0]
    assert [int(x[0]) for x in cc.collective_permute(xs, 5)] == [0, 0, 0]
    assert [int(x[0]) for x in cc.collective_permute(xs, 1, wrap=True)] == [3, 1, 2]
    assert [int(x[0]) for x in cc.collective_permute(xs, -4, wrap=True)] == [2, 3, 1]


def test_wrong_calls_are_refused():
    with pytest.raises(td.support.EngineError, match=r"DIST0611.*not divisible by the 2 ranks"):
        cc.local_slice(np.zeros(3), 0, 2, 0)
    with pytest.raises(td.support.EngineError, match=r'DIST0611.*unknown reduction "avg"'):
        cc.all_reduce([np.zeros(3)], "avg")


def sides():
    """Meshes and placements, some sharing devices, some uneven for the shapes below."""
    for mesh, devices in [((2,), (0, 1)), ((3,), (2, 3, 4)), ((2, 2), (1, 0, 5, 4))]:
        for labels in itertools.product((-1, 0, 1), repeat=len(mesh)):
            yield mesh, devices, labels


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 3)])
def test_every_destination_element_is_written_exactly_once(shape):
    whole = np.arange(1, math.prod(shape) + 1).reshape(shape)
    for src, dst in itertools.product(sides(), repeat=2):
        if uneven_twice(shape, src) or uneven_twice(shape, dst):
            continue
        stored = local_arrays(whole, src)
        want = local_arrays(whole, dst)
        got = {r: np.zeros_like(v) for r, v in want.items()}
        writes = {r: np.zeros(v.shape, int) for r, v in want.items()}
        for tile in transfer_tiles(shape, src, dst):
            got[tile.dst][tile.dst_slices()] = stored[tile.src][tile.src_slices()]
            writes[tile.dst][tile.dst_slices()] += 1
        for rank, array in want.items():
            assert np.array_equal(got[rank], array)
            assert np.array_equal(writes[rank], (array > 0).astype(int))


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 3)])
def test_the_most_that_a_device_sends_and_receives_is_that_of_its_tiles(shape):
    """With closed forms, where no device is on both sides: the same as tile by tile."""
    for src, dst in itertools.product(sides(), repeat=2):
        if uneven_twice(shape, src) or uneven_twice(shape, dst):
            continue
        moved = Transfer(0, shape, src, dst)
        for sends, local in itertools.product((True, False), ((), (1, 2, 5))):
            sums = collections.Counter()
            for tile in transfer_tiles(shape, src, dst):
                rank = tile.src if sends else tile.dst
                if tile.src != tile.dst and (not local or rank in local):
                    sums[rank] += tile.elements
            assert moved.crossing_elements(sends, local) == max(sums.values(), default=0)


def uneven_twice(shape, side):
    """Two mesh axes on one uneven dim: not a placement we define."""
    mesh, _, labels = side
    return any(
        labels.count(d) > 1 and n % math.prod(k for k, x in zip(mesh, labels) if x == d)
        for d, n in enumerate(shape)
    )


def local_arrays(whole, side):
    """Zero-padded shards by np.pad and np.split, one dim and mesh axis after the other."""
    mesh, devices, labels = side
    grid = {(): whole}
    for size, label in zip(mesh, labels):
        new = {}
        for coords, part in grid.items():
            if label < 0:
                new.update({(*coords, i): part for i in range(size)})
                continue
            n = part.shape[label]
            pad = [(0, 0)] * part.ndim
            pad[label] = (0, -(-n // size) * size - n)
            pieces = np.split(np.pad(part, pad), size, axis=label)
            new.update({(*coords, i): p for i, p in enumerate(pieces)})
        grid = new
    return dict(zip(devices, grid.values()))


def test_replicas_share_the_load():
    tiles = transfer_tiles((8, 2), ((4,), (0, 1, 2, 3), (-1,)), ((8,), tuple(range(10, 18)), (0,)))
    loads = [sum(t.src == r for t in tiles) for r in range(4)]
    assert loads == [2, 2, 2, 2]


def test_what_a_rank_already_holds_does_not_travel():
    tiles = transfer_tiles((8,), ((2,), (0, 1), (-1,)), ((2,), (1, 2), (0,)))
    assert [(t.src, t.dst) for t in tiles] == [(1, 1), (0, 2)]


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 3)])
def test_shard_and_gather_invert_each_other(shape):
    whole = np.arange(1, math.prod(shape) + 1, dtype="float32").reshape(shape)
    for mesh_axes in ({"a": 2}, {"a": 3}, {"a": 2, "b": 2}):
        mesh = td.device_mesh(mesh_axes)
        sizes = tuple(mesh_axes.values())
        for labels in itertools.product((-1, 0, 1), repeat=len(sizes)):
            side = (sizes, tuple(range(math.prod(sizes))), labels)
            if uneven_twice(shape, side):
                continue
            entry = entry_of(mesh, Port(0, "y", shape, "float32", labels))
            parts = {r: LocalInputs({0: whole}).of(entry, r) for r in entry.ranks}
            for got, want in zip(parts.values(), local_arrays(whole, side).values()):
                assert np.array_equal(got[0], want)
            assert np.array_equal(gather_outputs([entry], parts)[0], whole)


def entry_of(mesh, port):
    """An entry that takes and gives one value."""
    ranks = tuple(int(d) for d in mesh_devices(mesh).ravel())
    return EntryFunction("main", 0, mesh_shape(mesh), ranks, (port,), (port,))


def test_replicas_that_differ_are_named():
    mesh = td.device_mesh({"dp": 2, "tp": 2})
    port = Port(0, "y", (4,), "float32", parse_placement("S[0], R"))
    parts = {rank: [np.zeros(2, "float32")] for rank in range(4)}
    parts[3] = [-parts[3][0]]  # -0.0: equal in value, other bits
    with pytest.raises(td.support.EngineError, match='DIST0604 main/output 0 "y": ranks 2 and 3'):
        gather_outputs([entry_of(mesh, port)], parts)
