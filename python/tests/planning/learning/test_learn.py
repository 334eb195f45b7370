# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Learning: systems that made a trace are found again, and calls meet the ops that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvm_distir as td
from tests.planning.learning.device_traces import NODE, DeviceTrace
from tvm_distir.hardware import LAWS, to_data
from tvm_distir.interface.command.app import main
from tvm_distir.performance import HOSTS, simulate
from tvm_distir.planning.calibration.step_times import with_constants
from tvm_distir.planning.learning.alignment import PredictedOp, predicted_ops
from tvm_distir.planning.learning.fitting import with_laws, within_peaks
from tvm_distir.planning.study import Study

CPU_TRACE = Path(__file__).parent / "data" / "perceptron_cpu.json"
PERCEPTRON = "zoo:mlp?layers=3,hidden=1024,batch=512"
STEP = {"train": True, "strategy": "data_parallel", "mesh": {"dp": 2}}
KERNELS = {"product": "sm80_xmma_gemm_f32f32", "": "vectorized_elementwise_kernel"}
LAUNCH_US = 3.0


def study_of(system: td.System, batch: int = 512) -> Study:
    model = PERCEPTRON.replace("batch=512", f"batch={batch}")
    return Study(model, system=system, stack="torch-eager", bucket_bytes=0, ahead_bytes=0, **STEP)


def true_system() -> td.System:
    """Return a system that differs from the one that is given by known factors."""
    system = with_laws(td.System.load("a100"), ["float32"])
    values = {
        "kernels.matmul.float32.arithmetic": 0.4, "kernels.vocabulary.float32.arithmetic": 0.4,
        "kernels.matmul.float32.t0_us": 12.0, "kernels.vocabulary.float32.t0_us": 12.0,
        "kernels.memory.float32.traffic": 0.5, "kernels.memory.float32.t0_us": 4.0,
    }  # fmt: skip
    return with_constants(system, {**values, "collective_factor": 1.5, "python_launch_us": 1.0})


def trace_of(study: Study, path: Path) -> Path:
    """Write the trace of a device that takes what the system of a study says."""
    trace = DeviceTrace()
    ops = predicted_ops(study.result.lanes[0], study.forward)
    compute = [op for op in ops if not op.is_collective and op.args["class"] not in HOSTS]
    products = [op for op in compute if op.phase == "backward" and op.family == "product"]
    # A node has two products, whose ops follow one another but for the first layer.
    at = 10.0
    trace.step(1, 0.0, study.result.time_s * 1e6)
    pending: list[tuple[str, float]] = []
    behind: list[tuple[str, float]] = []
    for op in compute:
        kernel = KERNELS.get(op.family, KERNELS[""]), op.duration_s * 1e6
        name = "aten::linear" if op.family == "product" else "aten::add"
        if op.phase == "backward":
            name = NODE + ("AddmmBackward0" if op.family == "product" else "AddBackward0")
        if op.phase == "backward" and op.family == "product":
            pending.append(kernel)
            products.remove(op)
            if len(pending) < 2 and products:
                continue
            trace.call(name, pending, at)
            for number, other in enumerate(behind, 1):
                trace.call(NODE + "TBackward0", [other], at + 2 * number * LAUNCH_US)
            at += 2 * len(behind) * LAUNCH_US
            pending, behind = [], []
        elif op.phase == "backward" and pending:
            behind.append(kernel)
        elif op.phase == "optimizer":
            trace.add("user_annotation", "Optimizer.step#SGD.step", 10, at - 1.0, LAUNCH_US)
            trace.call("aten::_foreach_add_", [kernel], at)
        else:
            trace.call(name, [kernel], at)
        at += 2 * LAUNCH_US
    for op in ops:
        if op.is_collective:
            facts = {"In msg nelems": op.args["payload_bytes"] // 4, "dtype": "Float"}
            nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            trace.call(NODE + "Reducer", [(nccl, op.duration_s * 1e6)], at, 20, **facts)
            at += LAUNCH_US
    return trace.write(path)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory):
    """Return the true system, and what is learned from its trace with the package's A100."""
    true = true_system()
    trace = trace_of(study_of(true), tmp_path_factory.mktemp("learn") / "t.json")
    return true, td.learn(
        trace, PERCEPTRON, system="a100", stack="torch-eager", bucket_bytes=0, ahead_bytes=0, **STEP
    )


def test_all_calls_are_explained(learned) -> None:
    _, result = learned
    assert result.named_share == 1.0
    assert result.explained_share > 0.98
    calls = [id(call) for work in result.work for call in work.calls]
    assert sorted(calls) == sorted(id(call) for call in result.step.calls)
    products = [work for work in result.work if work.family == "product"]
    assert [len(work.ops) for work in products] == [1, 1, 1, 2, 2, 1]


def test_the_numbers_that_made_a_trace_are_found(learned) -> None:
    _, result = learned
    found = result.calibration
    assert found.errors_percent["in sample"] < 2.0
    assert found.errors_percent["out of fold"] < 5.0
    determined = {name: value for name, (_, value) in found.changed.items()}
    assert determined["kernels.memory.float32.traffic"] == pytest.approx(0.5, rel=0.05)
    assert determined["kernels.memory.float32.t0_us"] == pytest.approx(4.0, rel=0.05)
    assert determined["collective_factor"] == pytest.approx(1.5, rel=0.05)
    assert "nic_efficiency" in found.undetermined
    assert "nic_efficiency" not in determined


def test_other_batches_are_predicted(learned) -> None:
    true, result = learned
    for batch in (256, 2048):
        study = study_of(true, batch)
        learned_s = simulate(study.program, result.system, **study.passed_to("simulate")).time_s
        before_s = simulate(study.program, td.System.load("a100"), kernels="torch-eager").time_s
        assert learned_s == pytest.approx(study.result.time_s, rel=0.1)
        assert abs(before_s / study.result.time_s - 1) > 0.2


def test_a_trace_of_another_batch_is_said() -> None:
    result = td.learn(
        CPU_TRACE, "zoo:mlp?layers=3,hidden=64,batch=64", system="laptop-cpu", train=True
    )
    assert any("times the FLOPs" in note for note in result.notes())


def test_fractions_above_one_raise_the_peaks() -> None:
    system = with_laws(td.System.load("a100"), ["float32"])
    fast = with_constants(
        system, {"kernels.conv.float32.arithmetic": 4.0, "kernels.memory.float32.traffic": 2.0}
    )
    within = within_peaks(fast)
    assert within.peak_flops_per_s("float32") == pytest.approx(4 * 19.5e12)
    assert within.memory_bandwidth_bytes_per_s == 2 * system.memory_bandwidth_bytes_per_s
    for name in ("conv", "matmul", "memory", "attention"):
        old, new = (x.rate(name, "float32").spent_s(1e12, 1e9).total for x in (fast, within))
        assert new == pytest.approx(old)
    laws = [law for of in within.device.kernel_times.values() for law in of.values()]
    assert max(max(law.arithmetic, law.traffic) for law in laws) <= 1.0


@pytest.mark.parametrize("name", ["laptop-cpu", "dgx-a100-megatron", "a100"])
def test_laws_keep_the_rates_of_a_system(name: str) -> None:
    system = td.System.load(name)
    other = with_laws(system, ["float32"])
    for flops, moved in ((1e12, 1e3), (1e3, 1e10)):
        old, new = (
            x.rate("memory", "float32").spent_s(flops, moved).total for x in (system, other)
        )
        assert new == pytest.approx(old, rel=0.01)


@pytest.mark.parametrize("name", ["laptop-cpu", "dgx-a100-megatron", "a100", "h100"])
def test_fitted_systems_are_read_as_written(name: str) -> None:
    system = with_laws(td.System.load(name), ["float32"])
    fitted = with_constants(system, {"kernels.matmul.float32.arithmetic": 0.25}, "a test")
    again = td.System.from_dict(to_data(fitted))
    assert again.device.kernel_times == fitted.device.kernel_times
    assert again.constants == fitted.constants
    assert again.collective_time_s("all_reduce", 1 << 20, range(2)) == pytest.approx(
        system.collective_time_s("all_reduce", 1 << 20, range(2))
    )


def test_several_types_of_devices_are_refused() -> None:
    with pytest.raises(td.support.HardwareError, match=r"DIST0706.*learning is for equal devices"):
        td.learn(CPU_TRACE, PERCEPTRON, system=["h100", "a100"])


def test_the_command_writes_a_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, model = tmp_path / "mine.json", "zoo:mlp?layers=3,hidden=64,batch=32"
    words = ["learn", str(CPU_TRACE), "--model", model, "--train", "--system", "laptop-cpu"]
    assert main([*words, "-o", str(target)]) == 0
    text = capsys.readouterr().out
    assert "named 100.0% of the time of kernels" in text
    assert "not determined by the rows" in text
    assert main(["analyze", model, "--train", "--system", str(target)]) == 0
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["named_share"] == 1.0
    assert content["step"][0][0] == "step"


def test_numbers_of_laws_are_fitted_on_request(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    law = td.System.load("a100").device.form("matmul", "float16")
    lines = ["m,k,n,time_us"]
    for size in (1024, 2048, 4096, 8192):
        lines.append(f"{size},{size},{size},{law.t0_us + 2 * size**3 / (0.5 * 312e6)}")
    rows.write_text("\n".join(lines))
    fitted = td.calibrate("a100", rows, fit_also=["kernels.matmul.float16.arithmetic"], folds=0)
    name = "kernels.matmul.float16.arithmetic"
    sustained = td.System.load("a100").device.constants["sustained"].value
    assert fitted.values[name] * sustained == pytest.approx(0.5, rel=0.1)
    with pytest.raises(td.support.SimulationError, match="DIST0730"):
        td.calibrate("a100", rows, fit_also=["kernels.matmul.float16.speed"])


def test_names_of_laws_have_units() -> None:
    assert {spec.unit for spec in LAWS.values()} == {
        "us", "fraction of the peak", "fraction of the bandwidth",
    }  # fmt: skip
    op = PredictedOp("relax.add", {"pass": "", "flops": 3, "class": "memory"}, 0.0, 1.0)
    assert (op.family, op.phase, op.flops, op.is_collective) == ("elementwise", "forward", 3, False)


def test_times_of_traced_modules_are_those_of_their_calls(tmp_path: Path) -> None:
    """Calls of two modules of a step, and one of neither; without modules there is no table."""

    def event(name: str, start: float, duration: float, kind: str = "cpu_op") -> dict[str, object]:
        return {"ph": "X", "cat": kind, "name": name, "tid": 1, "ts": start, "dur": duration}

    ops = [event("aten::linear", 10, 600), event("aten::relu", 610, 90),
           event("aten::linear", 705, 290), event("aten::sum", 1000, 50)]  # fmt: skip
    modules = [event("nn.Module: Up_0", 0, 700, "python_function"),
               event("nn.Module: Down_12", 700, 300, "python_function")]  # fmt: skip
    results = []
    for events in (ops, [*ops, *modules]):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        results.append(td.learn(path, "zoo:mlp?layers=2,hidden=256,batch=64", system="laptop-cpu"))
    plain, named = (result.to_dict() for result in results)
    assert "traced modules" not in plain
    rows = {row[0]: row[2] for row in named["traced modules"]}  # type: ignore[attr-defined]
    assert rows == pytest.approx({"Up": 695e-6, "Down": 295e-6, "(no module)": 50e-6})
    predicted = sum(row[3] for row in named["traced modules"])  # type: ignore[attr-defined]
    met = [work for work in results[1].work if work.calls and not work.is_collective]
    assert predicted == pytest.approx(sum(work.predicted_s for work in met))
    assert "Traced modules" in results[1].to_text()
