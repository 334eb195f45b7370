# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ranks: read on the same mesh and on others, incomplete ones, damaged ones."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tvm_distir.core import parse_placement, plain_name
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port
from tvm_distir.execution.serving.checkpoints import (
    LIST,
    checkpoint_folder,
    read_checkpoint,
    write_list,
    write_part,
)
from tvm_distir.support.errors.tree import EngineError

SHAPES = {"a.weight": (7, 6), "b": (5,), "count": ()}


def entry(mesh, placements):
    """An entry whose three inputs are state, and whose second device id is 3."""
    ranks = (0, 3, 1, 2)[: int(np.prod(mesh))]
    ports = tuple(
        Port(i, name, shape, "float32" if shape else "int64", parse_placement(labels))
        for i, ((name, shape), labels) in enumerate(zip(SHAPES.items(), placements))
    )
    return EntryFunction("main", 0, mesh, ranks, ports, ())


def whole(index):
    shape = list(SHAPES.values())[index]
    values = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape) + 10 * index
    return values if shape else np.array(12, "int64")


def local(fn, port, rank):
    """The padded shard of a rank, with numbers in the padding that must not be written."""
    out = np.full(fn.local_shape(port), 99, whole(port.index).dtype)
    box = fn.bounds(port, rank)
    part = whole(port.index)[tuple(slice(a, b) for a, b in box)]
    out[tuple(slice(0, n) for n in part.shape)] = part
    return out


def save(folder, step, fn):
    for rank in fn.ranks:
        write_part(folder, step, fn, rank, {p.index: local(fn, p, rank) for p in fn.inputs})
    write_list(folder, step, [fn], [0, 1, 2])


TWO_BY_TWO = entry((2, 2), ["S[0], S[1]", "R, S[0]", "R, R"])
OTHERS = [
    TWO_BY_TWO,
    entry((4,), ["S[0]", "S[0]", "R"]),
    entry((3,), ["S[1]", "R", "R"]),
    entry((1,), ["R", "R", "R"]),
]


@pytest.mark.parametrize("fn", OTHERS)
def test_every_box_of_every_mesh_is_read(tmp_path, fn):
    save(tmp_path, 3, TWO_BY_TWO)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.step == 3
    for port in fn.inputs:
        array = checkpoint.arrays[plain_name(port.name)]
        assert (array.shape, array.dtype) == (port.shape, whole(port.index).dtype)
        for rank in fn.ranks:
            box = fn.bounds(port, rank)
            want = whole(port.index)[tuple(slice(a, b) for a, b in box)]
            np.testing.assert_array_equal(array.read(box), want)


def test_the_last_complete_checkpoint_is_read(tmp_path):
    for step in (9, 10, 200):
        save(tmp_path, step, TWO_BY_TWO)
    (checkpoint_folder(tmp_path, 200) / LIST).unlink()
    assert read_checkpoint(tmp_path).step == 10
    assert read_checkpoint(checkpoint_folder(tmp_path, 9)).step == 9


def test_missing_parts_are_noticed_where_they_are_needed(tmp_path):
    save(tmp_path, 1, TWO_BY_TWO)
    (checkpoint_folder(tmp_path, 1) / "rank-3.safetensors").unlink()
    array = read_checkpoint(tmp_path).arrays["a_weight"]
    box = TWO_BY_TWO.bounds(TWO_BY_TWO.inputs[0], 0)
    np.testing.assert_array_equal(array.read(box), whole(0)[:4, :3])
    with pytest.raises(EngineError, match=r"DIST0641 .*its parts lack some of"):
        array.read(((0, 7), (0, 6)))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(EngineError, match=r"DIST0641 .*contains no complete checkpoint"):
        read_checkpoint(tmp_path / "nowhere")
    save(tmp_path, 1, TWO_BY_TWO)
    (checkpoint_folder(tmp_path, 1) / LIST).write_text('{"schema_version": 1, "arrays": 5}')
    with pytest.raises(EngineError, match=r"DIST0641 .*not a list of a checkpoint"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"DIST0642"):
        save(tmp_path / "file", 1, TWO_BY_TWO)
    save(tmp_path, 2, TWO_BY_TWO)
    folder = checkpoint_folder(tmp_path, 2)
    assert not [p.name for p in folder.iterdir() if p.name.endswith(".part")]
    shutil.rmtree(folder)
