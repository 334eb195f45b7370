# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define attention and its gradients as ops: ``R.dist.attention`` and what differentiates it.

Operands are ``q (B, S, H, D)``, ``k (B, T, K, D)``, ``v (B, T, K, E)``, an optional float ``bias``
that broadcasts to the scores ``(B, H, S, T)``, optional ``sinks (H)`` of the forward op, and an
optional ``shift``, an int64 scalar. ``K`` divides ``H``: consecutive query heads share a key head.
With ``causal``, query ``i`` sees key ``j`` where ``j <= i + offset``, and with a ``window`` only
where ``i + offset - j < window``; a shift is added to the offset, which is how shards and blocks of
positions say where they are. With ``documents``, the lengths of the documents that a sequence
consists of, a query sees keys of its document only. With a ``cap``, a score ``s`` is
``cap tanh(s / cap)`` before the bias (Gemma 2). A sink is the score of a key of each head whose
value is zero (GPT-OSS); the log-sum-exp includes it. Without sinks, a query that sees no key has
the result zero and a log-sum-exp of :data:`UNSEEN`.

Unlike the other ``R.dist`` ops these compute and move nothing between devices: a sharding rule, a
local form and a legalization belong to them as to any op on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.ir import Call, Expr, Type
from tvm.relax import BlockBuilder

from .infer import refuse
from .ops import PREFIX, dist_call

ATTENTION_OP = f"{PREFIX}attention"
ATTENTION_BACKWARD_OP = f"{PREFIX}attention_backward"
ATTENTION_BIAS_OP = f"{PREFIX}attention_bias_gradient"
UNSEEN = -1e30
"""Score of a key that a query does not see, and log-sum-exp of a query that sees no key."""

_RANK = 4


@dataclass(frozen=True)
class AttentionOptions:
    """Attributes of an attention op.

    Attributes
    ----------
    scale : float
        The factor of the products of queries and keys.
    causal : bool
    window : int
        The number of keys that a query sees, itself included; 0: no limit.
    offset : int
        The position of the first query among the keys.
    cap : float
        The bound of scores; 0: scores are not capped.
    documents : tuple of int
        The tokens of each document in a sequence; empty: a single one.
    """

    scale: float
    causal: bool = False
    window: int = 0
    offset: int = 0
    cap: float = 0.0
    documents: tuple[int, ...] = ()

    @staticmethod
    def of(call: Call) -> AttentionOptions:
        """Return the attributes of a call of one of the ops."""
        a = call.attrs
        cap = float(a["cap"]) if "cap" in a.keys() else 0.0
        documents = tuple(map(int, a["documents"])) if "documents" in a.keys() else ()
        causal, window = bool(a["causal"]), int(a["window"])
        return AttentionOptions(float(a["scale"]), causal, window, int(a["offset"]), cap, documents)

    def to_attrs(self) -> dict[str, Any]:
        """Return the attributes as plain values, without a cap of 0 and no documents."""
        return {
            "scale": float(self.scale),
            "causal": bool(self.causal),
            "window": int(self.window),
            "offset": int(self.offset),
            **({"cap": float(self.cap)} if self.cap else {}),
            **({"documents": list(self.documents)} if self.documents else {}),
        }

    def pairs(self, queries: int, keys: int) -> int:
        """Return how many keys so many queries see together, half of those not later.

        Queries of a part of the positions see as many as the mean of all.
        """
        lengths = self.documents or (keys,)
        twice = [n * min(n if self.causal else 2 * n, 2 * (self.window or n)) for n in lengths]
        return queries * sum(twice) // max(2 * sum(lengths), 1)


def attention(
    q: Expr,
    k: Expr,
    v: Expr,
    *more: Expr,
    scale: float,
    causal: bool = False,
    window: int = 0,
    offset: int = 0,
    cap: float = 0.0,
    documents: Sequence[int] = (),
) -> Call:
    """Compute ``softmax(scale q k^T + bias) v`` and the log-sum-exp of the scores.

    ``more`` is the bias, the sinks and the shift, each if there is one. The results are
    ``o (B, S, H, E)``, of the type of ``q``, and ``lse (B, H, S)``, in float32 at least.
    """
    options = AttentionOptions(scale, causal, window, offset, cap, tuple(documents))
    return dist_call("attention", [q, k, v, *more], **options.to_attrs())


def attention_backward(
    q: Expr, k: Expr, v: Expr, o: Expr, do: Expr, lse: Expr, *more: Expr, **options: Any
) -> Call:
    """Compute the gradients ``(dq, dk, dv)`` of attention from ``do``, the gradient of ``o``.

    ``more`` are the operands that :func:`attention` takes besides; ``options`` are its keywords.
    """
    operands = [q, k, v, o, do, lse, *more]
    return dist_call("attention_backward", operands, **AttentionOptions(**options).to_attrs())


def attention_bias_gradient(
    q: Expr, k: Expr, v: Expr, o: Expr, do: Expr, lse: Expr, *more: Expr, **options: Any
) -> Call:
    """Compute the gradient of the bias of attention; typed as the bias.

    ``more`` are the operands that :func:`attention` takes besides; ``options`` are its keywords.
    """
    operands = [q, k, v, o, do, lse, *more]
    return dist_call("attention_bias_gradient", operands, **AttentionOptions(**options).to_attrs())


def attention_operands(call: Call) -> tuple[list[Any], Any, Any]:
    """Return the tensors that each form of an op has, its bias or None, its shift or None."""
    return list(call.args[: _tensor_count(call)]), _optional(call, _RANK), _optional(call, 0)


def attention_sinks(call: Call) -> Expr | None:
    """Return the sinks of a call of the forward op, or None."""
    return _optional(call, 1)


def _tensor_count(call: Call) -> int:
    return 3 if str(call.op.name) == ATTENTION_OP else 6


def _optional(call: Call, rank: int) -> Expr | None:
    """Return the optional operand with a number of dims, or None."""
    return next((x for x in call.args[_tensor_count(call) :] if len(x.ty.shape) == rank), None)


def nn_attention_options(
    call: Call, builder: BlockBuilder
) -> tuple[AttentionOptions | None, list[Any]]:
    """Return the attributes and the bias with which a call of ``nn.attention`` is one of ours.

    None for a window, which TVM has no kernel of.
    """
    a, (q, k) = call.attrs, (x.ty.shape for x in call.args[:2])
    if a.window_size is not None:
        return None, []
    scale = 1 / math.sqrt(int(q[3])) if a.scale is None else float(a.scale)
    mask = "" if a.causal_mask is None else str(a.causal_mask)
    offset = abs(int(q[1]) - int(k[1])) if mask == "BottomRight" else 0
    bias = list(call.args[3:])
    if bias and len(bias[0].ty.shape) != _RANK:
        shape = [1] * (_RANK - len(bias[0].ty.shape)) + list(bias[0].ty.shape)
        bias = [builder.emit(relax.op.reshape(bias[0], shape))]
    return AttentionOptions(scale, bool(mask), 0, offset), bias


def accumulated(dtype: str) -> str:
    """Return the type in which scores and sums of operands of a type are computed."""
    return "float64" if dtype == "float64" else "float32"


def _same(a: Expr, b: Expr) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return int(a) == int(b)
    return not (isinstance(a, tirx.IntImm) or isinstance(b, tirx.IntImm)) or a.same_as(b)


def _is(a: Expr, b: Expr) -> bool:
    return bool(a.same_as(b))


def _checked(call: Call) -> list[Type]:
    """Return the types of the tensors, whose shapes and attributes fit."""
    types = [arg.ty for arg in call.args]
    if len(types) < 3 or any(
        not isinstance(ty, relax.TensorType) or ty.shape is None for ty in types
    ):
        raise refuse(call, "an operand is no tensor of known shape", "Give all operands shapes.")
    tensors, bias, shift = attention_operands(call)
    q, k, v = (list(x.ty.shape) for x in tensors[:3])
    if any(len(shape) != _RANK for shape in (q, k, v)):
        remedy = "Use (batch, positions, heads, width)."
        raise refuse(call, "queries, keys or values without four dims", remedy)
    pairs = [(q[0], k[0]), (q[0], v[0]), (k[1], v[1]), (k[2], v[2]), (q[3], k[3])]
    if not all(_same(a, b) for a, b in pairs):
        problem = f"the shapes {q}, {k} and {v} do not fit"
        raise refuse(call, problem, "Give queries and keys the same batch and width.")
    heads = [q[2], k[2]]
    if all(isinstance(n, tirx.IntImm) for n in heads) and int(heads[0]) % int(heads[1]):
        problem = f"{int(heads[0])} query heads for {int(heads[1])} key heads"
        raise refuse(call, problem, "The number of query heads is a multiple of that of key heads.")
    sinks = attention_sinks(call)
    expected = [x for x in (bias, sinks, shift) if x is not None]
    optional = list(call.args[len(tensors) :])
    if len(expected) != len(optional) or not all(map(_is, expected, optional)):
        problem = f"a bias with {len(optional[0].ty.shape)} dims"
        raise refuse(call, problem, "Reshape it to four dims, which broadcast to the scores.")
    if sinks is not None and (len(tensors) != 3 or not _same(sinks.ty.shape[0], q[2])):
        problem = f"sinks of the shape {list(sinks.ty.shape)} for {q[2]} query heads"
        raise refuse(call, problem, "Pass a sink per query head, to the forward op alone.")
    options = AttentionOptions.of(call)
    if (options.window or shift is not None) and not options.causal:
        raise refuse(call, "a window or a shift without causal", "Pass causal=True.")
    tokens = sum(options.documents)
    if tokens and not (options.causal and _same(tirx.IntImm("int64", tokens), k[1])):
        problem = f"documents of {tokens} tokens for {k[1]} keys"
        raise refuse(call, problem, "Pass causal=True, and lengths whose sum are the keys.")
    return types


def _infer_forward(call: Call, _: BlockBuilder) -> Type:
    q, _k, v, *_rest = _checked(call)
    batch, positions, heads, _width = q.shape
    lse = relax.TensorType([batch, heads, positions], accumulated(str(q.dtype)), q.vdevice)
    out = relax.TensorType([batch, positions, heads, v.shape[3]], q.dtype, q.vdevice)
    return relax.TupleType([out, lse])


def _infer_bias(call: Call, _: BlockBuilder) -> Type:
    _checked(call)
    bias = attention_operands(call)[1]
    if bias is None:
        raise refuse(call, "there is no bias", "Pass the bias after the log-sum-exp.")
    return bias.ty


INFER: Mapping[str, Callable[[Call, Any], Any]] = {
    ATTENTION_OP: _infer_forward,
    ATTENTION_BACKWARD_OP: lambda call, _: relax.TupleType(_checked(call)[:3]),
    ATTENTION_BIAS_OP: _infer_bias,
}
