# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ranks: read on the same mesh and on others, incomplete ones, damaged ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_distir.core.ir import parse_placement
from tvm_distir.core.plan import plain_name
from tvm_distir.execution.deployment.checkpoint_files import (
    LIST,
    CheckpointHead,
    step_name,
    write_list,
    write_part,
)
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port
from tvm_distir.execution.serving.checkpoint_folder import check_owner
from tvm_distir.execution.serving.checkpoints import Checkpoints
from tvm_distir.support.errors.tree import EngineError, OutputError

SHAPES = {"a.weight": (7, 6), "b": (5,), "count": ()}


def entry(mesh, placements):
    """An entry whose three inputs are state, and whose second device id is 3."""
    ranks = (0, 3, 1, 2)[: int(np.prod(mesh))]
    ports = tuple(
        Port(i, name, shape, "float32" if shape else "int64", parse_placement(labels))
        for i, ((name, shape), labels) in enumerate(zip(SHAPES.items(), placements))
    )
    return EntryFunction("main", 0, mesh, ranks, ports, ())


def full(index):
    shape = list(SHAPES.values())[index]
    values = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape) + 10 * index
    return values if shape else np.array(12, "int64")


def local(fn, port, rank):
    """The padded shard of a rank, with numbers in the padding that must not be written."""
    out = np.full(fn.local_shape(port), 99, full(port.index).dtype)
    box = fn.bounds(port, rank)
    part = full(port.index)[tuple(slice(a, b) for a, b in box)]
    out[tuple(slice(0, n) for n in part.shape)] = part
    return out


def save(folder, step, fn):
    place = folder / step_name(step)
    place.mkdir(parents=True)
    headers = {
        rank: write_part(place, fn, rank, {p.index: local(fn, p, rank) for p in fn.inputs})
        for rank in fn.ranks
    }
    write_list(place, CheckpointHead("run", step, {"x": "sum"}), [fn], [0, 1, 2], headers)
    return place


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
    assert checkpoint.head == CheckpointHead("run", 3, {"x": "sum"})
    for port in fn.inputs:
        array = checkpoint.arrays[plain_name(port.name)]
        assert (array.shape, array.dtype) == (port.shape, full(port.index).dtype)
        for rank in fn.ranks:
            box = fn.bounds(port, rank)
            want = full(port.index)[tuple(slice(a, b) for a, b in box)]
            np.testing.assert_array_equal(array.read(box), want)


def test_the_last_checkpoint_is_read(tmp_path):
    for step in (9, 10, 200):
        save(tmp_path, step, TWO_BY_TWO)
    (tmp_path / ".step-00000300.token").mkdir()
    assert read_checkpoint(tmp_path).head.step == 200
    assert read_checkpoint(tmp_path / step_name(9)).head.step == 9


def test_missing_parts_are_noticed_where_they_are_needed(tmp_path):
    (save(tmp_path, 1, TWO_BY_TWO) / "rank-3.safetensors").unlink()
    array = read_checkpoint(tmp_path).arrays["a_weight"]
    box = TWO_BY_TWO.bounds(TWO_BY_TWO.inputs[0], 0)
    np.testing.assert_array_equal(array.read(box), full(0)[:4, :3])
    with pytest.raises(EngineError, match=r"DIST0641 .*its parts lack some of"):
        array.read(((0, 7), (0, 6)))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(EngineError, match=r"DIST0641 .*contains no complete checkpoint"):
        read_checkpoint(tmp_path / "nowhere")
    place = save(tmp_path, 1, TWO_BY_TWO)
    (place / LIST).write_text('{"schema_version": 1, "arrays": 5}')
    with pytest.raises(EngineError, match=r"DIST0641 .*it has the schema 1"):
        read_checkpoint(tmp_path)
    (place / LIST).write_text("[5]")
    with pytest.raises(EngineError, match=r"DIST0641 .*not a list of a checkpoint"):
        read_checkpoint(tmp_path)


def test_every_byte_that_is_read_is_compared_with_what_was_written(tmp_path):
    """No flip of a byte, in any file, gives another array than the one that was written."""
    place = save(tmp_path, 1, TWO_BY_TWO)
    expected = {plain_name(name): full(i) for i, name in enumerate(SHAPES)}
    refused = 0
    for name in (LIST, "rank-0.safetensors", "rank-3.safetensors"):
        content = (place / name).read_bytes()
        for at in range(0, len(content), 7):
            damaged = content[:at] + bytes([content[at] ^ 0x11]) + content[at + 1 :]
            (place / name).write_bytes(damaged)
            try:
                arrays = read_checkpoint(tmp_path).arrays
                for key, array in expected.items():
                    box = tuple((0, n) for n in array.shape)
                    np.testing.assert_array_equal(arrays[key].read(box), array)
            except EngineError as error:
                assert error.code == "DIST0641"
                refused += 1
        (place / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(EngineError, match="DIST0641"):
            read_checkpoint(tmp_path)
        (place / name).write_bytes(content)
    assert refused > 100


def test_the_files_are_those_of_safetensors(tmp_path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    place = save(tmp_path, 1, TWO_BY_TWO)
    box = tuple(slice(a, b) for a, b in TWO_BY_TWO.bounds(TWO_BY_TWO.inputs[0], 3))
    np.testing.assert_array_equal(load_file(place / "rank-3.safetensors")["a_weight"], full(0)[box])


@pytest.mark.parametrize("step", [4, 6])
def test_a_folder_with_a_later_step_is_refused(tmp_path: Path, step: int) -> None:
    """Whatever earlier ones it has."""
    fn = entry((2,), ["S[0]", "R", "R"])
    for done in (2, 5):
        save(tmp_path, done, fn)
    if step > 5:
        check_owner(tmp_path, "run", step)
        with pytest.raises(OutputError, match=r"DIST0160.*another run, the last of step 5"):
            check_owner(tmp_path, "other", step)
    else:
        with pytest.raises(OutputError, match=r"DIST0160.*of step 5 is later than step 4"):
            check_owner(tmp_path, "run", step)


@pytest.mark.parametrize(
    ("process", "other", "first"), [(0, 1, True), (1, 0, False), (2, 3, True), (3, 2, False)]
)
def test_the_first_process_on_a_file_system_is_the_least_that_sees_it(
    tmp_path: Path, process: int, other: int, first: bool
) -> None:
    made = Checkpoints.__new__(Checkpoints)
    made._member, made._token = SimpleNamespace(number=process, local_rank=0), "token"
    made._exchange = lambda *_: (tmp_path / f".host-token-{other}").touch()
    assert made._is_first_on_file_system(tmp_path) == first
