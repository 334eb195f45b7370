# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What to change first: the largest parts of the step, and what each could save at most."""

from __future__ import annotations

from typing import NamedTuple

from . import units
from .markup import esc, section
from .model import Analysis

_LEAST = 0.02
"""Share of the step below which a part is no matter."""


class Advice(NamedTuple):
    """A part of the step: what it is, what could be saved at most, and how to begin."""

    what: str
    saves_s: float
    how: str


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
    compute = _compute(analysis, spent["compute"])
    return [compute, *found] if not found and whole_s > 0 else found


def advice_lines(analysis: Analysis) -> list[str]:
    """A sentence for each."""
    return [
        f"{one.what}; at most {units.duration(one.saves_s)} "
        f"({units.share(one.saves_s, analysis.time_s)}) to save: {one.how}."
        for one in advice(analysis)
    ]


def first_section(analysis: Analysis) -> str:
    """The section of a page."""
    items = "".join(f"<li>{esc(line)}</li>" for line in advice_lines(analysis))
    note = "The largest parts of the busiest device's step, and what they could save at most."
    return section("What to change first", "first", f'<ol class="findings">{items}</ol>', note)


def _communication(analysis: Analysis, spent_s: float) -> Advice:
    first = max(analysis.collectives, key=lambda one: one.time_s, default=None)
    if first is None:
        return Advice("communication that nothing hides", spent_s, "look at the timeline")
    axis = first.mesh_axis
    name = f"{first.kind} over {axis} ({first.count} times, {units.duration(first.time_s)})"
    far = next((one for one in analysis.links if one.name.startswith("between nodes")), None)
    how = f"give {axis} fewer devices, or let it run beside other work"
    if far is not None and f"{first.kind} over {axis}" in far.kinds and "->" not in axis:
        how = f"keep the groups of {axis} inside of nodes; else {how}"
    return Advice(f"communication that nothing hides, most of it {name}", spent_s, how)


def _idle(analysis: Analysis, spent_s: float) -> Advice:
    found = analysis.pipeline
    if found is None:
        return Advice("devices wait", spent_s, "share the work evenly, see the timeline")
    what = f"ranks of the pipeline wait ({found.micro_batches} micro-batches, {found.ranks} ranks)"
    how = "more micro-batches, or a schedule with less bubble (interleaved, zero_bubble)"
    return Advice(what, spent_s, how)


def _top(analysis: Analysis, bounds: tuple[str, ...]) -> str:
    """The op that takes most of the time that is bound so."""
    own = [one for one in analysis.ops if one.bound_by in bounds]
    return max(own, key=lambda one: one.time_s).op if own else "small ops"


def _memory(analysis: Analysis, spent_s: float) -> Advice:
    what = f"passes over memory, most of them {_top(analysis, ('memory',))}"
    return Advice(what, spent_s, "fused kernels, or a narrower type")


def _launch(analysis: Analysis, spent_s: float) -> Advice:
    what = f"launches, most of them of {_top(analysis, ('launch', 'host'))}"
    how = "larger micro-batches, fused kernels, or fewer devices that share the work"
    return Advice(what, spent_s, how)


def _compute(analysis: Analysis, spent_s: float) -> Advice:
    peak = analysis.hardware.peak_flops
    least_s = analysis.slowest.flops / peak if peak else 0.0
    how = "more devices, a narrower type, or less recomputation; the rest is arithmetic"
    return Advice("arithmetic, nothing else matters", max(0.0, spent_s - least_s), how)
