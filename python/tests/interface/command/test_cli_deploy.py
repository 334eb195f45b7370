# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir deploy`` and ``run``."""

from __future__ import annotations

import json
import tempfile

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.deployment import safetensors
from tvm_distir.execution.deployment.manifest import Manifest
from tvm_distir.execution.runtime.program import lowered
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.interface.command import main
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import DependencyError

MODEL = "zoo:gpt?layers=1,hidden=16,heads=2,seq=4,vocab=32,batch=2"
PLACES = ["--strategy", "megatron", "--mesh", "tp=2"]


@pytest.fixture
def model():
    mod = td.load_model(MODEL).mod
    names = [str(p.name) for p in mod["main"].params]
    return mod, dict(zip(names, draw_inputs(mod, seed=0)))


def test_deploy_then_run(tmp_path, model, capsys):
    mod, values = model
    first, *rest = values
    np.savez(tmp_path / "weights.npz", **{name: values[name] for name in rest})
    np.savez(tmp_path / "inputs.npz", **{first: values[first]})
    folder = str(tmp_path / "deployed")
    words = ["deploy", MODEL, *PLACES, "--weights", str(tmp_path / "weights.npz"), "-o", folder]
    assert main([*words, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in reported["inputs"]] == [first]
    assert "main.so" in reported["files"]

    dist = td.distribute(mod, strategy.make_plan(mod, "megatron", {"tp": 2}))
    want = td.run(dist, values, engine="virtual")
    for suffix in ("npz", "safetensors"):
        out = tmp_path / f"out.{suffix}"
        words = ["run", folder, "--inputs", str(tmp_path / "inputs.npz"), "-o", str(out)]
        assert main([*words, "--engine", "virtual"]) == 0
        assert "output0: float32[2, 4, 32]" in capsys.readouterr().out
        result = td.open_weights(out)["output0"]
        assert np.array_equal(result.read(tuple((0, n) for n in result.shape)), want[0])


def test_text(tmp_path, capsys):
    assert main(["deploy", MODEL, *PLACES, "-o", str(tmp_path / "d")]) == 0
    message = capsys.readouterr().out
    assert "1 meshes, 2 devices" in message
    assert "input input_ids: int" in message


def _fails(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["weights", "manifest", "library"])
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path, model, capsys, monkeypatch, where):
    _, values = model
    np.savez(tmp_path / "weights.npz", **dict(list(values.items())[1:]))
    words = ["deploy", MODEL, *PLACES, "--weights", str(tmp_path / "weights.npz"), "-o"]
    old = tmp_path / "old"
    assert main([*words, str(old)]) == 0
    before = {p.name: p.read_bytes() for p in old.iterdir()}
    if where == "weights":
        monkeypatch.setattr(safetensors, "write", _fails)
    elif where == "manifest":
        monkeypatch.setattr(Manifest, "write", _fails)
    else:
        monkeypatch.setattr(lowered, "export_library", _no_linker)
        monkeypatch.setattr(tempfile, "TemporaryFile", _fails)
    for folder in (old, tmp_path / "new", tmp_path / "a" / "b"):
        capsys.readouterr()
        assert main([*words, str(folder)]) == 1
        out, err = capsys.readouterr()
        assert err.startswith(f"DIST0640 {folder}: it cannot be written: No space left on device")
        assert out == ""
    assert {p.name: p.read_bytes() for p in old.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "weights.npz"]


def _no_linker(*_, **__):
    raise DependencyError("DIST0112", "cc cannot link the library", location="main.so", remedy="")


def test_a_linker_that_fails_on_a_disk_with_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lowered, "export_library", _no_linker)
    assert main(["deploy", MODEL, *PLACES, "-o", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err.startswith("DIST0112 main.so: ")
    assert list(tmp_path.iterdir()) == []


def test_outputs_of_a_run_are_written_whole_or_not_at_all(tmp_path, model, capsys, monkeypatch):
    _, values = model
    np.savez(tmp_path / "inputs.npz", **values)
    folder, out = str(tmp_path / "deployed"), tmp_path / "out.npz"
    assert main(["deploy", MODEL, *PLACES, "-o", folder]) == 0
    out.write_bytes(b"old")
    monkeypatch.setattr(np, "savez", lambda file, **_: file.write(b"half") and _fails())
    words = ["run", folder, "--inputs", str(tmp_path / "inputs.npz"), "-o", str(out)]
    capsys.readouterr()
    assert main([*words, "--engine", "virtual"]) == 2
    assert "DIST0153" in capsys.readouterr().err and out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deployed", "inputs.npz", "out.npz"]


def test_faults(tmp_path, capsys):
    assert main(["run", str(tmp_path), "-o", str(tmp_path / "o.npz")]) == 1
    assert "DIST0640" in capsys.readouterr().err
    assert main(["run", str(tmp_path), "-o", "o.txt"]) == 2
    assert "DIST0152 -o: " in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("")
    assert main(["deploy", MODEL, *PLACES, "-o", str(tmp_path)]) == 1
    assert "it contains mine.txt and is not a deployed program" in capsys.readouterr().err
