# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What estimates and automatic sharding take from a module, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tvm_distir.hardware.auto_sharding.decisions import mesh_of
from tvm_distir.hardware.auto_sharding.in_flight import LiveRanges
from tvm_distir.hardware.auto_sharding.states import OpStates
from tvm_distir.planning.search.candidates import Candidate
from tvm_distir.planning.search.estimates import Estimator
from tvm_distir.planning.search.layers import LayerTables
from tvm_distir.planning.search.trials import StrategyMaker
from tvm_distir.planning.search.uneven_stages import Uneven
from tvm_distir.planning.strategies.composition import parse
from tvm_distir.support.errors.tree import PlanError


def _graph(*meshes: int) -> SimpleNamespace:
    return SimpleNamespace(name="f", values=[SimpleNamespace(mesh=mesh) for mesh in meshes])


def test_a_function_is_on_the_mesh_of_its_values() -> None:
    """Values without a mesh are on the first."""
    found = [mesh_of(_graph(*meshes)) for meshes in ((), (-1, -1), (0, -1), (2, 2))]
    assert found == [0, 0, 0, 2]
    with pytest.raises(PlanError, match="DIST0237 f: 2 meshes"):
        mesh_of(_graph(1, 2))


def test_a_parameter_is_live_once_more_per_micro_batch_that_it_is_given_for() -> None:
    g = SimpleNamespace(
        nodes=[], calls=[], params=[0, 1], producer={5: (0, 0), 6: (1, 0)}, uses={5: [], 6: []}
    )
    flight = SimpleNamespace(more={0: 3}, arriving=set(), alike=2, stashes=1, first=1, summed=True)
    ranges = LiveRanges(g, {}, [0, 4], flight)
    assert list(ranges.of(5, 1, 3)) == [(1 + 3, 1, 3)]
    assert list(ranges.of(6, 0, 2)) == [(1, 0, 2)]


def test_gradients_are_reduced_once_a_step() -> None:
    """A micro-batch takes its share of the reduction of each layer."""
    outlooks = SimpleNamespace(reduced_ps=lambda candidate, weights: 100 * weights)
    table = SimpleNamespace(times_ps=(7, 9), weights_bytes=(2, 3))
    uneven = Uneven.__new__(Uneven)
    uneven.outlooks = outlooks
    candidate = Candidate((("dp", 4),), 2, 4)
    assert uneven._times(candidate, table) == [7 + 200 // 4, 9 + 300 // 4]


@pytest.mark.parametrize(("depth", "batch", "train"), [(1, 8, {}), (3, None, {}), (3, 8, None)])
def test_only_layers_of_a_training_step_of_a_batch_have_tables(
    monkeypatch: pytest.MonkeyPatch, depth: int, batch: int | None, train: object
) -> None:
    tables = LayerTables.__new__(LayerTables)
    tables.ends = ["v"] * depth
    tables.source = SimpleNamespace(batch=batch, train=train)
    tables._cache = {}
    monkeypatch.setattr(LayerTables, "_made", lambda *inputs: pytest.fail("it is made"))
    assert tables.of(Candidate((("tp", 2),), 2, 2)) is None


@pytest.mark.parametrize("depth", [2, 3])
def test_a_table_is_scaled_to_the_most_rows_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """10 samples in 2 x 2 parts: the table has 2 rows, the largest part 3; it is made once."""
    made = []

    def make(self: object, mesh: dict[str, int], count: int, *rest: object) -> SimpleNamespace:
        made.append((mesh, count))
        return _Table((20, 40), (200, 400))

    tables = LayerTables.__new__(LayerTables)
    tables.ends, tables._cache = ["v"] * depth, {}
    tables.source = SimpleNamespace(batch=10, train={})
    monkeypatch.setattr(LayerTables, "_made", make)
    candidate = Candidate((("dp", 2), ("tp", 2)), 2, 2)
    for _ in range(2):
        table = tables.of(candidate)
        assert (table.times_ps, table.stashes_bytes) == ((30, 60), (300, 600))
    assert made == [({"tp": 2}, 5)]
    whole = tables.of(Candidate((("dp", 5), ("tp", 2)), 2, 1))
    assert whole.times_ps == (20, 40)


class _Table(tuple):
    """Times and stashes of two layers."""

    def __new__(cls, times: tuple[int, ...], stashes: tuple[int, ...]) -> _Table:
        table = super().__new__(cls, (times, stashes))
        table.times_ps, table.stashes_bytes = times, stashes
        return table

    def _replace(self, times_ps: list[int], stashes_bytes: list[int]) -> _Table:
        return _Table(tuple(times_ps), tuple(stashes_bytes))


def test_a_strategy_is_made_with_the_given_number_of_micro_batches() -> None:
    text = "pipeline:stages=2{}+megatron"
    stated = text.format(",micro_batches=4")
    assert StrategyMaker(stated).specs == list(parse(stated))
    assert StrategyMaker(stated).schedule({"pp": 2}).micro_batches == 4
    assert StrategyMaker(text.format(""), 8).schedule({"pp": 2}).micro_batches == 8


def test_a_call_that_runs_apart_has_the_most_kernels_of_its_factors() -> None:
    """Two factors on three axes; uneven parts need one kernel more, which reads and writes."""
    factors = [
        SimpleNamespace(kernels=1, passes=2, size=12), SimpleNamespace(kernels=3, passes=5, size=9)
    ]  # fmt: skip
    rule = SimpleNamespace(factors=factors)
    states = OpStates.__new__(OpStates)
    states.mesh_costs = SimpleNamespace(sizes=(2, 3, 2))

    def apart(*chosen: int | None) -> tuple[int, int]:
        return states._apart(rule, [SimpleNamespace(factor=number) for number in chosen])

    assert apart(0, None, None) == (1, 2)
    assert apart(0, 1, None) == apart(None, 1, None) == (3, 5)
    assert apart(0, 0, 0) == (1, 2)  # 12 in 12 parts
    assert apart(0, None, 1) == (3 + 1, 5 + 2)  # 9 in 2 parts
    assert apart(None, None, None) == (0, 0)


@pytest.mark.parametrize(("chunks", "units"), [(1, (4 - 1) * 7 + 10), (2, (4 * 2 + 2 - 1) * 4)])
def test_a_step_takes_its_units_and_the_ramp(chunks: int, units: int) -> None:
    """Four layers of 1 to 4 ps, in two stages or four: the longest one bounds all units."""
    groups = [range(0, 2), range(2, 4)] if chunks == 1 else [range(k, k + 1) for k in range(4)]
    table = SimpleNamespace(times_ps=(1, 2, 3, 4), weights_bytes=(0,) * 4)
    candidate = Candidate((("dp", 1),), stages=2, micro_batches=4, chunks=chunks)
    bare: Any = SimpleNamespace(_with_gradients=lambda _, step_ps, *__: step_ps)
    found = Estimator.estimate(bare, candidate, table, 0, [(8, 9, 1, 2), (1, 2, 8, 10)], groups)
    assert found.time_s == pytest.approx(units * 1e-12)
    assert found.peak_bytes == (18 if chunks == 1 else 12)
