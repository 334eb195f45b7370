# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize a latency: its mean, its percentiles, and their sampling errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .steady_window import Floats

PERCENTILES = (50, 90, 99)
SECTIONS, QUANTILE = 10, 2.26
"""Sections of a window, and the quantile of 97.5 % of Student's t with one degree less."""
_PRECISION = 0.05
"""The sampling error that is small enough, as a share of a percentile."""


@dataclass(frozen=True)
class Latency:
    """Mean and percentiles of a latency, in seconds.

    The errors are those of sampling: the larger halves of 95 % confidence intervals of the
    percentiles; None where there are too few requests.
    """

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p90_error_s: float | None = None
    p99_error_s: float | None = None
    p50_error_s: float | None = None

    def at(self, percentile: int) -> float:
        """Return one of :data:`PERCENTILES`, in seconds."""
        return float(getattr(self, f"p{percentile}_s"))

    def precise(self, percentile: int) -> bool:
        """Return whether the sampling error of a percentile is small; False: it is not known."""
        error = getattr(self, f"p{percentile}_error_s")
        return error is not None and float(error) <= _PRECISION * self.at(percentile)

    @staticmethod
    def of(values: Floats) -> Latency:
        """Summarize values, which are in order of time.

        Errors hold for values that depend on those before: the share of values above a percentile
        varies between sections as its mean over all of them does, and the percentiles of the ends
        of its interval bound that of the values (Asmussen and Glynn 2007, "Stochastic simulation",
        ch. III.4 and III.5).
        """
        if not values.size:
            return Latency(0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = np.percentile(values, PERCENTILES).tolist()
        errors = [
            _sampling_error(values, percent, value)
            for percent, value in zip(PERCENTILES, (p50, p90, p99), strict=True)
        ]
        return Latency(float(values.mean()), p50, p90, p99, errors[1], errors[2], errors[0])


def _sampling_error(values: Floats, percent: int, percentile: float) -> float | None:
    """Return the larger half of the interval of a percentile; None: it has no end above."""
    if values.size < SECTIONS**2:
        return None
    shares = [float((part > percentile).mean()) for part in np.array_split(values, SECTIONS)]
    error = 100 * QUANTILE * float(np.std(shares, ddof=1)) / SECTIONS**0.5
    if percent + error >= 100:
        return None
    low, high = np.percentile(values, [max(0.0, percent - error), percent + error]).tolist()
    return max(percentile - float(low), float(high) - percentile)
