# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tables of measured kernels: interpolation, refused rows, floors, errors on kernels left out."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tests.hardware.systems.expert_rows import work_rows
from tests.hardware.systems.left_out_errors import left_out_errors
from tvm_distir.hardware.systems import kernel_tables
from tvm_distir.hardware.systems.device_reader import load_device
from tvm_distir.hardware.systems.expert_kernels import (
    EXPERTS,
    expert_work,
    tokens_of,
)
from tvm_distir.hardware.systems.hardware import PowerLaw
from tvm_distir.hardware.systems.kernel_tables import (
    COLUMNS,
    KernelSizes,
    KernelTable,
    load_tables,
    product_work,
    table_names,
    work_of,
)
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_writer import to_data
from tvm_distir.support.errors.tree import HardwareError

FORM = PowerLaw(4.0, 0.7, 0.8, 2.0, "made up")
SYSTEMS = [
    f"{name}-{engine}"
    for name in ("a100", "h100", "h200", "b200")
    for engine in ("serving", "trtllm")
    if (name, engine) != ("a100", "trtllm")
]
BARS = {"matmul": 6.5, "attention": 10.0, "attention_decode": 10.0, "experts": 10.0}
"""Most of the median errors, in percent, of kernels of vLLM whose scales are per tensor."""


def made_up(count: int, seed: int) -> np.ndarray:
    """Products that take the time of the form, times a factor that varies smoothly by size."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(16), np.log(8192), (count, 3))).round()
    device = load_device("h100-sxm")
    flops, moved = work_of("matmul", sizes, 2.0)
    compute = flops / (0.7 * device.matmul_TFLOPs["bfloat16"] * 1e6)
    traffic = moved / (0.8 * device.memory_bandwidth_GBps * 1e3)
    factor = 1.5 + 0.5 * np.sin(np.log(sizes[:, 0]) / 2) * np.cos(np.log(sizes[:, 2]) / 3)
    return np.column_stack([sizes, (4.0 + np.hypot(compute, traffic)) * factor])


def table_of(rows: np.ndarray) -> KernelTable:
    """Make a table of products in bfloat16 on an H100."""
    return KernelTable(load_device("h100-sxm"), "matmul", "bfloat16", 2.0, FORM, rows, 132)


def predicted_us(table: KernelTable, rows: np.ndarray) -> np.ndarray:
    """Return what a table says of the sizes of rows."""
    flops, moved = work_of("matmul", rows[:, :-1], 2.0)
    return 1e6 * table.spent_s(flops, moved, rows[:, :-1].T).total


def test_times_between_measured_kernels_are_interpolated() -> None:
    table, rows = table_of(made_up(400, 1)), made_up(200, 2)
    form = 1e6 * table.rate.spent_s(*work_of("matmul", rows[:, :-1], 2.0)).total
    by_form, by_table = (
        np.median(np.abs(time_us / rows[:, -1] - 1))
        for time_us in (form, predicted_us(table, rows))
    )
    assert by_table < 0.02 < 0.2 < by_form


def test_far_from_all_measured_kernels_the_form_remains() -> None:
    far = np.array([[1e9, 1e9, 1e9, 1.0]])
    table = table_of(made_up(100, 1))
    form = table.rate.spent_s(*work_of("matmul", far[:, :-1], 2.0)).total
    assert predicted_us(table, far) == pytest.approx(1e6 * form, rel=0.05)


def test_rows_that_break_physics_are_refused_and_counted() -> None:
    rows = made_up(100, 1)
    impossible = rows[:7].copy()
    impossible[:, -1] *= 1e-3
    table = table_of(np.concatenate([rows, impossible]))
    assert (table.refused, len(table.time_s)) == (7, 100)


def test_errors_of_left_out_kernels_are_those_of_tables_without_them() -> None:
    rows = made_up(60, 3)
    errors = left_out_errors(table_of(rows))
    for number in (0, 17, 59):
        rest = table_of(np.delete(rows, number, 0))
        expected = predicted_us(rest, rows[[number]])[0] / rows[number, -1] - 1
        assert errors[number] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_kernel_of_a_table_is_faster_than_the_device(name: str) -> None:
    """10,000 random sizes over all systems, of which single ones take as long as in arrays."""
    system = System.load(name)
    assert system.tables is not None
    rng = np.random.default_rng(SYSTEMS.index(name))
    bandwidth = system.memory_bandwidth_bytes_per_s
    for kernel, dtype in system.tables.tables:
        if kernel == EXPERTS:
            continue
        sizes = np.exp(rng.uniform(0, 10, (220, COLUMNS[kernel]))).astype(np.int64)
        if kernel != "matmul":
            sizes[:, 2] = np.maximum(sizes[:, 1], sizes[:, 2])
            sizes[:, 3] = sizes[:, 4] * (1 + sizes[:, 3] % 64)
        flops, moved = work_of(kernel, sizes.astype(float), 1.0)
        key = KernelSizes(dtype, tuple(sizes.T))
        whole = system.spent_s(flops, moved, kernel, dtype, key)[0].total
        peak = system.peak_flops_per_s(dtype)
        assert (whole >= np.maximum(flops / peak, moved / bandwidth) * (1 - 1e-12)).all()
        assert np.isfinite(whole).all()
        for row in (0, 100, 219):
            single = KernelSizes(dtype, tuple(sizes[row].tolist()))
            time = system.roofline(int(flops[row]), int(moved[row]), kernel, dtype, single)
            assert round(time.time_s * 1e12) == pytest.approx(round(whole[row] * 1e12), abs=1)


@pytest.mark.parametrize("tokens", [1, 7, 60, 900, 20000])
def test_products_of_experts_take_their_shares_of_the_time_of_all(tokens: int) -> None:
    """Two thirds of it gate and up, as one product; no less than the floors of the device."""
    system = System.load("h200-serving")
    stored, hidden, inner, top_k, experts = 32, 4096, 1536, 8, 128
    rows = round(work_rows(tokens, stored, top_k, experts))
    result = tokens_of(np.array([[rows, stored, hidden, inner, top_k, experts]], float))[0]
    assert result == pytest.approx(tokens, rel=0.3)
    flops, moved = expert_work(
        np.array([[rows, stored, hidden, inner, top_k, experts]], float), 1 + 4 / 128**2
    )
    peak = system.peak_flops_per_s("float8_block")
    least = max(flops[0] / peak, moved[0] / system.memory_bandwidth_bytes_per_s)
    slots = 2.0 * rows * hidden * inner
    times = {
        part: system.spent_s(
            part * slots, part * moved[0] / 3, "matmul", "float8_block",
            KernelSizes("float8_block", (rows, stored, *dims, top_k, experts), EXPERTS),
        )[0].total
        for part, dims in ((2, (hidden, inner)), (1, (inner, hidden)))
    }  # fmt: skip
    assert times[2] == pytest.approx(2 * times[1], rel=1e-12)
    assert times[1] + times[2] >= least
    key = KernelSizes("bfloat16", (rows, stored, inner, hidden, top_k, experts), EXPERTS)
    wide, narrow = (
        system.spent_s(slots, bits * moved[0] / 24, "matmul", "bfloat16", key)[0].total
        for bits in (16, 4)
    )
    assert narrow < wide  # weights of 4 bits in products of 16


@pytest.mark.parametrize("name", [name for name in table_names() if name.endswith("vllm")])
def test_tables_predict_kernels_that_they_leave_out(name: str) -> None:
    device = {"b200": "b200"}.get(name.split("-")[0], name.split("-")[0] + "-sxm")
    for (kernel, dtype), table in load_tables(name, load_device(device)).tables.items():
        if dtype != "float8_block":
            median = 100 * np.median(np.abs(left_out_errors(table)))
            assert median <= BARS[kernel], (kernel, dtype)


def test_a_system_with_tables_is_read_as_it_is_written() -> None:
    system = System.load("h100-serving")
    again = System.from_dict(json.loads(json.dumps(to_data(system))))
    assert again.kernel_tables == "h100-vllm"
    sizes = KernelSizes("bfloat16", (16, 4096, 4096))
    work = (2 * 16 * 4096 * 4096, 2 * 4096 * 4096 + 4 * 16 * 4096, "matmul", "bfloat16", sizes)
    assert again.roofline(*work) == system.roofline(*work)
    assert system.roofline(*work) != dataclasses.replace(system, kernel_tables="").roofline(*work)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": 3}, "DIST0703"),
        ({"tables": [{"kernel": "conv"}]}, "DIST0703"),
        ({"processors": 0}, "DIST0703"),
        ("short", "DIST0703"),
        (None, "DIST0701"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, change, code) -> None:
    content = json.loads((kernel_tables.TABLES / "h200-vllm.json").read_text(encoding="utf-8"))
    if change == "short":
        content["tables"][0]["rows"][3] = [1, 2]
    elif change is not None:
        content.update(change)
    path = tmp_path / "tables.json"
    if change is not None:
        path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(HardwareError) as caught:
        load_tables(str(path), load_device("h200-sxm"))
    assert caught.value.code == code


@pytest.mark.parametrize("varying", [(0,), (0, 1), ()])
def test_kernels_in_any_order_take_as_long_as_by_themselves(varying):
    """Kernels of the same sizes are interpolated once, whatever their order."""
    table = System.load("h100-serving").tables.of("matmul", "bfloat16")
    sizes = np.full((3, 7), 4096.0)
    for place in varying:
        sizes[place] = [900, 17, 8000, 17, 900, 1, 333]
    flops, moved = product_work(sizes.T, 2)
    together = table.spent_s(flops, moved, tuple(sizes)).total
    alone = [
        table.spent_s(flops[k : k + 1], moved[k : k + 1], tuple(sizes[:, k : k + 1])).total[0]
        for k in range(7)
    ]
    assert together.tolist() == alone
    assert len(set(alone)) == (5 if varying else 1)
