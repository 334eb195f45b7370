# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The place of an extreme is inside its axis, where all elements are the lowest of the type too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference

INF = float("inf")
LOWEST = {"uint8": (0, 255), "int32": (-(2**31), 2**31 - 1), "float32": (-INF, INF)}
"""The element that no other is below, and the one that no other is above."""


def rows(dtype: str, extreme: float) -> Any:
    """A row of extremes alone, and others that have them at some places."""
    x = np.full((4, 6), extreme, dtype)
    x[1, 2], x[2, 4:], x[3, :3] = 1, 2, 3
    return x


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", LOWEST)
def test_onnx(dtype: str, op: str, last: int) -> None:
    x = rows(dtype, LOWEST[dtype][op == "ArgMin"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], axis=1, select_last_index=last)],
        "places",
        [value("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [value("y", 7, [4, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    mod = td.from_onnx(model)
    np.testing.assert_array_equal(Reference(mod).run([x])[0], want)
    for dim in (0, 1):
        rules = [{"param": "x", "placement": f"S[{dim}]"}]
        plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": rules}
        (got,) = td.run(td.distribute(mod, plan), [x], engine="virtual")
        np.testing.assert_array_equal(got, want)


def test_torch() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")

    class Places(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x.argmax(1), x.max(1, keepdim=True)[1], x[:1].argmax()

    x = torch.from_numpy(rows("float32", -INF))
    mod = td.from_exported_program(torch.export.export(Places(), (x,)))
    for got, want in zip(Reference(mod).run([x.numpy()]), Places()(x), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


STABLEHLO = """
module @places {
  func.func public @main(%x: tensor<4x6xf32>) -> tensor<4xi32> {
    %places = stablehlo.iota dim = 1 : tensor<4x6xi32>
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.reduce(%x init: %lowest), (%places init: %zero) across dimensions = [1] :
      (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
      reducer(%a: tensor<f32>, %b: tensor<f32>) (%i: tensor<i32>, %j: tensor<i32>) {
      %above = stablehlo.compare GT, %a, %b, FLOAT :
        (tensor<f32>, tensor<f32>) -> tensor<i1>
      %value = stablehlo.select %above, %a, %b : tensor<i1>, tensor<f32>
      %place = stablehlo.select %above, %i, %j : tensor<i1>, tensor<i32>
      stablehlo.return %value, %place : tensor<f32>, tensor<i32>
    }
    return %0#1 : tensor<4xi32>
  }
}
"""


def test_stablehlo() -> None:
    x = rows("float32", -INF)
    (got,) = Reference(td.from_stablehlo(STABLEHLO)).run([x])
    np.testing.assert_array_equal(got, np.argmax(x, 1))
