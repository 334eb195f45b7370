# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A sketch that is filled in is the problem that would have been built, whatever the prices."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.propagation.weight_search import WeightSearch

MODELS = {
    "gpt": {"size": "tiny", "layers": 3},
    "moe": {"size": "tiny"},
    "resnet": {"size": "tiny"},
    "unet": {"size": "tiny"},
}


def choices(decision: Decision) -> list[Any]:
    """Every alternative of every instance, callees where they are called."""

    def of(inst: Instance) -> Any:
        return inst.graph.key, inst.choice[0], [of(kid) for _, kid in sorted(inst.kids.items())]

    return [of(decision.entries[name]) for name in sorted(decision.entries)]


def costs_of(seed: int) -> Costs:
    """From few to so many bits that costs are shifted."""
    draw = random.Random(seed)
    top = draw.choice((4, 12, 40))
    hold, flop, launch = (1 + draw.getrandbits(top) for _ in range(3))
    return Costs(memory=1, hold=hold, flop=flop, launch=launch)


@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_filled_sketches_decide_alike(name: str, parts: int) -> None:
    """The same alternatives everywhere and the same cost, at six sets of prices."""
    mod = td.zoo.build(name, MODELS[name])
    main = mod["main"]
    data = data_positions(main)
    weights = {"main": dict.fromkeys(i for i in range(len(main.params)) if i not in data)}
    axis = Axis(0, 0, 4, "tp")
    sketching = WeightSearch(mod, axis, Costs())
    plain = WeightSearch(mod, axis, Costs(), sketching=False)
    for seed in range(6):
        result = sketching.decide(weights, costs_of(seed), parts=parts)
        expected = plain.decide(weights, costs_of(seed), parts=parts)
        assert result.cost == expected.cost > 0
        assert choices(result) == choices(expected)
