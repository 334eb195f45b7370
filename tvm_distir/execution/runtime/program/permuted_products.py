# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let products read permuted tensors in the order in which they are stored.

Before::

    w_t = R.permute_dims(w)
    y = R.matmul(x, w_t)

After, where nothing else reads ``w_t``::

    y = R.einsum((x, w), subscripts="abd,cd->abc")

A GPU's schedule of a product copies tiles to shared memory in any order, so that a kernel that only
transposes a weight is work without a use.
"""

from __future__ import annotations

import string

from tvm import ir, relax

from tvm_distir.core.rewriting import Replacements, replaced_calls
from tvm_distir.execution.runtime.dispatch.contractions import Contraction, contraction_of
from tvm_distir.execution.runtime.dispatch.permuted_operands import (
    composed,
    merge_permutations,
    viewed,
)


def _subscripts(product: Contraction, orders: list[list[int]]) -> str | None:
    """Return the subscripts of a product of tensors with these orders of dims.

    None where a dim of size one is repeated along the other operand.
    """
    (a, b, out), cuts = product.orders, product.cuts
    batch, rows, columns = cuts[4], cuts[5] - cuts[4], len(out) - cuts[5]
    if (cuts[1] - cuts[0], len(b) - cuts[3]) != (rows, columns):
        return None
    letters = iter(string.ascii_lowercase)
    sizes = (batch, rows, len(a) - cuts[1], columns)
    shared, left, summed, right = ([next(letters) for _ in range(n)] for n in sizes)
    # An operand that is repeated along the batch has none of its dims.
    groups = (
        shared[: cuts[0]] + left + summed,
        shared[: cuts[2]] + summed + right,
        shared + left + right,
    )
    terms = [
        "".join(name for _, name in sorted(zip(order, names, strict=True)))
        for order, names in zip((*orders, out), groups, strict=True)
    ]
    return f"{terms[0]},{terms[1]}->{terms[2]}"


def _product(builder: relax.BlockBuilder, call: ir.Call) -> ir.Expr | None:
    contraction = contraction_of(call)
    if contraction is None or len({str(x.ty.dtype) for x in (*contraction[1], call)}) != 1:
        return None
    product, operands = contraction
    sources = [viewed(builder, x, order) for x, order in zip(operands, product.orders)]
    if all(source.same_as(x) for (source, _), x in zip(sources, operands)):
        return None
    subscripts = _subscripts(product, [[int(dim) for dim in order.values] for _, order in sources])
    return subscripts and relax.op.einsum([source for source, _ in sources], subscripts)


_PERMUTED: Replacements = {
    "relax.matmul": _product,
    "relax.einsum": _product,
    "relax.permute_dims": composed,
}


def read_permuted(mod: ir.IRModule) -> ir.IRModule:
    """Return a module whose products read what their permuted operands permute."""
    return merge_permutations(replaced_calls(mod, _PERMUTED))
