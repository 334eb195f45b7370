# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the serving step of a GPT in relax.nn: learned positions, and caches of all heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, relax
from tvm.relax.frontend import nn

from .cached_config import CacheConfig, serving_config
from .cached_model import CachedPositions, export_step, unpacked
from .configs import GptConfig
from .gpt_model import Gpt, GptLayer
from .rotary import part
from .transformer_blocks import layer_class, positions


class CachedGptLayer(GptLayer):
    """Layer with caches, of the weights of :class:`.gpt_model.GptLayer`."""

    def __init__(self, config: GptConfig, caches: CacheConfig) -> None:
        super().__init__(config)
        self.sizes, self.page = serving_config("zoo:gpt", config, caches), caches.page

    def forward(  # type: ignore[override]
        self, x: Any, pages: Any, lengths: Any, first: Any, second: Any
    ) -> Any:
        """Map (batch, seq, hidden) to the same shape, and the caches to the new ones."""
        places = CachedPositions(None, None, pages, lengths, [first, second], self.page)
        q, k, v = self._heads(self.ln_1(x))
        places.append(0, k)
        places.append(1, v)
        mixed, _ = places.attend(q, self.sizes, self.sizes.heads)
        x = nn.op.add(x, self.attn.o_proj(nn.op.reshape(mixed, x.shape)))
        x = nn.op.add(x, self.mlp(self.ln_2(x)))
        return relax.Tuple([x._expr, *(cache._expr for cache in places.caches)])

    def _heads(self, x: Any) -> tuple[Any, ...]:
        """Return queries, keys and values, (batch, seq, heads, width)."""
        heads, attn = self.sizes.heads, self.attn
        if not hasattr(attn, "qkv_by_head"):
            projections = (attn.q_proj, attn.k_proj, attn.v_proj)
            return tuple(CachedPositions.split(project(x), heads) for project in projections)
        joint = CachedPositions.split(attn.qkv_by_head(x), heads)
        return tuple(nn.op.split(joint, 3, axis=3))


class CachedGpt(Gpt):
    """Model from new token ids to logits, with caches as inputs and results."""

    def __init__(self, config: GptConfig, caches: CacheConfig) -> None:
        super().__init__(config)
        self.config = config
        layer = layer_class(CachedGptLayer, config.nested)
        self.h = nn.ModuleList([layer(config, caches) for _ in range(config.layers)])

    def step(self, input_ids: Any, pages: Any, lengths: Any, *caches: Any) -> tuple[Any, ...]:
        """Map new tokens and caches to logits (batch, vocab) and the new caches."""
        config = self.config
        places = nn.op.add(nn.op.unsqueeze(lengths, 1), nn.op.unsqueeze(positions(config.seq), 0))
        tokens = nn.op.take(self.wte.weight, input_ids, axis=0, name="tokens")
        x = nn.op.add(tokens, nn.op.take(self.wpe.weight, places, axis=0, name="places"))
        results: list[Any] = []
        for number, layer in enumerate(self.h):
            out = layer(x, pages, lengths, *caches[2 * number : 2 * number + 2])
            x, *new_caches = unpacked(out, 3)
            results += new_caches
        x = part(x, config.seq - 1, config.seq, "last", axis=1)
        logits = nn.op.matmul(self.ln_f(x), nn.op.permute_dims(self.wte.weight), name="logits")
        return (nn.op.reshape(logits, (config.batch, config.vocab)), *results)


def build(config: GptConfig, caches: CacheConfig) -> ir.IRModule:
    """Build the module of a serving step without allocating weights; nothing is dropped."""
    plain = replace(config, dropout=0.0)
    return export_step(CachedGpt, plain, serving_config("zoo:gpt", config, caches), caches)
