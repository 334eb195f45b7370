# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes that turn ops into kernels, with package kernels where those of TVM lose NaN.

The repair is made here, when a module is compiled, and not where models are imported: graphs,
sharding rules, gradients and costs still see ``R.sort``, ``R.argmax`` or ``R.nn.relu``, and modules
of all frontends, modules written by hand, the reference of ``verify`` and deployed folders compute
the same. What a kernel does with single numbers (maximum, comparison, the place of a read) is
repaired in its TIR by :data:`.repair.repair_kernels`; what follows here cannot be seen there.

===================  =======================================================================
op                   computes
===================  =======================================================================
``sort``, ``topk``,  NaN is greater than all numbers, as in NumPy, PyTorch and JAX; TVM hands
``argsort``          floats to a sort whose comparison is no order where NaN occurs
``argmax/min``       the first NaN, if there is any; the first place of a row of infinities, or
                     of the least numbers of an integer type, for which TVM gives -1
``sign``             NaN of NaN, as in NumPy, JAX and ONNX
``multiply``,        with a constant zero: NaN of NaN and infinities, which TVM folds to zero
``divide``
``take_backward``    the same on threads of a GPU (:mod:`.lookup_gradient`)
``reshape``, ...     no element of an empty shape, of which TVM makes another one
attention            keys and values repeated for the heads of queries that share them, which
                     TVM misreads
attention, norms,    of narrow floats in float32 (:mod:`.float32_kernels`); all other kernels
scans, scatters      compute these in float32 by a pass over their TIR (:mod:`.accumulation`)
``take`` (``fast``)  the kernel of TVM, which warns of what :mod:`.repair` prevents
===================  =======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, te, tirx, topi
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.core.ir import known_shape, tensor_type
from tvm_distir.support import GenericConst

from .accumulation import accumulate_in_float32
from .float32_kernels import kernel_in_float32, scan_in_float32, scatter_in_float32
from .kernel_joiner import join_elementwise
from .lookup_gradient import take_backward
from .repair import is_nan

MOVES = ("reshape", "expand_dims", "squeeze", "permute_dims", "tile")
SCATTERS = ("scatter_elements", "scatter_nd", "index_put")
ATTENTION = ("attention", "attention_bias")
NORMS = ("layer_norm", "group_norm", "instance_norm", "batch_norm", "rms_norm")

Legalize = Callable[[BlockBuilder, ir.Call], Expr]


def _float_type(call: ir.Call) -> str:
    """Return the dtype of the first operand where that is a float, else an empty string."""
    tensor: Any = tensor_type(call.args[0].ty)
    dtype = str(tensor.dtype) if tensor is not None else ""
    return dtype if "float" in dtype else ""


def _of_floats(legalize: Legalize) -> Legalize:
    """Return TVM's legalisation of a call on other types; without any, a later pass acts."""

    def either(builder: BlockBuilder, call: ir.Call) -> Expr:
        if _float_type(call):
            return legalize(builder, call)
        stock = call.op.get_attr("FLegalize")
        return call if stock is None else stock(builder, call)

    return either


def _key_type(x: te.Tensor) -> str:
    """Return the integer type that is ordered as the floats of a tensor are."""
    return "int64" if str(x.dtype) == "float64" else "int32"


def _key_of(value: Expr, kind: str, nan: Expr) -> Expr:
    """Map a float to an integer of the same order: zeros are equal, NaN is ``nan``."""
    wide = "float64" if kind == "int64" else "float32"
    value = value if str(value.ty.dtype) == wide else tirx.Cast(wide, value)
    bits, zero = tirx.reinterpret(kind, value), tirx.const(0, kind)
    rising = tirx.Select(bits < zero, bits ^ tirx.max_value(kind), bits)
    number = tirx.Select(value == tirx.const(0, wide), zero, rising)
    return tirx.Select(tirx.isnan(value), nan, number)


def _order_key(x: te.Tensor) -> te.Tensor:
    """Map floats to integers of the same order; NaN is greater than all numbers."""
    kind = _key_type(x)
    nan = tirx.max_value(kind)
    return te.compute(x.shape, lambda *at: _key_of(x(*at), kind, nan), name="order_key")


def _key(builder: BlockBuilder, call: ir.Call) -> Var:
    return builder.emit(builder.call_te(_order_key, call.args[0]))


def _argsort(builder: BlockBuilder, call: ir.Call) -> Expr:
    a = call.attrs
    return relax.op.argsort(_key(builder, call), int(a.axis), bool(a.descending), str(a.dtype))


def _gather(builder: BlockBuilder, x: Expr, axis: int, order: Var) -> Expr:
    return builder.call_te(topi.gather, x, axis, order, primfunc_name_hint="sorted")


def _sort(builder: BlockBuilder, call: ir.Call) -> Expr:
    a = call.attrs
    axis = int(a.axis) % int(tensor_type(call.args[0].ty).ndim)  # type: ignore[union-attr]
    order = relax.op.argsort(_key(builder, call), axis, bool(a.descending), "int32")
    return _gather(builder, call.args[0], axis, builder.emit(order))


def _topk(builder: BlockBuilder, call: ir.Call) -> Expr:
    a = call.attrs
    axis, kind = int(a.axis) % int(tensor_type(call.args[0].ty).ndim), str(a.ret_type)  # type: ignore[union-attr]
    dtype = str(a.dtype)
    best = relax.op.topk(_key(builder, call), int(a.k), axis, "indices", bool(a.largest), dtype)
    if kind == "indices":
        return best
    positions = builder.emit(best)
    values = builder.emit(_gather(builder, call.args[0], axis, positions))
    return values if kind == "values" else relax.Tuple([values, positions])


def _extreme_index(largest: bool) -> Legalize:
    name = "argmax" if largest else "argmin"

    def legalize(builder: BlockBuilder, call: ir.Call) -> Expr:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        args = (call.args[0], axis, bool(call.attrs.keepdims), largest)
        return builder.call_te(_first_extreme, *args, primfunc_name_hint=name)

    return legalize


def _first_extreme(x: te.Tensor, axis: int | None, keepdims: bool, largest: bool) -> te.Tensor:
    """Return the first index of the extreme along an axis, or of the flattened tensor."""
    result_shape = [1] * len(x.shape) if keepdims else []
    if axis is None:
        x, front = topi.reshape(x, (math.prod(x.shape),)), 0
    else:
        front = axis % len(x.shape)
        result_shape = [*x.shape[:front], *([1] if keepdims else []), *x.shape[front + 1 :]]
    back = len(result_shape) - (len(x.shape) - 1 - front)  # where the dims behind the axis begin
    along = te.reduce_axis((0, x.shape[front]), name="along")
    is_float = "float" in str(x.dtype)
    kind = _key_type(x) if is_float else str(x.dtype)
    least, most = tirx.min_value(kind), tirx.max_value(kind)
    best, worst = (most, least) if largest else (least, most)

    def pair(*position: Expr) -> Any:
        value = x(*position[:front], along, *position[back:])
        key = _key_of(value, kind, best) if is_float else value
        reduced: tuple[Expr, Expr] = combine((tirx.Cast("int64", along), key), along)
        return reduced

    def earlier(left: Sequence[Expr], right: Sequence[Expr]) -> tuple[Expr, Expr]:
        (at, key), (at_other, rival) = left, right
        beyond = key > rival if largest else key < rival
        wins = tirx.any(beyond, tirx.all(key == rival, at < at_other))
        return tirx.Select(wins, at, at_other), tirx.Select(beyond, key, rival)

    def nowhere(*_: str) -> tuple[Expr, Expr]:  # behind all places, and no key is worse
        return tirx.max_value("int64"), worst

    combine = te.comm_reducer(earlier, nowhere, name="first_extreme")
    positions, _ = te.compute(result_shape, pair, name="extreme")
    return te.compute(result_shape, lambda *position: positions(*position), name="place")


def _te_sign(x: te.Tensor) -> te.Tensor:
    def sign(*position: Expr) -> Expr:
        value = x(*position)
        zero, unit, minus = (tirx.const(n, x.dtype) for n in (0, 1, -1))
        signed = tirx.Select(value > zero, unit, tirx.Select(value < zero, minus, zero))
        return tirx.Select(is_nan(value), value, signed)

    return te.compute(x.shape, sign, name="T_sign")


def _sign(builder: BlockBuilder, call: ir.Call) -> Expr:
    return builder.call_te(_te_sign, call.args[0], primfunc_name_hint="tir_sign")


def _te_take(table: te.Tensor, positions: te.Tensor, axis: int | None) -> te.Tensor:
    if axis is None:
        table, axis = topi.reshape(table, (math.prod(table.shape),)), 0
    axis %= len(table.shape)
    end = axis + len(positions.shape)

    def element(*at: Expr) -> Expr:
        return table(*at[:axis], positions(*at[axis:end]), *at[end:])

    shape = [*table.shape[:axis], *positions.shape, *table.shape[axis + 1 :]]
    return te.compute(shape, element, name="T_take")


def _take(builder: BlockBuilder, call: ir.Call) -> Expr:
    if str(call.attrs.mode) != "fast":
        return call.op.get_attr("FLegalize")(builder, call)
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return builder.call_te(_te_take, *call.args, axis, primfunc_name_hint="take")


def _is_zero(operand: Expr) -> bool:
    if not isinstance(operand, GenericConst) or operand.ty.ndim != 0:
        return False
    return bool(operand.value.numpy() == 0)


def _with_zero(compute: Callable[..., Any]) -> Legalize:
    """Add a zero to the operands, which TVM folds unless it is a tensor like others."""

    def legalize(builder: BlockBuilder, call: ir.Call) -> Expr:
        if any(map(_is_zero, call.args)):
            return builder.call_te(compute, *call.args)
        return call.op.get_attr("FLegalize")(builder, call)

    return legalize


def _if_any(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Fill an empty result: TVM reads a size of 0 in ``R.reshape`` as that of the operand."""
    shape = known_shape(call.ty)
    if shape is not None and 0 in shape:
        return relax.op.zeros(shape, str(call.ty.dtype))
    return call.op.get_attr("FLegalize")(builder, call)


def _attention(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Repeat keys and values for the heads of queries that share them, then take the kernel.

    The kernel of TVM takes as many heads of keys as of queries, and reads beyond them otherwise.
    """
    queries, keys, values, *bias = call.args
    heads, shared = (x.ty.shape[2] for x in (queries, keys))
    if isinstance(heads, tirx.IntImm) and isinstance(shared, tirx.IntImm):
        group = int(heads) // int(shared)
        if group != 1:
            repeated = [builder.emit_te(topi.repeat, x, group, 2) for x in (keys, values)]
            new = ir.Call(call.op, [queries, *repeated, *bias], call.attrs)
            return kernel_in_float32(builder, builder.normalize(new))
    return kernel_in_float32(builder, call)


LEGALIZATIONS: dict[str, Legalize] = {
    **{f"relax.{name}": _if_any for name in MOVES},
    "relax.sort": _of_floats(_sort),
    "relax.argsort": _of_floats(_argsort),
    "relax.topk": _of_floats(_topk),
    "relax.argmax": _extreme_index(largest=True),
    "relax.argmin": _extreme_index(largest=False),
    "relax.sign": _of_floats(_sign),
    "relax.take": _take,
    "relax.grad.take_backward": take_backward,
    **dict.fromkeys(("relax.cumsum", "relax.cumprod"), scan_in_float32),
    **{f"relax.{name}": scatter_in_float32 for name in SCATTERS},
    **{f"relax.nn.{name}": _attention for name in ATTENTION},
    **{f"relax.nn.{name}": kernel_in_float32 for name in NORMS},
    "relax.multiply": _of_floats(_with_zero(topi.multiply)),
    "relax.divide": _of_floats(_with_zero(topi.divide)),
}


def kernel_passes(skip_ops: Sequence[str] = ()) -> list[Any]:
    """Return the passes that make every compute op the call of a kernel.

    Parameters
    ----------
    skip_ops : sequence of str
        Ops that stay.
    """
    return [
        relax.backend.DispatchSampling(),
        relax.transform.LegalizeOps(LEGALIZATIONS, list(skip_ops)),
        relax.backend.DispatchSortScan(),
        accumulate_in_float32,
        join_elementwise,
    ]
