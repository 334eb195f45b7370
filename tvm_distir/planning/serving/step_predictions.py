# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the times and the memory of many steps of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.performance import ResourceTimes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepPredictions:
    """Times and memory of steps.

    Attributes
    ----------
    time_ps, peak_bytes : int64 arrays (rows,)
        The peak is that of the memory of a device.
    resources : ResourceTimes
    """

    time_ps: Ints
    peak_bytes: Ints
    resources: ResourceTimes

    @property
    def bound(self) -> Ints:
        """Return what bounds the steps, as places in ``planning.sweep.outcome.BOUNDS``."""
        return self.resources.bound(self.time_ps)

    def extended(self, more: StepPredictions, times: int) -> StepPredictions:
        """Add ``times`` what ``more``, the steps of a deeper model, have beyond these."""
        return StepPredictions(
            self.time_ps + times * (more.time_ps - self.time_ps),
            self.peak_bytes + times * (more.peak_bytes - self.peak_bytes),
            self.resources.extended(more.resources, times),
        )

    @staticmethod
    def joined(parts: Sequence[tuple[Ints, StepPredictions]], rows: int) -> StepPredictions:
        """Join predictions of parts of all rows, with the places of each."""
        result = StepPredictions(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            ResourceTimes({}, np.zeros(rows, np.int64)),
        )
        for at, part in parts:
            result.time_ps[at] = part.time_ps
            result.peak_bytes[at] = part.peak_bytes
            result.resources.moved_ps[at] = part.resources.moved_ps
            for name, times in part.resources.kernels.items():
                full = result.resources.kernels.setdefault(
                    name, np.zeros((len(times), rows), np.int64)
                )
                full[:, at] = times
        return result
