# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists ops that have no sharding rule, with the reasons."""

from __future__ import annotations

_OUTSIDE = "it calls a function outside the module, whose effect on shards is unknown"
_CLOSURE = "a closure is a value at run time: its computation is unknown"
_LENGTH = "the size of its result depends on the values"
_SHAPE = "it operates on shapes, which every device has"

#: Ops that compute something, or could: their calls cannot be distributed as they are.
_WHY_NONE = {
    "relax.assert_op": "it has an effect and returns no tensor",
    "relax.print": "it has an effect and returns no tensor",
    "relax.call_builtin_with_ctx": _OUTSIDE,
    "relax.call_dps_packed": _OUTSIDE,
    "relax.call_inplace_packed": "it overwrites an operand, which others may read",
    "relax.call_pure_packed": _OUTSIDE,
    "relax.call_py_func": _OUTSIDE,
    "relax.call_tir_inplace": "its kernel overwrites an operand: use call_tir",
    "relax.dynamic_strided_slice": _LENGTH,
    "relax.invoke_closure": _CLOSURE,
    "relax.invoke_pure_closure": _CLOSURE,
    "relax.make_closure": _CLOSURE,
    "relax.nn.attention_var_len": "TVM has no kernel for it",
    "relax.nonzero": _LENGTH,
    "relax.null_value": "it is not a tensor",
    "relax.shape_of": _SHAPE,
    "relax.tensor_to_shape": _SHAPE,
    "relax.unique": _LENGTH,
    "relax.wrap_param": "it marks a parameter until constants are bound",
}

#: Families of ops that no rule is asked for.
_WHY_SYSTEM = {
    "relax.builtin.": "it manages memory",
    "relax.ccl.": "it is a collective",
    "relax.dist.": "it moves data between devices, or states where they are",
    "relax.inspect.": "it reads the type of a tensor, not its values",
    "relax.memory.": "it manages memory",
    "relax.vm.": "it is an instruction of the virtual machine",
}


def why_none(op: str) -> str | None:
    """Return why a computing op has no rule; None when nothing prevents a rule."""
    return _WHY_NONE.get(op)


def why_system(op: str) -> str | None:
    """Return why no rule is needed for an op; None for ops that compute on tensors."""
    return next((why for family, why in _WHY_SYSTEM.items() if op.startswith(family)), None)
