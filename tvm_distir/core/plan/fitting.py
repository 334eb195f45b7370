# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that the values of a rule have the dims that it shards."""

from __future__ import annotations

import math

from tvm.ir import Type

from tvm_distir.core.ir.placement import check_placement
from tvm_distir.core.ir.types import static_shape, tensor_type
from tvm_distir.support import MeshError, PlanError

from .schema import MeshSpec, PlanRule, labels_text


def check_fit(rule: PlanRule, mesh: MeshSpec, ty: Type, location: str) -> None:
    """Refuse a placement that the tensor cannot take."""
    tensor = tensor_type(ty)
    ndim = int(tensor.ndim) if tensor is not None else -1
    if ndim < 0:
        problem = "the number of dims is not known, so the placement cannot be checked"
        remedy = "Give the tensor a type with a known number of dims."
        raise MeshError("DIST0205", problem, location=location, remedy=remedy)
    try:
        check_placement(rule.closed_labels, mesh.shape, ndim, location)
    except MeshError as error:
        shape = static_shape(ty)
        words = "x".join(map(str, shape)) if shape else "unknown shape"
        problem = f"{error.what} ({words}; {rule.title})"
        raise MeshError(error.code, problem, location=location, remedy=error.remedy) from None
    cut = [label for label in rule.placement if label is not None and label >= 0]
    if len(set(cut)) == len(cut):
        return
    shape = static_shape(ty)
    for dim in range(ndim):
        axes = [a for a, label in enumerate(rule.placement) if label == dim]
        if len(axes) < 2 or shape is None or not isinstance(shape[dim], int):
            continue
        parts = [mesh.shape[a] for a in axes]
        count = math.prod(parts)
        if shape[dim] % count and shape[dim] <= count:
            names = " and ".join(f'"{mesh.axis_names[a]}"' for a in axes)
            raise PlanError(
                "DIST0226",
                f'"{labels_text(rule.placement)}" shards dim {dim} of size {shape[dim]} into '
                f"{' x '.join(map(str, parts))} = {count} parts, more than it has elements "
                f"({rule.title})",
                location=location,
                remedy=f"Choose one of {names}.",
            )
