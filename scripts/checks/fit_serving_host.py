#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the host time of a serving engine to measured latencies of several models.

``python scripts/checks/fit_serving_host.py FILE.csv [COLUMN=TEXT|TEXT ...]`` takes rows as
``serving_rows.py`` does, and fits ``serving_step_us``, ``serving_request_us`` and
``serving_prompt_us`` by least squares of the logarithms of the means of TPOT and TTFT, which are
taken to be linear in the three. All models weigh as much, whatever their rows. Errors are printed
of the constants that ship, and of those that are fitted without the rows of a model; of a single
model, of five folds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import serving_rows
from scipy.optimize import least_squares

from tvm_distir.planning.serving.engine_loop import EngineLoop
from tvm_distir.planning.serving.levels import ServiceLevels, summarize
from tvm_distir.planning.serving.workload import Workload

NAMES = ("serving_step_us", "serving_request_us", "serving_prompt_us")
BEGIN = (300.0, 10.0, 8000.0)
STEPS = np.diag([500.0, 20.0, 20000.0])
MOST = (10_000.0, 1000.0, 200_000.0)
FOLDS, TOLERANCE, TPOT_WEIGHT = 5, 0.1, 3.0


def means_ms(options: Mapping[str, str], host_us: np.ndarray) -> tuple[float, float]:
    """Return the means of TPOT and TTFT with a host of three constants."""
    engine = serving_rows.engine_of(options)
    work = Workload.parse(options["workload"])
    step_us, request_us, prompt_us = map(float, host_us)
    loop = EngineLoop(
        engine.times.with_host(request_us), replace(engine.options, step_overhead_us=step_us),
        engine.pages, engine.served.page, work.users, host_ps=round(prompt_us * 1e6),
    )  # fmt: skip
    ((_, served),) = loop.serve(work.draw(work.count))
    summary = summarize([served], ServiceLevels(), window=False)
    return 1e3 * summary.tpot.mean_s, 1e3 * summary.ttft.mean_s


def shipped_ms(options: Mapping[str, str]) -> tuple[float, float]:
    """Return the means with the constants of the system."""
    system = serving_rows.engine_of(options).served.system
    return means_ms(options, np.array([system.constant(name) for name in NAMES]))


def main() -> None:
    """Fit, and print constants and errors."""
    pairs = serving_rows.modelled(sys.argv[1], sys.argv[2:])
    measured = np.array([[float(row[k]) for k in ("tpot_ms", "ttft_ms")] for row, _ in pairs])
    begin = np.array([means_ms(options, np.array(BEGIN)) for _, options in pairs])
    slopes = np.stack(
        [
            (np.array([means_ms(o, np.array(BEGIN) + step) for _, o in pairs]) - begin) / step.sum()
            for step in STEPS
        ],
        axis=-1,
    )
    models = np.array([row["model_path"] for row, _ in pairs])

    def predicted(host_us: np.ndarray, which: np.ndarray) -> np.ndarray:
        means = np.asarray(begin[which] + slopes[which] @ (host_us - np.array(BEGIN)))
        return np.maximum(means, 1e-3)

    def fit(which: np.ndarray) -> np.ndarray:
        counts = (models[which][:, None] == models[which]).sum(axis=1)
        weights = np.outer(np.sqrt(which.size / counts), [TPOT_WEIGHT, 1.0])

        def residuals(host_us: np.ndarray) -> np.ndarray:
            return (np.log(predicted(host_us, which) / measured[which]) * weights).ravel()

        bounds = ((0.0, 0.0, 0.0), MOST)
        solution = least_squares(
            residuals, BEGIN, bounds=bounds, loss="soft_l1", f_scale=TOLERANCE, x_scale=BEGIN
        )
        return np.asarray(solution.x)

    folds = np.unique(models, return_inverse=True)[1]
    if not folds.any():
        folds = np.random.default_rng(0).integers(0, FOLDS, len(pairs))
    errors = np.zeros((2, *measured.shape))
    errors[0] = 100 * (np.array([shipped_ms(options) for _, options in pairs]) / measured - 1)
    for fold in sorted(set(folds.tolist())):
        test = np.flatnonzero(folds == fold)
        host_us = fit(np.flatnonzero(folds != fold))
        errors[1, test] = 100 * (predicted(host_us, test) / measured[test] - 1)
    for name, value in zip(NAMES, fit(np.arange(len(pairs))), strict=True):
        print(f"{name} {value:.1f}")
    print_errors(pairs, errors)


def print_errors(pairs: list[tuple[dict[str, str], dict[str, str]]], errors: np.ndarray) -> None:
    """Print medians and biases of the constants that ship and of the fitted ones, by group."""
    print("| rows | count | shipped: TPOT | TTFT | held out: TPOT | TTFT |")
    print("|--|--:|--:|--:|--:|--:|")
    keys = [tuple(row[k] for k in ("model_path", "system", "precision")) for row, _ in pairs]
    for group in sorted(set(keys)):
        of_group = errors[:, [k for k, key in enumerate(keys) if key == group]]
        medians, bias = np.median(np.abs(of_group), axis=1), np.median(of_group, axis=1)
        cells = (f"{m:.1f}, {b:+.1f}" for m, b in zip(medians.ravel(), bias.ravel(), strict=True))
        print(f"| {' '.join(group)} | {of_group.shape[1]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
