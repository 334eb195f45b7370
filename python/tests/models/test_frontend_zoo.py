# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The zoo's models against NumPy, and their sizes against the published ones."""

from __future__ import annotations

import math
import time

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.quick_compilation import run_main
from tvm_distir.models import zoo
from tvm_distir.support.errors.tree import ModelError

SMALL_GPT = dict(size="tiny", layers=2, hidden=16, heads=2, vocab=37, positions=12, batch=2, seq=8)
SMALL_LLAMA = dict(
    size="tiny", layers=2, hidden=24, heads=6, kv_heads=2, ffn=20, vocab=37, batch=2, seq=8
)


def names_of(mod):
    return [str(name) for name in mod["main"].attrs["dist.param_names"]]


def random_inputs(mod, vocab, seed=0):
    """Ids and weights by name; norm weights near one."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, param in zip(names_of(mod), mod["main"].params, strict=True):
        shape = tuple(int(n) for n in param.ty.shape)
        if name == "input_ids":
            arrays[name] = rng.integers(0, vocab, shape).astype("int32")
        else:
            arrays[name] = (rng.standard_normal(shape) * 0.3 + ("norm" in name)).astype("float32")
    return arrays


def numpy_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_attention(q, k, v):
    """One sample: q, k, v (heads, seq, width)."""
    seq = q.shape[1]
    scores = np.einsum("hid,hjd->hij", q, k) / math.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones((seq, seq), bool), 1)] = -np.inf
    return np.einsum("hij,hjd->hid", numpy_softmax(scores), v)


def heads_of(x, count):
    return np.stack(np.split(x, count, axis=-1))


def numpy_gpt(weights, heads, layers):
    w = {k: v.astype("float64") for k, v in weights.items()}

    def norm(x, name):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return np.einsum("si,oi->so", x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    samples = []
    for ids in weights["input_ids"]:
        x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
        for i in range(layers):
            a = norm(x, f"h.{i}.ln_1")
            q, k, v = (heads_of(linear(a, f"h.{i}.attn.{p}_proj"), heads) for p in "qkv")
            x = x + linear(np.concatenate(numpy_attention(q, k, v), -1), f"h.{i}.attn.o_proj")
            u = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.up_proj")
            u = 0.5 * u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
            x = x + linear(u, f"h.{i}.mlp.down_proj")
        samples.append(norm(x, "ln_f") @ w["wte.weight"].T)
    return np.stack(samples)


def numpy_llama(weights, heads, kv_heads, layers, theta=10000.0, eps=1e-5):
    w = {k: v.astype("float64") for k, v in weights.items()}

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def linear(x, name):
        return np.einsum("si,oi->so", x, w[f"{name}.weight"])

    def turn(x):
        """Rotate pairs (i, i + half) of (heads, seq, width) as complex numbers."""
        half = x.shape[-1] // 2
        angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)[None, :]
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    samples = []
    for ids in weights["input_ids"]:
        x = w["embed_tokens.weight"][ids]
        for i in range(layers):
            p = f"layers.{i}"
            a = norm(x, f"{p}.input_layernorm")
            q = turn(heads_of(linear(a, f"{p}.self_attn.q_proj"), heads))
            k = turn(heads_of(linear(a, f"{p}.self_attn.k_proj"), kv_heads))
            v = heads_of(linear(a, f"{p}.self_attn.v_proj"), kv_heads)
            shared = [h * kv_heads // heads for h in range(heads)]
            mixed = numpy_attention(q, k[shared], v[shared])
            x = x + linear(np.concatenate(mixed, -1), f"{p}.self_attn.o_proj")
            a = norm(x, f"{p}.post_attention_layernorm")
            gate = linear(a, f"{p}.mlp.gate_proj")
            gate = gate / (1 + np.exp(-gate))
            x = x + linear(gate * linear(a, f"{p}.mlp.up_proj"), f"{p}.mlp.down_proj")
        samples.append(linear(norm(x, "norm"), "lm_head"))
    return np.stack(samples)


def test_gpt_equals_numpy_nested_and_flat():
    nested, flat = zoo.gpt(**SMALL_GPT), zoo.gpt(**SMALL_GPT, nested=0)
    arrays = random_inputs(nested, 37)
    assert names_of(nested) == names_of(flat)
    got = run_main(nested, arrays.values())
    np.testing.assert_allclose(got, numpy_gpt(arrays, 2, 2), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got, run_main(flat, arrays.values()))


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_llama_equals_numpy_nested_and_flat(kv_heads):
    keys = {**SMALL_LLAMA, "kv_heads": kv_heads}
    nested, flat = zoo.llama(**keys), zoo.llama(**keys, nested=0)
    arrays = random_inputs(nested, 37)
    got = run_main(nested, arrays.values())
    want = numpy_llama(arrays, 6, kv_heads, 2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got, run_main(flat, arrays.values()))


@pytest.mark.parametrize(
    ("model", "dtype"), [("gpt", "bfloat16"), ("llama", "bfloat16"), ("llama", "float16")]
)
def test_half_precision_stays_near_float32(model, dtype):
    keys = SMALL_GPT if model == "gpt" else SMALL_LLAMA
    mod = zoo.build(model, {**keys, "dtype": dtype})
    arrays = random_inputs(mod, 37)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    ids = arrays.pop("input_ids")
    rounded = {k: v.astype(kind) for k, v in arrays.items()}
    got = run_main(mod, [ids, *rounded.values()])
    assert got.dtype == kind
    exact = {"input_ids": ids, **{k: v.astype("float32") for k, v in rounded.items()}}
    want = numpy_gpt(exact, 2, 2) if model == "gpt" else numpy_llama(exact, 6, 2, 2)
    spread = np.abs(want).max()
    step = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    assert np.abs(got.astype("float64") - want).max() <= 8 * step * spread


def weights_count(mod):
    weights = mod["main"].params[int(mod["main"].attrs["num_input"]) :]
    return sum(math.prod(int(n) for n in p.ty.shape) for p in weights)


# Published counts: HuggingFace's model cards (num_parameters of the checkpoints; of Stable
# Diffusion 1.5 its U-Net), torchvision's for ViT and ResNet, which do not count the statistics
# of batch norms: two numbers per channel of each, 9,600 of ResNet-18 and 53,120 of ResNet-50.
@pytest.mark.parametrize(
    ("model", "size", "count"),
    [
        ("gpt", "gpt2", 124_439_808),
        ("gpt", "gpt2-medium", 354_823_168),
        ("gpt", "gpt2-large", 774_030_080),
        ("gpt", "gpt2-xl", 1_557_611_200),
        ("llama", "7b", 6_738_415_616),
        ("llama", "13b", 13_015_864_320),
        ("llama", "70b", 68_976_648_192),
        ("llama", "8b", 8_030_261_248),
        ("llama", "3-70b", 70_553_706_496),
        ("llama", "405b", 405_853_388_800),
        ("bert", "bert-base", 109_514_298),
        ("vit", "vit-b16", 86_567_656),
        ("vit", "vit-l16", 304_326_632),
        ("moe", "mixtral-8x7b", 46_702_792_704),
        ("moe", "mixtral-8x22b", 140_620_634_112),
        ("unet", "sd-unet", 859_520_964),
        ("resnet", "resnet18", 11_689_512 + 9_600),
        ("resnet", "resnet50", 25_557_032 + 53_120),
    ],
)
def test_parameter_counts_are_the_published_ones(model, size, count):
    assert weights_count(zoo.build(model, {"size": size})) == count


def test_gpt3_175b_by_formula():
    h, layers, vocab, places = 12288, 96, 50257, 2048
    per_layer = 4 * (h * h + h) + (h * 4 * h + 4 * h) + (4 * h * h + h) + 4 * h
    want = vocab * h + places * h + layers * per_layer + 2 * h
    assert weights_count(zoo.gpt(size="gpt3-175b")) == want
    assert abs(want / 175e9 - 1) < 0.005


def test_big_models_build_fast_and_nested_has_one_layer():
    start = time.process_time()
    mod = zoo.llama(size="70b")
    assert time.process_time() - start < 2.0
    assert sorted(gv.name_hint for gv in mod.get_global_vars()) == ["layer", "main"]
    layer = mod["layer"]
    assert "global_symbol" not in (layer.attrs or {})
    assert "self_attn.q_proj.weight" in [p.name for p in layer.params]
    assert relax.analysis.check_well_formed(mod)


@pytest.mark.parametrize("model", zoo.NAMES)
def test_a_configuration_says_all_of_a_model(model):
    keys = {"size": "tiny", "batch": "12"}
    result = zoo.config(model, keys)
    assert result.batch == 12
    assert tvm_ffi.structural_equal(zoo.build(model, vars(result)), zoo.build(model, keys))


@pytest.mark.parametrize("model", zoo.NAMES)
@pytest.mark.parametrize("nested", [0, 1])
def test_text_round_trip_and_determinism(model, nested):
    mod = zoo.build(model, {"size": "tiny", "nested": nested, "dtype": "bfloat16"})
    text = mod.script(show_meta=True)
    assert tvm_ffi.structural_equal(tvm.script.from_source(text), mod)
    again = zoo.build(model, {"size": "tiny", "nested": nested, "dtype": "bfloat16"})
    assert again.script(show_meta=True) == text


@pytest.mark.parametrize(
    ("model", "keys", "code", "word"),
    [
        ("gtp", {}, "DIST0330", '"gpt"'),
        ("gpt", {"layer": 2}, "DIST0331", '"layers"'),
        ("llama", {"size": "7bb"}, "DIST0331", '"7b"'),
        ("gpt", {"layers": "two"}, "DIST0332", "integer"),
        ("gpt", {"layers": 0}, "DIST0332", "positive"),
        ("gpt", {"layers": 1.5}, "DIST0332", "integer"),
        ("gpt", {"heads": 7}, "DIST0332", "divisible"),
        ("gpt", {"seq": 2000}, "DIST0332", "positions=2000"),
        ("gpt", {"nested": 2}, "DIST0332", "nested"),
        ("llama", {"kv_heads": 5}, "DIST0332", "kv_heads"),
        ("llama", {"heads": 4096, "kv_heads": 4096}, "DIST0332", "odd"),
        ("llama", {"dtype": "bfloat"}, "DIST0332", '"bfloat16"'),
        ("bert", {"head": "mlmm"}, "DIST0332", '"mlm"'),
        ("bert", {"seq": 600}, "DIST0332", "positions=600"),
        ("vit", {"patch": 15}, "DIST0332", "divisible"),
        ("moe", {"top_k": 9}, "DIST0332", "experts=9"),
        ("mixtral", {"dispatch": "one"}, "DIST0332", '"one_hot"'),
        ("llama3", {"positions": 64}, "DIST0332", "positions=4096"),
        ("llama3", {"fused_qkv": 1}, "DIST0332", "fused_qkv"),
        ("qwen3", {"positions": 4096}, "DIST0332", "norms of queries"),
        ("gpt_oss", {"attention": "flash"}, "DIST0332", "dropout"),
        ("resnet", {"depth": 51}, "DIST0332", "50"),
        ("resnet", {"folded": 2}, "DIST0332", "folded"),
        ("unet", {"multipliers": "1-x"}, "DIST0332", "1-2-4-4"),
        ("unet", {"image": 60}, "DIST0332", "halved"),
        ("unet", {"groups": 7}, "DIST0332", "groups"),
        ("unet", {"size": "sd"}, "DIST0331", "sd-unet"),
    ],
)
def test_bad_keys_are_refused(model, keys, code, word):
    with pytest.raises(ModelError) as caught:
        zoo.build(model, keys)
    assert caught.value.code == code
    assert word in str(caught.value)
