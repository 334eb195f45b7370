# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe matrix products and sums of products as products of batches of matrices.

Each operand is seen as ``(batch, rows, contracted)`` or ``(batch, contracted, columns)`` and the
result as ``(batch, rows, columns)``, where each of the three is a group of dims. A library makes
such views of the tensors of TVM; only dims that are no single stride need a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx

Labels = Sequence[object]


@dataclass(frozen=True)
class Contraction:
    """A product of two tensors.

    Attributes
    ----------
    orders : tuple of tuple of int
        The dims of the left operand, the right one and the result, by groups.
    cuts : tuple of int
        Where the second and the third group of each of the three begin.
    """

    orders: tuple[tuple[int, ...], ...]
    cuts: tuple[int, ...]


def contraction_of(call: ir.Call) -> tuple[Contraction, list[ir.Expr]] | None:
    """Return a ``matmul`` or ``einsum`` as a contraction, and its operands.

    None for an ``einsum`` that is no product of two operands with a sum over both.
    """
    if str(call.op.name) == "relax.einsum":
        operands = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        labels = _einsum_labels(str(call.attrs.subscripts), len(operands))
    else:
        operands = list(call.args)
        labels = _matmul_labels(*(list(x.ty.shape) for x in operands))
    found = None if labels is None else _grouped(*labels)
    return None if found is None else (found, operands)


def _einsum_labels(subscripts: str, count: int) -> tuple[Labels, Labels, Labels] | None:
    terms = subscripts.replace(" ", "").replace("->", ",").split(",")
    plain = "->" in subscripts and "." not in subscripts and count == 2 and len(terms) == 3
    if not plain or any(len(set(term)) != len(term) for term in terms):
        return None
    return terms[0], terms[1], terms[2]


def _is_one(size: ir.Expr) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


def _matmul_labels(left: list[ir.Expr], right: list[ir.Expr]) -> tuple[Labels, Labels, Labels]:
    """Label the dims; one that is repeated along the other operand has a label of its own."""
    rows = ["rows"] if len(left) > 1 else []
    columns = ["columns"] if len(right) > 1 else []
    depth = max(len(left), len(right)) - 2
    a: list[object] = [*rows, "contracted"]
    b: list[object] = ["contracted", *columns]
    out: list[object] = [*rows, *columns]
    for position in range(1, depth + 1):  # from the last batch dim
        sizes = [
            shape[-2 - position] if len(shape) >= 2 + position else None for shape in (left, right)
        ]
        repeated = [
            size is None or (_is_one(size) and other is not None and not _is_one(other))
            for size, other in zip(sizes, sizes[::-1])
        ]
        for labels, size, is_repeated in zip((a, b), sizes, repeated):
            if size is not None:
                labels.insert(0, ("unit", position) if is_repeated else position)
        out.insert(0, position)
    return a, b, out


def _grouped(a: Labels, b: Labels, out: Labels) -> Contraction | None:
    """Sort the dims of each tensor into groups.

    A dim of size one that is repeated belongs to the rows or columns of its operand, and to no dim
    of the result.
    """
    batch = [x for x in out if x in a and x in b]
    contracted = [x for x in a if x in b and x not in out]
    rows = [x for x in a if x not in b]
    columns = [x for x in b if x not in a]
    summed = [x for x in (*rows, *columns) if x not in out and not isinstance(x, tuple)]
    if not contracted or summed or any(x not in a and x not in b for x in out):
        return None
    if not batch:
        batch = _batched(a, rows, out) or _batched(b, columns, out)
    rows, columns = ([x for x in group if x not in batch] for group in (rows, columns))
    kept_rows, kept_columns = ([x for x in group if x in out] for group in (rows, columns))
    orders, cuts = [], []
    for labels, groups in (
        (a, (batch, rows, contracted)),
        (b, (batch, contracted, columns)),
        (out, (batch, kept_rows, kept_columns)),
    ):
        present = [[x for x in group if x in labels] for group in groups]
        orders.append(tuple(list(labels).index(x) for group in present for x in group))
        cuts += [len(present[0]), len(present[0]) + len(present[1])]
    return Contraction(tuple(orders), tuple(cuts))


def _batched(labels: Labels, group: list[object], out: Labels) -> list[object]:
    """Return the first rows or columns of an operand that are no single stride with the last.

    As dims of a batch along which the other operand is repeated they need no copy: the matrices of
    experts ``(expert, contracted, columns)``, which all read the same rows.
    """
    indices = [list(labels).index(x) for x in group]
    split = next((n for n in range(len(indices) - 1, 0, -1) if indices[n] != indices[n - 1] + 1), 0)
    return [x for x in group[:split] if x in out]
