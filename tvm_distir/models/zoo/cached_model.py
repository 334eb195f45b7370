# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the serving step of decoders in relax.nn: new tokens behind paged caches.

``main(input_ids, pages, lengths, *caches, *weights) -> (logits, *caches)``: ``input_ids``, int32
(batch, seq), are the new tokens of each request; ``pages`` and ``lengths`` are those of
``R.dist.paged_attention``. The logits, (batch, vocab), are those of the last token of each
request. The weights are those of the model.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .cached_config import CacheConfig
from .cached_layers import CachedLayer, UnrotatedLayer
from .decoder_config import DecoderConfig
from .decoder_model import Decoder, local_rotary, weight_words
from .rotary import tables
from .transformer_blocks import emit, export_model, layer_class, part, positions


class CachedDecoder(Decoder):
    """Model from new token ids to logits, with caches as inputs and results."""

    def __init__(self, config: DecoderConfig, caches: CacheConfig) -> None:
        super().__init__(config)
        self.caches = caches
        class_of = functools.cache(self._class)
        layers = []
        for number in range(config.layers):
            experts, windowed = config.has_experts(number), config.has_window(number)
            window = config.window if windowed else 0
            layers.append(class_of(experts, windowed)(replace(config, window=window), experts))
        self.layers = nn.ModuleList(layers)

    def _class(self, experts: bool, windowed: bool) -> Any:
        """Return a class of layers; layers of a class share a private function."""
        config, caches = self.config, self.caches
        name = ("Windowed" if windowed else "") + ("" if experts or not config.experts else "Dense")
        layer = layer_class(
            UnrotatedLayer if config.positions else CachedLayer, config.nested, f"{name}Layer"
        )
        layer.page, layer.pools = caches.page, caches.pools
        return layer

    def step(
        self, input_ids: Tensor, pages: Tensor, lengths: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """Map new tokens and caches to logits (batch, vocab) and the new caches."""
        config = self.config
        lengths_of_rows = nn.op.unsqueeze(lengths, 1)
        new = nn.op.unsqueeze(positions(config.seq), 0)
        position_ids = nn.op.add(lengths_of_rows, new, name="places")
        x = self.embedded(input_ids, position_ids)
        by_window = {False: self._rotation(config, position_ids, config.theta)}
        if config.local_theta:
            by_window[True] = self._rotation(local_rotary(config), position_ids, config.local_theta)
        count = len(caches) // config.layers
        results: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            rotation = by_window.get(config.has_window(number), by_window[False])
            layer_caches = caches[number * count : (number + 1) * count]
            out = layer(x, *rotation, pages, lengths, *layer_caches)
            x, *new_caches = unpacked(out, 1 + count)
            results += new_caches
        x = part(x, config.seq - 1, config.seq, "last", axis=1)
        return (nn.op.reshape(self.logits(x), (config.batch, config.vocab)), *results)

    @staticmethod
    def _rotation(config: DecoderConfig, position_ids: Tensor, theta: float) -> tuple[Tensor, ...]:
        if config.positions:
            return ()
        cos, sin = tables(config, position_ids, theta)
        return nn.op.unsqueeze(cos, 2), nn.op.unsqueeze(sin, 2)


def unpacked(out: Tensor | list[Tensor], count: int) -> list[Tensor]:
    """Return the fields of the tuple that a layer, or the call of its function, gives."""
    if isinstance(out, relax.Tuple):
        return [Tensor(_expr=field) for field in out.fields]
    bound = BlockBuilder.current().emit(out, "layer_output")
    return [emit(relax.TupleGetItem(bound, i), "item") for i in range(count)]


def cache_specs(config: DecoderConfig, caches: CacheConfig) -> dict[str, tuple[list[int], str]]:
    """Return shape and dtype of each cache by its name, in order."""
    dtype = caches.kv_dtype or config.dtype
    rows = [caches.pools, caches.pool_pages(config), caches.page]
    if config.kv_rank:
        specs = {"kv_cache": [*rows, 1, config.kv_rank + config.rope_dim]}
    else:
        shape = [*rows, config.kv_heads, config.plain_width]
        specs = {"k_cache": shape, "v_cache": shape}
    return {
        f"layers.{number}.{name}": (shape, dtype)
        for number in range(config.layers)
        for name, shape in specs.items()
    }


def build(config: DecoderConfig, caches: CacheConfig) -> ir.IRModule:
    """Build the module of a serving step without allocating weights; nothing is dropped."""
    specs = cache_specs(config, caches)
    batch = config.batch
    data: dict[str, tuple[list[int], str]] = {
        "input_ids": ([batch, config.seq], "int32"),
        "pages": ([batch, caches.columns(config)], "int32"),
        "lengths": ([batch], "int32"),
    }
    plain = {name.replace(".", "_"): spec for name, spec in specs.items()}
    names = ["self", *data, *plain]

    def main(self: Tensor, *inputs: Tensor) -> Tensor:
        return self.step(*inputs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    main.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    model = type("Serving", (CachedDecoder,), {"main": main})(replace(config, dropout=0.0), caches)
    dotted = dict(zip(plain, specs, strict=True))
    return export_model(model, dotted, weight_words(config), **data, **plain)
