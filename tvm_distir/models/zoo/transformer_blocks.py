# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Share attention, float32 norms and the export to an IRModule between the zoo's models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.exporter import Exporter
from tvm.relax.frontend.nn.spec import ModuleSpec

from tvm_distir.core import PARAM_NAMES_ATTR

MASKED_SCORE = float(np.finfo("float32").min)

Tensor = nn.Tensor


def emit(expr: Any, name: str) -> Any:
    """Bind a Relax expression and return it as a tensor of relax.nn."""
    return nn.op.wrap_nested(expr, name)


def positions(count: int) -> Any:
    """Return the positions 0..count-1 as an int32 constant of shape (count,)."""
    return Tensor.from_const(np.arange(count, dtype="int32"))


def causal_mask(places: Any) -> Any:
    """Return a bool (seq, seq) mask, True where the column is not after the row."""
    rows = nn.op.unsqueeze(places, 1, name="rows")
    columns = nn.op.unsqueeze(places, 0, name="columns")
    return nn.op.less_equal(columns, rows, name="mask")


def in_float32(x: Any) -> Any:
    """Cast ``x`` to float32 if needed."""
    return x if x.dtype == "float32" else nn.op.astype(x, "float32")


def back_to(x: Any, dtype: str) -> Any:
    """Cast ``x`` to ``dtype`` if needed."""
    return x if x.dtype == dtype else nn.op.astype(x, dtype)


def split_heads(x: Any, heads: int) -> Any:
    """Split (batch, seq, heads * width) into (batch, heads, seq, width)."""
    batch, seq, hidden = x.shape
    x = nn.op.reshape(x, (batch, seq, heads, hidden // heads))
    return nn.op.permute_dims(x, [0, 2, 1, 3])


def merge_heads(x: Any) -> Any:
    """Merge (batch, heads, seq, width) into (batch, seq, heads * width)."""
    batch, heads, seq, width = x.shape
    x = nn.op.permute_dims(x, [0, 2, 1, 3])
    return nn.op.reshape(x, (batch, seq, heads * width))


def dropped(x: Any, rate: float) -> Any:
    """Apply dropout to ``x`` in training, unless the rate is 0."""
    return emit(relax.op.nn.dropout(x._expr, rate), "dropout")[0] if rate else x


def attend_at_once(q: Any, k: Any, v: Any) -> Any:
    """Compute causal attention as a single op: (batch, seq, heads, width) to the same shape."""
    width = q.shape[3]
    mixed = relax.op.nn.attention(
        q._expr, k._expr, v._expr, scale=1.0 / math.sqrt(width), causal_mask="TopLeft"
    )
    return emit(mixed, "mixed")


def attend(
    q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, scale: float = 0.0
) -> Any:
    """Compute scaled dot product attention, with softmax in float32.

    Parameters
    ----------
    q, k, v : Tensor
        (batch, heads, seq, width); ``k`` and ``v`` may be of another sequence, and may have fewer
        heads, which are then shared by consecutive heads of ``q``.
    mask : Tensor, optional
        Bool, broadcast to the scores (batch, heads, seq, seq): True where a score counts.
    dropout : float
        The dropout rate of the weights.
    scale : float
        The factor of the scores; 0: the inverse square root of the width.

    Returns
    -------
    Tensor
        (batch, heads, seq, width of the values).
    """
    batch, heads, seq, width = q.shape
    kv_heads = k.shape[1]
    dtype = q.dtype
    if kv_heads != heads:
        q = nn.op.reshape(q, (batch, kv_heads, heads // kv_heads, seq, width))
        k = nn.op.unsqueeze(k, 2)
        v = nn.op.unsqueeze(v, 2)
    last = q.ndim - 1
    axes = [*range(last - 1), last, last - 1]
    scores = nn.op.matmul(q, nn.op.permute_dims(k, axes), name="scores")
    factor = Tensor.from_scalar(scale or 1.0 / math.sqrt(width), dtype)
    scores = in_float32(nn.op.multiply(scores, factor, name="scaled"))
    if mask is not None:
        floor = Tensor.from_scalar(MASKED_SCORE, "float32")
        scores = nn.op.where(mask, scores, floor, name="masked")
    weights = dropped(back_to(nn.op.softmax(scores, axis=-1, name="probs"), dtype), dropout)
    mixed = nn.op.matmul(weights, v, name="mixed")
    if kv_heads == heads:
        return mixed
    return nn.op.reshape(mixed, (batch, heads, seq, v.shape[-1]))


class LayerNorm(nn.Module):  # type: ignore[misc]
    """Layer norm over the last dim, computed in float32; optionally without weight and bias."""

    def __init__(self, width: int, dtype: str, eps: float = 1e-5, weighted: bool = True) -> None:
        super().__init__()
        if weighted:
            self.weight: Any = nn.Parameter((width,), dtype)
            self.bias: Any = nn.Parameter((width,), dtype)
        else:
            self.weight = Tensor.from_const(np.ones(width, "float32"))
            self.bias = Tensor.from_const(np.zeros(width, "float32"))
        self.eps = eps

    def forward(self, x: Any) -> Any:
        """Normalise (..., width)."""
        out = relax.op.nn.layer_norm(
            in_float32(x)._expr,
            in_float32(self.weight)._expr,
            in_float32(self.bias)._expr,
            axes=-1,
            epsilon=self.eps,
        )
        return back_to(emit(out, "layer_norm"), x.dtype)


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Root-mean-square norm over the last dim, computed in float32.

    With ``offset`` it multiplies by ``1 + weight``.
    """

    def __init__(self, width: int, dtype: str, eps: float, offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.eps, self.offset = eps, offset

    def forward(self, x: Any) -> Any:
        """Normalise (..., width)."""
        source, weight = in_float32(x), in_float32(self.weight)
        if self.offset:
            weight = nn.op.add(weight, Tensor.from_scalar(1.0, "float32"))
        out = relax.op.nn.rms_norm(source._expr, weight._expr, axes=-1, epsilon=self.eps)
        return back_to(emit(out, "rms_norm"), x.dtype)


class GroupNorm(nn.Module):  # type: ignore[misc]
    """Group norm of channels and all later dims, computed in float32."""

    def __init__(self, width: int, groups: int, dtype: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.bias = nn.Parameter((width,), dtype)
        self.groups, self.eps = groups, eps

    def forward(self, x: Any) -> Any:
        """Normalise (batch, width, rows, columns)."""
        out = relax.op.nn.group_norm(
            in_float32(x)._expr,
            in_float32(self.weight)._expr,
            in_float32(self.bias)._expr,
            num_groups=self.groups,
            channel_axis=1,
            axes=[2, 3],
            epsilon=self.eps,
        )
        return back_to(emit(out, "group_norm"), x.dtype)


class BatchNorm(nn.Module):  # type: ignore[misc]
    """Batch norm of (batch, width, ...) by given statistics, computed in float32."""

    def __init__(self, width: int, dtype: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.bias = nn.Parameter((width,), dtype)
        self.mean = nn.Parameter((width,), dtype)
        self.variance = nn.Parameter((width,), dtype)
        self.eps = eps

    def forward(self, x: Any) -> Any:
        """Normalise (batch, width, rows, columns)."""
        tensors = (x, self.weight, self.bias, self.mean, self.variance)
        out = relax.op.nn.batch_norm(
            *(in_float32(tensor)._expr for tensor in tensors),
            axis=1,
            epsilon=self.eps,
            training=False,
        )
        return back_to(emit(out, "batch_norm")[0], x.dtype)


def layer_class(base: type, nested: int, name: str = "Layer") -> Any:
    """Return a layer subclass, whose calls go to a private function when ``nested``.

    relax.nn keeps made subroutines on the class, so each export needs a separate class; the
    functions are called as the class, in snake case.
    """
    return type(name, (base,), {"define_subroutine": bool(nested)})


def export_model(
    model: Any, names: Mapping[str, str] | None = None, /, **data: tuple[Sequence[int], str]
) -> ir.IRModule:
    """Export a relax.nn model with a method ``main`` as ``main(*data, *weights)``.

    Weights of a private function lose the part of their names that all of them share: the
    place of the layer it was made from.

    Parameters
    ----------
    model : nn.Module
        The model, whose method ``main`` takes the data.
    names : mapping of str to str, optional
        Names of data inputs that are no words of Python, by the words of ``main``.
    **data
        Shape and dtype of each data input, named and ordered as ``main`` has them.
    """
    inputs = {name: nn.spec.Tensor(list(shape), dtype) for name, (shape, dtype) in data.items()}
    spec = ModuleSpec.from_raw(
        {"main": {**inputs, "$": {"param_mode": "plain", "effect_mode": "none"}}}, model
    )
    mod, _, _ = Exporter(debug=False).build(spec)
    functions = {}
    for gv, fn in mod.functions.items():
        if gv.name_hint == "main":
            parameter_names = [str(p.name) for p in fn.params[:]]
            titles = [(names or {}).get(name, name) for name in parameter_names]
            functions[gv] = fn.with_attr(PARAM_NAMES_ATTR, titles)
        else:
            functions[gv] = _short_names(fn)
    return ir.IRModule(functions)


def export_tokens(model: Any, batch: int, seq: int) -> ir.IRModule:
    """Export a model of token ids, ``main(input_ids, *weights)``."""
    return export_model(model, input_ids=((batch, seq), "int32"))


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):  # type: ignore[misc]
    """Mutator that renames a function's parameters."""

    def rename(self, fn: relax.Function, names: list[str]) -> relax.Function:
        """Return the function with parameters named ``names``."""
        params = [relax.Var(name, p.ty) for name, p in zip(names, fn.params, strict=True)]
        for old, new in zip(fn.params, params, strict=True):
            self.set_var_remap(old, new)
        body = self.visit_expr(fn.body)
        return relax.Function(params, body, fn.ret_ty, fn.is_pure, fn.attrs)


def _short_names(fn: relax.Function) -> relax.Function:
    names = [str(p.name) for p in fn.params[:]]
    places = [name.split(".")[:-1] for name in names if "." in name]
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*places))
    prefix = "".join(f"{words[0]}." for words in shared)
    return _Renamer().rename(fn, [name.removeprefix(prefix) for name in names])
