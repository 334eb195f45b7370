# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How operands of a case are drawn, when small integers will not do."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], ArrayLike]
"""(Generator, shape) to values; they are cast to the operand's dtype."""


def small(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Integers from -2 to 2, whose sums are exact: what is drawn unless a case says otherwise."""
    return rng.integers(-2, 3, shape)


def index_below(n: int) -> Draw:
    """Indices into n rows."""
    return lambda rng, shape: rng.integers(0, n, shape)


def nonzero(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Powers of two and their negatives: divisors without rounding."""
    return rng.choice([-2.0, -1.0, 1.0, 2.0, 4.0], shape)


def positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Squares of powers of two: their roots are exact."""
    return rng.choice([0.25, 1.0, 4.0], shape)


def unit(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers between -1 and 1."""
    return rng.choice([-0.75, -0.5, 0.0, 0.25, 0.5], shape)


def above_one(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers from 1 on."""
    return rng.choice([1.0, 1.5, 2.0, 4.0], shape)


def halves(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Multiples of a half: what rounds."""
    return rng.integers(-4, 5, shape) / 2


def specials(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Infinities and NaN."""
    return rng.choice([np.nan, np.inf, -np.inf, 1.0], shape)


def bits(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Zeros and ones."""
    return rng.integers(0, 2, shape)


def distinct(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers none of which stands twice."""
    return rng.permutation(math.prod(shape)).reshape(shape)
