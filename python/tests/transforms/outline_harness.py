# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Flat functions to outline from, and what is asked of every result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from tests.quick_compilation import quick_machine
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions
from tvm_distir.transforms.outline.outliner import OutlineRepeatedLayers

SIZE = 4


def outlined(mod: ir.IRModule, **options: Any) -> ir.IRModule:
    """Run the pass; the input stays, the output is well formed and round-trips."""
    before = mod.script(show_meta=True)
    out = OutlineRepeatedLayers(**options)(mod)
    assert mod.script(show_meta=True) == before
    relax.analysis.well_formed(out)
    ir.assert_structural_equal(out, tvm.script.from_source(out.script(show_meta=True)))
    return out


def calls(mod: ir.IRModule, name: str = "main") -> dict[str, int]:
    """How often a function calls each other function."""
    matches: Counter[str] = Counter()
    for block in mod[name].body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                matches[str(value.op.name_hint)] += 1
    return dict(matches)


def names(mod: ir.IRModule, function: str) -> list[str]:
    return [str(param.name) for param in mod[function].params]


def flat(result: Any) -> list[np.ndarray]:
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [array for item in result for array in flat(item)]


def run_main(mod: ir.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    vm = quick_machine(mod)
    return flat(vm["main"](*[tvm.runtime.tensor(x) for x in inputs]))


def check_same_numbers(mod: ir.IRModule, out: ir.IRModule) -> None:
    """Run original, outlined and inlined again on integers: all bits equal."""
    draw = np.random.default_rng(5)
    shapes = [[int(dim) for dim in param.ty.shape] for param in mod["main"].params]
    inputs = [draw.integers(-2, 3, shape).astype("float32") for shape in shapes]
    want = run_main(mod, inputs)
    assert all(np.unique(array).size > 1 for array in want)
    for other in (out, InlinePrivateFunctions()(out)):
        have = run_main(other, inputs)
        for w, h in zip(want, have, strict=True):
            np.testing.assert_array_equal(w, h)


class Writer:
    """Writes ``main`` over (4, 4) tensors; weights become parameters as they are named."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.params: dict[str, Any] = {}
        self.lines: list[Any] = []

    def weight(self, name: str) -> Any:
        ty = relax.TensorType((SIZE, SIZE), "float32")
        return self.params.setdefault(name, relax.Var(name.replace(".", "_"), ty))

    def emit(self, value: Any) -> Any:
        return self.builder.emit(value)

    def layer(self, x: Any, prefix: str, mask: Any, scale: float = 2.0) -> Any:
        """Six bindings: two weights, a value that is shared, a constant."""
        y = self.emit(op.matmul(x, self.weight(f"{prefix}.up.weight")))
        y = self.emit(op.nn.relu(y))
        y = self.emit(op.multiply(y, mask))
        y = self.emit(op.minimum(y, relax.const(scale, "float32")))
        y = self.emit(op.subtract(y, self.weight(f"{prefix}.down.bias")))
        return self.emit(op.add(x, y))

    def module(self, write: Any) -> ir.IRModule:
        with self.builder.function("main"):
            with self.builder.dataflow():
                result = write(self)
                results = result if isinstance(result, list) else [result]
                outputs = [self.builder.emit_output(each) for each in results]
            whole = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
            self.builder.emit_func_output(whole, list(self.params.values()))
        fn = self.builder.get()["main"]
        fn = fn.with_attrs({"dist.param_names": list(self.params), "num_input": 1})
        return ir.IRModule({"main": fn})
