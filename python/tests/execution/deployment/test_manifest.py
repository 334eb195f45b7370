# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Manifests as they are written and read again, names of files, and what reading leaves open."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_distir as td
from tests.execution.serving.test_checkpoints import TWO_BY_TWO
from tvm_distir.execution.deployment.manifest import Manifest, _check_inside, read_manifest
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.execution.runtime.program.step_state import StepState
from tvm_distir.support.errors.tree import EngineError

DIGEST = "0" * 64
MANIFEST = Manifest(
    entries=(replace(TWO_BY_TWO, mesh_ranks=(0, 3, 1, 2)),),
    axes=AxisTable(("mesh",), {(0, ((0, 3), (1, 2))): "tp"}, (((2, 2), (0, 3, 1, 2)),)),
    libraries={"main": "main.so"},
    weights={0: {0: ("w.safetensors", "a"), 3: ("w.safetensors", "b")}, 1: {1: ("v", "c")}},
    files={"main.so": (7, DIGEST), "w.safetensors": (0, DIGEST), "v": (1, DIGEST)},
    built_with={"machine": "m", "apache-tvm": "1"},
    target={"kind": "llvm", "mcpu": "x"},
    communication=Communication(((0, 1), (2, 3)), ((0, 2), (3, 1))),
    state=StepState({1: 0, 2: 2, 3: 1}, (2,), frozenset({1, 2}), {1: 0}),
    hosts=2,
    overwritten=frozenset({2}),
)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Of the state some is zero at first, and some is not."""
    MANIFEST.write(tmp_path)
    assert read_manifest(tmp_path) == MANIFEST


def test_a_manifest_of_an_earlier_version_overwrites_every_input(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["overwritten"]
    for item in content["state"]:
        del item["optimizer"]
        item.pop("master_of", None)
    path.write_text(json.dumps(content), encoding="utf-8")
    again = read_manifest(tmp_path)
    assert again.overwritten == {port.index for port in MANIFEST.entries[0].inputs}
    assert again.state.optimizer == {2} and not again.state.masters


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a", "a/", "a\0b"])
def test_what_is_no_name_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EngineError, match=r"DIST0640 .*is not the name of a file in the folder"):
        _check_inside(name, tmp_path / "manifest.json")


@pytest.mark.parametrize("name", ["a", "a.so", "...", ".a", "a..b", " "])
def test_names_of_files_are_taken(tmp_path: Path, name: str) -> None:
    _check_inside(name, tmp_path / "manifest.json")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system lists no open files")
@pytest.mark.parametrize("kind", ["w.npy", "w.npz"])
def test_files_that_are_read_are_closed(tmp_path: Path, kind: str) -> None:
    """Also where reading fails."""
    path, values = tmp_path / kind, np.arange(64.0)
    np.savez(path, w=values) if kind.endswith("z") else np.save(path, values)
    (stored,) = td.open_weights(path).values()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        np.testing.assert_array_equal(stored.read(((3, 9),)), values[3:9])
    path.write_bytes(path.read_bytes()[:200])
    for _ in range(3):
        with pytest.raises(EngineError, match="DIST0641"):
            stored.read(((0, 64),))
    assert len(os.listdir("/proc/self/fd")) == before
