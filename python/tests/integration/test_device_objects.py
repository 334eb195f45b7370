# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Objects of each device: TVM's paged cache of keys and values, with the heads of the device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache
from tvm.script import relax as R

import tvm_distir as td
from tests.quick_compilation import quick_machine
from tvm_distir.core.rewriting.entries import keep_entry
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support import StringImm
from tvm_distir.support.errors import EngineError, ModelError, PlanError, PropagationError

HEADS, KEYS, SIZE, LAYERS, WIDTH, TOKENS = 4, 2, 16, 2, 64, 5
STEPS = 10


class Layer(nn.Module):
    """A decoder layer as MLC-LLM writes it, with norms of heads as Qwen 3 has them, or without."""

    def __init__(self, normalizes: bool) -> None:
        self.head_norm = nn.RMSNorm(SIZE, -1, 1e-5, bias=False) if normalizes else None
        self.input_layernorm = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.qkv_proj = nn.Linear(WIDTH, (HEADS + 2 * KEYS) * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate_up_proj = nn.Linear(WIDTH, 2 * 96, bias=False)
        self.down_proj = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x: Tensor, cache: PagedKVCache, number: int) -> Tensor:
        """Return the output of the layer."""
        batch, seq, _ = x.shape
        qkv = self.qkv_proj(self.input_layernorm(x))
        qkv = op.reshape(qkv, (batch, seq, HEADS + 2 * KEYS, SIZE))
        if self.head_norm is not None:
            q, k, v = op.split(qkv, [HEADS, HEADS + KEYS], axis=2)
            qkv = op.concat([self.head_norm(q), self.head_norm(k), v], dim=2)
        mixed = cache.attention_with_fused_qkv(number, qkv, HEADS, SIZE**-0.5)
        x = x + self.o_proj(op.reshape(mixed, (batch, seq, HEADS * SIZE)))
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return x + self.down_proj(op.silu(gate) * up)


class Decoder(nn.Module):
    """Two layers that share a cache."""

    def __init__(self, normalizes: bool) -> None:
        self.layers = nn.ModuleList([Layer(normalizes) for _ in range(LAYERS)])

    def step(self, x: Tensor, paged_kv_cache: PagedKVCache) -> Any:
        """Return the hidden states and the cache."""
        for number, layer in enumerate(self.layers):
            x = layer(x, paged_kv_cache, number)
        return x, paged_kv_cache

    prefill = decode = step


class Maker(nn.Module):
    """The maker of a cache with some heads."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def create(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk_size: tirx.Var,
        page_size: tirx.Var,
        support_sliding_window: tirx.Var,
    ) -> PagedKVCache:
        """Return the cache."""
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            layer_partition=relax.ShapeExpr([0, LAYERS]),
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS // self.parts,
            num_key_value_heads=KEYS // self.parts,
            qk_head_dim=SIZE,
            v_head_dim=SIZE,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=10000,
            rope_scaling={},
            rope_ext_factors=relax.op.zeros((), "float32"),
            rotary_dim=SIZE,
            enable_disaggregation=False,
            dtype="float32",
            target=tvm.target.Target("llvm"),
        )


MODE = {"param_mode": "packed", "effect_mode": "none"}


@functools.cache
def cache_machine(parts: int) -> Any:
    """Return a machine that makes caches with a part of the heads."""
    sizes = ("max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size")
    arguments = {name: int for name in (*sizes, "support_sliding_window")}
    spec = {"create": {**arguments, "$": {"param_mode": "none", "effect_mode": "none"}}}
    with tvm.target.Target("llvm"):
        mod = Maker(parts).export_tvm(spec)[0]
        return quick_machine(mod)


def new_cache(parts: int = 1) -> Any:
    """Return an empty cache with a part of the heads."""
    sizes = [tvm.runtime.ShapeTuple([n]) for n in (2, 64, 32, 16, 0)]
    return cache_machine(parts)["create"](*sizes)


@functools.cache
def decoder(normalizes: bool = False) -> ir.IRModule:
    """Return the decoder as `relax.nn` exports it."""
    cache = nn.spec.Object(object_type=PagedKVCache)
    spec = {
        name: {
            "x": nn.spec.Tensor([1, length, WIDTH], "float32"),
            "paged_kv_cache": cache,
            "$": MODE,
        }
        for name, length in (("prefill", TOKENS), ("decode", 1))
    }
    return Decoder(normalizes).export_tvm(spec)[0]


def weights(normalizes: bool = False) -> list[np.ndarray]:
    """Return weights of the decoder."""
    rng = np.random.default_rng(3)
    (packed,) = (
        p for p in decoder(normalizes)["decode"].params if isinstance(p.ty, relax.TupleType)
    )
    shapes = [tuple(int(n) for n in ty.shape.values) for ty in packed.ty.fields]
    scales = [1.0 if len(shape) == 1 else shape[-1] ** -0.5 for shape in shapes]
    return [
        (rng.standard_normal(shape) * scale).astype("float32")
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def inputs() -> list[np.ndarray]:
    """Return the hidden states of the prompt and of each step."""
    rng = np.random.default_rng(4)
    lengths = [TOKENS, *[1] * STEPS]
    return [rng.standard_normal((1, n, WIDTH)).astype("float32") for n in lengths]


@functools.cache
def expected(normalizes: bool = False) -> list[np.ndarray]:
    """Return what stock TVM computes on one device."""
    machine = quick_machine(decoder(normalizes))
    cache, outputs = new_cache(), []
    packed = tuple(map(tvm.runtime.tensor, weights(normalizes)))
    caches = td.DeviceObjects({0: cache})
    caches.call("vm.builtin.kv_state_add_sequence", 0)
    for number, x in enumerate(inputs()):
        begin(caches, x.shape[1])
        result = machine["decode" if number else "prefill"](tvm.runtime.tensor(x), cache, packed)
        outputs.append(result[0].numpy())
        caches.call("vm.builtin.kv_state_end_forward")
    return outputs


def begin(caches: td.DeviceObjects, tokens: int) -> None:
    """Announce the tokens of sequence 0 to the caches."""
    shape = tvm.runtime.ShapeTuple
    caches.call("vm.builtin.kv_state_begin_forward", shape([0]), shape([tokens]))


@pytest.mark.parametrize(
    ("engine", "normalizes"), [("virtual", False), ("threads", False), ("threads", True)]
)
def test_prefill_and_decode_by_heads(engine: str, normalizes: bool) -> None:
    """Prefill and ten decode steps on two devices give what one device gives."""
    mod = decoder(normalizes)
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    dist = td.distribute(mod, plan)
    assert dist["decode"].script().count("R.dist.all_reduce(") == 2 * LAYERS
    assert f"R.Tensor(({TOKENS}, {HEADS // 2}, {SIZE})" in dist["prefill"].script()
    caches = td.DeviceObjects({rank: new_cache(2) for rank in range(2)})
    caches.call("vm.builtin.kv_state_add_sequence", 0)
    for number, x in enumerate(inputs()):
        begin(caches, x.shape[1])
        entry = "decode" if number else "prefill"
        got, caches = td.run(dist, [x, caches, *weights(normalizes)], engine, entry=entry)
        caches.call("vm.builtin.kv_state_end_forward")
        np.testing.assert_allclose(got, expected(normalizes)[number], rtol=1e-4, atol=1e-5)


def test_replicated_heads_and_sharded_outputs() -> None:
    """Without a plan for heads every device holds the whole cache; outputs may stay sharded."""
    mod = keep_entry(decoder(), "prefill")
    dist = td.distribute(mod, {"schema_version": 1, "mesh": {"x": 2}, "rules": []})
    caches = td.DeviceObjects({rank: new_cache() for rank in range(2)})
    caches.call("vm.builtin.kv_state_add_sequence", 0)
    begin(caches, TOKENS)
    got, after = td.run(dist, [inputs()[0], caches, *weights()], "threads", "sharded")
    assert sorted(after.objects) == [0, 1]
    np.testing.assert_allclose(got.whole(), expected()[0], rtol=1e-4, atol=1e-5)


def test_objects_that_do_not_fit() -> None:
    """An array for an object, a device without one, and engines of other processes are refused."""
    mod = keep_entry(decoder(), "decode")
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    x = inputs()[1]
    with pytest.raises(EngineError, match=r"DIST0602.*td.DeviceObjects"):
        td.run(dist, [x, x, *weights()], "virtual")
    with pytest.raises(EngineError, match=r"DIST0602.*it has to be an array"):
        td.run(dist, [td.DeviceObjects({}), td.DeviceObjects({}), *weights()], "virtual")
    with pytest.raises(EngineError, match=r"DIST0602.*device 1 has no object"):
        td.run(dist, [x, td.DeviceObjects({0: new_cache(2)}), *weights()], "virtual")
    with pytest.raises(EngineError, match=r'DIST0605.*"threads" or "virtual"'):
        td.run(dist, [x, td.DeviceObjects({}), *weights()], "mpi")
    with pytest.raises(EngineError, match=r"DIST0618"):
        td.DeviceObjects({0: new_cache(2)}).call("no.such.function")
    with pytest.raises(ModelError, match=r"DIST0340.*R.Any"):
        draw_inputs(mod)


def test_interleaved_heads_have_to_be_divided() -> None:
    """Fused weights that lie on more devices than divide the heads are refused by name."""
    mod = keep_entry(decoder(), "decode")
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2}).to_dict()
    plan["rules"].append({"value": "*reshape*", "placement": "R"})
    with pytest.raises(PropagationError, match=r"DIST0405.*interleaved for 2 devices"):
        td.distribute(mod, plan)


def test_created_caches_have_the_heads_of_a_device() -> None:
    """The strategy divides the heads of caches where they are created, and refuses broken ones."""
    create = ir.load_json(ir.save_json(decoder()))
    builder = relax.BlockBuilder()
    numbers = [relax.prim_value(n) for n in (LAYERS, HEADS, KEYS, SIZE, SIZE)]
    kind, sizes = StringImm("mha"), relax.ShapeExpr([2, 64, 32, 16, 0])
    name = relax.ExternFunc("mlc.create_paged_kv_cache_generic")
    with builder.function("create", []):
        layers = relax.ShapeExpr([0, LAYERS])
        args = [kind, sizes, layers, *numbers, R.dtype("float32")]
        call = relax.op.call_pure_packed(name, *args, ty_args=relax.AnyType())
        builder.emit_func_output(builder.emit(call, "cache"))
    created = builder.get()
    create[ir.GlobalVar("create")] = created["create"]
    plan = td.planning.make_plan(create, "megatron", {"tp": 2})
    text = td.distribute(create, plan)["create"].script()
    assert f"{LAYERS}, {HEADS // 2}, {KEYS // 2}, {SIZE}, {SIZE}" in text
    rule = {"value": "cache", "function": "create", "placement": "S[1]"}
    wrong = {"schema_version": 1, "mesh": {"tp": 4}, "rules": [rule]}
    with pytest.raises(PlanError, match=r"DIST0234.*number of heads 2"):
        td.distribute(create, wrong)
    rule["placement"] = "S[0]"
    with pytest.raises(PlanError, match=r"DIST0224.*by heads"):
        td.distribute(create, wrong)


@pytest.mark.parametrize("strategy", ["data_parallel", "tensor_parallel", "megatron"])
def test_effects_pass_through(strategy: str) -> None:
    """The effect of a module exported for debugging is an object that entries hand on."""

    class Block(nn.Module):
        """A feed-forward block."""

        def __init__(self) -> None:
            self.up_proj, self.down_proj = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            """Return the output of the block."""
            return self.down_proj(op.relu(self.up_proj(x)))

    spec = {"forward": {"x": nn.spec.Tensor([4, 8], "float32")}}
    mod, _ = Block().export_tvm(spec, debug=True)[:2]
    axis = "dp" if strategy == "data_parallel" else "tp"
    dist = td.distribute(mod, td.planning.make_plan(mod, strategy, {axis: 2}))
    rng = np.random.default_rng(0)
    shapes = [(4, 8), (16, 8), (16,), (8, 16), (8,)]
    x, *weights = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    effects = td.DeviceObjects({rank: tvm.runtime.ShapeTuple([rank]) for rank in range(2)})
    got, after = td.run(dist, [x, effects, *weights], "virtual")
    up, up_bias, down, down_bias = weights
    expected = np.maximum(x @ up.T + up_bias, 0) @ down.T + down_bias
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert [list(after.objects[rank]) for rank in range(2)] == [[0], [1]]
