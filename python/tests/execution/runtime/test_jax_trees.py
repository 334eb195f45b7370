# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Functions of JAX with trees, distributed by ``td.jit``, against the functions themselves."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import numpy as np
import pytest

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
jax = pytest.importorskip("jax", reason="the extra jax is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.support import EngineError, UsageError  # noqa: E402

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 4, reason="JAX was started with fewer than four devices"
)


class State(NamedTuple):
    """A training state with an optimizer's and typed keys, as Flax and optax have."""

    params: dict[str, Any]
    opt: tuple[Any, Any]
    key: Any


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["count", "mu"], meta_fields=["decay"]
)
@dataclasses.dataclass
class Momentum:
    """The state of an optimizer, with a field that is no array."""

    count: Any
    mu: Any
    decay: float


def arrays(seed: int = 0) -> tuple[State, dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32)

    def layer() -> dict[str, Any]:
        return {
            "up_proj": {"kernel": array(8, 16), "bias": array(16)},
            "down_proj": {"kernel": array(16, 8), "bias": array(8)},
        }

    params = {"layers_0": layer(), "layers_1": layer(), "unused": array(4)}
    momentum = Momentum(jnp.int32(0), jax.tree.map(jnp.zeros_like, params), 0.9)
    state = State(params, (momentum, ()), jax.random.key(seed))
    return state, {"x": array(8, 8), "y": array(8, 8)}


@jax.checkpoint
def layer(p: Any, x: Any, key: Any) -> Any:
    h = jax.nn.relu(x @ p["up_proj"]["kernel"] + p["up_proj"]["bias"])
    kept = jax.random.bernoulli(key, 0.75, h.shape)
    return x + jnp.where(kept, h, 0) @ p["down_proj"]["kernel"] + p["down_proj"]["bias"]


def step(state: State, batch: dict[str, Any], rate: Any = 0.1) -> tuple[State, dict[str, Any]]:
    first, second, key = jax.random.split(state.key, 3)

    def loss(params: Any) -> Any:
        x = layer(params["layers_0"], batch["x"], first)
        return ((layer(params["layers_1"], x, second) - batch["y"]) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    momentum, rest = state.opt
    mu = jax.tree.map(lambda m, g: momentum.decay * m + g, momentum.mu, gradients)
    params = jax.tree.map(lambda p, m: p - rate * m, state.params, mu)
    momentum = dataclasses.replace(momentum, count=momentum.count + 1, mu=mu)
    return State(params, (momentum, rest), key), {"loss": value}


def check(got: Any, expected: Any) -> None:
    """Compare trees by structure and by leaf; keys and integers have to be equal in their bits."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert np.array_equal(jax.random.key_data(a), jax.random.key_data(b))
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "mesh"), [("data_parallel+megatron", (2, 2)), ("zero:stage=3+megatron", (2, 2))]
)
def test_steps_are_those_of_jax(strategy: str, mesh: tuple[int, int]) -> None:
    devices = Mesh(np.array(jax.devices()[:4]).reshape(mesh), ("dp", "tp"))
    jitted = td.jit(step, devices, strategy=strategy)
    (state, batch), (reference, _) = arrays(), arrays()
    original = jax.jit(step)
    for _ in range(2):
        state, got = jitted(state, batch, rate=0.05)
        reference, expected = original(reference, batch, rate=0.05)
        check(got, expected)
    check(state, reference)
    lowered = jitted.lower(state, batch, rate=0.05)
    specs = jax.tree.map(lambda sharding: sharding.spec, lowered.in_shardings)
    kernel = specs[0].params["layers_0"]["down_proj"]["kernel"]
    assert kernel == PartitionSpec("tp", *(["dp"] if "zero" in strategy else []))
    assert specs[0].key == PartitionSpec()
    assert specs[1] == {"x": PartitionSpec("dp"), "y": PartitionSpec("dp")}
    placed = state.params["layers_0"]["down_proj"]["kernel"]
    assert placed.sharding == lowered.out_shardings[0].params["layers_0"]["down_proj"]["kernel"]
    assert placed.addressable_shards[0].data.size * (4 if "zero" in strategy else 2) == placed.size


def test_arguments_are_donated_as_jax_lowers_them() -> None:
    def descend(params: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: ((x @ p["w"]) ** 2).sum())(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients)

    jitted = td.jit(jax.jit(descend, donate_argnums=0), {"dp": 4}, strategy="zero:stage=3")
    params, x = {"w": jnp.ones((8, 4))}, jnp.ones((4, 8))
    placed = jax.device_put(params, jitted.lower(params, x).in_shardings[0])
    check(jitted(placed, x), descend(params, x))
    assert placed["w"].is_deleted() and not x.is_deleted()


def test_updates_of_steps_are_gathered_first() -> None:
    def descend(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).sum())(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), loss

    mod = td.from_jax(descend, {"w": jnp.ones((8, 4))}, jnp.ones((4, 8)))
    plan = td.planning.make_plan(mod, "zero:stage=3", {"dp": 4})
    dist = td.distribute(mod, plan, system="h100", overlap_optimizer=True)
    x, w = np.full((4, 8), 0.5, "float32"), np.arange(32, dtype="float32").reshape(8, 4) / 32
    check(td.run(dist, [x, w]), jax.tree.leaves(descend({"w": w}, x)))


def test_scans_and_plans_by_path() -> None:
    def scanned(weights: tuple[Any, Any], x: Any) -> Any:
        def body(h: Any, w: tuple[Any, Any]) -> tuple[Any, Any]:
            h = jnp.tanh(h @ w[0]) @ w[1]
            return h, h.sum()

        return jax.lax.scan(jax.checkpoint(body), x, weights)

    rng = np.random.default_rng(1)
    shapes = (3, 8, 16), (3, 16, 8), (4, 8)
    up, down, x = ((rng.normal(size=shape) / 8).astype("float32") for shape in shapes)
    rules = {"weights.0": td.P(None, None, "tp"), "weights.1": td.P(None, "tp", None)}
    jitted = td.jit(scanned, plan=td.Plan(mesh={"tp": 4}, rules=rules))
    check(jitted((up, down), x), scanned((up, down), x))
    twice = jax.jit(lambda w, x: jitted(w, jitted(w, x)[0]))
    check(twice((up, down), x), scanned((up, down), scanned((up, down), x)[0]))
    specs = [sharding.spec for sharding in jitted.lower((up, down), x).in_shardings[0]]
    assert specs == [PartitionSpec(None, None, "tp"), PartitionSpec(None, "tp")]


def test_shardings_of_the_function_are_a_plan() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    shardings = {"w": NamedSharding(mesh, PartitionSpec(None, "d"))}, None

    def function(p: Any, x: Any) -> Any:
        return {"y": jnp.sin(x @ p["w"])}

    params, x = {"w": jnp.ones((8, 16))}, jnp.ones((4, 8))
    jitted = td.jit(jax.jit(function, in_shardings=shardings))
    check(jitted(params, x), function(params, x))
    assert jitted.lower(params, x).in_shardings[0]["w"].spec == PartitionSpec(None, "d")


def test_one_compilation_serves_arrays_of_all_shardings() -> None:
    traces = []

    def function(x: Any) -> Any:
        traces.append(x.shape)
        return x + 1

    jitted = td.jit(function, {"dp": 2}, strategy="data_parallel")
    jitted(jitted(np.ones((4, 2), "float32")))
    assert len(traces) == 1
    assert jitted(jnp.ones((6, 2))).shape == (6, 2)
    assert [shape[0] for shape in traces] == [4, 6]


def test_a_single_device() -> None:
    def draw(key: Any, x: Any) -> Any:
        return {"x": x @ jax.random.normal(key, (2, 8))}, jax.random.split(key, 2)

    key, x = jax.random.key(3), jnp.ones((4, 2))
    check(td.jit(draw, {"dp": 1}, strategy="data_parallel")(key, x), draw(key, x))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="DIST0151 jit: a strategy and a mesh"):
        td.jit(step, strategy="data_parallel")
    with pytest.raises(UsageError, match="DIST0151"):
        td.jit(step, {"dp": 2}, strategy="zero", plan=td.Plan(mesh={"dp": 2}))
    with pytest.raises(EngineError, match="DIST0602 jit: an argument is str"):
        td.jit(step, {"dp": 2}, strategy="zero")(*arrays(), "fast")


def test_structures_that_no_result_replaces_are_data() -> None:
    state, batch = arrays()

    def names(mod: Any) -> list[str]:
        fn = mod["main"]
        return [str(n) for n in fn.attrs["dist.param_names"]][: int(fn.attrs["num_input"])]

    assert names(td.from_jax(step, state, batch)) == ["batch.x", "batch.y"]
    assert names(td.from_jax(step, state, batch, data=["batch.y"])) == ["batch.y"]

    def keyed(state: State, batch: dict[str, Any]) -> Any:
        return step(state._replace(key=batch["key"]), batch)

    keys = {**batch, "key": jax.random.key(1)}
    assert names(td.from_jax(keyed, state, keys)) == ["batch.x", "batch.y"]

    def score(params: Any, x: Any) -> Any:  # returns no structure anew
        return x @ params["w"]

    assert names(td.from_jax(score, {"w": jnp.ones((8, 2))}, jnp.ones((4, 8)))) == ["x"]
