# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Inputs of the steps of a run, and the checksums by which a resumed run knows them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_distir.execution.serving.step_data import StepData, ZeroArray
from tvm_distir.support.errors.tree import EngineError, OutputError

LARGE = (3, 1 << 18)
"""So many elements that a sample of them is read."""


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "x": rng.normal(size=(4, 3, 5)).astype("float32"),
        "large": rng.normal(size=(4, *LARGE)).astype("float32"),
    }


def steps_of(tmp_path: Path, arrays: dict[str, np.ndarray], repeat: int = 1) -> StepData:
    np.savez(tmp_path / "steps.npz", **arrays)
    np.savez(tmp_path / "same.npz", y=np.arange(3.0), w=np.ones(2))
    return StepData(tmp_path / "same.npz", tmp_path / "steps.npz", repeat, ["w"])


def test_each_step_has_its_row_and_steps_repeat(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    data = steps_of(tmp_path, {"x": x}, repeat=3)
    assert data.count == 12
    for step in range(1, 13):
        arrays = data.of_step(step)
        assert sorted(arrays) == ["w", "x", "y"] and arrays["x"].shape == (3,)
        np.testing.assert_array_equal(arrays["x"].read([(1, 3)]), x[(step - 1) % 4][1:3])


def test_checksums_are_of_what_is_no_state(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    data = steps_of(tmp_path, arrays, repeat=2)
    first, second = data.checksums(1), data.checksums(2)
    assert sorted(first) == ["large", "x", "y"]
    assert first["y"] == second["y"] and len({*first.values(), *second.values()}) == 5
    assert data.checksums(5) == first


def test_any_element_of_a_small_array_changes_its_checksum(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    """Its shape and its type do, too."""
    seen = set()
    x = arrays["x"]
    for at in [None, *np.ndindex(3, 5)]:
        changed = x.copy()
        if at is not None:
            changed[(0, *at)] += 1
        seen.add(steps_of(tmp_path, {"x": changed}).checksums(1)["x"])
    for other in (x.reshape(4, 5, 3), x.view("int32")):
        seen.add(steps_of(tmp_path, {"x": other}).checksums(1)["x"])
    assert len(seen) == 1 + 15 + 2


def test_the_ends_of_a_large_array_change_its_checksum(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    """A sample is read, of few runs of neighbors: the first of them and the last are the ends."""
    large, seen = arrays["large"], set()
    for at in (None, (0, 0), (0, 1023), (2, LARGE[1] - 1)):
        changed = large.copy()
        if at is not None:
            changed[(0, *at)] += 1
        data = steps_of(tmp_path, {"large": changed})
        seen.add(data.checksums(1)["large"])
    assert len(seen) == 4
    read: list[int] = []

    class Watched:
        shape, dtype = LARGE, large.dtype

        def read(self, bounds: object) -> np.ndarray:
            part = large[0][tuple(slice(a, b) for a, b in bounds)]  # type: ignore[attr-defined]
            read.append(part.size)
            return part

    data.of_step = lambda step: {"large": Watched()}  # type: ignore[method-assign]
    data.checksums(1)
    assert len(read) == 64 and max(read) == 1024 and sum(read) <= 64 * 1024


def test_a_resumed_run_has_the_data_of_the_run(
    tmp_path: Path, arrays: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = {"x": arrays["x"]}
    data = steps_of(tmp_path, inputs)
    known = data.checksums(2)
    data.resume(tmp_path, 2, known, True)
    assert sorted(data.of_step(3)) == ["x", "y"]  # w is state, which the checkpoint has
    assert "1 arrays of" in capsys.readouterr().err
    for step, sums in ((3, known), (2, {**known, "z": "0"}), (2, {"x": known["x"]})):
        with pytest.raises(OutputError, match=r'DIST0160 .*"\w" of step'):
            steps_of(tmp_path, inputs).resume(tmp_path, step, sums, True)
        steps_of(tmp_path, inputs).resume(tmp_path, step, sums, False)  # the first process looks
    data = steps_of(tmp_path, inputs)
    data.resume(tmp_path, 4, data.checksums(4), True)
    with pytest.raises(EngineError, match=r"DIST0602 .* 5 steps, of which there are 4"):
        data.resume(tmp_path, 5, {}, False)


def test_steps_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"DIST0602 .*have \[2, 3\] steps"):
        steps_of(tmp_path, {"x": np.zeros(2), "z": np.zeros((3, 1))})
    with pytest.raises(EngineError, match=r'DIST0602 .*"w" is state'):
        steps_of(tmp_path, {"w": np.zeros((4, 2))})
    assert StepData(None, None, 7, []).count == 7 and StepData(None, None, 7, []).of_step(1) == {}


def test_zeros_take_the_shape_of_the_box() -> None:
    box = ZeroArray((4, 6), np.dtype("int32")).read([(1, 3), (2, 6)])
    assert (box.shape, box.dtype, box.any()) == ((2, 4), np.dtype("int32"), np.False_)
