# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random ONNX models of NNSmith, inputs for them, and what ONNX Runtime computes.

A model follows from its seed: neither the time that a step takes nor hash order decides.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

os.environ.setdefault("HYDRA_FULL_ERROR", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NNSmith asks for a package that draws graphs
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize.onnx import ONNXModelCPU

Array = npt.NDArray[Any]

ATTEMPTS = 30
"""Models that a seed may draw until ONNX Runtime can run one."""

MOST_ELEMENTS = 2048
GENERATION_MS = 60_000
"""Far more than a model needs: the limit must not decide what it is."""

TYPES = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool")

ERRORS = {TensorProto.FLOAT: 2e-6, TensorProto.DOUBLE: 1e-13, TensorProto.FLOAT16: 2e-3}
"""Relative error that an operator may have, by type."""

EXACT = frozenset(
    "Abs ArgMax ArgMin Cast Ceil Clip Concat Constant ConstantOfShape Expand Flatten Floor Gather "
    "Identity If LeakyRelu Max MaxPool Min Neg Pad PRelu ReduceMax ReduceMin Relu Reshape Round "
    "Shape Sign Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where".split()
)
"""Operators that round nothing, or one product."""

LINEAR = frozenset("Add Sub MatMul Gemm Conv ReduceSum ReduceMean BatchNormalization".split())
"""Operators whose error is proportional to their operands, which may cancel."""

ORDERING = frozenset("ArgMax ArgMin Clip Max MaxPool Min ReduceMax ReduceMin Relu".split())
"""Operators that order elements: what they make of NaN is not defined."""

DRAWS = 4


@dataclass(frozen=True)
class Example:
    """A model, its inputs by name, and its reference.

    Attributes
    ----------
    spreads : tuple of arrays
        How far each element of an output moves when every operator that rounds does so otherwise,
        within its error; infinite where it turns into NaN or Inf.
    undefined : str
        An operation whose result ONNX leaves open, if the reference has one.
    """

    model: onnx.ModelProto
    inputs: dict[str, Array]
    outputs: tuple[Array, ...]
    spreads: tuple[Array, ...]
    undefined: str


def prepare() -> None:
    """Settings of the libraries, before processes are forked."""
    torch.set_num_threads(1)
    onnxruntime.set_default_logger_severity(4)
    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)  # the one NNSmith knows
    ONNXModelCPU.add_seed_setter()


def example(seed: int) -> Example:
    """The example of a seed.

    Raises
    ------
    RuntimeError
        No model of the seed can be run.
    """
    for attempt in range(ATTEMPTS):
        number = seed * ATTEMPTS + attempt
        try:
            model = _model(number)
            inputs = _inputs(model, number)
            return _with_reference(model, inputs, number)
        except Exception as error:  # of NNSmith, the exporter or ONNX Runtime: not our subject
            last = error
    raise RuntimeError(f"no model after {ATTEMPTS} attempts: {last}")


def _model(number: int) -> onnx.ModelProto:
    operators = {operator.name(): operator for operator in ONNXModelCPU.operators()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator = model_gen(
            opset=[operators[name] for name in sorted(operators)],
            method="symbolic-cinit",
            seed=number,
            max_nodes=4 + number % 9,
            timeout_ms=GENERATION_MS,
            max_elem_per_tensor=MOST_ELEMENTS,
            dtype_choices=TYPES,
        )
        return ONNXModelCPU.from_gir(generator.make_concrete()).get_onnx_from_torch()


def _inputs(model: onnx.ModelProto, number: int) -> dict[str, Array]:
    """Inputs in [-2, 2], of odd numbers in [1, 3]: these keep divisions and roots finite."""
    rng = np.random.default_rng(number)
    low, high = (1, 3) if number % 2 else (-2, 2)
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [d.dim_value for d in tensor.shape.dim]
        if kind.kind == "b":
            drawn = rng.random(shape) < 0.5
        elif kind.kind == "f":
            drawn = rng.uniform(low, high, shape)
        else:
            drawn = rng.integers(max(low, 0) if kind.kind == "u" else low, high + 1, shape)
        inputs[value.name] = np.asarray(drawn).astype(kind)
    return inputs


def _with_reference(model: onnx.ModelProto, inputs: Mapping[str, Array], number: int) -> Example:
    names = [output.name for output in model.graph.output]
    session = _session(model)
    outputs = _run(session, inputs, names)
    probe, values = _probe(model)
    session = _session(probe)
    still = {f"{name}__noise": np.zeros((), kind) for name, (kind, _) in values.items()}
    every = [output.name for output in probe.graph.output]
    seen = dict(zip(every, _run(session, {**inputs, **still}, every), strict=True)) | dict(inputs)
    rng = np.random.default_rng(number)
    spreads = [np.zeros(output.shape) for output in outputs]
    for _ in range(DRAWS):
        noise = {
            f"{name}__noise": np.asarray(
                rng.uniform(-1, 1) * ERRORS[helper.np_dtype_to_tensor_dtype(np.dtype(kind))]
                * max(_largest(seen[each]) for each in scales if each in seen)
            ).astype(kind)
            for name, (kind, scales) in values.items()
        }  # fmt: skip
        for i, moved in enumerate(_run(session, {**inputs, **noise}, names)):
            spreads[i] = np.maximum(spreads[i], _distance(moved, outputs[i]))
    return Example(
        model, dict(inputs), tuple(outputs), tuple(spreads), next(_undefined(model, seen), "")
    )


def _session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _run(session: Any, inputs: Mapping[str, Array], names: list[str]) -> list[Array]:
    expected = {value.name for value in session.get_inputs()}
    passed = {name: value for name, value in inputs.items() if name in expected}
    return [np.asarray(value) for value in session.run(names, passed)]


def _probe(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, dict[str, tuple[Any, tuple[str, ...]]]]:
    """Return a model whose operators add an input to what they round, and that returns all.

    Returns
    -------
    model : ModelProto
        It has an input ``NAME__noise``, a scalar, for each result that is rounded.
    rounded : mapping
        By name, the NumPy type and the names of the values that the error is proportional to.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input)
    }
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    graph = probe.graph
    nodes: list[onnx.NodeProto] = []
    rounded: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for node in graph.node:
        nodes.append(node)
        name = node.output[0]
        kind = kinds.get(name)
        if node.op_type in EXACT or kind not in ERRORS or len(node.output) > 1:
            continue
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.output[0] = f"{name}__exact"
        nodes[-1] = changed
        nodes.append(helper.make_node("Add", [f"{name}__exact", f"{name}__noise"], [name]))
        graph.input.append(helper.make_tensor_value_info(f"{name}__noise", kind, []))
        scales = (name, *node.input) if node.op_type in LINEAR else (name,)
        rounded[name] = (helper.tensor_dtype_to_np_dtype(kind), scales)
    del graph.node[:]
    graph.node.extend(nodes)
    known = {output.name for output in graph.output}
    for name, kind in kinds.items():
        produced = any(name in node.output for node in nodes)
        if produced and name not in known:
            graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return probe, rounded


def _largest(value: Array) -> float:
    finite = np.asarray(value, "float64")
    return float(np.abs(finite[np.isfinite(finite)]).max(initial=0.0))


def _distance(a: Array, b: Array) -> Array:
    """Distance of each element; infinite where one of both is no number."""
    wide, ref = a.astype("float64"), b.astype("float64")
    same = (wide == ref) | (np.isnan(wide) & np.isnan(ref))
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide - ref)
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))


def _undefined(model: onnx.ModelProto, seen: Mapping[str, Array]) -> Iterator[str]:
    """Operations of a reference whose results ONNX leaves open.

    A float that is cast to an integer type which cannot hold it, and NaN where it is ordered: ONNX
    Runtime gives NaN or the largest other element, as the order of its comparisons has it.
    """
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        values = [seen.get(name, constants.get(name)) for name in node.input]
        floats = [value for value in values if value is not None and value.dtype.kind == "f"]
        if node.op_type in ORDERING and any(np.isnan(value).any() for value in floats):
            yield f"NaN in {node.op_type}"
        if node.op_type == "Cast" and floats:
            kind = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            if kind.kind in "iu" and not _fits(floats[0], np.iinfo(kind)):
                yield f"cast to {kind.name}"


def _fits(value: Array, bounds: np.iinfo[Any]) -> bool:
    whole = np.trunc(value.astype("float64"))
    return bool(((whole >= bounds.min) & (whole <= bounds.max)).all())
