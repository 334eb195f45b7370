# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classify the weights of transformers by name, and shard them by their consumers."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from tvm import relax

from tvm_distir.core.plan import plain_name
from tvm_distir.support import PlanError

from .consumers import Consumers, WeightConsumer
from .model_info import Parameter

_LATENT = "kv_b_proj"
"""The projection that expands latent keys and values to those of as many heads as queries have."""
QUERY = (
    *("q_proj", "q_b_proj", _LATENT, "query", "wq", "qkv_by_head"),
    *("SelfAttention_q", "EncDecAttention_q"),
)
KEY_VALUE = (
    *("k_proj", "v_proj", "key", "value", "wk", "wv"),
    *("SelfAttention_k", "SelfAttention_v", "EncDecAttention_k", "EncDecAttention_v"),
)
GATE_UP = (
    *("gate_proj", "up_proj", "c_fc", "fc1", "dense_h_to_4h", "fc_in", "w1", "w3"),
    *("intermediate_dense", "wi", "wi_0", "wi_1"),
)
ROW = (
    *("o_proj", "out_proj", "down_proj", "c_proj", "fc2", "dense_4h_to_h", "fc_out", "wo", "w2"),
    *("output_dense", "SelfAttention_o", "EncDecAttention_o"),
)
FUSED = ("c_attn", "qkv_proj", "query_key_value")
FUSED_GATE_UP = ("gate_up_proj",)
EMBEDDING = ("wte", "embed_tokens", "tok_embeddings", "word_embeddings", "token_embedding")
HEAD = ("lm_head", "output_projection", "embed_out", "proj_out", "predictions_decoder")
ROLES: dict[str, tuple[str, ...]] = {
    "query": QUERY,
    "key_value": KEY_VALUE,
    "fused_gate_up": FUSED_GATE_UP,
    "gate_up": GATE_UP,
    "row": ROW,
    "fused": FUSED,
    "embedding": EMBEDDING,
    "head": HEAD,
}
"""Names, before ``.weight`` or ``.bias``, of the weights the strategy knows. Those of groups of
quantized numbers end with ``.q_weight``, and their scales with ``.q_scale``."""
ROW_ADAPTER = "row_adapter"
"""Projection of the first adapter of a row-parallel weight, which is sharded as that weight is."""
_SECOND_REPLICATED = ("row", "fused", "fused_gate_up")
"""Projections whose second adapter is replicated; so is the first, but for rows."""


_WEIGHT = r"(?:(.*?)_)??(weight|bias|kernel|q_weight|q_scale)(?:_value)?"
"""Names of weights of PyTorch, and of Flax (``kernel``, and ``kernel.value``), without dots."""


@dataclass(frozen=True)
class KnownWeight:
    """Known weight: its role, and how its consumers use it."""

    parameter: Parameter
    projection: str
    is_bias: bool
    uses: tuple[WeightConsumer, ...]


@functools.lru_cache(maxsize=1 << 16)
def projection_of(name: str) -> tuple[str, bool] | None:
    """Return the role of a parameter by its name, and whether it is a bias; None for others."""
    match = re.fullmatch(_WEIGHT, plain_name(name))
    while match is not None:
        stem, _, adapter = (match[1] or "").partition("_lora_")
        for projection, words in ROLES.items():
            if any(stem == word or stem.endswith("_" + word) for word in words):
                if adapter == "A":
                    return (ROW_ADAPTER, False) if projection == "row" else None
                is_cut = not adapter or projection not in _SECOND_REPLICATED
                return (projection, match[2] == "bias") if is_cut else None
        # the weight of a projection "SelfAttention_q", or the quantized one of "SelfAttention"
        match = re.fullmatch(r"(.*_q)_(weight)", plain_name(name)) if match[2][:2] == "q_" else None
    return None


def is_adapter(name: str) -> bool:
    """Return whether a parameter is an adapter of a weight."""
    return re.search(r"_lora_[AB](_weight)?$", plain_name(name)) is not None


def known_weight(
    parameter: Parameter, fn: relax.Function, consumers: Consumers
) -> KnownWeight | None:
    """Return a weight whose name says its role; None for others.

    Stacked weights of experts, (experts, in, out), have names without ``.weight``. Neither these
    nor the weight that expands latent keys are known where something else than a product reads
    them: a step with a cache of latent keys takes the latter apart.
    """
    stacked = parameter.ndim == 3
    projection = projection_of(parameter.name) or (
        projection_of(f"{parameter.name}.weight") if stacked else None
    )
    if projection is None:
        return None
    uses = consumers.uses(parameter.entry, fn.params[parameter.position])
    taken_apart = stacked or _LATENT in parameter.name
    if taken_apart and any(use.kind != "matmul" for use in uses):
        return None
    return KnownWeight(parameter, projection[0], projection[1], tuple(uses))


def cut_dim(weight: KnownWeight) -> int:
    """Return the dim that all consumers agree to be the dim to cut (DIST0233).

    There has to be a consumer.
    """
    location = f"{weight.parameter.location} (megatron)"
    dims: list[int] = []
    for use in weight.uses:
        dim = use.contracted if weight.projection in ("row", ROW_ADAPTER) else use.kept
        if (
            use.kind == "other"
            or dim is None
            or (use.kind == "take" and weight.projection == "row")
        ):
            raise PlanError(
                "DIST0233",
                f"the weight is consumed by {use.op}, bound to "
                f"{use.function}/{getattr(use.result, 'name', '?')}, "
                "not by a matmul or take, so that the dim to shard is unknown",
                location=location, remedy="Write a rule for this weight.",
            )  # fmt: skip
        dims.append(dim)
    if len(set(dims)) != 1:
        raise PlanError(
            "DIST0233", f"its consumers shard dims {dims}, so that the dim to shard is ambiguous",
            location=location, remedy="Write a rule for this weight.",
        )  # fmt: skip
    return dims[0]
