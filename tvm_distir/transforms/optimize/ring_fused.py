# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute ``R.dist.attention`` and its gradients around a ring, with a kernel per key block.

Results of blocks are joined by their log-sum-exps, in float32 at least (Liu et al. 2023, "Ring
Attention"; Dao et al. 2022, "FlashAttention", section 3). The gradients of a block need nothing of
other blocks but the log-sum-exp of all keys, so they are those of the op on the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import op

from tvm_distir.core.ir.operators import (
    AttentionForm,
    accumulated,
    attention,
    attention_backward,
    attention_operands,
    attention_sinks,
    call_axes,
    dist_op_name,
    ops,
)

from .ring_block import Emit, int64
from .ring_sources import GatheredTensor


def is_by_blocks(call: ir.Call, gathers: Sequence[GatheredTensor | None]) -> bool:
    """Return whether keys and values come in equal blocks along positions, without a bias.

    A bias has columns for all keys, and padding counts as keys: such attention is written out.
    """
    keys, values = gathers
    if keys is None or values is None or attention_operands(call)[1] is not None:
        return False
    alike = all(
        (x.dim, x.axis, str(x.mesh), x.rows) == (1, keys.axis, str(keys.mesh), keys.rows)
        for x in (keys, values)
    )
    return alike and all(x.rows * x.count == x.whole for x in (keys, values))


class FusedRing:
    """Writer of attention over key blocks that are handed on around a ring.

    Parameters
    ----------
    emit : callable
        Binds a value to a new variable of a name.
    call : Call
        The op, over gathered keys and values.
    keys, values : GatheredTensor
    name : str
        The beginning of names of variables.
    """

    def __init__(
        self, emit: Emit, call: ir.Call, keys: GatheredTensor, values: GatheredTensor, name: str
    ) -> None:
        self._emit, self._name, self._keys = emit, name, keys
        self._blocks = [keys.block, values.block]
        self._form = AttentionForm.of(call)
        self._tensors, _, self._shift = attention_operands(call)
        self._sinks = attention_sinks(call)
        self._me: Any = None

    def forward(self) -> list[Any]:
        """Write the result and the log-sum-exp; the result in the type of the queries."""
        q = self._tensors[0]
        result: Any = None
        total: Any = None
        for step in range(self._keys.count):
            call = attention(q, *self._blocks, *self._shifts(step), **vars(self._form))
            part, lse = self._fields(call, 2)
            self._hand_on(step)
            part = self._wide(part)
            if result is None:
                result, total = part, lse
                continue
            joined = self._log_sum(total, lse)
            weighed = [
                self._bind(op.multiply(value, self._weight(of, joined)))
                for value, of in ((result, total), (part, lse))
            ]
            result, total = self._bind(op.add(*weighed)), joined
        if self._sinks is not None:
            scores = self._bind(op.astype(self._sinks, str(total.ty.dtype)))
            scores = self._bind(op.reshape(scores, (1, total.ty.shape[1], 1)))
            joined = self._log_sum(total, scores)
            result = self._bind(op.multiply(result, self._weight(total, joined)))
            total = joined
        return [self._typed(result, q), total]

    def _log_sum(self, first: Any, second: Any) -> Any:
        """Write the logarithm of the sum of two exponentials."""
        top = self._bind(op.maximum(first, second))
        raised = [self._bind(op.exp(self._bind(op.subtract(x, top)))) for x in (first, second)]
        return self._bind(op.add(top, self._bind(op.log(self._bind(op.add(*raised))))))

    def backward(self) -> list[Any]:
        """Write the gradients of the queries, and of the keys and values of the device.

        The gradients of a block follow it, from the second device that it reaches on, and are
        added to those of its owner at the end: ``n - 1`` messages of each.
        """
        q, k, v, *rest = self._tensors
        by_query: Any = None
        local: list[Any] = []
        moving: list[Any] = []
        for step in range(self._keys.count):
            operands = (q, *self._blocks, *rest, *self._shifts(step))
            parts = self._fields(attention_backward(*operands, **vars(self._form)), 3)
            self._hand_on(step)
            query, *by_block = map(self._wide, parts)
            by_query = query if by_query is None else self._bind(op.add(by_query, query))
            if not step:
                local = by_block
                continue
            if moving:
                by_block = self._sums(moving, by_block)
            moving = [self._handed_on(x) for x in by_block]
        if moving:
            local = self._sums(local, moving)
        return [self._typed(x, like) for x, like in zip((by_query, *local), (q, k, v), strict=True)]

    def _sums(self, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        return [self._bind(op.add(*pair)) for pair in zip(first, second, strict=True)]

    def _shifts(self, step: int) -> list[Any]:
        """Return where the queries of this device are among the keys of the block at hand."""
        if not self._form.causal:
            return []
        if self._me is None:
            self._me = self._bind(ops.axis_index(self._keys.mesh, self._keys.axis))
        owner, count = self._me, self._keys.count
        if step:
            owner = self._bind(op.add(owner, int64(count - step)))
            owner = self._bind(op.floor_mod(owner, int64(count)))
        first = self._bind(op.multiply(owner, int64(self._keys.rows)))
        shift = int64(0) if self._shift is None else self._shift
        return [self._bind(op.subtract(shift, first))]

    def _fields(self, call: ir.Call, count: int) -> list[Any]:
        fields = self._bind(call)
        return [self._bind(relax.TupleGetItem(fields, i)) for i in range(count)]

    def _hand_on(self, step: int) -> None:
        """Receive the blocks of the preceding rank, but after the last step."""
        if step + 1 < self._keys.count:
            self._blocks = [self._handed_on(block) for block in self._blocks]

    def _handed_on(self, block: Any) -> Any:
        mesh, axis = self._keys.mesh, self._keys.axis
        return self._bind(ops.collective_permute(block, mesh, axis, 1, wrap=True))

    def _weight(self, lse: Any, total: Any) -> Any:
        """Return the share of a part in the result, ``(B, S, H, 1)``."""
        share = self._bind(op.exp(self._bind(op.subtract(lse, total))))
        turned = self._bind(op.permute_dims(share, [0, 2, 1]))
        return self._bind(op.reshape(turned, (*turned.ty.shape, 1)))

    def _wide(self, value: Any) -> Any:
        dtype = accumulated(str(value.ty.dtype))
        return value if str(value.ty.dtype) == dtype else self._bind(op.astype(value, dtype))

    def _typed(self, value: Any, like: Any) -> Any:
        dtype = str(like.ty.dtype)
        return value if str(value.ty.dtype) == dtype else self._bind(op.astype(value, dtype))

    def _bind(self, value: Any) -> Any:
        return self._emit(value, self._name)


def owner_reductions(
    fields: Mapping[int, Any],
    readers: Mapping[Any, Sequence[Any]],
    values: Mapping[Any, Any],
    keys: GatheredTensor,
) -> dict[int, Any] | None:
    """Return what reduces the gradients of keys and values to their owners, by field.

    None where something else reads them. ``fields`` are variables by the number of the field.
    """
    result = {}
    for number, field in fields.items():
        if number == 0:
            continue
        (reader, *others) = readers.get(field, ()) or (None,)
        value: Any = values.get(reader)
        if others or dist_op_name(value) != "reduce_scatter" or call_axes(value) != (keys.axis,):
            return None
        attrs = value.attrs
        if str(attrs["device_mesh"]) != str(keys.mesh) or str(attrs["op"]) != "sum":
            return None
        if int(attrs["dim"]) != 1:
            return None
        result[number] = reader
    return result
