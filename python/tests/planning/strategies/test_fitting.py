# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``recompute="auto"`` stays within its bound where a strategy leaves values whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import tvm_distir as td
from tests.transforms.training.pipeline_models import tower
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.memory_fit import evenly_cut, fitted
from tvm_distir.support.errors.tree import InfeasibleError

GIB = 2**30
MODEL = td.zoo.gpt(size="tiny", layers=2, batch=4, seq=64)
SCHEDULE = {"kind": "1f1b", "stages": 2, "micro_batches": 4}


def _make(recompute: str | Mapping[str, str]) -> Any:
    return td.train_step(
        MODEL, optimizer="adam", schedule=SCHEDULE, recompute=recompute, system="dgx-a100"
    )


def _planned(step: Any) -> Any:
    return make_plan(step, "pipeline:micro_batches=4+megatron", {"pp": 2, "tp": 2})


def _peak(step: Any) -> int:
    local = td.distribute(step, _planned(step), system="dgx-a100")
    return td.simulate(td.export(local), "dgx-a100").peak_memory_bytes


def test_what_is_measured_too_much_is_taken_off_the_bound() -> None:
    """Megatron without sequence parallelism leaves what lies between layers whole."""
    most, least = (_peak(_make(policy)) for policy in ("none", "full"))
    bound = (most + least) // 2
    message = f"auto:memory_gib={bound / GIB!r},activations=2,weights=2"
    assert _peak(_make(message)) > bound
    step, plan = fitted(_make, _planned, message, "dgx-a100")
    assert least <= _peak(step) <= bound
    assert plan.recompute == _planned(step).recompute != {}


def test_an_estimate_without_the_plan_refuses_nothing() -> None:
    """Weights and states are shards under FSDP; what is left is used for activations."""
    model = td.zoo.gpt(size="tiny", layers=4, hidden=256, batch=32, seq=64)

    def make(recompute: Any) -> Any:
        return td.train_step(model, optimizer="adam", recompute=recompute, system="dgx-a100")

    def planned(step: Any) -> Any:
        return make_plan(step, "fsdp", {"dp": 8})

    def peak(step: Any) -> int:
        local = td.distribute(step, planned(step), system="dgx-a100")
        return td.simulate(td.export(local), "dgx-a100").peak_memory_bytes

    most, least = (peak(make(policy)) for policy in ("none", "full"))
    bound = (most + least) // 2
    message = f"auto:memory_gib={bound / GIB!r},activations=8"
    with pytest.raises(InfeasibleError, match="DIST0803"):
        make(message)
    step, _ = fitted(make, planned, message, "dgx-a100")
    assert least < peak(step) <= bound


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("fsdp", {"dp": 8}),
        ("hsdp", {"pod": 2, "dp": 4}),
        ("fsdp+context_parallel:form=gather", {"dp": 2, "cp": 2}),
    ],
)
def test_a_policy_is_found_wherever_full_recomputation_fits(
    strategy: str, mesh: dict[str, int]
) -> None:
    """The memory of full recomputation is enough."""
    model = td.zoo.gpt(size="tiny", layers=1, hidden=128, batch=32, seq=64)

    def make(recompute: Any) -> Any:
        return td.train_step(model, optimizer="adam", recompute=recompute, system="dgx-a100")

    def planned(step: Any) -> Any:
        return make_plan(step, strategy, mesh)

    def peak(step: Any) -> int:
        local = td.distribute(step, planned(step), system="dgx-a100")
        return td.simulate(td.export(local), "dgx-a100").peak_memory_bytes

    least = peak(make("full"))
    text = evenly_cut(f"auto:memory_gib={least / GIB!r}", 8)
    step, _ = fitted(make, planned, text, "dgx-a100")
    assert peak(step) <= least


def test_what_no_choice_holds_is_said_by_name() -> None:
    """The same step whatever is said: all attempts are made, then the least is named."""
    step, message = td.train_step(tower(1, 2), "mse"), list[Any]()

    def make(recompute: Any) -> Any:
        message.append(recompute)
        return step

    def planned(mod: Any) -> Any:
        return make_plan(mod, "data_parallel", {"dp": 2})

    with pytest.raises(InfeasibleError, match=r"DIST0803.*measured in 7 choices"):
        fitted(make, planned, "auto:memory_gib=1e-6,activations=2")
    assert [text.partition(":")[0] for text in message] == [*["auto"] * 5, "selective", "full"]
    assert message[4] == f"auto:memory_gib={int(1e-6 * GIB) / GIB!r},activations=1,weights=1"


def test_other_policies_are_taken_as_they_are() -> None:
    created = []
    step, plan = fitted(
        lambda messages: created.append(messages) or _make(messages), _planned, "layer=full"
    )
    assert created == ["layer=full"]
    assert plan.recompute["layer"] == "full"
    assert step is not None
