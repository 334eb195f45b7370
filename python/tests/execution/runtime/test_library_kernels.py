# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels of libraries in compiled programs: the results of TVM's kernels, on the same memory."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.ir.operators import attention_ops
from tvm_distir.execution.runtime.dispatch import kernel_registration, packed_names
from tvm_distir.execution.runtime.dispatch.kernel_dispatch import SERVED, dispatch_kernels
from tvm_distir.support.errors.tree import DependencyError, EngineError

PLAN = {"schema_version": 1, "mesh": {"dp": 2}, "rules": []}
ONE = {**PLAN, "mesh": {"dp": 1}}
BY_BATCH = {**PLAN, "rules": [{"param": "x0", "placement": "S[0]"}]}


def module(build: Any, *operands: tuple[Any, ...], dtype: str = "float32") -> Any:
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(operands)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(*params)))
        builder.emit_func_output(out)
    return builder.get()


def packed_calls(mod: Any) -> list[str]:
    return re.findall(r'"tvm_distir\.(?:torch|numpy)\.(\w+)"', mod.script())


ATTENTION = (4, 6, 4, 8)
CASES = {
    "matrix": (relax.op.matmul, [(8, 6), (6, 10)], "product"),
    "batches": (relax.op.matmul, [(4, 1, 5, 6), (3, 6, 2)], "product"),
    "experts": (relax.op.matmul, [(4, 6), (3, 6, 5)], "product"),
    "experts of samples": (relax.op.matmul, [(2, 4, 6), (3, 1, 6, 5)], "product"),
    "vector": (relax.op.matmul, [(4, 6), (6,)], "product"),
    "attention": (relax.op.nn.attention, [ATTENTION] * 3, "attention"),
    "causal": (
        lambda q, k, v: relax.op.nn.attention(q, k, v, scale=0.3, causal_mask="TopLeft"),
        [ATTENTION] * 3,
        "attention",
    ),
    "causal to the end": (
        lambda q, k, v: relax.op.nn.attention(q, k, v, causal_mask="BottomRight"),
        [ATTENTION, (4, 9, 4, 8), (4, 9, 4, 8)],
        "attention",
    ),
    "bias": (
        lambda q, k, v, b: relax.op.nn.attention(q, k, v, b, causal_mask="TopLeft"),
        [*[ATTENTION] * 3, (4, 4, 6, 6)],
        "attention_bias",
    ),
    "convolution": (
        lambda x, w: relax.op.nn.conv2d(x, w, strides=2, padding=(1, 1, 1, 1)),
        [(4, 6, 9, 8), (8, 6, 3, 3)],
        "convolution",
    ),
    "points": (
        lambda x, w: relax.op.nn.conv2d(x, w),
        [(4, 6, 9, 8), (8, 6, 1, 1)],
        "convolution",
    ),
    "points with strides": (
        lambda x, w: relax.op.nn.conv2d(x, w, strides=2),
        [(4, 6, 9, 8), (8, 6, 1, 1)],
        "convolution",
    ),
    "large groups": (
        lambda x, w: relax.op.nn.conv2d(x, w, padding=1, groups=2),
        [(4, 8, 9, 8), (32, 4, 3, 3)],
        "convolution",
    ),
    "groups": (
        lambda x, w: relax.op.nn.conv2d(x, w, strides=2, padding=(1, 1, 1, 1), groups=2),
        [(4, 6, 9, 8), (8, 3, 3, 3)],
        "convolution",
    ),
    "uneven padding": (
        lambda x, w: relax.op.nn.conv2d(x, w, padding=(0, 1, 2, 1), dilation=(1, 2)),
        [(4, 3, 9, 8), (5, 3, 3, 2)],
        "convolution",
    ),
    "channels last": (
        lambda x, w: relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        [(4, 9, 8, 3), (3, 3, 3, 5)],
        "convolution",
    ),
    "gradient of a weight": (
        lambda x, y: relax.op.einsum([x, y], "abx,aby->yx"),
        [(4, 5, 6), (4, 5, 3)],
        "product",
    ),
    "product of heads": (
        lambda x, y: relax.op.einsum([x, y], "bshd,bthd->bhst"),
        [(4, 5, 2, 6), (4, 3, 2, 6)],
        "product",
    ),
    "repeated and shared batches": (relax.op.matmul, [(4, 1, 3, 5, 6), (4, 2, 1, 6, 7)], "product"),
    "transposed convolution": (
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=2, padding=1, output_padding=1),
        [(4, 6, 5, 4), (6, 2, 3, 3)],
        "convolution",
    ),
    "transposed without strides": (
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, padding=(1, 0), dilation=(1, 2)),
        [(4, 6, 5, 4), (6, 2, 3, 2)],
        "convolution",
    ),
    "transposed in groups": (
        lambda x, w: relax.op.nn.conv2d_transpose(
            x, w, strides=2, padding=1, output_padding=1, groups=2
        ),
        [(4, 6, 5, 4), (6, 2, 3, 3)],
        "convolution",
    ),
    "gradient of a kernel": (
        lambda x, g: relax.op.nn.conv2d(
            x, g, dilation=2, padding=(1, 1, 0, 0), data_layout="CNHW", kernel_layout="IOHW"
        ),
        [(4, 3, 8, 8), (4, 5, 4, 4)],
        "convolution",
    ),
    "signals": (
        lambda x, w: relax.op.nn.conv1d(x, w, strides=2, padding=(1, 2)),
        [(4, 6, 9), (8, 6, 3)],
        "convolution",
    ),
}


def installed(library: str) -> None:
    if library == "torch":
        pytest.importorskip("torch")


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_ops_have_the_results_of_tvm(name: str, dtype: str, library: str) -> None:
    installed(library)
    build, operands, function = CASES[name]
    mod = module(build, *operands, dtype=dtype)
    dist = td.distribute(mod, BY_BATCH)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(dtype) for shape in operands]
    (expected,) = td.run(dist, inputs, engine="virtual", dispatch="tvm")
    (got,) = td.run(dist, inputs, engine="virtual", dispatch=library)
    called = packed_calls(dispatch_kernels(dist, library))
    assert called == (
        [] if library == "numpy" and name in ("groups", "transposed in groups") else [function]
    )
    assert np.allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_query_heads_share_key_heads(library: str) -> None:
    installed(library)
    build = partial(relax.op.nn.attention, causal_mask="TopLeft")
    few = (4, 6, 2, 8)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype("float32") for shape in (ATTENTION, few, few))
    repeated = [np.repeat(x, 2, axis=2) for x in (k, v)]
    stock, shared = (td.distribute(module(build, ATTENTION, s, s), ONE) for s in (ATTENTION, few))
    (expected,) = td.run(stock, [q, *repeated], engine="virtual", dispatch="tvm")
    (got,) = td.run(shared, [q, k, v], engine="virtual", dispatch=library)
    assert np.allclose(got, expected, atol=1e-6)


def _turned(*axes: int) -> Any:
    return lambda x: relax.op.permute_dims(x, list(axes))


_LAST, _HEADS = _turned(1, 0), _turned(0, 2, 1, 3)
PERMUTED = {
    "weight of a linear layer": (
        lambda x, w: relax.op.matmul(x, _LAST(w)),
        [(4, 5, 6), (7, 6)],
    ),
    "chain": (
        lambda x, w: relax.op.matmul(x, _turned(2, 0, 1)(_turned(1, 2, 0)(w))),
        [(4, 5, 6), (4, 6, 7)],
    ),
    "result": (
        lambda x, w: _turned(2, 0, 1)(relax.op.matmul(x, w)),
        [(4, 5, 6), (6, 7)],
    ),
    "gradient": (
        lambda x, y: _LAST(relax.op.matmul(_LAST(x), y)),
        [(8, 6), (8, 7)],
    ),
    "heads": (
        lambda q, k, v: _HEADS(relax.op.nn.attention(*map(_HEADS, (q, k, v)))),
        [(4, 2, 5, 8)] * 3,
    ),
}


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("name", PERMUTED)
def test_permuted_operands_and_results_are_views(name: str, library: str) -> None:
    installed(library)
    build, operands = PERMUTED[name]
    dist = td.distribute(module(build, *operands), ONE)
    dispatched = dispatch_kernels(dist, library)
    assert "permute_dims" in dist.script()
    assert "permute_dims" not in dispatched.script()
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, shape).astype("float32") for shape in operands]
    (expected,) = td.run(dist, inputs, engine="virtual", dispatch="tvm")
    (got,) = td.run(dist, inputs, engine="virtual", dispatch=library)
    if name == "heads":
        assert np.allclose(got, expected, atol=1e-6)
    else:
        assert np.array_equal(got, expected)


def test_permutations_that_others_read_stay() -> None:
    def build(x: Any, w: Any) -> Any:
        turned = relax.op.permute_dims(w)
        return relax.op.add(relax.op.matmul(x, turned), turned)

    dist = td.distribute(module(build, (6, 6), (6, 6)), ONE)
    assert dispatch_kernels(dist, "torch").script().count("permute_dims") == 1


@pytest.mark.parametrize(
    "mod",
    [
        module(relax.op.matmul, (4, 4), (4, 4), dtype="int32"),
        module(
            lambda q, k, v: relax.op.nn.attention(
                q, k, v, causal_mask="BottomRight", window_size=2
            ),
            *[ATTENTION] * 3,
        ),
        module(lambda x: relax.op.add(x, x), (4, 4)),
    ],
    ids=["integers", "window", "elementwise"],
)
def test_other_ops_keep_the_kernels_of_tvm(mod: Any) -> None:
    assert packed_calls(dispatch_kernels(mod, "numpy")) == []
    assert packed_calls(dispatch_kernels(mod, "torch")) == []


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [None, "float32"], ids=["narrow", "wider result"])
def test_products_of_half_precision_are_rounded_once(
    dtype: str, library: str, wide: str | None
) -> None:
    """A sum of 4096 ones would end at 256 or 2048 in the type of the operands."""
    installed(library)
    build = partial(relax.op.matmul, out_dtype=wide)
    dist = td.distribute(module(build, (2, 4096), (4096, 3), dtype=dtype), ONE)
    ones = [
        np.ones(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for shape in ((2, 4096), (4096, 3))
    ]
    assert packed_calls(dispatch_kernels(dist, library)) == ["product"]
    (got,) = td.run(dist, ones, engine="virtual", dispatch=library)
    assert str(got.dtype) == (wide or dtype)
    assert np.array_equal(np.asarray(got, "float32"), np.full((2, 3), 4096.0, "float32"))


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_engines_call_the_kernels(engine: str) -> None:
    pytest.importorskip("torch")
    mod = td.zoo.gpt(size="tiny")
    plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    report = td.verify(mod, plan, engine=engine, dispatch="torch")
    report.check()
    assert report.max_abs_diff > 0  # another order of summation than that of TVM


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_attention_call_a_kernel(dtype: str, heads: int, causal: bool) -> None:
    pytest.importorskip("torch")

    def build(q: Any, k: Any, v: Any, grad: Any) -> Any:
        found = attention_ops.attention(q, k, v, scale=0.3, causal=causal)
        found = relax.BlockBuilder.current().emit(found)
        o, lse = (relax.TupleGetItem(found, n) for n in (0, 1))
        grads = attention_ops.attention_backward(q, k, v, o, grad, lse, scale=0.3, causal=causal)
        grads = relax.BlockBuilder.current().emit(grads)
        items = [relax.TupleGetItem(grads, n) for n in range(3)]
        return relax.Tuple([o, lse, *items])

    shapes = [ATTENTION, (4, 6, heads, 8), (4, 6, heads, 8), ATTENTION]
    mod = td.distribute(module(build, *shapes, dtype=dtype), ONE)
    assert packed_calls(dispatch_kernels(mod, "torch")) == ["flash", "flash_backward"]
    on_gpu = packed_calls(dispatch_kernels(mod, "torch", on_gpu=True))
    assert ("flash" in on_gpu) == (dtype == "float32")  # GPUs have no kernel of float64
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    expected, results = (
        td.run(mod, inputs, engine="virtual", dispatch=library) for library in ("tvm", "torch")
    )
    for got, value in zip(results, expected, strict=True):
        assert got.dtype == value.dtype
        assert np.allclose(got, value, atol=2e-6)


def test_permutations_in_branches_are_views() -> None:
    @I.ir_module
    class Branches:
        @R.function
        def main(
            x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 6), "float32"), c: R.Tensor((), "bool")
        ) -> R.Tensor((4, 6), "float32"):
            if c:
                turned = R.permute_dims(w)
                y = R.matmul(x, turned)
            else:
                y = x
            return y

    dispatched = dispatch_kernels(Branches, "numpy")
    assert packed_calls(dispatched) == ["product"]
    assert "permute_dims" not in dispatched.script()


def test_training_steps_call_the_kernels() -> None:
    """Attention and its gradients are a call each, in the function of the layer."""
    pytest.importorskip("torch")
    mod = td.train_step(td.zoo.gpt(size="tiny", attention="flash", fused_qkv=1), optimizer="adamw")
    plan = td.planning.make_plan(mod, "zero:stage=3", {"dp": 2})
    calls = packed_calls(dispatch_kernels(td.distribute(mod, plan), "torch"))
    assert set(calls) == {"product", "flash", "flash_backward", "take_backward"}
    td.verify(mod, plan, engine="threads", dispatch="torch").check()


def test_a_folder_calls_the_kernels(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    mod = module(relax.op.matmul, (8, 6), (6, 10))
    inputs = td.execution.draw_inputs(mod, seed=0)
    td.deploy(td.distribute(mod, BY_BATCH), tmp_path, dispatch="torch")
    (got,) = td.load(tmp_path).run(inputs, engine="torch")
    assert np.allclose(got, inputs[0] @ inputs[1], atol=1e-5)


def test_a_folder_names_the_library_of_its_kernels(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = td.distribute(module(relax.op.matmul, (8, 6), (6, 10)), BY_BATCH)
    plain = td.distribute(module(relax.op.add, (8, 6), (8, 6)), BY_BATCH)
    for choice in ("tvm", "numpy", "torch", "auto"):
        expected = (
            ("torch" if packed_names.has_torch() else "numpy") if choice == "auto" else choice
        )
        assert td.deploy(dist, tmp_path / choice, dispatch=choice).manifest.dispatch == expected
    assert td.deploy(plain, tmp_path / "plain").manifest.dispatch == "tvm"
    monkeypatch.setattr(packed_names.importlib.util, "find_spec", lambda name: None)
    for choice in ("tvm", "numpy", "plain"):
        td.load(tmp_path / choice)
    with pytest.raises(DependencyError, match=r"DIST0111 .*PyTorch"):
        td.load(tmp_path / "torch")


def test_the_library_fits_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_names.library_of("auto", ["cuda", "gpu"]) == "torch"  # where it runs
    assert packed_names.library_of("auto", ["metal", "gpu"]) == "tvm"
    with pytest.raises(EngineError, match=r"DIST0623 .*on CPUs"):
        packed_names.library_of("numpy", ["cuda", "gpu"])
    for installed_spec, expected in ((None, "numpy"), (object(), "torch")):
        monkeypatch.setattr(packed_names.importlib.util, "find_spec", lambda _: installed_spec)
        assert packed_names.library_of("auto", ["cpu"]) == expected


def test_kernels_of_unknown_libraries_are_refused() -> None:
    dist = td.distribute(module(relax.op.matmul, (8, 6), (6, 10)), BY_BATCH)
    with pytest.raises(EngineError, match=r'DIST0623 dispatch: .*"cublas"'):
        td.run(dist, [], dispatch="cublas")
    with pytest.raises(EngineError, match=r"DIST0623"):
        td.compile(dist, dispatch="cublas")


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_names.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"DIST0111 .*PyTorch") as info:
        kernel_registration.register_kernels("torch")
    assert "tvm_distir[torch]" in info.value.remedy


def test_gradients_of_lookups_leave_out_indices_beyond_the_table() -> None:
    pytest.importorskip("torch")
    shapes = {"grad": (6, 3), "table": (5, 3)}
    grad, table = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    places = relax.Var("places", relax.TensorType((6,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [grad, table, places]):
        with builder.dataflow():
            moved = builder.emit(relax.op.add(places, relax.const(2, "int64")))
            out = builder.emit(relax.op.grad.take_backward(grad, table, moved, 0))
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    dist = td.distribute(builder.get(), {"schema_version": 1, "mesh": {"dp": 1}, "rules": []})
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((6, 3)).astype("float32")
    inputs = [terms, np.zeros((5, 3), "float32"), np.array([0, 2, 0, 3, -1, -3], "int64")]
    (got,) = td.run(dist, inputs, engine="virtual", dispatch="torch")
    expected = np.zeros((5, 3), "float32")
    np.add.at(expected, [2, 4, 2, 1], terms[[0, 1, 2, 4]])  # the others are 5 and -1
    assert packed_calls(dispatch_kernels(dist, "torch")) == ["take_backward"]
    assert np.allclose(got, expected, atol=1e-6)


def test_the_documentation_lists_the_ops_of_each_library() -> None:
    page = Path(__file__).parents[4] / "docs" / "engines.md"
    rows = re.findall(
        r"^\| `([\w.]+)` \| (yes|TVM) \| (yes|TVM) \|$", page.read_text("utf-8"), re.M
    )
    expected = [
        (
            name.removeprefix("relax."),
            *("yes" if x in libraries else "TVM" for x in ("torch", "numpy")),
        )
        for name, (_, libraries) in SERVED.items()
    ]
    assert rows == expected
