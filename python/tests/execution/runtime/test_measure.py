# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels timed on this machine: what runs is what is timed, and times reach the prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.execution.runtime.program import timing
from tvm_distir.execution.runtime.program.launched import launched
from tvm_distir.performance.program.program import Program
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms import DonateInputs

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


def test_kernels_of_paged_caches_have_times(kept):
    """Attention to pages as the kernels that run, and appends also where they are in place."""
    mod = td.load_model("zoo:llama3?size=tiny,layers=1,entry=serve,batch=2,seq=1,past=15").mod
    lowered = td.distribute(mod, make_plan(mod, "megatron:axis=x", {"x": 2}))
    for step, append in ((lowered, "scatter_nd"), (DonateInputs()(lowered), "append_in_place")):
        ops = [op for fn in td.measure(step).functions.values() for op in fn.ops]
        assert append in {op.op for op in ops}
        for op in ops:
            assert (op.measured_ps > 0) == (op.kind == "compute" and "axis_index" not in op.op)


def test_large_operands_are_not_read_from_the_cache_of_a_core(monkeypatch):
    """64 bytes in turns of 16, and 16 bytes each time the same."""
    monkeypatch.setattr(timing, "_CORE_BYTES", 32)
    monkeypatch.setattr(timing, "_SHARED_BYTES", 1024)
    x, y = (relax.Var("x", relax.TensorType((count,), "float32")) for count in (16, 4))
    for var, count in ((x, 16), (y, 1)):
        call = relax.Call(ir.Op.get("relax.call_tir"), [ir.GlobalVar("f"), relax.Tuple([var])])
        operands = timing._operands(call)
        assert len({tensor.data_ptr() for (tensor,) in operands}) == len(operands) == count
        seen = []
        timing._timed(lambda tensor: seen.append(tensor.data_ptr()), operands)
        assert set(seen) == {tensor.data_ptr() for (tensor,) in operands}


def test_a_prediction_is_the_sum_of_the_times(kept):
    mod = td.load_model("zoo:mlp?size=tiny").mod
    program = td.measure(td.distribute(mod, make_plan(mod, "data_parallel:axis=x", {"x": 1})))
    ops = [op for _, op in program.executed(program.entries[0].function)]
    total_ps = sum(op.measured_ps for op in ops)
    assert td.simulate(program, "laptop-cpu").time_s == pytest.approx(total_ps * 1e-12, rel=1e-12)
    grouped = td.simulate(program, "dgx-a100-megatron")  # ops that were measured are kernels
    assert grouped.time_s == pytest.approx(total_ps * 1e-12, rel=1e-12)


SCRATCH = """
@I.ir_module
class M:
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((64, 32), "float32"), y: T.Buffer((64, 32), "float32")):
        a = T.alloc_buffer((64, 32))
        b = T.alloc_buffer((64,))
        for i, j in T.grid(64, 32):
            with T.sblock("a"):
                vi, vj = T.axis.remap("SS", [i, j])
                a[vi, vj] = x[vi, vj] * T.float32(2)
        for i, j in T.grid(64, 32):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    b[vi] = T.float32(0)
                b[vi] = b[vi] + a[vi, vj]
        for i, j in T.grid(64, 32):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = a[vi, vj] - b[vi]

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = M
        with R.dataflow():
            y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((64, 32), "float32"))
            R.output(y)
        return y
"""


@pytest.mark.quick
def test_memory_that_a_kernel_allocates_is_live_while_it_runs(kept):
    """Two buffers that are read together: 64 x 32 and 64 floats."""
    mod = td.from_tvmscript(SCRATCH)
    lowered = td.distribute(mod, td.Plan(mesh={"x": 1}))
    for _ in range(2):  # measured, and from the cache
        program = td.measure(lowered)
        (op,) = [op for op in program.functions["main"].ops if op.kind == "compute"]
        assert op.scratch_bytes == 4 * (64 * 32 + 64)
    account = td.simulate(program, "laptop-cpu").lanes[0].account
    plain = td.simulate(td.export(lowered), "laptop-cpu").lanes[0].account
    more = account.at_peak["temporaries"] - plain.at_peak.get("temporaries", 0)
    assert more == -(-op.scratch_bytes // 512) * 512
    (group,) = [g for g in account.holders if g.what.startswith("scratch of")]
    assert group.bytes == more


SQUARES = """
@I.ir_module
class M:
    @T.prim_func(private=True, s_tir=True)
    def kernel(p: T.handle, q: T.handle):
        n = T.int64()
        x = T.match_buffer(p, (ROWS, 32), "float32")
        y = T.match_buffer(q, (ROWS, 32), "float32")
        a = T.alloc_buffer((ROWS, 32))
        for i, j in T.grid(ROWS, 8):
            for k in T.LOOP(4):
                with T.sblock("a"):
                    vi = T.axis.spatial(ROWS, i)
                    vj = T.axis.spatial(32, j * 4 + k)
                    a[vi, vj] = x[vi, vj] * T.float32(2)
        for i, j in T.grid(ROWS, 8):
            for k in T.LOOP(4):
                with T.sblock("y"):
                    vi = T.axis.spatial(ROWS, i)
                    vj = T.axis.spatial(32, j * 4 + k)
                    y[vi, vj] = a[vi, vj] * a[vi, vj]

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = M
        with R.dataflow():
            y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((64, 32), "float32"))
            R.output(y)
        return y
"""


@pytest.mark.quick
@pytest.mark.parametrize(("rows", "loop"), [("64", "vectorized"), ("n", "serial")])
def test_memory_of_kernels_with_vectors_or_symbolic_sizes_is_counted(kept, rows, loop):
    text = SQUARES.replace("ROWS", rows).replace("LOOP", loop)
    for count in (64,) if loop == "vectorized" else (64, 16):
        mod = td.from_tvmscript(text.replace("R.Tensor((64,", f"R.Tensor(({count},"))
        program = td.measure(td.distribute(mod, td.Plan(mesh={"x": 1})))
        (op,) = [op for op in program.functions["main"].ops if op.kind == "compute"]
        assert op.scratch_bytes == 4 * count * 32


@tvm.ir.instrument.pass_instrument
class PassNames:
    """Recorder of the names of passes."""

    def __init__(self):
        self.names = set()

    def run_before_pass(self, mod, info):
        """Record a name."""
        self.names.add(str(info.name))


@pytest.mark.quick
def test_kernels_are_compiled_in_the_context_of_the_caller(kept):
    lowered = td.distribute(td.from_tvmscript(SCRATCH), td.Plan(mesh={"x": 1}))
    seen = PassNames()
    with tvm.transform.PassContext(disabled_pass=["tirx.UnrollLoop"], instruments=[seen]):
        td.measure(lowered)
    assert "tirx.StorageRewrite" in seen.names and "tirx.UnrollLoop" not in seen.names


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


COST = timing.KernelCost(2.0, 8)
BROKEN = {
    "cut_short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "list": lambda data: b"[1]",
    "binary": lambda data: b"\xff\xfe\x00",
    "deep": lambda data: b"[" * 100_000,
    **{
        name: lambda data, cost=cost: json.dumps(dict.fromkeys(json.loads(data), cost)).encode()
        for name, cost in {
            "nan": [float("nan"), 0],
            "negative": [-1.0, 0],
            "text": ["1", 0],
            "a_year": [3e7, 0],
            "no_memory": 1.0,
            "negative_memory": [1.0, -1],
        }.items()
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_cache_is_measured_again(lowered, kept, monkeypatch, name):
    monkeypatch.setattr(timing, "_run_all", lambda _, calls: dict.fromkeys(calls, COST))
    whole = td.measure(lowered["gpt"])
    (file,) = kept.rglob("*.json")
    good = file.read_bytes()
    file.write_bytes(BROKEN[name](good))
    with pytest.warns(UserWarning) as caught:
        again = td.measure(lowered["gpt"])
    assert len(caught) == 1 and str(file) in str(caught[0].message)
    assert again == whole and json.loads(file.read_bytes()) == json.loads(good)


@pytest.mark.parametrize("hindrance", ["file", "pipe"])
def test_times_are_used_that_cannot_be_kept(lowered, kept, monkeypatch, hindrance):
    monkeypatch.setattr(timing, "_run_all", lambda _, calls: dict.fromkeys(calls, COST))
    whole = td.measure(lowered["gpt"], cached=False)
    (kept / "there").touch()
    folder = kept / ("there" if hindrance == "file" else "new")
    monkeypatch.setattr(timing, "CACHE", folder)
    file = folder / "kernels" / f"{timing._machine()}.json"
    if hindrance == "pipe":
        file.parent.mkdir(parents=True)
        os.mkfifo(file)
    with pytest.warns(UserWarning) as caught:
        assert td.measure(lowered["gpt"]) == whole
    assert len(caught) == 1 and str(file) in str(caught[0].message)


MEASURER = """
import sys
from pathlib import Path
from tvm_distir.execution.runtime.program import timing

timing.CACHE = Path(sys.argv[1])
timing._calls = lambda kernels: dict.fromkeys(kernels)
timing._key = lambda kernel, call: str(kernel)
timing._run_all = lambda kernels, calls: dict.fromkeys(calls, timing.KernelCost(1.0, 8))
print("ready", flush=True)
sys.stdin.readline()
for count in range(200):
    name = f"{sys.argv[2]}{count}"
    timing._costs({name: name}, True)
"""


def test_two_processes_keep_the_times_of_both(tmp_path):
    command = [sys.executable, "-c", MEASURER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, name], **pipes) for name in "ab"]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=120)
        assert process.returncode == 0
    (file,) = tmp_path.rglob("*.json")
    costs = {f"{name}{n}": [1.0, 8] for name in "ab" for n in range(200)}
    assert json.loads(file.read_bytes()) == costs
