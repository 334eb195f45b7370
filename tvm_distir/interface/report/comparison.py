# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare steps side by side: time, its breakdown, memory and traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.performance import Result
from tvm_distir.support import UsageError, align
from tvm_distir.support.display import units

from .document import to_dict
from .model import Analysis, spent_of
from .saved_results import Outcome, read_outcomes

SCHEMA_VERSION = 1
_FIGURES: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("samples/s", "samples_per_s", units.count),
    ("tokens/s", "tokens_per_s", units.count),
    ("tokens/s per device", "tokens_per_s_per_device", units.count),
    ("MFU", "mfu", lambda value: units.share(value, 1)),
    ("HFU", "hfu", lambda value: units.share(value, 1)),
    ("$ per hour", "cost_per_hour_usd", "{:,.2f}".format),
    ("$ per million tokens", "cost_per_million_tokens_usd", "{:.4g}".format),
    ("kWh per step", "energy_per_step_kWh", "{:.3g}".format),
    ("goodput", "goodput", lambda value: units.share(value, 1)),
    ("days", "run_days", "{:,.3g}".format),
    ("$ of the run", "run_cost_usd", "{:,.0f}".format),
)
"""Columns of the figures of steps: head, field of :class:`.figures.Figures`, text."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of steps.

    Attributes
    ----------
    outcomes : tuple of Outcome
        In the order given; ratios are to the first.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Return the time of each step over that of the first; None if the first takes no time."""
        first_s = self.outcomes[0].time_s
        return tuple(outcome.time_s / first_s if first_s > 0 else None for outcome in self.outcomes)

    def to_dict(self) -> dict[str, object]:
        """Return the content of the JSON of ``tvm-distir compare``."""
        rows = zip(self.outcomes, self.ratios, strict=True)
        return {
            "schema_version": SCHEMA_VERSION,
            "results": [{**outcome.to_dict(), "ratio": ratio} for outcome, ratio in rows],
            "level": list(self.level),
        }

    def to_text(self) -> str:
        """Write the tables, ending with a newline: time, memory, and traffic by collective."""
        times = [*align(*self._times()), *self._level()]
        lines = [*self._about(), *times, "", *align(*self._memory())]
        return "\n".join([*lines, *self._figures(), *self._traffic()]) + "\n"

    def __str__(self) -> str:
        return self.to_text()

    def _about(self) -> list[str]:
        """Return the model and system, if all steps share them."""
        models = {outcome.model for outcome in self.outcomes}
        systems = {outcome.system for outcome in self.outcomes}
        words = [kind.pop() for kind in (models, systems) if len(kind) == 1 and None not in kind]
        return [" on ".join(word for word in words if word)] if words else []

    def _times(self) -> tuple[list[str], list[list[str]], str]:
        rows = []
        for outcome, ratio in zip(self.outcomes, self.ratios, strict=True):
            total_s = sum(outcome.spent_s.values())
            parts = [units.share(spent_s, total_s) for spent_s in outcome.spent_s.values()]
            rows.append(
                [
                    outcome.name,
                    outcome.mesh,
                    units.duration(outcome.time_s),
                    "-" if ratio is None else f"{ratio:.3g}x",
                    *([self._band(outcome)] if self._has_bands else []),
                    *parts,
                    "-" if outcome.bubble is None else units.share(outcome.bubble, 1.0),
                    outcome.bound_by,
                ]
            )
        kinds = list(self.outcomes[0].spent_s)
        bands = ["error band"] * self._has_bands
        head = ["", "mesh", "step", "ratio", *bands, *kinds, "bubble", "bound by"]
        return head, rows, "llrr" + "r" * (len(kinds) + len(bands)) + "rl"

    @property
    def _has_bands(self) -> bool:
        return any(outcome.band_s is not None for outcome in self.outcomes)

    @staticmethod
    def _band(outcome: Outcome) -> str:
        return "-" if outcome.band_s is None else " to ".join(map(units.duration, outcome.band_s))

    @property
    def level(self) -> tuple[str, ...]:
        """Return the names of the fastest step and of those whose error bands overlap with its."""
        fastest = min(self.outcomes, key=lambda outcome: outcome.time_s)
        names = [each.name for each in self.outcomes if each.is_level_with(fastest)]
        return tuple(names) if len(names) > 1 else ()

    def _level(self) -> list[str]:
        """Return a sentence on the steps that are as fast as the fastest within their bands."""
        return [f"Level within their error bands: {', '.join(self.level)}"] if self.level else []

    def _memory(self) -> tuple[list[str], list[list[str]], str]:
        rows = []
        for outcome in self.outcomes:
            capacity = outcome.memory_capacity_bytes
            rows.append(
                [
                    outcome.name,
                    units.size(outcome.peak_memory_bytes),
                    units.size(capacity) if capacity else "-",
                    {True: "yes", False: "NO", None: "-"}[outcome.fits],
                    units.size(outcome.sent_bytes),
                ]
            )
        return ["", "peak memory", "capacity", "fits", "wire bytes"], rows, "lrrlr"

    def _figures(self) -> list[str]:
        """Return throughput, utilisation and cost, as far as a step has them."""
        columns = [
            (head, key, words)
            for head, key, words in _FIGURES
            if any(key in outcome.figures for outcome in self.outcomes)
        ]
        if not columns:
            return []
        rows = [
            [
                outcome.name,
                *(
                    words(outcome.figures[key]) if key in outcome.figures else "-"
                    for _, key, words in columns
                ),
            ]
            for outcome in self.outcomes
        ]
        head = ["", *(head for head, _, _ in columns)]
        return ["", *align(head, rows, "l" + "r" * len(columns))]

    def _traffic(self) -> list[str]:
        """Return the wire bytes by collective, if there are any."""
        kinds = sorted({kind for outcome in self.outcomes for kind in outcome.wire_bytes})
        if not kinds:
            return []
        rows = [
            [outcome.name, *(units.size(outcome.wire_bytes.get(kind, 0)) for kind in kinds)]
            for outcome in self.outcomes
        ]
        head = "Wire bytes per device (maximum)"
        return ["", head, *align(["", *kinds], rows, "l" + "r" * len(kinds))]


def compare(*operands: object, names: Sequence[str] | None = None) -> Comparison:
    """Compare simulated steps side by side.

    Parameters
    ----------
    *operands : AnalysisResult, Result, mapping, str or Path
        What :func:`.analysis.analyze` or :func:`.simulator.simulate` returns, the JSON of
        ``tvm-distir analyze --json`` as data or as a file, the folder of ``analyze -o``, or a
        folder of such files and folders.
    names : sequence of str, optional
        A name for each outcome; by default paths, strategies or numbers.

    Returns
    -------
    comparison : Comparison
        ``print`` shows it as tables; ``to_dict`` gives the JSON of ``tvm-distir compare``.

    Raises
    ------
    SimulationError
        DIST0740 for a file that holds no result.
    UsageError
        DIST0152 for nothing to compare, an operand that is no result, or names of another number.

    Examples
    --------
    >>> model = "zoo:mlp?layers=2,hidden=64,batch=32"
    >>> options = {"strategy": "data_parallel", "system": "a100"}
    >>> results = [td.analyze(model, mesh={"dp": n}, **options) for n in (1, 2)]
    >>> comparison = td.compare(*results, names=["one", "two"])
    >>> [outcome.name for outcome in comparison.outcomes]
    ['one', 'two']
    """
    outcomes: list[Outcome] = []
    for number, operand in enumerate(operands, 1):
        if isinstance(operand, Result):
            outcomes.append(_of_result(operand, f"#{number}"))
        elif isinstance(operand, Mapping):
            outcomes.append(Outcome.from_dict(operand, f"#{number}"))
        elif isinstance(operand, (str, Path)):
            outcomes += read_outcomes(Path(operand))
        elif isinstance(report := getattr(operand, "report", None), Analysis):
            outcomes.append(Outcome.from_dict(to_dict(report), f"#{number}"))
        else:
            raise _refused(
                f"operand {number} is of type {type(operand).__name__}, and a result is required",
                "Give results of td.analyze or td.simulate, or paths of saved results.",
            )
    if not outcomes:
        raise _refused("there are no results to compare", "Give at least one result.")
    if names is not None:
        if len(names) != len(outcomes):
            raise _refused(
                f"{len(names)} names for {len(outcomes)} results", "Give a name for each result."
            )
        outcomes = [x.named(name) for x, name in zip(outcomes, names, strict=True)]
    return Comparison(tuple(outcomes))


def _refused(problem: str, remedy: str) -> UsageError:
    return UsageError("DIST0152", problem, location="compare", remedy=remedy)


def _of_result(result: Result, name: str) -> Outcome:
    """Return the outcome of a simulation, whose model and mesh axes are unknown."""
    busiest = max(result.devices.distinct, key=lambda d: d.compute_s + d.exposed_comm_s)
    lane = next(lane for lane in result.lanes if lane.mesh == busiest.mesh)
    count = len(result.devices)
    return Outcome(
        name=name,
        model=None,
        system=result.system,
        strategy=None,
        mesh=f"{count} device{'s' if count != 1 else ''}",
        time_s=result.time_s,
        spent_s=spent_of(busiest, lane.ops),
        peak_memory_bytes=result.peak_memory_bytes,
        memory_capacity_bytes=result.memory_capacity_bytes,
        wire_bytes=Outcome.most_sent(
            (collective.mesh, collective.kind, collective.wire_bytes_per_device)
            for collective in result.collectives
        ),
        bubble=None if result.pipeline is None else result.pipeline.bubble,
    )
