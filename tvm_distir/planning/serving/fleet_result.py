# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State the fewest devices that serve a rate of requests: a verdict, and a table of plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .levels import ServiceLevels, ServiceSummary
from .serving_choices import CutChoice
from .serving_run import ServingSetup
from .workload import Workload


@dataclass(frozen=True)
class FleetChoice:
    """Fewest devices of a plan that keep the levels at the rate.

    Attributes
    ----------
    system, plan, scheduler : str
    devices : int
    usd_per_hour : float, optional
        Of all devices, where the system has a price.
    summary : ServiceSummary
    setup : ServingSetup
    """

    system: str
    plan: str
    scheduler: str
    devices: int
    usd_per_hour: float | None
    summary: ServiceSummary
    setup: ServingSetup = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON has it, without the setup."""
        plain = {key: value for key, value in vars(self).items() if key != "setup"}
        return {**plain, "summary": asdict(self.summary)}


@dataclass
class FleetResult:
    """Result of a search for the fewest devices.

    Attributes
    ----------
    model : str
    workload : Workload
    levels : ServiceLevels
    choices : list of FleetChoice
        One for each plan and system, the best one first: the cheapest where all have a price, else
        that of the fewest devices.
    cuts : list of CutChoice
    """

    model: str
    workload: Workload
    levels: ServiceLevels
    choices: list[FleetChoice] = field(default_factory=list)
    cuts: list[CutChoice] = field(default_factory=list)

    def cost(self, choice: FleetChoice) -> tuple[float, int]:
        """Return what choices are compared by: dollars, if all have a price, and devices."""
        known = all(choice.usd_per_hour is not None for choice in self.choices)
        return (choice.usd_per_hour or 0.0 if known else 0.0, choice.devices)

    @property
    def verdict(self) -> str:
        """Return the answer as a sentence."""
        rate = f"{self.workload.rate:g} requests/s"
        if not self.choices:
            return f"No choice keeps {self._levels} at {rate}."
        best, others = self.choices[0], dict[str, FleetChoice]()
        for choice in self.choices[1:]:
            if choice.system != best.system:
                others.setdefault(choice.system, choice)
        text = f"{self._size(best)} keep {self._levels} at {rate}: {best.plan}, {best.scheduler}"
        if others:
            text += "; " + ", ".join(self._size(choice) for choice in others.values())
            text += " would do it, too"
        return text + "."

    @property
    def _levels(self) -> str:
        return self.levels.text or "up"

    @staticmethod
    def _size(choice: FleetChoice) -> str:
        cost = choice.usd_per_hour
        text = f"{choice.devices} devices of {choice.system}"
        return text if cost is None else f"{text} ({cost:.2f} $ an hour)"

    @property
    def setup(self) -> ServingSetup | None:
        """Return the best choice, if there is one."""
        return self.choices[0].setup if self.choices else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        return {
            "verdict": self.verdict,
            "model": self.model,
            "workload": self.workload.text,
            "levels": asdict(self.levels),
            "choices": [choice.to_dict() for choice in self.choices],
            "cuts": [asdict(cut) for cut in self.cuts],
        }

    def text(self) -> str:
        """Return the result as text, the verdict first."""
        percent = self.levels.percentile
        lines = [self.verdict, ""]
        lines += [f"fewest devices, $ an hour, TTFT and TPOT p{percent} in ms, system, plan"]
        for choice in self.choices:
            cost = "-" if choice.usd_per_hour is None else f"{choice.usd_per_hour:.2f}"
            ttft, tpot = (1e3 * x.at(percent) for x in (choice.summary.ttft, choice.summary.tpot))
            lines.append(
                f"  {choice.devices:5d} {cost:>9} {ttft:8.1f} {tpot:7.2f}  {choice.system}  "
                f"{choice.plan}; {choice.scheduler}"
            )
        lines += [f"  cut: {cut.plan}: {cut.why}" for cut in self.cuts]
        return "\n".join(lines)
