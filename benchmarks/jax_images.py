# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The programs of ``images.py`` in JAX: an image cut by rows over all devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LEARNING_RATE = 1e-2
DIMS = ("NCHW", "OIHW", "NCHW")


def _conv(layer: dict[str, Any], x: Any, weight: Any) -> Any:
    pad, rate = layer["pad"], layer["dilation"]
    return lax.conv_general_dilated(
        x,
        weight,
        (layer["stride"],) * 2,
        ((pad, pad),) * 2,
        rhs_dilation=(rate, rate),
        dimension_numbers=DIMS,
        feature_group_count=layer["groups"],
    )


def _transposed(layer: dict[str, Any], x: Any, weight: Any) -> Any:
    low = layer["kernel"] - 1 - layer["pad"]
    return lax.conv_general_dilated(
        x,
        jnp.flip(weight, (2, 3)).swapaxes(0, 1),
        (1, 1),
        ((low, low + layer["more"]),) * 2,
        lhs_dilation=(layer["stride"],) * 2,
        dimension_numbers=DIMS,
    )


def _pooled(layer: dict[str, Any], x: Any) -> Any:
    window, stride = (1, 1, layer["kernel"], layer["kernel"]), (1, 1, *[layer["stride"]] * 2)
    pads = ((0, 0), (0, 0), *[(layer["pad"],) * 2] * 2)
    if layer["kind"] == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, pads)
    return lax.reduce_window(x, 0.0, lax.add, window, stride, pads) / layer["kernel"] ** 2


def _apply(layer: dict[str, Any], x: Any, weight: Any) -> Any:
    kind, pad = layer["kind"], layer["pad"]
    if kind == "conv":
        return _conv(layer, x, weight)
    if kind == "transposed":
        return _transposed(layer, x, weight)
    if kind in ("max", "average"):
        return _pooled(layer, x)
    if kind == "pad":
        return jnp.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    if kind == "cumsum":
        return jnp.cumsum(x, 2)
    samples, channels, rows, columns = x.shape
    return jax.image.resize(x, (samples, channels, 2 * rows, 2 * columns), "nearest")


def _forward(layers: list[dict[str, Any]], weights: list[Any], x: Any) -> Any:
    waiting = list(weights)
    for layer in layers:
        x = _apply(layer, x, waiting.pop(0) if layer["weight"] else None)
    return x


def lowered_image(
    shape: list[int], layers: list[dict[str, Any]], ranks: int, train: bool, shardy: bool
) -> Any:
    """Lower a program, or a step of gradient descent on its mean squared error."""
    jax.config.update("jax_use_shardy_partitioner", shardy)
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("rows",))
    cut = NamedSharding(mesh, PartitionSpec(None, None, "rows"))
    whole = NamedSharding(mesh, PartitionSpec())

    def array(sizes: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(sizes), jnp.float32, sharding=sharding)

    x = array(shape, cut)
    weights = [array(layer["weight"], whole) for layer in layers if layer["weight"]]
    if not train:
        work = jax.jit(lambda w, x: _forward(layers, w, x), out_shardings=cut)
        return work.lower(weights, x)
    result = jax.eval_shape(lambda w, x: _forward(layers, w, x), weights, x)

    def step(weights: Any, x: Any, targets: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((_forward(layers, weights, x) - targets) ** 2)

        value, slopes = jax.value_and_grad(loss)(weights)
        return value, [w - LEARNING_RATE * s for w, s in zip(weights, slopes)]

    outputs = (whole, [whole] * len(weights))
    targets = array(result.shape, cut)
    return jax.jit(step, out_shardings=outputs).lower(weights, x, targets)
