# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shapes that a module computes at run time are those of whole tensors, not of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.passes.lower.divisible_dims import dim_text

PLAN = {"schema_version": 1, "mesh": {"x": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}


def module(body: Callable[[Any, Any], Any]) -> tvm.IRModule:
    """Return ``main`` of a tensor of 8 x 4."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(body(builder, x))
    return builder.get()


def scaled_by_rows(builder: Any, x: Any) -> Any:
    """Return the tensor times its number of rows."""
    sizes = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(x))))
    rows = builder.emit(relax.op.take(sizes, relax.const(0, "int64"), axis=0))
    return builder.emit(relax.op.multiply(x, builder.emit(relax.op.astype(rows, "float32"))))


def reshaped(builder: Any, x: Any) -> Any:
    """Return the tensor in a shape that is a constant tensor."""
    sizes = relax.const(np.array([4, 8]), "int64")
    shape = builder.emit(relax.op.tensor_to_shape(sizes))
    return builder.emit(relax.op.reshape(x, shape))


def with_shape(builder: Any, x: Any) -> Any:
    """Return twice the tensor, and its shape."""
    shape = builder.emit(relax.op.shape_of(x))
    return relax.Tuple([builder.emit(relax.op.add(x, x)), shape])


@pytest.mark.parametrize("body", [scaled_by_rows, reshaped, with_shape])
def test_computed_shapes(body: Callable[[Any, Any], Any]) -> None:
    """Values and results that are shapes are equal to those of one device."""
    mod = module(body)
    before = mod.script()
    dist = td.distribute(mod, PLAN)
    assert mod.script() == before
    assert "x: R.Tensor((4, 4)" in dist.script()  # a device has half of the rows
    assert td.verify(mod, PLAN, dist=dist).equal


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_shapes_are_results(engine: str) -> None:
    """A result that is a shape is that of the whole tensor, on every device."""
    dist = td.distribute(module(with_shape), PLAN)
    _, shapes = td.run(dist, [np.ones((8, 4), "float32")], engine)
    assert [tuple(shape) for _, shape in sorted(shapes.objects.items())] == [(8, 4)] * 2


def test_the_text_of_a_size_has_all_terms_that_are_left() -> None:
    """The shard of n has half of it; what is subtracted again is left out."""
    n, m = tirx.Var("n_local", "int64"), tirx.Var("m", "int64")
    dims = {"n": (n, 2), "m": (m, 1)}
    again = tirx.Sub(tirx.Mul(n, m), tirx.Mul(m, n))
    assert dim_text(tirx.Add(again, tirx.IntImm("int64", 3)), dims, "x") == "3"
    assert dim_text(tirx.Sub(tirx.Add(n, n), m), dims, "x") == "n - m"
    assert dim_text(again, dims, "x") == "0"
