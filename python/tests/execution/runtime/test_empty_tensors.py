# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements, such as caches before the first token, through every kind of op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_distir.execution.runtime.program.compilation import compile_module

op = relax.op
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "reshape": (lambda x: op.reshape(x, relax.ShapeExpr([2, 0, 3, 1])), lambda x: x[..., None]),
    "expand_dims": (lambda x: op.expand_dims(x, [1]), lambda x: x[:, None]),
    "squeeze": (lambda x: op.squeeze(op.expand_dims(x, [0]), [0]), lambda x: x),
    "permute_dims": (lambda x: op.permute_dims(x, [1, 2, 0]), lambda x: x.transpose(1, 2, 0)),
    "tile": (lambda x: op.tile(x, [1, 2, 2]), lambda x: np.tile(x, [1, 2, 2])),
    "elementwise": (lambda x: op.exp(op.add(x, x)), lambda x: x + x),
    "astype": (lambda x: op.astype(x, "int32"), lambda x: x.astype("int32")),
    "sum": (lambda x: op.sum(x, [1]), lambda x: x.sum(1)),
    "matmul": (
        lambda x: op.matmul(op.permute_dims(x, [0, 2, 1]), x),
        lambda x: np.zeros([2, 3, 3]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_on_an_empty_tensor_gives_what_numpy_gives(name: str) -> None:
    make, expected = CASES[name]
    x = np.zeros([2, 0, 3], "float32")
    param = relax.Var("x", relax.TensorType(x.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [param]):
        with builder.dataflow():
            value = builder.emit(make(param))
            out = builder.emit_output(op.add(value, value))
        builder.emit_func_output(out)
    library: Any = compile_module(builder.get())
    vm = relax.VirtualMachine(getattr(library, "mod", library), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result, expected(x))
