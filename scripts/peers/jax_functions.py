# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small models of JAX, with weights, for ``jax_programs.py``."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DRAW = np.random.default_rng(0)
WIDTH, HEADS, WORDS, LENGTH, BATCH = 16, 4, 32, 8, 4
_IMAGE = ("NHWC", "HWIO", "NHWC")


def draw(*shape: int, scale: float = 0.3) -> Any:
    """Numbers around 0."""
    return jnp.asarray(_DRAW.normal(size=shape) * scale, jnp.float32)


def ids() -> Any:
    """Words of a batch."""
    return jnp.asarray(_DRAW.integers(0, WORDS, (BATCH, LENGTH)), jnp.int32)


def mlp(p: Any, x: Any) -> Any:
    """Two hidden layers."""
    for w, b in p[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ p[-1][0] + p[-1][1]


def _norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * g + b


def _attend(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(*q.shape[:2], -1)


def block(p: Any, x: Any) -> Any:
    """A layer of a GPT."""
    h = _norm(x, p["g1"], p["b1"])
    q, k, v = ((h @ p[n]).reshape(*x.shape[:2], HEADS, -1) for n in "qkv")
    x = x + _attend(q, k, v) @ p["o"]
    h = _norm(x, p["g2"], p["b2"])
    return x + jax.nn.gelu(h @ p["up"] + p["bu"]) @ p["down"]


def gpt(p: Any, ids: Any) -> Any:
    """Layers that are one function."""
    x = p["wte"][ids] + p["wpe"][: ids.shape[1]]
    layer = jax.jit(block)
    for q in p["layers"]:
        x = layer(q, x)
    return _norm(x, p["g"], p["b"]) @ p["wte"].T


def gpt_flat(p: Any, ids: Any) -> Any:
    """Layers that are written out."""
    x = p["wte"][ids] + p["wpe"][: ids.shape[1]]
    for q in p["layers"]:
        x = block(q, x)
    return _norm(x, p["g"], p["b"]) @ p["wte"].T


def gpt_scan(p: Any, ids: Any) -> Any:
    """A scan over layers."""
    x = p["wte"][ids] + p["wpe"][: ids.shape[1]]
    x, _ = jax.lax.scan(lambda c, q: (block(q, c), None), x, p["stack"])
    return _norm(x, p["g"], p["b"]) @ p["wte"].T


def gpt_checkpoint(p: Any, ids: Any) -> Any:
    """Layers that are made again backward."""
    x = p["wte"][ids] + p["wpe"][: ids.shape[1]]
    layer = jax.checkpoint(block)
    for q in p["layers"]:
        x = layer(q, x)
    return _norm(x, p["g"], p["b"]) @ p["wte"].T


def _block_weights(width: int) -> dict[str, Any]:
    d = width
    square = {n: draw(d, d, scale=0.2) for n in "qkvo"}
    scales = {"g1": draw(d) + 1, "b1": draw(d), "g2": draw(d) + 1, "b2": draw(d)}
    up, down = draw(d, 4 * d, scale=0.2), draw(4 * d, d, scale=0.2)
    return {**square, **scales, "up": up, "bu": draw(4 * d), "down": down}


def gpt_weights(stacked: bool = False) -> dict[str, Any]:
    """Weights of two layers, as a list or one behind the other in arrays."""
    d = WIDTH
    layers = [_block_weights(d) for _ in range(2)]
    rest = {"wte": draw(WORDS, d), "wpe": draw(LENGTH, d), "g": draw(d) + 1, "b": draw(d)}
    if stacked:
        return {**rest, "stack": jax.tree.map(lambda *a: jnp.stack(a), *layers)}
    return {**rest, "layers": layers}


def _turned(q: Any) -> Any:
    length, d = q.shape[1], q.shape[-1]
    angles = jnp.outer(jnp.arange(length), 1.0 / 10000 ** (jnp.arange(0, d, 2) / d))
    c, s = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    a, b = q[..., ::2], q[..., 1::2]
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(q.shape)


def llama(p: Any, ids: Any) -> Any:
    """Rotary places, grouped heads, gated layers."""

    def rms(x: Any, g: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g

    x = p["wte"][ids]
    front = x.shape[:2]
    for q in p["layers"]:
        h = rms(x, q["g1"])
        a = _turned((h @ q["q"]).reshape(*front, HEADS, -1))
        k = _turned((h @ q["k"]).reshape(*front, HEADS // 2, -1))
        v = (h @ q["v"]).reshape(*front, HEADS // 2, -1)
        x = x + _attend(a, jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)) @ q["o"]
        h = rms(x, q["g2"])
        x = x + (jax.nn.silu(h @ q["gate"]) * (h @ q["up"])) @ q["down"]
    return rms(x, p["g"]) @ p["head"]


def llama_weights() -> dict[str, Any]:
    """Weights of two layers."""
    d = WIDTH

    def layer() -> dict[str, Any]:
        shapes = {"q": (d, d), "k": (d, d // 2), "v": (d, d // 2), "o": (d, d)}
        shapes |= {"gate": (d, 24), "up": (d, 24), "down": (24, d)}
        stored = {name: draw(*shape) for name, shape in shapes.items()}
        return {**stored, "g1": draw(d) + 1, "g2": draw(d) + 1}

    layers = [layer() for _ in range(2)]
    return {"wte": draw(WORDS, d), "layers": layers, "g": draw(d) + 1, "head": draw(d, WORDS)}


def moe(p: Any, x: Any) -> Any:
    """Two experts per token, each with places for so many tokens."""
    n, experts, places = x.shape[0], 4, 8
    w, i = jax.lax.top_k(jax.nn.softmax(x @ p["r"]), 2)
    w = w / w.sum(-1, keepdims=True)
    hot = jax.nn.one_hot(i, experts)
    order = jnp.cumsum(hot.reshape(n * 2, experts), 0).reshape(n, 2, experts) * hot - 1
    slot = jax.nn.one_hot(order.astype(jnp.int32), places) * hot[..., None]
    combine = jnp.einsum("nk,nkec->nec", w, slot)
    stored = jnp.einsum("nec,nd->ecd", (combine > 0).astype(x.dtype), x)
    inner = jax.nn.silu(jnp.einsum("ecd,edf->ecf", stored, p["w1"]))
    return jnp.einsum("nec,ecd->nd", combine, jnp.einsum("ecf,efd->ecd", inner, p["w2"]))


def _convolved(x: Any, w: Any, step: int = 1, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (step, step), "SAME", dimension_numbers=_IMAGE, feature_group_count=groups
    )


def _window(x: Any, first: float, make: Any) -> Any:
    return jax.lax.reduce_window(x, first, make, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def cnn(p: Any, x: Any) -> Any:
    """Convolutions and a pooling."""
    x = _window(jax.nn.relu(_convolved(x, p["c1"])), -jnp.inf, jax.lax.max)
    return jax.nn.relu(_convolved(x, p["c2"], 2)).mean((1, 2)) @ p["w"]


def depthwise(p: Any, x: Any) -> Any:
    """A convolution per channel, a batch norm, a mean of windows."""
    x = _convolved(x, p["d"], groups=x.shape[-1])
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = jax.nn.relu((x - mean) * jax.lax.rsqrt(variance + 1e-5)) @ p["e"]
    return (_window(x, 0.0, jax.lax.add) / 4).mean((1, 2))


def recurrent(p: Any, x: Any) -> Any:
    """A scan over words."""

    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(row @ p["w"] + h @ p["u"])
        return h, h

    _, result = jax.lax.scan(step, jnp.zeros((x.shape[1], WIDTH)), x)
    return result


def decode(p: Any, cache: Any, token: Any, place: Any) -> Any:
    """One step with a cache of keys and values."""
    x = p["wte"][token][:, None]
    q, k, v = ((x @ p[n]).reshape(*x.shape[:2], HEADS, -1) for n in "qkv")
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, new, place, 1)
        for old, new in zip(cache, (k, v), strict=True)
    )
    scores = jnp.einsum("bthd,bshd->bhts", q, keys)
    scores = jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -jnp.inf)
    result = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), values)
    return result.reshape(x.shape[0], -1) @ p["wte"].T, keys, values


def many(p: Any, x: Any) -> Any:
    """Operations that the models leave out."""
    y = x @ p["w"]
    ordered = jnp.sort(y, 1), jnp.argsort(y, 1), jnp.median(y), jnp.argmax(y, 1), jnp.argmin(y, 0)
    smooth = jax.lax.erf(y), jax.nn.gelu(y, approximate=False), jax.nn.softplus(y), jnp.log1p(y * y)
    signs = jnp.cbrt(y), jnp.round(y * 3), jnp.floor_divide(y, 0.3), jnp.remainder(y, -0.7), y**3
    parts = y[::2, 1:3], jnp.pad(y, 1), jnp.roll(y, 1, 0), jnp.tile(y, (2, 2)), jnp.flip(y, 1)
    places = y[jnp.array([0, 1]), jnp.array([2, 3])], jnp.take(y, jnp.array([0, 2]), axis=1)
    output = y.at[0].set(1.0), y.at[:, 1].add(2.0), y.at[jnp.array([1, 9])].max(0.1)
    sums = jnp.cumsum(y, 0), jax.lax.cumsum(y, 1, reverse=True), jnp.prod(y, 1), jnp.any(y > 0.5, 1)
    kinds = y.astype(jnp.bfloat16), (y * 9).astype(jnp.int8), jax.nn.logsumexp(y), jnp.isnan(y)
    return ordered, smooth, signs, parts, places, output, sums, kinds, jnp.clip(y, 0, 1)
