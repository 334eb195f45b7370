# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel on the convolutional networks that the onnx package bundles."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.planning import strategies as strategy

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
BATCH = 8
CASES = [
    (path.stem.removeprefix("light_"), devices)
    for path in sorted(LIGHT.glob("light_*.onnx"))
    for devices in (2, 4, 8)
    if devices == 4 or "densenet" not in path.stem
]


def load(name: str) -> Any:
    return td.load_model(str(LIGHT / f"light_{name}.onnx"), batch=BATCH).mod


def test_the_onnx_package_bundles_nine_models() -> None:
    """What the other tests run over."""
    assert len({name for name, _ in CASES}) == 9


@pytest.mark.parametrize(
    ("name", "devices"), nightly_but(CASES, [i for i, (_, count) in enumerate(CASES) if count == 4])
)
def test_bundled_models_stay_within_the_bounds(name: str, devices: int) -> None:
    """Weights and FLOPs per device, measured on the lowered module; no warning.

    Nothing is left out: convolutions of two, four and eight groups over more devices than groups
    cannot use a part of their weights, but they count (AlexNet, ShuffleNet).
    """
    mod = load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        plan = strategy.make_plan(mod, "tensor_parallel", {"tp": devices})
    system = td.System.load("dgx-a100")
    result = td.simulate(td.export(td.distribute(mod, plan)), system)
    alone = strategy.make_plan(mod, "tensor_parallel", {"tp": 1})
    whole = td.simulate(td.export(td.distribute(mod, alone)), system).devices[0]
    for device in result.devices:
        assert device.param_bytes * devices <= 1.1 * whole.param_bytes
        assert device.flops * devices <= 1.1 * whole.flops
    assert not result.unmodelled_ops


def test_a_bundled_model_is_verified() -> None:
    """Batch, channels, and both on one mesh with data parallel."""
    mod = load("squeezenet")
    mesh = {"dp": 2, "tp": 2}
    plan = strategy.make_plan(mod, "data_parallel+tensor_parallel", mesh)
    assert td.verify(mod, plan, engine="virtual").equal
