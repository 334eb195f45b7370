# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Where models are cut into stages."""

from __future__ import annotations

import pytest
from tvm import relax, topi

from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.pipeline.cutting import Flat, split_stages


@pytest.mark.parametrize("kernels", [(), (0, 1, 2), (3, 4, 5), range(6)], ids=str)
def test_products_by_kernels_count_as_products_by_ops(kernels) -> None:
    """Six products in three stages: two each, whichever are calls of PrimFuncs."""
    square = relax.TensorType([32, 32], "float32")
    params = [relax.Var(name, square) for name in ("x", *(f"w{i}" for i in range(6)))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            value = params[0]
            for i, weight in enumerate(params[1:]):
                if i in kernels:
                    value = builder.emit_te(topi.matmul, value, weight)
                else:
                    value = builder.emit(relax.op.matmul(value, weight))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    mod = builder.get()
    main = mod["main"]
    bindings = tuple(main.body.blocks[0].bindings)[:6]
    flat = Flat(tuple(main.params), frozenset(main.params[1:]), bindings, bindings[-1].var)
    assert split_stages(flat, NamedFunctions(mod), 3, []) == [1, 3, 5]
