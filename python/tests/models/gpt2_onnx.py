# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build GPT-2 with ONNX's helpers, in the operators that PyTorch exports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_distir.support import ModelError

OPSET = 17
IR_VERSION = 8
_MASKED = float(np.finfo("float32").min)


def build(
    layers: int = 2,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    positions: int = 1024,
    batch: int | str = 1,
    seq: int = 16,
    fused_qkv: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """Write a GPT-2 with random weights (normal, deviation 0.02, as GPT-2 is initialised).

    Parameters
    ----------
    layers, hidden, heads, vocab, positions : int
        Sizes; ``heads`` divides ``hidden``.
    batch : int or str
        Samples of the input ``input_ids`` (int64, (batch, seq)). An int is pinned in every
        Reshape, as PyTorch does it; a str is a symbolic dim.
    seq : int
        Tokens per sample, at most ``positions``.
    fused_qkv : bool
        Whether there is a joint projection to query, key and value, as in the published checkpoint,
        then a Split; otherwise there are three projections.
    seed : int
        The seed of the weights.

    Returns
    -------
    ModelProto
        A model with the output ``logits`` (batch, seq, vocab); linear weights are (in, out), the LM
        head is the token table, transposed.

    Raises
    ------
    ModelError
        DIST0332 for sizes that make no model.
    """
    if hidden % heads or seq > positions or min(layers, hidden, heads, vocab, seq) < 1:
        raise ModelError(
            "DIST0332",
            f"hidden={hidden}, heads={heads}, seq={seq}, positions={positions} do not describe a "
            "GPT-2",
            location="gpt2",
            remedy="Choose heads that divide hidden, and seq of at most positions.",
        )
    writer = _Writer(hidden, heads, batch, seq, seed)
    return writer.model(layers, vocab, positions, fused_qkv)


class _Writer:
    """Collector of nodes and initializers, whose methods return the name of their result."""

    def __init__(self, hidden: int, heads: int, batch: int | str, seq: int, seed: int) -> None:
        self.hidden, self.heads, self.seq = hidden, heads, seq
        self.batch = batch
        self.lead = batch if isinstance(batch, int) else 0
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.constants: dict[str, str] = {}

    def node(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Append a node with an output, named after it."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{name}_node", **attributes))
        return name

    def stored(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Add an initializer."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int, around: float = 0.0) -> str:
        """Add a random weight."""
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        return self.stored(name, values + np.float32(around))

    def number(self, value: float) -> str:
        """Add a shared float scalar."""
        name = self.constants.setdefault(f"number {value!r}", f"scalar_{len(self.constants)}")
        if all(tensor.name != name for tensor in self.initializers):
            self.stored(name, np.asarray(value, "float32"))
        return name

    def reshape(self, x: str, name: str, *sizes: int) -> str:
        """Reshape to constant sizes."""
        return self.node("Reshape", [x, self.stored(f"{name}_sizes", np.asarray(sizes))], name)

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Write an affine map of (batch, seq, inputs), as a Gemm on (batch * seq, inputs)."""
        flat = self.reshape(x, f"{name}.rows", -1, inputs)
        weight = self.weight(f"{name}.weight", inputs, outputs)
        bias = self.weight(f"{name}.bias", outputs)
        out = self.node("Gemm", [flat, weight, bias], f"{name}.gemm")
        return self.reshape(out, f"{name}.out", self.lead or -1, self.seq, outputs)

    def norm(self, x: str, name: str) -> str:
        """Write a layer norm over the last dim."""
        scale = self.weight(f"{name}.weight", self.hidden, around=1.0)
        bias = self.weight(f"{name}.bias", self.hidden)
        return self.node(
            "LayerNormalization", [x, scale, bias], f"{name}.out", axis=-1, epsilon=1e-5
        )

    def split_heads(self, x: str, name: str) -> str:
        """Split (batch, seq, hidden) into (batch, heads, seq, width)."""
        width = self.hidden // self.heads
        x = self.reshape(x, f"{name}.heads", self.lead, self.seq, self.heads, width)
        return self.node("Transpose", [x], f"{name}.heads_first", perm=[0, 2, 1, 3])

    def attention(self, x: str, name: str, fused_qkv: bool) -> str:
        """Write causal self-attention."""
        if fused_qkv:
            fused = self.linear(x, f"{name}.c_attn", self.hidden, 3 * self.hidden)
            parts = [f"{name}.{part}" for part in "qkv"]
            sizes = self.stored(f"{name}.split_sizes", np.asarray([self.hidden] * 3))
            self.nodes.append(
                helper.make_node("Split", [fused, sizes], parts, name=f"{name}.split", axis=2)
            )
        else:
            projections = [f"{name}.{part}_proj" for part in "qkv"]
            parts = [self.linear(x, p, self.hidden, self.hidden) for p in projections]
        query, key, value = (self.split_heads(part, f"{name}.{i}") for i, part in enumerate(parts))
        turned = self.node("Transpose", [key], f"{name}.key_turned", perm=[0, 1, 3, 2])
        scores = self.node("MatMul", [query, turned], f"{name}.scores")
        root = self.number(math.sqrt(self.hidden // self.heads))
        scaled = self.node("Div", [scores, root], f"{name}.scaled")
        masked = self.node("Where", ["mask", scaled, self.number(_MASKED)], f"{name}.masked")
        probabilities = self.node("Softmax", [masked], f"{name}.probabilities", axis=-1)
        mixed = self.node("MatMul", [probabilities, value], f"{name}.mixed")
        mixed = self.node("Transpose", [mixed], f"{name}.seq_first", perm=[0, 2, 1, 3])
        mixed = self.reshape(mixed, f"{name}.merged", self.lead, self.seq, self.hidden)
        projection = "c_proj" if fused_qkv else "o_proj"
        return self.linear(mixed, f"{name}.{projection}", self.hidden, self.hidden)

    def gelu(self, x: str, name: str) -> str:
        """Write the tanh form of gelu, decomposed."""
        cube = self.node("Pow", [x, self.number(3.0)], f"{name}.cube")
        cube = self.node("Mul", [cube, self.number(0.044715)], f"{name}.small_cube")
        inner = self.node("Add", [x, cube], f"{name}.inner")
        inner = self.node("Mul", [inner, self.number(math.sqrt(2.0 / math.pi))], f"{name}.angle")
        inner = self.node("Tanh", [inner], f"{name}.tanh")
        inner = self.node("Add", [inner, self.number(1.0)], f"{name}.shifted")
        half = self.node("Mul", [x, self.number(0.5)], f"{name}.half")
        return self.node("Mul", [half, inner], f"{name}.out")

    def model(self, layers: int, vocab: int, positions: int, fused_qkv: bool) -> onnx.ModelProto:
        """Write the full model."""
        up, down = ("c_fc", "c_proj") if fused_qkv else ("up_proj", "down_proj")
        table = self.weight("wte.weight", vocab, self.hidden)
        places = self.weight("wpe.weight", positions, self.hidden)
        ids = self.stored("position_ids", np.arange(self.seq)[None, :])
        self.stored("mask", np.tril(np.ones((1, 1, self.seq, self.seq), bool)))
        tokens = self.node("Gather", [table, "input_ids"], "tokens", axis=0)
        x = self.node("Add", [tokens, self.node("Gather", [places, ids], "places")], "embedded")
        for layer in range(layers):
            p = f"h.{layer}"
            mixed = self.attention(self.norm(x, f"{p}.ln_1"), f"{p}.attn", fused_qkv)
            x = self.node("Add", [x, mixed], f"{p}.after_attention")
            fed = self.linear(
                self.norm(x, f"{p}.ln_2"), f"{p}.mlp.{up}", self.hidden, 4 * self.hidden
            )
            fed = self.gelu(fed, f"{p}.mlp.act")
            fed = self.linear(fed, f"{p}.mlp.{down}", 4 * self.hidden, self.hidden)
            x = self.node("Add", [x, fed], f"{p}.after_mlp")
        head = self.node("Transpose", [table], "head", perm=[1, 0])
        self.node("MatMul", [self.norm(x, "ln_f"), head], "logits")
        ids_info = helper.make_tensor_value_info(
            "input_ids", TensorProto.INT64, [self.batch, self.seq]
        )
        logits_info = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, [self.batch, self.seq, vocab]
        )
        graph = helper.make_graph(
            self.nodes, "gpt2", [ids_info], [logits_info], initializer=self.initializers
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
