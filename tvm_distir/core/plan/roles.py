# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distinguish the data inputs of a function from its weights."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR, NUM_INPUT_ATTR
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.ir.types import tensor_type
from tvm_distir.support import PlanError

from .name_patterns import MAIN, plain_name

DATA_NAMES = tuple(
    (
        "x input inputs data tokens images ids input_ids attention_mask position_ids "
        "token_type_ids pixel_values labels target targets"
    ).split()
)
"""Usual names of data inputs, where the module does not say which inputs are data."""


def data_positions(fn: relax.Function, name: str = MAIN) -> list[int]:
    """Return which parameters are data, not weights.

    In this order: the names in the function attribute ``dist.inputs``; the first ``num_input``
    (TVM's attribute); parameters of an integer type or with a usual name of data
    (:data:`DATA_NAMES`); the first parameter.

    Raises
    ------
    PlanError
        DIST0233 when ``dist.inputs`` names what is no parameter.
    """
    attrs: Any = fn.attrs or {}
    names = param_names(fn)
    if INPUTS_ATTR in attrs:
        plain = [plain_name(n) for n in names]
        positions = []
        for entry in attrs[INPUTS_ATTR]:
            if plain_name(str(entry)) not in plain:
                problem = f'the attribute {INPUTS_ATTR} names "{entry}", which is not a parameter'
                raise PlanError("DIST0233", problem, location=name, remedy="Correct the attribute.")
            positions.append(plain.index(plain_name(str(entry))))
        return sorted(positions)
    if NUM_INPUT_ATTR in attrs:
        return list(range(min(int(attrs[NUM_INPUT_ATTR]), len(names))))
    likely = []
    for i, param in enumerate(fn.params):
        tensor = tensor_type(param.ty)
        integer = tensor is not None and str(tensor.dtype).startswith(("int", "uint"))
        if integer or plain_name(names[i]).lower() in DATA_NAMES:
            likely.append(i)
    return likely or list(range(min(1, len(names))))
