# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds rules for calls of packed functions, whose opaque objects carry the dims they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.ops.packed import EFFECTS, PACKED_OPS, packed_rule

from .graph import FlatValue

APPEND = "vm.builtin.attention_kv_cache_append"
VIEW = "vm.builtin.attention_kv_cache_view"
DISTRIBUTED = {
    APPEND: "vm.builtin.distributed.attention_kv_cache_append",
    VIEW: "vm.builtin.distributed.attention_kv_cache_view",
}
"""TVM's names for the same functions on shards."""


PACKED_HANDLES = frozenset(handle(ir.Op.get(name)) for name in (*PACKED_OPS, *EFFECTS))
"""Handles of the ops that call a packed function, and of those that are treated as such."""


def cache_rule(
    call: ir.Call, operands: Sequence[FlatValue | None]
) -> tuple[Rule, list[tuple[Any, ...]]]:
    """Return the rule of a call of a packed function, and the dims of its results.

    Raises
    ------
    PropagationError
        As :func:`tvm_distir.core.ops.packed.packed_rule`.
    """
    return packed_rule(call, [None if v is None else v.shape for v in operands])


def distributed_name(op: Any) -> Any:
    """Return the function that a packed call becomes on shards."""
    if not isinstance(op, relax.ExternFunc):
        return op
    return relax.ExternFunc(DISTRIBUTED.get(str(op.global_symbol), str(op.global_symbol)))
