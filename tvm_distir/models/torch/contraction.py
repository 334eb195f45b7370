# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate products of matrices, attention and convolutions.

TVM's importer gives products the type float32 whatever their operands have; here they keep it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import HALVES, Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, constant

_op = relax.op
_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


def _product(call: AtenCall) -> Expr:
    return call.emit(_op.matmul(*(call[name] for name in call.names[:2])))


def _product_and_sum(call: AtenCall) -> Expr:
    """Return ``beta * self + alpha * first @ second``."""
    product = call.emit(_op.matmul(*(call[name] for name in call.names[1:3])))
    product = call.scaled(product, call["alpha"])
    if call["beta"] == 0:
        return product
    return call.emit(_op.add(product, call.scaled(call["self"], call["beta"])))


def _linear(call: AtenCall) -> Expr:
    turned = call["weight"]
    if len(shape_of(turned)) == 2:
        turned = call.emit(_op.permute_dims(turned, [1, 0]))
    product = call.emit(_op.matmul(call["input"], turned))
    return product if call["bias"] is None else call.emit(_op.add(product, call["bias"]))


def _attention(call: AtenCall) -> Expr:
    q, k, v = (call[name] for name in ("query", "key", "value"))
    if call["dropout_p"]:
        raise Unsupported("dropout of a model in training mode")
    shape = shape_of(q)
    if len(shape) < 3:
        raise Unsupported("attention over matrices")
    if len(shape) != 4:
        q, k, v = (_as_batch(call, x) for x in (q, k, v))
    heads, key_heads = shape_of(q)[1], shape_of(k)[1]
    if heads != key_heads:
        if not call["enable_gqa"] and key_heads != 1:
            raise Unsupported(f"{heads} query heads for {key_heads} key heads without enable_gqa")
        k, v = (call.emit(_op.repeat(x, heads // key_heads, 1)) for x in (k, v))
    mask = None if call["attn_mask"] is None else _mask(call, call["attn_mask"], dtype_of(q), shape)
    q, k, v = (call.emit(_op.permute_dims(x, [0, 2, 1, 3])) for x in (q, k, v))
    q, scale = _scaled(call, q)
    causal = "TopLeft" if call["is_causal"] else None
    mixed = call.emit(_op.nn.attention(q, k, v, mask, scale, causal))
    mixed = call.emit(_op.permute_dims(mixed, [0, 2, 1, 3]))
    return call.reshaped(mixed, [*shape[:-1], shape_of(mixed)[-1]])


def _scaled(call: AtenCall, q: Expr) -> tuple[Expr, float | None]:
    """Return queries and a scale; TVM's half-precision kernel supports only its default scale."""
    default = shape_of(q)[-1] ** -0.5
    scale = default if call["scale"] is None else float(call["scale"])
    if abs(scale - default) <= 1e-6 * default:
        return q, None
    if dtype_of(q) not in HALVES:
        return q, scale
    return call.scaled(q, scale / default), None


def _as_batch(call: AtenCall, x: Expr) -> Expr:
    """Reshape to four dims: batch (all leading dims), heads, positions, width."""
    shape = shape_of(x)
    return call.reshaped(x, [math.prod(shape[:-3]), *shape[-3:]])


def _mask(call: AtenCall, mask: Expr, dtype: str, shape: Sequence[int]) -> Expr:
    """Convert a mask to a term of the scores."""
    if dtype_of(mask) == "bool":
        low = -6e4 if dtype == "float16" else -1e30
        mask = call.emit(_op.where(mask, constant(0.0, dtype), constant(low, dtype)))
    mask = call.cast(mask, dtype)
    if len(shape) > 4 and len(shape_of(mask)) > 3:
        mask = _as_batch(call, call.broadcast(mask, [*shape[:-1], shape_of(mask)[-1]]))
    missing = 4 - len(shape_of(mask))
    return call.reshaped(mask, [1] * missing + list(shape_of(mask)))


def sizes(value: int | Sequence[int], rank: int) -> list[int]:
    """Return a number per spatial dim, where torch may write a single number."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * (rank if len(listed) == 1 else 1)


def _convolution(call: AtenCall) -> Expr:
    x, w, bias = call["input"], call["weight"], call["bias"]
    rank = len(shape_of(w)) - 2
    batched = len(shape_of(x)) == rank + 2
    if not batched:
        x = call.emit(_op.expand_dims(x, 0))
    turned = bool(call["transposed"]) if "transposed" in call.names else False
    data, forward, backward = _LAYOUTS[rank]
    options = {
        "strides": sizes(call["stride"], rank),
        "padding": sizes(call["padding"], rank) * 2,
        "dilation": sizes(call["dilation"], rank),
        "groups": int(call["groups"]),
        "data_layout": data,
        "kernel_layout": backward if turned else forward,
    }
    if turned:
        options["output_padding"] = sizes(call["output_padding"], rank)
    make = getattr(_op.nn, f"conv{rank}d{'_transpose' if turned else ''}")
    result = call.emit(make(x, w, **options))
    if bias is not None:
        line = call.emit(_op.reshape(bias, [1, shape_of(bias)[0], *[1] * rank]))
        result = call.emit(_op.add(result, line))
    return result if batched else call.emit(_op.squeeze(result, [0]))


CONVERTERS: dict[str, Converter] = by_name(
    (_product, "mm.default bmm.default mv.default dot.default matmul.default"),
    (_product_and_sum, "addmm.default baddbmm.default"),
    (_linear, "linear.default"),
    (_attention, "scaled_dot_product_attention.default"),
    (_convolution, "convolution.default conv1d.default conv2d.default conv3d.default"),
)
