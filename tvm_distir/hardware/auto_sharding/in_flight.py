# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes pipelines to auto-sharding: activations in flight per rank, and stage meshes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tvm import ir

from tvm_distir.core.ir.attributes import (
    ACCUMULATE_PHASE,
    BACKWARD_PHASE,
    FORWARD_PHASE,
    WEIGHT_PHASE,
    phase_of,
)
from tvm_distir.core.plan import (
    ACTIVATION,
    BACKWARD,
    FORWARD,
    WEIGHT,
    Pipeline,
    PipelineAction,
    Plan,
    PlanRule,
)
from tvm_distir.core.propagation import Graph
from tvm_distir.support import PlanError

_BEHIND = (BACKWARD_PHASE, WEIGHT_PHASE)

AWAY = 2
"""Maximum number of stashes, beside that of the running action, where others wait in the host's
memory."""


@dataclass(frozen=True)
class InFlightActivations:
    """Stashed activations of stages that share a function, on the rank with most of them.

    Attributes
    ----------
    stage_count : int
        The number of such stages on the rank.
    stashes : int
        Micro-batches, of all of these stages, whose forward pass is done and whose backward pass
        is not, beside the running micro-batch: at most once there are sums over micro-batches.
    first : int
        The number of additional micro-batches before there are sums.
    more : mapping of int to int
        By the number of a parameter of the function: how many copies of it are stored beside that
        of a micro-batch.
    arriving : set of int
        Numbers of the parameters that come from the stage before.
    summed : bool
        Whether sums over micro-batches wait while others run.
    """

    stage_count: int = 1
    stashes: int = 0
    first: int = 0
    more: Mapping[int, int] = field(default_factory=dict)
    arriving: Set[int] = frozenset()
    summed: bool = False


NO_FLIGHT = InFlightActivations()


def flights_of(mod: ir.IRModule) -> dict[str, InFlightActivations]:
    """Return the activations in flight of each function of a pipelined step, else an empty dict.

    What a rank keeps of stages that have another function is left out.
    """
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return {}
    schedule, result = pipeline.schedule, dict[str, InFlightActivations]()
    for rank, units in enumerate(schedule.orders):
        rank_stages = [stage for stage, owner in enumerate(schedule.rank_of) if owner == rank]
        names = [pipeline.stages[stage].function for stage in rank_stages]
        for name in dict.fromkeys(names):
            stage_units = [unit for unit in units if names[unit.chunk] == name]
            stage = rank_stages[names.index(name)]
            before, summed = _stashes(stage_units, schedule.splits_backward)
            if stage in schedule.offload:
                before, summed = min(before, AWAY), min(summed, AWAY)
            old = result.get(name, NO_FLIGHT)
            if before + summed < old.first + 2 * old.stashes:
                continue
            params = pipeline.stages[stage].params
            arriving = {i for i, role in enumerate(params) if role.startswith(f"{ACTIVATION}:")}
            stage_count = names.count(name)
            result[name] = InFlightActivations(
                stage_count, summed, max(0, before - summed),
                _more(pipeline, params, stage_count), arriving, schedule.micro_batches > 1,
            )  # fmt: skip
    return result


def on_stages(mod: ir.IRModule, plan: Plan) -> Plan:
    """Return a plan whose rules name the mesh of each stage, where there are several meshes.

    Raises
    ------
    PlanError
        DIST0237 where nothing says who is on which.
    MeshError
        DIST0206 where the schedule names another.
    """
    if len(plan.meshes) == 1:
        return plan
    pipeline = Pipeline.of(mod)
    if pipeline is None or not pipeline.schedule.meshes:
        problem = f"{len(plan.meshes)} meshes, and no schedule that names a mesh for each rank"
        remedy = 'Create a pipelined step whose schedule has "meshes".'
        raise PlanError("DIST0237", problem, location="label", remedy=remedy)
    rules = {}
    for rank, stage in zip(pipeline.schedule.rank_of, pipeline.stages, strict=True):
        mesh = plan.mesh(pipeline.schedule.meshes[rank], "schedule")
        rules[stage.function] = PlanRule(
            "param", "*", (None,) * len(mesh.axes), mesh.name, function=stage.function
        )
    return replace(plan, rules=(*plan.rules, *rules.values()))


def _stashes(units: Sequence[PipelineAction], split: bool) -> tuple[int, int]:
    """Return the most stashes beside that of a unit, before there are sums, and from then on."""
    now, most, summed = 0, [0, 0], False
    for unit in units:
        now -= unit.phase == BACKWARD
        most[summed] = max(most[summed], now)
        now += unit.phase == FORWARD
        summed = summed or unit.phase == (WEIGHT if split else BACKWARD)
    return most[0], most[1]


def _more(pipeline: Pipeline, params: Sequence[str], stage_count: int) -> dict[int, int]:
    """Return how often a stage's parameters are stored; data is present from the beginning."""
    often = {
        **dict.fromkeys(pipeline.inputs, stage_count - 1),
        **dict.fromkeys(pipeline.sliced, pipeline.schedule.micro_batches - 1),
    }
    return {i: often[name] for i, name in enumerate(params) if often.get(name)}


class LiveRanges:
    """Live ranges of the values of a function, with their multiplicity.

    Parameters
    ----------
    g : Graph
    graphs : mapping of str to Graph
        The graphs of the functions that it calls.
    begins : sequence of int
        The time at which each node begins; the last entry is the end of the function.
    flight : InFlightActivations
    """

    def __init__(
        self,
        g: Graph,
        graphs: Mapping[str, Graph],
        begins: Sequence[int],
        flight: InFlightActivations,
    ) -> None:
        self.g, self.flight = g, flight
        self._phases = {k: phase_of(graphs[g.nodes[k].callee].fn) for k in g.calls}
        self._params = {k: i for i, k in enumerate(g.params)}
        phases = {phase: begins[k + 1] - 1 for k, phase in self._phases.items() if phase}
        self._forward_phase = phases.get(FORWARD_PHASE, 0)
        self._done = max(phases.values(), default=0)

    def reading(self, v: int, reader: int, first: int, last: int) -> tuple[int, int]:
        """Return the range in which a reader needs a value; every micro-batch reads weights.

        Parameters
        ----------
        v, reader : int
            Numbers of the value and of a node.
        first, last : int
            The times at which the node reads it, of the micro-batch that runs.
        """
        number = self._params.get(self.g.producer[v][0], -1)
        each = number < 0 or number in self.flight.arriving or number in self.flight.more
        if each or not self._phases.get(reader):
            return first, last
        return 0, self._done

    def of(self, v: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield how often a value is live in each range, for all micro-batches in flight.

        Parameters
        ----------
        v : int
        first, last : int
            The times between which the value of the running micro-batch is stored.
        """
        flight, maker = self.flight, self.g.producer[v][0]
        phase, number = self._phases.get(maker, ""), self._params.get(maker, -1)
        often = 1 + flight.more.get(number, 0)
        if phase == ACCUMULATE_PHASE:
            often = flight.stage_count
            if flight.summed:
                first = self._forward_phase + 1 if flight.first else 0
        yield often, first, last
        if phase == FORWARD_PHASE or number in flight.arriving:
            if any(self._phases.get(k) in _BEHIND for k, _ in self.g.uses[v]):
                yield flight.stashes, 0, self._done
                yield flight.first, 0, self._forward_phase
