# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``lax.cond`` and ``lax.switch`` become ``If``, distributed and differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed")

import jax.numpy as jnp  # noqa: E402

import tvm_distir as td  # noqa: E402


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


X, W = drawn(8, 16), drawn(16, 4)


def chosen(c: Any, x: Any, w: Any) -> Any:
    """Return two results; both branches read a value from outside, and one expands a number."""
    y = jnp.sin(x)
    ones = jnp.ones(4)
    other = lambda x: (jnp.tanh(y) @ w + ones, x.sum())  # noqa: E731
    return *jax.lax.cond(c, lambda x: (x @ w + ones, y.sum()), other, x), ones + w


def switched(i: Any, x: Any, w: Any) -> Any:
    """Nest a ``cond`` whose condition is computed from all samples."""
    last = lambda x: jax.lax.cond(x.sum() > 0, lambda x: x @ w + 1, lambda x: x @ w - 1, x)  # noqa: E731
    return jax.lax.switch(i, [lambda x: x @ w, lambda x: jnp.exp(-x * x) @ w, last], x)


def differentiated(c: Any, x: Any, w: Any) -> Any:
    return jax.value_and_grad(lambda w: chosen(c, x, w)[0].sum())(w)


def looped(c: Any, x: Any, w: Any) -> Any:
    def layer(h: Any, scale: Any) -> Any:
        return jax.lax.cond(h.sum() > scale, lambda h: jnp.tanh(h), lambda h: h * scale, h), None

    return jax.lax.scan(layer, jnp.where(c, x, -x), jnp.arange(3.0))[0] @ w


@pytest.mark.parametrize(
    ("function", "first", "count"),
    [
        (chosen, [True, False], 1),
        (switched, [np.int32(i) for i in (-1, 0, 1, 2, 5)], 3),
        (differentiated, [True, False], 2),
        (looped, [True, False], 1),
    ],
)
def test_results_on_two_devices_are_those_of_jax(function: Any, first: Any, count: int) -> None:
    mod = td.from_stablehlo(jax.jit(function).lower(first[0], X, W))
    assert mod.script(show_meta=False).count("if ") == count
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    local = td.distribute(mod, plan)
    for value in first:
        results = td.run(local, dict(zip(names, [np.asarray(value), X, W], strict=True)))
        for a, b in zip(results, jax.tree.leaves(function(value, X, W)), strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5, atol=1e-5)


def test_a_training_step_has_the_gradients_of_the_branch_that_is_taken() -> None:
    """The other branch computes roots of negative numbers."""

    def model(p: Any, c: Any, x: Any) -> Any:
        y = jnp.sin(x)
        other = lambda x: jnp.tanh(y) @ p["v"]  # noqa: E731
        return jax.lax.cond(c, lambda x: jnp.sqrt(x) @ p["w"], other, x)

    weights = {"v": W, "w": 2 * W}
    targets = drawn(8, 4)
    mod = td.from_stablehlo(jax.jit(model).lower(weights, True, X))
    step = td.train_step(mod, "mse", "sgd", rate=0.1)
    plan = td.planning.make_plan(step, "data_parallel", {"dp": 2})
    local = td.distribute(step, plan)
    for c, x in ((True, np.abs(X)), (False, X)):
        loss, gradients = jax.value_and_grad(lambda p: ((model(p, c, x) - targets) ** 2).mean())(
            weights
        )
        given = {"c": np.asarray(c), "x": x, "targets": targets}
        given |= {f"p.{name}": w for name, w in weights.items()}
        names = [str(name) for name in step["main"].attrs["dist.param_names"]]
        results = td.run(local, {name: given[name] for name in names})
        np.testing.assert_allclose(results[0], np.asarray(loss), rtol=1e-5)
        for name, new in zip(names[3:], results[1:], strict=True):
            expected = given[name] - 0.1 * np.asarray(gradients[name.removeprefix("p.")])
            np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
