# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decode steps of one attention layer: the cache as tensors, or as an opaque object."""

from __future__ import annotations

import numpy as np
from tvm import ir, relax, tirx

from tvm_distir.execution.verification.random_inputs import draw_inputs

B, H, T, D = 4, 4, 6, 8
E = H * D
F, I64 = "float32", "int64"
op = relax.op

UPDATES = ("concat", "window", "scatter_elements", "scatter_nd", "slice_scatter", "where")


def var(name, shape, dtype=F):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def weights():
    return [var(name, (E, E)) for name in ("wq", "wk", "wv", "wo")]


def position(update):
    """The parameter that says where the new row goes."""
    shapes = {"scatter_nd": (B, 2), "scatter_elements": (B, 1, H, D), "where": ()}
    return [var("pos", shapes[update], I64)] if update in shapes else []


def updated(update, cache, row, pos):
    """The cache with one more row, or one row replaced."""
    if update == "concat":
        return op.concat([cache, row], axis=1)
    if update == "window":
        return op.concat([op.strided_slice(cache, [1], [1], [T]), row], axis=1)
    if update == "scatter_elements":
        return op.scatter_elements(cache, pos[0], row, axis=1)
    if update == "scatter_nd":
        return op.scatter_nd(cache, pos[0], op.squeeze(row, [1]), "update")
    if update == "slice_scatter":
        return op.slice_scatter(cache, row, 2, 3, 1, axis=1)
    places = op.reshape(op.arange(0, T, 1, I64), [1, T, 1, 1])
    return op.where(op.equal(places, pos[0]), row, cache)


def tensor_cache(update):
    """``main(x, k_cache, v_cache, pos?, wq, wk, wv, wo) -> (y, k_cache, v_cache)``."""
    bb = relax.BlockBuilder()
    x, kc, vc = var("x", (B, 1, E)), var("k_cache", (B, T, H, D)), var("v_cache", (B, T, H, D))
    pos, (wq, wk, wv, wo) = position(update), weights()
    with bb.function("main", [x, kc, vc, *pos, wq, wk, wv, wo]):
        with bb.dataflow():
            q, k, v = (bb.emit(op.reshape(op.matmul(x, w), [B, 1, H, D])) for w in (wq, wk, wv))
            keys = bb.emit(updated(update, kc, k, pos), "keys")
            values = bb.emit(updated(update, vc, v, pos), "values")
            scores = op.matmul(
                op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(keys, [0, 2, 3, 1])
            )
            weighed = op.matmul(op.nn.softmax(scores), op.permute_dims(values, [0, 2, 1, 3]))
            joined = bb.emit(op.reshape(op.permute_dims(weighed, [0, 2, 1, 3]), [B, 1, E]))
            outs = [bb.emit_output(op.matmul(joined, wo)), bb.emit_output(keys)]
            outs.append(bb.emit_output(values))
        bb.emit_func_output(relax.Tuple(outs))
    return bb.finalize()


def inputs_of(mod, update):
    """Drawn inputs, with positions that exist."""
    result = list(draw_inputs(mod, seed=1))
    names = [str(p.name) for p in mod["main"].params]
    rows = np.stack([np.arange(B), np.array([2, 5, 0, 3])], 1).astype(I64)
    created = {
        "scatter_nd": rows,
        "scatter_elements": np.full((B, 1, H, D), 3, I64),
        "where": np.array(4, I64),
    }
    if update in created:
        result[names.index("pos")] = created[update]
    return result


def packed(bb, name, *args, ty=None):
    """Emit ``R.call_packed``."""
    call = ir.Call(
        relax.ExternFunc(name), list(args), None, [relax.AnyType() if ty is None else ty]
    )
    return bb.emit(call)


def object_cache(steps=2):
    """Caches made from ``k0`` and ``v0``; ``steps`` tokens decoded one after the other."""
    bb = relax.BlockBuilder()
    tokens = [var(f"x{i}", (1, E)) for i in range(steps)]
    k0, v0, (wq, wk, wv, wo) = var("k0", (T, H, D)), var("v0", (T, H, D)), weights()
    name = "vm.builtin.attention_kv_cache_"
    capacity, outs = relax.ShapeExpr([16, H, D]), []
    with bb.function("main", [*tokens, k0, v0, wq, wk, wv, wo], pure=False):
        caches = [
            packed(bb, f"{name}create", first, capacity, tirx.IntImm(I64, T)) for first in (k0, v0)
        ]
        for i, x in enumerate(tokens):
            q, *rows = (bb.emit(op.reshape(op.matmul(x, w), [1, H, D])) for w in (wq, wk, wv))
            caches = [packed(bb, f"{name}append", c, r) for c, r in zip(caches, rows)]
            size = [T + 1 + i, H, D]
            keys, values = (
                packed(bb, f"{name}view", c, relax.ShapeExpr(size), ty=relax.TensorType(size, F))
                for c in caches
            )
            scores = op.matmul(op.permute_dims(q, [1, 0, 2]), op.permute_dims(keys, [1, 2, 0]))
            weighed = op.matmul(op.nn.softmax(scores), op.permute_dims(values, [1, 0, 2]))
            joined = bb.emit(op.reshape(op.permute_dims(weighed, [1, 0, 2]), [1, E]))
            outs.append(bb.emit(op.matmul(joined, wo)))
        bb.emit_func_output(relax.Tuple(outs))
    return bb.finalize()
