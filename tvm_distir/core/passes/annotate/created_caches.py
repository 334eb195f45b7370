# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide the heads of caches where they are created.

Before, with ``{"value": "cache", "placement": "S[1]"}`` on two devices::

    cache = R.call_pure_packed("mlc.create_paged_kv_cache_generic", ..., 32, 8, 128, 128, ...)

After::

    cache = R.call_pure_packed("mlc.create_paged_kv_cache_generic", ..., 16, 4, 128, 128, ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax, tirx

from tvm_distir.core.ops.packed import HEAD_ARGUMENTS, packed_args, packed_name
from tvm_distir.core.rewriting.calls import rebuild
from tvm_distir.core.rewriting.scopes import with_values
from tvm_distir.support import PlanError


def divide_heads(fn: relax.Function, name: str, parts: Mapping[Any, int]) -> relax.Function:
    """Return the function whose caches have a part of the heads.

    Parameters
    ----------
    fn : Function
    name : str
        Its name, for messages.
    parts : mapping of Var to int
        By the variables of created caches, the number of devices that divide the heads.

    Raises
    ------
    PlanError
        DIST0234 where the devices do not divide the heads.
    """

    def divided(var: relax.Var, value: Any) -> ir.Expr:
        count = parts.get(var, 1)
        return value if count <= 1 else _divided(value, count, f"{name}/{var.name}")

    return with_values(fn, divided)


def _divided(call: ir.Call, count: int, location: str) -> ir.Call:
    """Return the call that creates a part of the heads."""
    skipped = len(call.args) - len(packed_args(call))
    args = list(call.args)
    for number in HEAD_ARGUMENTS[packed_name(call)]:
        heads = int(args[skipped + number])
        if heads % count:
            problem = f"the number of heads {heads} is not divisible by {count} devices"
            remedy = "Choose a size of the mesh axis that divides the heads."
            raise PlanError("DIST0234", problem, location=location, remedy=remedy)
        args[skipped + number] = tirx.IntImm(args[skipped + number].ty.dtype, heads // count)
    return rebuild(call, call.op, args, call.ty)
