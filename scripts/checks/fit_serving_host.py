#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the host time of a serving engine to measured latencies, and print errors out of fold.

``python scripts/checks/fit_serving_host.py FILE.csv [COLUMN=TEXT ...]`` takes rows as
``serving_rows.py`` does, and fits ``serving_step_us``, ``serving_request_us`` and
``serving_prompt_us`` by least squares of the logarithms of the means of TPOT and TTFT, which are
taken to be linear in the three. Errors are those of five folds.
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

BEGIN = (500.0, 10.0, 20000.0)
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

    def predicted(host_us: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.asarray(begin[which] + slopes[which] @ (host_us - np.array(BEGIN)))

    def fit(which: np.ndarray) -> np.ndarray:
        def residuals(host_us: np.ndarray) -> np.ndarray:
            times = np.maximum(predicted(host_us, which), 1e-3)
            return (np.log(times / measured[which]) * [TPOT_WEIGHT, 1.0]).ravel()

        bounds = ((0.0, 0.0, 0.0), MOST)
        return np.asarray(
            least_squares(
                residuals, BEGIN, bounds=bounds, loss="soft_l1", f_scale=TOLERANCE, x_scale=BEGIN
            ).x
        )

    folds = np.random.default_rng(0).integers(0, FOLDS, len(pairs))
    errors = np.zeros_like(measured)
    for fold in sorted(set(folds.tolist())):
        test = np.flatnonzero(folds == fold)
        host_us = fit(np.flatnonzero(folds != fold))
        errors[test] = 100 * (predicted(host_us, test) / measured[test] - 1)
    names = ("serving_step_us", "serving_request_us", "serving_prompt_us")
    for name, value in zip(names, fit(np.arange(len(pairs))), strict=True):
        print(f"{name} {value:.1f}")
    groups = sorted({(row["system"], row["precision"]) for row, _ in pairs})
    print("| rows | count | TPOT: median, bias, % | TTFT: median, bias, % |\n|--|--:|--:|--:|")
    for group in groups:
        of_group = [k for k, (r, _) in enumerate(pairs) if (r["system"], r["precision"]) == group]
        medians = np.median(np.abs(errors[of_group]), axis=0)
        bias = np.median(errors[of_group], axis=0)
        cells = " | ".join(f"{m:.1f}, {b:+.1f}" for m, b in zip(medians, bias, strict=True))
        print(f"| {' '.join(group)} | {len(of_group)} | {cells} |")


if __name__ == "__main__":
    main()
