# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the lengths of requests, and the numbers of a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.support import MAX_INT, SimulationError, parse_float

Ints = npt.NDArray[np.int64]


def workload_fault(problem: str, location: str, remedy: str) -> SimulationError:
    """Return the error of an invalid workload, scheduler or level."""
    return SimulationError("DIST0761", problem, location=location, remedy=remedy)


@dataclass(frozen=True)
class Lengths:
    """Distribution of the tokens of prompts or answers.

    Attributes
    ----------
    kind : str
        Empty for a fixed length, ``uniform`` or ``lognormal``.
    first, second : float
        The length; the least and the most; or the median and the standard deviation of the
        logarithm.
    """

    kind: str
    first: float
    second: float = 0.0

    @staticmethod
    def parse(text: str) -> Lengths:
        """Read ``N``, ``uniform:LOW-HIGH`` or ``lognormal:MEDIAN:SIGMA``.

        Raises
        ------
        SimulationError
            DIST0761.
        """
        kind, _, rest = text.partition(":")
        if not rest:
            return Lengths("", max(1, integer_of(text, text)))
        if kind == "uniform":
            low, high = (integer_of(part, text) for part in rest.partition("-")[::2])
            if not 1 <= low <= high:
                problem = f"lengths from {low} to {high} are impossible"
                raise workload_fault(problem, text, "Give uniform:LOW-HIGH with 1 <= LOW <= HIGH.")
            return Lengths(kind, low, high)
        if kind == "lognormal":
            median, sigma = (positive_of(part, text) for part in rest.partition(":")[::2])
            if math.log(median) + sigma**2 / 2 > math.log(MAX_INT):
                raise workload_fault("the mean is too large", text, "Give a smaller SIGMA.")
            return Lengths(kind, median, sigma)
        raise workload_fault(
            f'unknown lengths "{text}"', text, "Use N, uniform:LOW-HIGH or lognormal:MEDIAN:SIGMA."
        )

    @property
    def mean(self) -> float:
        """Return the mean."""
        if self.kind == "uniform":
            return (self.first + self.second) / 2
        if self.kind == "lognormal":
            return self.first * math.exp(self.second**2 / 2)
        return float(self.first)

    @property
    def most(self) -> int:
        """Return the most tokens; 0 where they have no bound."""
        return 0 if self.kind == "lognormal" else int(self.second or self.first)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Return random lengths, int64 (count,)."""
        if self.kind == "uniform":
            return rng.integers(int(self.first), int(self.second) + 1, count)
        if self.kind == "lognormal":
            sampled = self.first * np.exp(self.second * rng.standard_normal(count))
            return np.maximum(1, np.rint(sampled)).astype(np.int64)
        return np.full(count, int(self.first), np.int64)


def integer_of(text: str, location: str) -> int:
    """Return the whole number that a text is."""
    if not text.isascii() or not text.isdigit():
        raise workload_fault(f'"{text}" is no whole number', location, "Give a whole number.")
    return int(text)


def positive_of(text: str, location: str) -> float:
    """Return the positive number that a text is."""
    number = parse_float(text)
    if not 0 < number < math.inf:
        raise workload_fault(f'"{text}" is not positive', location, "Give a positive number.")
    return number
