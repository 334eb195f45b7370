# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels timed on this machine: what runs is what is timed, and times reach the prediction."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.program import Program
from tvm_distir.runtime import launched
from tvm_distir.runtime.program import timing
from tvm_distir.strategy import make_plan

SPECS = {
    "gpt": ("zoo:gpt?size=tiny", "megatron:axis=x"),
    "moe": ("zoo:moe?size=tiny", "expert_parallel:axis=x"),
    "resnet": ("zoo:resnet?size=tiny,batch=2", "data_parallel:axis=x"),
}


@pytest.fixture(scope="module")
def lowered():
    return {
        name: td.distribute(mod, make_plan(mod, strategy, {"x": 2}))
        for name, (spec, strategy) in SPECS.items()
        for mod in [td.load_model(spec).mod]
    }


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "CACHE", tmp_path)
    monkeypatch.setattr(timing, "_LEAST_S", 1e-4)
    return tmp_path


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_what_is_timed_is_what_runs(lowered, name, fuse):
    mod = td.load_model(SPECS[name][0]).mod
    report = td.verify(mod, dist=launched(lowered[name], fuse), rtol=1e-5)
    assert report.equal


def test_every_kernel_has_its_time(lowered, kept):
    program = td.measure(lowered["gpt"])
    plain = td.export(lowered["gpt"])
    for name, fn in program.functions.items():
        work = sum(op.flops for op in fn.ops if op.kernel_class == "matmul")
        assert work == sum(
            op.flops for op in plain.functions[name].ops if op.kernel_class == "matmul"
        )
        for op in fn.ops:
            assert (op.measured_ps > 0) == (op.kind == "compute" and "axis_index" not in op.op)
    assert Program.from_json(program.to_json()) == program


def test_a_prediction_is_the_sum_of_the_times(kept):
    mod = td.load_model("zoo:mlp?size=tiny").mod
    program = td.measure(td.distribute(mod, make_plan(mod, "data_parallel:axis=x", {"x": 1})))
    ops = [op for _, op in program.executed(program.entries[0].function)]
    total_ps = sum(op.measured_ps for op in ops)
    assert td.simulate(program, "laptop-cpu").time_s == pytest.approx(total_ps * 1e-12, rel=1e-12)
    grouped = td.simulate(program, "dgx-a100-megatron")  # ops that were measured are kernels
    assert grouped.time_s == pytest.approx(total_ps * 1e-12, rel=1e-12)


def test_times_are_kept_by_kernel(lowered, kept, monkeypatch):
    first = td.measure(lowered["resnet"])
    assert len(list(kept.rglob("*.json"))) == 1

    def never(*_):
        raise AssertionError("timed again")

    monkeypatch.setattr(timing, "_run_all", never)
    assert td.measure(lowered["resnet"]).to_json() == first.to_json()
    with pytest.raises(AssertionError, match="timed again"):
        td.measure(lowered["resnet"], cached=False)


def test_a_longer_kernel_takes_longer(kept):
    """Sixteen times the work in one product: more than four times as long."""
    times = []
    for hidden in (128, 512):
        mod = td.load_model(f"zoo:mlp?layers=1,hidden={hidden},batch=64,bias=0").mod
        program = td.measure(td.distribute(mod, make_plan(mod, "data_parallel:axis=x", {"x": 1})))
        (product,) = [op for op in program.functions["main"].ops if op.kernel_class == "matmul"]
        times.append(product.measured_ps)
    assert times[1] > 4 * times[0]
    assert np.isfinite(times).all()
