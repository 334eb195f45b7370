# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Graphs of ONNX Runtime's operators, imported and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def whole(*shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype("float32")


def graph_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    stated: dict[str, tuple[int, ...]] | None = None,
) -> onnx.ModelProto:
    """Make a model; the shapes of its outputs are left open."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "nodes",
        [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()],
    )
    for name, shape in (stated or {}).items():
        graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Import a model and run it, with its stored values."""
    mod = td.from_onnx(model)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    return Reference(mod).run([{**stored, **inputs}[name] for name in names])


def node_results(
    op: str,
    operands: list[np.ndarray | None],
    count: int = 1,
    fixed: tuple[int, ...] = (),
    **attributes: Any,
) -> list[np.ndarray]:
    """Run one node; the operands of the given numbers are constants."""
    names = ["" if v is None else f"x{i}" for i, v in enumerate(operands)]
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(op, names, outputs, domain=MICROSOFT, **attributes)
    values = {n: v for n, v in zip(names, operands, strict=True) if n and v is not None}
    constants = {n: values.pop(n) for n in [f"x{i}" for i in fixed]}
    return run(graph_of([node], values, outputs, constants), values)
