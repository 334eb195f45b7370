# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write the pipeline attribute of a module: its schedule, stages and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.attributes.keys import PIPELINE_ATTR

from .listed import unfit
from .schedule import Schedule, listed

if TYPE_CHECKING:
    from tvm import ir

ACTIVATION, GRADIENT, PART, TOTAL = "activation", "gradient", "part", "total"
STREAM = "stream"
"""Kinds of parameters and results of a stage's function beside those of the whole step.

``activation:0`` comes from the preceding stage, or goes to the following; ``gradient:0``, that of
an activation, the other way; ``part:NAME`` is a stage's term of a sum over stages, ``total:NAME``
that sum. ``stream:N``, int64 (), is the first of a micro-batch's streams of random numbers in a
stage, see :func:`first_stream`."""

_STREAMS = 1 << 32
"""The number of streams of a micro-batch."""
_ATTR_KEYS = "schedule inputs data_count sliced carried outputs stages sums".split()


@dataclass(frozen=True)
class StageNote:
    """A stage of a pipelined training step.

    Attributes
    ----------
    function : str
        The public function that stages alike share.
    params, results : tuple of str
        The names of the parameters and results: the name of an input or output of the full step, or
        a kind and a name.
    """

    function: str
    params: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class SumNote:
    """A sum over a term of each stage, which all stages need.

    Attributes
    ----------
    name : str
        The name of a weight that several stages have, whose gradients are summed; or the name of a
        number.
    stages : tuple of int
    """

    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """A pipelined training step.

    Attributes
    ----------
    schedule : Schedule
    inputs : tuple of str
        Names of the whole step's inputs, in order.
    data_count : int
        The number of leading parameters that are data.
    sliced : tuple of str
        Data of which each micro-batch has its rows: row r belongs to micro-batch
        ``r % micro_batches``.
    carried : tuple of str
        Inputs that a micro-batch reads as the preceding micro-batch has left them, in the order of
        micro-batches: running statistics.
    outputs : tuple of str
        ``loss``, then the names of the inputs that are updated, in order.
    stages : tuple of StageNote
    sums : tuple of SumNote
        The sums, in the order in which they are computed.
    """

    schedule: Schedule
    inputs: tuple[str, ...]
    data_count: int
    sliced: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[StageNote, ...]
    sums: tuple[SumNote, ...] = ()
    carried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.carried and not self.schedule.is_forward_in_order:
            raise unfit(
                f'"{self.carried[0]}" is carried from micro-batch to micro-batch, but a stage '
                "does not "
                "run their forward passes in order",
                "List the forward units of each stage in the order of micro-batches.",
                "schedule/units",
            )

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the inputs that are not the same for every micro-batch."""
        return (*self.sliced, *self.carried)

    @property
    def functions(self) -> list[str]:
        """Return the names of the stages' functions, each once."""
        return list(dict.fromkeys(stage.function for stage in self.stages))

    def to_attr(self) -> dict[str, Any]:
        """Return the attribute of a module."""
        notes = {
            **vars(self), "schedule": self.schedule.to_dict(),
            "stages": [vars(stage) for stage in self.stages],
            "sums": [vars(part) for part in self.sums],
        }  # fmt: skip
        return {key: listed(notes[key]) for key in _ATTR_KEYS}

    @staticmethod
    def of(mod: ir.IRModule) -> Pipeline | None:
        """Read the attribute of a module; None where it is no step in stages."""
        attrs = mod.attrs
        if not attrs or PIPELINE_ATTR not in attrs:
            return None
        fields = attrs[PIPELINE_ATTR]
        data = _plain(fields["schedule"])
        stages = tuple(
            StageNote(str(s["function"]), _names(s["params"]), _names(s["results"]))
            for s in fields["stages"]
        )
        sums = tuple(
            SumNote(str(s["name"]), tuple(int(k) for k in s["stages"])) for s in fields["sums"]
        )
        names = {key: _names(fields[key]) for key in ("inputs", "sliced", "outputs", "carried")}
        schedule = Schedule.from_dict({**data, "stash": bool(data.get("stash", False))})
        count = int(fields["data_count"])
        return Pipeline(schedule, data_count=count, stages=stages, sums=sums, **names)


def first_stream(stream_kind: str, micro: int) -> int:
    """Return the number of ``stream:N`` in a micro-batch, after those of earlier micro-batches."""
    return int(stream_kind.partition(":")[2]) + micro * _STREAMS


def scheduled(new_schedule: Schedule | None, mod: ir.IRModule) -> dict[str, Any]:
    """Return the attributes of a module whose stages follow a plan; none without a schedule.

    Raises
    ------
    PlanError
        DIST0236 when the module has other stages, or none.
    """
    if new_schedule is None:
        return {}
    pipeline = Pipeline.of(mod)
    have = None if pipeline is None else pipeline.schedule
    if pipeline is None or have is None or have.stage_count != new_schedule.stage_count:
        other = (
            f"{new_schedule.stage_count} stages, the module {have.stage_count if have else 'none'}"
        )
    elif have.micro_batches != new_schedule.micro_batches:
        count = f"{new_schedule.micro_batches} micro-batches"
        other = f"{count}, the step was created for {have.micro_batches}"
    elif have.stash != new_schedule.stash:
        other = f"stash={new_schedule.stash}, the step was created with stash={have.stash}"
    elif new_schedule.cuts and have.cuts != new_schedule.cuts:
        other = f"the cuts {list(new_schedule.cuts)}, the step was created with {list(have.cuts)}"
    else:
        return {PIPELINE_ATTR: replace(pipeline, schedule=new_schedule).to_attr()}
    remedy = "Create the step with train_step(..., schedule=plan.schedule)."
    raise unfit(f"the plan has {other}", remedy, "plan/schedule")


def _names(values: Any) -> tuple[str, ...]:
    return tuple(map(str, unpack(values)))


def _plain(value: Any) -> Any:
    """Return an attribute as JSON data."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__len__"):
        return [_plain(v) for v in value]
    return int(value)
