# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define kernels of products of rows with the matrices of their groups.

Sums of half precision are accumulated in float32, as PyTorch's grouped products are.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, te, tirx
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.core.ir.operators import GROUPED_MATMUL_OP, GROUPED_OUTER_OP, accumulated


def _te_matmul(x: te.Tensor, w: te.Tensor, ids: te.Tensor) -> te.Tensor:
    rows, inner = x.shape
    count, _, columns = w.shape
    wide = accumulated(str(x.dtype))
    along = te.reduce_axis((0, inner), name="along")

    def product(i: Var, j: Var) -> Expr:
        group = ids(i)
        near = tirx.max(tirx.min(group, count - 1), 0)
        term = x(i, along).astype(wide) * w(near, along, j).astype(wide)
        inside = tirx.all(group >= 0, group < count)
        return te.sum(tirx.Select(inside, term, tirx.const(0, wide)), axis=along)

    total = te.compute((rows, columns), product, name="grouped_matmul")
    return te.compute((rows, columns), lambda *at: total(*at).astype(x.dtype), name="rounded")


def _te_outer(x: te.Tensor, y: te.Tensor, ids: te.Tensor, local_groups: int) -> te.Tensor:
    rows, first = x.shape
    second = y.shape[1]
    wide = accumulated(str(x.dtype))
    along = te.reduce_axis((0, rows), name="along")

    def product(e: Var, i: Var, j: Var) -> Expr:
        term = x(along, i).astype(wide) * y(along, j).astype(wide)
        chosen = ids(along) == e.astype(ids.dtype)
        return te.sum(tirx.Select(chosen, term, tirx.const(0, wide)), axis=along)

    shape = (local_groups, first, second)
    total = te.compute(shape, product, name="grouped_outer")
    return te.compute(shape, lambda *at: total(*at).astype(x.dtype), name="rounded")


def _matmul(builder: BlockBuilder, call: ir.Call) -> Expr:
    return builder.call_te(_te_matmul, *call.args, primfunc_name_hint="grouped_matmul")


def _outer(builder: BlockBuilder, call: ir.Call) -> Expr:
    local_groups = int(call.attrs["held"])
    return builder.call_te(_te_outer, *call.args, local_groups, primfunc_name_hint="grouped_outer")


GROUPED_KERNELS: dict[str, Callable[[BlockBuilder, ir.Call], Expr]] = {
    GROUPED_MATMUL_OP: _matmul,
    GROUPED_OUTER_OP: _outer,
}
"""The kernel of each op, by its name."""
