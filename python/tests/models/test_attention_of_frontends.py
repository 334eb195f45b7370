# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention that frontends write out becomes the op, on both sides of a training step."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax
from tvm.relax.frontend import nn

import tvm_distir as td
from tvm_distir.core.rewriting import op_name
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.transforms import FuseAttention

BATCH, HEADS, SEQ, WIDTH = 2, 4, 8, 8


def counts(mod: ir.IRModule) -> Counter[str]:
    functions = (fn for fn in mod.functions.values() if isinstance(fn, relax.Function))
    return Counter(op_name(b.value) for fn in functions for b in all_bindings(fn.body))


def torch_program(kind: str, folder: Path) -> ir.IRModule:
    """Attention of PyTorch, decomposed to its core operators."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            if kind == "sdpa":
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH)
            seen = torch.tril(torch.ones(SEQ, SEQ, dtype=torch.bool))
            if kind == "filled":
                scores = scores.masked_fill(~seen, float("-inf"))
            else:
                scores = scores + torch.full((SEQ, SEQ), float("-inf")).triu(1)
            return torch.softmax(scores, -1) @ v

    inputs = tuple(torch.randn(BATCH, HEADS, SEQ, WIDTH) for _ in "qkv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls what it calls deprecated
        program = torch.export.export(Attention(), inputs).run_decompositions()
    return td.from_exported_program(program)


def jax_program(kind: str, folder: Path) -> ir.IRModule:
    """Attention of einsums and a softmax, as ``jax.export`` writes it."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH)
        if kind == "causal":
            scores = jnp.where(jnp.tril(jnp.ones((SEQ, SEQ), bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    tensor = jax.ShapeDtypeStruct((BATCH, SEQ, HEADS, WIDTH), "float32")
    exported = jax.export.export(jax.jit(attend))(tensor, tensor, tensor)
    (folder / "attention.mlir").write_text(exported.mlir_module())
    return td.load_model(str(folder / "attention.mlir")).mod


def onnx_program(kind: str, folder: Path, first: str = "q") -> ir.IRModule:
    """Attention of products, a mask and a softmax; with ``first`` "x" queries have a weight."""
    onnx = pytest.importorskip("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    shape = [BATCH, HEADS, SEQ, WIDTH]
    tables = {"root": np.float32(math.sqrt(WIDTH)), "low": np.float32(-np.inf)}
    if kind == "where":
        tables["mask"] = np.tri(SEQ, dtype=bool)
        masked = helper.make_node("Where", ["mask", "scaled", "low"], ["masked"])
    else:
        tables["mask"] = np.triu(np.full((SEQ, SEQ), -np.inf, "float32"), 1)
        masked = helper.make_node("Add", ["scaled", "mask"], ["masked"])
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Div", ["scores", "root"], ["scaled"]),
        masked,
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
    ]
    if first == "x":
        nodes.insert(0, helper.make_node("MatMul", ["x", "weight"], ["q"]))
        tables["weight"] = np.eye(WIDTH, dtype="float32")
    ends = [[helper.make_tensor_value_info(n, number, shape) for n in names]
            for names in (f"{first}kv", ("mixed",))]  # fmt: skip
    constants = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in tables.items()]
    graph = helper.make_graph(nodes, "attention", *ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "attention.onnx")
    return td.load_model(str(folder / "attention.onnx")).mod


def jax_function_program(kind: str, folder: Path) -> ir.IRModule:
    """``jax.nn.dot_product_attention`` of two key heads with a mask, a bias or in bfloat16."""
    jax = pytest.importorskip("jax")
    options = {"is_causal": kind != "mask", "scale": 0.3}
    if kind == "window":
        options["local_window_size"] = 3

    def attend(q: Any, k: Any, v: Any, *more: Any) -> Any:
        named = dict(zip(("mask", "bias"), more, strict=False))
        return jax.nn.dot_product_attention(q, k, v, **named, **options)

    dtype = "bfloat16" if kind == "bfloat16" else "float32"
    shapes = [(BATCH, SEQ, HEADS, WIDTH), *[(BATCH, SEQ, 2, WIDTH)] * 2]
    tensors = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    if kind == "mask":
        tensors.append(jax.ShapeDtypeStruct((BATCH, 1, SEQ, SEQ), bool))
        tensors.append(jax.ShapeDtypeStruct((BATCH, HEADS, SEQ, SEQ), dtype))
    exported = jax.export.export(jax.jit(attend))(*tensors)
    (folder / "attention.mlir").write_text(exported.mlir_module())
    return td.load_model(str(folder / "attention.mlir")).mod


def operator_inputs(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the operands and the attributes of an attention operator of ONNX."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, "float32")

    if kind == "MultiHeadAttention":
        hidden = HEADS * WIDTH
        tables = {name: normal(BATCH, SEQ, hidden) for name in "qkv"}
        tables |= {"bias": normal(3 * hidden), "padding": np.ones((BATCH, SEQ), "int32")}
        tables["padding"][0, 5:] = 0
        return tables, {"num_heads": HEADS, "unidirectional": 1}
    tables = {"q": normal(BATCH, HEADS, SEQ, WIDTH)}
    tables |= {name: normal(BATCH, 2, SEQ, WIDTH) for name in "kv"}
    if kind == "joined heads":
        tables = {n: x.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, -1) for n, x in tables.items()}
        return tables, {"q_num_heads": HEADS, "kv_num_heads": 2, "is_causal": 1, "scale": 0.3}
    if kind == "cache":
        tables |= {"": None, **{name: normal(BATCH, 2, 3, WIDTH) for name in ("pk", "pv")}}
    elif kind == "mask":
        tables["mask"] = np.tri(SEQ, dtype=bool) | (rng.random((BATCH, 1, SEQ, SEQ)) < 0.5)
    return tables, {"is_causal": int(kind == "cache")}


def operator_model(kind: str) -> tuple[Any, dict[str, Any]]:
    """Return an ONNX model of one attention operator, and its inputs."""
    onnx = pytest.importorskip("onnx")
    tables, attributes = operator_inputs(kind)
    domain = "com.microsoft" if kind == "MultiHeadAttention" else ""
    results = ["y", "keys", "values"] if kind == "cache" else ["y"]
    op_type = kind if domain else "Attention"
    node = onnx.helper.make_node(op_type, [*tables], results, domain=domain, **attributes)
    tables.pop("", None)
    value, numbers = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
    inputs = [value(name, numbers(x.dtype), x.shape) for name, x in tables.items()]
    outputs = [value(name, onnx.TensorProto.FLOAT, None) for name in results]
    graph = onnx.helper.make_graph([node], "attention", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tables


def operator_program(kind: str, folder: Path) -> ir.IRModule:
    """Attention of one operator of ONNX, or of ONNX Runtime."""
    return td.from_onnx(operator_model(kind)[0])


def relax_program(kind: str, folder: Path) -> ir.IRModule:
    """Attention of ``relax.frontend.nn``."""

    class Attention(nn.Module):
        def forward(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor) -> nn.Tensor:
            return nn.op.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensor = nn.spec.Tensor((BATCH, SEQ, HEADS, WIDTH), "float32")
    spec = {"forward": {name: tensor for name in "qkv"}}
    return td.from_nn(Attention(), spec)


CASES = [
    (torch_program, "sdpa"), (torch_program, "filled"), (torch_program, "added"),
    (jax_program, "plain"), (jax_program, "causal"),
    (onnx_program, "where"), (onnx_program, "added"), (relax_program, "causal"),
    (jax_function_program, "causal"), (jax_function_program, "window"),
    (jax_function_program, "mask"), (jax_function_program, "bfloat16"),
    (operator_program, "joined heads"), (operator_program, "cache"), (operator_program, "mask"),
    (operator_program, "MultiHeadAttention"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "kind"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_attention_becomes_the_op(program: Any, kind: str, tmp_path: Path) -> None:
    """Results are equal, a mask of positions is no operand, and the gradient is one op."""
    mod = program(kind, tmp_path)
    fused = FuseAttention()(mod)
    result = counts(fused)
    assert result["dist.attention"] == 1
    assert not {"nn.softmax", "exp", "sum", "nn.attention", "matmul"} & set(result)
    values = draw_inputs(mod)
    if program is operator_program:
        values = [*operator_model(kind)[1].values()]
    elif kind == "mask":
        values[3] = np.asarray(values[3]) | np.eye(SEQ, dtype=bool)
    tolerance = 2e-2 if kind == "bfloat16" else 1e-5
    for a, b in zip(Reference(mod).run(values), Reference(fused).run(values), strict=True):
        wide, other = (np.asarray(x).astype("float32") for x in (a, b))
        np.testing.assert_allclose(wide, other, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("kind", ["joined heads", "cache", "mask"])
def test_operators_of_onnx_compute_what_its_reference_does(kind: str) -> None:
    """Attention that is written out and fused equals the reference implementation of ONNX."""
    reference = pytest.importorskip("onnx.reference")
    model, inputs = operator_model(kind)
    expected = reference.ReferenceEvaluator(model).run(None, inputs)
    results = Reference(FuseAttention()(td.from_onnx(model))).run([*inputs.values()])
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_multi_head_attention_is_that_of_onnx_runtime() -> None:
    """A bias, a padding mask and ``unidirectional`` give the results of ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = operator_model("MultiHeadAttention")
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, inputs)
    results = Reference(FuseAttention()(td.from_onnx(model))).run([*inputs.values()])
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-4, atol=1e-5)


def test_dot_product_attention_is_that_of_jax(tmp_path: Path) -> None:
    """Shared key heads, a mask and a bias give what JAX computes."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    shapes = [(BATCH, SEQ, HEADS, WIDTH), *[(BATCH, SEQ, 2, WIDTH)] * 2]
    q, k, v = (rng.standard_normal(shape, "float32") for shape in shapes)
    mask = rng.random((BATCH, 1, SEQ, SEQ)) < 0.5
    mask |= np.eye(SEQ, dtype=bool)
    bias = rng.standard_normal((BATCH, HEADS, SEQ, SEQ), "float32")
    fused = FuseAttention()(jax_function_program("mask", tmp_path))
    expected = jax.nn.dot_product_attention(q, k, v, mask=mask, bias=bias, scale=0.3)
    result = Reference(fused).run([q, k, v, mask, bias])[0]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def jax_model(kind: str, folder: Path) -> ir.IRModule:
    """``jax.nn.dot_product_attention`` of projections with a weight each."""
    jax = pytest.importorskip("jax")

    def attend(x: Any, weights: Any) -> Any:
        q, k, v = (x @ weights[name] for name in ("query", "key", "value"))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    x = jax.ShapeDtypeStruct((BATCH, SEQ, HEADS, WIDTH), "float32")
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    weights = dict.fromkeys(("query", "key", "value"), weight)
    exported = jax.export.export(jax.jit(attend))(x, weights)
    (folder / "attention.mlir").write_text(exported.mlir_module())
    return td.load_model(str(folder / "attention.mlir")).mod


@pytest.mark.parametrize("program", ["onnx", "jax"])
def test_the_gradient_of_recognized_attention_is_the_op(program: str, tmp_path: Path) -> None:
    """A step of an imported graph has one kernel in either direction."""
    if program == "onnx":
        mod = onnx_program("where", tmp_path, first="x")
    else:
        mod = jax_model("causal", tmp_path)
    step = td.train_step(FuseAttention()(mod), "mse")
    assert counts(step)["dist.attention_backward"] == 1
