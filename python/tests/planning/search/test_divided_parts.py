# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans are described by the parts into which they divide data, weights and states."""

from __future__ import annotations

import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tvm_distir.planning.search.divided_parts import parts_text


@I.ir_module
class TwoProducts:
    """Two products whose weights have equally many bytes."""

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            h = R.matmul(x, up)
            y = R.matmul(h, down)
            R.output(y)
        return y


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({}, "replicated"),
        ({"x": ("dp",)}, "data/4"),
        ({"x": ("dp",), "up": (None, "tp"), "down": ("tp",)}, "data/4 weights/2"),
        # one of two equal weights in 8 parts: 2 / (1 + 1/8) of the bytes on a device
        ({"up": (("dp", "tp"), None), "down": ()}, "weights/2"),
    ],
)
def test_parts_are_those_of_the_bytes(rules: dict[str, tuple[object, ...]], text: str) -> None:
    placements = {name: td.P(*dims) for name, dims in {"x": (), **rules}.items()}
    plan = td.Plan(mesh={"dp": 4, "tp": 2}, rules=placements)
    assert parts_text(TwoProducts, plan) == text


def test_parts_of_the_data_are_those_of_the_input_that_is_divided_most() -> None:
    step = td.train_step(td.zoo.gpt(size="tiny", layers=1), optimizer="sgd")
    for divided in (["targets"], ["input_ids"], ["input_ids", "targets"]):
        placements = {n: td.P(*(["dp"] if n in divided else [])) for n in ("input_ids", "targets")}
        plan = td.Plan(mesh={"dp": 4, "tp": 2}, rules=placements)
        assert parts_text(step, plan) == "data/4"


def test_states_are_distinguished_from_weights() -> None:
    step = td.train_step(td.zoo.gpt(size="tiny", layers=1), optimizer="adam")
    plan = td.planning.make_plan(step, "zero:stage=1", {"dp": 4})
    assert parts_text(step, plan).startswith("data/4 ")
    assert "states/4" in parts_text(step, plan) and "weights" not in parts_text(step, plan)
