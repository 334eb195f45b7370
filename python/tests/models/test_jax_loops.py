# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Loops of JAX that data ends, with a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed")

import jax.numpy as jnp  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.support import ModelError  # noqa: E402


def root(x: Any) -> Any:
    """Newton's iteration for square roots, until the worst error is small."""

    def goes_on(state: Any) -> Any:
        count, y = state
        return (count < 6) & (jnp.abs(y * y - x).max() > 1e-3)

    return jax.lax.while_loop(goes_on, lambda s: (s[0] + 1, 0.5 * (s[1] + x / s[1])), (0, x))


def decode(tokens: Any, weight: Any) -> Any:
    """Write tokens until all sequences have ended, or the buffer is full."""
    batch = tokens.shape[0]
    buffer = jnp.zeros((batch, 5), "int32")

    def goes_on(state: Any) -> Any:
        position, _, done, _ = state
        return jnp.logical_and(~done.all(), position < 5)

    def step(state: Any) -> Any:
        position, token, done, buffer = state
        token = jnp.where(done, 0, jnp.argmax(weight[token], -1).astype("int32"))
        buffer = jax.lax.dynamic_update_slice(buffer, token[:, None], (0, position))
        return position + 1, token, done | (token == 0), buffer

    start = 0, tokens, jnp.zeros(batch, bool), buffer
    return jax.lax.while_loop(goes_on, step, start)


@pytest.mark.parametrize("scale", [1.0, 40.0, 1e6])
def test_iterations_end_with_those_of_jax(scale: float) -> None:
    x = np.linspace(0.5, 2.0, 8).astype("float32") * np.float32(scale)
    mod = td.from_stablehlo(jax.jit(root).lower(x))
    results = Reference(mod).run([x])
    for a, b in zip(results, root(x), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-6)


def test_tokens_are_those_of_jax() -> None:
    weight = np.zeros((6, 6), "float32")
    weight[[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 5, 4]] = 1  # 3, 2, 1, 0 ends; 4, 5, 4, ... does not
    mod = td.from_stablehlo(jax.jit(decode).lower(np.array([1, 2], "int32"), weight))
    counts = []
    for tokens in ([1, 1], [2, 3], [4, 1]):
        start = np.array(tokens, "int32")
        results = Reference(mod).run([start, weight])
        for a, b in zip(results, decode(start, jnp.asarray(weight)), strict=True):
            assert np.array_equal(a, np.asarray(b))
        counts.append(int(results[0]))
    assert counts == [1, 3, 5]
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    assert td.verify(mod, plan).equal


def test_loops_without_a_counter_need_a_bound() -> None:
    def halve(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.max() > 1, lambda y: y / 2, x)

    lowered = jax.jit(halve).lower(np.ones(4, "float32"))
    with pytest.raises(ModelError, match=r"DIST0372.*depends on data and has no bound"):
        td.from_stablehlo(lowered)
    mod = td.from_stablehlo(lowered, loops=4)
    for x, iterations in (([0.5, 1.0], 0), ([3.0, 9.0], 4), ([1.0, 100.0], 4)):
        array = np.array([*x, *x], "float32")
        np.testing.assert_array_equal(Reference(mod).run([array])[0], array / 2**iterations)
