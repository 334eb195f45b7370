# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Packed functions propagation understands: TVM's attention cache, which holds a tensor.

The cache object is given the dims of the tensor it holds, so that what is appended and what is
viewed lie alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, tirx

from ..errors import PropagationError
from ..ir.types import static_shape
from ..rules import Factor, Rule
from .graph import Value

APPEND = "vm.builtin.attention_kv_cache_append"
VIEW = "vm.builtin.attention_kv_cache_view"
DISTRIBUTED = {
    APPEND: "vm.builtin.distributed.attention_kv_cache_append",
    VIEW: "vm.builtin.distributed.attention_kv_cache_view",
}
"""TVM's names for the same functions on shards."""


def _is_one(size: Any) -> bool:
    return isinstance(size, int | tirx.IntImm) and int(size) == 1


def cache_rule(
    call: ir.Call, operands: Sequence[Value | None]
) -> tuple[Rule, list[tuple[Any, ...]]]:
    """Rule of a call of a packed function, and the dims of its results.

    Raises
    ------
    PropagationError
        DIST0401 for a packed function nothing is known about.
    """
    name = str(call.op.global_symbol)
    if name == APPEND and len(operands) == 2 and operands[1] is not None:
        shape = operands[1].shape
        factors = tuple(Factor(n, (None, d), (d,)) for d, n in enumerate(shape) if not _is_one(n))
        work = operands[1].size_bytes
        return Rule(name, factors, (), 0, (0, work), (0,), {}), [shape]
    if name == VIEW and len(operands) == 1 and len(call.ty_args) == 1:
        out = static_shape(call.ty_args[0]) or ()
        cached = operands[0].shape if operands[0] is not None else ()
        tied = len(cached) == len(out)
        factors = tuple(
            Factor(n, (d if tied else None,), (d,)) for d, n in enumerate(out) if not _is_one(n)
        )
        return Rule(name, factors, (), 0, (0,), (0,), {}), [tuple(out)]
    known = ", ".join(sorted(DISTRIBUTED))
    raise PropagationError(
        "DIST0401",
        f"no sharding rule for the packed function {name}",
        place=name,
        remedy=f"Known packed functions: {known}. Express it as call_tir, which has a rule.",
    )


def distributed_name(op: Any) -> Any:
    """The function a packed call becomes on shards."""
    return relax.ExternFunc(DISTRIBUTED.get(str(op.global_symbol), str(op.global_symbol)))
