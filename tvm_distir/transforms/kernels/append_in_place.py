# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Append to a cache without copying it, where its memory may be overwritten."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, te, tirx
from tvm.relax import BlockBuilder, Expr
from tvm.script.ir_builder import tirx as T

from tvm_distir.core.ir.operators import overwrites_cache

from .parallel_loops import is_on_gpu, parallel, written_kernel
from .written_paged_attention import append_operands, written_append


def appended(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Write out an append: into the cache itself if it is donated, else into a copy."""
    if not overwrites_cache(call):
        return written_append(builder, call)
    cache = call.args[0]
    index, rows = append_operands(builder, call)
    sizes = ([int(n) for n in x.ty.shape] for x in (index, rows, cache))
    name = builder.add_func(_kernel(*sizes, dtype=str(cache.ty.dtype)), "append_in_place")
    return relax.op.call_tir_inplace(name, [index, rows, cache], [2], cache.ty)


def _kernel(index: list[int], rows: list[int], cache: list[int], *, dtype: str) -> tirx.PrimFunc:
    """Return the function that writes rows to their pools, pages and positions.

    Shapes: ``index (B, S, 3)``, ``rows (B, S, K, D)``, ``cache (P, N, R, K, D)``. A row whose pool
    does not exist is not written.
    """
    pools, pages, positions = cache[:3]
    width = rows[2] * rows[3]

    def write(indices: Any, values: Any, out: Any) -> None:
        with parallel(rows[0] * rows[1] * width, is_on_gpu()) as element:
            token, feature = element // width, element % width
            pool, page, row = (indices[token * 3 + i] for i in range(3))
            offset = ((pool * pages + page) * positions + row) * width + feature
            with T.If(pool < pools), T.Then():
                out[offset] = values[element]

    operands = [te.placeholder(index, "int64", "index"), te.placeholder(rows, dtype, "rows")]
    result = written_kernel("append_in_place", operands, ("cache", cache, dtype), write)
    return te.create_prim_func([*operands, result]).without_attr("global_symbol")
