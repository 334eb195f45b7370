# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calibrate a system's constants from measured steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import LAWS, LINKS, MEANINGS, System
from tvm_distir.planning.workers import Workers
from tvm_distir.support import SimulationError, lists_by_key

from .calibration import KERNELS, Calibration, spec_of, value_of
from .least_squares import Fit, fit
from .measured_rows import StepTimeModel
from .row_files import read_rows
from .rows import AnyRow, ProductRow
from .step_times import with_constants

Floats = npt.NDArray[np.float64]

FIXED = ("attention_efficiency", "hop_us", "step_overhead_us")
"""Constants that steps of Megatron's GPT say nothing of, or cannot tell from others."""
UNDETERMINED = 0.7
"""Share of the prior's spread that is left of a constant which rows do not determine."""
_CLOSE = 1e-3
CHANGED = 1e-3
"""The least relative change of a constant that counts as one."""
TOO_FAST = "they are faster than the peak or the bandwidth of the device"
NO_EFFECT = "no constant that is fitted has an effect on their time"
OWN_TIMES = ", as the device has measured times of kernels, and no matmul_efficiency"


def calibrate(
    system: System | str | Path,
    rows: Sequence[AnyRow] | str | Path,
    *,
    fit_also: Sequence[str] = (),
    tolerance: float = 0.01,
    folds: int = 5,
    seed: int = 0,
    source: str = "calibrated",
    workers: int | None = None,
    executor: Executor | None = None,
) -> Calibration:
    r"""Fit the constants of a system to measured steps of models, or to matrix products.

    Each step is exported through the full pipeline once and cached on disk. Its time is the sum of
    the parts on its critical path, which is computed again with the fitted constants.

    Parameters
    ----------
    system : System, or str or Path
        A system with constants, which are the centers of the priors.
    rows : sequence of Row, StepRow or ProductRow, or str or Path
        The measurements, or the path of their CSV file.
    fit_also : sequence of str
        Numbers of links to fit, of :data:`~.constants.LINKS`, and constants that are left
        alone otherwise (:data:`FIXED`).
    tolerance : float
        Relative error up to which errors count by their square; larger ones by themselves.
    folds : int
        The number of folds of the cross-validation; 0: none.
    seed : int
        The seed of the folds.
    source : str
        The text that is written as the source of the constants.
    workers : int, optional
        The number of programs that are made at once, by as many processes; the result does not
        depend on it.
    executor : concurrent.futures.Executor, optional
        The executor that makes programs instead of processes of this machine.

    Returns
    -------
    Calibration

    Raises
    ------
    SimulationError
        DIST0730 for rows that cannot be read, or of which there are none, or none that the device
        can reach, for a system without constants, and for a name in ``fit_also`` that is none.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:  # products of matrices
    ...     _ = file.write("m,k,n,time_us\n1024,1024,1024,15.8\n4096,4096,4096,620\n")
    ...     file.flush()
    ...     result = td.calibrate("a100", file.name, folds=0)
    >>> 0 < result.values["nic_efficiency"] <= 1
    True
    """
    known = System.required(system, "calibration")
    measured = list(rows) if not isinstance(rows, str | Path) else read_rows(rows)
    _refuse_unfit(known, measured, fit_also)
    with Workers(workers, executor) as pool:
        work = _Work(known, measured, tolerance, pool, fit_also)
    for _ in range(2):
        result = work.fit(range(len(work.rows)))
        times = work.model.walk(work.values(result.point))
    errors = {"in sample": work.percent(times)}
    if folds:
        errors.update(_validated(work, result, folds, seed))
    spread = np.sqrt(np.diag(np.linalg.inv(work.hessian(result)))) / work.spread
    low, high = work.bounds
    ends = (result.point < low + _CLOSE) | (result.point > high - _CLOSE)
    values = work.values(result.point)
    vague = tuple(n for n, left in zip(work.names, spread, strict=True) if left > UNDETERMINED)
    affected = np.abs(result.jacobian) > 0
    no_effect = NO_EFFECT + OWN_TIMES * bool(known.device.kernel_times or known.kernel_tables)
    unused = {
        **{number + 1: TOO_FAST for number in range(len(measured)) if number not in work.numbers},
        **{n + 1: no_effect for n in np.array(work.numbers)[~affected.any(axis=1)].tolist()},
    }
    changed = work.changed(values, np.any(affected, axis=0).tolist(), vague)
    return Calibration(
        with_constants(known, {name: values[name] for name in changed}, source),
        values,
        errors,
        tuple(n for n, at_bound in zip(work.names, ends, strict=True) if at_bound),
        vague,
        changed,
        dict(sorted(unused.items())),
    )


def _refuse_unfit(system: System, rows: Sequence[AnyRow], fit_also: Sequence[str]) -> None:
    if not rows or not (system.constants or fit_also):
        problem = "there are no rows" if not rows else f"the system {system.name} has no constants"
        remedy = 'Give rows, and a system with "constants".'
        raise SimulationError("DIST0730", problem, location="calibrate", remedy=remedy)
    laws = [f"{KERNELS}{name}." for name in system.device.kernel_times]
    unknown = [
        name
        for name in fit_also
        if name not in LINKS and name not in MEANINGS and not _is_law(name, laws)
    ]
    if unknown:
        raise SimulationError(
            "DIST0730", f"{unknown[0]!r} cannot be fitted", location="calibrate",
            remedy=f"Known: {', '.join([*FIXED, *LINKS])}, kernels.CLASS.DTYPE.FIELD.",
        )  # fmt: skip


def _is_law(name: str, laws: Sequence[str]) -> bool:
    return name.startswith(tuple(laws)) and name.count(".") == 3 and name.split(".")[3] in LAWS


class _Work:
    """Rows with their programs, and the constants that are fitted."""

    def __init__(
        self,
        system: System,
        rows: Sequence[AnyRow],
        tolerance: float,
        workers: Workers,
        also: Sequence[str] = (),
    ) -> None:
        self.model = StepTimeModel(rows, system, workers)
        possible = self.model.possible()
        if not possible:
            problem = f"all {len(rows)} rows are faster than the peak of the device"
            remedy = "Check the units of the times, and the peaks of the system."
            raise SimulationError("DIST0730", problem, location="calibrate", remedy=remedy)
        self.model.keep(possible)
        self.numbers, self.tolerance = possible, tolerance
        self.rows = [rows[number] for number in possible]
        self.system = system
        self.measured = np.array([row.time_s for row in self.rows])
        known = [name for name in system.constants if name not in FIXED or name in also]
        burst = ["burst_us"] if any(isinstance(row, ProductRow) for row in rows) else []
        self.names = list(dict.fromkeys([*known, *burst, *also]))
        means = [spec_of(name) for name in self.names]
        self.before = [value_of(system, name) for name in self.names]
        center = [now or mean.begin for now, mean in zip(self.before, means, strict=True)]
        self.center = np.log(np.clip(center, [m.least for m in means], [m.most for m in means]))
        self.spread = np.array([mean.spread for mean in means])
        self.bounds = np.log([mean.least for mean in means]), np.log([mean.most for mean in means])

    def values(self, point: Floats) -> dict[str, float]:
        """Return the constants by name."""
        return dict(zip(self.names, np.exp(point).tolist(), strict=True))

    def changed(
        self, values: Mapping[str, float], affected: Sequence[bool], vague: Collection[str]
    ) -> dict[str, tuple[float, float]]:
        """Return what each constant was and is, where the rows say that it differs."""
        changed = {}
        for name, begin, is_seen in zip(self.names, self.before, affected, strict=True):
            is_law = name.startswith(KERNELS)
            is_new = name == "burst_us" and name not in self.system.constants
            differs = abs(values[name] - begin) > CHANGED * abs(begin)
            if is_seen and differs and not ((is_new or is_law) and name in vague):
                changed[name] = begin, values[name]
        return changed

    def fit(self, rows: Sequence[int], begin: Floats | None = None) -> Fit:
        """Fit to some of the rows."""
        numbers = list(rows)
        steps, measured = self.model.some(numbers), self.measured[numbers]

        def residuals(point: Floats) -> Floats:
            times = steps.times_s(with_constants(self.system, self.values(point)))
            return np.asarray(np.log(times / measured) / self.tolerance, np.float64)

        weights = np.array([self.rows[row].weight for row in numbers])
        return fit(residuals, weights, self.center, self.spread, self.bounds, begin)

    def percent(self, times: Floats, rows: Sequence[int] | slice = slice(None)) -> float:
        """Return the mean error of rows, by their weights."""
        weights = np.array([row.weight for row in self.rows])[rows]
        return float(100 * np.average(np.abs(times / self.measured[rows] - 1), weights=weights))

    def hessian(self, result: Fit) -> Floats:
        """Return the curvature of the loss, the prior's included."""
        return result.jacobian.T @ result.jacobian + np.diag(self.spread**-2.0)


def _validated(work: _Work, result: Fit, folds: int, seed: int) -> dict[str, float]:
    """Return the errors of rows by constants fitted to the others."""
    count = len(work.rows)
    order = np.random.default_rng(seed).permutation(count)
    times = np.zeros(count)
    for fold in np.array_split(order, min(folds, count)):
        training = sorted(set(range(count)) - set(fold.tolist()))
        other = work.fit(training, result.point)
        times[fold] = work.model.times_s(work.values(other.point))[fold]
    per_node = work.system.intra_node.devices_per_node
    groups = lists_by_key((k, n) for n, row in enumerate(work.rows) for k in row.groups(per_node))
    out = {"out of fold": work.percent(times)}
    for key, members in sorted(groups.items(), key=lambda item: (len(item[0]), item[0])):
        out[key] = work.percent(times[members], members)
    return out
