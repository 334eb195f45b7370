# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classify the inputs and outputs of a program, and read its tensors as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from tvm import relax

from tvm_distir.support import ModelError

from .aten_call import constant, dtype_name
from .pinned_batch import PinnedBatch
from .symbols import OpenDims

_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_RESULTS = (
    OutputKind.USER_OUTPUT,
    OutputKind.LOSS_OUTPUT,
    OutputKind.GRADIENT_TO_PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT,
)
_CONSTANT_BYTES = 1 << 16
"""Tables up to this size, that no checkpoint holds, stand in the module."""


@dataclass
class Inputs:
    """Parameters of ``main`` and the kinds of the program's placeholders.

    Attributes
    ----------
    data, weights : list of (str, Var)
        The names in the model, and the variables.
    env : dict of Node to Any
        The value of each placeholder: a variable, a constant, or the number that was exported.
    batch : PinnedBatch, optional
        The change of a batch that the program fixes.
    """

    data: list[tuple[str, relax.Var]] = field(default_factory=list)
    weights: list[tuple[str, relax.Var]] = field(default_factory=list)
    env: dict[fx.Node, Any] = field(default_factory=dict)
    batch: PinnedBatch | None = None


def _placeholders(program: ExportedProgram) -> Iterator[tuple[fx.Node, InputSpec]]:
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    yield from zip(nodes, program.graph_signature.input_specs, strict=True)


def read_inputs(
    program: ExportedProgram, batch: int | None, dims: Mapping[str, int], location: str
) -> Inputs:
    """Classify the placeholders of a program.

    Parameters are weights, and so are buffers that are floats or that a checkpoint holds. What
    else has values and is small (tables of positions, constants of the code) stays a constant.
    Tied parameters are a single weight, with the name of the first, unless the program returns the
    gradient of each.

    Raises
    ------
    ModelError
        DIST0362 an input that is no tensor; DIST0313, DIST0314 sizes of dims.
    """
    shapes = {
        spec.arg.name: node.meta["val"]
        for node, spec in _placeholders(program)
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    }
    opened = OpenDims(program, shapes, batch, dims, location)
    tables, owners = _tables(program), _owners(program)
    inputs = Inputs()
    shared: dict[str, relax.Var] = {}
    if opened.pinned is not None and batch is not None:
        inputs.batch = PinnedBatch(opened.pinned, batch, location)
    for node, spec in _placeholders(program):
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            inputs.env[node] = spec.arg.value
            continue
        is_data = spec.kind is InputKind.USER_INPUT
        if not isinstance(spec.arg, TensorArgument) or not (is_data or spec.kind in _STORED):
            problem = f'the input "{node.name}" is not a tensor ({spec.kind.name.lower()})'
            remedy = (
                "Export a module of tensors, with numbers as constants and without custom objects."
            )
            raise ModelError("DIST0362", problem, location=location, remedy=remedy)
        if spec.target in tables:
            value = as_array(tables[spec.target])
            inputs.env[node] = constant(value, dtype_name(node.meta["val"].dtype))
            continue
        if _is_unread(node, spec):
            continue
        fake, name = node.meta["val"], spec.arg.name if is_data else str(spec.target)
        owner = name if is_data else owners.get(name, name)
        if owner in shared:
            inputs.env[node] = shared[owner]
            continue
        shape = opened.shape(fake.shape, name)
        if is_data and shape and inputs.batch is not None:
            shape = (inputs.batch.new, *shape[1:])
        var = relax.Var(name, relax.TensorType(shape, dtype_name(fake.dtype)))
        inputs.env[node] = var
        if not is_data:
            shared[owner] = var
        (inputs.data if is_data else inputs.weights).append((name, var))
    return inputs


def weight_values(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the tensors of the weights that the program stores, by name."""
    tables, values = _tables(program), stored_values(program)
    owners = _owners(program)
    names = [
        name
        for node, spec in _placeholders(program)
        if spec.kind in _STORED and not _is_unread(node, spec)
        if owners.get(name := str(spec.target), name) == name
    ]
    return {name: values[name] for name in names if name in values and name not in tables}


def _is_unread(node: fx.Node, spec: InputSpec) -> bool:
    """Return whether a placeholder is an unread buffer."""
    return spec.kind in _STORED[1:] and not node.users


def _owners(program: ExportedProgram) -> dict[str, str]:
    """Return the first of the tied parameters for each of them, by name.

    Those of an archive that was written on the meta device are not known to be tied.
    """
    if any(spec.kind is OutputKind.GRADIENT_TO_PARAMETER
           for spec in program.graph_signature.output_specs):  # fmt: skip
        return {}
    first: dict[tuple[object, ...], str] = {}
    owners = {}
    for name in program.graph_signature.parameters:
        value = program.state_dict.get(name)
        if isinstance(value, torch.Tensor):
            view: tuple[object, ...] = (id(value),)
            if _has_values(value):
                view = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            owners[name] = first.setdefault(view, name)
    return owners


def _tables(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the tensors that are constants of the module, by name."""
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    values, tables = stored_values(program), {}
    for spec in program.graph_signature.input_specs:
        value = values.get(spec.target or "")
        if value is None or spec.kind is InputKind.PARAMETER or spec.target in mutated:
            continue
        is_small = value.numel() * value.element_size() <= _CONSTANT_BYTES
        if is_small and not (spec.persistent and value.is_floating_point()):
            tables[str(spec.target)] = value
    return tables


def wanted_outputs(program: ExportedProgram, outputs: str) -> list[tuple[int, OutputSpec]]:
    """Return the positions and specifications of the requested results.

    Raises
    ------
    ModelError
        DIST0362 if there is none, or one is no tensor.
    """
    selected = []
    for index, spec in enumerate(program.graph_signature.output_specs):
        if outputs == "user" and spec.kind not in _RESULTS:
            continue
        if isinstance(spec.arg, TensorArgument):
            selected.append((index, spec))
        elif not (isinstance(spec.arg, ConstantArgument) and spec.arg.value is None):
            problem = f"result {index} is not a tensor"
            remedy = "Export a module that returns tensors."
            raise ModelError("DIST0362", problem, location=f"{spec.arg}", remedy=remedy)
    if not selected:
        remedy = "Return at least one tensor."
        raise ModelError("DIST0362", "the program has no output", location="output", remedy=remedy)
    return selected


def stored_values(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the stored parameters, buffers and constants of the program, by name."""
    stored: dict[str, torch.Tensor] = {**program.constants, **program.state_dict}
    return {name: value for name, value in stored.items() if _has_values(value)}


def _has_values(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return False
    return not isinstance(value, torch._subclasses.FakeTensor)


def as_array(value: torch.Tensor) -> npt.NDArray[np.generic]:
    """Return a tensor's values, bfloat16 by ml_dtypes, as a view if possible."""
    value = value.detach().cpu().contiguous()
    if value.dtype is torch.bfloat16:
        bits: npt.NDArray[np.generic] = value.view(torch.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: npt.NDArray[np.generic] = value.numpy()
    return array
