# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ops on paged caches of keys and values: ``kv_append`` and ``paged_attention``.

A cache ``(P, N, r, K, D)`` has ``P`` pools of ``N`` pages of ``r`` positions, with ``K`` heads of
width ``D`` each (Kwon et al. 2023, "PagedAttention", section 4.1). ``B`` requests are divided among
the pools in order, ``B / P`` in each. ``pages (B, M)``, int32, lists the pages of a request in the
order of its positions, numbered in its pool, and ``lengths (B,)``, int32, is the number of
positions that its cache holds before the call. A call works on ``S`` new positions per request.

On a device that stores only some positions of every page, the attribute ``page_size`` is the
number of positions of a full page, and a last operand, an int64 scalar, is the first that the
device stores. Like the ops of :mod:`.attention_ops` these compute and move nothing between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, tirx

from .attention_ops import accumulated
from .infer import refuse
from .ops import PREFIX, dist_call

INPLACE = "in_place"
"""The attribute of an append that overwrites the memory of the cache."""
KV_APPEND_OP = f"{PREFIX}kv_append"
PAGED_ATTENTION_OP = f"{PREFIX}paged_attention"
CACHE_OPS = (KV_APPEND_OP, PAGED_ATTENTION_OP)
"""Ops of this module, which are in modules of every level."""
HEADS_DIM, POSITIONS_DIM, POOLS_DIM = 3, 2, 0
"""Dims of a cache that can be sharded: by heads, by positions of a page, and by requests."""

_OPERANDS = {KV_APPEND_OP: 4, PAGED_ATTENTION_OP: 5}
_RANKS = {
    KV_APPEND_OP: {"cache": 5, "new": 4, "pages": 2, "lengths": 1},
    PAGED_ATTENTION_OP: {"q": 5, "key cache": 5, "value cache": 5, "pages": 2, "lengths": 1},
}


_READ: dict[str, Callable[[Any], Any]] = {
    "scale": float, "window": int, "score_cap": float, "value_width": int, "page_size": int
}  # fmt: skip
"""How each field of :class:`PagedAttentionOptions` is read."""


@dataclass(frozen=True)
class PagedAttentionOptions:
    """Attributes of a call of ``paged_attention``.

    Attributes
    ----------
    scale : float
        The factor of the products of queries and keys.
    window : int
        The number of keys that a query sees, itself included; 0: no limit.
    score_cap : float
        Scores are ``cap tanh(score / cap)``; 0: they are not capped.
    value_width : int
        Values are the first so many features of keys, as in latent attention, and the value cache
        is the key cache; 0: values have a cache.
    page_size : int
        Positions of a full page.
    """

    scale: float
    window: int
    score_cap: float
    value_width: int
    page_size: int

    @staticmethod
    def of(attrs: Any) -> PagedAttentionOptions:
        """Return the attributes of a call."""
        return PagedAttentionOptions(**{key: read(attrs[key]) for key, read in _READ.items()})


def kv_append(
    cache: ir.Expr,
    new: ir.Expr,
    pages: ir.Expr,
    lengths: ir.Expr,
    *start: ir.Expr,
    page_size: int,
    in_place: bool = False,
) -> ir.Call:
    """Write ``new (B, S, K, D)`` behind the positions of each request; typed as ``cache``.

    The rows are cast to the type of the cache, which the result replaces: in place if the memory of
    the cache may be overwritten.
    """
    args = [cache, new, pages, lengths, *start]
    attrs = {INPLACE: True} if in_place else {}
    return dist_call("kv_append", args, page_size=int(page_size), **attrs)


def overwrites_cache(call: ir.Call) -> bool:
    """Return whether a call of ``kv_append`` writes into the memory of its cache."""
    return INPLACE in call.attrs and bool(call.attrs[INPLACE])


def paged_attention(
    q: ir.Expr,
    k_cache: ir.Expr,
    v_cache: ir.Expr,
    pages: ir.Expr,
    lengths: ir.Expr,
    *start: ir.Expr,
    scale: float,
    page_size: int,
    window: int = 0,
    score_cap: float = 0.0,
    value_width: int = 0,
) -> ir.Call:
    """Compute causal attention of ``q (B, S, K, G, D)`` to the positions in paged caches.

    ``G`` query heads share a key head. Query ``i`` of a request sees the positions up to
    ``lengths + i``. The results are ``(B, S, K, G, E)``, of the type of ``q``, and the log-sum-exp
    of the scores, ``(B, S, K, G)``, in float32 at least.
    """
    options = PagedAttentionOptions(scale, window, score_cap, value_width, page_size)
    attrs = {key: read(getattr(options, key)) for key, read in _READ.items()}
    return dist_call("paged_attention", [q, k_cache, v_cache, pages, lengths, *start], **attrs)


def start_operand(call: ir.Call) -> ir.Expr | None:
    """Return the operand that says where the positions of a device begin; None where it has all."""
    count = _OPERANDS[str(call.op.name)]
    return call.args[count] if len(call.args) > count else None


def _differ(a: ir.Expr, b: ir.Expr) -> bool:
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) != int(b)


def _checked(call: ir.Call) -> list[ir.Type]:
    """Return the types of the operands, whose shapes fit."""
    types = [arg.ty for arg in call.args]
    ranks = _RANKS[str(call.op.name)]
    for (name, rank), ty in zip(ranks.items(), types, strict=False):
        if not isinstance(ty, relax.TensorType) or ty.shape is None or len(ty.shape) != rank:
            raise refuse(call, f"the {name} is no tensor of {rank} dims", "Reshape it.")
    pages, lengths = (types[len(ranks) - 2 + i] for i in range(2))
    for name, ty in (("pages", pages), ("lengths", lengths)):
        if "int" not in str(ty.dtype):
            raise refuse(call, f"the {name} are of type {ty.dtype}", "Pass int32.")
    first, cache = types[0].shape, types[1].shape
    if str(call.op.name) == KV_APPEND_OP:
        first, cache = types[1].shape, types[0].shape
        pairs = [(first[2], cache[3]), (first[3], cache[4])]
    else:
        pairs = [(first[2], cache[3]), (first[4], cache[4])]
        pairs += [(types[2].shape[i], cache[i]) for i in range(4)]
    pairs += [(first[0], pages.shape[0]), (first[0], lengths.shape[0])]
    if any(_differ(a, b) for a, b in pairs):
        shapes = ", ".join(str(list(ty.shape)) for ty in types[: len(ranks)])
        raise refuse(call, f"the shapes {shapes} do not fit", "Give all the same heads and batch.")
    batch, pools = first[0], cache[0]
    if all(isinstance(n, tirx.IntImm) for n in (batch, pools)) and int(batch) % int(pools):
        problem = f"{int(batch)} requests for {int(pools)} pools"
        raise refuse(call, problem, "The number of requests is a multiple of that of pools.")
    return types


def _infer_append(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    return _checked(call)[0]


def _infer_attention(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    q, _k, v, *_rest = _checked(call)
    rows = list(q.shape)[:4]
    width = PagedAttentionOptions.of(call.attrs).value_width or v.shape[4]
    out = relax.TensorType([*rows, width], q.dtype, q.vdevice)
    return relax.TupleType([out, relax.TensorType(rows, accumulated(str(q.dtype)), q.vdevice)])


INFER: Mapping[str, Callable[[ir.Call, Any], Any]] = {
    KV_APPEND_OP: _infer_append,
    PAGED_ATTENTION_OP: _infer_attention,
}
