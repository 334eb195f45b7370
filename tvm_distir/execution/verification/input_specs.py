# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classify the parameters of an entry: data, indices with their range, weights with usages.

Roles come from the ops that consume a parameter, through views and private functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from tvm_distir.core.ir import element_type, is_object, known_shape, named_leaves, tensor_type
from tvm_distir.core.ir.attributes import num_input, param_names, training_notes
from tvm_distir.core.rewriting import entry_of
from tvm_distir.support import ModelError

from .input_uses import InputUse, UseWalker
from .placeholders import LIMIT, refuse_used_objects

COUNTS = 1000
"""One more than the largest value that is drawn for a counter without a note of its own."""

# Which usage wins when the consumers of a parameter disagree, strongest first.
USAGES = ("step", "weight", "variance", "scale", "mean", "bias", "data")


@dataclass(frozen=True)
class InputSpec:
    """A tensor among the parameters of an entry.

    Attributes
    ----------
    name : str
        The name in the model.
    shape : tuple of int
        Static.
    dtype : str
        Relax dtype.
    usage : str
        ``data`` or, for weights, ``weight``, ``bias``, ``scale``, ``mean``, ``variance``, or
        ``step``, of quantized numbers.
    low, high : int
        Valid range [low, high) of an integer or bool parameter; 0, 0 for floats.
    fan_in : int
        Terms that a sum over this weight, or the numbers of this step, has; 0 for other usages.
    gain : float
        Factor beside ``1 / sqrt(fan_in)`` that keeps activations from vanishing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    usage: str
    low: int = 0
    high: int = 0
    fan_in: int = 0
    gain: float = 1.0


def input_specs(mod: ir.IRModule) -> list[InputSpec]:
    """Describe the parameters of a module's entry so that sensible values can be drawn for them.

    Parameters
    ----------
    mod : IRModule
        The module, at the global or annotated level.

    Returns
    -------
    list of InputSpec
        The specification of each parameter, in order, and of each tensor of a parameter that is a
        tuple: ``x_0``, ``x_1_0``, ... Without the attribute ``num_input`` a parameter is a weight
        when a norm, a convolution, a lookup or the right side of a matmul consumes it. An object
        that is only passed through is a number, see :mod:`.placeholders`.

    Raises
    ------
    ModelError
        DIST0340 when a parameter is no tensor of static shape, or an object that a call takes;
        DIST0341 when there is no entry.
    """
    entry = entry_of(mod)
    fn = mod[entry]
    refuse_used_objects(mod)
    uses = UseWalker(mod).uses_of(fn)
    data_count = num_input(fn)
    states = {str(name) for names in training_notes(fn, "states").values() for name in names}
    counters = training_notes(fn, "counters")
    specs: list[InputSpec] = []
    for index, (param, param_name) in enumerate(zip(fn.params, param_names(fn), strict=True)):
        is_data = None if data_count is None else index < data_count
        for leaf_name, ty in named_leaves(param_name, param.ty):
            known = uses[len(specs)]
            if param_name in states or param_name in counters:  # the upper codes are positive
                high = int(counters.get(param_name, 0))
                codes = [InputUse(low=use.high // 2, high=use.high) for use in known]
                known = [*codes, InputUse("variance", firm=True, high=high)]
            specs.append(_spec(f"{entry}/{leaf_name}", leaf_name, ty, known, is_data))
    return specs


def _spec(
    location: str, name: str, ty: ir.Type, uses: Sequence[InputUse], is_data: bool | None
) -> InputSpec:
    if is_object(ty):
        return InputSpec(name, (), "int64", "data", 0, LIMIT)
    tensor, shape = tensor_type(ty), known_shape(ty)
    if tensor is None or shape is None:
        raise ModelError(
            "DIST0340",
            f"{ty} is not a tensor of static shape",
            location=location,
            remedy="Pass tensors, or (nested) tuples of tensors."
            if tensor is None
            else "Give the size of each dim: --dim NAME=N; in Python td.bind_dims, or dims= of "
            "td.verify.",
        )
    dtype = element_type(tensor)
    if "float" not in dtype:
        low = 0 if dtype == "bool" else max((use.low for use in uses), default=0)
        counts = is_data is False and not shape  # as a serialized step counts its updates
        most = COUNTS if counts else 4 if low else 2
        high = min((use.high for use in uses if use.high), default=most)
        usage = "data" if is_data is not False else "weight"
        return InputSpec(name, shape, dtype, usage, min(low, high - 1), high)
    known_uses = [use for use in uses if use.usage and (use.firm or is_data is False)]
    if is_data or (is_data is None and not known_uses):
        return InputSpec(name, shape, dtype, "data")
    usage = min((use.usage for use in known_uses), key=USAGES.index, default="weight")
    if usage not in ("weight", "step"):
        return InputSpec(name, shape, dtype, usage)
    heavy = [use for use in known_uses if use.usage == usage]
    widest = max(
        heavy, key=lambda use: use.fan_in, default=InputUse(fan_in=shape[-1] if shape else 1)
    )
    gain = min((use.gain for use in uses if use.gain), default=1.0)
    return InputSpec(name, shape, dtype, usage, 0, 0, max(widest.fan_in, 1), gain)
