# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``calibrate``: a system's constants from measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SimulationError
from ..system import MEANINGS, System
from .fitting import Fit, fit
from .prices import with_constants
from .programs import program_of
from .rows import Row, read_rows
from .steps import Model

Floats = npt.NDArray[np.float64]

FIXED = ("attention_efficiency", "hop_us", "step_overhead_us")
"""Constants that steps of Megatron's GPT say nothing of, or cannot tell from others."""
UNDETERMINED = 0.7
"""Share of the prior's spread that is left of a constant which rows do not determine."""
_CLOSE = 1e-3


@dataclass(frozen=True)
class Calibration:
    """A system fitted to rows.

    Attributes
    ----------
    system : System
    values : dict of str to float
        The constants that were fitted.
    errors_percent : dict of str to float
        Mean absolute error: ``in sample``, ``out of fold``, and out of fold by group
        (``tp 4``, ``pp 1``, ``nodes 8``).
    at_bound, undetermined : tuple of str
        Constants at the end of what is plausible, and those of which the rows say little.
    """

    system: System
    values: dict[str, float]
    errors_percent: dict[str, float]
    at_bound: tuple[str, ...]
    undetermined: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give all but the system."""
        return {key: value for key, value in self.__dict__.items() if key != "system"}

    def to_text(self) -> str:
        """Give errors and constants as lines of text."""
        lines = [f"{name:<14} {error:6.2f} %" for name, error in self.errors_percent.items()]
        for name, value in self.values.items():
            notes = [w for w, own in (("at its bound", self.at_bound),
                     ("not determined by the rows", self.undetermined)) if name in own]  # fmt: skip
            said = f"  ({', '.join(notes)})" if notes else ""
            lines.append(f"{name:<26} {value:10.4g} {MEANINGS[name].unit}{said}")
        return "\n".join(lines) + "\n"


def calibrate(
    system: System | str,
    rows: Sequence[Row] | str | Path,
    *,
    tolerance: float = 0.01,
    folds: int = 5,
    seed: int = 0,
    source: str = "calibrated",
) -> Calibration:
    """Fit the constants of a system to measured steps of GPT models.

    Each row is exported through the whole pipeline once and kept on disk. Its time is the sum of
    what lies on its longest way, which is found again with the constants found.

    Parameters
    ----------
    system : System or str
        With constants, which are the centers of the priors.
    rows : sequence of Row, or str or Path
        Measured steps, or their CSV file.
    tolerance : float
        Relative error up to which errors count by their square; larger ones by themselves.
    folds : int
        Of the cross-validation; 0: none.
    seed : int
        Of the folds.
    source : str
        What is written as the source of the constants.

    Returns
    -------
    Calibration

    Raises
    ------
    SimulationError
        DIST0730 for rows that cannot be read, or of which there are none, and for a system
        without constants.
    """
    known = System.load(system) if isinstance(system, str) else system
    given = list(rows) if not isinstance(rows, str | Path) else read_rows(rows)
    if not given or not known.constants:
        what = "there are no rows" if not given else f"the system {known.name} has no constants"
        raise SimulationError(
            "DIST0730", what, place="calibrate", remedy='Give rows, and a system with "constants".'
        )
    work = _Work(known, given, tolerance)
    for _ in range(2):
        found = work.fit(range(len(given)))
        times = work.model.walk(work.values(found.point))
    errors = {"in sample": _percent(times, work.measured)}
    if folds:
        errors.update(_validated(work, found, folds, seed))
    spread = np.sqrt(np.diag(np.linalg.inv(work.hessian(found)))) / work.spread
    low, high = work.bounds
    ends = (found.point < low + _CLOSE) | (found.point > high - _CLOSE)
    values = work.values(found.point)
    return Calibration(
        with_constants(known, values, source),
        values,
        errors,
        tuple(n for n, there in zip(work.names, ends, strict=True) if there),
        tuple(n for n, left in zip(work.names, spread, strict=True) if left > UNDETERMINED),
    )


class _Work:
    """Rows, their programs and what is fitted."""

    def __init__(self, system: System, rows: Sequence[Row], tolerance: float) -> None:
        self.rows, self.tolerance = rows, tolerance
        self.system = system
        self.measured = np.array([row.time_s for row in rows])
        self.names = [name for name in MEANINGS if name not in FIXED]
        means = [MEANINGS[name] for name in self.names]
        self.center = np.log([system.constant(name) for name in self.names])
        self.spread = np.array([one.spread for one in means])
        self.bounds = np.log([one.least for one in means]), np.log([one.most for one in means])
        self.model = Model([program_of(row) for row in rows], system)

    def values(self, point: Floats) -> dict[str, float]:
        """Constants by name."""
        return dict(zip(self.names, np.exp(point).tolist(), strict=True))

    def fit(self, rows: Sequence[int], begin: Floats | None = None) -> Fit:
        """Fit to some of the rows."""
        own = list(rows)
        steps, measured = self.model.some(own), self.measured[own]

        def residuals(point: Floats) -> Floats:
            times = steps.times_s(with_constants(self.system, self.values(point)))
            return np.asarray(np.log(times / measured) / self.tolerance, np.float64)

        weights = np.array([self.rows[row].weight for row in own])
        return fit(residuals, weights, self.center, self.spread, self.bounds, begin)

    def hessian(self, found: Fit) -> Floats:
        """Curvature of the loss, the prior's included."""
        return found.jacobian.T @ found.jacobian + np.diag(self.spread**-2.0)


def _validated(work: _Work, found: Fit, folds: int, seed: int) -> dict[str, float]:
    """Errors of rows by constants fitted to the others."""
    count = len(work.rows)
    order = np.random.default_rng(seed).permutation(count)
    times = np.zeros(count)
    for fold in np.array_split(order, min(folds, count)):
        kept = sorted(set(range(count)) - set(fold.tolist()))
        other = work.fit(kept, found.point)
        times[fold] = work.model.times_s(work.values(other.point))[fold]
    groups: dict[str, list[int]] = {}
    per_node = work.system.intra_node.devices_per_node
    for number, row in enumerate(work.rows):
        for key in (f"tp {row.tp}", f"pp {row.pp}", f"nodes {-(-row.devices // per_node)}"):
            groups.setdefault(key, []).append(number)
    out = {"out of fold": _percent(times, work.measured)}
    for key in sorted(groups, key=lambda key: (key.split()[0], int(key.split()[1]))):
        own = groups[key]
        out[key] = _percent(times[own], work.measured[own])
    return out


def _percent(times: Floats, measured: Floats) -> float:
    return float(100 * np.abs(times / measured - 1).mean())
