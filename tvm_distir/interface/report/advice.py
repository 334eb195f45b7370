# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recommend changes to the largest parts of a step.

Each simulated change is reported with its speedup, and each part with a bound on its savings:

=============  ====================================================================================
communication  all exposed communication, and what collectives cost kernels beside them
idle           all of it
memory, launch all of it: the time of compute-bound ops remains
compute        time above that of the busiest device's FLOPs at peak throughput
=============  ====================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from tvm_distir.support.display import units

from .model import Analysis, TriedChange

_LEAST = 0.02
"""Smallest share of the step for which a part is reported."""

_GAIN = 1.02
"""Smallest speedup that counts as a gain."""

_BOUNDS = {
    "communication": "communication fully overlapped",
    "idle": "no idle time",
    "memory": "no memory-bound kernels",
    "launch": "no launch-bound kernels",
    "compute": "FLOPs at peak throughput on the same devices",
}


class Advice(NamedTuple):
    """A part of the step, with a bound on its savings, the formula of the bound, and a remedy.

    ``gains`` are the simulated changes with a gain, the best first, ``others`` those without, and
    ``untried`` the changes that were not simulated.
    """

    part: str
    what: str
    saves_s: float
    formula: str
    how: str
    gains: tuple[TriedChange, ...] = ()
    others: tuple[TriedChange, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        """Return whether there is advice: a change with a gain, or an untried change."""
        return bool(self.gains or self.untried or not self.others)

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        trials = {key: [dict(vars(t)) for t in getattr(self, key)] for key in ("gains", "others")}
        return {**self._asdict(), **trials, "untried": list(self.untried)}


def advice(analysis: Analysis) -> list[Advice]:
    """Return the parts of the busiest device's step, the largest first and compute last."""
    step_s = analysis.spent_s
    total_s = sum(step_s.values())
    writers = {"communication": _communication, "idle": _idle, "memory": _memory, "launch": _launch}
    parts = [
        write(analysis, step_s[kind])
        for kind, write in writers.items()
        if total_s > 0 and step_s[kind] >= _LEAST * total_s
    ]
    parts.sort(key=lambda part: -part.saves_s)
    compute = _with_trials(_compute(analysis, step_s["compute"]), analysis)
    parts = [_with_trials(part, analysis) for part in parts]
    if total_s > 0 and (not parts or compute.gains or compute.untried):
        parts.append(compute)
    return [*_fitting(analysis), *parts]


def _with_trials(part: Advice, analysis: Analysis) -> Advice:
    """Return the part with the changes that were tried to reduce it."""
    trials = [trial for trial in analysis.trials if trial.part == part.part]
    gains = [trial for trial in trials if trial.gain >= _GAIN and trial.fits is not False]
    return part._replace(
        gains=tuple(sorted(gains, key=lambda trial: -trial.gain)),
        others=tuple(trial for trial in trials if trial not in gains),
        untried=tuple(words for name, words in analysis.untried if name == part.part),
    )


def _fitting(analysis: Analysis) -> list[Advice]:
    """Return the simulated changes that make a step fit."""
    tried = [trial for trial in analysis.trials if trial.part == "fit"]
    untried = tuple(words for part, words in analysis.untried if part == "fit")
    if not tried and not untried:
        return []
    fits = tuple(trial for trial in tried if trial.fits)
    others = tuple(trial for trial in tried if not trial.fits)
    formula = "peak bytes scaled by role"
    return [Advice("fit", "out of memory", 0.0, formula, "", fits, others, untried)]


def advice_lines(analysis: Analysis) -> list[str]:
    """Return the advice as lines, with the changes of a part indented below it."""
    parts = advice(analysis)
    lines = []
    for part in parts:
        if part.tells:
            lines += [_head(part, analysis), *(f"  {line}" for line in _changes(part, analysis))]
    without = [
        f"{trial.change}{' (does not fit)' if trial.fits is False else ''}"
        for part in parts
        for trial in part.others
    ]
    if without:
        lines.append(f"Tried without gain: {'; '.join(without)}.")
    return lines


def _head(part: Advice, analysis: Analysis) -> str:
    if part.part == "fit":
        return f"{part.what}:"
    most = (
        f"{units.duration(part.saves_s)} ({units.share(part.saves_s, analysis.time_s)}) "
        f"(bound: {part.formula})"
    )
    how = "" if part.gains else f": {part.how}"
    return f"{part.what}; can save at most {most}{how}{':' if part.gains else '.'}"


def _changes(part: Advice, analysis: Analysis) -> list[str]:
    """Return the changes that gain, and those that were not tried."""
    lines = [_gain(trial, analysis) for trial in part.gains]
    if part.untried:
        lines.append(f"not tried (--advice full): {'; '.join(part.untried)}")
    return lines


def _gain(trial: TriedChange, analysis: Analysis) -> str:
    times = f"{units.duration(analysis.time_s)} -> {units.duration(trial.time_s)}"
    if trial.samples > 1:
        times = f"{_throughput(trial, analysis)}; {trial.samples}x samples per step: {times}"
    now = len(analysis.devices)
    plural = "s" if trial.devices > 1 else ""
    where = f", on {trial.devices} device{plural} instead of {now}" if trial.devices != now else ""
    if trial.part == "fit":
        return f"{trial.change}: fits with {units.size(trial.peak_memory_bytes)} ({times}{where})"
    return f"{trial.change}: predicted speedup {trial.gain:.2f}x ({times}{where})"


def _throughput(trial: TriedChange, analysis: Analysis) -> str:
    """Return the samples per second before and after, or their ratio without a known batch."""
    if analysis.batch is None or not (analysis.time_s > 0 and trial.time_s > 0):
        return f"throughput {trial.gain:.2f}x"
    before, after = analysis.batch / analysis.time_s, trial.samples * analysis.batch / trial.time_s
    return f"throughput {units.count(before)} -> {units.count(after)} samples/s"


def _advice(part: str, subject: str, saves_s: float, how: str) -> Advice:
    return Advice(part, subject, saves_s, _BOUNDS[part], how)


def _communication(analysis: Analysis, spent_s: float) -> Advice:
    part, subject = "communication", "exposed communication"
    if any(op.bound_by == "network" for op in analysis.ops):
        subject += " and slower kernels beside it"
    first = max(analysis.collectives, key=lambda total: total.time_s, default=None)
    if first is None:
        return _advice(part, subject, spent_s, "inspect the timeline")
    axis = first.mesh_axis
    name = f"{first.kind} over {axis} ({first.count} calls, {units.duration(first.time_s)})"
    far = next((link for link in analysis.links if link.name.startswith("inter-node")), None)
    how = "offload less to the host, or choose a system with a faster link to it"
    if axis != "host":
        how = f"reduce the size of axis {axis}, or overlap it with compute"
    if far is not None and f"{first.kind} over {axis}" in far.kinds and "->" not in axis:
        how = f"keep the groups of {axis} within a node; otherwise {how}"
    return _advice(part, f"{subject}, mostly {name}", spent_s, how)


def _idle(analysis: Analysis, spent_s: float) -> Advice:
    pipeline = analysis.pipeline
    if pipeline is None:
        how = "balance the work between devices (see the timeline)"
        return _advice("idle", "idle devices", spent_s, how)
    subject = f"pipeline bubble ({pipeline.micro_batches} micro-batches, {pipeline.ranks} ranks)"
    how = "use more micro-batches, or a schedule with a smaller bubble (interleaved, zero_bubble)"
    return _advice("idle", subject, spent_s, how)


def _top(analysis: Analysis, bounds: tuple[str, ...]) -> str:
    """Return the op with the most time under one of the bounds."""
    ops = [op for op in analysis.ops if op.bound_by in bounds]
    return max(ops, key=lambda op: op.time_s).title if ops else "small ops"


def _memory(analysis: Analysis, spent_s: float) -> Advice:
    subject = f"memory-bound kernels, mostly {_top(analysis, ('memory',))}"
    return _advice("memory", subject, spent_s, "fuse kernels, or use a narrower data type")


def _launch(analysis: Analysis, spent_s: float) -> Advice:
    subject = f"launch-bound kernels, mostly {_top(analysis, ('launch', 'host'))}"
    how = "use larger micro-batches, fused kernels, or fewer devices"
    return _advice("launch", subject, spent_s, how)


def _compute(analysis: Analysis, spent_s: float) -> Advice:
    peak = analysis.hardware.peak_flops
    least_s = analysis.slowest.flops / peak if peak else 0.0
    how = "use more devices, a narrower data type, or less recomputation"
    return _advice("compute", "compute-bound kernels", max(0.0, spent_s - least_s), how)
