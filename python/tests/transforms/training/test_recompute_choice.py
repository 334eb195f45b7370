# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recomputation within a bound: the least time, against enumeration and against simulation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tests.transforms.training.recompute_models import layers
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import DistIRError, InfeasibleError
from tvm_distir.transforms.training.auto_recompute.automatic import chain_of
from tvm_distir.transforms.training.auto_recompute.chain import (
    CallOption,
    ChainCall,
    least_bytes,
    least_time,
)
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.autodiff.saved_values import kept_bytes
from tvm_distir.transforms.training.optimizers.registry import optimizer_named
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.recompute.frontier import DEPTH, Frontier
from tvm_distir.transforms.training.recompute.times import ValueTimes
from tvm_distir.transforms.training.step.objective import read_losses
from tvm_distir.transforms.training.step.parameters import Parameters
from tvm_distir.transforms.training.step.recipe import Recipe
from tvm_distir.transforms.training.step.step_writer import TrainStepWriter

GIB = 2**30
GPT = {"size": "tiny", "hidden": 16, "heads": 4, "vocab": 32, "seq": 16, "batch": 4}
A100 = td.System.load("dgx-a100")


@dataclass
class RandomChain:
    """A chain, and all ways through it."""

    links: list[ChainCall]
    gaps: list[int]

    @staticmethod
    def draw(rng: np.random.Generator) -> RandomChain:
        count = int(rng.integers(1, 13))
        links = []
        for _ in range(count):
            options = tuple(
                CallOption(f"{k}", *map(int, rng.integers(0, 30, 4)))
                for k in range(rng.integers(1, 4 if count < 10 else 3))
            )
            links.append(ChainCall(options, *map(int, rng.integers(0, 40, 2))))
        return RandomChain(links, [int(n) for n in rng.integers(0, 40, count + 1)])

    def of(self, chosen: tuple[CallOption, ...]) -> tuple[int, int]:
        """Peak and time of a way."""
        remaining, peak = 0, self.gaps[0]
        for link, option, gap in zip(self.links, chosen, self.gaps[1:], strict=True):
            peak = max(peak, remaining + link.before_forward + option.forward_bytes)
            peak = max(peak, remaining + link.before_backward + option.backward_bytes)
            remaining += option.kept_bytes
            peak = max(peak, remaining + gap)
        return peak, sum(option.time for option in chosen)


@pytest.mark.parametrize("seed", range(25))
def test_the_least_of_all_ways(seed):
    rng = np.random.default_rng(seed)
    chain = RandomChain.draw(rng)
    ways = [chain.of(way) for way in itertools.product(*(link.options for link in chain.links))]
    peaks = sorted({peak for peak, _ in ways})
    assert least_bytes(chain.links, chain.gaps) == peaks[0]
    assert least_time(chain.links, chain.gaps, peaks[0] - 1) is None
    for bound in {peaks[0], peaks[-1], *map(int, rng.choice(peaks, 3))}:
        chosen = least_time(chain.links, chain.gaps, bound)
        assert chosen is not None
        peak, time = chain.of(tuple(chosen))
        assert peak <= bound
        assert time == min(t for p, t in ways if p <= bound)


def _random_function(rng: np.random.Generator) -> relax.Function:
    """Products and sums of a handful of values of several widths."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    w = relax.Var("w", relax.TensorType([8, 8], "float32"))
    with builder.function("f", [x, w]):
        with builder.dataflow():
            created = [x]
            for _ in range(rng.integers(4, 8)):
                a, b = (created[i] for i in rng.integers(0, len(created), 2))
                kind = rng.integers(3)
                value = R.matmul(a, w) if kind == 0 else R.multiply(a, b) if kind == 1 else R.exp(a)
                if rng.random() < 0.3:
                    value = R.mean(builder.emit(value), axis=[1], keepdims=True)
                    value = R.broadcast_to(builder.emit(value), (4, 8))
                created.append(builder.emit(value))
            out = builder.emit_output(R.add(created[-1], created[-2]))
        builder.emit_func_output(out)
    return builder.get()["f"]


def _all_choices(bindings: list[Any], read: list[Any], times: ValueTimes) -> list[tuple[int, int]]:
    """Bytes and time of every set of values that could be kept."""
    matches = []
    for flags in itertools.product((False, True), repeat=len(bindings)):
        remaining = {b.var for b, flag in zip(bindings, flags, strict=True) if flag}
        expected, size_bytes, time = set(read), 0, 0
        for binding in reversed(bindings):
            if binding.var in expected and binding.var in remaining:
                size_bytes += kept_bytes([binding.var])
            elif binding.var in expected:
                time += times.of(binding.value)
                expected.update(variables(binding.value))
        matches.append((size_bytes, time))
    return matches


@pytest.mark.parametrize("seed", nightly_but(range(12), range(5)))
@pytest.mark.parametrize("system", [None, A100], ids=["weights", "a100"])
def test_minimum_cuts_are_the_hull_of_all_choices(seed, system):
    rng = np.random.default_rng(seed)
    bindings = list(all_bindings(_random_function(rng).body))[:11]
    read = [b.var for b in bindings if rng.random() < 0.5] or [bindings[-1].var]
    times = ValueTimes(NamedFunctions(Nothing), system)
    points = Frontier(bindings, read, times).points
    choices = _all_choices(bindings, read, times)
    assert len(points) <= 2**DEPTH + 1
    assert points[0].size_bytes == 0
    assert points[-1].time == 0
    for point in points:
        assert (point.size_bytes, point.time) in choices
        assert point.size_bytes == kept_bytes(point.kept)
    for low, high in itertools.pairwise(points):
        price, scale = low.time - high.time, high.size_bytes - low.size_bytes
        assert price > 0
        assert scale > 0
        line = price * low.size_bytes + scale * low.time
        if len(points) < 5:  # the hull, not some corners of it
            assert min(price * size + scale * time for size, time in choices) == line


@I.ir_module
class Nothing:
    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        return x


def peak(step) -> int:
    """Peak memory of a step on one device, in bytes, not in whole blocks."""
    plan = strategy.make_plan(step, "data_parallel", {"dp": 1})
    program = td.export(td.distribute(step, plan))
    framework = CachingAllocator(program, block_bytes=1)
    return RankMemories(program, framework).of(0).account.peak_bytes


def flops(step) -> int:
    plan = strategy.make_plan(step, "data_parallel", {"dp": 1})
    return td.simulate(td.export(td.distribute(step, plan)), A100).devices[0].flops


def auto(model, bound_bytes: float, **options):
    text = f"auto:memory_gib={bound_bytes / GIB!r}"
    return td.train_step(model, "mse", recompute=text, **options)


def policies(step) -> dict[str, str]:
    notes = step["main"].attrs["dist.training"]
    return dict(notes["recompute"]) if "recompute" in notes else {}


def test_the_chain_of_a_model_says_what_simulation_says():
    """Each policy for all calls: kept bytes and peaks by the chain, lives by the simulator."""
    model = td.zoo.gpt(**GPT, layers=4)
    main = model["main"]
    method = optimizer_named("sgd", {})
    recipe = Recipe(read_losses("cross_entropy"), method, recompute=Auto(), system=A100)
    copied = relax.utils.copy_with_new_vars(main)
    functions = NamedFunctions(model)
    params = Parameters(copied, data_positions(main), 0, recipe, functions)
    writer = TrainStepWriter(params, recipe, functions)
    _, links, gaps = chain_of(writer, writer.run(), Auto())
    for policy in [option.policy for option in links[0].options]:
        chosen = tuple(o for link in links for o in link.options if o.policy == policy)
        message = RandomChain(links, gaps).of(chosen)[0]
        result = peak(td.train_step(model, recompute=policy, system=A100))
        # Constants of all functions that are tried are counted, a few scalars each.
        assert result <= message <= result + 4096


def test_no_written_step_within_the_bound_does_less():
    """All ways of three layers, each written and simulated."""
    model = layers(3)
    known = ("none", "full", "selective")
    ways = {}
    for way in itertools.product(known, repeat=3):
        step = td.train_step(model, "mse", recompute={"layer": "+".join(way)})
        ways[way] = (peak(step), flops(step))
    bounds = sorted({result for result, _ in ways.values()})
    assert len(bounds) > 4
    for bound in bounds:
        step = auto(model, bound + 256)  # constants
        assert peak(step) <= bound + 256
        assert flops(step) <= min(done for result, done in ways.values() if result <= bound)


@pytest.mark.parametrize("share", nightly_but([0.8, 0.5, 0.2, 0.0], {1}))
def test_a_model_keeps_within_its_bound(share):
    model = td.zoo.gpt(**GPT, layers=4)
    most, least = (peak(td.train_step(model, "mse", recompute=p)) for p in ("none", "full"))
    bound = least + share * (most - least) + 4096
    step = auto(model, bound, system="dgx-a100")
    assert peak(step) <= bound
    assert peak(step) > 0.8 * bound
    values = draw_inputs(step)
    plain = Reference(td.train_step(model, "mse")).run(values)
    for a, b in zip(Reference(step).run(values), plain, strict=True):
        assert np.array_equal(a, b)
    plan = strategy.make_plan(step, "data_parallel+megatron", {"dp": 2, "tp": 2})
    assert td.verify(step, plan).equal
    # What was chosen stands in the plan, and makes the same step again.
    assert dict(plan.recompute) == policies(step)
    again = td.Plan.from_dict(plan.to_dict())
    repeated = td.train_step(model, "mse", recompute=again.recompute, system="dgx-a100")
    assert repeated.script() == step.script()


def test_a_model_with_fused_attention_keeps_within_its_bound():
    """Its forward pass saves the result of attention and a view of it, which share a buffer."""

    def peak_bytes(policy: str) -> int:
        study = td.analyze(
            "zoo:llama?size=tiny,layers=8,seq=64,batch=2",
            strategy="data_parallel",
            mesh={"dp": 1},
            system="h100",
            train={"optimizer": "sgd"},
            recompute=policy,
        )
        return study.peak_memory_bytes

    full, none = peak_bytes("full"), peak_bytes("none")
    bound = (full + none) // 2
    assert full < bound < none
    assert full <= peak_bytes(f"auto:memory_gib={bound / GIB!r}") <= bound


def test_equal_layers_with_other_policies_have_names_that_say_so():
    step = td.train_step(layers(4), "mse", recompute="layer=full*2+none+selective")
    names = {str(gv.name_hint) for gv in step.functions}
    assert {"layer_backward_full", "layer_backward", "layer_forward"} <= names
    assert {"layer_backward_selective"} <= names
    assert policies(step) == {"layer": "full*2+none*1+selective*1"}
    assert policies(td.train_step(layers(4), "mse")) == {}


def test_parts_of_a_mesh():
    """Activations count by their parts: more fits than on one device."""
    model = layers(6)
    bound = peak(td.train_step(model, "mse", recompute="full"))
    whole = auto(model, bound + 256)
    text = f"auto:memory_gib={(bound + 256) / GIB!r},activations=8"
    assert policies(whole) != {}
    assert policies(td.train_step(model, "mse", recompute=text)) == {}


def test_a_plan_that_says_otherwise_is_refused():
    step = td.train_step(layers(2), "mse", recompute="full")
    plan = strategy.make_plan(step, "data_parallel", {"dp": 2})
    data = plan.to_dict()
    assert data["recompute"] == {"layer": "full"}
    for message in ({"layer": "none"}, {"layer": "full*1+none"}, {"other": "full"}):
        with pytest.raises(DistIRError, match=r"DIST0229.*train_step"):
            td.distribute(step, td.Plan.from_dict({**data, "recompute": message}))
    td.distribute(step, td.Plan.from_dict({**data, "recompute": {"*": "full*7"}}))
    with pytest.raises(DistIRError, match=r'DIST0221.*recompute is "fully".*full'):
        td.Plan.from_dict({**data, "recompute": {"layer": "fully"}})
    with pytest.raises(DistIRError, match="DIST0221"):
        td.Plan.from_dict({**data, "recompute": {"layer": 3}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auto", "the memory of a device is unknown"),
        ("auto:memory=3", 'no option "memory".*memory_gib'),
        ("auto:memory_gib=much", 'memory_gib is "much"'),
        ("auto:memory_gib=1,weights=0", 'weights is "0"'),
        ("full*0+none", r'recompute has "full\*0"'),
        ("cut:1.5", 'recompute is "cut:1.5"'),
    ],
)
def test_errors(text, words):
    with pytest.raises(DistIRError, match=f"(?s)DIST0351.*{words}"):
        td.train_step(layers(2), "mse", recompute=text)


def test_what_does_not_fit_says_how_much_it_needs():
    with pytest.raises(InfeasibleError, match=r"DIST0803.*needs .* GiB"):
        auto(layers(3), 1000)
