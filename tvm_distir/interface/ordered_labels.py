# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write placements with the order of the mesh axes that shard a dim: ``S[0]{tp,dp}``."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import mesh_shape, placement_text
from tvm_distir.core.ir.views import order_of


def ordered_words(
    labels: Sequence[int], mesh: DeviceMesh, first: DeviceMesh, names: Sequence[str]
) -> list[str]:
    """Return the label of each axis of a mesh, of labels along the axes of a view of it.

    Parameters
    ----------
    labels : sequence of int
    mesh, first : DeviceMesh
        The view, and the mesh.
    names : sequence of str
        The axes of ``first``. Those that shard a dim follow its label, from major to minor, where
        the mesh has another order.
    """
    order, sizes = order_of(mesh, first), mesh_shape(first)
    label_of = dict(zip(order, labels, strict=True))
    words = []
    for axis in range(len(names)):
        label = label_of[axis]
        together = [a for a in order if label_of[a] == label >= 0 and sizes[a] > 1]
        shown = f"{{{','.join(names[a] for a in together)}}}" if axis in together else ""
        words.append(placement_text((label,)) + shown * (together != sorted(together)))
    return words
