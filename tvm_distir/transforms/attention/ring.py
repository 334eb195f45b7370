# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute attention block by block around a ring (level 5), so no device holds all keys.

Liu et al. 2023, "Ring Attention with Blockwise Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.ir.operators import (
    ATTENTION_BACKWARD_OP,
    ATTENTION_BIAS_OP,
    ATTENTION_OP,
    AttentionOptions,
    call_axes,
    dist_op_name,
)
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import op_name
from tvm_distir.support import LoweringError
from tvm_distir.transforms.optimize.binding_rewriter import Editor, FunctionStep, stepped
from tvm_distir.transforms.optimize.named_axes import numbers_of_axes

from .masks import MaskReader
from .matching import Matcher, Unmatched
from .ring_blocks import RingBlocks
from .ring_gathers import Axes, GatheredTensor, match_ring_gather, reads_gathered_keys

REMEDY = 'Use "context_parallel:form=all_to_all" or "form=gather".'
_OPS = (ATTENTION_OP, ATTENTION_BACKWARD_OP, ATTENTION_BIAS_OP)
_POSITIONS = 1
"""The dim of keys and values that is cut into blocks."""


@module_pass("local")
def RingAttention(axes: Sequence[str] = ()) -> Rewrite:
    """Pass keys and values of attention around a ring instead of gathering them.

    Where the keys and values of ``R.dist.attention`` are gathered along a mesh axis of ``n``
    devices, each device starts with its own block of them and hands what it has to the next one,
    ``n - 1`` times, by ``collective_permute``. The op computes the results of its queries and each
    block, told where the block is and with the bias cut to it, and they are joined by their
    log-sum-exps, in float32 at least. As many bytes are sent as by the gathers; one block is held
    besides the own one. Sums are in another order.

    In training the backward pass does the same, and what is reduced to the owners of keys and
    values, their gradients, follows these around.

    Parameters
    ----------
    axes : sequence of str
        Names of the mesh axes; without any, nothing changes.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises MeshError DIST0206 if no mesh has such an axis, LoweringError DIST0511 if
        softmax attention that is no op reads keys that are gathered along one, or no op does.
    """

    def ring_attention(mod: ir.IRModule) -> ir.IRModule:
        numbers = numbers_of_axes(mod, axes, "RingAttention")
        new = stepped(mod, [FunctionStep(_Ring, ("all_gather",), axes=numbers)], 5)
        if new is mod and axes:
            raise LoweringError(
                "DIST0511",
                f"no attention gathers keys and values along {' or '.join(axes)}",
                location=", ".join(str(gv.name_hint) for gv, _ in relax_functions(mod)),
                remedy=REMEDY,
            )
        return new

    return ring_attention


class _Ring(Editor):
    """Rewriter of attention ops whose keys and values are gathered along a ring for them alone."""

    def prepare(self, axes: Axes) -> None:
        """Take the axes that are rings, and watch attention and fields."""
        self._axes = axes
        self._fields: dict[Var, list[Expr]] = {}
        self._reduced: dict[Var, Expr] = {}
        for var, value in self.scan.values.items():
            op = getattr(value.op, "name", "") if isinstance(value, ir.Call) else ""
            if str(op) in _OPS or isinstance(value, relax.TupleGetItem):
                self.watched.add(var)
            elif reads_gathered_keys(value, self.scan.values, axes):
                raise self._refused(var, value)

    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Replace an attention op, a field of its result, or a reduction of a gradient."""
        if var in self._reduced:
            return self._reduced[var]
        if isinstance(value, relax.TupleGetItem):
            fields = self._fields.get(value.tuple_value)
            return value if fields is None else fields[int(value.index)]
        if str(value.op.name) not in _OPS:
            return value
        if AttentionOptions.of(value).documents:
            problem = "a block of keys on a ring does not say where packed documents begin"
            remedy = "Gather keys and values: context_parallel:form=gather."
            raise LoweringError(
                "DIST0511", problem, location=f"{self.name}/{var.name}", remedy=remedy
            )
        keys, values = (match_ring_gather(x, self.scan.values, self._axes) for x in value.args[1:3])
        if keys is None or values is None or (keys.dim, values.dim) != (_POSITIONS, _POSITIONS):
            return value
        if not keys.is_cut_as(values):
            problem = (
                "its keys and values are gathered along different axes, or in different blocks"
            )
            raise LoweringError(
                "DIST0511", problem, location=f"{self.name}/{var.name}", remedy=REMEDY
            )
        return self._around(var, value, RingBlocks(self.emit, value, keys, values, var.name), keys)

    def _around(self, var: Var, call: ir.Call, ring: RingBlocks, keys: GatheredTensor) -> Expr:
        """Return what replaces a call."""
        if str(call.op.name) == ATTENTION_BIAS_OP:
            return ring.bias_gradient()
        if str(call.op.name) == ATTENTION_OP:
            fields = ring.forward()
        else:
            reductions = self._reductions(var, keys)
            fields = ring.backward(travels=reductions is not None)
            self._reduced.update({v: fields[i] for v, i in (reductions or {}).items()})
        self._fields[var] = fields
        return self.normalize(relax.Tuple(fields))

    def _reductions(self, var: Var, keys: GatheredTensor) -> dict[Any, int] | None:
        """Return what reduces the gradients of keys and values to their owners, by field.

        None where something else reads them.
        """
        result = {}
        for field in self.scan.readers.get(var, ()):
            number = self._number(field)
            if number == 0 or not self.scan.readers.get(field):
                continue
            reader = self._only_reader(field)
            if op_name(self.scan.values.get(reader)) == "nn.pad":
                reader = self._only_reader(reader)
            value: Any = self.scan.values.get(reader)
            if dist_op_name(value) != "reduce_scatter" or call_axes(value) != (keys.axis,):
                return None
            attrs = value.attrs
            known = str(attrs["device_mesh"]), str(attrs["op"]), int(attrs["dim"])
            if known != (str(keys.mesh), "sum", _POSITIONS):
                return None
            result[reader] = number
        return result

    def _number(self, field: Any) -> int:
        """Return the number of a field; -1 for another reader of a result."""
        value: Any = self.scan.values.get(field)
        return int(value.index) if isinstance(value, relax.TupleGetItem) else -1

    def _only_reader(self, var: Var) -> Any:
        readers = self.scan.readers.get(var, ())
        return readers[0] if len(readers) == 1 else None

    def _refused(self, var: Var, value: Any) -> LoweringError:
        """Return the error of attention that is no op, with the reason."""
        why = "FuseAttention has not run before"
        if op_name(value) == "nn.softmax":
            values, readers = self.scan.values, self.scan.readers
            try:
                Matcher(values, readers, MaskReader(values, _unknown, _unknown)).match(var)
            except Unmatched as reason:
                why = f"FuseAttention does not recognize it: {reason}"
        return LoweringError(
            "DIST0511",
            f"{op_name(value)} reads products with keys that are gathered along a ring axis. {why}",
            location=f"{self.name}/{var.name}",
            remedy="Make a training step of a model whose attention is an op: "
            f"td.train_step(FuseAttention()(model)). {REMEDY}",
        )


def _unknown(_: Any) -> None:
    """Know nothing of a parameter, or of a call."""
