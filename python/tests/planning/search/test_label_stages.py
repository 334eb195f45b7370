# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Labels of steps in stages: what is in flight counts, and sums of gradients are cut for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import tvm_distir as td
from tests.nightly import nightly_but
from tests.planning.search.systems import QUICK
from tvm_distir.core.ir.attributes.keys import ACCUMULATE_PHASE
from tvm_distir.core.ir.attributes.readers import phase_of
from tvm_distir.core.ir.placement import P
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.planning.search.auto_sharding import ShardedCandidate
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.support.errors.tree import MeshError


def _step(schedule: Schedule, batch: int, size: str, **sizes: int):
    model = td.zoo.gpt(size=size, batch=batch, **sizes)
    return td.train_step(model, optimizer="adam", schedule=schedule)


def _simulated(step, schedule: Schedule, labelled: ShardedCandidate):
    plan = replace(labelled.plan(), schedule=schedule)
    return td.simulate(td.export(td.distribute(step, plan, system=QUICK)), QUICK)


@pytest.mark.parametrize("share", [None, 0.8])
@pytest.mark.parametrize(
    ("schedule", "mesh"),
    nightly_but(
        [
            (Schedule("1f1b", 4, 8), {"dp": 2}),
            (Schedule("1f1b", 4, 4), {"dp": 2, "tp": 2}),
            (Schedule("gpipe", 2, 8), {"dp": 2}),
            (Schedule("1f1b", 1, 8), {"dp": 4}),
        ],
        {1, 3},
    ),
)
def test_what_is_kept_is_what_simulation_says(schedule, mesh, share):
    """Stashes of micro-batches in flight and sums over them, which one micro-batch shows once."""
    step = _step(schedule, 4, "gpt2", layers=4, vocab=1000)
    limit = None
    if share:
        free = td.auto_shard(step, mesh, QUICK, gap=0.01)
        limit = int(share * _simulated(step, schedule, free).peak_memory_bytes)
    labelled = td.auto_shard(step, mesh, QUICK, gap=0.01, memory_bytes=limit)
    peak = _simulated(step, schedule, labelled).peak_memory_bytes
    assert labelled.peak_bytes == pytest.approx(peak, rel=0.02)
    assert limit is None or peak <= 1.02 * limit


def _sums(labelled: ShardedCandidate) -> Counter[tuple[int, ...]]:
    """Forms of the matrices among the sums of gradients over micro-batches."""
    matches: Counter[tuple[int, ...]] = Counter()
    for inst in labelled.decision.entries.values():
        g = inst.graph
        for k in g.calls:
            if phase_of(inst.kids[k].graph.fn) == ACCUMULATE_PHASE:
                matrices = [v for v in g.nodes[k].results if len(g.values[v].shape) == 2]
                matches.update(labelled.decision.value_layout(inst, v) for v in matrices)
    return matches


IN_TURN = Schedule("1f1b", 2, 4)


@pytest.fixture(scope="module")
def step():
    return _step(IN_TURN, 8, "tiny", layers=4, hidden=128, seq=64, vocab=64)


@pytest.fixture(scope="module")
def free(step):
    return td.auto_shard(step, {"dp": 2}, QUICK, gap=0.01)


@pytest.fixture(scope="module")
def tight(step, free):
    return td.auto_shard(step, {"dp": 2}, QUICK, gap=0.01, memory_bytes=int(0.9 * free.peak_bytes))


class TestSumsInParts:
    """ZeRO-2: where memory is short, each device keeps its part of the sums."""

    def test_they_wait_unfinished_where_there_is_room(self, free):
        """And are reduced once, behind all micro-batches."""
        assert set(_sums(free)) == {(P,)}

    def test_they_are_cut_where_there_is_not(self, free, tight):
        result = _sums(tight)
        assert result[(0,)] + result[(1,)] >= 10
        assert result.total() == _sums(free).total()

    def test_time_and_memory_show_it(self, step, free, tight):
        """Gradients of each micro-batch are sent, which has its price, and less is kept.

        What is simulated may hide it behind the kernels of the backward part.
        """
        before, after = (_simulated(step, IN_TURN, each) for each in (free, tight))
        assert after.peak_memory_bytes < 0.91 * before.peak_memory_bytes
        assert tight.cost_ps > free.cost_ps
        sent = [sum(d.comm_s for d in each.devices) for each in (before, after)]
        assert sent[1] > sent[0]

    def test_the_plan_runs_and_is_equal_to_one_device(self, step, tight):
        plan = td.planning.with_updates(step, replace(tight.plan(), schedule=IN_TURN))
        report = td.verify(step, Plan.from_dict(plan.to_dict()), engine="virtual")
        assert report.equal and report.collectives

    def test_a_search_finds_it_and_recomputes_nothing(self, free):
        """What one device of a stage could not do without making activations again."""

        def model(batch: int):
            return td.zoo.gpt(size="tiny", batch=batch, layers=4, hidden=128, seq=64, vocab=64)

        rules = Constraints(
            ("pp", "dp"), fixed={"pp": 2}, micro_batches=(4,), recompute=("none", "full")
        )
        result = search(
            model, 4, QUICK, batch=32, train={"optimizer": "adam"}, constraints=rules,
            memory_bytes=int(0.9 * free.peak_bytes), top=1,
        )  # fmt: skip
        best = result.plans[0].row
        assert best.candidate.recompute == "none"
        assert best.peak_bytes <= 0.9 * free.peak_bytes


class TestMeshesOfTheirOwn:
    """Stages on four devices of two axes, and on two of one axis."""

    schedule = Schedule("1f1b", 2, 4, meshes=("wide", "narrow"))
    meshes = (MeshSpec("wide", {"dp": 2, "tp": 2}), MeshSpec("narrow", {"tp": 2}, start=4))

    def test_the_plan_runs_and_is_equal_to_one_device(self):
        step = _step(self.schedule, 4, "tiny", layers=2)
        labelled = td.auto_shard(step, self.meshes, QUICK, gap=0.01)
        plan = td.planning.with_updates(step, replace(labelled.plan(), schedule=self.schedule))
        report = td.verify(step, Plan.from_dict(plan.to_dict()), engine="virtual")
        assert report.equal
        kinds = {(each.kind, each.mesh_axis.partition("_")[0]) for each in report.collectives}
        assert {("send", "wide"), ("send", "narrow")} < kinds

    @pytest.mark.parametrize("number", [0, 1])
    def test_each_stage_is_labelled_as_on_its_mesh_alone(self, number):
        """What a stage takes does not hang on the meshes of others."""
        step = _step(self.schedule, 4, "tiny", layers=2)
        both = td.auto_shard(step, self.meshes, QUICK)
        same = replace(self.schedule, meshes=())
        alone = td.auto_shard(_step(same, 4, "tiny", layers=2), self.meshes[number], QUICK)
        assert both.entries_ps[f"stage{number}"] == alone.entries_ps[f"stage{number}"]

    def test_a_mesh_that_is_not_there_is_named(self):
        step = _step(self.schedule, 4, "tiny", layers=2)
        with pytest.raises(MeshError, match='DIST0206 schedule: there is no mesh "narrow"'):
            td.auto_shard(step, (self.meshes[0], MeshSpec("other", {"tp": 2}, start=4)), QUICK)
