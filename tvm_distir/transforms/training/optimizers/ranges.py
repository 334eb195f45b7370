# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declare and check the valid ranges of an optimizer's options."""

from __future__ import annotations

import math
from dataclasses import Field, field
from typing import Any

from tvm_distir.transforms.step_faults import wrong_argument

_LARGEST = (2 - 2**-23) * 2.0**127
"""Options are float32 in steps."""

_WITHIN, _SAID = "tvm_distir.within", "tvm_distir.said"
"""Keys of a field's metadata: the least and the most that it may be, and that in words."""


def at_least_zero(default: float) -> Any:
    """Declare a non-negative option, such as a rate or a decay."""
    description = "a number from 0 to the largest of float32"
    return field(default=default, metadata={_WITHIN: (0.0, _LARGEST), _SAID: description})


def above_zero(default: float) -> Any:
    """Declare a positive option, such as a limit that is divided by."""
    within = 2.0**-126, _LARGEST
    description = "a positive number, not below the least normal one of float32"
    return field(default=default, metadata={_WITHIN: within, _SAID: description})


def at_most_zero(default: float) -> Any:
    """Declare an option that is not positive, such as the power of a share of the steps."""
    description = "a number from the least of float32 to 0"
    return field(default=default, metadata={_WITHIN: (-_LARGEST, 0.0), _SAID: description})


def share(default: float) -> Any:
    """Declare an option in [0, 1), such as the decay of a running mean."""
    within = 0.0, math.nextafter(1.0, 0.0)
    return field(default=default, metadata={_WITHIN: within, _SAID: "a number from 0, below 1"})


def check_range(name: str, option: Field[Any], value: float) -> None:
    """Reject a number outside of the range of an option of the optimizer ``name``.

    Raises
    ------
    ModelError
        DIST0351.
    """
    least, most = option.metadata.get(_WITHIN, (-math.inf, math.inf))
    if not least <= value <= most:
        problem = f'"{option.name}" of the optimizer "{name}" is {value:g}'
        raise wrong_argument(problem, f"Give {option.metadata.get(_SAID, 'a finite number')}.")
