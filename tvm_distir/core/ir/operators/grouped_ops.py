# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define products of rows with the matrices of their groups, as mixtures of experts compute them.

``R.dist.grouped_matmul(x, w, ids)`` multiplies row ``i`` of ``x (M, K)`` by matrix ``ids[i]`` of
``w (E, K, N)``; the rows need no order. ``R.dist.grouped_outer(x, y, ids)`` is what differentiates
it: matrix ``e`` is the sum of the outer products of the rows with ``ids[i] == e``. An id outside of
``0 .. E - 1`` selects no matrix: its row is zero, or adds to no sum. That is how a device that has
some of the experts leaves the rows of others out.

The attribute ``groups`` is the number of all matrices, of which a device may have a part. Rows are
taken to be spread evenly over them when FLOPs are counted.

``R.dist.expert_matmul(x, w)`` multiplies the slots of experts, ``x (E, M, K)``, by their matrices
``w (E, K, N)``: it is ``R.matmul``, but its attributes say how many tokens select experts, so that
the experts which none selects cost nothing. It serves steps of few tokens.

Like attention, these ops compute and move nothing between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr

from tvm_distir.core.ir.types import static_shape

from .infer import refuse
from .ops import PREFIX, dist_call

GROUPED_MATMUL_OP = f"{PREFIX}grouped_matmul"
GROUPED_OUTER_OP = f"{PREFIX}grouped_outer"
EXPERT_MATMUL_OP = f"{PREFIX}expert_matmul"


def grouped_matmul(x: Expr, w: Expr, ids: Expr, groups: int) -> ir.Call:
    """Multiply each row of ``x (M, K)`` by the matrix of ``w (E, K, N)`` that ``ids (M,)`` names.

    ``groups`` is the number of all matrices, which is ``E`` unless ``w`` is a part of them.
    """
    return dist_call("grouped_matmul", [x, w, ids], groups=int(groups))


def grouped_outer(x: Expr, y: Expr, ids: Expr, groups: int, local_groups: int) -> ir.Call:
    """Sum the outer products of rows ``x (M, K)`` and ``y (M, N)`` by group: ``(held, K, N)``."""
    return dist_call("grouped_outer", [x, y, ids], groups=int(groups), held=int(local_groups))


def expert_matmul(x: Expr, w: Expr, experts: int, top_k: int, tokens: int, slots: int) -> ir.Call:
    """Multiply the slots of experts, ``x (E, M, K)``, by their matrices ``w (E, K, N)``.

    ``top_k`` of all ``experts`` work on a token. ``tokens`` of them have ``slots`` rows of each
    expert: both are numbers of all tokens, of which ``M`` rows of a device have their share.
    """
    counts = {"experts": experts, "top_k": top_k, "tokens": tokens, "slots": slots}
    return dist_call("expert_matmul", [x, w], **{key: int(n) for key, n in counts.items()})


def _shapes(call: ir.Call, ranks: tuple[int, int, int]) -> list[tuple[Any, ...]]:
    """Return the shapes of the operands, which have the given ranks."""
    types = [arg.ty for arg in call.args]
    if len(types) != len(ranks) or not all(isinstance(ty, relax.TensorType) for ty in types):
        raise refuse(call, "an operand is no tensor", "Give two tensors and the ids of the groups.")
    shapes = [static_shape(ty) for ty in types]
    if any(s is None or len(s) != n for s, n in zip(shapes, ranks, strict=True)):
        raise refuse(call, "an operand has another number of dims", f"Give {ranks} dims.")
    if "int" not in str(types[2].dtype):
        raise refuse(call, "the ids are no integers", "Cast them to int32 or int64.")
    return [shape for shape in shapes if shape is not None]


def _infer_matmul(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    x, w, ids = _shapes(call, (2, 3, 1))
    if x[0] != ids[0] or x[1] != w[1]:
        problem = f"the shapes {x}, {w} and {ids} do not fit"
        raise refuse(call, problem, "Use (rows, in), (groups, in, out) and (rows,).")
    ty = call.args[0].ty
    return relax.TensorType([x[0], w[2]], ty.dtype, ty.vdevice)


def _infer_outer(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    x, y, ids = _shapes(call, (2, 2, 1))
    if not x[0] == y[0] == ids[0]:
        problem = f"the shapes {x}, {y} and {ids} do not fit"
        raise refuse(call, problem, "Use (rows, in), (rows, out) and (rows,).")
    ty = call.args[0].ty
    return relax.TensorType([int(call.attrs["held"]), x[1], y[1]], ty.dtype, ty.vdevice)


def _infer_experts(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    types = [arg.ty for arg in call.args]
    if len(types) != 2 or not all(isinstance(ty, relax.TensorType) for ty in types):
        raise refuse(call, "an operand is no tensor", "Give the slots and the matrices.")
    x, w = (static_shape(ty) for ty in types)
    if x is None or w is None or not len(x) == len(w) == 3 or (x[0], x[2]) != (w[0], w[1]):
        problem = f"the shapes {x} and {w} do not fit"
        raise refuse(call, problem, "Use (experts, slots, in) and (experts, in, out).")
    return relax.TensorType([x[0], x[1], w[2]], types[0].dtype, types[0].vdevice)


INFER: Mapping[str, Callable[[ir.Call, Any], Any]] = {
    GROUPED_MATMUL_OP: _infer_matmul,
    GROUPED_OUTER_OP: _infer_outer,
    EXPERT_MATMUL_OP: _infer_experts,
}
