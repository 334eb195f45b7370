# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of matrix products and of sums over subscripts."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import astype, broadcast_to, einsum, matmul, multiply, permute_dims, reshape

from tvm_distir.core.ir.operators import grouped_matmul, grouped_outer

from .registry import Gradients, fitted, refuse, register_gradient, shape_of
from .transposes import transposed_from

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register_gradient("matmul")
def _matmul(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``x @ w``; that of a weight matrix contracts all leading dims at once.

    TVM sums the products of every leading index afterwards, which needs them all in memory. The
    gradient of a wider result is rounded to the type of the operands. That of a transposed weight
    is written as the transposed one of the weight's, which :meth:`.reverse.Reverse.give` passes on.
    """
    x, w = call.args
    if grad.ty.dtype != x.ty.dtype:
        grad = builder.emit(astype(grad, str(x.ty.dtype)))
    if min(len(shape_of(x)), len(shape_of(w))) < 2:
        return list(call.op.get_attr("FPrimalGradient")(_, call, grad, builder))
    through = matmul(grad, _transposed(w, builder))
    if len(shape_of(w)) == 2 and len(shape_of(x)) > 2:
        lead = "abcdefgh"[: len(shape_of(x)) - 1]
        if transposed_from(builder, w, [1, 0]) is not None:
            return [through, permute_dims(einsum((x, grad), f"{lead}x,{lead}y->yx"), [1, 0])]
        return [through, einsum((x, grad), f"{lead}x,{lead}y->xy")]
    by_w = matmul(_transposed(x, builder), grad)
    return [fitted(builder, through, x), fitted(builder, by_w, w)]


def _transposed(matrix: Var, builder: BlockBuilder) -> Var:
    """Swap the last two dims, or undo an existing transposition.

    So the backward pass of a product with a transposed weight reads the weight, of which no
    transposed copy lives from the forward pass to the backward pass.
    """
    order = list(range(len(shape_of(matrix))))
    order[-2:] = reversed(order[-2:])
    source = transposed_from(builder, matrix, order)
    return source if source is not None else builder.emit(permute_dims(matrix, order))


@register_gradient("dist.grouped_matmul")
def _grouped_matmul(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate by rows and by matrices; the ids have no gradient."""
    x, w, ids = call.args
    groups = int(call.attrs["groups"])
    by_rows = grouped_matmul(grad, _transposed(w, builder), ids, groups)
    if transposed_from(builder, w, [0, 2, 1]) is not None:
        turned = builder.emit(grouped_outer(grad, x, ids, groups, int(w.ty.shape[0])))
        return [by_rows, permute_dims(turned, [0, 2, 1]), None]
    return [by_rows, grouped_outer(x, grad, ids, groups, int(w.ty.shape[0])), None]


@register_gradient("dist.grouped_outer")
def _grouped_outer(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate by the rows of both operands; the ids have no gradient."""
    x, y, ids = call.args
    groups = int(call.attrs["groups"])
    by_x = grouped_matmul(y, builder.emit(permute_dims(grad, [0, 2, 1])), ids, groups)
    return [by_x, grouped_matmul(x, grad, ids, groups), None]


@register_gradient("outer")
def _outer(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    a, b = call.args
    return [matmul(grad, b), matmul(a, grad)]


def _written_out(text: str, ranks: list[int], call: ir.Call) -> tuple[list[str], str]:
    """Return the subscripts of operands and result with ellipses expanded to letters."""
    text = text.replace(" ", "")
    left, _, right = text.partition("->")
    parts = left.split(",")
    spare = [c for c in LETTERS if c not in text]
    hidden = [n - len(p.replace("...", "")) for p, n in zip(parts, ranks, strict=True)]
    most = max([h for h, p in zip(hidden, parts, strict=True) if "..." in p], default=0)
    batch = "".join(spare[:most])
    parts = [
        p.replace("...", batch[most - h :] if h else "") for p, h in zip(parts, hidden, strict=True)
    ]
    if "->" in text:
        return parts, right.replace("...", batch)
    named = "".join(parts)
    once = sorted(c for c in set(named) if named.count(c) == 1 and c not in batch)
    return parts, batch + "".join(once)


@register_gradient("einsum")
def _einsum(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``einsum``: contract the gradient with the other operands.

    What only that operand has was summed alone: there it gets the same everywhere.
    """
    operands = list(call.args[0].fields)
    shapes = [shape_of(x) for x in operands]
    parts, result = _written_out(str(call.attrs.subscripts), [len(s) for s in shapes], call)
    extents: dict[str, Any] = {}
    for subscripts, shape in zip(parts, shapes, strict=True):
        for c, n in zip(subscripts, shape, strict=True):
            if extents.setdefault(c, n) != n:
                raise refuse(call, f'the gradient with "{c}" broadcast is not known')
    gradients = []
    for k, subscripts in enumerate(parts):
        others = [(p, x) for i, (p, x) in enumerate(zip(parts, operands, strict=True)) if i != k]
        gradients.append(_by_operand(call, subscripts, shapes[k], [*others, (result, grad)]))
    return [relax.Tuple(gradients)]


def _by_operand(call: ir.Call, subscripts: str, shape: Any, terms: list[tuple[str, Any]]) -> Expr:
    """Return the gradient of the operand with the given subscripts."""
    if len(set(subscripts)) != len(subscripts):
        return _diagonal(call, subscripts, shape, terms)
    known = "".join(c for c in subscripts if any(c in p for p, _ in terms))
    text = ",".join(p for p, _ in terms)
    value: Any = terms[-1][1]
    if len(terms) > 1 or terms[0][0] != known:
        value = einsum(tuple(x for _, x in terms), f"{text}->{known}")
    if known == subscripts:
        return value
    unit_shape = [n if c in known else 1 for c, n in zip(subscripts, shape, strict=True)]
    return broadcast_to(reshape(value, unit_shape), shape)


def _diagonal(call: ir.Call, subscripts: str, shape: Any, terms: list[tuple[str, Any]]) -> Expr:
    """Return the gradient of an operand read along a diagonal, with zeros elsewhere."""
    single = "".join(dict.fromkeys(subscripts))
    value = _by_operand(call, single, [shape[subscripts.index(c)] for c in single], terms)
    for c in single:
        if len([d for d, letter in enumerate(subscripts) if letter == c]) > 2:
            raise refuse(call, f'the gradient with "{c}" three times in an operand is not known')
    wide = reshape(
        value, [shape[d] if subscripts.index(c) == d else 1 for d, c in enumerate(subscripts)]
    )
    for c in single:
        first, last = subscripts.index(c), subscripts.rindex(c)
        if first != last:
            eye = relax.op.eye(int(shape[first]), dtype=str(terms[-1][1].ty.dtype))
            spread = [shape[first] if d in (first, last) else 1 for d in range(len(subscripts))]
            wide = multiply(wide, reshape(eye, spread))
    return wide
