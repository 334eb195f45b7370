# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Traces of PyTorch's profiler: calls, passes and times that are known by construction."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import tvm_distir as td
from tests.planning.learning.device_traces import NODE, DeviceTrace
from tvm_distir.performance.traces.kineto_reader import family_of, read_kineto, typical_step

CPU_TRACE = Path(__file__).parent / "data" / "perceptron_cpu.json"


def two_steps(path: Path) -> Path:
    """Write a trace of two steps of 1000 us, the second with kernels 20 us longer."""
    trace = DeviceTrace()
    for number, more in enumerate((0.0, 20.0)):
        start = 1000.0 * number
        trace.step(number + 1, start, 1000.0)
        trace.call("aten::linear", [("ampere_sgemm_128x64_tn", 100.0 + more)], start + 10)
        trace.call(NODE + "AddmmBackward0", [("gemm_a", 80.0), ("gemm_b", 60.0)], start + 200)
        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        facts = {"In msg nelems": 1000, "dtype": "Float"}
        trace.call(
            NODE + "torch::autograd::AccumulateGrad", [(nccl, 200.0)], start + 300, 20, **facts
        )
        trace.add("user_annotation", "Optimizer.step#SGD.step", 10, start + 600, 50.0)
        trace.call("aten::_foreach_add_", [("multi_tensor_apply_kernel", 30.0)], start + 610)
        trace.call("aten::copy_", [("Memcpy DtoD", 5.0)], start + 700)
    return trace.write(path)


def test_calls_of_a_device(tmp_path: Path) -> None:
    first, second = read_kineto(two_steps(tmp_path / "t.json"))
    assert [(c.name, c.family, c.phase) for c in first.calls] == [
        ("aten::linear", "product", "forward"),
        ("AddmmBackward0", "product", "backward"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce", "backward"),
        ("aten::_foreach_add_", "optimizer", "optimizer"),
        ("aten::copy_", "copy", "optimizer"),  # behind the backward pass, without annotation
    ]
    assert [round(1e6 * c.duration_s) for c in first.calls] == [100, 140, 200, 30, 5]
    assert [c.is_collective for c in first.calls] == [False, False, True, False, False]
    assert first.calls[2].size_bytes == 4000
    assert first.on_device and first.duration_s == pytest.approx(1e-3)
    # Products end at 201.5 + 80 + 60; the collective runs from 301.5 to 501.5, 40 us beside them.
    assert first.busy_s == pytest.approx(275e-6)
    assert first.exposed_s == pytest.approx(160e-6)
    assert first.idle_s == pytest.approx(565e-6)
    assert second.calls[0].duration_s == pytest.approx(120e-6)
    assert typical_step([first, second]).calls[0].duration_s == pytest.approx(110e-6)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = two_steps(tmp_path / "t.json")
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_kineto(packed) == read_kineto(plain)


def test_a_trace_of_a_cpu_by_pytorch() -> None:
    steps = read_kineto(CPU_TRACE)
    assert len(steps) == 2
    products = [c for c in steps[1].calls if c.family == "product"]
    pairs = (64, 96), (96, 48), (48, 10)
    forward = [2 * 32 * k * n for k, n in pairs]
    assert [c.flops for c in products if c.phase == "forward"] == forward
    # Two gradients of each product, but that of the input of the first one.
    backward = [2 * forward[2], 2 * forward[1], forward[0]]
    assert [c.flops for c in products if c.phase == "backward"] == backward
    assert {c.phase for c in steps[1].calls} == {"forward", "backward", "optimizer"}
    assert all(c.family for c in steps[1].calls)
    assert not steps[1].on_device
    assert sum(c.duration_s for c in steps[1].calls) <= steps[1].duration_s


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>", "norm"),
        ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "convolution"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", "product"),
        ("volta_sgemm_64x64_nt", "product"),
        ("pytorch_flash::flash_fwd_kernel<...>", "attention"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>",
            "elementwise",
        ),
        ("ScaledDotProductFlashAttentionBackward0", "attention"),
        ("NativeLayerNormBackward0", "norm"),
        ("torch::autograd::AccumulateGrad", "gradient accumulation"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("some_kernel_of_mine", ""),
    ],
)
def test_families_of_names(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"traceEvents": []}', b'{"traceEvents": [{"ph": "X"}]}', b"\x1f\x8bnot"],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(td.support.SimulationError, match="DIST0731"):
        read_kineto(path)


def test_a_trace_without_work_is_said_to_have_none(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(td.support.SimulationError, match=r"DIST0731.*it has no kernels and no ops"):
        read_kineto(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(td.support.SimulationError, match=r"DIST0731.*No such file"):
        read_kineto(tmp_path / "none.json")


def test_modules_of_a_real_trace_are_those_that_ran(tmp_path: Path) -> None:
    """PyTorch's hooks say which modules run; a backward node has the module of its forward op."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    nn, profiler = torch.nn, torch.profiler

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x):
            with profiler.record_function("branch"):
                return x + self.norm(self.up(x))

    model = nn.Sequential(Block(), Block(), nn.Linear(8, 4))
    ran: list[str] = []
    for name, module in model.named_modules():
        chain = [model.get_submodule(".".join(name.split(".")[:n])) for n in range(1, 3) if name]
        classes = [type(each).__name__ for each in dict.fromkeys(chain)]
        path = "/".join(["Sequential", *classes]).replace("Block/", "Block/branch/")
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.register_forward_hook(lambda *_, path=path: ran.append(path))
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU], with_stack=True, with_modules=True,
        record_shapes=True, experimental_config=verbose,
    ) as profile:  # fmt: skip
        model(torch.ones(2, 8)).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    (step,) = read_kineto(tmp_path / "t.json")
    names = ("aten::linear", "aten::layer_norm")
    assert [c.module for c in step.calls if c.name in names] == ran
    assert set(ran) == {
        "Sequential/Block/branch/Linear", "Sequential/Block/branch/LayerNorm", "Sequential/Linear",
    }  # fmt: skip
    nodes = ("AddmmBackward0", "NativeLayerNormBackward0")
    assert [c.module for c in step.calls if c.name in nodes] == ran[::-1]
    assert {c.phase for c in step.calls if c.name in nodes} == {"backward"}
