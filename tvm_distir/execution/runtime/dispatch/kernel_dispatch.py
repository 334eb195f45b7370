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

from .packed_names import CAUSAL, TORCH_PREFIX, check_dispatch

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ACTIVATIONS = "NCHW"
_WEIGHTS = "OIHW"


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _ints(values: Sequence[int]) -> relax.ShapeExpr:
    return relax.ShapeExpr([_int(int(v)) for v in values])


def _of_one_float_type(call: ir.Call) -> bool:
    """Return whether the operands and the result are floats of one type."""
    types = {str(ty.dtype) for ty in (*(arg.ty for arg in call.args), call.ty)}
    return len(types) == 1 and types <= set(_FLOATS)


def _packed(name: str, args: Sequence[relax.Expr], call: ir.Call) -> ir.Call:
    return relax.op.call_dps_packed(TORCH_PREFIX + name, list(args), out_ty=call.ty)


def _matmul(_: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    return _packed("matmul", call.args, call) if _of_one_float_type(call) else None


def _attention(_: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    a, width = call.attrs, call.args[0].ty.shape[3]
    if a.window_size is not None or not _of_one_float_type(call):
        return None
    if a.scale is None and not isinstance(width, tirx.IntImm):
        return None
    scale = 1 / math.sqrt(int(width)) if a.scale is None else float(a.scale)
    mask = CAUSAL.index(None if a.causal_mask is None else str(a.causal_mask))
    name = "attention" if len(call.args) == 3 else "attention_bias"
    return _packed(name, [*call.args, tirx.FloatImm("float64", scale), _int(mask)], call)


def _conv2d(_: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    a = call.attrs
    layouts = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout))
    known = (_ACTIVATIONS, _WEIGHTS, _ACTIVATIONS)
    if not _of_one_float_type(call) or any(sorted(x) != sorted(y) for x, y in zip(layouts, known)):
        return None
    data, kernel, result = ([x.index(dim) for dim in y] for x, y in zip(layouts, known))
    sizes = [_ints(a.strides), _ints(a.padding), _ints(a.dilation), _int(int(a.groups))]
    orders = [_ints(data), _ints(kernel), _ints(result)]
    return _packed("conv2d", [*call.args, *sizes, *orders], call)


def _take_backward(_: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    grad, table, indices = call.args
    rows_of_matrix = len(table.ty.shape) == 2 and call.attrs.axis is not None
    if not rows_of_matrix or int(call.attrs.axis) != 0 or str(table.ty.dtype) not in _FLOATS:
        return None
    return _packed("take_backward", [grad, indices], call)


_TORCH: Replacements = {
    "relax.matmul": _matmul,
    "relax.dist.expert_matmul": _matmul,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
    "relax.nn.conv2d": _conv2d,
    "relax.grad.take_backward": _take_backward,
}
"""Functions that return the call of a packed function for the call of an op, or None."""


def dispatch_kernels(mod: ir.IRModule, dispatch: str | None) -> ir.IRModule:
    """Replace matrix products, attention and convolutions by calls of a library's kernels.

    Before: ``y = R.matmul(x, w)``. After, with ``dispatch="torch"``:
    ``y = R.call_dps_packed("tvm_distir.torch.matmul", (x, w), out_ty=...)``.

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
    return replaced_calls(replaced_calls(mod, WRITTEN_ATTENTION), _TORCH)
