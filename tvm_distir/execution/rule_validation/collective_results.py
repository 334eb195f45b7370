# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate the collectives of local forms for all devices of a mesh axis at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_distir.support import InternalError

#: NumPy's functions for the reductions of factors and collectives.
REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def reduced(kind: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Reduce the terms of all devices, in the order of the devices."""
    return np.asarray(REDUCE[kind].reduce(list(parts))).astype(parts[0].dtype)


def meaning(kind: str, attrs: Any, values: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """Return the results of a collective on each device.

    Parameters
    ----------
    kind : str
        The kind, as :func:`.ops.dist_op_name` names it.
    attrs : object
        The call's attributes.
    values : sequence of arrays
        The operand on each device; empty where there is none.
    count : int
        The number of devices.
    """
    if kind == "axis_index":
        return [np.array(rank, "int64") for rank in range(count)]
    if kind == "all_reduce":
        return [reduced(str(attrs["op"]), values)] * count
    if kind == "all_gather":
        return [np.concatenate(list(values), axis=int(attrs["dim"]))] * count
    if kind == "collective_permute":
        sources = [rank - int(attrs["shift"]) for rank in range(count)]
        nothing = np.zeros_like(values[0])
        return [values[s] if 0 <= s < count else nothing for s in sources]
    problem = f"a local form uses {kind}, which the validation does not support"
    remedy = "Add it to ops/validate/collectives.py."
    raise InternalError("DIST0901", problem, location="ops.validate", remedy=remedy)
