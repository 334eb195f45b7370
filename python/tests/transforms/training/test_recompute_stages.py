# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recomputation within a bound in stages: against enumeration, simulation, and the same step."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.nightly import nightly_but
from tests.plain_systems import PLAIN_A100
from tests.transforms.training.recompute_models import layers
from tvm_distir.core.plan.recomputation import policies_of
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.core.plan.schedules.notes import Pipeline
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import InfeasibleError
from tvm_distir.transforms.training.auto_recompute.chain import CallOption, ChainCall, all_ways
from tvm_distir.transforms.training.auto_recompute.stage_memory import memory_of
from tvm_distir.transforms.training.auto_recompute.staged_automatic import StageKinds
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.optimizers.registry import optimizer_named
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline
from tvm_distir.transforms.training.pipeline.pipeline_step import StagedStep
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.step.objective import read_losses
from tvm_distir.transforms.training.step.parameters import Parameters
from tvm_distir.transforms.training.step.recipe import Recipe

GIB = 2**30
A100 = td.System.load(PLAIN_A100)
MICROS = 4
SCHEDULES = {
    "1f1b": {"kind": "1f1b", "stages": 2},
    "1f1b-4": {"kind": "1f1b", "stages": 4},
    "gpipe": {"kind": "gpipe", "stages": 2},
    "interleaved": {"kind": "interleaved", "stages": 2, "chunks": 2},
    "zero_bubble": {"kind": "zero_bubble", "stages": 2},
    "zero_bubble_v": {"kind": "zero_bubble_v", "stages": 2},
    "stash": {"kind": "1f1b", "stages": 2, "stash": True},
}


@pytest.mark.parametrize("seed", range(20))
def test_the_least_of_all_ways_beside_others(seed: int) -> None:
    """What others keep counts as often as they are there: the whole stash, not what is so far."""
    rng = np.random.default_rng(seed)
    links = [
        ChainCall(
            tuple(CallOption(f"{k}", *map(int, rng.integers(0, 30, 4))) for k in range(3)),
            *map(int, rng.integers(0, 40, 2)),
        )
        for _ in range(int(rng.integers(1, 7)))
    ]
    gaps = [int(n) for n in rng.integers(0, 40, len(links) + 1)]
    crowds = [(int(n), int(more)) for n, more in rng.integers(0, 30, (3, 2))]

    def needed(remaining: int, need: int) -> int:
        return max(more + times * remaining + need for times, more in crowds)

    matches = []
    for chosen in itertools.product(*(link.options for link in links)):
        remaining, need = 0, gaps[0]
        for link, option, gap in zip(links, chosen, gaps[1:], strict=True):
            need = max(need, remaining + link.before_forward + option.forward_bytes)
            need = max(need, remaining + link.before_backward + option.backward_bytes)
            remaining += option.kept_bytes
            need = max(need, remaining + gap)
        matches.append((needed(remaining, need), sum(o.time for o in chosen)))
    for bound in {int(b) for b in rng.choice([b for b, _ in matches], 5)}:
        ways = all_ways(
            links, gaps, lambda remaining, need, b=bound: needed(remaining, need) <= b, bound
        )
        least = min(ways, key=lambda way: way.time)
        assert needed(least.kept_bytes, least.need_bytes) <= bound
        assert least.time == sum(o.time for o in least.options(links))
        assert least.time == min(time for bytes_, time in matches if bytes_ <= bound)
    assert not all_ways(links, gaps, lambda k, n: needed(k, n) < min(matches)[0], 100)


@functools.cache
def gpt(count: int) -> Any:
    return td.zoo.gpt(
        size="tiny", layers=count, hidden=32, heads=4, vocab=64, seq=64, positions=64, batch=2
    )


def staged(name: str, recompute: Any, model: Any = None, **options: Any) -> Any:
    schedule = {**SCHEDULES[name], "micro_batches": MICROS}
    model = (
        gpt(4 if schedule["stages"] * schedule.get("chunks", 1) == 2 else 8)
        if model is None
        else model
    )
    options = {"system": A100, **options}
    return td.train_step(model, recompute=recompute, schedule=schedule, **options)


def simulated(step: Any) -> Any:
    result = Pipeline.of(step).schedule
    text = f"pipeline:schedule={result.kind},micro_batches={MICROS}"
    text += f",chunks={result.chunks}" if result.kind == "interleaved" else ""
    text += ",stash=1" if result.stash else ""
    plan = strategy.make_plan(step, text, {"pp": result.stages})
    return td.simulate(td.export(td.distribute(step, plan)), A100)


def auto(bound: float) -> str:
    return f"auto:memory_gib={bound / GIB!r}"


def least(name: str, model: Any = None, **options: Any) -> float:
    """What the refusal says that is needed, bytes."""
    with pytest.raises(InfeasibleError, match=r"DIST0803.*needs .* GiB") as refused:
        staged(name, auto(1000), model, **options)
    return float(re.search(r"needs (\S+) GiB", str(refused.value)).group(1)) * GIB


def measured(name: str, model: Any, loss: str, optimizer: str) -> StageKinds:
    """What ``auto`` knows of the stages of a step."""
    method = optimizer_named(optimizer, {})
    recipe = Recipe(read_losses(loss), method, recompute=Auto(), system=A100)
    functions, main = NamedFunctions(model), model["main"]
    copied = relax.utils.copy_with_new_vars(main)
    params = Parameters(copied, data_positions(main), 0, recipe, functions)
    schedule = Schedule(**SCHEDULES[name], micro_batches=MICROS)
    output = StagedStep(params, recipe, functions, schedule).run(model.attrs)
    functions_of = [note.function for note in output.pipeline.stages]
    known = list(dict.fromkeys(functions_of))
    memories = [memory_of(output, functions_of.index(each), Auto()) for each in known]
    return StageKinds(memories, [known.index(each) for each in functions_of], schedule)


@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_what_is_said_of_a_stage_is_what_simulation_says(name: str, policy: str) -> None:
    kinds = measured(name, gpt(4), "cross_entropy", "adam")
    devices = simulated(staged(name, policy, gpt(4), optimizer="adam")).devices
    for kind, (memory, device) in enumerate(zip(kinds.memories, devices, strict=True)):
        links = [
            replace(each, options=tuple(o for o in each.options if o.policy == policy))
            for each in memory.links
        ]
        (way,) = all_ways(links, memory.gaps, lambda *_: True, 1 << 40)
        message = kinds.needed(kind, kinds.stash(kind, way), way.need_bytes)
        assert device.peak_memory_bytes <= max(message, kinds.end)
        assert message <= device.peak_memory_bytes + memory.constants


def test_no_written_step_within_the_bound_does_less() -> None:
    """All ways of two layers, which both stages go, each written and simulated, rank by rank.

    What a rank keeps and does is the same whichever way the other one goes. Without a system work
    counts, not the time of small kernels.
    """
    model, known = layers(4), ("none", "full", "selective")
    options: dict[str, Any] = {"loss": "mse", "system": None}
    ways = {}
    for half in itertools.product(known, repeat=2):
        way = half * 2
        devices = simulated(staged("1f1b", {"layer": "+".join(way)}, model, **options)).devices
        ways[way] = [(lane.peak_memory_bytes, lane.flops) for lane in devices]
    bounds = sorted({peak for devices in ways.values() for peak, _ in devices})
    assert len(bounds) > 8
    kinds = measured("1f1b", model, "mse", "sgd")
    slack = max(memory.constants for memory in kinds.memories)
    lowest, reached = max(map(kinds.least, kinds.groups)), 0
    for bound in bounds:
        if bound + slack < lowest:
            continue
        devices = simulated(staged("1f1b", auto(bound + slack), model, **options)).devices
        for rank, single in enumerate(devices):
            assert single.peak_memory_bytes <= bound + slack
            fit = [local[rank][1] for local in ways.values() if local[rank][0] <= bound]
            if fit:
                assert single.flops <= min(fit)
                reached += 1
    assert reached > 8


@pytest.mark.parametrize("name", nightly_but(SCHEDULES, {3, 5, 6}))
def test_a_step_keeps_within_its_bound(name: str) -> None:
    """The one that is refused by name too: what it is said to need is enough, and not far off."""
    options: dict[str, Any] = {"optimizer": "adam"}
    if name == "stash":
        options = {"model": layers(4), "loss": "mse"}
    remaining = simulated(staged(name, "none", **options))
    needed, most = least(name, **options), remaining.peak_memory_bytes
    with pytest.raises(InfeasibleError):
        staged(name, auto(0.99 * needed), **options)
    times = []
    for share in (0.0, 0.5, 1.0):
        bound = needed * 1.01 + share * max(most - needed, 0)
        result = simulated(staged(name, auto(bound), **options))
        assert result.peak_memory_bytes <= bound
        times.append(result.time_s)
    assert times[0] >= times[1] >= times[2]
    assert (
        simulated(staged(name, auto(1.3 * max(most, needed)), **options)).time_s == remaining.time_s
    )
    if "bubble" not in name:  # what waits for gradients of weights leaves little to make again
        assert needed < 0.9 * most


@pytest.mark.parametrize("name", nightly_but(["1f1b", "interleaved", "zero_bubble_v"], {1}))
def test_the_numbers_are_the_same_bits(name: str) -> None:
    plain = staged(name, "none")
    least_bytes, most = least(name), simulated(plain).peak_memory_bytes
    step = staged(name, auto((least_bytes + most) / 2))
    assert policies_of(step)
    values = draw_inputs(step)
    expected = Reference(SerializePipeline()(plain)).run(values)
    result = Reference(SerializePipeline()(step)).run(values)
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


def test_the_choice_stands_in_the_plan_and_makes_the_step_again() -> None:
    step = staged("1f1b", auto(least("1f1b") * 1.3))
    plan = strategy.make_plan(
        step, f"pipeline:micro_batches={MICROS}+data_parallel", {"pp": 2, "dp": 2}
    )
    assert dict(plan.recompute) == policies_of(step) != {}
    again = td.Plan.from_dict(plan.to_dict())
    assert staged("1f1b", again.recompute).script() == step.script()
    assert td.verify(step, plan, engine="threads").equal


def test_calls_have_policies_by_their_number_in_the_whole_model() -> None:
    """Stages of which the calls make other things again are of other kinds."""
    single = staged("1f1b-4", "layer=full*3+none")
    assert policies_of(single) == {"layer": "full*3+none*1"}
    functions = [note.function for note in Pipeline.of(single).stages]
    assert functions == ["stage0", "stage1", "stage2", "stage3"]
    functions = [note.function for note in Pipeline.of(staged("1f1b-4", "full")).stages]
    assert functions == ["stage0", "stage1", "stage1", "stage3"]
    text = single.script()
    calls = re.findall(r"def (part\d)_backward\(.*?\n(?=    @R|\Z)", text, re.DOTALL)
    assert calls
    matches = [
        re.findall(r"cls\.layer_backward(\w*)\(", body)
        for body in re.split(r"\n    def ", text)
        if re.match(r"part\d_backward\(", body)
    ]
    assert matches == [["_full", "_full"], ["", "_full"], [""] * 2, [""] * 2]


def test_parts_of_a_mesh() -> None:
    needed = least("1f1b")
    assert policies_of(staged("1f1b", auto(needed * 1.1)))
    text = auto(needed * 1.1) + ",activations=8"
    assert not policies_of(staged("1f1b", text))
