# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the parameters of ``main`` are: data, indices with their range, weights with their role.

Roles come from the ops that consume a parameter, through views and private functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from ..errors import ModelError
from ..ir import known_shape, num_input, param_names, tensor_type, training_notes
from .input_uses import InputUse, UseWalker

# Which role wins when the consumers of one parameter disagree, strongest first.
ROLES = ("weight", "variance", "scale", "mean", "bias", "data")


@dataclass(frozen=True)
class InputSpec:
    """One parameter of ``main``.

    Attributes
    ----------
    name : str
        As the model has it.
    shape : tuple of int
        Static.
    dtype : str
        Relax dtype.
    role : str
        ``data`` or, for weights, ``weight``, ``bias``, ``scale``, ``mean`` or ``variance``.
    low, high : int
        Valid range [low, high) of an integer or bool parameter; 0, 0 for floats.
    fan_in : int
        Terms that a sum over this weight has; 0 where the role is not ``weight``.
    gain : float
        Factor beside ``1 / sqrt(fan_in)`` that keeps activations from vanishing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    low: int = 0
    high: int = 0
    fan_in: int = 0
    gain: float = 1.0


def input_specs(mod: ir.IRModule, name: str = "main") -> list[InputSpec]:
    """Describe the parameters of a function so that sensible values can be drawn for them.

    Parameters
    ----------
    mod : IRModule
        At the global or annotated level.
    name : str
        The function.

    Returns
    -------
    list of InputSpec
        One for each parameter, in order. Without the attribute ``num_input`` a parameter is a
        weight when a norm, a convolution, a lookup or the right side of a matmul consumes it.

    Raises
    ------
    ModelError
        DIST0340 when there is no such function, or a parameter is no tensor of static shape.
    """
    names = {gv.name_hint: fn for gv, fn in mod.functions.items()}
    fn = names.get(name)
    if not isinstance(fn, relax.Function):
        raise ModelError(
            "DIST0340",
            f'the module has no Relax function "{name}"',
            place="module",
            remedy="Name the function main.",
        )
    uses = UseWalker(mod).uses_of(fn)
    data_count = num_input(fn)
    states = _states(fn)
    counters = training_notes(fn, "counters")
    specs = []
    for index, (param, param_name) in enumerate(zip(fn.params, param_names(fn), strict=True)):
        is_data = None if data_count is None else index < data_count
        known = [InputUse("variance", firm=True)] if param_name in states else uses[index]
        if param_name in counters:
            known = [InputUse(high=int(counters[param_name]))]
        specs.append(_spec(param_name, param, known, is_data))
    return specs


def _states(fn: relax.Function) -> set[str]:
    """Names of an optimizer's states: drawn positive, as sums of squares among them must be."""
    return {str(name) for names in training_notes(fn, "states").values() for name in names}


def _spec(name: str, param: relax.Var, uses: Sequence[InputUse], is_data: bool | None) -> InputSpec:
    tensor, shape = tensor_type(param.ty), known_shape(param.ty)
    if tensor is None or shape is None:
        raise ModelError(
            "DIST0340",
            f"{param.ty} is no tensor of static shape",
            place=f"main/{name}",
            remedy="Bind its symbolic dims.",
        )
    dtype = _dtype(tensor)
    if not _is_float(dtype):
        bounds = [use.high for use in uses if use.high]
        high = min(bounds, default=2)
        return InputSpec(name, shape, dtype, "data" if is_data is not False else "weight", 0, high)
    roles = [use for use in uses if use.role and (use.firm or is_data is False)]
    if is_data or (is_data is None and not roles):
        return InputSpec(name, shape, dtype, "data")
    role = min((use.role for use in roles), key=ROLES.index, default="weight")
    if role != "weight":
        return InputSpec(name, shape, dtype, role)
    heavy = [use for use in roles if use.role == "weight"]
    widest = max(
        heavy, key=lambda use: use.fan_in, default=InputUse(fan_in=shape[-1] if shape else 1)
    )
    gain = min((use.gain for use in uses if use.gain), default=1.0)
    return InputSpec(name, shape, dtype, role, 0, 0, max(widest.fan_in, 1), gain)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype.dtype if hasattr(tensor.dtype, "dtype") else tensor.dtype)


def _is_float(dtype: str) -> bool:
    return "float" in dtype
