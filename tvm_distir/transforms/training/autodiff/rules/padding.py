# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of padding, added back to where the padding was copied from."""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import add, flip, strided_slice
from tvm.relax.op import sum as sum_op

from .registry import Gradients, padded, refuse, register_gradient, shape_of


@register_gradient("nn.pad")
def _pad(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``pad``: slice off the padding, or add it to the elements it copies."""
    mode = str(call.attrs.pad_mode)
    widths = [int(n) for n in call.attrs.pad_width]
    if mode == "constant":
        return [relax.op.nn.pad(grad, [-n for n in widths], pad_value=0.0)]
    if mode not in ("reflect", "replicate", "circular") or min(widths) < 0:
        raise refuse(call, f'the gradient of a padding of mode "{mode}" is not known')
    for d, n in enumerate(shape_of(call.args[0])):
        before, after = widths[2 * d], widths[2 * d + 1]
        if not before and not after:
            continue
        if (
            max(before, after) > (int(n) - 1 if mode == "reflect" else int(n))
            and mode != "replicate"
        ):
            raise refuse(call, f"the gradient of {before} and {after} rows around {n} is not known")
        grad = _folded(grad, d, int(n), (before, after), mode, builder)
    return [grad]


def _folded(
    grad: Expr, d: int, n: int, pads: tuple[int, int], mode: str, builder: BlockBuilder
) -> Var:
    """Fold the gradient of a padded dim into that of its n rows."""
    before, after = pads

    def rows(low: int, count: int) -> Var:
        return builder.emit(strided_slice(grad, [d], [low], [low + count]))

    total = rows(before, n)
    for low, count in ((0, before), (before + n, after)):
        if not count:
            continue
        part, front = rows(low, count), low == 0
        if mode == "reflect":
            part, start = builder.emit(flip(part, d)), 1 if front else n - 1 - count
        elif mode == "replicate":
            part, start = builder.emit(sum_op(part, d, keepdims=True)), 0 if front else n - 1
        else:
            start = n - count if front else 0
        spread = padded(part, {d: (start, n - start - int(shape_of(part)[d]))})
        total = builder.emit(add(total, builder.emit(spread)))
    return total
