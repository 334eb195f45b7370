# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a schedule: stages, micro-batches and the order of their phases."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval

from tvm_distir.support import Count, Refuse, Text, nearest, read_model, shortened

from .listed import check_offload, check_units, unfit
from .offered_schedules import SCHEDULES, named_orders, offered_order
from .orders import in_turn, there_and_back
from .pipeline_actions import FORWARD, WEIGHT, Orders, PipelineAction

CUSTOM = "custom"
"""The kind of a schedule whose units are listed."""

MOST = 1 << 16
"""The maximum number of stages, and of micro-batches."""

NUMBERS = ("stages", "micro_batches", "chunks")
_Number = Annotated[int, Interval(ge=1, le=MOST)]


@dataclass(frozen=True)
class Schedule:
    """The stages and micro-batches of a training step, and the order in which they run.

    Parameters
    ----------
    kind : str
        ``gpipe``, ``1f1b``, ``interleaved``, ``zero_bubble``, ``zero_bubble_v``, ``custom``, or the
        name of an entry point of the group ``tvm_distir.schedules``.
    stages : int
        Ranks of the pipeline: parts of the cluster that work on separate stages.
    micro_batches : int
        Parts of the batch.
    chunks : int
        Stages per rank: any for ``interleaved`` and schedules of other packages, 2 for
        ``zero_bubble_v``, as ``ranks`` say for ``custom``, otherwise 1.
    cuts : tuple of str
        Names of the values of ``main`` that end a stage, but for the last; empty: by cost.
    units : tuple of tuple of PipelineAction
        The actions of each rank in order, of a ``custom`` schedule.
    ranks : tuple of int
        The rank of each stage, of a ``custom`` schedule; empty: the stages are distributed over the
        ranks in turn.
    devices : tuple of tuple of int
        The devices of each rank's mesh, row-major; empty: the ranks follow each other.
    meshes : tuple of str
        The name of each rank's mesh in the plan; empty: all ranks have the plan's only mesh.
    stash : bool
        Weights change after every micro-batch, and the backward pass of each reads those that its
        forward pass read, which are kept for it (Narayanan et al. 2019, PipeDream).
    offload : tuple of int
        Stages: what their forward pass keeps for the backward pass of a micro-batch waits in the
        host's memory, where it waits long enough (:func:`.offloading.absences`).

    Raises
    ------
    PlanError
        DIST0236 a number is out of range, a kind is unknown, or units are missing, doubled or wait
        for each other.
    DependencyError
        DIST0114 the schedule of another package cannot be used.
    """

    kind: Text = "1f1b"
    stages: _Number = 1
    micro_batches: _Number = 1
    chunks: _Number = 1
    cuts: tuple[Text, ...] = ()
    units: tuple[tuple[PipelineAction, ...], ...] = ()
    ranks: tuple[Count, ...] = ()
    devices: tuple[tuple[Count, ...], ...] = ()
    meshes: tuple[Text, ...] = ()
    stash: bool = False
    offload: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        if self.kind != CUSTOM and self.kind not in SCHEDULES:
            problem = f'there is no schedule "{shortened(self.kind)}"'
            raise unfit(problem, nearest(self.kind, [*SCHEDULES.names(), CUSTOM]))
        for name in NUMBERS:
            if not 1 <= getattr(self, name) <= MOST:
                raise unfit(f"{name} is {getattr(self, name)}", f"Give 1 to {MOST}.")
        custom = self.kind == CUSTOM
        if custom != bool(self.units) or (self.ranks and not custom):
            remedy = f'Set "kind": "{CUSTOM}", or remove units and ranks.'
            raise unfit(f'only the kind "{CUSTOM}" lists units', remedy)
        if self.kind == "zero_bubble_v" and self.chunks == 1:
            object.__setattr__(self, "chunks", 2)
        fixed = {"gpipe": 1, "1f1b": 1, "zero_bubble": 1, "zero_bubble_v": 2}
        expected_chunks = fixed.get(self.kind, self.chunks)
        if self.chunks != expected_chunks:
            problem = f"chunks is {self.chunks}, and {self.kind} has {expected_chunks} per rank"
            raise unfit(problem, "Remove chunks, or choose interleaved.")
        if self.cuts and len(self.cuts) != self.stage_count - 1:
            remedy = f"Name {self.stage_count - 1} values, each the last value of a stage."
            raise unfit(f"{len(self.cuts)} cuts do not make {self.stage_count} stages", remedy)
        for name in ("devices", "meshes"):
            if getattr(self, name) and len(getattr(self, name)) != self.stages:
                problem = f"{name} has {len(getattr(self, name))} entries for {self.stages} ranks"
                raise unfit(problem, "Give an entry for each rank, or none.")
        check_offload(self.offload, self.stage_count)
        if custom:
            check_units(self.units, self.rank_of, self.micro_batches, self.stages)
        elif self._is_offered:
            offered_order(self.kind, self.stages, self.micro_batches, self.chunks)

    @property
    def _is_offered(self) -> bool:
        """Return whether the schedule is that of another package."""
        return self.kind != CUSTOM and self.kind not in SCHEDULES.builtin

    @property
    def stage_count(self) -> int:
        """Return the stages of all ranks together."""
        return self.stages * self.chunks

    @functools.cached_property
    def rank_of(self) -> tuple[int, ...]:
        """Return the rank of each stage."""
        if self.ranks:
            return self.ranks
        if self._is_offered:
            return offered_order(self.kind, self.stages, self.micro_batches, self.chunks)[1]
        arrange = there_and_back if self.kind == "zero_bubble_v" else in_turn
        return arrange(self.stages, self.chunks)

    @functools.cached_property
    def orders(self) -> Orders:
        """Return the actions of each rank, in order."""
        if self.kind == CUSTOM:
            return [list(units) for units in self.units]
        return named_orders(self.kind, self.stages, self.micro_batches, self.chunks)

    @property
    def splits_backward(self) -> bool:
        """Return whether gradients of weights are separate actions."""
        if self.kind == CUSTOM or self._is_offered:
            return any(unit.phase == WEIGHT for unit in self.orders[0])
        return self.kind.startswith("zero_bubble")

    @property
    def is_forward_in_order(self) -> bool:
        """Return whether every stage runs the forward units of micro-batches in their order."""
        forward: dict[tuple[int, int], list[int]] = {}
        for rank, units in enumerate(self.orders):
            for unit in units:
                if unit.phase == FORWARD:
                    forward.setdefault((rank, unit.chunk), []).append(unit.micro)
        return all(micros == sorted(micros) for micros in forward.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without default values."""
        numbers = {"kind": self.kind, "stages": self.stages, "micro_batches": self.micro_batches}
        chunks = {"chunks": self.chunks} if self.chunks > 1 else {}
        others = ("cuts", "ranks", "stash", "offload", "meshes", "devices", "units")
        return {**numbers, **chunks, **stated(self, *others)}

    @staticmethod
    def from_dict(
        data: Any,
        location: str = "schedule",
        refuse: Refuse = lambda location, problem, remedy: unfit(problem, remedy, location),
    ) -> Schedule:
        """Read :meth:`to_dict`; ``refuse`` makes the error of a wrong key or type."""
        return read_model(Schedule, data, location, refuse)

    @staticmethod
    def parse(text: str) -> Schedule:
        """Read ``1f1b:stages=4,micro_batches=8``: a kind, and numbers."""
        kind, _, rest = text.partition(":")
        values: dict[str, Any] = {"kind": kind.strip()}
        for item in filter(None, rest.split(",")):
            key, equals, value = (word.strip() for word in item.partition("="))
            if key not in NUMBERS or not equals or not value.isascii() or not value.isdigit():
                remedy = f"Write KIND:stages=4,micro_batches=8 with {', '.join(NUMBERS)}."
                raise unfit(f'"{shortened(item)}" is not a number of a schedule', remedy)
            values[key] = int(value[:9])
        return Schedule(**values)

    @staticmethod
    def resolve(spec: Schedule | Mapping[str, Any] | str | None) -> Schedule | None:
        """Return a schedule, also from its JSON form or from a text."""
        if spec is None or isinstance(spec, Schedule):
            return spec
        return Schedule.parse(spec) if isinstance(spec, str) else Schedule.from_dict(spec)


def stated(part: Any, *names: str) -> dict[str, Any]:
    """Return the JSON form of the fields of a part that are not empty, zero or False."""
    return {name: listed(value) for name in names if (value := getattr(part, name))}


def listed(value: Any) -> Any:
    """Return a value with lists in place of tuples, as JSON has them."""
    if isinstance(value, tuple | list):
        return [item if type(item) is str else listed(item) for item in value]
    if isinstance(value, Mapping):
        return {key: listed(item) for key, item in value.items()}
    return value
