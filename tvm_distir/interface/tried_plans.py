# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans of a model on some devices, as text and as JSON: the result of :func:`.answer.answer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm_distir.support.display import units


@dataclass(frozen=True)
class TriedPlan:
    """A plan that was tried.

    Attributes
    ----------
    strategy : str
    mesh : dict of str to int
        Of a replica, of which there are ``replicas``.
    replicas : int
    rate : float
        What is done per second.
    unit : str
        What is counted: ``tokens/s``, ``samples/s`` or ``requests/s``.
    time_s : float
        Of a step; of an output token per request in serving.
    memory_bytes : int, optional
        The most memory of a device; None where the caches take what weights leave.
    fits : bool
    command : str
        The command that goes deeper.
    details : tuple of str
        Further lines about it.
    """

    strategy: str
    mesh: dict[str, int]
    replicas: int
    rate: float
    unit: str
    time_s: float
    memory_bytes: int | None
    fits: bool
    command: str
    details: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return the plan in a line."""
        return plan_words(self.strategy, self.mesh, self.replicas)

    @property
    def speed(self) -> str:
        """Return what is done per second, as text."""
        return f"{units.count(self.rate)} {self.unit}"


def plan_words(strategy: str, mesh: Mapping[str, int], replicas: int = 1) -> str:
    """Return a plan in a line."""
    sizes = ",".join(f"{axis}={count}" for axis, count in mesh.items())
    return f"{strategy} on {sizes}" + (f" x {replicas}" * (replicas > 1))


@dataclass(frozen=True)
class Answer:
    """Plans of a model on some devices, the best first.

    Attributes
    ----------
    model, system, question : str
    devices : int
    capacity_bytes : int
        The memory of a device.
    choices : tuple of TriedPlan
        Those that fit come first, and faster ones before slower ones.
    refused : tuple of str
        Why plans were refused, each cause once, behind the plans that it concerns.
    is_too_large : bool
        Whether one of the causes is the memory.
    """

    model: str
    system: str
    devices: int
    question: str
    capacity_bytes: int
    choices: tuple[TriedPlan, ...]
    refused: tuple[str, ...] = ()
    is_too_large: bool = False

    @property
    def best(self) -> TriedPlan | None:
        """Return the fastest plan that fits, or None."""
        return next((choice for choice in self.choices if choice.fits), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        unit = self.choices[0].unit if self.choices else None
        return {**asdict(self), "unit": unit, "fits": self.best is not None}

    def to_text(self) -> str:
        """Return the answer as text."""
        lines = [f"{self.model} on {self.devices} x {self.system}: {self.question}"]
        best = self.best
        if best is None:
            capacity = units.size(self.capacity_bytes)
            lines.append(
                f"  DOES NOT FIT: none of the usual plans runs in {capacity} per device"
                if self.choices or self.is_too_large
                else "  none of the usual plans is one of this model and batch"
            )
        else:
            lines.append(f"  fits, best with {best.words}: {best.speed}")
            lines += [f"  {line}" for line in best.details]
        lines.append("")
        for number, choice in enumerate(self.choices, 1):
            memory = "" if choice.memory_bytes is None else f", {units.size(choice.memory_bytes)}"
            verdict = "" if choice.fits else ", does not fit"
            lines.append(f"  {number}  {choice.words}: {choice.speed}{memory}{verdict}")
        lines += [f"  -  {cause}" for cause in self.refused]
        shown = best or next(iter(self.choices), None)
        if shown is not None:
            lines += ["", f"  Details: {shown.command}"]
        return "\n".join(lines) + "\n"
