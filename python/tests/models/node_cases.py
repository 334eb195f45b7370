# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX's own backend cases, a node each, the whole way: imported, on one device, on two.

TVM is imported when the first case is checked: whoever collects the cases may fork before.
"""

from __future__ import annotations

import importlib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import node as onnx_cases

STRATEGIES = {"data_parallel": "dp", "tensor_parallel": "tp"}
"""What is tried on two devices, and its mesh axis."""

RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators whose results nobody can foresee: types and shapes are compared."""

HALF_RTOLS = {"float16": 1e-2, "bfloat16": 5e-2}
"""Two roundings or so of what is computed in such a type."""

BAD = ("WRONG", "RAW", "HANG", "CRASH")
"""Outcomes that are bugs. Refusals by name may be."""


@dataclass(frozen=True)
class NodeCase:
    """A model of one node (or of the nodes that its definition expands to) and its results."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """Operators of the model."""
        return {node.op_type for node in self.model.graph.node}


@dataclass(frozen=True)
class Outcome:
    """What became of a stage of a case.

    Attributes
    ----------
    stage : str
        ``single``, or what cut the model over two devices.
    kind : str
        ``equal``, ``refused`` or one of :data:`BAD`.
    code : str
        Of a refusal; the class of a raw error; of an equal one ``cut`` or ``whole``, whether any
        device held less than all.
    message : str
        One line.
    """

    stage: str
    kind: str
    code: str = ""
    message: str = ""

    def as_dict(self) -> dict[str, str]:
        """JSON form."""
        return asdict(self)


def collected(modules: Sequence[str] | None = None) -> list[NodeCase]:
    """Cases of the named files of ``onnx.backend.test.case.node``; of all, half a minute, by None.

    A model with several inputs gives a second case, ``NAME:constants``, in which all inputs but
    the first are initializers: sizes, axes and bounds are so in the models that people have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if modules is None:
            result = list(onnx_cases.collect_testcases(None))
        else:
            for name in modules:  # the cases of a file register themselves as it is imported
                importlib.import_module(f"{onnx_cases.__name__}.{name}")
            result = list(vars(onnx_cases)["_NodeTestCases"])
    cases: list[NodeCase] = []
    for each in {each.name: each for each in result}.values():
        inputs, outputs = each.data_sets[0]
        arrays = [tuple(map(as_array, values)) for values in (inputs, outputs)]
        case = NodeCase(each.name, each.model, *arrays, float(each.rtol), float(each.atol))
        cases.append(case)
        if len(case.inputs) > 1 and all(isinstance(a, np.ndarray) for a in case.inputs):
            cases.append(with_constants(case))
    return cases


def as_array(value: Any) -> Any:
    """A value of a case: scalars, and TensorProtos for types that NumPy lacks, become arrays."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def with_constants(case: NodeCase) -> NodeCase:
    """The case with all inputs but the first as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    for info, array in zip(graph.input[1:], case.inputs[1:], strict=True):
        if info.type.tensor_type.elem_type == TensorProto.STRING:
            tensor = onnx.helper.make_tensor(
                info.name, TensorProto.STRING, array.shape, [str(s).encode() for s in array.flat]
            )
        else:
            tensor = numpy_helper.from_array(array, info.name)
            tensor.data_type = info.type.tensor_type.elem_type
        graph.initializer.append(tensor)
    del graph.input[1:]
    return replace(case, name=f"{case.name}:constants", model=model, inputs=case.inputs[:1])


def check(case: NodeCase, cuts: bool = True) -> Iterator[Outcome]:
    """What became of a case: on one device, then cut over two.

    It is cut by every strategy and along every dim of the first input; not with ``cuts`` False,
    and not when it is not right on one device.
    """
    import tvm_distir as td
    from tests.quick_compilation import QUICK_TARGET
    from tvm_distir.execution.runtime.engines.reference import Reference

    with QUICK_TARGET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mod = td.from_onnx(case.model)
            arrays = given(case, mod)
            alone = compared("single", case, Reference(mod).run(arrays))
        except Exception as error:
            alone = failed("single", error)
        yield alone
        if alone.kind != "equal" or not cuts:
            return
        for stage, make in plans(mod):
            try:
                program = td.distribute(mod, make())
                results = td.run(program, arrays, engine="virtual")
                yield replace(compared(stage, case, results), code=share(program))
            except Exception as error:
                yield failed(stage, error)


def given(case: NodeCase, mod: Any) -> list[Any]:
    """The arrays of main's parameters."""
    from tvm_distir.models.frontends import load_weights

    weights = load_weights(case.model)
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    inputs = dict(zip([value.name for value in case.model.graph.input], case.inputs, strict=True))
    return [np.asarray((inputs if name in inputs else weights)[name]) for name in names]


def plans(mod: Any) -> Iterator[tuple[str, Any]]:
    """Names of plans for two devices, and what makes each."""
    import tvm_distir as td
    from tvm_distir.planning import strategies as strategy

    for name, axis in STRATEGIES.items():
        yield name, lambda name=name, axis=axis: strategy.make_plan(mod, name, {axis: 2})
    first = mod["main"].params[0]
    for dim, size in enumerate(first.ty.shape):
        rules = [{"param": str(first.name), "placement": f"S[{dim}]"}]
        plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": rules}
        if int(size) > 1:
            yield f"S[{dim}]", lambda plan=plan: td.Plan.from_dict(plan)


def share(program: Any) -> str:
    """``cut`` when an input or output of the program is sharded, else ``whole``."""
    from tvm_distir.execution.runtime.program.dist_io import entries

    ports = [port for each in entries(program) for port in (*each.inputs, *each.outputs)]
    return "cut" if any(label >= 0 for port in ports for label in port.labels) else "whole"


def compared(stage: str, case: NodeCase, results: Sequence[Any]) -> Outcome:
    """Whether the results are the case's: types, shapes and values."""
    if len(results) != len(case.outputs):
        return Outcome(stage, "WRONG", "", f"{len(results)} results, not {len(case.outputs)}")
    for number, (got, want) in enumerate(zip(results, case.outputs, strict=True)):
        have, need = f"{got.dtype}{list(got.shape)}", f"{want.dtype}{list(want.shape)}"
        if have != need:
            return Outcome(stage, "WRONG", "", f"result {number} is {have}, not {need}")
        if case.operators & set(RANDOM):
            continue
        a, b = (np.asarray(x, "float64") for x in (got, want))
        rtol, largest = case.rtol, np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
        if want.dtype.itemsize <= 2 and want.dtype.kind not in "biu":
            rtol = max(rtol, HALF_RTOLS.get(str(want.dtype), 0.25))
        if not np.allclose(a, b, rtol=rtol, atol=case.atol + 1e-6 * largest, equal_nan=True):
            worst = np.nanmax(np.abs(a.astype("float64") - b.astype("float64")))
            return Outcome(stage, "WRONG", "", f"result {number} is off by {worst:.3g}")
    return Outcome(stage, "equal")


def failed(stage: str, error: Exception) -> Outcome:
    """A refusal by name, or a bug."""
    from tvm_distir.support.errors.tree import DistIRError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else ""
    if isinstance(error, DistIRError) and not error.code.startswith("DIST09"):
        return Outcome(stage, "refused", error.code, message)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return Outcome(stage, "RAW", type(error).__name__, f"{where}: {lines[-1] if lines else ''}")
