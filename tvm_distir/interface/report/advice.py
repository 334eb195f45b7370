# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recommend changes to the largest parts of a step.

Of a change that was simulated its gain is told, and of a part what is gained at most, by formula:

=============  ====================================================================================
communication  all of it that no compute hides
idle           all of it
memory, launch all of it: what ops take that do arithmetic remains
compute        what is above the FLOPs of the busiest device at the peak of its arithmetic
=============  ====================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from . import units
from .model import Analysis, Trial

_LEAST = 0.02
"""Share of the step below which a part is no matter."""

_GAIN = 1.02
"""Below it nothing is gained."""

_BOUNDS = {
    "communication": "no communication but what compute hides",
    "idle": "no waiting",
    "memory": "no time but that of other ops",
    "launch": "no time but that of other ops",
    "compute": "FLOPs at the peak, on as many devices",
}


class Advice(NamedTuple):
    """A part of the step: what it is, what could be saved at most and by which formula, how.

    ``gains`` are changes that were simulated and gain, the best first; ``others`` those that do
    not; ``untried`` those that were not simulated.
    """

    part: str
    what: str
    saves_s: float
    formula: str
    how: str
    gains: tuple[Trial, ...] = ()
    others: tuple[Trial, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether there is advice: a gain that was found, or what nobody tried."""
        return bool(self.gains or self.untried or not self.others)

    def to_dict(self) -> dict[str, object]:
        """Give the fields by name."""
        trials = {key: [dict(vars(t)) for t in getattr(self, key)] for key in ("gains", "others")}
        return {**self._asdict(), **trials, "untried": list(self.untried)}


def advice(analysis: Analysis) -> list[Advice]:
    """Parts of the busiest device's step, the largest first; arithmetic itself comes last."""
    spent = analysis.spent_s
    whole_s = sum(spent.values())
    told = {
        "communication": _communication,
        "idle": _idle,
        "memory": _memory,
        "launch": _launch,
    }
    found = [
        tell(analysis, spent[kind])
        for kind, tell in told.items()
        if whole_s > 0 and spent[kind] >= _LEAST * whole_s
    ]
    found.sort(key=lambda one: -one.saves_s)
    compute = _with_trials(_compute(analysis, spent["compute"]), analysis)
    found = [_with_trials(one, analysis) for one in found]
    if whole_s > 0 and (not found or compute.gains or compute.untried):
        found.append(compute)
    return [*_fitting(analysis), *found]


def _with_trials(one: Advice, analysis: Analysis) -> Advice:
    """Return the part with the changes that were tried to reduce it."""
    own = [trial for trial in analysis.trials if trial.part == one.part]
    gains = [trial for trial in own if trial.gain >= _GAIN and trial.fits is not False]
    return one._replace(
        gains=tuple(sorted(gains, key=lambda trial: -trial.gain)),
        others=tuple(trial for trial in own if trial not in gains),
        untried=tuple(words for part, words in analysis.untried if part == one.part),
    )


def _fitting(analysis: Analysis) -> list[Advice]:
    """Return the simulated changes that make a step fit."""
    tried = [trial for trial in analysis.trials if trial.part == "fit"]
    untried = tuple(words for part, words in analysis.untried if part == "fit")
    if not tried and not untried:
        return []
    fits = tuple(trial for trial in tried if trial.fits)
    others = tuple(trial for trial in tried if not trial.fits)
    formula = "bytes at the peak, scaled by role"
    return [Advice("fit", "memory: it does not fit", 0.0, formula, "", fits, others, untried)]


def advice_lines(analysis: Analysis) -> list[str]:
    """Sentences of each, those that say more of the one above them indented."""
    found = advice(analysis)
    lines = []
    for one in found:
        if one.tells:
            lines += [_head(one, analysis), *(f"  {line}" for line in _changes(one, analysis))]
    without = [
        f"{trial.change}{' (does not fit)' if trial.fits is False else ''}"
        for one in found
        for trial in one.others
    ]
    if without:
        lines.append(f"Tried, and gains nothing: {'; '.join(without)}.")
    return lines


def _head(one: Advice, analysis: Analysis) -> str:
    if one.part == "fit":
        return f"{one.what}:"
    most = (
        f"{units.duration(one.saves_s)} ({units.share(one.saves_s, analysis.time_s)}) to save "
        f"(a bound: {one.formula})"
    )
    how = "" if one.gains else f": {one.how}"
    return f"{one.what}; at most {most}{how}{':' if one.gains else '.'}"


def _changes(one: Advice, analysis: Analysis) -> list[str]:
    """Return the changes that gain, and those that were not tried."""
    lines = [_gain(trial, analysis) for trial in one.gains]
    if one.untried:
        lines.append(f"not tried (--advice full): {'; '.join(one.untried)}")
    return lines


def _gain(trial: Trial, analysis: Analysis) -> str:
    times = f"{units.duration(analysis.time_s)} -> {units.duration(trial.time_s)}"
    if trial.samples > 1:
        times = f"{_throughput(trial, analysis)}; {trial.samples} x the samples per step: {times}"
    now = len(analysis.devices)
    plural = "s" if trial.devices > 1 else ""
    where = f", on {trial.devices} device{plural} instead of {now}" if trial.devices != now else ""
    if trial.part == "fit":
        return f"{trial.change}: fits with {units.size(trial.peak_memory_bytes)} ({times}{where})"
    return f"{trial.change}: predicted gain {trial.gain:.2f}x ({times}{where})"


def _throughput(trial: Trial, analysis: Analysis) -> str:
    """Samples per second before and after; how often as many where the batch is not known."""
    if analysis.batch is None or not (analysis.time_s > 0 and trial.time_s > 0):
        return f"throughput {trial.gain:.2f}x"
    before, after = analysis.batch / analysis.time_s, trial.samples * analysis.batch / trial.time_s
    return f"throughput {units.count(before)} -> {units.count(after)} samples/s"


def _advice(part: str, what: str, saves_s: float, how: str) -> Advice:
    return Advice(part, what, saves_s, _BOUNDS[part], how)


def _communication(analysis: Analysis, spent_s: float) -> Advice:
    part, what = "communication", "communication that nothing hides"
    first = max(analysis.collectives, key=lambda one: one.time_s, default=None)
    if first is None:
        return _advice(part, what, spent_s, "look at the timeline")
    axis = first.mesh_axis
    name = f"{first.kind} over {axis} ({first.count} times, {units.duration(first.time_s)})"
    far = next((link for link in analysis.links if link.name.startswith("between nodes")), None)
    how = f"give {axis} fewer devices, or let it run beside other work"
    if far is not None and f"{first.kind} over {axis}" in far.kinds and "->" not in axis:
        how = f"keep the groups of {axis} inside of nodes; else {how}"
    return _advice(part, f"{what}, most of it {name}", spent_s, how)


def _idle(analysis: Analysis, spent_s: float) -> Advice:
    found = analysis.pipeline
    if found is None:
        how = "share the work evenly, see the timeline"
        return _advice("idle", "devices wait", spent_s, how)
    what = f"ranks of the pipeline wait ({found.micro_batches} micro-batches, {found.ranks} ranks)"
    how = "more micro-batches, or a schedule with less bubble (interleaved, zero_bubble)"
    return _advice("idle", what, spent_s, how)


def _top(analysis: Analysis, bounds: tuple[str, ...]) -> str:
    """The op that takes most of the time that is bound so."""
    own = [one for one in analysis.ops if one.bound_by in bounds]
    return max(own, key=lambda one: one.time_s).op if own else "small ops"


def _memory(analysis: Analysis, spent_s: float) -> Advice:
    what = f"passes over memory, most of them {_top(analysis, ('memory',))}"
    return _advice("memory", what, spent_s, "fused kernels, or a narrower type")


def _launch(analysis: Analysis, spent_s: float) -> Advice:
    what = f"launches, most of them of {_top(analysis, ('launch', 'host'))}"
    how = "larger micro-batches, fused kernels, or fewer devices that share the work"
    return _advice("launch", what, spent_s, how)


def _compute(analysis: Analysis, spent_s: float) -> Advice:
    peak = analysis.hardware.peak_flops
    least_s = analysis.slowest.flops / peak if peak else 0.0
    how = "more devices, a narrower type, or less recomputation; the rest is arithmetic"
    saves_s = max(0.0, spent_s - least_s)
    return _advice("compute", "arithmetic", saves_s, how)
