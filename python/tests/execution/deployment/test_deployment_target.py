# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The target that a program is compiled for: what its kernels are, what refuses to run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_distir as td
from tvm_distir.execution.runtime.program import targets
from tvm_distir.execution.runtime.program.compilation import compile_module
from tvm_distir.support.errors.tree import EngineError

needs_cuda_codegen = pytest.mark.skipif(
    tvm_ffi.get_global_func("target.build.cuda", allow_missing=True) is None,
    reason="this build of apache-tvm generates no code for CUDA",
)


@I.ir_module(s_tir=True)
class Unthreaded:
    """A kernel that says it is scheduled, and has no threads."""

    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        for i in range(64):
            with T.sblock("y"):
                vi = T.axis.spatial(64, i)
                y[vi] = x[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor((64,), "float32")):
        cls = Unthreaded
        y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((64,), "float32"))
        return y


def product() -> Any:
    x, w = (relax.Var(name, relax.TensorType((64, 64), "float32")) for name in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.matmul(x, w)))
        builder.emit_func_output(out)
    return builder.get()


CUDA = {"kind": "cuda", "arch": "sm_90"}
PLAN = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
INPUTS = [np.ones((64, 64), "float32")] * 2


@pytest.fixture
def cuda_folder(tmp_path: Path) -> Path:
    with tvm.target.Target(CUDA):
        td.deploy(td.distribute(product(), PLAN), tmp_path, dispatch="tvm")
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "manifest.json"
    data = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


@needs_cuda_codegen
def test_a_product_becomes_a_kernel_of_the_gpu() -> None:
    with tvm.target.Target(CUDA):
        built = compile_module(product())
    (host,) = built.mod.imports
    (device,) = host.imports
    assert device.kind == "cuda"
    assert "__global__ void" in device.inspect_source()
    assert "matmul_kernel" in device.inspect_source()


@needs_cuda_codegen
def test_a_kernel_without_threads_is_refused() -> None:
    with tvm.target.Target(CUDA), pytest.raises(EngineError, match="DIST0608 double: ") as info:
        compile_module(Unthreaded)
    assert "tirx.is_scheduled" in info.value.remedy
    compile_module(Unthreaded)  # a CPU needs none


@needs_cuda_codegen
def test_sorting_and_scalars_have_threads() -> None:
    """TVM writes its sort with ``launch_thread``; a scalar has no loop of its own."""
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    s = relax.Var("s", relax.TensorType((), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, s]):
        y = builder.emit(relax.op.cumsum(builder.emit(relax.op.sort(x, axis=0)), axis=0))
        y = builder.emit(relax.op.multiply(y, builder.emit(relax.op.add(s, s))))
        builder.emit_func_output(builder.emit(relax.op.sum(y)))
    with tvm.target.Target(CUDA):
        assert compile_module(builder.get()).mod.imports


@needs_cuda_codegen
def test_a_folder_says_its_target_and_is_loaded_where_it_can_run(
    cuda_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = json.loads((cuda_folder / "manifest.json").read_text())["target"]
    assert target == json.loads(str(tvm.target.Target(CUDA)))
    monkeypatch.setattr(targets, "_has_device", lambda kind: False)
    with pytest.raises(EngineError, match=r"DIST0609 .*compiled for cuda.*no cuda device"):
        td.load(cuda_folder)
    monkeypatch.setattr(targets, "_has_device", lambda kind: kind == "cuda")
    loaded = td.load(cuda_folder)
    with pytest.raises(EngineError, match=r"DIST0609 engine virtual: .*the target is cuda"):
        loaded.run(INPUTS, engine="virtual")


def test_a_kind_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    td.deploy(td.distribute(product(), PLAN), tmp_path)
    change(tmp_path, target={"kind": "abacus"})
    with pytest.raises(EngineError, match=r"DIST0609 .*abacus"):
        td.load(tmp_path)
    change(tmp_path, target={"mcpu": "x86-64-v3"})
    with pytest.raises(EngineError, match=r"DIST0640 .*kind"):
        td.load(tmp_path)


def test_an_instruction_set_that_the_cpu_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    td.deploy(td.distribute(product(), PLAN), tmp_path)
    change(tmp_path, target={"kind": "llvm", "mcpu": "x86-64-v4"})
    monkeypatch.setattr(targets, "_host_features", lambda: {"avx2", "fma"})
    with pytest.raises(EngineError, match=r"DIST0609 .*lacks avx, avx512bw"):
        td.load(tmp_path)
    monkeypatch.setattr(targets, "_host_features", set)  # TVM's runtime alone cannot tell
    td.load(tmp_path)


def test_a_folder_of_version_0_1_names_no_target(tmp_path: Path) -> None:
    td.deploy(td.distribute(product(), PLAN), tmp_path)
    change(tmp_path, target=None)
    (got,) = td.load(tmp_path).run(INPUTS, engine="virtual")
    assert np.array_equal(got, INPUTS[0] @ INPUTS[1])


@pytest.mark.parametrize("engine", ["virtual", "threads", "xla"])
def test_no_engine_runs_in_the_scope_of_a_gpu(engine: str) -> None:
    dist = td.distribute(product(), PLAN)
    with (
        tvm.target.Target(CUDA),
        pytest.raises(EngineError, match=f"DIST0609 engine {engine}: .*cuda"),
    ):
        td.run(dist, INPUTS, engine=engine)


def test_neither_verify_nor_measure_run_in_the_scope_of_a_gpu() -> None:
    dist = td.distribute(product(), PLAN)
    with tvm.target.Target(CUDA):
        with pytest.raises(EngineError, match="DIST0609 reference: "):
            td.verify(product(), PLAN)
        with pytest.raises(EngineError, match="DIST0609 measure: "):
            td.measure(dist)
