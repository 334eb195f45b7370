# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir deploy`` and ``run``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir import strategy
from tvm_distir.cli import main
from tvm_distir.verification import draw_inputs

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
    told = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in told["inputs"]] == [first]
    assert "main.so" in told["files"]

    dist = td.distribute(mod, strategy.make_plan(mod, "megatron", {"tp": 2}))
    want = td.run(dist, values, engine="virtual")
    for suffix in ("npz", "safetensors"):
        out = tmp_path / f"out.{suffix}"
        words = ["run", folder, "--inputs", str(tmp_path / "inputs.npz"), "-o", str(out)]
        assert main([*words, "--engine", "virtual"]) == 0
        assert "output0: float32[2, 4, 32]" in capsys.readouterr().out
        found = td.open_weights(out)["output0"]
        assert np.array_equal(found.read(tuple((0, n) for n in found.shape)), want[0])


def test_text(tmp_path, capsys):
    assert main(["deploy", MODEL, *PLACES, "-o", str(tmp_path / "d")]) == 0
    said = capsys.readouterr().out
    assert "1 meshes, 2 devices" in said
    assert "a run needs input_ids: int" in said


def test_faults(tmp_path, capsys):
    assert main(["run", str(tmp_path), "-o", str(tmp_path / "o.npz")]) == 1
    assert "DIST0640" in capsys.readouterr().err
    assert main(["run", str(tmp_path), "-o", "o.txt"]) == 2
    assert "DIST0152 -o: " in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("")
    assert main(["deploy", MODEL, *PLACES, "-o", str(tmp_path)]) == 1
    assert "it holds mine.txt and is no deployed program" in capsys.readouterr().err
