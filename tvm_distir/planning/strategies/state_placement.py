# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place the optimizer's states as their weights, quantized ones by entire blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tvm import relax

from tvm_distir.core.ir import R, known_shape, unpack
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.plan import MeshSpec, OpenLabels
from tvm_distir.support import PlanError
from tvm_distir.transforms import ABSMAX, BLOCK

Shapes = Mapping[str, tuple[int, ...] | None]
"""Sizes of parameters by name; None where one is unknown."""
SMALL = 2**20
"""Elements of a weight whose states, of 2 MiB, may be replicated."""


def parameter_shapes(fn: relax.Function) -> Shapes:
    """Return the sizes of the parameters of a function by name; None where one is unknown."""
    return dict(zip(param_names(fn), (known_shape(p.ty) for p in unpack(fn.params)), strict=True))


def placement_of_state(
    shapes: Shapes, weight: str, state: str, labels: OpenLabels, mesh: MeshSpec
) -> OpenLabels:
    """Return the placement of a state of a weight.

    Where the sizes of both differ, the state is replicated. Codes and their scales are sharded
    alike, by entire blocks. Where a shard would have a part of a block, those of a small weight are
    replicated along the axes.

    Parameters
    ----------
    shapes : mapping
        What :func:`parameter_shapes` returns.
    weight, state : str
    labels : labels
        The placement of the weight.
    mesh : MeshSpec

    Raises
    ------
    PlanError
        DIST0234 a shard of a weight that is not small would have a part of a block.
    """
    full, sizes = shapes.get(weight), shapes.get(state)
    if full is None or sizes is None:
        return labels
    scales = shapes.get(state.removesuffix(ABSMAX) + ABSMAX)
    if scales is not None:
        cut = _cut_dims(full, scales, labels, mesh)
        if cut and math.prod(full) > SMALL:
            raise _cut_blocks(weight, full, labels, mesh, min(cut))
        return tuple(R if label in cut else label for label in labels)
    if full == sizes:
        return labels
    same = {d for d, (a, b) in enumerate(zip(full, sizes, strict=False)) if a == b}
    return tuple(label if label is None or label < 0 or label in same else R for label in labels)


def _cut_dims(
    full: Sequence[int], scales: Sequence[int], labels: OpenLabels, mesh: MeshSpec
) -> set[int]:
    """Return the dims of a weight along which a placement cuts blocks."""
    parts: Counter[int] = Counter()
    for label, size in zip(labels, mesh.shape, strict=True):
        if label is not None and label >= 0:
            parts[label] = max(parts[label], 1) * size
    last, flat = len(full) - 1, len(scales) < len(full)
    cut = set()
    for dim, count in parts.items():
        if count == 1 or (dim != last and not flat):
            continue
        entire = math.prod(full) == math.prod(scales) * BLOCK and scales[-1] % count == 0
        if not entire or (flat and (dim or full[0] % count)):
            cut.add(dim)
    return cut


def _cut_blocks(
    weight: str, full: Sequence[int], labels: OpenLabels, mesh: MeshSpec, dim: int
) -> PlanError:
    axes = [name for name, label in zip(mesh.axis_names, labels, strict=True) if label == dim]
    named = " and ".join(f'"{name}" ({mesh.axes[name]})' for name in axes)
    return PlanError(
        "DIST0234",
        f"the moments of {list(full)} are quantized in blocks of {BLOCK} elements, which shards of "
        f"dim {dim} over {named} would cut",
        location=weight,
        remedy="Shard by fewer devices, or keep moments in float32 (adamw, or a larger least= of "
        "adamw8bit).",
    )
