# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The picture of who holds what, compared with NumPy's own slicing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import tirx

from tvm_distir.core.ir.mesh import device_mesh
from tvm_distir.core.ir.placement import P, R
from tvm_distir.interface.explain.picture import parts, picture
from tvm_distir.support.errors.tree import MeshError

UNEVEN = (4, 5, 7)  # over 2 and 3 devices: short shards, and empty ones


def draw(seed):
    """A random mesh with shuffled device ids, a shape and labels that may cut it."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 4, size=int(rng.integers(1, 4)))]
    count = int(np.prod(sizes))
    ids = rng.permutation(2 * count)[:count].tolist()
    mesh = device_mesh({f"a{i}": n for i, n in enumerate(sizes)}, device_ids=ids)
    ndim = int(rng.integers(0, 4))
    labels = [int(x) for x in rng.integers(P, ndim, size=len(sizes))] if ndim else [R] * len(sizes)
    shape = []
    for d in range(ndim):
        cuts = [n for n, x in zip(sizes, labels) if x == d]
        uneven = len(cuts) < 2 and rng.random() < 0.5
        shape.append(
            int(rng.choice(UNEVEN)) if uneven else int(np.prod(cuts)) * int(rng.integers(1, 4))
        )
    return sizes, ids, mesh, shape, labels


def held(whole, sizes, ids, labels):
    """The part of ``whole`` on every device: cut block by block, one mesh axis after another."""
    pieces = {(): whole}
    for size, label in zip(sizes, labels):
        following = {}
        for coords, piece in pieces.items():
            blocks = [piece] * size
            if label >= 0:
                step = -(-piece.shape[label] // size)
                blocks = [
                    np.take(piece, range(*slice(i * step, (i + 1) * step).indices(n)), axis=label)
                    for n in [piece.shape[label]]
                    for i in range(size)
                ]
            for i, block in enumerate(blocks):
                following[(*coords, i)] = block
        pieces = following
    return {ids[at]: piece for at, piece in enumerate(pieces.values())}


def numbers(text):
    """Ids of ``0-3, 7``."""
    matches = []
    for word in text.split(", "):
        first, _, last = word.partition("-")
        matches += range(int(first), int(last or first) + 1)
    return matches


def bounds(text):
    first, last = text.split(":")
    return slice(int(first), int(last))


def read(text, ndim):
    """(slices, ids) of every cell or row of a picture."""
    lines = [x for x in text.split("\n") if not x.startswith(("along", "empty"))]
    if ndim in (1, 2):
        rows = [[cell.strip() for cell in line.split("|")] for line in lines if "-+-" not in line]
        rows = [row for row in rows if not re.fullmatch(r"-+", row[0])]
        if ndim == 1:
            return [((bounds(a),), numbers(b)) for a, b in zip(*rows)]
        head = [bounds(x) for x in rows[0][1:]]
        return [
            ((bounds(row[0]), column), numbers(cell))
            for row in rows[1:]
            for column, cell in zip(head, row[1:])
        ]
    table = [re.split(r"\s{2,}", line.strip()) for line in lines[1:]]
    return [(tuple(bounds(x) for x in row[1:]), numbers(row[0])) for row in table]


@pytest.mark.parametrize("seed", range(150))
def test_pictures_show_what_numpy_cuts(seed):
    sizes, ids, mesh, shape, labels = draw(seed)
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    expected = held(whole, sizes, ids, labels)
    text = picture(shape, labels, mesh)
    cells = read(text, len(shape))
    assert sorted(device for _, devices in cells for device in devices) == sorted(ids)
    for slices, devices in cells:
        for device in devices:
            np.testing.assert_array_equal(whole[slices], expected[device])
    assert ("holds a partial sum" in text) == (P in labels)
    empty = any(piece.size == 0 for piece in expected.values())
    assert ("only padding" in text) == empty
    # Replicas stand together: no two cells show the same part, unless both are empty.
    shown = [str(slices) for slices, _ in cells if whole[slices].size]
    assert len(shown) == len(set(shown))


def test_a_small_grid():
    mesh = device_mesh({"dp": 2, "tp": 2})
    assert picture((8, 6), "S[0], S[1]", mesh).split("\n") == [
        "    | 0:3 | 3:6",
        "----+-----+----",
        "0:4 | 0   | 1",
        "4:8 | 2   | 3",
    ]


def test_a_symbolic_dim_is_numbered():
    n = tirx.Var("n", "int64")
    text = picture((n, 6), "S[0], R", device_mesh({"dp": 2, "tp": 2}))
    assert [line.split("|")[0].strip() for line in text.split("\n")[2:]] == ["1/2", "2/2"]
    assert text.split("\n")[2].endswith("| 0, 1")


def test_many_devices_are_shortened():
    mesh = device_mesh({"dp": 64, "tp": 64})
    text = picture((4096, 4096), "S[0], S[1]", mesh)
    assert len(text.split("\n")) < 25 and max(map(len, text.split("\n"))) < 300
    assert "4032:4096" in text and "4095" in text
    assert len(parts((4096, 4096), (0, 1), mesh)) == 4096
    assert "0-4095" in picture((4096, 4096), "R, R", mesh)


@pytest.mark.parametrize(("labels", "code"), [("S[2], R", "DIST0205"), ("S[0]", "DIST0204")])
def test_what_does_not_fit_is_refused(labels, code):
    with pytest.raises(MeshError) as caught:
        picture((8, 6), labels, device_mesh({"dp": 2, "tp": 2}))
    assert caught.value.code == code
