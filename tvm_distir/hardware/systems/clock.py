# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The clock shared by passes and the simulator gives times of ops in integer picoseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_distir.support import SimulationError

from .kernel_tables import KernelSizes
from .network import GroupLayout, pair_up
from .system import System

PICOSECONDS = 10**12
_LARGEST_S = (1 << 62) / PICOSECONDS


@dataclass(frozen=True)
class KernelTime:
    """The duration of a kernel and its bound (see :class:`.system.Roofline`)."""

    duration_ps: int
    bound_by: str


class Clock:
    """The cached times of kernels, collectives and transfers on a system.

    Every method takes the ``location`` that an error names, and raises SimulationError DIST0721 for
    a time that is not finite or does not fit.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._kernels: dict[tuple[int, int, str, str, KernelSizes | None], KernelTime] = {}
        self._collectives: dict[
            tuple[str, int, GroupLayout, bool], tuple[int, dict[object, int]]
        ] = {}
        self._layouts: dict[tuple[tuple[int, ...], ...], GroupLayout] = {}
        self._pairs: dict[tuple[tuple[int, ...], tuple[int, ...]], GroupLayout] = {}

    def kernel(
        self,
        flops: int,
        moved_bytes: int,
        kernel_class: str,
        dtype: str,
        location: str = "",
        sizes: KernelSizes | None = None,
    ) -> KernelTime:
        """Return the time of a kernel, by :meth:`System.roofline`."""
        key = (flops, moved_bytes, kernel_class, dtype, sizes)
        if key not in self._kernels:
            bound = self.system.roofline(flops, moved_bytes, kernel_class, dtype, sizes)
            self._kernels[key] = KernelTime(picoseconds(bound.time_s, location), bound.bound_by)
        return self._kernels[key]

    def collective_ps(
        self,
        kind: str,
        payload_bytes: int,
        layout: GroupLayout,
        location: str = "",
        gradients: bool = False,
    ) -> int:
        """Return the time of a collective in the slowest of the groups, which all run at once.

        ``gradients``: a sum of gradients behind a step, see :meth:`System.spread_time_s`.
        """
        return self._collective(kind, payload_bytes, layout, location, gradients)[0]

    def group_durations_ps(
        self, kind: str, payload_bytes: int, layout: GroupLayout, location: str = ""
    ) -> tuple[int, ...]:
        """Return the time of a collective in each of the groups, which all run at once."""
        _, times = self._collective(kind, payload_bytes, layout, location, False)
        return tuple(times[spread] for spread in layout.spreads)

    def _collective(
        self, kind: str, payload_bytes: int, layout: GroupLayout, location: str, gradients: bool
    ) -> tuple[int, dict[object, int]]:
        key = (kind, payload_bytes, layout, gradients)
        if key not in self._collectives:
            times, sharing = dict[object, int](), layout.sharing
            for spread in layout.kinds:
                time_s = self.system.spread_time_s(kind, payload_bytes, spread, sharing, gradients)
                times[spread] = picoseconds(time_s, location)
            self._collectives[key] = max(times.values(), default=0), times
        return self._collectives[key]

    def transfer_ps(
        self, kind: str, sent_bytes: int, layout: GroupLayout, location: str = ""
    ) -> int:
        """Return the time of a transfer between the pairs of :meth:`transfer_layout`."""
        if not sent_bytes or not layout.spreads:
            return 0
        return self.collective_ps(kind, sent_bytes, layout, location)

    def layout(self, groups: Sequence[Sequence[int]]) -> GroupLayout:
        """Return how groups of devices are distributed over the nodes."""
        key = tuple(map(tuple, groups))
        if key not in self._layouts:
            self._layouts[key] = self.system.layout(key)
        return self._layouts[key]

    def transfer_layout(self, source: Sequence[int], target: Sequence[int]) -> GroupLayout:
        """Return the layout of the pairs of devices of two meshes."""
        per_node = self.system.intra_node.devices_per_node
        base = min((*source, *target), default=0) // per_node * per_node  # as on the first nodes
        base = base if self.system.graph is None else 0
        key = tuple(device - base for device in source), tuple(device - base for device in target)
        if key not in self._pairs:
            self._pairs[key] = self.system.layout(pair_up(*key))
        return self._pairs[key]


def picoseconds(time_s: float, location: str = "") -> int:
    """Round seconds to picoseconds.

    Raises
    ------
    SimulationError
        DIST0721 for what is not finite or does not fit.
    """
    if not math.isfinite(time_s) or not 0 <= time_s <= _LARGEST_S:
        problem = f"it would take {time_s:.3g} s"
        remedy = "Check the numbers of the system and the sizes of the program."
        raise SimulationError("DIST0721", problem, location=location, remedy=remedy)
    return round(time_s * PICOSECONDS)
