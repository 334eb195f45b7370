# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the view of a mesh on which all tensors of a call can be stated."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.mesh import same_mesh
from tvm_distir.core.ir.placement import Labels, labels_of, placement_text
from tvm_distir.core.ir.views.tilings import (
    are_views,
    common_view,
)
from tvm_distir.support import PropagationError


def call_view(placed: Sequence[DTensorType], location: str) -> tuple[DeviceMesh, Sequence[Labels]]:
    """Return the view on which a call works: that of its first tensor, where all can be stated.

    Parameters
    ----------
    placed : sequence of DTensorType
        The types of its tensors. Where they are not on views of one mesh, which is refused when the
        call is lowered, the mesh is that of the first.
    location : str
        The place of the call, for the message.

    Returns
    -------
    mesh, labels : DeviceMesh and sequence of labels
        The view, and the labels of each tensor along its axes.

    Raises
    ------
    PropagationError
        DIST0405 where mesh axes shard two of the tensors in opposite orders.
    """
    mesh = placed[0].device_mesh
    labels = [labels_of(t.placement) for t in placed]
    if all(same_mesh(t.device_mesh, mesh) for t in placed):
        return mesh, labels
    if not all(are_views(t.device_mesh, mesh) for t in placed):
        return mesh, labels
    rows = [(t.device_mesh, row, int(t.tensor_ty.ndim)) for t, row in zip(placed, labels)]
    common = common_view(rows)
    if common is None:
        names = "; ".join(f'"{placement_text(row)}"' for row in labels)
        raise PropagationError(
            "DIST0405",
            f"mesh axes shard the tensors of the call ({names}, on views of one mesh) in opposite "
            "orders",
            location=location,
            remedy="Redistribute one of them to the view of the other.",
        )
    return common


def is_transfer(value: ir.Call) -> bool:
    """Return whether a redistribute sends its operand to another mesh.

    A mesh on whose axes no placement of both ends can be stated, as their dims have mesh axes in
    opposite orders, is another mesh too, though it may be a view of the operand's.
    """
    ty, attrs = value.args[0].ty, value.attrs
    if same_mesh(ty.device_mesh, attrs.device_mesh):
        return False
    if not are_views(ty.device_mesh, attrs.device_mesh):
        return True
    return view_of_ends(ty, value) is None


def view_of_ends(ty: DTensorType, value: ir.Call) -> DeviceMesh | None:
    """Return a view on which an operand's type and the result of a redistribute can be stated."""
    ends = [(ty.device_mesh, ty.placement), (value.attrs.device_mesh, value.attrs.placement)]
    ndim = int(ty.tensor_ty.ndim)
    common = common_view([(mesh, labels_of(x), ndim) for mesh, x in ends])
    return None if common is None else common[0]
