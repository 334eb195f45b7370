# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""MODEL strings: which frontend reads them, and which are refused."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm_ffi

from tests.models import gpt2_onnx
from tvm_distir.execution.verification.input_specs import input_specs
from tvm_distir.models import zoo
from tvm_distir.models.common.spec import check_model
from tvm_distir.models.model import load_model
from tvm_distir.support.errors.tree import ModelError

SMALL = dict(layers=1, hidden=8, heads=2, vocab=19, positions=8)
ROOT = Path(__file__).resolve().parents[3]


def shape_of(mod):
    return input_specs(mod)[0].shape


def test_zoo_strings():
    model = load_model("zoo:gpt?size=tiny,seq=8,dtype=bfloat16", batch=2)
    assert (model.name, model.kind, model.read_weights()) == ("gpt", "zoo", {})
    want = zoo.gpt(size="tiny", seq=8, dtype="bfloat16", batch=2)
    assert tvm_ffi.structural_equal(model.mod, want)
    assert shape_of(load_model("zoo:gpt").mod) == (16, 128)


def test_onnx_strings(tmp_path):
    path = tmp_path / "m.onnx"
    proto = gpt2_onnx.build(**SMALL, seq=4, batch="batch")
    path.write_bytes(proto.SerializeToString())
    model = load_model(str(path), batch=3)
    assert (model.name, model.kind, shape_of(model.mod)) == ("m", "onnx", (3, 4))
    assert shape_of(load_model(str(path), dims={"batch": 5}).mod) == (5, 4)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    weights = model.read_weights()
    assert list(weights) == [spec.name for spec in input_specs(model.mod)[1:]]
    for name, array in weights.items():
        np.testing.assert_array_equal(array, stored[name])


def test_tvmscript_strings(tmp_path):
    mod = zoo.gpt(size="tiny", layers=1)
    path = tmp_path / "gpt.py"
    path.write_text(mod.script(show_meta=True))
    model = load_model(str(path))
    assert (model.name, model.kind) == ("gpt", "tvmscript")
    assert tvm_ffi.structural_equal(model.mod, mod)
    assert tvm_ffi.structural_equal(load_model(f"{path}::Module").mod, mod)
    with pytest.raises(ModelError, match="DIST0314"):
        load_model(str(path), batch=2)


@pytest.mark.parametrize(
    ("spec", "code", "word"),
    [
        ("m.pt2", "DIST0301", "m.pt2"),
        ("m.txt", "DIST0302", "zoo:NAME"),
        ("", "DIST0302", "zoo:NAME"),
        ("zoo:gpd", "DIST0330", '"gpt"'),
        ("zoo:", "DIST0330", "gpt, gpt_oss, llama"),
        ("zoo:gpt?layer=2", "DIST0331", '"layers"'),
        ("zoo:gpt?size=gpt2-xxl", "DIST0331", '"gpt2-xl"'),
        ("zoo:gpt?layers", "DIST0302", "key=value"),
        ("zoo:gpt?layers=2,layers=3", "DIST0302", "twice"),
        ("zoo:gpt?", "DIST0302", "key=value"),
        ("zoo:llama?theta=hot", "DIST0332", "number"),
        ("none.onnx", "DIST0301", "none.onnx"),
        ("none.py", "DIST0301", "none.py"),
    ],
)
def test_bad_strings(spec, code, word):
    with pytest.raises(ModelError) as caught:
        load_model(spec)
    assert caught.value.code == code
    assert word in str(caught.value)


def test_without_torch_the_extra_is_named_before_anything_else(tmp_path, monkeypatch):
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/version", "3")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for read in (check_model, load_model):
        with pytest.raises(ModelError, match=r"tvm_distir\[torch\]") as caught:
            read(str(path))
        assert caught.value.code == "DIST0304"


def test_script_writes_a_model_that_loads(tmp_path):
    path = tmp_path / "gpt2.onnx"
    script = ROOT / "scripts" / "peers" / "make_gpt2_onnx.py"
    options = "--layers 1 --hidden 8 --heads 2 --vocab 19 --positions 8 --seq 4".split()
    command = [sys.executable, str(script), str(path), *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    subprocess.run(command, check=True, env=environment)
    assert shape_of(load_model(str(path), batch=2).mod) == (2, 4)
    bad = subprocess.run(
        [*command, "--heads", "3"], env=environment, capture_output=True, text=True
    )
    assert bad.returncode == 1
    assert bad.stderr.startswith("DIST0332")
