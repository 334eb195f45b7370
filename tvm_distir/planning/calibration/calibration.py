# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State the constants that a calibration found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_distir.hardware import LAWS, LINKS, MEANINGS, ConstantSpec, System

KERNELS = "kernels."
"""Numbers of laws are named ``kernels.CLASS.DTYPE.FIELD``, with a field of :data:`LAWS`."""


@dataclass(frozen=True)
class Calibration:
    """System fitted to rows.

    Attributes
    ----------
    system : System
        The system with the constants that the fit changed. ``burst_us`` is among them only where
        rows determine it.
    values : dict of str to float
        The constants that were fitted.
    errors_percent : dict of str to float
        Mean absolute error: ``in sample``, ``out of fold``, and out of fold by group
        (``tp 4``, ``pp 1``, ``nodes 8``).
    at_bound, undetermined : tuple of str
        Constants at the end of what is plausible, and those of which the rows say little.
    changed : mapping of str to (float, float)
        The constants that the fit changed by more than :data:`.calibrate.CHANGED`, before and
        after. The other constants of ``system`` are those of the system before.
    unused : mapping of int to str
        The rows that determine no constant, counted from 1, and why.
    """

    system: System
    values: dict[str, float]
    errors_percent: dict[str, float]
    at_bound: tuple[str, ...]
    undetermined: tuple[str, ...]
    changed: Mapping[str, tuple[float, float]]
    unused: Mapping[int, str]

    def to_dict(self) -> dict[str, Any]:
        """Give all but the system."""
        return {key: value for key, value in self.__dict__.items() if key != "system"}

    def to_text(self) -> str:
        """Give errors and constants as lines of text."""
        lines = [f"{name:<14} {error:6.2f} %" for name, error in self.errors_percent.items()]
        for why in dict.fromkeys(self.unused.values()):
            rows = [str(row) for row, reason in self.unused.items() if reason == why]
            lines.append(f"{'not used':<14} {len(rows):6} rows ({', '.join(rows)}): {why}")
        for name in self.values:
            groups = {
                "at its bound": self.at_bound,
                "not determined by the rows": self.undetermined,
            }
            notes = [note for note, names in groups.items() if name in names]
            before = self.changed.get(name)
            notes.insert(0, "unchanged" if before is None else f"changed, was {before[0]:.4g}")
            value = value_of(self.system, name)
            lines.append(f"{name:<26} {value:10.4g} {unit_of(name)}  ({', '.join(notes)})")
        if not self.changed:
            lines.append(f"no constant of {self.system.name} is changed")
        return "\n".join(lines) + "\n"


def unit_of(name: str) -> str:
    """Return the unit of a constant, or of a number of links."""
    return spec_of(name).unit


def spec_of(name: str) -> ConstantSpec:
    """Return what is known of a constant, a number of links, or one of a law of kernels."""
    known = {**MEANINGS, **LINKS}
    return known[name] if name in known else LAWS[name.rpartition(".")[2]]


def value_of(system: System, name: str) -> float:
    """Return a constant of a system, or a number of its links or of its laws of kernels."""
    if name in LINKS:
        return float(getattr(system.intra_node, name.removeprefix("intra_node.")))
    if name.startswith(KERNELS):
        _, kernel_class, dtype, field = name.split(".")
        return float(getattr(system.device.form(kernel_class, dtype), field))
    return system.constant(name)
