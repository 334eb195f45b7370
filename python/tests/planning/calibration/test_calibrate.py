# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Constants fitted to steps: found again where they made the rows, and times as simulated."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tvm_distir as td
from tests.plain_systems import PLAIN_A100
from tvm_distir.hardware.systems.constants import MEANINGS, MOST
from tvm_distir.hardware.systems.system_reader import system_names
from tvm_distir.hardware.systems.system_writer import to_data
from tvm_distir.planning.calibration.calibrate import calibrate
from tvm_distir.planning.calibration.least_squares import fit
from tvm_distir.planning.calibration.measured_rows import StepTimeModel
from tvm_distir.planning.calibration.programs import program_of
from tvm_distir.planning.calibration.row_files import read_rows
from tvm_distir.planning.calibration.rows import MeasuredStep, ProductRow, StepRow
from tvm_distir.planning.calibration.step_times import with_constants
from tvm_distir.planning.sweep import cache as kept
from tvm_distir.support.errors.tree import SimulationError

BASE = MeasuredStep(8, 1, 256, 4, 4, 128, 1, 1, 1, vocab=512)
ROWS = [
    BASE,
    dataclasses.replace(BASE, micro_batch=4),
    dataclasses.replace(BASE, tp=2, hidden=512),
    dataclasses.replace(BASE, dp=2, micro_batch=2),
    dataclasses.replace(BASE, pp=2),
    dataclasses.replace(BASE, pp=2, tp=2, dp=2, hidden=512),
]


@pytest.fixture(scope="module")
def system():
    return td.System.load("dgx-a100-megatron")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    kept.CACHE = tmp_path_factory.mktemp("cache")
    return [program_of(row) for row in ROWS]


def test_times_are_those_that_are_simulated(system, programs):
    model = StepTimeModel(ROWS, system)
    simulated = [td.simulate(program, system).time_s for program in programs]
    np.testing.assert_allclose(model.times_s({}), simulated, rtol=0.005)
    alone = [n for n, row in enumerate(ROWS) if row.pp == 1]
    result = model.times_s({})
    for number in alone:
        assert result[number] == pytest.approx(simulated[number], rel=1e-6)


def test_kept_programs_are_equal(programs):
    again = program_of(ROWS[2])
    assert again.to_json() == programs[2].to_json()
    assert program_of(ROWS[2], cached=False).to_json() == again.to_json()


def test_constants_that_made_the_rows_are_found(system, programs):
    true = {"python_launch_us": 60.0, "unit_overhead_us": 400.0}
    times = StepTimeModel(ROWS, system).walk(true)
    rows = [
        dataclasses.replace(row, time_s=float(time)) for row, time in zip(ROWS, times, strict=True)
    ]
    result = calibrate(system, rows, folds=0)
    assert result.errors_percent["in sample"] < 0.5
    assert result.values["python_launch_us"] == pytest.approx(60.0, rel=0.05)
    assert result.system.constants["python_launch_us"].source == "calibrated"
    assert "nic_efficiency" in result.undetermined
    assert "nic_efficiency" in result.to_text()


def test_a_fit_keeps_its_bounds():
    def residuals(point):
        return np.array([point[0] - 5.0, point[1] - 0.5])

    low, high = np.zeros(2), np.ones(2)
    result = fit(residuals, np.ones(2), np.full(2, 0.4), np.full(2, 100.0), (low, high))
    np.testing.assert_allclose(result.point, [1.0, 0.5], atol=1e-3)


def test_an_outlier_counts_little():
    data = np.array([1.0, 1.01, 0.99, 1.0, 30.0])

    def residuals(point):
        return (point[0] - data) / 0.01

    low, high = np.zeros(1), np.full(1, 50.0)
    result = fit(residuals, np.ones(5), np.array([3.0]), np.array([100.0]), (low, high))
    assert result.point[0] == pytest.approx(1.0, abs=0.02)


def test_a_fitted_system_is_read_again(system):
    other = with_constants(system, {"python_launch_us": 12.5}, "here")
    assert td.System.from_dict(to_data(other)) == other
    plain = td.System.load(PLAIN_A100)
    assert td.System.from_dict(to_data(plain)) == plain


def test_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "global_batch,micro_batch,hidden_size,attention_heads,num_layers,sequence_length,"
        "tensor_parallelism,data_parallelism,pipeline_parallelism,iteration_time_ms\n"
        "8,2,64,4,2,16,1,2,1,5.5\n"
    )
    (row,) = read_rows(path)
    assert (row.micro_batches, row.devices, row.vocab) == (2, 2, 51200)
    assert row.time_s == pytest.approx(5.5e-3)


@pytest.mark.parametrize(
    "text",
    [
        "global_batch\n8\n",
        "global_batch,micro_batch\nx,1\n",
        "m,k,n,time_us\n0,64,64,3\n",
        "m,k,n,time_us\n64,64,64,inf\n",
        "model,dp,iteration_time_ms\nzoo:mlp,0,3\n",
        "model,dp,iteration_time_ms\nzoo:mlp,1.5,3\n",
        "model,seq,iteration_time_ms\nzoo:mlp,8,3\n",
        "m,k,n,time_us,tp\n64,64,64,3,2\n",
        "m,k,n,time_us,acumulate\n64,64,64,3,1\n",
        "m,k,n,time_us\n64,64,64,3,2\n",
        "m,k,n,time_us,dtype\n64,64,64,3\n",
    ],
    ids=[
        "missing",
        "no number",
        "no rows of a matrix",
        "endless",
        "no devices",
        "half a device",
        "option of analyze",
        "column of steps",
        "misspelled",
        "long row",
        "short row",
    ],
)
def test_wrong_rows(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(SimulationError) as caught:
        read_rows(path)
    assert caught.value.code == "DIST0730"


def test_a_system_without_constants_is_refused():
    with pytest.raises(SimulationError) as caught:
        calibrate(PLAIN_A100, [dataclasses.replace(BASE, time_s=1.0)])
    assert caught.value.code == "DIST0730"


@pytest.mark.parametrize("name", [n for n in system_names() if td.System.load(n).constants])
def test_at_most_fourteen_constants(name):
    assert set(td.System.load(name).constants) <= set(MEANINGS)
    assert len(td.System.load(name).constants) <= MOST


def test_rows_of_models_and_products(tmp_path):
    steps, products = tmp_path / "steps.csv", tmp_path / "products.csv"
    steps.write_text(
        "model,strategy,dp,loss,iteration_time_ms\n"
        '"zoo:mlp?layers=2,hidden=64",data_parallel,4,mse,2.5\n'
    )
    products.write_text("m,k,n,dtype,accumulate,time_us\n64,32,16,bfloat16,1,8\n")
    (step,), (product,) = read_rows(steps), read_rows(products)
    assert step == StepRow(
        "zoo:mlp?layers=2,hidden=64", "data_parallel", (("dp", 4),), "mse", time_s=2.5e-3
    )
    assert step.groups(2) == ("devices 4", "nodes 2")
    assert product.flops == 2 * 64 * 32 * 16
    assert product.bytes == 2 * (64 * 32 + 32 * 16 + 2 * 64 * 16)
    products.write_text("m,k,n,dtype,time_us\n64,32,16,int3,8\n")
    with pytest.raises(SimulationError, match="int3"):
        read_rows(products)
    products.write_text("m,k,n,time_us\n64,32,16,0\n")
    with pytest.raises(SimulationError, match="time_us"):
        read_rows(products)


def test_bursts_are_found_where_products_have_them(system):
    """Products up to 40 us at the peak, then at half of it: a kink that two numbers describe."""
    peak, bandwidth = 312e12, 2039e9
    rows = []
    for size in (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384):
        row = ProductRow(size, size, size)
        at_peak = row.flops / peak
        arithmetic = at_peak if at_peak <= 40e-6 else 40e-6 + 2 * (at_peak - 40e-6)
        time_s = arithmetic + 0.5 * row.bytes / (0.8 * bandwidth) + 3e-6
        rows.append(dataclasses.replace(row, time_s=time_s))
    result = calibrate(system, rows, folds=0)
    assert result.errors_percent["in sample"] < 0.3
    assert result.values["burst_us"] == pytest.approx(40, rel=0.05)
    assert result.values["matmul_efficiency"] == pytest.approx(0.5, rel=0.02)
    assert result.system.constants["burst_us"].source == "calibrated"
    assert result.system.constants["nic_efficiency"] == system.constants["nic_efficiency"]
    row = rows[-1]
    single = result.system.roofline(row.flops, row.bytes, "matmul", "float16")
    assert single.time_s == pytest.approx(row.time_s, rel=0.01)


def test_rows_faster_than_the_device_are_refused(system, programs):
    """Rows at 1.2 times the peak or the bandwidth, a step far too fast, do not count."""
    sizes = [(size, size, size) for size in (1024, 2048, 4096, 8192)] + [(1, 8192, 28672)]
    rows = [ProductRow(*size) for size in sizes]
    times = StepTimeModel(rows, system).times_s({})
    rows = [dataclasses.replace(r, time_s=float(t)) for r, t in zip(rows, times, strict=True)]
    above_peak = dataclasses.replace(rows[3], time_s=rows[3].flops / (1.2 * 312e12))
    above_bandwidth = dataclasses.replace(rows[4], time_s=rows[4].bytes / (1.2 * 2039e9))
    alone = calibrate(system, rows, folds=0)
    result = calibrate(system, [*rows[:2], above_peak, *rows[2:], above_bandwidth], folds=0)
    assert (list(alone.unused), list(result.unused)) == ([], [3, 7])
    assert result.values == alone.values
    assert list(result.to_dict()["unused"]) == [3, 7]
    assert "2 rows (3, 7): they are faster than the peak" in result.to_text()
    assert "not used" not in alone.to_text()
    step_s = float(StepTimeModel([BASE], system).times_s({})[0])
    step = dataclasses.replace(BASE, time_s=step_s / 1e4)
    assert calibrate(system, [*rows, step], folds=0).values == alone.values
    with pytest.raises(SimulationError, match=r"all 2 rows") as caught:
        calibrate(system, [above_peak, step])
    assert caught.value.code == "DIST0730"


def test_products_of_which_no_constant_says_anything_are_named():
    """Times of kernels of an H100 are measured: its products once ended in a crash."""
    system = td.System.load("h100")
    rows = [ProductRow(n, n, n, "bfloat16", "bfloat16", time_s=1.0) for n in (1024, 2048)]
    result = calibrate(system, rows)
    assert list(result.unused) == [1, 2] and not result.changed
    assert result.system == system
    assert "no constant of h100 is changed" in result.to_text()
    assert "2 rows (1, 2): no constant" in result.to_text()


def test_changed_constants_are_named(system, programs):
    times = StepTimeModel(ROWS, system).walk({"python_launch_us": 60.0})
    rows = [dataclasses.replace(r, time_s=float(t)) for r, t in zip(ROWS, times, strict=True)]
    result = calibrate(system, rows, folds=0)
    before, after = result.changed["python_launch_us"]
    assert before == system.constants["python_launch_us"].value
    assert after == result.system.constants["python_launch_us"].value
    assert f"changed, was {before:.4g}" in result.to_text()
    kept_names = system.constants.keys() - result.changed.keys()
    assert {n: system.constants[n] for n in kept_names} == {
        n: result.system.constants[n] for n in kept_names
    }


def test_links_are_fitted_where_asked_to(tmp_path, system, monkeypatch):
    """A curve whose two ranks are slower per byte than its four."""
    monkeypatch.setattr(kept, "CACHE", tmp_path)
    near = dataclasses.replace(
        system.intra_node, bandwidth_GBps=8.0, share=12.0, root_us=0.0, setup_us=50.0
    )
    created = dataclasses.replace(system, intra_node=near, kernels="eager")
    rows = [
        StepRow(f"zoo:mlp?layers={layers},hidden=1024,batch=512", "data_parallel" * (n > 1),
                (("dp", n),) * (n > 1), "mse")
        for layers in (1, 2) for n in (1, 2, 4)
    ]  # fmt: skip
    times = StepTimeModel(rows, created).times_s({})
    rows = [dataclasses.replace(r, time_s=float(t)) for r, t in zip(rows, times, strict=True)]
    near = dataclasses.replace(near, bandwidth_GBps=3.0, share=2.0)
    names = ("intra_node.bandwidth_GBps", "intra_node.share")
    result = calibrate(dataclasses.replace(created, intra_node=near), rows, fit_also=names, folds=0)
    assert result.errors_percent["in sample"] < 1.0
    ratio = result.system.intra_node.share / 12.0, result.system.intra_node.bandwidth_GBps / 8.0
    assert ratio == pytest.approx((1.0, 1.0), rel=0.3)
    assert result.system.sources["intra_node.share"] == "calibrated"
    alone = dataclasses.replace(created, intra_node=dataclasses.replace(near, share=0.0))
    again = calibrate(alone, rows[:1], fit_also=("intra_node.share",), folds=0)
    assert again.values["intra_node.share"] == pytest.approx(1.0)  # where a fit begins
    assert again.system.intra_node.share == 0.0  # one device says nothing of it
    with pytest.raises(SimulationError, match="colour"):
        calibrate(system, rows, fit_also=("colour",))
