# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute attention ops of keys that are gathered along a ring by key blocks or as products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import ATTENTION_BACKWARD_OP, ATTENTION_OP, call_axes, ops
from tvm_distir.core.rewriting import op_name, scalar
from tvm_distir.transforms.kernels.written_attention import (
    WRITTEN_ATTENTION,
    written_attention,
)

from .binding_rewriter import Editor
from .function_facts import Scan
from .ring_fused import FusedRing, is_by_blocks, owner_reductions
from .ring_sources import ATTENTION, GatheredTensor, match_ring_gather


def _is_fused(value: Any) -> bool:
    name = str(getattr(getattr(value, "op", None), "name", ""))
    return name in (ATTENTION_OP, ATTENTION_BACKWARD_OP)


class _Emitting:
    """The method ``emit`` of a block builder, for an editor."""

    def __init__(self, editor: Editor, name: str) -> None:
        self._editor, self._name = editor, name

    def emit(self, value: Any) -> Any:
        """Bind a value."""
        return self._editor.emit(value, self._name)


class RingAttentionOps(Editor):
    """Rewriter of attention ops whose keys and values are gathered along a ring for them alone.

    ``R.dist.attention`` stays a kernel per key block (:mod:`.ring_fused`). What has a bias or
    padded keys, and ``nn.attention``, becomes products, which :func:`.ring.RingAttention` writes
    by blocks.

    Operands ``(batch, positions, heads, width)``; heads come first in the products. Queries that
    are whole under a causal mask are left: no device has a part of them to itself.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        name: str,
        fn: relax.Function,
        scan: Scan,
        axes: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__(mod, name, fn, scan)
        self._axes = axes
        self._attention = {v for v, value in scan.values.items() if op_name(value) in ATTENTION}
        fused = {v for v, value in scan.values.items() if _is_fused(value)}
        self._fused: dict[Any, Any] = dict.fromkeys(fused)
        self._fields = {
            v
            for v, value in scan.values.items()
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in fused
        }
        self._reduced: dict[Any, Any] = {}
        self.watched.update(self._attention | fused | self._fields)

    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
        """Replace an attention op."""
        if var in self._reduced:
            return self._reduced[var]
        if var in self._fused:
            return self._around(var, value)
        if var in self._fields:
            fields = self._fused[value.tuple_value]
            return value if fields is None else fields.fields[int(value.index)]
        if var not in self._attention or value.attrs.causal_mask is not None:
            return value
        keys, values = (match_ring_gather(x, self.scan.values, self._axes) for x in value.args[1:3])
        if keys is None or values is None or (keys.dim, values.dim) != (1, 1):
            return value
        name, query = str(var.name), value.args[0]
        attr = value.attrs.scale
        scale = 1 / math.sqrt(int(query.ty.shape[3])) if attr is None else float(attr)
        turned = self.emit(relax.op.permute_dims(query, [0, 2, 1, 3]), f"{name}_queries")
        scores = relax.op.matmul(turned, self._again(keys, [0, 2, 3, 1], f"{name}_keys"))
        scores = self.emit(scores, f"{name}_scores")
        factor = scalar(scale, str(query.ty.dtype))
        scores = self.emit(relax.op.multiply(scores, factor), f"{name}_scores")
        if len(value.args) > 3:
            scores = self.emit(relax.op.add(scores, value.args[3]), f"{name}_scores")
        weights = self.emit(relax.op.nn.softmax(scores, -1), f"{name}_weights")
        mixed = relax.op.matmul(weights, self._again(values, [0, 2, 1, 3], f"{name}_values"))
        mixed = self.emit(mixed, f"{name}_mixed")
        return self.normalize(relax.op.permute_dims(mixed, [0, 2, 1, 3]))

    def _around(self, var: Any, call: ir.Call) -> Any:
        """Compute ``R.dist.attention``, or its gradients, by key blocks, or write it out."""
        gathers = [match_ring_gather(x, self.scan.values, self._axes) for x in call.args[1:3]]
        if any(gather is None or gather.dim != 1 for gather in gathers):
            return call
        keys, values = gathers
        name, kind = str(var.name), str(call.op.name)
        if keys is not None and values is not None and is_by_blocks(call, gathers):
            ring = FusedRing(self.emit, call, keys, values, name)
            if kind == ATTENTION_OP:
                return self._bound(var, relax.Tuple(ring.forward()))
            reductions = self._reductions(var, keys)
            if kind == ATTENTION_BACKWARD_OP and reductions is not None:
                gradients = ring.backward()
                for number, reduced in reductions.items():
                    self._reduced[reduced] = gradients[number]
                return self._bound(var, relax.Tuple(gradients))
        writer = _Emitting(self, name)
        if kind == ATTENTION_OP:
            return self._bound(var, written_attention(writer, call, guarded=False))
        return self._bound(var, WRITTEN_ATTENTION[kind](writer, call))

    def _bound(self, var: Any, fields: Any) -> Any:
        """Replace a call by its fields."""
        self._fused[var] = fields
        return self.normalize(fields)

    def _reductions(self, var: Any, keys: GatheredTensor) -> dict[int, Any] | None:
        """Return the reductions of gradients to the owners of keys, by field."""
        fields = {
            int(self.scan.values[reader].index): reader
            for reader in self.scan.readers.get(var, ())
            if reader in self._fields
        }
        return owner_reductions(fields, self.scan.readers, self.scan.values, keys)

    def _again(self, gathered: GatheredTensor, order: list[int], name: str) -> Any:
        """Gather a block again, with its dims in another order."""
        call, dim = gathered.call, order.index(1)
        block = self.emit(relax.op.permute_dims(gathered.block, order), name)
        mesh, (axis,) = call.attrs["device_mesh"], call_axes(call)
        whole = self.emit(ops.all_gather(block, mesh, axis, dim), name)
        if int(whole.ty.shape[dim]) == gathered.whole:
            return whole
        return self.emit(relax.op.strided_slice(whole, [dim], [0], [gathered.whole]), name)
