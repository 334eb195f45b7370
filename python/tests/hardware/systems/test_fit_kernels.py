# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``scripts/checks/fit_kernels.py`` recovers the form of kernels, and refuses impossible ones."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_distir.hardware.systems.device_reader import load_device

SCRIPT = Path(__file__).parents[4] / "scripts" / "checks" / "fit_kernels.py"
TRUE = (4.0, 0.7, 0.6, 2.0)
COLUMNS = ("gpu", "dtype", "m", "n", "k", "time_us")


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module."""
    pytest.importorskip("scipy", reason="scipy, which the script needs, is not installed")
    spec = importlib.util.spec_from_file_location("fit_kernels", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(path: Path, broken: int) -> Path:
    """Write products of a known form on an H100, of which some are twice as fast as the peak."""
    device = load_device("h100-sxm")
    peak, bandwidth = device.matmul_TFLOPs["bfloat16"] * 1e6, device.memory_bandwidth_GBps * 1e3
    t0_us, arithmetic, traffic, power = TRUE
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(200 + broken):
            m, n, k = (int(x) for x in 2.0 ** rng.uniform(6, 13, 3))
            compute_us = 2 * m * n * k / (arithmetic * peak)
            memory_us = 2 * (m * k + k * n + m * n) / (traffic * bandwidth)
            time_us = t0_us + (compute_us**power + memory_us**power) ** (1 / power)
            if number >= 200:
                time_us = m * n * k / peak
            writer.writerow(("h100_sxm", "bfloat16", m, n, k, time_us))
    return path


@pytest.mark.parametrize("broken", [0, 7])
def test_a_known_form_is_recovered(script: Any, tmp_path: Path, broken: int) -> None:
    kernels = list(script.read([table(tmp_path / "products.csv", broken)]))
    assert len(kernels) == 200 + broken
    fit = script.fitted(load_device("h100-sxm"), "default", kernels, "here")
    assert fit.refused == broken
    form = fit.form
    numbers = (form.t0_us, form.arithmetic, form.traffic, form.power)
    assert numbers == pytest.approx(TRUE, rel=0.01)
    assert np.abs(fit.errors).max() < 0.1
    assert form.source == "here: 200 of products training"


def test_causal_attention_counts_half(script: Any) -> None:
    """By hand, two heads of one sequence: 2 x 2 x 2 x 64 x 100 x 101 / 2 FLOPs."""
    row = {
        "gpu": "h100_sxm", "dtype": "bfloat16", "direction": "forward", "causal": "1",
        "batch_size": "1", "isl": "100", "num_heads": "2", "num_key_value_heads": "1",
        "head_dim": "64", "time_us": "10",
    }  # fmt: skip
    (kernel,) = script.attention(row, "h100-sxm")
    assert kernel.flops == 2 * 2 * 2 * 64 * 100 * 101 / 2
    assert kernel.moved_bytes == 2 * 100 * 64 * (2 + 1 + 1 + 2)
    assert (kernel.kernel_class, kernel.dtype) == ("attention", "default")
