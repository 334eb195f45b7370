# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the dim of a weight that Megatron-LM shards."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvm_distir.core.ir import R
from tvm_distir.core.ir.attributes import STAGE_KIND_ATTR, TRAINING_ATTR
from tvm_distir.core.plan import MeshSpec

from .consumers import Consumers
from .fused_weights import FusedSegments, fused_segments
from .head_groups import heads_of, tensor_axes
from .model_info import check_divisible
from .transformer_weights import KnownWeight, cut_dim

FUSED_WEIGHTS = ("fused", "fused_gate_up")
COLUMN_PROJECTIONS = ("query", "key_value", "gate_up", "head")


def segments_of(
    weight: KnownWeight, fn: relax.Function, consumers: Consumers
) -> FusedSegments | None:
    """Return the segments of a fused weight, None where it has to be replicated."""
    attrs: Any = fn.attrs or {}
    may_be_fused = weight.projection in (*FUSED_WEIGHTS, "gate_up")
    if not may_be_fused or TRAINING_ATTR in attrs or STAGE_KIND_ATTR in attrs:
        return None
    segments = fused_segments(weight, consumers)
    if weight.projection == "gate_up" and segments is not None and len(segments.sizes) == 1:
        return None
    return segments


def label_of(
    weight: KnownWeight,
    mesh: MeshSpec,
    axis: str,
    consumers: Consumers,
    segments: FusedSegments | None,
) -> int:
    """Return the label of a known weight along the axis, its sizes checked."""
    parameter, projection = weight.parameter, weight.projection
    numbers = tensor_axes(mesh, axis)
    count = (
        mesh.axes[axis] if projection == "key_value" else math.prod(mesh.shape[n] for n in numbers)
    )
    if projection in FUSED_WEIGHTS or segments is not None:
        if projection == "fused" and not weight.is_bias:
            _check_fused(weight, count, axis, consumers)
        if segments is None or not segments.divided_by(count):
            return R
        return parameter.ndim - 1 if weight.is_bias else cut_dim(weight)
    if weight.is_bias:
        if projection not in COLUMN_PROJECTIONS or parameter.ndim < 1:
            return R
        if projection != "head":
            _check_width(weight, parameter.ndim - 1, count, axis)
        return parameter.ndim - 1
    dim = cut_dim(weight)
    if projection in ("embedding", "head"):
        return dim
    _check_heads(weight, count, axis, consumers)
    _check_width(weight, dim, count, axis)
    return dim


def _check_width(weight: KnownWeight, dim: int, count: int, axis: str) -> None:
    shape = weight.parameter.shape
    if shape is not None:
        location = f"{weight.parameter.location} (megatron)"
        check_divisible(shape[dim], count, f"dim {dim} of size", axis, location)


def _check_heads(weight: KnownWeight, count: int, axis: str, consumers: Consumers) -> None:
    if weight.projection not in ("query", "key_value"):
        return
    problem = (
        "the number of heads" if weight.projection == "query" else "the number of key/value heads"
    )
    for heads in heads_of(weight, consumers):
        _refuse_heads(weight, heads, count, axis, problem)


def _check_fused(weight: KnownWeight, count: int, axis: str, consumers: Consumers) -> None:
    shape = weight.parameter.shape
    for use in weight.uses:
        if use.kind == "matmul" and use.kept is not None and shape is not None:
            heads = consumers.split_into(use.function, use.result, int(shape[use.kept]) // 3)
            if heads is not None:
                _refuse_heads(weight, heads, count, axis, "the number of heads")


def _refuse_heads(weight: KnownWeight, heads: int, count: int, axis: str, problem: str) -> None:
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    check_divisible(
        heads,
        count,
        problem,
        axis,
        f"{weight.parameter.location} (megatron)",
        f'Give "{axis}" a size that divides {heads}: {", ".join(map(str, fitting))}.',
    )
