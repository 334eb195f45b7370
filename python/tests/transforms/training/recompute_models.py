# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Models that the tests of recomputation share."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.script import relax as R


def layers(count: int) -> Any:
    """``count`` layers of tanh(x w) squared, whose product is worth keeping."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64, 32], "float32"))
    w = relax.Var("w", relax.TensorType([32, 32], "float32"))
    with builder.function("layer", [x, w], private=True):
        with builder.dataflow():
            product = builder.emit(R.matmul(x, w), "product")
            bent = builder.emit(R.tanh(product), "bent")
            out = builder.emit_output(R.multiply(bent, R.exp(bent)))
        builder.emit_func_output(out)
    layer = builder.get().get_global_var("layer")
    x = relax.Var("x", relax.TensorType([64, 32], "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType([32, 32], "float32")) for i in range(count)]
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            value = x
            for weight in weights:
                value = builder.emit(relax.Call(layer, [value, weight]))
            out = builder.emit_output(R.multiply(value, R.const(0.5, "float32")))
        builder.emit_func_output(out)
    mod = builder.get()
    main = mod["main"].with_attr("num_input", 1)
    mod.update_func(mod.get_global_var("main"), main)
    return mod
