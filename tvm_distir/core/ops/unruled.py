# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists ops that have no sharding rule, with the reasons."""

from __future__ import annotations

_PASS_IN = "Compute it outside of the module, and pass the result in as an argument."
_OUTSIDE = (
    "it calls a function outside the module, whose effect on shards is unknown",
    "Call it by R.call_pure_packed or R.call_dps_packed, with an R.ExternFunc; or compute it "
    "outside of the module.",
)
_CLOSURE = (
    "a closure is a value at run time: its computation is unknown",
    "Make it a function of the module that takes what it captures as arguments, and call that.",
)
_LENGTH = ("the size of its result depends on the values", _PASS_IN)
_SHAPE = ("it operates on shapes, which every device has", _PASS_IN)

#: Ops that compute something, or could: their calls cannot be distributed as they are. Each with
#: the reason, and what to write instead.
_WHY_NONE = {
    "relax.call_builtin_with_ctx": _OUTSIDE,
    "relax.call_dps_packed": _OUTSIDE,
    "relax.call_inplace_packed": (
        "it overwrites an operand, which others may read",
        "Call a function that returns a new tensor, by R.call_pure_packed.",
    ),
    "relax.call_pure_packed": _OUTSIDE,
    "relax.call_py_func": _OUTSIDE,
    "relax.call_tir_inplace": (
        "its kernel overwrites an operand, which others may read",
        "Apply td.distribute or AnnotateSharding, which write it as an R.call_tir of a copy.",
    ),
    "relax.dynamic_strided_slice": _LENGTH,
    "relax.invoke_closure": _CLOSURE,
    "relax.invoke_pure_closure": _CLOSURE,
    "relax.make_closure": _CLOSURE,
    "relax.nn.attention_var_len": (
        "TVM has no kernel for it",
        "Use R.nn.attention, with a mask or bias for sequences of different lengths.",
    ),
    "relax.nonzero": _LENGTH,
    "relax.null_value": ("it is not a tensor", "Remove it, with what reads it."),
    "relax.shape_of": _SHAPE,
    "relax.tensor_to_shape": _SHAPE,
    "relax.unique": _LENGTH,
    "relax.wrap_param": (
        "it marks a parameter until constants are bound",
        "Replace it by its operand.",
    ),
}


def why_none(op: str) -> tuple[str, str] | None:
    """Return why a computing op has no rule, and a remedy; None when nothing prevents a rule."""
    return _WHY_NONE.get(op)
