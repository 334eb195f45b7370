# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Real models the whole way: import, plan, distribute, verify, export, simulate."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tvm_distir as td
from tests.models import gpt2_onnx
from tests.nightly import nightly_but
from tests.plain_systems import PLAIN_A100
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.planning import strategies as strategy

pytestmark = pytest.mark.optimized  # these run as users do

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = sorted(p.name for p in LIGHT.glob("light_*.onnx"))
BATCH, DEVICES = 8, 4
GPT2 = {"layers": 2, "hidden": 96, "heads": 4, "seq": 16, "batch": 4}
MESH = {"dp": 2, "tp": 2}


def analysed(mod, plan):
    """Distribute, export, simulate on dgx-a100."""
    lowered = td.distribute(mod, plan)
    check_level(lowered, 5)
    return lowered, td.simulate(td.export(lowered), td.System.load(PLAIN_A100))


def test_the_onnx_package_bundles_nine_models():
    """What the other tests run over."""
    assert len(MODELS) == 9


@pytest.mark.parametrize("name", MODELS)
def test_bundled_onnx_models_data_parallel(name):
    """Each device runs its share of the samples, nothing is sent, every op has a cost."""
    mod = td.load_model(str(LIGHT / name), batch=BATCH).mod
    plan = strategy.make_plan(mod, "data_parallel", {"dp": DEVICES})
    lowered, result = analysed(mod, plan)
    assert not result.unmodelled_ops
    assert not result.collectives
    outputs = lowered["main"].attrs["dist.io"]["outputs"]
    assert [int(o["shape"][0]) for o in outputs] == [BATCH] * len(outputs)
    assert int(lowered["main"].ret_ty.shape[0]) == BATCH // DEVICES
    whole = td.simulate(
        td.export(td.distribute(mod, strategy.make_plan(mod, "data_parallel", {"dp": 1}))),
        td.System.load(PLAIN_A100),
    )
    assert sum(d.flops for d in result.devices) == sum(d.flops for d in whole.devices)


def test_a_bundled_onnx_model_is_verified():
    """With redrawn weights, against the single-device result."""
    mod = td.load_model(str(LIGHT / "light_squeezenet.onnx"), batch=BATCH).mod
    plan = strategy.make_plan(mod, "data_parallel", {"dp": DEVICES})
    assert td.verify(mod, plan, engine="virtual").equal


def gpt2_models():
    """GPT-2 with the odd vocabulary 50257, from the zoo and as an ONNX file."""
    return {
        "zoo": lambda _: td.zoo.gpt(vocab=50257, **GPT2),
        "zoo, flat": lambda _: td.zoo.gpt(vocab=50257, nested=0, **GPT2),
        "onnx": lambda folder: _gpt2_onnx(folder),
    }


def _gpt2_onnx(folder):
    path = folder / "gpt2.onnx"
    onnx.save(gpt2_onnx.build(vocab=50257, **GPT2), str(path))
    return td.from_onnx(str(path))


@pytest.mark.parametrize(
    ("source", "engine"),
    nightly_but(
        [*((source, "virtual") for source in sorted(gpt2_models())), ("onnx", "threads")],
        {0, 1},
    ),
)
def test_gpt2_megatron(source, engine, tmp_path):
    """dp 2 x tp 2: verified; two all-reduces per layer over tp, one for the embedding."""
    mod = gpt2_models()[source](tmp_path)
    plan = strategy.make_plan(mod, "data_parallel+megatron", MESH)
    assert td.verify(mod, plan, engine=engine).equal
    _, result = analysed(mod, plan)
    assert not result.unmodelled_ops
    matches = [(c.kind, c.mesh_axis, c.count) for c in result.collectives]
    assert matches == [("all_reduce", "tp", 2 * GPT2["layers"] + 1)]
    batch, seq, hidden = GPT2["batch"] // MESH["dp"], GPT2["seq"], GPT2["hidden"]
    activation_bytes = 4 * batch * seq * hidden
    assert result.collectives[0].bytes_per_device == 5 * activation_bytes


def test_llama_70b_is_analysed_without_weights():
    """80 layers on 64 devices: two all-reduces per layer and the embedding's, no op unmodelled."""
    mod = td.load_model("zoo:llama?size=70b").mod
    plan = strategy.make_plan(mod, "data_parallel+megatron", {"dp": 8, "tp": 8})
    _, result = analysed(mod, plan)
    assert not result.unmodelled_ops
    matches = [(c.kind, c.mesh_axis, c.group_size, c.count) for c in result.collectives]
    assert matches == [("all_reduce", "tp", 8, 161)]
    assert len(result.devices) == 64
