# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The models of ``models.py`` in JAX: same sizes, same mesh, same placements of the arguments.

Written as JAX programs are: weights are (in, out), heads are a dim of them. That suits the
partitioners best: with reshapes of two-dimensional weights GSPMD moves more in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = {"dp": 2, "tp": 4}
BATCH, SEQ, HIDDEN, FFN, HEADS = 16, 64, 256, 1024, 16
WIDTH = HIDDEN // HEADS
LEARNING_RATE = 1e-3
EPSILON = 1e-5

LAYER = {
    "ln_1.weight": ((HIDDEN,), ()),
    "ln_1.bias": ((HIDDEN,), ()),
    "q.weight": ((HIDDEN, HEADS, WIDTH), (None, "tp", None)),
    "q.bias": ((HEADS, WIDTH), ("tp", None)),
    "k.weight": ((HIDDEN, HEADS, WIDTH), (None, "tp", None)),
    "k.bias": ((HEADS, WIDTH), ("tp", None)),
    "v.weight": ((HIDDEN, HEADS, WIDTH), (None, "tp", None)),
    "v.bias": ((HEADS, WIDTH), ("tp", None)),
    "o.weight": ((HEADS, WIDTH, HIDDEN), ("tp", None, None)),
    "o.bias": ((HIDDEN,), ()),
    "ln_2.weight": ((HIDDEN,), ()),
    "ln_2.bias": ((HIDDEN,), ()),
    "up.weight": ((HIDDEN, FFN), (None, "tp")),
    "up.bias": ((FFN,), ("tp",)),
    "down.weight": ((FFN, HIDDEN), ("tp", None)),
    "down.bias": ((HIDDEN,), ()),
}
"""Shape and placement of the weights of a transformer layer."""

MLP_LAYER = {
    "up": ((HIDDEN, FFN), (None, "tp")),
    "down": ((FFN, HIDDEN), ("tp", None)),
}


@dataclass(frozen=True)
class Request:
    """What is asked of JAX.

    Attributes
    ----------
    model : str
        ``mlp``, ``gpt`` or ``train``.
    layers : int
    nested : bool
        Each layer is a function of its own.
    sequence : bool
        The argument is cut along the sequence; nothing else says so.
    """

    model: str
    layers: int
    nested: bool = False
    sequence: bool = False


def device_mesh() -> Mesh:
    """Return the mesh of all comparisons, on virtual CPU devices."""
    count = math.prod(AXES.values())
    return Mesh(np.array(jax.devices()[:count]).reshape(*AXES.values()), tuple(AXES))


def _relu(x: Any) -> Any:
    return lax.max(x, jnp.zeros_like(x))


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + lax.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _mean(x: Any, width: int) -> Any:
    return lax.expand_dims(lax.reduce_sum(x, (x.ndim - 1,)), (x.ndim - 1,)) / width


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - _mean(x, HIDDEN)
    variance = _mean(centred * centred, HIDDEN)
    return centred * lax.rsqrt(variance + EPSILON) * weight + bias


def _softmax(x: Any) -> Any:
    largest = lax.stop_gradient(lax.reduce_max(x, (3,)))
    e = lax.exp(x - lax.expand_dims(largest, (3,)))
    return e / lax.expand_dims(lax.reduce_sum(e, (3,)), (3,))


def _linear(x: Any, weights: dict[str, Any], name: str, contracted: int = 1) -> Any:
    """Contract the last dims of x with the first of the weight."""
    last = tuple(range(x.ndim - contracted, x.ndim))
    dims = ((last, tuple(range(contracted))), ((), ()))
    return lax.dot_general(x, weights[f"{name}.weight"], dims) + weights[f"{name}.bias"]


def _attention(x: Any, weights: dict[str, Any]) -> Any:
    """Heads are a dim of the weights, as JAX programs have it: nothing is reshaped."""
    q, k, v = (_linear(x, weights, name) for name in "qkv")
    scores = lax.dot_general(q, k, (((3,), (3,)), ((0, 2), (0, 2)))) * (1 / math.sqrt(WIDTH))
    rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (2, 3))
    scores = lax.select(columns <= rows, scores, lax.full_like(scores, -1e9))
    mixed = lax.dot_general(_softmax(scores), v, (((3,), (1,)), ((0, 1), (0, 2))))
    return _linear(lax.transpose(mixed, (0, 2, 1, 3)), weights, "o", contracted=2)


def _layer(weights: dict[str, Any], x: Any) -> Any:
    normed = _layer_norm(x, weights["ln_1.weight"], weights["ln_1.bias"])
    x = x + _attention(normed, weights)
    normed = _layer_norm(x, weights["ln_2.weight"], weights["ln_2.bias"])
    return x + _linear(_gelu(_linear(normed, weights, "up")), weights, "down")


def _mlp_layer(weights: dict[str, Any], x: Any) -> Any:
    return _relu(x @ weights["up"]) @ weights["down"]


def _stack(layer: Callable[[Any, Any], Any], nested: bool, weights: Any, x: Any) -> Any:
    layer = jax.jit(layer) if nested else layer
    for each in weights:
        x = layer(each, x)
    return x


def lowered(request: Request, mesh: Mesh, shardy: bool) -> Any:
    """Trace a model and lower it to StableHLO for the mesh; nothing is compiled yet."""
    jax.config.update("jax_use_shardy_partitioner", shardy)

    def sharding_of(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    def array(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding_of(*axes))

    table = MLP_LAYER if request.model == "mlp" else LAYER
    weights = [{key: array(*v) for key, v in table.items()} for _ in range(request.layers)]
    along = "tp" if request.sequence else None
    data: tuple[int, ...] = (BATCH, SEQ, HIDDEN)
    axes: tuple[str | None, ...] = ("dp", along, None)
    if request.model == "mlp":
        data, axes = (BATCH * SEQ, HIDDEN), ("dp", None)
    layer = _mlp_layer if request.model == "mlp" else _layer
    forward = partial(_stack, layer, request.nested)

    def step(weights: Any, x: Any, targets: Any) -> Any:
        def loss(weights: Any) -> Any:
            error = forward(weights, x) - targets
            return lax.reduce_sum(error * error, (0, 1, 2)) / math.prod(data)

        value, gradients = jax.value_and_grad(loss)(weights)
        update = jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients)
        return value, update

    x = array(data, axes)
    if request.model != "train":
        plain = jax.jit(lambda weights, x: forward(weights, x), out_shardings=sharding_of(*axes))
        return plain.lower(weights, x)
    targets = array(data, ("dp", None, None))
    outputs = (sharding_of(), jax.tree.map(lambda w: w.sharding, weights))
    return jax.jit(step, out_shardings=outputs).lower(weights, x, targets)
