# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parameters that are tuples: each of their tensors is given, by position or by name."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.execution.runtime.program.io_layout import _leaf_order
from tvm_distir.support.errors.tree import EngineError

R = relax.op


def paired():
    """``main(x, (a, (b, c)), y)``, computing ``x + a``, ``b - c`` and ``2 y``."""
    tensor = relax.TensorType([4, 6], "float32")
    pack = relax.Var("pack", relax.TupleType([tensor, relax.TupleType([tensor, tensor])]))
    x, y = relax.Var("x", tensor), relax.Var("y", tensor)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, pack, y]):
        with builder.dataflow():
            a = builder.emit(relax.TupleGetItem(pack, 0))
            inner = builder.emit(relax.TupleGetItem(pack, 1))
            b = builder.emit(relax.TupleGetItem(inner, 0))
            c = builder.emit(relax.TupleGetItem(inner, 1))
            results = [R.add(x, a), R.subtract(b, c), R.add(y, y)]
            out = builder.emit_output(relax.Tuple([builder.emit(r) for r in results]))
        builder.emit_func_output(out)
    return builder.get()


def lowered():
    rules = [{"param": "x", "placement": "S[0]"}, {"param": "y", "placement": "S[1]"}]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"tp": 2}, "rules": rules})
    return td.distribute(paired(), plan)


@pytest.fixture(scope="module")
def case():
    values = [np.random.default_rng(i).integers(-9, 9, (4, 6)).astype("float32") for i in range(5)]
    x, a, b, c, y = values
    return lowered(), values, [x + a, b - c, y + y]


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("form", ["nested", "flat", "named"])
def test_every_tensor_of_a_tuple_is_taken(case, engine, form):
    local, (x, a, b, c, y), expected = case
    inputs = {
        "nested": [x, (a, (b, c)), y],
        "flat": [x, a, b, c, y],
        "named": {"y": y, "pack_1_1": c, "pack_1_0": b, "pack_0": a, "x": x},
    }[form]
    got = td.run(local, inputs, engine=engine)
    assert [np.array_equal(u, v) for u, v in zip(got, expected, strict=True)] == [True] * 3


def test_too_few_are_refused(case):
    local, (x, a, b, _, y), _ = case
    with pytest.raises(EngineError, match=r"DIST0602 inputs: 4 inputs are given, 5 are required"):
        td.run(local, [x, (a, (b,)), y], engine="virtual")


def test_numbers_order_the_tensors_not_letters():
    names = [f"p_1_{i}" for i in range(12)]
    assert sorted(names, key=_leaf_order(names[::-1]).__getitem__) == names
    mixed = ["x_10", "x_9_1", "x_9_0"]
    assert _leaf_order(mixed) == {"x_9_0": 0, "x_9_1": 1, "x_10": 2}
