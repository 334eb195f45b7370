# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of detection ops, along images but not along the boxes of an image."""

from __future__ import annotations

from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ops.dims import same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()
_PER_IMAGE = relax_names(
    "vision.get_valid_counts vision.non_max_suppression vision.multibox_transform_loc"
)


@FAMILY.rule(*_PER_IMAGE, local=SAME_OP)
def per_image(call: CallShape) -> Draft:
    """Shard dim 0, the images, of all results and of the operands that are given per image."""
    draft = Draft(call, why="the boxes of an image are compared with each other")
    images = call.ins[0][0]
    ins = {i: 0 for i, shape in enumerate(call.ins) if shape and same(shape[0], images)}
    outs = {j: 0 for j, shape in enumerate(call.outs) if shape and same(shape[0], images)}
    if len(outs) == len(call.outs):
        draft.tie(ins, outs, uneven=False)  # padding would be boxes to count
    return draft.per_element(8)


@FAMILY.rule("relax.vision.all_class_non_max_suppression", local=SAME_OP)
def all_images(call: CallShape) -> Draft:
    """Replicate all dims: the selected boxes of all images and classes are in a single list."""
    draft = Draft(call)
    draft.default_why = "the boxes that are selected for all images and classes form a single list"
    return draft.per_element(8)
