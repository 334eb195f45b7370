# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a model for strategies: its entries, data inputs and batch."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    is_private,
    mesh_devices,
    mesh_shape,
    relax_functions,
    static_shape,
    tensor_type,
    value_types,
)
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.plan import DEFAULT_MESH, MAIN, MeshSpec, PlanRule
from tvm_distir.support import MeshError, PlanError

from .training_parts import state_names

MeshLike: TypeAlias = "MeshSpec | Mapping[str, int] | DeviceMesh"


@dataclass(frozen=True)
class Parameter:
    """A tensor parameter of an entry function.

    Attributes
    ----------
    function : str or None
        The value of a rule's ``function``; None where a rule need not give it.
    entry : str
        Name of the function.
    position : int
    name : str
        The name that the model's author wrote.
    shape : tuple
        Ints, and expressions where symbolic; None when unknown.
    ndim : int
        -1 when unknown.
    dtype : str
    """

    function: str | None
    entry: str
    position: int
    name: str
    shape: tuple[Any, ...] | None
    ndim: int
    dtype: str

    @property
    def location(self) -> str:
        """Return the place for messages."""
        return f"{self.entry}/{self.name}"


def as_mesh_spec(mesh: MeshLike) -> MeshSpec:
    """Return the mesh as a spec; the axes of a TVM mesh are called "0", "1", ..."""
    if isinstance(mesh, MeshSpec):
        return mesh
    if isinstance(mesh, DeviceMesh):
        axes = {str(i): n for i, n in enumerate(mesh_shape(mesh))}
        return mesh_on(mesh_devices(mesh).ravel().tolist(), DEFAULT_MESH, axes)
    return MeshSpec(DEFAULT_MESH, mesh)


def mesh_on(devices: Sequence[int], name: str, axes: Mapping[str, int]) -> MeshSpec:
    """Return the mesh of these devices, which has no list of them where they are in order."""
    if [*devices] == list(range(devices[0], devices[0] + len(devices))):
        return MeshSpec(name, axes, start=devices[0])
    return MeshSpec(name, axes, device_ids=tuple(devices))


def mesh_axis(mesh: MeshSpec, axis: str, strategy: str, option: str = "axis") -> int:
    """Return the number of the axis that an option of a strategy names (MeshError DIST0206)."""
    location = f'strategy "{strategy}"'
    try:
        return mesh.axis_number(axis, location)
    except MeshError as error:
        remedy = f"{error.remedy} Choose one with {strategy}:{option}=NAME."
        raise MeshError(error.code, error.what, location=location, remedy=remedy) from None


def named_axes(mesh: MeshSpec, option: str, strategy: str) -> list[int]:
    """Return the numbers of the axes that an option names, as "dp/tp", in the mesh's order.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 an axis is given twice.
    """
    numbers = [mesh_axis(mesh, name.strip(), strategy) for name in option.split("/")]
    if len(set(numbers)) < len(numbers):
        raise PlanError(
            "DIST0231", f"axis={option} has an axis twice",
            location=f'strategy "{strategy}"', remedy="Remove one.",
        )  # fmt: skip
    return sorted(numbers)


def entries(mod: ir.IRModule) -> list[tuple[str, relax.Function, str | None]]:
    """Return the entry functions: name, function, and the ``function`` that rules need, if any.

    ``main`` where it exists, else all public functions of a :func:`.canonical` module, as
    strategies receive it.
    """
    public = {str(gv.name_hint): fn for gv, fn in relax_functions(mod) if not is_private(fn)}
    if MAIN in public:
        return [(MAIN, public[MAIN], None)]
    if not public:
        raise PlanError(
            "DIST0225", "the module has no public function",
            location="module", remedy='Give the entry a "global_symbol".',
        )  # fmt: skip
    only = len(public) == 1
    return [(name, public[name], None if only else name) for name in public]


def tensor_parameters(name: str, fn: relax.Function, rule_name: str | None) -> list[Parameter]:
    """Return the tensor parameters of an entry, in order; not an optimizer's states of weights."""
    out = []
    states = state_names(fn)
    for position, (param, title) in enumerate(zip(fn.params[:], param_names(fn), strict=True)):
        tensor = tensor_type(param.ty)
        if tensor is not None and title not in states:
            shape, dtype = static_shape(param.ty), str(tensor.dtype)
            ndim = int(tensor.ndim) if shape is None else len(shape)
            out.append(Parameter(rule_name, name, position, title, shape, ndim, dtype))
    return out


def flat_positions(fn: relax.Function) -> list[int]:
    """Return the flat number of the first tensor of each parameter: tuples hold several."""
    first = [0]
    for param in fn.params:
        first.append(first[-1] + len(value_types(param.ty)))
    return first


def parameter_rule(
    parameter: Parameter, mesh: MeshSpec, labels: Mapping[int, int], stationary: bool
) -> PlanRule:
    """Return the rule that places a parameter along some axes, the others left open."""
    title, placement = glob.escape(parameter.name), some_axes(mesh, labels)
    return PlanRule("param", title, placement, mesh.name, stationary, parameter.function)


def one_axis(mesh: MeshSpec, axis: int, label: int) -> tuple[int | None, ...]:
    """Return labels that fill a single axis of a mesh."""
    return some_axes(mesh, {axis: label})


def some_axes(mesh: MeshSpec, labels: Mapping[int, int]) -> tuple[int | None, ...]:
    """Return labels that fill some axes of a mesh, by their numbers."""
    return tuple(labels.get(number) for number in range(len(mesh.axes)))


def same_size(first: Any, second: Any) -> bool:
    """Return whether two dims, ints or expressions, are surely equal."""
    if isinstance(first, int) or isinstance(second, int):
        return isinstance(first, int) and isinstance(second, int) and first == second
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(first, second))


def check_divisible(
    size: Any, count: int, subject: str, axis: str, location: str, remedy: str | None = None
) -> None:
    """Refuse a known size that ``count`` does not divide (PlanError DIST0234)."""
    if not isinstance(size, int) or size % count == 0:
        return
    quotient, rest = divmod(size, count)
    up, down = (quotient + 1) * count, quotient * count
    choices = f"{down} or {up}" if down else str(up)
    raise PlanError(
        "DIST0234",
        f'{subject} {size} is not divisible by the mesh axis "{axis}" ({count}): '
        f"{size} = {quotient} x {count} + {rest}",
        location=location,
        remedy=remedy or f"Change it to {choices}, or choose an axis size that divides {size}.",
    )


def names_of(parameters: Sequence[Parameter], most: int = 6) -> str:
    """Return the first few names, for messages."""
    shown = [p.name for p in parameters[:most]]
    return ", ".join(shown) + (", ..." if len(parameters) > most else "")
