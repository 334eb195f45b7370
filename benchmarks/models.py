# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The Relax modules that are measured, and the plans for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.distributed import Placement
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.exporter import Exporter
from tvm.relax.frontend.nn.spec import ModuleSpec
from tvm.relax.op import add, matmul
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.op.nn import relu

import tvm_distir as td
from tvm_distir.core.ir.attributes.keys import PARAM_NAMES_ATTR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import DEFAULT_MESH, MeshSpec, PlanRule, parse_open_placement
from tvm_distir.models.zoo.decoder_model import TransformerLayer
from tvm_distir.models.zoo.gpt_config import GptConfig
from tvm_distir.models.zoo.transformer_blocks import causal_mask, layer_class, positions
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.training_parts import with_updates

DTYPE = "float32"
MESH = {"dp": 2, "tp": 4}
STRATEGY = "data_parallel+megatron"


@dataclass(frozen=True)
class Sizes:
    """What the transformers here have in common; the same in the JAX models."""

    batch: int = 16
    seq: int = 64
    hidden: int = 256
    ffn: int = 1024
    heads: int = 16
    vocab: int = 512

    def config(self, layers: int, nested: bool) -> GptConfig:
        """Return the zoo's configuration of a GPT of these sizes."""
        return GptConfig(
            layers=layers,
            hidden=self.hidden,
            heads=self.heads,
            ffn=self.ffn,
            vocab=self.vocab,
            positions=self.seq,
            batch=self.batch,
            seq=self.seq,
            dtype=DTYPE,
            nested=int(nested),
        )


SIZES = Sizes()


def chain(
    layers: int,
    rows: int = 128,
    width: int = 256,
    inner: int = 1024,
    mesh: Sequence[int] = (8,),
    placement: str = "S[0]",
) -> ir.IRModule:
    """``layers`` times matmul, relu, matmul, add; the first product of each is annotated.

    Parameters
    ----------
    layers : int
    rows, width, inner : int
        The input is (rows, width), the weights are (width, inner) and (inner, width).
    mesh : sequence of int
        Shape of the device mesh.
    placement : str
        Of the first product of every layer.
    """
    devices = td.device_mesh({str(i): n for i, n in enumerate(mesh)})
    expected = Placement.from_text(placement)
    x = relax.Var("x", relax.TensorType((rows, width), DTYPE))
    shapes = {"up": (width, inner), "down": (inner, width), "bias": (width,)}
    weights = [
        {name: relax.Var(f"{name}{i}", relax.TensorType(s, DTYPE)) for name, s in shapes.items()}
        for i in range(layers)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *(w for layer in weights for w in layer.values())]):
        with builder.dataflow():
            y = x
            for layer in weights:
                h = builder.emit(matmul(y, layer["up"]))
                h = builder.emit(annotate_sharding(h, devices, expected))
                h = builder.emit(matmul(builder.emit(relu(h)), layer["down"]))
                y = builder.emit(add(h, layer["bias"]))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    mod.update_global_info("mesh", [devices])
    return mod


class _Stack(nn.Module):  # type: ignore[misc]
    """The layers of a GPT without its embeddings and head."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        layer = layer_class(TransformerLayer, config.nested)
        self.seq = config.seq
        self.h = nn.ModuleList([layer(config.decoder) for _ in range(config.layers)])

    def main(self, x: Any) -> Any:
        """(batch, seq, hidden) to the same shape."""
        mask = causal_mask(positions(self.seq))
        for layer in self.h:
            x = layer(x, mask)
        return x


class _MlpLayer(nn.Module):  # type: ignore[misc]
    """Two linear layers without biases, relu between."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=False, dtype=DTYPE)
        self.down_proj = nn.Linear(sizes.ffn, sizes.hidden, bias=False, dtype=DTYPE)

    def forward(self, x: Any) -> Any:
        """(rows, hidden) to the same shape."""
        return self.down_proj(nn.op.relu(self.up_proj(x)))


class _Mlp(nn.Module):  # type: ignore[misc]
    """``layers`` of them in a row."""

    def __init__(self, layers: int, sizes: Sizes) -> None:
        super().__init__()
        self.h = nn.ModuleList([_MlpLayer(sizes) for _ in range(layers)])

    def main(self, x: Any) -> Any:
        """(rows, hidden) to the same shape."""
        for layer in self.h:
            x = layer(x)
        return x


def _export(model: nn.Module, shape: Sequence[int]) -> ir.IRModule:
    spec = ModuleSpec.from_raw(
        {
            "main": {
                "x": nn.spec.Tensor(list(shape), DTYPE),
                "$": {"param_mode": "plain", "effect_mode": "none"},
            }
        },
        model,
    )
    mod, _, _ = Exporter(debug=False).build(spec)
    fn = mod["main"]
    mod["main"] = fn.with_attr(PARAM_NAMES_ATTR, [str(p.name) for p in fn.params])
    return mod


def mlp(layers: int, sizes: Sizes = SIZES) -> ir.IRModule:
    """A stack of MLPs, ``main(x, *weights)`` with x of (batch * seq, hidden)."""
    return _export(_Mlp(layers, sizes), (sizes.batch * sizes.seq, sizes.hidden))


def stack(layers: int, nested: bool = False, sizes: Sizes = SIZES) -> ir.IRModule:
    """GPT layers alone, ``main(x, *weights)`` with x of (batch, seq, hidden)."""
    model = _Stack(sizes.config(layers, nested))
    return _export(model, (sizes.batch, sizes.seq, sizes.hidden))


def gpt(layers: int, nested: bool = False, sizes: Sizes = SIZES) -> ir.IRModule:
    """The zoo's whole GPT, ``main(input_ids, *weights)`` to logits."""
    config = sizes.config(layers, nested)
    return td.zoo.gpt(**vars(config))


def plan_for(mod: ir.IRModule, strategy: str = STRATEGY) -> Plan:
    """Plan of a strategy on the mesh of all comparisons, dp 2 x tp 4."""
    return make_plan(mod, strategy, MESH)


def with_rules(plan: Plan, rules: dict[tuple[str, str], str]) -> Plan:
    """Add rules, ``(kind, name): placement``, to a plan of one mesh; the last one counts."""
    extra = tuple(
        PlanRule(kind, name, parse_open_placement(text), DEFAULT_MESH)
        for (kind, name), text in rules.items()
    )
    return Plan(plan.meshes, (*plan.rules, *extra))


def training(forward: ir.IRModule, plan: Plan) -> tuple[ir.IRModule, Plan]:
    """A step of gradient descent on the mean squared error, and the plan for it.

    The targets are placed as the data along dp, the updated weights as the weights.
    """
    step = td.train_step(forward, loss="mse")
    return step, with_updates(step, with_rules(plan, {("param", "targets"): "S[0], R"}))


def mesh_of(axes: dict[str, int]) -> MeshSpec:
    """Return the default mesh with other axes."""
    return MeshSpec(DEFAULT_MESH, axes)


def binding_count(mod: ir.IRModule) -> int:
    """Return how many bindings the functions of a module have together."""
    return int(
        np.sum(
            [
                len(block.bindings)
                for fn in mod.functions.values()
                if isinstance(fn, relax.Function)
                for block in fn.body.blocks
            ]
        )
    )
