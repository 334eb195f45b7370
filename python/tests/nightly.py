# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cases of a test that repeat its claim over further sizes or models, and run at night alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def nightly_but(cases: Iterable[Any], kept: Collection[int]) -> list[Any]:
    """Return cases as parameters of which all but some have the mark ``nightly``.

    Parameters
    ----------
    cases : iterable
        Tuples of parameters, or values of a single parameter.
    kept : collection of int
        Positions of the cases that every run of the suite has: one of each structure.
    """
    parameters = []
    for position, case in enumerate(cases):
        marks = () if position in kept else (pytest.mark.nightly,)
        values = case if isinstance(case, tuple) else (case,)
        parameters.append(pytest.param(*values, marks=marks))
    return parameters
