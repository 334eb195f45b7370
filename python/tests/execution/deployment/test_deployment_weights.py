# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Weights in files: every box that is read is the slice of the whole, and nothing more is held."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.deployment import safetensors
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import EngineError

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "float8_e4m3fn"]


def values(shape, dtype):
    kind = getattr(ml_dtypes, dtype, dtype)
    return np.random.default_rng(1).integers(-9, 9, shape).astype(kind)


def boxes(shape):
    spans = [[(0, n), (0, n // 2), (n // 3, n), (n // 2, n // 2)] for n in shape]
    return itertools.product(*spans)


def slices(box):
    return tuple(slice(a, b) for a, b in box)


def saved(tmp_path, form, arrays):
    path = tmp_path / f"w.{'npz' if form == 'packed' else form}"
    if form == "safetensors":
        described = {n: (a.shape, str(a.dtype)) for n, a in arrays.items()}
        safetensors.write(path, described, arrays.__getitem__)
    else:
        (np.savez_compressed if form == "packed" else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("form", ["safetensors", "npz", "packed"])
@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5), (0, 3)])
def test_every_box_is_the_slice(tmp_path, form, shape):
    arrays = {"a.w": values(shape, "float32"), "b": values(shape, "int64")}
    opened = td.open_weights(saved(tmp_path, form, arrays))
    assert sorted(opened) == ["a.w", "b"]
    for name, array in arrays.items():
        assert opened[name].shape == shape
        for box in boxes(shape):
            assert same_bits(opened[name].read(box), array[slices(box)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(tmp_path, dtype):
    array = values((4, 6), dtype)
    (result,) = td.open_weights(saved(tmp_path, "safetensors", {"w": array})).values()
    assert same_bits(result.read(((1, 3), (2, 6))), array[1:3, 2:6])


def test_files_agree_with_the_package_safetensors(tmp_path):
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    arrays = {"x": values((3, 5), "float32"), "y.z": values((8,), "float16")}
    theirs = tmp_path / "theirs.safetensors"
    package.save_file(arrays, str(theirs), metadata={"format": "pt"})
    opened = td.open_weights(theirs)
    ours = package.load_file(str(saved(tmp_path, "safetensors", arrays)))
    for name, array in arrays.items():
        whole = tuple((0, n) for n in array.shape)
        assert same_bits(opened[name].read(whole), array)
        assert same_bits(ours[name], array)


def test_npy_folder_and_index(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(6.0).reshape(2, 3))
    assert td.open_weights(tmp_path / "one.npy")["one"].read(((1, 2), (0, 2))).tolist() == [[3, 4]]
    parts = tmp_path / "parts"
    parts.mkdir()
    for i in range(2):
        array = np.full(4, i, "float32")
        described = {f"w{i}": ((4,), "float32")}
        safetensors.write(parts / f"p{i}.safetensors", described, {f"w{i}": array}.__getitem__)
    assert sorted(td.open_weights(parts)) == ["w0", "w1"]
    index = {"weight_map": {f"w{i}": f"p{i}.safetensors" for i in range(2)}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    assert td.open_weights(parts)["w1"].read(((1, 3),)).tolist() == [1, 1]
    index["weight_map"]["w2"] = "p0.safetensors"
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match=r"DIST0641 .*its files lack w2"):
        td.open_weights(parts)


@pytest.mark.parametrize("form", ["safetensors", "npz", "packed"])
@pytest.mark.parametrize("box", [((0, 256), (0, 4096)), ((0, 1024), (1024, 2048))])
def test_a_shard_takes_the_memory_of_a_shard(tmp_path, form, box):
    """16 MiB in the file; rows, or columns, of a quarter at most are read."""
    array = np.random.default_rng(0).random((1024, 4096), np.float32)
    (stored,) = td.open_weights(saved(tmp_path, form, {"w": array})).values()
    tracemalloc.start()
    part = stored.read(box)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert same_bits(part, array[slices(box)])
    assert peak_bytes < 1.5 * part.nbytes + (1 << 20) < array.nbytes


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("w.safetensors", b"", "it is not a safetensors file"),
        ("w.safetensors", b"\xff" * 64, "its header has the length"),
        ("w.safetensors", (7).to_bytes(8, "little") + b"{broken", "it is not a safetensors file"),
        ("w.npz", b"PK nothing", "it is not an npz file"),
        ("w.npy", b"nothing", "it is not an npy file"),
        ("w.bin", b"", "it is not one of"),
    ],
)
def test_broken_files(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(EngineError, match=f"DIST0641 .*{name}: {says}"):
        td.open_weights(tmp_path / name)


def test_a_file_that_shrinks(tmp_path):
    path = saved(tmp_path, "safetensors", {"w": values((64,), "float32")})
    stored = td.open_weights(path)["w"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineError, match=r"DIST0641 .*100 bytes too early"):
        stored.read(((0, 64),))
    with pytest.raises(EngineError, match=r"DIST0641 .*does not match its shape, or exceeds"):
        td.open_weights(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(EngineError, match="DIST0641"):
        td.open_weights(tmp_path / "none.safetensors")
