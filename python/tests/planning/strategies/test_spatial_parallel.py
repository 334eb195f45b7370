# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Spatial parallel: which inputs are cut, what neighbours exchange, and what is refused."""

from __future__ import annotations

import pytest

import tvm_distir as td
from tvm_distir.core.plan.schema import labels_text
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError

RESNET = "zoo:resnet?size=tiny,depth=10,width=4,image=48"


def test_images_are_cut_and_weights_stay() -> None:
    mod = td.load_model("zoo:unet?size=tiny").mod
    plan = strategy.make_plan(mod, "spatial_parallel:dim=3", {"sp": 2})
    matches = {rule.name: labels_text(rule.placement) for rule in plan.rules}
    assert (matches["sample"], matches["timesteps"], matches["text"]) == ("S[3]", "R", "R")
    assert {matches[name] for name in matches if "weight" in name} == {"R"}


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("spatial_parallel", {"sp": 2}),
        ("data_parallel+spatial_parallel", {"dp": 2, "sp": 2}),
        ("spatial_parallel:axis=y+spatial_parallel:axis=x,dim=3", {"y": 2, "x": 2}),
    ],
)
def test_a_resnet_is_verified(text: str, axes: dict[str, int]) -> None:
    """Where both plans fill the same image, each fills its own axis."""
    mod = td.load_model(RESNET).mod
    plan = strategy.make_plan(mod, text, axes)
    assert td.verify(mod, plan, engine="virtual").equal
    program = td.export(td.distribute(mod, plan))
    result = td.simulate(program, td.System.load("dgx-a100")).collectives
    assert {c.mesh_axis for c in result if c.kind == "collective_permute"} == set(axes) - {"dp"}


@pytest.mark.parametrize(
    ("spec", "text", "axes", "error", "message"),
    [
        (RESNET, "spatial_parallel", {"dp": 2}, MeshError, "DIST0206"),
        (RESNET, "spatial_parallel:dim=4", {"sp": 2}, PlanError, "DIST0231"),
        ("zoo:gpt?size=tiny", "spatial_parallel", {"sp": 2}, PlanError, "DIST0233.*input_ids"),
    ],
)
def test_errors(
    spec: str, text: str, axes: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(td.load_model(spec).mod, text, axes)
