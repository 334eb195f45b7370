# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the times of many steps that are simulated together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .batched_costs import BOUNDS, main_bound

Ints = npt.NDArray[np.int64]


class FlatTimes(NamedTuple):
    """Times of simulated steps.

    Attributes
    ----------
    time_ps : int64 array (rows,)
    kernel_ps, collective_ps : int64 array (rows,)
        The time in which each stream is busy.
    fits : bool array (rows,)
        The rows all of whose times fit.
    part_ps : int64 array (2 * entries - 1, rows)
        The time of each entry alone, with all that it receives there from the beginning; between
        two of them the time from the end of the first to the beginning of the second, which may
        begin before the end where it does not need what it receives at once. The sum is
        ``time_ps``.
    """

    time_ps: Ints
    kernel_ps: Ints
    collective_ps: Ints
    fits: npt.NDArray[np.bool_]
    part_ps: Ints


@dataclass(frozen=True)
class ResourceTimes:
    """Times of steps by what bounds them.

    Attributes
    ----------
    kernels : dict of str to int64 array (resources, rows)
        The picoseconds of the kernels of an op, by the resource of
        :data:`.batched_costs.BOUNDS` that bounds each.
    moved_ps : int64 array (rows,)
        The time of collectives.
    """

    kernels: dict[str, Ints]
    moved_ps: Ints

    def extended(self, more: ResourceTimes, times: int) -> ResourceTimes:
        """Add ``times`` what ``more``, of a deeper step, has beyond this."""
        kernels = {
            name: part + times * (more.kernels[name] - part) for name, part in self.kernels.items()
        }
        return ResourceTimes(kernels, self.moved_ps + times * (more.moved_ps - self.moved_ps))

    def bound(self, time_ps: Ints) -> Ints:
        """Return what bounds most of a step of this time, as :class:`.batched.BatchedTimes`."""
        parts = np.zeros((len(BOUNDS) + 1, time_ps.size), np.int64)
        for times in self.kernels.values():
            np.add.at(parts, (times.argmax(axis=0), np.arange(time_ps.size)), times.sum(axis=0))
        return main_bound(parts, self.moved_ps, time_ps)
