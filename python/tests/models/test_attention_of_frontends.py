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
from tvm_distir.core import op_name
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
    for a, b in zip(Reference(mod).run(values), Reference(fused).run(values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_recognized_attention_is_the_op(tmp_path: Path) -> None:
    """A step of an imported graph has one kernel in either direction."""
    mod = onnx_program("where", tmp_path, first="x")
    step = td.train_step(FuseAttention()(mod), "mse")
    assert counts(step)["dist.attention_backward"] == 1
