# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State what a search over ways of serving found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .levels import ServiceSummary
from .serving_report import ServingReport
from .serving_run import ServingSetup


@dataclass(frozen=True)
class CutChoice:
    """Choice that was not simulated, or that is not possible, and why."""

    plan: str
    why: str


@dataclass(frozen=True)
class RatedChoice:
    """Choice with the highest rate at which it keeps the levels.

    Attributes
    ----------
    plan, scheduler : str
    devices : int
    requests_per_s : float
        0 where the levels break at all rates that were tried.
    bound_per_s : float
        The rate that it cannot exceed: a proved bound, or what it serves where requests always
        wait, if this is less.
    summary : ServiceSummary, optional
    """

    plan: str
    scheduler: str
    devices: int
    requests_per_s: float
    bound_per_s: float
    summary: ServiceSummary | None

    @property
    def per_device(self) -> float:
        """Return the requests per second of a device."""
        return self.requests_per_s / self.devices


@dataclass(frozen=True)
class FrontPoint:
    """Closed loop of the front: users at a time, and tokens per second."""

    plan: str
    users: int
    per_user: float
    per_device: float
    ttft_p50_s: float


@dataclass
class ServingSearchResult:
    """Result of a search.

    Attributes
    ----------
    best : ServingReport, optional
        The report of the best choice at its rate; None where no choice keeps the levels.
    strategy, mesh
        The plan of a replica of the best choice.
    choices : list of RatedChoice
        The best one first.
    front : list of FrontPoint
        The fastest for a user first.
    cuts : list of CutChoice
    """

    best: ServingReport | None = None
    strategy: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict)
    choices: list[RatedChoice] = field(default_factory=list)
    front: list[FrontPoint] = field(default_factory=list)
    cuts: list[CutChoice] = field(default_factory=list)

    @property
    def setup(self) -> ServingSetup | None:
        """Return the best choice, if there is one."""
        return None if self.best is None else self.best.setup

    @property
    def verdict(self) -> str:
        """Return the answer as a sentence."""
        if self.best is None:
            return "No choice keeps the levels."
        c, levels = self.choices[0], self.best.levels.text
        return f"{c.plan}, {c.scheduler} serves most, {c.per_device:.3f} requests/s/device" + (
            f", and keeps {levels}." if levels else "."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        return {
            "verdict": self.verdict,
            "best": None if self.best is None else self.best.to_dict(),
            "strategy": self.strategy,
            "mesh": dict(self.mesh),
            "choices": [{**asdict(c), "per_device": c.per_device} for c in self.choices],
            "front": [asdict(point) for point in self.front],
            "cuts": [asdict(cut) for cut in self.cuts],
        }

    def text(self) -> str:
        """Return the result as text, the verdict first."""
        lines = [self.verdict, ""]
        lines += ["front: tokens/s of a user, tokens/s of a device, users, TTFT p50, plan"]
        lines += [
            f"  {p.per_user:8.1f} {p.per_device:9.1f} {p.users:5d} {p.ttft_p50_s * 1e3:8.0f} ms  "
            f"{p.plan}"
            for p in self.front
        ]
        lines += ["", "highest rate that keeps the levels: requests/s/device, bound, plan"]
        lines += [
            f"  {c.per_device:8.3f} {c.bound_per_s / c.devices:8.3f}  {c.plan}; {c.scheduler}"
            for c in self.choices
        ]
        lines += [f"  cut: {cut.plan}: {cut.why}" for cut in self.cuts]
        best = [] if self.best is None else ["", "best:", self.best.text()]
        return "\n".join([*lines, *best])
