# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace ops of level-5 modules by calls of packed functions that another library computes.

The packed functions are those of :mod:`.torch_functions` and :mod:`.numpy_functions`, by the same
names. Every op whose attributes have no counterpart there keeps TVM's kernel, as all other ops do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import ir, relax, tirx

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.ir.operators import (
    ATTENTION_BACKWARD_OP,
    ATTENTION_OP,
    AttentionOptions,
    attention_operands,
    attention_sinks,
)
from tvm_distir.core.rewriting import Replacements, replaced_calls
from tvm_distir.transforms import WRITTEN_ATTENTION, with_attention_op

from .contractions import contraction_of
from .packed_names import CAUSAL, NUMPY, PREFIXES, TORCH, TVM, library_named
from .permuted_operands import composed, ints, merge_permutations, viewed

_NARROW, _WIDE = ("float16", "bfloat16"), ("float32", "float64")
_GPU_WIDTHS = 8
"""PyTorch's attention on GPUs takes heads of widths that it divides."""
_BLAS_ROWS, _BLAS_INNER = 16, 32
"""A convolution in groups is left to TVM where a group has fewer results, or terms of each."""

Operands = Sequence[tuple[ir.Expr, Sequence[int]]]


@dataclass(frozen=True)
class _Writer:
    """Writes calls of the packed functions of a library."""

    builder: relax.BlockBuilder
    library: str

    def computed_type(self, operands: Sequence[ir.Expr], result: ir.Type) -> str | None:
        """Return the type of floats in which a call is computed; None where TVM computes it.

        NumPy knows no narrow floats. A result that is wider than the operands is computed in its
        type.
        """
        types, out = {str(operand.ty.dtype) for operand in operands}, str(result.dtype)
        if len(types) != 1 or not {*types, out} <= {*_NARROW, *_WIDE}:
            return None
        if self.library == NUMPY and out in _NARROW:
            return "float32" if types == {out} else None
        return out if types == {out} or out in _WIDE else None

    def cast(self, value: ir.Expr, dtype: str) -> ir.Expr:
        """Cast a tensor to a type."""
        if str(value.ty.dtype) == dtype:
            return value
        return self.builder.emit(relax.op.astype(value, dtype))

    def packed(
        self,
        name: str,
        operands: Operands,
        settings: Sequence[ir.Expr],
        result: tuple[ir.Type, Sequence[int]],
        dtype: str,
    ) -> ir.Call:
        """Call a packed function with operands and a result that have orders of dims."""
        views = [viewed(self.builder, operand, order) for operand, order in operands]
        tensors = [self.cast(x, dtype) for x, _ in views]
        ty, order = result
        args = [*tensors, *settings, *(dims for _, dims in views), ints(order)]
        out_ty = relax.TensorType(ty.shape, dtype, ty.vdevice)
        call = relax.op.call_dps_packed(PREFIXES[self.library] + name, args, out_ty=out_ty)
        if str(ty.dtype) == dtype:
            return call
        return relax.op.astype(self.builder.emit(call), str(ty.dtype))


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _order(x: ir.Expr) -> range:
    return range(len(x.ty.shape))


def _product(writer: _Writer, call: ir.Call) -> ir.Call | None:
    contraction = contraction_of(call)
    dtype = writer.computed_type(contraction[1], call.ty) if contraction is not None else None
    if contraction is None or dtype is None:
        return None
    product, operands = contraction
    *orders, order = product.orders
    pairs = list(zip(operands, orders, strict=True))
    return writer.packed("product", pairs, [ints(product.cuts)], (call.ty, order), dtype)


def _attention(writer: _Writer, call: ir.Call) -> ir.Call | None:
    a, width = call.attrs, call.args[0].ty.shape[3]
    dtype = writer.computed_type(call.args, call.ty)
    if a.window_size is not None or dtype is None:
        return None
    if a.scale is None and not isinstance(width, tirx.IntImm):
        return None
    scale = 1 / math.sqrt(int(width)) if a.scale is None else float(a.scale)
    mask = CAUSAL.index(None if a.causal_mask is None else str(a.causal_mask))
    name = "attention" if len(call.args) == 3 else "attention_bias"
    settings = [tirx.FloatImm("float64", scale), _int(mask)]
    operands = [(x, _order(x)) for x in call.args]
    return writer.packed(name, operands, settings, (call.ty, range(4)), dtype)


def _same_sizes(first: Sequence[ir.Expr], second: Sequence[ir.Expr]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(isinstance(n, tirx.IntImm) and n == m for n, m in pairs)


def _flash(writer: _Writer, call: ir.Call) -> ir.Call | None:
    """Write attention with log-sum-exps, or its gradients, where PyTorch has a kernel of it."""
    options, (tensors, *more) = AttentionOptions.of(call), attention_operands(call)
    q, k, v = (x.ty for x in tensors[:3])
    plain = AttentionOptions(options.scale, options.causal) == options
    if not plain or [*more, attention_sinks(call)] != [None] * 3:
        return None
    if writer.computed_type(tensors[:5], q) is None or not _same_sizes(
        [q.shape[3], k.shape[2]], [v.shape[3], v.shape[2]]
    ):
        return None
    views = [viewed(writer.builder, x, _order(x)) for x in tensors]
    settings = [tirx.FloatImm("float64", options.scale), _int(int(options.causal))]
    name = "flash" if len(tensors) == 3 else "flash_backward"
    args = [*(x for x, _ in views), *settings, *(order for _, order in views)]
    return relax.op.call_dps_packed(
        PREFIXES[writer.library] + name, args, out_ty=list(call.ty.fields)
    )


def _flash_on_gpu(writer: _Writer, call: ir.Call) -> ir.Call | None:
    """Write it where the kernels of GPUs take the width and the type of the heads."""
    q = call.args[0].ty
    width = q.shape[3]
    fits = isinstance(width, tirx.IntImm) and int(width) % _GPU_WIDTHS == 0
    return _flash(writer, call) if fits and str(q.dtype) != "float64" else None


def _is_for_blas(call: ir.Call, orders: Sequence[Sequence[int]], transposed: bool) -> bool:
    """Return whether a convolution is a product of some size: TVM is better at small groups."""
    groups, shape = int(call.attrs.groups), [call.args[1].ty.shape[dim] for dim in orders[1]]
    if not all(isinstance(n, tirx.IntImm) for n in shape):
        return False
    if groups == 1:
        return True
    outer, inner = int(shape[0]) // groups, math.prod(int(n) for n in shape[1:])
    return not transposed and outer >= _BLAS_ROWS and inner >= _BLAS_INNER


def _convolution(writer: _Writer, call: ir.Call) -> ir.Call | None:
    a = call.attrs
    layouts = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout))
    space = "DHW"[5 - len(layouts[0]) :]
    transposed = "transpose" in str(call.op.name)
    known = (f"NC{space}", ("IO" if transposed else "OI") + space, f"NC{space}")
    dtype = writer.computed_type(call.args, call.ty)
    if dtype is None or any(sorted(x) != sorted(y) for x, y in zip(layouts, known)):
        return None
    orders = [[x.index(dim) for dim in y] for x, y in zip(layouts, known)]
    padding, half = [int(n) for n in a.padding], len(space)
    if transposed and padding[:half] != padding[half:]:
        return None
    if writer.library == NUMPY and not _is_for_blas(call, orders, transposed):
        return None
    added = [int(n) for n in a.output_padding] if transposed else []
    settings = [ints(a.strides), ints(padding), ints(a.dilation), ints(added), _int(int(a.groups))]
    pairs = list(zip(call.args, orders[:2], strict=True))
    return writer.packed("convolution", pairs, settings, (call.ty, orders[2]), dtype)


def _take_backward(writer: _Writer, call: ir.Call) -> ir.Call | None:
    grad, table, indices = call.args
    rows_of_matrix = len(table.ty.shape) == 2 and call.attrs.axis is not None
    dtype = str(table.ty.dtype)
    if not rows_of_matrix or int(call.attrs.axis) != 0 or dtype not in (*_NARROW, *_WIDE):
        return None
    name, ty = PREFIXES[writer.library] + "take_backward", call.ty
    return relax.op.call_dps_packed(name, [grad, indices, ints(range(2))], out_ty=ty)


_BOTH = (TORCH, NUMPY)
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose")

Write = Callable[[_Writer, ir.Call], ir.Call | None]

SERVED: Mapping[str, tuple[Write, tuple[str, ...]]] = {
    "relax.matmul": (_product, _BOTH),
    "relax.einsum": (_product, _BOTH),
    "relax.dist.expert_matmul": (_product, _BOTH),
    "relax.nn.attention": (_attention, _BOTH),
    "relax.nn.attention_bias": (_attention, _BOTH),
    ATTENTION_OP: (_flash, (TORCH,)),
    ATTENTION_BACKWARD_OP: (_flash, (TORCH,)),
    **{f"relax.nn.{name}": (_convolution, _BOTH) for name in _CONVOLUTIONS},
    "relax.grad.take_backward": (_take_backward, (TORCH,)),
}
"""The ops that libraries compute: a function that writes the call, or None where the op keeps the
kernel of TVM, and the libraries."""


def _replacement(
    write: Write, library: str, builder: relax.BlockBuilder, call: ir.Call
) -> ir.Call | None:
    return write(_Writer(builder, library), call)


def _table(library: str, on_gpu: bool) -> tuple[Replacements, Replacements]:
    """Return what replaces attention that returns log-sum-exps, and what replaces other ops.

    Where no kernel serves such attention it is written out, for its products.
    """
    table: Replacements = {
        name: partial(_replacement, write, library)
        for name, (write, libraries) in SERVED.items()
        if library in libraries
    }
    written = dict(WRITTEN_ATTENTION)
    for name in (ATTENTION_OP, ATTENTION_BACKWARD_OP):
        if name in table:
            serve = partial(_replacement, _flash_on_gpu, library) if on_gpu else table[name]
            written[name] = partial(_first, serve, written[name])
    return written, {**table, "relax.permute_dims": composed}


def _first(*args: Any) -> Any:
    """Return what the first writer that serves a call returns."""
    *writers, builder, call = args
    results = (write(builder, call) for write in writers)
    return next(result for result in results if result is not None)


def called_library(mod: ir.IRModule) -> str:
    """Return the library whose packed functions a module calls; ``tvm`` where it calls none."""
    names: list[str] = []

    def visit(node: object) -> None:
        if isinstance(node, relax.ExternFunc):
            names.append(str(node.global_symbol))

    for _, fn in relax_functions(mod):
        relax.analysis.post_order_visit(fn, visit)
    return next(filter(None, map(library_named, names)), TVM)


def dispatch_kernels(mod: ir.IRModule, library: str, on_gpu: bool = False) -> ir.IRModule:
    """Replace products, attention and convolutions by calls of a library's kernels.

    Before: ``y = R.matmul(x, w)``. After, with PyTorch:
    ``y = R.call_dps_packed("tvm_distir.torch.product", (x, w, ...), out_ty=...)``. Operands that
    are permuted, as the weight of a linear layer of PyTorch, are read through views, and results
    that are permuted are written so.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5. It is not changed.
    library : str
        ``torch``, ``numpy``, or ``tvm``, which changes nothing.
    on_gpu : bool
        Whether the target is a GPU.

    Returns
    -------
    IRModule
        The module, at level 5.
    """
    if library == TVM:
        return mod
    if on_gpu:  # scores of softmax attention that is written out would be in memory
        mod = with_attention_op(mod)
    attention, others = _table(library, on_gpu)
    return merge_permutations(replaced_calls(replaced_calls(mod, attention), others))
