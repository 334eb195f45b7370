# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A sample of what scripts/checks/onnx_node_cases.py runs: a case of each kind of operator."""

from __future__ import annotations

import functools

import pytest

from tests.models.node_cases import NodeCase, check, collected

SAMPLE = {
    "averagepool": "test_averagepool_2d_pads",
    "clip": "test_clip",
    "cumsum": "test_cumsum_2d_axis_1:constants",
    "einsum": "test_einsum_batch_matmul",
    "expand": "test_expand_dim_changed:constants",
    "gatherelements": "test_gather_elements_1",
    "instance_normalization": "test_instancenorm_example",
    "layernormalization": "test_layer_normalization_2d_axis1_expanded",
    "reshape": "test_reshape_reduced_dims:constants",
    "pad": "test_reflect_pad:constants",
    "resize": "test_resize_upsample_scales_nearest:constants",
    "softmax": "test_softmax_axis_1",
    "tile": "test_tile:constants",
    "topk": "test_top_k:constants",
    "where": "test_where_example",
}
"""A file of ONNX's cases, and one of them."""


@functools.cache
def cases() -> dict[str, NodeCase]:
    return {case.name: case for case in collected(list(SAMPLE))}


@pytest.mark.parametrize("name", SAMPLE.values())
def test_one_device_and_two_give_what_onnx_says(name: str) -> None:
    alone, *cut = check(cases()[name])
    assert alone.kind == "equal", alone
    assert {outcome.kind for outcome in cut} <= {"equal", "refused"}, cut
    assert any(outcome.code == "cut" for outcome in cut), cut
    refusals = {outcome.code for outcome in cut if outcome.kind == "refused"}
    # an odd batch, and no weight: what the strategies have nothing to do with
    assert refusals <= {"DIST0234", "DIST0233"}, cut
