# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Share attention and the export to an IRModule between the zoo's models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import Expr
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.relax.frontend.nn.exporter import Exporter
from tvm.relax.frontend.nn.spec import ModuleSpec

from tvm_distir.core.ir.attributes import PARAM_NAMES_ATTR

MASKED_SCORE = float(np.finfo("float32").min)


def emit(expr: Expr, name: str) -> Tensor:
    """Bind a Relax expression and return it as a tensor of relax.nn."""
    return nn.op.wrap_nested(expr, name)


def positions(count: int) -> Tensor:
    """Return the positions 0..count-1 as an int32 constant of shape (count,)."""
    return Tensor.from_const(np.arange(count, dtype="int32"))


def causal_mask(position_ids: Tensor) -> Tensor:
    """Return a bool (seq, seq) mask, True where the column is not after the row."""
    rows = nn.op.unsqueeze(position_ids, 1, name="rows")
    return nn.op.less_equal(nn.op.unsqueeze(position_ids, 0, name="columns"), rows, name="mask")


def in_float32(x: Tensor) -> Tensor:
    """Cast ``x`` to float32 if needed."""
    return x if x.dtype == "float32" else nn.op.astype(x, "float32")


def back_to(x: Tensor, dtype: str) -> Tensor:
    """Cast ``x`` to ``dtype`` if needed."""
    return x if x.dtype == dtype else nn.op.astype(x, dtype)


def by_head(x: Tensor, heads: int) -> Tensor:
    """Split (batch, seq, heads * width) into (batch, seq, heads, width)."""
    batch, seq, hidden = x.shape
    return nn.op.reshape(x, (batch, seq, heads, hidden // heads))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split (batch, seq, heads * width) into (batch, heads, seq, width)."""
    return nn.op.permute_dims(by_head(x, heads), [0, 2, 1, 3])


def merge_heads(x: Tensor) -> Tensor:
    """Merge (batch, heads, seq, width) into (batch, seq, heads * width)."""
    batch, heads, seq, width = x.shape
    x = nn.op.permute_dims(x, [0, 2, 1, 3])
    return nn.op.reshape(x, (batch, seq, heads * width))


def split_tokens(x: Tensor, groups: int) -> Tensor:
    """Split (batch, seq, ...) into (batch, groups, seq / groups, ...), where there are several."""
    batch, seq, *rest = x.shape
    return x if groups == 1 else nn.op.reshape(x, (batch, groups, seq // groups, *rest))


def part(x: Tensor, begin: int, end: int, name: str, axis: int = 3) -> Tensor:
    """Return ``x[begin:end]`` along an axis."""
    return emit(relax.op.strided_slice(x._expr, [axis], [begin], [end]), name)


def capped(x: Tensor, cap: float) -> Tensor:
    """Return ``cap tanh(x / cap)``, or ``x`` where the cap is 0."""
    if not cap:
        return x
    ratio = nn.op.multiply(x, Tensor.from_scalar(1.0 / cap, x.dtype))
    return nn.op.multiply(nn.op.tanh(ratio), Tensor.from_scalar(cap, x.dtype), name="capped")


def dropped(x: Tensor, rate: float) -> Tensor:
    """Apply dropout to ``x`` in training, unless the rate is 0."""
    return emit(relax.op.nn.dropout(x._expr, rate), "dropout")[0] if rate else x


def attend_at_once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention as a single op: (batch, seq, heads, width) to the same shape."""
    mixed = relax.op.nn.attention(
        q._expr, k._expr, v._expr, scale=1.0 / math.sqrt(q.shape[3]), causal_mask="TopLeft"
    )
    return emit(mixed, "mixed")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor = None,
    dropout: float = 0.0,
    scale: float = 0.0,
    cap: float = 0.0,
    sinks: Tensor = None,
) -> Tensor:
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
    cap : float
        The cap of the scores; 0: none.
    sinks : Tensor, optional
        (heads,), a logit per head that takes part in the softmax and has no value.

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
    scores = capped(in_float32(nn.op.multiply(scores, factor, name="scaled")), cap)
    if mask is not None:
        floor = Tensor.from_scalar(MASKED_SCORE, "float32")
        scores = nn.op.where(mask, scores, floor, name="masked")
    if sinks is not None:
        by_score = nn.op.reshape(in_float32(sinks), (1, *q.shape[1:-2], 1, 1))
        by_score = nn.op.broadcast_to(by_score, (*q.shape[:-1], 1))
        scores = nn.op.concat([scores, by_score], dim=last, name="scores_and_sink")
    weights = dropped(back_to(nn.op.softmax(scores, axis=-1, name="probs"), dtype), dropout)
    if sinks is not None:
        weights = part(weights, 0, k.shape[-2], "weights", last)
    mixed = nn.op.matmul(weights, v, name="mixed")
    if kv_heads == heads:
        return mixed
    return nn.op.reshape(mixed, (batch, heads, seq, v.shape[-1]))


def layer_class(base: type, nested: int, name: str = "Layer") -> Any:
    """Return a layer subclass, whose calls go to a private function when ``nested``.

    relax.nn keeps made subroutines on the class, so each export needs a separate class; the
    functions are called as the class, in snake case.
    """
    return type(name, (base,), {"define_subroutine": bool(nested)})


def export_model(
    model: nn.Module,
    names: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
    /,
    **data: tuple[Sequence[int], str],
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
    words : mapping of str to str, optional
        Other words for parts of the names of weights.
    **data
        Shape and dtype of each data input, named and ordered as ``main`` has them.
    """
    names, words = names or {}, words or {}
    inputs = {name: nn.spec.Tensor(list(shape), dtype) for name, (shape, dtype) in data.items()}
    spec = ModuleSpec.from_raw(
        {"main": {**inputs, "$": {"param_mode": "plain", "effect_mode": "none"}}}, model
    )
    mod, _, _ = Exporter(debug=False).build(spec)
    functions = {}
    for gv, fn in mod.functions.items():
        if gv.name_hint == "main":
            known = [str(p.name) for p in fn.params[:]]
            renamed = [name if name in data else _in_words(name, words) for name in known]
            fn = _Renamer().rename(fn, renamed) if words else fn
            titles = [names.get(name, name) for name in renamed]
            functions[gv] = fn.with_attr(PARAM_NAMES_ATTR, titles)
        else:
            functions[gv] = _short_names(fn, words)
    return ir.IRModule(functions)


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):  # type: ignore[misc]
    """Mutator that renames a function's parameters."""

    def rename(self, fn: relax.Function, names: list[str]) -> relax.Function:
        """Return the function with parameters named ``names``."""
        params = [relax.Var(name, p.ty) for name, p in zip(names, fn.params, strict=True)]
        for old, new in zip(fn.params, params, strict=True):
            self.set_var_remap(old, new)
        return relax.Function(params, self.visit_expr(fn.body), fn.ret_ty, fn.is_pure, fn.attrs)


def _in_words(name: str, words: Mapping[str, str]) -> str:
    return ".".join(words.get(word, word) for word in name.split("."))


def _short_names(fn: relax.Function, words: Mapping[str, str]) -> relax.Function:
    names = [str(p.name) for p in fn.params[:]]
    modules = [name.split(".")[:-1] for name in names if "." in name]
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*modules))
    prefix = "".join(f"{words[0]}." for words in shared)
    return _Renamer().rename(fn, [_in_words(name.removeprefix(prefix), words) for name in names])
