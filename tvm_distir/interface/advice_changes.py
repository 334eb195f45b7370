# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propose changes of options that may reduce the largest parts of its step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions, TrainingOptions
from tvm_distir.support import option_fields

if TYPE_CHECKING:
    from tvm_distir.interface.report.model import Analysis
    from tvm_distir.planning import Study

LEAST = 0.1
"""Smallest share of the step for which changes of a part are proposed."""

_ALONE = {"data_parallel": "dp", "tensor_parallel": "tp", "megatron": "tp"}
"""Strategies that need only a mesh of one axis, and the name of the axis."""


@dataclass(frozen=True)
class Change:
    """Options that differ from those of the step.

    Attributes
    ----------
    part : str
        Part of the step, as in ``Analysis.spent_s``; ``fit``: changes that may make it fit.
    options : mapping of str to value
        The options, by the names of the fields of a study.
    """

    part: str
    options: Mapping[str, Any]

    @property
    def words(self) -> str:
        """Return the options as the command takes them."""
        from tvm_distir.core.plan import mesh_text

        declared = option_fields(StepOptions)
        words = {}
        for name, value in self.options.items():
            flag = declared[name].flag
            text = mesh_text(value) if name == "mesh" else value
            words[name] = flag if value is True else f"{flag} {text}"
        if "train" in self.options:
            words["train"] = f"--optimizer {_optimizer(self.options['train'])}"
        return " ".join(words.values())


class _Given:
    """The requested options and their result."""

    def __init__(self, study: Study, analysis: Analysis) -> None:
        self.study, self.analysis = study, analysis
        self.axes = study.mesh if study.strategy is not None else None
        self.parts = (study.strategy or "").split("+")

    def stages(self) -> str | None:
        """Return the axis of the pipeline; None without a pipeline."""
        options = next((o for o in map(_options, self.parts) if o["name"] == "pipeline"), None)
        return None if options is None else options.get("axis", "pp")

    def mesh(self, part: str, factors: Mapping[str, float]) -> Iterator[Change]:
        """Yield the mesh with scaled axes, if the sizes are integers and the batch allows them."""
        if self.axes is None:
            return
        sizes = {axis: n * factors.get(axis, 1) for axis, n in self.axes.items()}
        integers = all(n >= 1 and n == int(n) for n in sizes.values())
        if integers and sizes != self.axes and self._has_samples_for(sizes):
            yield Change(part, {"mesh": {axis: int(n) for axis, n in sizes.items()}})

    def _has_samples_for(self, sizes: Mapping[str, float]) -> bool:
        """Return whether each part of the batch has a sample on a mesh of these sizes."""
        batch, axes = self.analysis.batch, tuple(sizes)
        if batch is None or len(self.analysis.meshes) > 1:
            return True
        return all(
            batch
            >= math.prod(sizes[a] for a, p in zip(axes, placements, strict=True) if p == "S[0]")
            for parameter in self.analysis.parameters
            if parameter.shape[:1] == (batch,)
            and len(placements := parameter.placement.split(", ")) == len(axes)
        )

    def strategy(self, part: str, text: str, axes: Mapping[str, int]) -> Change:
        """Return the change to another strategy on a mesh."""
        return Change(part, {"strategy": text, **({"mesh": axes} if axes != self.axes else {})})

    def with_option(self, part: str, name: str, **changed: object) -> Iterator[Change]:
        """Yield the strategies with other options of a part."""
        if self.axes is None:
            return
        known = [(text, _options(text)) for text in self.parts]
        parts = [_text({**o, **changed}) if o["name"] == name else text for text, o in known]
        if parts != self.parts:
            yield self.strategy(part, "+".join(parts), self.axes)

    def batch(self, part: str) -> Iterator[Change]:
        """Yield twice the batch, if the batch is an option."""
        size = self.analysis.batch
        if size is not None and self.stages() is None and self.study.training() is None:
            yield Change(part, {"batch": 2 * size})

    def recompute(self, part: str, policy: str) -> Iterator[Change]:
        """Yield another recomputation policy."""
        if self.study.training() is not None and self.study.recompute != policy:
            yield Change(part, {"recompute": policy})

    def lighter_optimizer(self) -> Iterator[Change]:
        """Yield AdamW with states of 8 bits in place of those of float32."""
        train = self.study.train
        name, colon, numbers = _optimizer(train).partition(":")
        lighter = f"adamw8bit{colon}{numbers}"
        if name == "adamw" and isinstance(train, TrainingOptions):
            yield Change("fit", {"train": replace(train, optimizer=lighter)})
        elif name == "adamw" and isinstance(train, Mapping):
            stated = str(train["optimizer"]).removeprefix(name)
            yield Change("fit", {"train": {**train, "optimizer": f"adamw8bit{stated}"}})

    def offloaded_optimizer(self) -> Iterator[Change]:
        """Yield states of the optimizer in the memory of the host, if there are any."""
        system = self.study.known_system
        linked = system is not None and system.host_link is not None
        has_states = any(lane.account.most.get("states") for lane in self.study.result.lanes)
        if linked and has_states and not self.study.offload_optimizer:
            yield Change("fit", {"offload_optimizer": True})


def _optimizer(train: Mapping[str, Any] | TrainingOptions | bool | None) -> str:
    """Return the optimizer of the options of a training step; empty where they do not name it."""
    if isinstance(train, TrainingOptions):
        return train.optimizer
    if not isinstance(train, Mapping):
        return ""
    known = option_fields(TrainingOptions)
    numbers = (
        f"{name}={value}"
        for name, value in train.items()
        if name not in known and isinstance(value, float)
    )
    return f"{train.get('optimizer', '')}:{','.join(numbers)}".removesuffix(":")


def changes_of(study: Study, analysis: Analysis) -> list[Change]:
    """Return changes that may gain, those of the largest part of the step first."""
    situation, step_s = _Given(study, analysis), analysis.spent_s
    total_s = sum(step_s.values())
    changes = list(_fitting(situation)) if analysis.fits is False else []
    for part in sorted(step_s, key=lambda part: -step_s[part]):
        if total_s > 0 and step_s[part] >= LEAST * total_s:
            changes += _PARTS[part](situation)
    seen: dict[str, Change] = {}
    for change in changes:
        seen.setdefault(change.words, change)
    return list(seen.values())


def _options(text: str) -> dict[str, str]:
    """Parse the name and options of a strategy, as texts."""
    name, _, rest = text.strip().partition(":")
    pairs = (item.partition("=") for item in rest.split(",") if item)
    return {"name": name.strip(), **{key.strip(): value.strip() for key, _, value in pairs}}


def _text(options: Mapping[str, object]) -> str:
    rest = ",".join(f"{key}={value}" for key, value in options.items() if key != "name")
    return f"{options['name']}:{rest}" if rest else str(options["name"])


def _communication(situation: _Given) -> Iterator[Change]:
    """Yield smaller sizes of the axis with the most communication, and other strategies."""
    axes = situation.axes or {}
    first = max(situation.analysis.collectives, key=lambda total: total.time_s, default=None)
    axis = None if first is None else first.mesh_axis
    other = next((a for a in axes if a not in (axis, situation.stages())), None)
    if axis is not None and axis in axes and other is not None:
        yield from situation.mesh("communication", {axis: 0.5, other: 2})
    yield from _others(situation, "communication")
    if axis is not None and axis in axes:
        yield from situation.mesh("communication", {axis: 0.5})


def _others(situation: _Given, part: str) -> Iterator[Change]:
    """Yield other strategies on as many devices, for a single requested strategy."""
    if situation.axes is None or situation.study.strategy not in _ALONE:
        return
    for name, axis in _ALONE.items():
        if name != situation.study.strategy:
            yield situation.strategy(part, name, {axis: math.prod(situation.axes.values())})


def _idle(situation: _Given) -> Iterator[Change]:
    """Yield more micro-batches, and schedules with a smaller bubble."""
    pipeline = situation.analysis.pipeline
    if pipeline is None:
        yield from _others(situation, "idle")
        return
    yield from situation.with_option("idle", "pipeline", micro_batches=2 * pipeline.micro_batches)
    yield from situation.with_option("idle", "pipeline", schedule="zero_bubble")
    yield from situation.with_option("idle", "pipeline", schedule="interleaved", chunks=2)


def _launch(situation: _Given) -> Iterator[Change]:
    """Yield changes with more work per kernel."""
    yield from situation.batch("launch")
    sizes = {axis: n for axis, n in (situation.axes or {}).items() if axis != situation.stages()}
    if sizes:
        yield from situation.mesh("launch", {max(sizes, key=lambda axis: sizes[axis]): 0.5})


def _memory(situation: _Given) -> Iterator[Change]:
    """Yield changes that read weights for more samples, or shard them further."""
    yield from situation.batch("memory")
    yield from _others(situation, "memory")


def _compute(situation: _Given) -> Iterator[Change]:
    """Yield no recomputation, and more devices."""
    if situation.study.recompute is not None:
        yield from situation.recompute("compute", "none")
    axis = next((a for a in situation.axes or {} if a != situation.stages()), None)
    if axis is not None:
        yield from situation.mesh("compute", {axis: 2})


def _fitting(situation: _Given) -> Iterator[Change]:
    """Return the changes that make a step fit, the cheapest first."""
    verdict = situation.analysis.verdict
    for remedy in () if verdict is None else verdict.remedies:
        yield from _remedy(situation, remedy.name)
    if verdict is not None:
        yield from situation.lighter_optimizer()
        yield from situation.offloaded_optimizer()


def _remedy(situation: _Given, name: str) -> Iterable[Change]:
    if name.startswith("ZeRO stage") and situation.axes is not None:
        stage = int(name[-1])
        if any(part.startswith("zero") for part in situation.parts):
            return situation.with_option("fit", "zero", stage=stage)
        parts = [f"zero:stage={stage}" if p == "data_parallel" else p for p in situation.parts]
        if parts != situation.parts:
            return [situation.strategy("fit", "+".join(parts), situation.axes)]
    if name == "recomputation":
        return situation.recompute("fit", "full")
    if name == "micro-batch / 2" and situation.analysis.pipeline is not None:
        twice = 2 * situation.analysis.pipeline.micro_batches
        return situation.with_option("fit", "pipeline", micro_batches=twice)
    if name == "tp x 2" and "tp" in (situation.axes or {}):
        return situation.mesh("fit", {"tp": 2, "dp": 0.5})
    return ()


_PARTS = {
    "communication": _communication,
    "idle": _idle,
    "memory": _memory,
    "launch": _launch,
    "compute": _compute,
}
