# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""BERT, ViT, mixture of experts, U-Net and ResNet of the zoo against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.quick_compilation import run_main
from tvm_distir.models import zoo

SMALL = {
    "bert": dict(size="tiny", hidden=16, heads=2, vocab=37, positions=12, batch=2, seq=8),
    "vit": dict(size="tiny", hidden=16, heads=2, image=12, patch=4, classes=5, batch=2),
    "moe": dict(size="tiny", hidden=16, heads=4, kv_heads=2, ffn=12, vocab=37, batch=3, seq=9),
    "unet": dict(size="tiny", channels=8, multipliers="1-2", groups=4, heads=2, image=8, batch=2),
    "resnet": dict(size="tiny", width=4, image=20, classes=5, batch=2),
}


def draw(mod, limits=None, seed=0):
    """Arrays by name: integers below their limit, variances positive, scales near one."""
    rng, limits, arrays = np.random.default_rng(seed), limits or {}, {}
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    for name, param in zip(names, mod["main"].params, strict=True):
        shape = tuple(int(n) for n in param.ty.shape)
        if name in limits:
            arrays[name] = rng.integers(0, limits[name], shape).astype("int32")
            continue
        value = rng.standard_normal(shape) * 0.3
        if "variance" in name:
            value = rng.uniform(0.5, 1.5, shape)
        elif ("norm" in name or ".ln_" in name) and name.endswith("weight"):
            value += 1
        arrays[name] = value.astype("float32")
    return arrays


class Net:
    """NumPy layers over weights by name, in float64."""

    def __init__(self, arrays):
        self.w = {k: v.astype("float64") if v.dtype.kind == "f" else v for k, v in arrays.items()}

    def linear(self, x, name):
        y = np.einsum("...i,oi->...o", x, self.w[f"{name}.weight"])
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, x, name, eps):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        return y * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def group_norm(self, x, name, groups, eps):
        y = x.reshape(x.shape[0], groups, -1)
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + eps)
        scale, shift = (self.w[f"{name}.{k}"][:, None, None] for k in ("weight", "bias"))
        return y.reshape(x.shape) * scale + shift

    def conv(self, x, name, stride=1, padding=0):
        """One sum over the window's places at a time."""
        w = self.w[f"{name}.weight"]
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        rows = (x.shape[2] - w.shape[2]) // stride + 1
        columns = (x.shape[3] - w.shape[3]) // stride + 1
        y = 0.0
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                seen = x[:, :, i : i + rows * stride : stride, j : j + columns * stride : stride]
                y = y + np.einsum("nchw,oc->nohw", seen[:, :, :rows, :columns], w[:, :, i, j])
        if f"{name}.bias" in self.w:
            y = y + self.w[f"{name}.bias"][:, None, None]
        return y

    def attention(self, x, name, heads, counts=None, source=None):
        """(batch, seq, width); ``counts`` (batch, seq) bool."""
        source = x if source is None else source
        q = self.linear(x, f"{name}.q_proj")
        k, v = self.linear(source, f"{name}.k_proj"), self.linear(source, f"{name}.v_proj")
        width, out = q.shape[-1] // heads, np.zeros_like(q)
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = q[..., part] @ k[..., part].swapaxes(1, 2) / math.sqrt(width)
            if counts is not None:
                scores = np.where(counts[:, None, :], scores, np.finfo("float32").min)
            out[..., part] = softmax(scores) @ v[..., part]
        return self.linear(out, f"{name}.o_proj")

    def mlp(self, x, name):
        return self.linear(gelu(self.linear(x, f"{name}.up_proj")), f"{name}.down_proj")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def numpy_bert(arrays, config, eps=1e-12):
    net, w = Net(arrays), Net(arrays).w
    counts = arrays["attention_mask"] != 0
    x = w["embeddings.tokens.weight"][arrays["input_ids"]]
    x = x + w["embeddings.types.weight"][arrays["token_type_ids"]]
    x = net.norm(x + w["embeddings.positions.weight"][: config["seq"]], "embeddings.norm", eps)
    for i in range(2):
        a = net.attention(x, f"layers.{i}.attn", config["heads"], counts)
        x = net.norm(x + a, f"layers.{i}.attn_norm", eps)
        x = net.norm(x + net.mlp(x, f"layers.{i}.mlp"), f"layers.{i}.mlp_norm", eps)
    if "classify.pooler.weight" in w:
        return net.linear(np.tanh(net.linear(x[:, 0], "classify.pooler")), "classify.classifier")
    x = net.norm(gelu(net.linear(x, "mlm.dense")), "mlm.norm", eps)
    return x @ w["embeddings.tokens.weight"].T + w["mlm.bias"]


def numpy_vit(arrays, config, eps=1e-6):
    net, w, size = Net(arrays), Net(arrays).w, config["patch"]
    tokens = []
    for row in range(0, config["image"], size):
        for column in range(0, config["image"], size):
            patch = w["images"][:, :, row : row + size, column : column + size]
            tokens.append(np.einsum("nchw,ochw->no", patch, w["embed.weight"]) + w["embed.bias"])
    first = np.repeat(w["class_token"][0], config["batch"], 0)
    x = np.stack([first, *tokens], 1) + w["places"]
    for i in range(2):
        name = f"layers.{i}"
        x = x + net.attention(net.norm(x, f"{name}.ln_1", eps), f"{name}.attn", config["heads"])
        x = x + net.mlp(net.norm(x, f"{name}.ln_2", eps), f"{name}.mlp")
    return net.linear(net.norm(x[:, 0], "norm", eps), "head")


def numpy_experts(x, w, name, top_k, capacity):
    """Token by token; an expert that is full refuses, first choices go before second ones."""
    out = np.zeros_like(x)
    for sample in range(len(x)):
        logits = x[sample] @ w[f"{name}.router.weight"]
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :top_k]
        gates = softmax(np.take_along_axis(logits, chosen, -1))
        used = [0] * logits.shape[-1]
        for choice in range(top_k):
            for token, expert in enumerate(chosen[:, choice]):
                used[expert] += 1
                if used[expert] > capacity:
                    continue
                t = x[sample, token]
                gate, up = (t @ w[f"{name}.{kind}_proj"][expert] for kind in ("gate", "up"))
                created = (silu(gate) * up) @ w[f"{name}.down_proj"][expert]
                out[sample, token] += gates[token, choice] * created
    return out


def numpy_moe(arrays, config, capacity, theta=10000.0, eps=1e-5):
    net, w = Net(arrays), Net(arrays).w
    heads, kv_heads, seq = config["heads"], config["kv_heads"], config["seq"]
    width = config["hidden"] // heads

    def rms(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def turned(x):
        """Rotate (batch, seq, width) pairs (i, i + half) as complex numbers."""
        half = width // 2
        angle = np.arange(seq)[:, None] * theta ** (-np.arange(half) / half)[None, :]
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    def attention(x, name):
        q, k, v = (net.linear(x, f"{name}.{p}_proj") for p in "qkv")
        parts = []
        for h in range(heads):
            at = h * kv_heads // heads * width
            kh, vh = turned(k[..., at : at + width]), v[..., at : at + width]
            scores = turned(q[..., h * width : (h + 1) * width]) @ kh.swapaxes(1, 2)
            scores = scores / math.sqrt(width)
            scores[:, np.triu(np.ones((seq, seq), bool), 1)] = -np.inf
            parts.append(softmax(scores) @ vh)
        return net.linear(np.concatenate(parts, -1), f"{name}.o_proj")

    x = w["embed_tokens.weight"][arrays["input_ids"]]
    for i in range(2):
        name = f"layers.{i}"
        x = x + attention(rms(x, f"{name}.input_layernorm"), f"{name}.self_attn")
        inner = rms(x, f"{name}.post_attention_layernorm")
        x = x + numpy_experts(inner, w, f"{name}.mlp", 2, capacity)
    return net.linear(rms(x, "norm"), "lm_head")


def numpy_resnet(arrays, blocks, eps=1e-5):
    net, w = Net(arrays), Net(arrays).w

    def conv(x, name, stride):
        kernel = w[f"{name}.conv.weight"].shape[2]
        y = net.conv(x, f"{name}.conv", stride, kernel // 2)
        if f"{name}.norm.mean" not in w:
            return y
        mean, variance, scale, shift = (
            w[f"{name}.norm.{k}"][:, None, None] for k in ("mean", "variance", "weight", "bias")
        )
        return (y - mean) / np.sqrt(variance + eps) * scale + shift

    x = np.maximum(conv(w["images"], "stem", 2), 0)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    size = (padded.shape[2] - 3) // 2 + 1
    x = np.max(
        [
            padded[:, :, i : i + 2 * size : 2, j : j + 2 * size : 2][:, :, :size, :size]
            for i in range(3)
            for j in range(3)
        ],
        axis=0,
    )
    for i, (stride, strides) in enumerate(blocks):
        name, y = f"blocks.{i}", x
        for j, step in enumerate(strides):
            y = conv(y, f"{name}.convs.{j}", step)
            y = np.maximum(y, 0) if j + 1 < len(strides) else y
        if f"{name}.shortcut.conv.weight" in w:
            x = conv(x, f"{name}.shortcut", stride)
        x = np.maximum(x + y, 0)
    return net.linear(x.mean((2, 3)), "head")


def numpy_unet(arrays, config, depth, levels):
    net, w = Net(arrays), Net(arrays).w
    groups, heads, channels = config["groups"], config["heads"], config["channels"]

    def res(x, time, name):
        y = silu(net.group_norm(x, f"{name}.norm_1", groups, 1e-5))
        y = net.conv(y, f"{name}.conv_1", padding=1)
        y = y + net.linear(silu(time), f"{name}.time")[:, :, None, None]
        y = silu(net.group_norm(y, f"{name}.norm_2", groups, 1e-5))
        y = net.conv(y, f"{name}.conv_2", padding=1)
        return y + (net.conv(x, f"{name}.shortcut") if f"{name}.shortcut.weight" in w else x)

    def transformer(x, name):
        y = net.conv(net.group_norm(x, f"{name}.norm", groups, 1e-6), f"{name}.proj_in")
        y = y.reshape(*y.shape[:2], -1).swapaxes(1, 2)
        y = y + net.attention(net.norm(y, f"{name}.ln_1", 1e-5), f"{name}.attn", heads)
        if "text" in w:
            z = net.norm(y, f"{name}.ln_2", 1e-5)
            y = y + net.attention(z, f"{name}.cross", heads, source=w["text"])
        z = net.norm(y, f"{name}.ln_3", 1e-5)
        z = net.linear(z, f"{name}.mlp.up_proj") * gelu(net.linear(z, f"{name}.mlp.gate_proj"))
        y = y + net.linear(z, f"{name}.mlp.down_proj")
        return x + net.conv(y.swapaxes(1, 2).reshape(x.shape), f"{name}.proj_out")

    def block(x, time, name):
        x = res(x, time, f"{name}.0")
        return transformer(x, f"{name}.1") if f"{name}.1.ln_1.weight" in w else x

    half = channels // 2
    angles = w["timesteps"][:, None] * 10000.0 ** (-np.arange(half) / half)[None]
    time = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    time = net.linear(silu(net.linear(time, "time.linear_1")), "time.linear_2")
    x = net.conv(w["sample"], "conv_in", padding=1)
    skips, number = [x], 0
    for level in range(levels):
        for _ in range(depth):
            x = block(x, time, f"down.{number}")
            number += 1
            skips.append(x)
        if level < levels - 1:
            x = net.conv(x, f"shrink.{level}", 2, 1)
            skips.append(x)
    x = transformer(res(x, time, "middle.0"), "middle.1")
    x, number = res(x, time, "middle.2"), 0
    for level in range(levels):
        for _ in range(depth + 1):
            x = block(np.concatenate([x, skips.pop()], 1), time, f"up.{number}")
            number += 1
        if level < levels - 1:
            x = net.conv(x.repeat(2, 2).repeat(2, 3), f"grow.{level}", padding=1)
    x = silu(net.group_norm(x, "norm_out", groups, 1e-5))
    return net.conv(x, "conv_out", padding=1)


def agree(build, keys, limits, reference, flat=True):
    nested = build(**keys)
    arrays = draw(nested, limits)
    got, want = run_main(nested, arrays.values()), reference(arrays)
    assert np.abs(want).std() > 1e-2
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if flat:
        np.testing.assert_array_equal(got, run_main(build(**keys, nested=0), arrays.values()))


@pytest.mark.parametrize("head", ["mlm", "classify"])
def test_bert_equals_numpy(head):
    keys = {**SMALL["bert"], "head": head, "types": 3}
    limits = {"input_ids": 37, "token_type_ids": 3, "attention_mask": 2}
    agree(zoo.bert, keys, limits, lambda arrays: numpy_bert(arrays, keys), head == "classify")


def test_vit_equals_numpy():
    keys = SMALL["vit"]
    agree(zoo.vit, keys, {}, lambda arrays: numpy_vit(arrays, keys), flat=False)


@pytest.mark.parametrize("bias", [0, 1])
def test_mlp_equals_numpy(bias):
    def reference(arrays):
        net = Net(arrays)
        x = net.w["x"]
        for name in ("layers.0.linear", "layers.1.linear"):
            x = np.maximum(net.linear(x, name), 0)
        return net.linear(x, "head")

    agree(zoo.mlp, dict(size="tiny", hidden=16, batch=4, bias=bias), {}, reference, flat=bias == 0)


@pytest.mark.parametrize(("factor", "capacity"), [(1.25, 6), (0.5, 3), (0, 9)])
def test_moe_equals_numpy(factor, capacity):
    """With few dropped tokens, many, and none."""
    keys = {**SMALL["moe"], "capacity_factor": factor}
    limits = {"input_ids": 37}
    agree(zoo.moe, keys, limits, lambda arrays: numpy_moe(arrays, keys, capacity), factor == 0.5)


def test_moe_drops_tokens_when_experts_are_full():
    """The numbers above say something: the capacities give different results."""
    keys = SMALL["moe"]
    arrays = draw(zoo.moe(**keys), {"input_ids": 37})
    few, all_ = numpy_moe(arrays, keys, 3), numpy_moe(arrays, keys, 9)
    assert np.abs(few - all_).max() > 1e-2


@pytest.mark.parametrize(("depth", "folded"), [(10, 1), (14, 0)])
def test_resnet_equals_numpy(depth, folded):
    keys = {**SMALL["resnet"], "depth": depth, "folded": folded}
    inner = (lambda s: (s, 1)) if depth == 10 else (lambda s: (1, s, 1))
    blocks = [(s, inner(s)) for s in (1, 2, 2, 2)]
    agree(zoo.resnet, keys, {}, lambda arrays: numpy_resnet(arrays, blocks), depth == 10)


@pytest.mark.parametrize(("attention", "context", "depth"), [(0, 0, 1), (2, 10, 2)])
def test_unet_equals_numpy(attention, context, depth):
    keys = {**SMALL["unet"], "attention": attention, "context": context, "depth": depth}

    def reference(arrays):
        return numpy_unet(arrays, keys, depth, 2)

    agree(zoo.unet, keys, {}, reference, flat=False)
