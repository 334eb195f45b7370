# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw the operands of cases for which small integers do not suffice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], ArrayLike]
"""(Generator, shape) to values; they are cast to the operand's dtype."""


def small(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw integers from -2 to 2, whose sums are exact; the default of cases."""
    return rng.integers(-2, 3, shape)


def index_below(n: int) -> Draw:
    """Draw indices into n rows."""
    return lambda rng, shape: rng.integers(0, n, shape)


def nonzero(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw powers of two and their negatives: divisors without rounding."""
    return rng.choice([-2.0, -1.0, 1.0, 2.0, 4.0], shape)


def positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw squares of powers of two, whose roots are exact."""
    return rng.choice([0.25, 1.0, 4.0], shape)


def unit(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw numbers between -1 and 1."""
    return rng.choice([-0.75, -0.5, 0.0, 0.25, 0.5], shape)


def above_one(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw numbers of at least 1."""
    return rng.choice([1.0, 1.5, 2.0, 4.0], shape)


def multiples_of_half(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw multiples of a half, which are rounded."""
    return rng.integers(-4, 5, shape) / 2


def specials(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw infinities and NaN."""
    return rng.choice([np.nan, np.inf, -np.inf, 1.0], shape)


def bits(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw zeros and ones."""
    return rng.integers(0, 2, shape)


def distinct(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Draw distinct numbers."""
    return rng.permutation(math.prod(shape)).reshape(shape)
