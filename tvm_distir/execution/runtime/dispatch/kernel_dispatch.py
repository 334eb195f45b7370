# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace ops of level-5 modules by calls of packed functions that PyTorch computes.

The packed functions are those of :mod:`.torch_kernels`. Every op whose attributes have no
counterpart in PyTorch keeps TVM's kernel, as all other ops do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, relax, tirx

from tvm_distir.core.rewriting import Replacements, replaced_calls
from tvm_distir.transforms import WRITTEN_ATTENTION

from .contractions import contraction_of
from .packed_names import CAUSAL, TORCH_PREFIX, check_dispatch
from .permuted_operands import composed, ints, merge_permutations, viewed

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _of_one_float_type(call: ir.Call, operands: Sequence[ir.Expr]) -> bool:
    """Return whether the operands and the result are floats of one type."""
    types = {str(ty.dtype) for ty in (*(arg.ty for arg in operands), call.ty)}
    return len(types) == 1 and types <= set(_FLOATS)


def _packed(
    builder: relax.BlockBuilder,
    name: str,
    operands: Sequence[tuple[ir.Expr, Sequence[int]]],
    settings: Sequence[ir.Expr],
    result: tuple[ir.Type, Sequence[int]],
) -> ir.Call:
    """Call a packed function with operands and a result that have orders of dims."""
    views = [viewed(builder, operand, order) for operand, order in operands]
    tensors, orders = [x for x, _ in views], [order for _, order in views]
    ty, order = result
    args = [*tensors, *settings, *orders, ints(order)]
    return relax.op.call_dps_packed(TORCH_PREFIX + name, args, out_ty=ty)


def _product(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    found = contraction_of(call)
    if found is None or not _of_one_float_type(call, found[1]):
        return None
    product, operands = found
    *orders, order = product.orders
    pairs = list(zip(operands, orders, strict=True))
    return _packed(builder, "product", pairs, [ints(product.cuts)], (call.ty, order))


def _attention(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    a, width = call.attrs, call.args[0].ty.shape[3]
    if a.window_size is not None or not _of_one_float_type(call, call.args):
        return None
    if a.scale is None and not isinstance(width, tirx.IntImm):
        return None
    scale = 1 / math.sqrt(int(width)) if a.scale is None else float(a.scale)
    mask = CAUSAL.index(None if a.causal_mask is None else str(a.causal_mask))
    name = "attention" if len(call.args) == 3 else "attention_bias"
    operands = [(x, range(len(x.ty.shape))) for x in call.args]
    settings = [tirx.FloatImm("float64", scale), _int(mask)]
    return _packed(builder, name, operands, settings, (call.ty, range(4)))


def _convolution(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    a = call.attrs
    layouts = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout))
    space = "DHW"[5 - len(layouts[0]) :]
    transposed = "transpose" in str(call.op.name)
    known = (f"NC{space}", ("IO" if transposed else "OI") + space, f"NC{space}")
    unknown = any(sorted(x) != sorted(y) for x, y in zip(layouts, known))
    if unknown or not _of_one_float_type(call, call.args):
        return None
    padding = [int(n) for n in a.padding]
    added = [int(n) for n in a.output_padding] if transposed else []
    half = len(padding) // 2
    if transposed and padding[:half] != padding[half:]:
        return None
    orders = [[x.index(dim) for dim in y] for x, y in zip(layouts, known)]
    sizes = [ints(a.strides), ints(padding), ints(a.dilation), ints(added), _int(int(a.groups))]
    pairs = list(zip(call.args, orders[:2], strict=True))
    return _packed(builder, "convolution", pairs, sizes, (call.ty, orders[2]))


def _take_backward(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    grad, table, indices = call.args
    rows_of_matrix = len(table.ty.shape) == 2 and call.attrs.axis is not None
    if not rows_of_matrix or int(call.attrs.axis) != 0 or str(table.ty.dtype) not in _FLOATS:
        return None
    operands = [(grad, range(len(grad.ty.shape))), (indices, range(len(indices.ty.shape)))]
    return _packed(builder, "take_backward", operands, [], (call.ty, range(2)))


_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose")

_TORCH: Replacements = {
    "relax.matmul": _product,
    "relax.einsum": _product,
    "relax.dist.expert_matmul": _product,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
    **{f"relax.nn.{name}": _convolution for name in _CONVOLUTIONS},
    "relax.grad.take_backward": _take_backward,
    "relax.permute_dims": composed,
}
"""Functions that return the call of a packed function for the call of an op, or None."""


def dispatch_kernels(mod: ir.IRModule, dispatch: str | None) -> ir.IRModule:
    """Replace matrix products, attention and convolutions by calls of a library's kernels.

    Before: ``y = R.matmul(x, w)``. After, with ``dispatch="torch"``:
    ``y = R.call_dps_packed("tvm_distir.torch.product", (x, w, ...), out_ty=...)``. Operands that
    are permuted, as the weight of a linear layer of PyTorch, are read through views, and results
    that are permuted are written so.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5. It is not changed.
    dispatch : str or None
        One of :data:`.packed_names.DISPATCHES`; None for TVM's kernels.

    Returns
    -------
    IRModule
        The module, at level 5.

    Raises
    ------
    EngineError
        DIST0623 for another library.
    """
    check_dispatch(dispatch)
    if dispatch is None:
        return mod
    # Attention that returns log-sum-exps is written out first, for its products.
    return merge_permutations(replaced_calls(replaced_calls(mod, WRITTEN_ATTENTION), _TORCH))
