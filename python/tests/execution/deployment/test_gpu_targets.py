# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs compiled for GPUs by name of their target: kernels, machine code, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te

import tvm_distir as td
from tests.execution.deployment.kernel_counts import count_kernels
from tvm_distir.execution.runtime.program.cuda_backend import load_cuda_backend
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.targets import as_target, host_target
from tvm_distir.interface.command.app import main
from tvm_distir.support.errors.tree import EngineError
from tvm_distir.transforms.kernels.lookup_gradient import te_take_backward

needs_cuda_codegen = pytest.mark.skipif(
    tvm_ffi.get_global_func("target.build.cuda", allow_missing=True) is None,
    reason="this build of apache-tvm generates no code for CUDA",
)
FATBIN_MAGIC = bytes.fromhex("50ed55ba")


def gpt(tp: int = 2) -> Any:
    mod = td.zoo.gpt(size="tiny")
    return td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": tp}))


@needs_cuda_codegen
@pytest.mark.parametrize("dispatch", ["auto", "tvm"])
def test_every_kernel_of_gpt_runs_on_the_gpu(dispatch: str) -> None:
    program = td.compile(gpt(), target="cuda:sm_90", dispatch=dispatch)
    counts = count_kernels(program)
    assert counts.kernels
    assert not counts.host
    assert bool(counts.tensor_cores + counts.other_products) == (dispatch == "tvm")


@needs_cuda_codegen
def test_every_kernel_of_a_training_step_runs_on_the_gpu() -> None:
    step = td.train_step(td.load_model("zoo:llama?size=tiny,layers=1").mod, optimizer="adamw")
    dist = td.distribute(step, td.planning.make_plan(step, "data_parallel", {"dp": 2}))
    program = td.compile(dist, target="cuda:sm_90", dispatch="tvm")
    source = program.kernel_source(program.entries[0])
    assert "take_backward_kernel" in source  # a kernel of the host is refused (DIST0608)


@needs_cuda_codegen
def test_a_reduction_that_threads_cannot_share_is_serial() -> None:
    """TVM knows no reduction of pairs such as those of the gradient of a max pool."""
    x, grad = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (2, 64, 112, 112)), ("grad", (2, 64, 56, 56)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [grad, x]):
        with builder.dataflow():  # the ops in it are fused
            pooled = relax.op.grad.max_pool2d_backward(grad, x, (3, 3), (2, 2), (1, 1, 1, 1))
            zero = relax.const(0, "float32")
            passed = relax.op.where(relax.op.less_equal(x, zero), zero, builder.emit(pooled))
            out = builder.emit_output(builder.emit(passed))
        builder.emit_func_output(out)
    dist = td.distribute(builder.get(), {"schema_version": 1, "mesh": {"dp": 1}, "rules": []})
    program = td.compile(dist, target="cuda:sm_90")
    assert "max_pool2d_backward" in program.kernel_source(program.entries[0])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_gradients_of_lookups(axis: int | None) -> None:
    """The loops of the GPU's kernel, run one after the other on a CPU."""
    rng = np.random.default_rng(0)
    indices = np.array([3, 0, 3, 3, 1], "int64")
    shape = (5,) if axis is None else (6, 5, 4)
    grad_shape = (5,) if axis is None else tuple(5 if d == axis else n for d, n in enumerate(shape))
    grad = rng.standard_normal(grad_shape).astype("float32")
    operands = [
        te.placeholder(grad_shape, "float32", "grad"),
        te.placeholder(shape, "float32", "table"),
        te.placeholder((5,), "int64", "indices"),
    ]
    result = te_take_backward(*operands, axis, on_gpu=False, dtype="float32")
    built = tvm.compile(te.create_prim_func([operands[0], operands[2], result]), host_target())
    out = tvm.runtime.empty(shape, "float32")
    built(tvm.runtime.tensor(grad), tvm.runtime.tensor(indices), out)
    expected = np.zeros(shape, "float32")
    np.add.at(expected, (slice(None),) * (axis or 0) + (indices,), grad)
    assert np.allclose(out.numpy(), expected, atol=1e-6)


@needs_cuda_codegen
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_folder_for_a_gpu_holds_machine_code(tmp_path: Path) -> None:
    if not load_cuda_backend(as_target("cuda:sm_90")):
        pytest.skip("the CUDA runtime is not installed")
    td.deploy(gpt(), tmp_path, target="cuda:sm_90")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["target"]["arch"] == "sm_90"
    assert manifest["target"]["host"] == json.loads(str(host_target()))
    assert FATBIN_MAGIC in (tmp_path / "main.so").read_bytes()


def test_names_of_targets() -> None:
    assert as_target("llvm:x86-64-v3").attrs["mcpu"] == "x86-64-v3"
    assert as_target('{"kind": "llvm", "opt-level": 1}').attrs["opt-level"] == 1
    assert as_target({"kind": "c"}).kind.name == "c"
    tagged = as_target("nvidia/nvidia-h100")
    assert (str(tagged.attrs["arch"]), tagged.host) == ("sm_90a", host_target())
    inner = tvm.target.Target("llvm")
    assert as_target(inner).same_as(inner)
    with inner:
        assert as_target(None).same_as(inner)


@pytest.mark.parametrize(
    "text", ["abacus", "cuda:sm_90:x", "abacus:1", '{"kind": ', "", '{"a": 1}']
)
def test_unknown_targets_are_refused(text: str) -> None:
    with pytest.raises(EngineError, match="DIST0622"):
        as_target(text)


def test_a_program_compiled_before_runs_as_its_module() -> None:
    dist = gpt()
    mod = td.zoo.gpt(size="tiny")
    inputs = td.execution.draw_inputs(mod, seed=3)
    expected = td.run(dist, inputs, engine="virtual")
    program = td.compile(dist)
    assert program.kernel_source(program.entries[0]) == ""
    for engine in ("threads", "virtual"):
        (got,) = td.run(program, inputs, engine=engine)
        assert np.array_equal(got, expected[0])
    assert program.fingerprint == LoweredProgram(dist, "auto").fingerprint
    with pytest.raises(EngineError, match=r"DIST0623 dispatch: .*compiled already"):
        td.run(program, inputs, dispatch="torch")


@needs_cuda_codegen
def test_engines_of_the_cpu_refuse_programs_for_gpus() -> None:
    program = td.compile(gpt(), target="cuda:sm_90")
    with pytest.raises(EngineError, match=r"DIST0609 engine threads: .*cuda"):
        td.run(program, [])


def test_command_deploys_for_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["zoo:mlp?batch=4", "--strategy", "data_parallel", "--mesh", "dp=2"]
    folder = tmp_path / "folder"
    arguments = ["deploy", *model, "-o", str(folder), "--target"]
    assert main([*arguments, "llvm:x86-64-v2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["mcpu"] == "x86-64-v2"
    assert json.loads((folder / "manifest.json").read_text())["target"]["mcpu"] == "x86-64-v2"
    assert main([*arguments, "abacus"]) == 2
    assert "DIST0622" in capsys.readouterr().err
    assert main(["deploy", *model, "-o", str(folder), "--dispatch", "abacus"]) == 2
    assert "DIST0623" in capsys.readouterr().err
