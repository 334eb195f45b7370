# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the errors of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.support import EngineError

from .io_layout import Port
from .tensors import Array


def bad_input(problem: str, remedy: str, port: Port | None = None) -> EngineError:
    """Return the error DIST0602, which names the input."""
    location = input_location(port) if port else "inputs"
    return EngineError("DIST0602", problem, location=location, remedy=remedy)


def index_fault(values: Array, index_range: Sequence[int], location: str) -> EngineError | None:
    """Return the error DIST0619 if a value is outside of the range of indices.

    Parameters
    ----------
    values : array of integers
    index_range : sequence of int
        The range, as :attr:`Port.index_range` has it.
    location : str
        The place of the input.
    """
    low, high, *ignored = index_range
    if not values.size or (values.min() >= low and values.max() < high):
        return None
    outside = (values < low) | (values >= high)
    for number in ignored:
        outside &= values != number
    if not outside.any():
        return None
    at = np.argwhere(outside)[0]
    problem = f"{values[tuple(at)]} at {at.tolist()} is not an index of a dim of {high} elements"
    remedy = f"Give indices from {low} to {high - 1}."
    return EngineError("DIST0619", problem, location=location, remedy=remedy)


def input_location(port: Port) -> str:
    """Return how errors name an input."""
    return f'input {port.index} "{port.name}"'
