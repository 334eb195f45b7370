# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placeholders for opaque objects (``R.Any``) that a program passes through to its results.

A placeholder is an integer. Programs get it in place of an object, and the comparison of results
sees it as an array of a single ``int64``: it shows which object came out, on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir

from tvm_distir.core.ir import flat_types, is_object, relax_functions
from tvm_distir.core.rewriting import all_bindings, entry_of, location_of
from tvm_distir.execution.runtime.program.device_objects import DeviceObjects
from tvm_distir.execution.runtime.program.dist_io import entries
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import ModelError

LIMIT = 1 << 31
"""Placeholders are drawn below this number."""
MIXED = -1
"""The result where the devices hold different objects."""


def refuse_used_objects(mod: ir.IRModule) -> None:
    """Refuse an entry with objects as inputs where an op or a packed function takes an object.

    Raises
    ------
    ModelError
        DIST0340 which names the input and the call.
    """
    entry = entry_of(mod)
    objects = [p for p in mod[entry].params if any(map(is_object, flat_types(p.ty)))]
    if not objects:
        return
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            call = binding.value
            if not isinstance(call, ir.Call) or isinstance(call.op, ir.GlobalVar):
                continue
            if any(is_object(ty) for arg in call.args for ty in flat_types(arg.ty)):
                user = location_of(str(gv.name_hint), binding.var, call)
                raise ModelError(
                    "DIST0340",
                    f"{objects[0].ty} is an object that {user} takes: no value can be drawn",
                    location=f"{entry}/{objects[0].name}",
                    remedy="Call td.run with td.DeviceObjects, and compare the results.",
                )


def with_device_objects(dist: ir.IRModule, values: Sequence[Array]) -> list[object]:
    """Return the inputs of a distributed program, with placeholders as objects of each device."""
    params = [param for _, fn in relax_functions(dist) for param in fn.params]
    if not any(is_object(ty) for param in params for ty in flat_types(param.ty)):
        return list(values)
    programs = entries(dist)
    objects = {port.index for entry in programs for port in entry.inputs if port.is_object}
    ranks = [rank for entry in programs for rank in entry.ranks]
    return [
        DeviceObjects(dict.fromkeys(ranks, int(value))) if index in objects else value
        for index, value in enumerate(values)
    ]


def as_array(output: object) -> Any:
    """Return the placeholder, or the shape, that an output holds on all devices as an array."""
    if not isinstance(output, DeviceObjects):
        return output
    values = {
        tuple(value) if isinstance(value, tvm_ffi.Shape) else value
        for value in output.objects.values()
    }
    return np.asarray(values.pop() if len(values) == 1 else MIXED, "int64")
