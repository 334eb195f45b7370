# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""States of optimizers are in the memory of the host between their updates: the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir

import tvm_distir as td
from tests.transforms.training.pipeline_models import schedule_of, tower
from tvm_distir.core.ir.attributes import training_notes
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support import UsageError
from tvm_distir.transforms import ExpandSchedule, OffloadStates, SerializePipeline

STAGED = "pipeline:micro_batches=2+data_parallel"


def _step(strategy: str, optimizer: str, **more: Any) -> tuple[ir.IRModule, Any]:
    """A step of a tower, in two stages where a strategy says so, and its plan."""
    staged = strategy.startswith("pipeline")
    schedule = schedule_of("1f1b", 2, 2) if staged else None
    step = td.train_step(tower(4, 2 if staged else 4, tied=False), "mse", optimizer,
                         schedule=schedule, **more)  # fmt: skip
    return step, make_plan(step, strategy, {"pp": 2, "dp": 2} if staged else {"dp": 2})


def _copies(mod: ir.IRModule) -> list[int]:
    text = mod.script()
    return [text.count(f'"tvm_distir.host.{kind}"') for kind in ("fetch", "store")]


@pytest.mark.parametrize(
    ("strategy", "optimizer", "engine", "options"),
    [
        ("data_parallel", "adamw", "virtual", {}),
        ("fsdp", "adam", "threads", {"system": "a100"}),
        ("zero:stage=1", "adamw", "virtual", {"system": "a100", "overlap_optimizer": True}),
        ("zero:stage=1", "sgd:momentum=0.9", "virtual", {}),
        (STAGED, "adamw", "threads", {"system": "a100"}),
        (f"{STAGED}+zero:stage=1", "adam", "virtual", {"overlap_optimizer": True}),
    ],
)
def test_the_same_bits(strategy: str, optimizer: str, engine: str, options: Any) -> None:
    """Losses, weights and states are those of the step whose states are on the devices."""
    name, _, momentum = optimizer.partition(":momentum=")
    numbers = {"momentum": float(momentum)} if momentum else {}
    step, plan = _step(strategy, name, **numbers)
    values = draw_inputs(SerializePipeline()(step) if strategy.startswith("pipeline") else step)
    results = []
    for offloads in (False, True):
        programs = td.distribute(step, plan, offload_optimizer=offloads, **options)
        if strategy.startswith("pipeline"):
            programs = ExpandSchedule()(programs)
        fetches, stores = _copies(programs)
        assert (fetches > 0, stores > 0) == (offloads, offloads)
        results.append(td.run(programs, values, engine=engine))
    for left, other in zip(*results, strict=True):
        np.testing.assert_array_equal(left, other)


def test_masters_are_states_and_scaled_losses_are_branches() -> None:
    """Masters of float16 weights are fetched too, and an ``If`` keeps old states."""
    model = td.zoo.gpt(layers=1, hidden=16, heads=2, seq=4, batch=4, vocab=16, dtype="float16")
    step = td.train_step(model, optimizer="adam", master=True, loss_scale="dynamic")
    plan = make_plan(step, "zero:stage=1", {"dp": 2})
    values = draw_inputs(step)
    local = td.distribute(step, plan, offload_optimizer=True)
    names = {str(name) for names in training_notes(local["main"], "host").values()
             for name in names[:]}  # fmt: skip
    assert {name.rpartition(".")[2] for name in names} >= {"m", "v"}
    assert any("master" in name for name in names)
    expected = td.run(td.distribute(step, plan), values)
    for left, other in zip(td.run(local, values), expected, strict=True):
        np.testing.assert_array_equal(left, other)


def test_each_state_is_copied_once_and_layers_at_once() -> None:
    """A call fetches all states that it reads by one copy, and so it stores them."""
    step = td.train_step(tower(4, 2, tied=False), optimizer="adam")
    plan = make_plan(step, "data_parallel", {"dp": 2})
    local = td.distribute(step, plan)
    moved = OffloadStates()(local)
    states = sum(len(names) for names in training_notes(moved["main"], "host").values())
    program = td.export(moved)
    ops = [op for op in program.functions["main"].ops if op.kind == "copy"]
    for kind in ("fetch", "store"):
        copied = [op for op in ops if op.collective == kind]
        assert sum(len(op.inputs) for op in copied) == states
        assert max(len(op.inputs) for op in copied) > 1
        assert len({value for op in copied for value in op.inputs}) == states
    assert moved.script() != local.script()
    parsed = tvm.script.from_source(moved.script(show_meta=True))
    assert tvm_ffi.structural_equal(parsed, moved, map_free_vars=True)


def test_a_step_without_states_is_refused() -> None:
    step = td.train_step(tower(2, 2), optimizer="sgd")
    plan = make_plan(step, "data_parallel", {"dp": 2})
    with pytest.raises(UsageError, match="DIST0151"):
        td.distribute(step, plan, offload_optimizer=True)
