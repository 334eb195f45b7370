# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the peak of a step without stages as the maximum of a few sums of tensor sizes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from tvm_distir.performance.program.numbers import Numbers
from tvm_distir.performance.program.program import Program

from .caching_allocator import CachingAllocator
from .entries import entry_buffers
from .peaks import PeakFormula, SizeKinds, highest

Ints = npt.NDArray[np.int64]


class FlatPeaks:
    """Peaks of like steps without stages, which differ in sizes; see :mod:`.peaks`.

    Parameters
    ----------
    program : Program
        The program of a step, grouped into kernels; with one entry, without branches.
    numbers : Numbers
        The numbers of the program.
    which : int64 array
        The quantity of each number of the program.
    """

    def __init__(self, program: Program, numbers: Numbers, which: Ints) -> None:
        self.kinds = SizeKinds(which)
        program = self.kinds.of_program(program, numbers)
        level = functools.partial(PeakFormula, self.kinds.count)
        framework = CachingAllocator(program, level=level)
        resident, use = entry_buffers(program, program.entries[0], framework)
        base = PeakFormula(self.kinds.count)
        for buffer in resident:
            base.add(buffer.role, buffer.bytes)
        above = framework.level(use)
        assert isinstance(above, PeakFormula)
        self.moments = highest(base.held + above.most_held)

    def of(self, quantities: Ints) -> Ints:
        """Return the bytes of a device, (rows,), from (quantities, rows)."""
        return self.kinds.highest_bytes(self.moments, quantities)
