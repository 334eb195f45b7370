# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distributed modules as functions of JAX, inside of ``jax.jit``, against the engine virtual."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
jax = pytest.importorskip("jax")

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.xla import jax_function  # noqa: E402
from tvm_distir.support.errors.tree import (  # noqa: E402
    DependencyError,
    EngineError,
    ModelError,
)

needs_devices = pytest.mark.skipif(
    len(jax.devices()) < 4, reason="JAX was started with fewer than four devices"
)


@pytest.fixture(autouse=True)
def wide_types() -> Any:
    with jax.enable_x64(True):
        yield


def program(strategy: str, mesh: dict[str, int], train: bool = False) -> tuple[Any, list[Any]]:
    mod = td.zoo.gpt(size="tiny", vocab=512, batch=8)
    mod = td.train_step(mod, optimizer="adamw") if train else mod
    dist = td.distribute(mod, td.planning.make_plan(mod, strategy, mesh))
    return dist, td.execution.draw_inputs(mod, seed=1)


CASES = [
    ("data_parallel", {"dp": 4}, False),
    ("megatron", {"tp": 4}, False),
    ("data_parallel+megatron", {"dp": 2, "tp": 2}, False),
    ("megatron:sequence=1", {"tp": 2}, False),
    ("zero:stage=3+megatron", {"dp": 2, "tp": 2}, True),
]


@needs_devices
@pytest.mark.parametrize(("strategy", "mesh", "train"), CASES)
def test_results_are_those_of_the_engine(strategy: str, mesh: dict[str, int], train: bool) -> None:
    dist, inputs = program(strategy, mesh, train)
    expected = td.run(dist, inputs, engine="virtual")
    function = td.to_jax(dist)
    results = function(*inputs)
    assert len(results) == len(expected)
    for got, reference, sharding in zip(results, expected, function.out_shardings):
        assert got.sharding.is_equivalent_to(sharding, got.ndim)
        assert np.allclose(got, reference, rtol=1e-4, atol=1e-4)


@needs_devices
def test_it_composes_with_jit() -> None:
    dist, inputs = program("data_parallel+megatron", {"dp": 2, "tp": 2})
    (expected,) = td.run(dist, inputs, engine="virtual")
    function = td.to_jax(dist)

    @jax.jit
    def twice(*args: Any) -> Any:
        (first,) = function(*args)
        (second,) = function(*args)
        return first + 2 * second.max()

    placed = [jax.device_put(x, s) for x, s in zip(inputs, function.in_shardings)]
    got = np.asarray(twice(*placed))
    assert np.allclose(got, expected + 2 * expected.max(), rtol=1e-4, atol=1e-4)
    weight = next(i for i, p in enumerate(function.inputs) if p.name.endswith("q_proj.weight"))
    assert placed[weight].addressable_shards[0].data.size * 2 == inputs[weight].size


@needs_devices
def test_it_has_no_derivative() -> None:
    dist, inputs = program("data_parallel", {"dp": 4})
    function = td.to_jax(dist)
    weight = next(i for i, p in enumerate(function.inputs) if p.name.endswith("q_proj.weight"))

    def loss(value: Any) -> Any:
        (logits,) = function(*inputs[:weight], value, *inputs[weight + 1 :])
        return logits.sum()

    assert np.isfinite(loss(inputs[weight]))
    with pytest.raises(NotImplementedError, match="tvm_distir_program"):
        jax.grad(loss)(inputs[weight])


@needs_devices
def test_what_does_not_fit_is_refused() -> None:
    dist, inputs = program("data_parallel", {"dp": 4})
    function = td.to_jax(dist)
    with pytest.raises(EngineError, match="DIST0602 to_jax: 1 arguments"):
        function(inputs[0])
    with pytest.raises(EngineError, match=r'DIST0602 to_jax: "input_ids" is float32'):
        function(inputs[0].astype("float32"), *inputs[1:])
    with pytest.raises(EngineError, match="DIST0605 to_jax: the module needs 4 devices"):
        td.to_jax(dist, jax.devices()[:2])
    uneven = td.zoo.gpt(size="tiny")
    with pytest.raises(ModelError, match="DIST0380"):
        td.to_jax(td.distribute(uneven, td.planning.make_plan(uneven, "megatron", {"tp": 2})))
    with jax.enable_x64(False), pytest.raises(EngineError, match=r"DIST0605 .*64 bits") as info:
        td.to_jax(program("data_parallel", {"dp": 4}, train=True)[0])
    assert "jax_enable_x64" in info.value.remedy


def test_a_pipeline_is_refused() -> None:
    net = td.zoo.gpt(size="tiny", layers=2, batch=4, vocab=512)
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(net, optimizer="sgd", schedule=schedule)
    plan = td.planning.make_plan(step, "pipeline:micro_batches=2", {"pp": 2})
    with pytest.raises(EngineError, match="DIST0605 to_jax: the module has several meshes"):
        td.to_jax(td.distribute(step, plan))


def test_a_missing_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    dist, _ = program("data_parallel", {"dp": 2})
    monkeypatch.setattr(jax_function.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="DIST0111 to_jax: it requires jax"):
        td.to_jax(dist)
