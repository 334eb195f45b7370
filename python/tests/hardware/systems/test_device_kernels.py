# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernel times of devices: the form, laws of physics, measured products, and refused files."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_distir.core.ops.kernel_classes import KERNEL_CLASSES, TENSOR_CLASSES, VIEW
from tvm_distir.hardware.systems.device_reader import (
    device_names,
    load_device,
    parse_device,
)
from tvm_distir.hardware.systems.hardware import Device
from tvm_distir.hardware.systems.system import System
from tvm_distir.support.errors.tree import HardwareError

NAMES = device_names()
CLASSES = [kind for kind in KERNEL_CLASSES if kind != VIEW]
DTYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "int8", "float4_e2m1fn")
SHAPES = 10_000 // (len(NAMES) * len(CLASSES)) + 1
"""By device and kernel class; all of them together are 10,000 and more."""
MEASURED = Path(__file__).parents[4] / "benchmarks" / "measured"
SHEET: dict[str, Any] = {
    "schema_version": 1,
    "name": "sheet",
    "memory_capacity_GiB": 64,
    "memory_bandwidth_GBps": 1000,
    "matmul_TFLOPs": {"bfloat16": 100, "float8": 200, "default": 10},
    "vector_TFLOPs": {"default": 10},
}
"""What a data sheet says, and no more."""


def system_of(device: Device) -> System:
    """A system with another device; its network does not matter here."""
    return dataclasses.replace(System.load("dgx-h100-megatron"), device=device)


def kernels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random FLOPs and bytes, of nothing to a PFLOP and to 128 GiB."""
    rng = np.random.default_rng(seed)
    flops = np.floor(2.0 ** rng.uniform(0, 50, SHAPES)) - 1
    return flops, np.floor(2.0 ** rng.uniform(0, 37, SHAPES)) - 1


@pytest.mark.parametrize("sustained", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_of_a_device_is_faster_than_physics(name: str, sustained: bool) -> None:
    device = load_device(name)
    system = system_of(device)
    for kind in CLASSES:
        flops, moved = kernels(CLASSES.index(kind))
        for dtype in DTYPES:
            rate = system.rate(kind, dtype, sustained)
            whole = rate.spent_s(flops, moved).total
            peaks = device.matmul_TFLOPs if kind in TENSOR_CLASSES else device.vector_TFLOPs
            peak = peaks.get(dtype, peaks.get(dtype.split("_")[0], peaks["default"]))
            arithmetic = flops / (peak * 1e12)
            traffic = moved / (device.memory_bandwidth_GBps * 1e9)
            assert (whole >= np.maximum(arithmetic, traffic) * (1 - 1e-12)).all()
            for more in (2, 1.001):
                assert (rate.spent_s(flops * more, moved).total >= whole).all()
                assert (rate.spent_s(flops, moved * more).total >= whole).all()
            least = system.rate(kind, dtype, False).spent_s(flops, moved).total
            assert (whole >= least).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_device_has_a_source(name: str) -> None:
    device = load_device(name)
    sheet = {"memory_capacity_GiB", "memory_bandwidth_GBps", "matmul_TFLOPs", "vector_TFLOPs"}
    assert sheet <= set(device.sources)
    assert (device.watts is None) == ("watts" not in device.sources)
    assert set(device.kernel_times) == set(CLASSES)
    for forms in device.kernel_times.values():
        assert all(form.source for form in forms.values())


def test_the_form_adds_powers() -> None:
    """By hand: 30 us of arithmetic and 40 us of traffic are 50 us at a power of 2."""
    form = {"t0_us": 7, "arithmetic": 0.5, "traffic": 0.25, "power": 2, "source": "here"}
    data = {**SHEET, "kernel_times": {"matmul": {"default": form}}}
    for factor, arithmetic_us in ((1.0, 30.0), (0.5, 60.0)):
        sustained = {"value": factor, "source": "here"}
        system = system_of(parse_device({**data, "constants": {"sustained": sustained}}, "x"))
        rate = system.rate("matmul", "bfloat16")
        duration = rate.spent_s(30e-6 * 50e12, 40e-6 * 250e9)
        whole_us = 7 + (arithmetic_us**2 + 40**2) ** 0.5
        assert duration.total * 1e6 == pytest.approx(whole_us, rel=1e-12)
        alone = system.rate("matmul", "bfloat16", sustained=False)
        assert alone.spent_s(30e-6 * 50e12, 40e-6 * 250e9).total * 1e6 == pytest.approx(57)
        assert (duration.bound >= 0) == (arithmetic_us > 40)
    assert rate.spent_s(0.0, 0.0).total == 7e-6
    assert system.roofline(0, 10**12, "matmul", "bfloat16").bound_by == "memory"
    assert system.roofline(0, 10, "matmul", "bfloat16").bound_by == "launch"


def test_products_of_a_step_are_slower_after_the_burst() -> None:
    """By hand: of 100 us of arithmetic 20 are at the full rate, and 80 take twice as long."""
    form = {"t0_us": 0, "arithmetic": 1, "traffic": 1, "power": 8, "source": "here"}
    constants = {
        "sustained": {"value": 0.5, "source": "here"},
        "burst_us": {"value": 20, "source": "here"},
    }
    data = {**SHEET, "kernel_times": {"matmul": {"default": form}}, "constants": constants}
    rate = system_of(parse_device(data, "x")).rate("matmul", "bfloat16")
    assert rate.spent_s(100e-6 * 100e12, 0.0).total == pytest.approx(180e-6)
    assert rate.spent_s(10e-6 * 100e12, 0.0).total == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("system", "architecture"), [("h100", "hopper"), ("h200", "hopper"), ("b200", "blackwell")]
)
def test_products_of_training_in_narrow_dtypes_are_as_fast_as_measured(
    system: str, architecture: str
) -> None:
    """Each measured speedup over bfloat16, on products of a layer and on large ones."""
    names = {"float8": "float8_tensor"}
    times: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    with (MEASURED / "products_narrow.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["architecture"] == architecture and row["dtype"] != "nvfp4":
                key, dtype = (row["device"], row["products"]), row["dtype"]
                times.setdefault(key, {})[dtype] = float(row["flops"]), float(row["time_ms"])
    known = System.load(system)
    for by_dtype in times.values():
        predicted = {
            dtype: known.rate("matmul", names.get(dtype, dtype)).spent_s(flops, 0.0).total
            for dtype, (flops, _) in by_dtype.items()
        }
        for dtype, (_, time_ms) in by_dtype.items():
            measured = by_dtype["bfloat16"][1] / time_ms
            assert predicted["bfloat16"] / predicted[dtype] == pytest.approx(measured, rel=0.1)


def test_classes_that_a_file_does_not_list() -> None:
    """They are priced like the class they resemble, or by defaults that say so."""
    form = {"t0_us": 0, "arithmetic": 0.5, "traffic": 0.5, "power": 1, "source": "measured"}
    device = parse_device({**SHEET, "kernel_times": {"matmul": {"default": form}}}, "x")
    for kind in ("conv", "batched", "vocabulary", "unaligned"):
        assert device.kernel_times[kind] == device.kernel_times["matmul"]
    assert "attention_backward default" in device.assumptions
    assert "sustained" in device.assumptions
    assert "matmul default" not in device.assumptions
    assert "matmul default" in parse_device(SHEET, "x").assumptions
    assert device.form("matmul", "float8_e4m3fn") is device.form("matmul", "bfloat16")
    assert system_of(device).peak_flops_per_s("float8_e4m3fn") == 200e12


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"kernel_times": {"matmull": {}}}, "kernel_times/matmull"),
        ({"kernel_times": {"matmul": {}}}, "kernel_times/matmul"),
        ({"constants": {"sustained": {"value": 1.5, "source": "x"}}}, "constants/sustained/value"),
        ({"constants": {"hop_us": {"value": 1, "source": "x"}}}, "constants/hop_us"),
        ({"matmul_TFLOPs": {"bfloat16": 100}}, "matmul_TFLOPs"),
        ({"watts": 0}, "watts"),
    ],
)
def test_wrong_devices_are_refused(part: dict[str, Any], place: str) -> None:
    with pytest.raises(HardwareError) as caught:
        parse_device({**SHEET, **part}, "x")
    assert caught.value.code == "DIST0703"
    assert place in str(caught.value)


@pytest.mark.parametrize("number", ["arithmetic", "traffic"])
def test_fractions_above_one_are_refused(number: str) -> None:
    form = {"t0_us": 0, "arithmetic": 1, "traffic": 1, "power": 1, "source": "x", number: 1.01}
    with pytest.raises(HardwareError, match=number):
        parse_device({**SHEET, "kernel_times": {"matmul": {"default": form}}}, "x")


def test_unknown_device() -> None:
    with pytest.raises(HardwareError) as caught:
        load_device("h100_sxm")
    assert caught.value.code == "DIST0701"
    assert "h100-sxm" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "table", "at_most"), [("a100-pcie", "a100_pcie", 4), ("b200", "b200", 8)]
)
def test_measured_products(name: str, table: str, at_most: float) -> None:
    """SimuMax's products, one by one but in loops that hold the power limit."""
    system = system_of(load_device(name))
    errors = []
    with (MEASURED / f"products_{table}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            m, k, n = int(row["m"]), int(row["k"]), int(row["n"])
            out = (4 if row.get("out_dtype") == "float32" else 2) * (1 + int(row["accumulate"]))
            moved = 2 * (m * k + k * n) + out * m * n
            rate = system.rate("matmul", "bfloat16")
            time_us = 1e6 * rate.spent_s(2.0 * m * k * n, float(moved)).total
            errors.append(abs(time_us / float(row["time_us"]) - 1))
    assert 100 * np.median(errors) < at_most
