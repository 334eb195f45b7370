# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a run of a deployed folder saves and takes up again, without a job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.execution.serving.test_checkpoints import TWO_BY_TWO, save
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime.program.step_state import StepState
from tvm_distir.execution.serving.folder_runs import _ServedRun
from tvm_distir.execution.serving.step_data import first_values
from tvm_distir.execution.serving.step_ports import without_state
from tvm_distir.support.errors.tree import EngineError


def _run(process: int, checkpoints: object) -> _ServedRun:
    run = _ServedRun.__new__(_ServedRun)
    run._options = SimpleNamespace(checkpoints=checkpoints)
    run._member = SimpleNamespace(number=process)
    state = StepState({7: 0, 8: 2, 9: 1}, caches={10: 5})
    run._program = SimpleNamespace(entries=[TWO_BY_TWO], state=state)
    return run


class _Tensor:
    def __init__(self, number: int) -> None:
        self.number = number

    def numpy(self) -> np.ndarray:
        return np.full(2, self.number)


@pytest.mark.parametrize("process", [0, 3])
def test_each_process_saves_its_state_and_the_first_the_data(process: int) -> None:
    saved: list[Any] = []
    checkpoints = SimpleNamespace(save=lambda *inputs: saved.append(inputs))
    data = SimpleNamespace(checksums=lambda step: {"x": f"of {step}"})
    _run(process, "folder")._save(
        checkpoints, 5, {0: _Tensor(3), 2: _Tensor(4), 5: _Tensor(6)}, data
    )
    ((step, arrays, sums),) = saved
    assert step == 5 and {k: v.tolist() for k, v in arrays.items()} == {0: [3, 3], 2: [4, 4]}
    assert sums == ({"x": "of 5"} if process == 0 else {})
    _run(process, None)._save(checkpoints, 6, {}, data)
    assert len(saved) == 1


@pytest.mark.parametrize("process", [0, 3])
def test_the_state_of_a_checkpoint_replaces_that_of_the_folder(tmp_path, process: int) -> None:
    save(tmp_path, 4, TWO_BY_TWO)
    start = read_checkpoint(tmp_path)
    resumed: list[Any] = []
    data = SimpleNamespace(
        resume=lambda place, step, data, is_first: resumed.append((place, step, data, is_first))
    )
    fixed: dict[int, Any] = {1: "old", 5: "weight"}
    assert _run(process, None)._resume(fixed, start, data) == 4
    assert fixed[5] == "weight"
    assert {k: fixed[k].shape for k in (0, 1, 2)} == {0: (7, 6), 1: (5,), 2: ()}
    assert resumed == [(start.path, 4, {"x": "sum"}, process == 0)]
    lacking = replace(start, arrays={k: v for k, v in start.arrays.items() if k != "b"})
    with pytest.raises(EngineError, match=r'DIST0641 .*lacks "b"'):
        _run(process, None)._resume({}, lacking, data)


def test_a_folder_without_state_takes_the_weights_of_a_checkpoint(tmp_path) -> None:
    """And none of its steps are done before."""
    save(tmp_path, 4, TWO_BY_TWO)
    run, fixed = _run(0, None), dict[int, Any]()
    run._program.state = StepState()
    assert run._resume(fixed, read_checkpoint(tmp_path), SimpleNamespace()) == 0
    assert {k: v.shape for k, v in fixed.items()} == {0: (7, 6), 1: (5,), 2: ()}
    run._program.entries = [replace(TWO_BY_TWO, inputs=TWO_BY_TWO.inputs[1:])]
    with pytest.raises(EngineError, match=r'DIST0641 .*the program has no weight "a_weight"'):
        run._resume({}, read_checkpoint(tmp_path), SimpleNamespace())


def test_state_is_zero_at_first_or_a_copy_of_its_weight_where_the_folder_says_so() -> None:
    state = StepState(zeros=(1, 2), masters={4: 0})
    port = replace(TWO_BY_TWO.inputs[0], index=4)
    entry = replace(TWO_BY_TWO, inputs=(*TWO_BY_TWO.inputs, port))
    weight = np.arange(42, dtype="float16").reshape(7, 6)
    first = first_values(SimpleNamespace(entries=[entry], state=state), {0: weight})
    assert {k: (first[k].shape, str(first[k].dtype)) for k in (1, 2)} == {
        1: ((5,), "float32"), 2: ((), "int64"),
    }  # fmt: skip
    copy = first[4].read(((1, 3), (0, 6)))
    assert copy.dtype == "float32" and np.array_equal(copy, weight[1:3])
    assert first[0] is weight


def test_outputs_that_are_state_are_not_reported() -> None:
    """Those that remain are numbered in their order."""
    outputs = tuple(replace(TWO_BY_TWO.inputs[0], index=index) for index in (3, 5, 6, 9))
    entry = replace(TWO_BY_TWO, outputs=outputs)
    (changed,), positions = without_state([entry], {5: 0})
    assert positions == [3, 6, 9] and [port.index for port in changed.outputs] == [0, 1, 2]
    assert changed.inputs == entry.inputs
