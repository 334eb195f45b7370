# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What ``distribute`` does with collectives without being asked: of training steps for a system."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tvm
from tvm import ir

import tvm_distir as td
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.rewriting.scopes import all_bindings

SYSTEM = td.System.load("laptop-cpu")
OFF: dict[str, Any] = {"bucket_bytes": 0, "ahead_bytes": 0}


def kinds(mod: ir.IRModule) -> Counter[str]:
    functions = [fn for fn in mod.functions.values() if isinstance(fn, tvm.relax.Function)]
    matches = [dist_op_name(b.value) for fn in functions for b in all_bindings(fn.body)]
    return Counter(name for name in matches if name is not None)


@pytest.fixture(scope="module")
def step() -> tuple[ir.IRModule, Plan]:
    mod = td.train_step(td.zoo.gpt(size="tiny", layers=2, batch=8), optimizer="adam")
    return mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2})


def test_a_step_for_a_system_reduces_in_buckets_and_overlaps(
    step: tuple[ir.IRModule, Plan],
) -> None:
    """One reduction of the gradients of each function that makes some, beside other work.

    The caller of the layers waits for that of a layer, once per call.
    """
    plain = kinds(td.distribute(*step, system=SYSTEM, **OFF))
    usual = kinds(td.distribute(*step, system=SYSTEM))
    assert plain == {"all_reduce": 22}
    assert usual == {"all_reduce_start": 3, "collective_done": 4}


@pytest.mark.parametrize(
    ("options", "buckets", "starts"),
    [(OFF, False, False), ({"bucket_bytes": 0}, False, True), ({"ahead_bytes": 0}, True, False)],
)
def test_each_is_switched_off(
    step: tuple[ir.IRModule, Plan], options: dict[str, int], buckets: bool, starts: bool
) -> None:
    single = kinds(td.distribute(*step))
    result = kinds(td.distribute(*step, system=SYSTEM, **options))
    assert bool(result["collective_done"]) == starts
    reduced = result["all_reduce"] + result["all_reduce_start"]
    assert (reduced < single["all_reduce"]) == buckets


def test_inference_and_steps_for_no_system_stay(step: tuple[ir.IRModule, Plan]) -> None:
    mod = td.zoo.gpt(size="tiny", layers=2)
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    usual = td.distribute(mod, plan, system=SYSTEM)
    assert usual.script() == td.distribute(mod, plan, system=SYSTEM, **OFF).script()
    assert td.distribute(*step).script() == td.distribute(*step, **OFF).script()


def test_results_are_the_same_bits_and_memory_is_within_the_bound(
    step: tuple[ir.IRModule, Plan],
) -> None:
    """A sixteenth more than without, and two copies of a bucket."""
    usual = td.distribute(*step, system=SYSTEM)
    assert td.verify(*step, dist=usual, engine="virtual").equal
    plain = td.distribute(*step, system=SYSTEM, **OFF)
    peaks = [
        td.simulate(td.export(mod), SYSTEM, blocking=True).devices[0].peak_memory_bytes
        for mod in (plain, usual)
    ]
    assert peaks[1] <= peaks[0] * 17 / 16 + 2 * 25 * 2**20
